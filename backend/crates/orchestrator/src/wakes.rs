//! What wakes those who wait for other servers of the database. Wakes only save time: whoever waits looks by itself, too.

use std::sync::Arc;
use std::time::Duration;

use kandev_domain::InstanceId;
use kandev_store::PgPool;
use kandev_store::notify::{Listener, Wake};
use tokio::sync::{Notify, broadcast, watch};
use tokio_util::sync::CancellationToken;

/// How long a listener that lost its database waits before it connects again.
const RETRY: Duration = Duration::from_secs(1);
/// How many instances' news may wait for a reader; one that missed some looks anyway.
const NEWS: usize = 256;

/// See the module's text.
#[derive(Debug, Clone)]
pub struct Wakes {
    commits: watch::Sender<u64>,
    /// A command may be there for an instance of ours.
    pub(crate) commands: Arc<Notify>,
    /// A command of ours may be answered.
    pub(crate) answers: watch::Sender<()>,
    /// The journal of an instance has more; of any, where it does not say.
    pub(crate) journals: broadcast::Sender<Option<InstanceId>>,
    /// There may be instances that no living run holds.
    pub(crate) unheld: Arc<Notify>,
}

impl Wakes {
    pub(crate) fn new() -> Self {
        Self {
            commits: watch::Sender::new(0),
            commands: Arc::default(),
            answers: watch::Sender::default(),
            journals: broadcast::Sender::new(NEWS),
            unheld: Arc::default(),
        }
    }

    /// The journal has more than before.
    pub(crate) fn committed(&self) {
        self.commits
            .send_modify(|commits| *commits = commits.wrapping_add(1));
    }

    /// Changes with every commit that this process hears of.
    pub fn commits(&self) -> watch::Receiver<u64> {
        self.commits.subscribe()
    }

    fn pass_on(&self, wake: Wake) {
        // Nobody may be waiting, which is no error.
        let tell = |news| drop(self.journals.send(news));
        match wake {
            Wake::Commands => self.commands.notify_one(),
            Wake::Answers => self.answers.send_replace(()),
            Wake::Servers => self.unheld.notify_one(),
            Wake::Journal(ids) => {
                self.committed();
                for id in ids {
                    tell(Some(id));
                }
            }
            Wake::Everything => {
                self.commands.notify_one();
                self.answers.send_replace(());
                self.unheld.notify_one();
                self.committed();
                tell(None);
            }
        }
    }
}

/// Hears the other servers until `closing`.
pub(crate) async fn listen(pool: PgPool, wakes: Wakes, closing: CancellationToken) {
    let mut listener = None;
    loop {
        let heard = tokio::select! {
            heard = next(&pool, &mut listener) => heard,
            () = closing.cancelled() => return,
        };
        match heard {
            Ok(wake) => wakes.pass_on(wake),
            Err(error) => {
                tracing::debug!(%error, "no wakes from other servers for now");
                listener = None;
                tokio::select! {
                    () = tokio::time::sleep(RETRY) => {}
                    () = closing.cancelled() => return,
                }
            }
        }
    }
}

async fn next(pool: &PgPool, listener: &mut Option<Listener>) -> kandev_store::Result<Wake> {
    if let Some(listener) = listener {
        return listener.next().await;
    }
    *listener = Some(Listener::connect(pool).await?);
    // What was said before is not heard.
    Ok(Wake::Everything)
}
