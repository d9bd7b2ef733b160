//! Tells readers of the database that there may be something new in it.
//!
//! A wake says no more than "look again": what there is, the database says. So it may come too often, and whoever waits for
//! one also looks by himself now and then, since another server's commits need not be heard of here.

use tokio::sync::watch;

/// The wakes of a process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Wakes {
    commits: watch::Sender<u64>,
}

impl Default for Wakes {
    fn default() -> Self {
        Self {
            commits: watch::Sender::new(0),
        }
    }
}

impl Wakes {
    /// The journal has more than before.
    pub fn committed(&self) {
        self.commits
            .send_modify(|commits| *commits = commits.wrapping_add(1));
    }

    /// Changes with every commit that this process hears of.
    pub fn commits(&self) -> watch::Receiver<u64> {
        self.commits.subscribe()
    }
}
