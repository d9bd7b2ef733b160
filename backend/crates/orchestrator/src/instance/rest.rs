//! What remains of the output when the attachment is gone: the engine's log has it.
//!
//! An attachment that nobody reads, since the database does not keep up, makes the engine hang when its container is to be
//! stopped. So it is given up first. Once the container has ended, what is not counted yet is read from the log, no faster
//! than it can be stored, and only then is the container removed.

use std::sync::Arc;
use std::time::Duration;

use kandev_domain::LogLevel;
use tokio::time::Instant;

use super::actor::{Actor, Phase};
use super::catch_up::{self, Stdio};
use super::pump::{DRAIN_SILENCE, LOG_SILENCE};

/// How long output may wait for the database before an end does not wait for it any more.
const STALL_PATIENCE: Duration = Duration::from_millis(500);
/// How often a log that cannot be read is tried again.
const RETRY: Duration = Duration::from_secs(1);

impl Actor {
    /// Keeps account of how long output has been waiting. Time that passed meanwhile is not the agent's.
    pub(super) fn watch_stall(&mut self) {
        let stalled = self.is_stalled();
        if stalled && self.stalled.is_none() {
            self.stalled = Some(Instant::now());
        } else if !stalled && self.stalled.take().is_some() {
            self.drain_on();
            let grace = self.shared.settings.cancel_grace;
            if self.ending.is_none()
                && let Some(cancel) = self.turns.running.as_mut().and_then(|r| r.cancel.as_mut())
            {
                // Its answer may be among what was not read.
                cancel.until = Instant::now() + grace;
            }
        }
    }

    /// When an end stops waiting for output to be stored.
    pub(super) fn stall_until(&self) -> Option<Instant> {
        self.stalled.map(|since| since + STALL_PATIENCE)
    }

    /// The log is read from where the database stands, and that is not known yet.
    pub(super) fn waits_to_read(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.from_log) && !self.outbox.is_idle()
    }

    /// Output came, or can come again.
    pub(super) fn drain_on(&mut self) {
        let from_log = self.link.as_ref().is_some_and(|link| link.from_log);
        if let Phase::Draining { until } = &mut self.phase {
            *until = Instant::now() + if from_log { LOG_SILENCE } else { DRAIN_SILENCE };
        }
    }

    /// Gives the attachment up, so that the engine can stop the container.
    pub(super) fn leave_output(&mut self) {
        self.log(
            LogLevel::Info,
            "the output waits for the database; the rest of it is read from the engine's log".to_owned(),
        );
        self.drop_link();
        self.unread = true;
    }

    /// The container has ended: reads what is not counted yet.
    pub(super) fn read_rest(&mut self) {
        self.reread_at = None;
        let Some(container) = self.container.clone() else {
            return self.conclude();
        };
        self.unread = false;
        let runtime = Arc::clone(&self.shared.runtime);
        let on_record = self.on_record(self.outbox.lines());
        let stdio = Stdio {
            stdin: Box::pin(tokio::io::sink()),
            output: catch_up::ended(runtime, container, on_record(), &self.shared.tracker),
        };
        self.link_to(stdio, true);
        self.phase = Phase::Draining {
            until: Instant::now() + LOG_SILENCE,
        };
    }

    /// The engine is away: what is missing is still in its log.
    pub(super) fn read_rest_later(&mut self) {
        self.drop_link();
        self.unread = true;
        self.reread_at = Some(Instant::now() + RETRY);
    }
}
