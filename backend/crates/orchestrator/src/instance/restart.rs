//! An agent that ignores a cancel is ended, and started again with its session, in the same instance.
//!
//! ```text
//!  cancel ─ grace ─► killed ─► the rest of its output ─► its turn ends ─► all is stored ─► its container is removed
//!                                                                                                     │
//!  Ready ◄─ what was chosen is set ◄─ session/resume | session/load ◄─ initialize ◄─ another container ◄─┘
//! ```
//!
//! Up to the removal it is an end like any other ([`ending`](super::ending)), but for what it does to the turns that wait: they
//! go on afterwards. From there on it is a launch like any other that goes on with a session
//! ([`handshake`](super::handshake)). So whoever takes the instance up in the middle finds the one or the other. Whoever ends
//! the instance meanwhile has it ended: the container goes, and none follows.

use kandev_acp::{KandevState, Peer};
use kandev_domain::status::InstanceLifecycle;
use kandev_domain::{DecidedBy, EventKind, InstanceStatus, LogLevel};
use serde_json::json;

use super::actor::{Actor, Phase};
use super::choices::Offered;
use super::ending::Cause;
use super::shifts::Shifts;
use super::turns::End;
use crate::launch::{OnLost, ResumeFrom};

impl Actor {
    /// The agent had its time to end a turn that was cancelled.
    pub(super) fn cancel_was_ignored(&mut self) {
        let cause = if self.can_start_again() {
            Cause::Restart
        } else {
            Cause::IgnoredCancel
        };
        self.end(cause);
    }

    /// It has more to do than the turn that was cancelled, and would have its session again, or a fresh one if its launch
    /// allows that.
    fn can_start_again(&self) -> bool {
        let (Some(agent), Some(_)) = (&self.agent, &self.session) else {
            return false;
        };
        let goes_on = agent.session.resume || agent.session.load || self.spec.options.on_lost == OnLost::New;
        goes_on && !self.is_legacy() && self.spec.lifecycle != InstanceLifecycle::OneShot
    }

    /// Its container ends, or has ended, for another one to follow.
    pub(super) fn restarts(&self) -> bool {
        matches!(self.ending.as_ref().map(|e| &e.cause), Some(Cause::Restart))
    }

    /// It takes no more prompts.
    pub(super) fn is_stopping(&self) -> bool {
        !self.restarts() && (self.ending.is_some() || self.is_over())
    }

    /// The first step.
    pub(super) fn begin_restart(&mut self) {
        self.cancel_requests(DecidedBy::Cancel);
        let data = json!({
            "status": self.status, "restarting": true, "reason": Cause::Restart.describe(),
        });
        self.event(EventKind::Status, &data);
        self.outbox.durable();
    }

    /// Somebody ends it in the middle of that.
    pub(super) fn end_instead(&mut self, cause: Cause) {
        self.log(LogLevel::Info, format!("ending: {}", cause.describe()));
        if let Some(ending) = &mut self.ending {
            ending.cause = cause;
        }
        self.cancel_queued("the instance ended");
    }

    /// The container has ended, and all that it said is there: its turn gets its end.
    pub(super) fn settle_for_restart(&mut self) {
        self.forget_calls();
        self.cancel_requests(DecidedBy::Cancel);
        self.abandon_inside();
        self.end_turn(End::default());
    }

    /// The container is gone, and all that it said is stored.
    pub(super) fn begin_again(&mut self) {
        self.log(
            LogLevel::Info,
            "starting the agent again, to go on with its session".to_owned(),
        );
        self.spec.resume = self.session.as_ref().map(|session| ResumeFrom {
            session_id: session.id.clone(),
            key: Some(session.key),
            chosen: self.chosen.clone(),
            // It was in this very session, so it is offered there.
            offered: Offered::having(&self.chosen),
            inherits: false,
            // This task knows it.
            cost: None,
            lost: false,
            restarted: true,
        });
        self.ending = None;
        self.forget_container();
        self.turns.forget_agent();
        self.idle_since = None;
        self.phase = Phase::Creating;
        self.recreate();
    }

    /// Nothing of what was with the old container counts for the next one.
    fn forget_container(&mut self) {
        self.container = None;
        self.link = None;
        self.exit = None;
        self.exit_status = None;
        self.exit_expected = None;
        self.verdict = None;
        self.stderr_tail = crate::tail::Tail::default();
        self.peer = Peer::new();
        self.kandev = KandevState::default();
        self.login.forget_agent();
        self.early_facets.clear();
        self.configure.clear();
        self.inside = super::inside::Inside::default();
        self.forget_frames();
        self.unread = false;
        self.reread_at = None;
        self.stalled = None;
        self.head = super::marks::Head::default();
        self.shifts = Shifts::behind(self.outbox.lines());
        self.breaks = super::relink::Breaks::default();
        self.taken_lines = self.outbox.lines();
    }

    /// The session takes prompts, for the first time or again.
    pub(super) fn tell_ready(&mut self) {
        let again = self.status == InstanceStatus::Running;
        self.status = InstanceStatus::Running;
        if again {
            let data = json!({"status": InstanceStatus::Running, "restarting": false});
            return self.event(EventKind::Status, &data);
        }
        let now = self.shared.clock.now();
        self.outbox.patch(|p| {
            p.status = Some(InstanceStatus::Running);
            p.running_at = Some(now);
        });
        self.event(EventKind::Status, &json!({"status": InstanceStatus::Running}));
    }
}
