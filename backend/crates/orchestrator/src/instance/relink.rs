//! The connection to the engine broke, and the container may live on.
//!
//! An engine that restarts takes the attachment and the wait with it. Its containers end with it, or (live-restore) run on, with
//! their output kept in their pipes. So an output that ends without its container is no end of anything: the container is
//! found again as after a restart of ours, by [`reconnect`](super::reconnect), as soon as there is an engine to ask.
//!
//! What an engine had read of a container and not yet logged ends with it. Where the log shows that, it is told
//! ([`catch_up`](super::catch_up)); what was in the log of no engine and in no attachment shows nowhere, so another run of
//! the engine, known by its sign, is told as a gap if the agent may have been writing.

use std::time::Duration;

use kandev_domain::{EventKind, LogLevel};
use kandev_runtime::{RunSign, RuntimeError};
use serde_json::json;
use tokio::time::Instant;

use super::actor::{Actor, Phase};
use super::reconnect::Reconnected;
use super::saved::SavedPhase;

/// How long the end of a container may follow the end of its output before the connection is taken for broken.
const EXIT_FOLLOWS: Duration = Duration::from_millis(500);
/// How often that may happen without any output in between: an agent may have closed its pipes for good.
const MAX_RELINKS: u32 = 3;
/// How long an agent must have been silent before the break to have had nothing on its way.
const SILENT: Duration = Duration::from_secs(1);

/// What is known of breaks of the connection.
#[derive(Debug, Default)]
pub(super) struct Breaks {
    /// Of the engine's run in which its log was last read up to date.
    pub(super) sign: Option<RunSign>,
    /// Of its present run.
    pub(super) next_sign: Option<RunSign>,
    /// When an output that ended without its container is taken for a break.
    pub(super) relink_at: Option<Instant>,
    /// How many there were without any output in between.
    count: u32,
    last_output: Option<Instant>,
    /// There was one, before which the agent had been silent or not.
    silent: Option<bool>,
    /// Why lines may be missing, which no reading of the log has told yet.
    doubt: Option<Doubt>,
}

/// Why the log may lack what the agent wrote.
#[derive(Debug, Clone, Copy)]
enum Doubt {
    /// The engine restarted while it may have been writing.
    Restart,
    /// It ended while no server followed it, and whether it was the engine's end too cannot be known.
    End,
}

impl Breaks {
    pub(super) fn saw_output(&mut self) {
        self.last_output = Some(Instant::now());
        self.count = 0;
    }

    /// All is read that the engine's present run has logged.
    pub(super) fn is_up_to_date(&mut self) {
        if let Some(sign) = self.next_sign.take() {
            self.sign = Some(sign);
        }
    }

    /// The log has shown that something is missing.
    pub(super) const fn was_told(&mut self) {
        self.doubt = None;
    }
}

impl Actor {
    /// The output has ended, and the container has not been heard of.
    pub(super) fn expect_exit_or_break(&mut self, broke: bool) {
        let wait = if broke { Duration::ZERO } else { EXIT_FOLLOWS };
        self.breaks.relink_at = Some(Instant::now() + wait);
    }

    /// It has not ended, as far as is known.
    pub(super) fn relink(&mut self) {
        self.breaks.relink_at = None;
        let (Some(container), Some(_)) = (self.container.clone(), &self.link) else {
            return self.expect_exit();
        };
        if self.engine.is_some() {
            // It is being ended: what is left of its output is read afterwards.
            self.drop_link();
            self.unread = true;
            return;
        }
        self.breaks.count += 1;
        let phase = match self.phase {
            Phase::Handshaking => SavedPhase::Handshaking,
            Phase::Ready => SavedPhase::Ready,
            _ => return self.expect_exit(),
        };
        if self.breaks.count > MAX_RELINKS {
            return self.expect_exit();
        }
        self.log(
            LogLevel::Warn,
            "the connection to the container broke; it is being found again".to_owned(),
        );
        let silent = self.breaks.last_output.is_none_or(|at| at.elapsed() >= SILENT);
        // A reading of the log that broke off has not told of the break before it.
        self.breaks.silent = Some(self.breaks.silent.unwrap_or(true) && silent);
        self.exit = None;
        self.drop_link();
        self.link = None;
        self.frames_broke();
        self.hold_inside();
        self.phase = Phase::Reconnecting(phase);
        self.taken_lines = self.outbox.lines();
        self.reconnect(container);
    }

    /// The container was found again, or not.
    pub(super) fn is_back(&mut self, away: bool, found: &Result<Reconnected, RuntimeError>) {
        let silent = self.breaks.silent.take();
        let doubt = match (found, silent) {
            // Who was not there to hear it cannot say whether it was silent.
            (Ok(Reconnected::Found(_, true)), None) if self.turns.running.is_none() => None,
            (Ok(Reconnected::Found(_, true)), silent) => (silent != Some(true)).then_some(Doubt::Restart),
            (Ok(_), Some(false)) if away => Some(Doubt::Restart),
            // Its end has taken the sign along.
            (Ok(Reconnected::Ended(_)), None) => Some(Doubt::End),
            _ => None,
        };
        self.breaks.doubt = self.breaks.doubt.or(doubt);
        if away {
            self.breaks.count = 0;
        }
        if let Some(cancel) = self.turns.running.as_mut().and_then(|r| r.cancel.as_mut()) {
            cancel.until = Instant::now() + self.shared.settings.cancel_grace;
        }
    }

    /// The log has been read, and did not show whether all is there.
    pub(super) fn tell_doubt(&mut self) {
        // Only now: a server that ends before this leaves the next one to find out.
        self.breaks.is_up_to_date();
        let reason = match self.breaks.doubt.take() {
            Some(Doubt::Restart) => {
                "the engine restarted while the agent may have been writing: lines may be missing here"
            }
            Some(Doubt::End) if self.turns.running.is_some() => {
                "the container ended in a turn that no server followed: if with its engine, lines may be missing here"
            }
            Some(Doubt::End) | None => return,
        };
        self.log(LogLevel::Warn, reason.to_owned());
        self.event(EventKind::Gap, &json!({"reason": reason, "certain": false}));
    }
}
