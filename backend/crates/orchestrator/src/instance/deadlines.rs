//! When something is due, and what it is.

use std::time::Duration;

use kandev_domain::{FailureCode, LogLevel};
use tokio::time::Instant;

use super::actor::{Actor, Phase};
use super::ending::Stage;
use crate::command::Reply;

/// Far enough away to stand for never.
const NEVER: Duration = Duration::from_hours(365 * 24);
/// How long those who wait for an end wait for the database, once the container has ended.
const STORE_PATIENCE: Duration = Duration::from_secs(3);

impl Actor {
    /// The next moment at which something is due.
    pub(super) fn next_deadline(&self) -> Instant {
        let mut next = Instant::now() + NEVER;
        let mut consider = |at: Option<Instant>| {
            if let Some(at) = at {
                next = next.min(at);
            }
        };
        match (&self.phase, &self.ending) {
            (Phase::Draining { until }, _) => consider(match self.reread_at {
                None => (!self.is_stalled()).then_some(*until),
                later => later,
            }),
            (Phase::Settled { .. }, _) => consider(self.answer_until()),
            (Phase::Reconnecting(_) | Phase::Removing | Phase::Ended, _) => {}
            (_, Some(ending)) => {
                match ending.stage {
                    Stage::Cancelling => consider(self.cancel_until()),
                    Stage::Terminating => consider(self.stall_until()),
                }
                consider(self.exit_expected);
                consider(self.breaks.relink_at);
            }
            (_, None) => {
                consider(Some(self.life_until));
                consider(self.arrived_at());
                consider(self.handshake_due());
                consider(self.resend_at);
                consider(self.exit_expected);
                consider(self.breaks.relink_at);
                consider(self.cancel_until().filter(|_| self.stalled.is_none()));
                consider(self.turns.running.as_ref().and_then(|r| r.until));
                consider(self.permissions.until());
                consider(self.elicitations.until());
                consider(self.asks.until());
                consider(self.idle_until());
            }
        }
        next
    }

    /// When those who wait for the end are told that it is not on record yet.
    fn answer_until(&self) -> Option<Instant> {
        match self.phase {
            Phase::Settled { since } if self.stop_replies.iter().any(Reply::is_here) => {
                Some(since + STORE_PATIENCE)
            }
            _ => None,
        }
    }

    fn cancel_until(&self) -> Option<Instant> {
        self.turns
            .running
            .as_ref()
            .and_then(|r| r.cancel.as_ref())
            .map(|c| c.until)
    }

    /// Whoever waits for a person's answer has all the time that the answer takes.
    fn handshake_due(&self) -> Option<Instant> {
        self.handshake_until.filter(|_| self.asking() == 0)
    }

    /// Who waits for an answer is not idle, nor is who works beside the turns.
    fn idle_until(&self) -> Option<Instant> {
        if self.asking() > 0 || self.turns.aside.is_busy() {
            return None;
        }
        let own = self.spec.options.idle_timeout_seconds.map(Duration::from_secs);
        let limit = self
            .grace_after_task()
            .or(own)
            .or(self.shared.settings.idle_timeout)?;
        self.idle_since.map(|since| since + limit)
    }

    /// Something is due.
    pub(super) fn time_is_up(&mut self) {
        let now = Instant::now();
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        match (&self.phase, &self.ending) {
            (Phase::Draining { .. }, _) if self.reread_at.is_some() => {
                if due(self.reread_at) {
                    self.read_rest();
                }
            }
            // What is to be read waits until the rest is stored.
            (Phase::Draining { until }, _) if *until <= now && self.waits_to_read() => self.drain_on(),
            (Phase::Draining { until }, _) if *until <= now => self.conclude(),
            (Phase::Settled { .. }, _) if due(self.answer_until()) => self.answer_early(),
            (
                Phase::Reconnecting(_)
                | Phase::Draining { .. }
                | Phase::Settled { .. }
                | Phase::Removing
                | Phase::Ended,
                _,
            ) => {}
            (_, Some(ending)) => {
                let terminating = matches!(ending.stage, Stage::Terminating);
                let ignored = !terminating && due(self.cancel_until());
                if terminating && due(self.stall_until()) {
                    self.leave_output();
                } else if due(self.breaks.relink_at) {
                    self.relink();
                } else if due(self.exit_expected) {
                    self.log(
                        LogLevel::Error,
                        "the engine does not say how the container ended".to_owned(),
                    );
                    self.settle();
                } else if ignored {
                    self.terminate();
                }
            }
            (_, None) if due(Some(self.life_until)) => {
                self.fail(FailureCode::Timeout, "the instance's time is up".to_owned());
            }
            (_, None) if due(self.resend_at) => self.resend(),
            (_, None) if due(self.breaks.relink_at) => self.relink(),
            (_, None) if due(self.handshake_due()) => {
                let limit = self.shared.settings.handshake_timeout;
                self.fail(
                    FailureCode::HandshakeTimeout,
                    format!("the agent was not ready within {limit:?}"),
                );
            }
            (_, None) if due(self.exit_expected) => {
                let message = "the connection to the container is lost".to_owned();
                self.fail(FailureCode::RuntimeLost, message);
            }
            (_, None) if due(self.cancel_until()) && self.stalled.is_none() => {
                self.cancel_was_ignored();
            }
            (_, None) if due(self.turns.running.as_ref().and_then(|r| r.until)) => {
                if let Some(running) = &mut self.turns.running {
                    running.until = None;
                }
                self.cancel(Some("the turn's time is up".to_owned()));
            }
            (_, None) if due(self.permissions.until()) => self.expire_permissions(),
            (_, None) if due(self.elicitations.until()) => self.expire_elicitations(),
            (_, None) if due(self.asks.until()) => self.expire_asks(),
            (_, None) if due(self.idle_until()) => self.end(self.cause_of_idleness()),
            (_, None) => {}
        }
    }
}
