//! Agents of the protocol before JSON-RPC: they have their task from their environment, and are only read.
//!
//! There is no handshake and no session: the instance is `running` as soon as its container is, and its first prompt, if
//! there is one, is the turn that runs. A `result` ends the turn. The instance ends when the container does, and its exit
//! code decides how; a turn that had no result ends with it.

use std::time::Duration;

use bytes::Bytes;
use kandev_acp::update::legacy::{self, Reading, Said};
use kandev_domain::agent_type::Protocol;
use kandev_domain::status::InstanceLifecycle;
use kandev_domain::{EventKind, InstanceStatus, LogLevel, LogStream};
use kandev_store::record::{Data, Source};

use super::actor::Actor;
use super::ending::Cause;
use super::turns::End;

/// Why prompts and cancels are refused.
pub(super) const READ_ONLY: &str = "agents of the legacy protocol are only read: they take neither prompts nor cancels; stop the instance instead";

impl Actor {
    pub(super) fn is_legacy(&self) -> bool {
        self.spec.agent_type.protocol == Protocol::Legacy
    }

    /// The next line of stdout.
    pub(super) fn legacy_line(&mut self, source: Source, line: Bytes) {
        let (update, said) = match legacy::read(&line) {
            Reading::Message { update, said } => (update, said),
            Reading::Unknown => return self.message(source, line),
            Reading::Noise => return self.noise(source, line),
        };
        if let Some(running) = &mut self.turns.running {
            running.updates += 1;
        }
        self.record(source, EventKind::Update, line, Data::Json(update));
        match said {
            Said::Progress(Some(percent)) => self.outbox.patch(|p| p.progress = Some(percent)),
            Said::Log { level, message } => self.said_in_log(level, message),
            Said::Error(error) => self.said_in_log(LogLevel::Error, error.message),
            Said::Result(end) => self.turn_ended_by_update(end),
            Said::Progress(None) | Said::Status | Said::Heartbeat => {}
        }
    }

    /// What the agent logs in a message is to be found among its lines of log. It has no number of its own: the line that it
    /// was in is stored with the update.
    fn said_in_log(&mut self, level: LogLevel, message: String) {
        let (now, context) = (self.shared.clock.now(), self.context());
        self.outbox
            .log_of(LogStream::Stdout, now, level, context, message);
    }

    /// A task without a result is done if its agent says so by its exit code.
    pub(super) fn end_task_by_exit(&mut self) {
        if self.is_legacy() && self.verdict().status == InstanceStatus::Completed {
            self.end_turn(End {
                stop_reason: Some("end_turn".to_owned()),
                ..End::default()
            });
        }
    }

    /// How long one whose task is over may take to end by itself, if it is not to stay.
    pub(super) fn grace_after_task(&self) -> Option<Duration> {
        (self.is_one_shot() && self.turns.last_status.is_some()).then_some(self.shared.settings.stop_grace)
    }

    /// What ends an instance that has been idle for too long.
    pub(super) fn cause_of_idleness(&self) -> Cause {
        match self.turns.last_status {
            Some(turn) if self.is_one_shot() => Cause::OneShot { turn },
            _ => Cause::Idle,
        }
    }

    fn is_one_shot(&self) -> bool {
        self.is_legacy() && self.spec.lifecycle == InstanceLifecycle::OneShot
    }
}
