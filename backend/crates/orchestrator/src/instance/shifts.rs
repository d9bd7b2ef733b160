//! How the numbers of lines and the engine's log go together.
//!
//! An engine that dies takes with it what it had read from a container and not yet logged, while the container may live on
//! (live-restore) and be logged again by the next one. Then the log lacks lines, some of which the attachment may have
//! given, and the numbers are ahead of the log's from there on.

use kandev_runtime::Channel;
use serde::{Deserialize, Serialize};

/// Of one pipe.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shift {
    /// How many lines the log lacks.
    pub(super) by: u64,
    /// The number of the first line after them.
    pub(super) from: u64,
}

/// Of both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shifts {
    stdout: Shift,
    stderr: Shift,
}

impl Shifts {
    pub(super) const fn set(&mut self, channel: Channel, shift: Shift) {
        match channel {
            Channel::Stdout => self.stdout = shift,
            Channel::Stderr => self.stderr = shift,
        }
    }

    pub(super) const fn of(self, channel: Channel) -> Shift {
        match channel {
            Channel::Stdout => self.stdout,
            Channel::Stderr => self.stderr,
        }
    }
}
