//! What an ended instance is called, and why.

use kandev_domain::status::InstanceLifecycle;
use kandev_domain::{FailureCode, InstanceStatus, TurnStatus};
use kandev_runtime::ExitStatus;
use serde::{Deserialize, Serialize};

use super::actor::Actor;
use super::ending::{Cause, Failure};

/// The exit code of a process that SIGKILL ended.
const KILLED: i64 = 137;

/// The final status and its reasons.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Verdict {
    pub(super) status: InstanceStatus,
    pub(super) failure: Option<Failure>,
    pub(super) reason: Option<String>,
}

impl Actor {
    /// Made once, while it is known what the instance was doing.
    pub(super) fn verdict(&self) -> Verdict {
        self.verdict.clone().unwrap_or_else(|| self.judge())
    }

    pub(super) fn judge(&self) -> Verdict {
        let exit = self.exit_status.as_ref();
        let status = |status, reason: &str| Verdict {
            status,
            failure: None,
            reason: Some(reason.to_owned()),
        };
        match self.ending.as_ref().map(|e| &e.cause) {
            Some(Cause::Stop { reason, .. }) => status(
                InstanceStatus::Stopped,
                reason.as_deref().unwrap_or("stopped by the caller"),
            ),
            Some(Cause::Idle) => status(InstanceStatus::Completed, "idle"),
            Some(Cause::OneShot {
                turn: TurnStatus::Cancelled,
            }) => status(InstanceStatus::Stopped, "its turn was cancelled"),
            Some(Cause::OneShot {
                turn: TurnStatus::Failed,
            }) => Verdict {
                status: InstanceStatus::Failed,
                failure: Some(Failure {
                    code: FailureCode::AgentExited,
                    message: "its turn failed".to_owned(),
                    details: None,
                    transient: false,
                }),
                reason: None,
            },
            Some(Cause::OneShot { .. }) => status(InstanceStatus::Completed, "its turn is over"),
            Some(Cause::IgnoredCancel) => {
                let reason = if self.spec.lifecycle == InstanceLifecycle::OneShot {
                    "the agent did not end its turn when it was cancelled"
                } else {
                    "the agent did not end its turn when it was cancelled, and cannot go on with its session once it is ended"
                };
                status(InstanceStatus::Stopped, reason)
            }
            Some(Cause::Restart) => status(InstanceStatus::Stopped, "the agent was to be started again"),
            Some(Cause::Shutdown) => status(InstanceStatus::Stopped, "the server was shut down"),
            Some(Cause::Failed(failure)) => Verdict {
                status: InstanceStatus::Failed,
                failure: Some(failure.clone()),
                reason: None,
            },
            None => self.verdict_of_exit(exit),
        }
    }

    /// The agent itself was killed for memory. The engine's flag alone may speak of a child, and of an agent that we
    /// killed later.
    pub(super) fn ran_out_of_memory(&self) -> bool {
        let exit = self.exit_status.as_ref();
        self.ending.is_none() && exit.is_some_and(|e| e.oom_killed && e.code == KILLED)
    }

    /// The agent ended by itself.
    fn verdict_of_exit(&self, exit: Option<&ExitStatus>) -> Verdict {
        let failed = |code, message| Verdict {
            status: InstanceStatus::Failed,
            failure: Some(Failure {
                code,
                message,
                details: Some(self.exit_details()),
                transient: false,
            }),
            reason: None,
        };
        let Some(exit) = exit else {
            return failed(FailureCode::RuntimeLost, "the container was lost".to_owned());
        };
        if self.ran_out_of_memory() {
            return failed(
                FailureCode::OomKilled,
                "the agent hit its memory limit".to_owned(),
            );
        }
        if !self.is_legacy() && self.turns.cancelled_within(self.shared.settings.cancel_grace) {
            let reason = Some("the agent ended when its turn was cancelled".to_owned());
            return Verdict {
                status: InstanceStatus::Stopped,
                failure: None,
                reason,
            };
        }
        if exit.code != 0 {
            return failed(
                FailureCode::AgentExited,
                format!("the agent ended with exit code {}", exit.code),
            );
        }
        if self.status == InstanceStatus::Starting {
            return failed(
                FailureCode::AgentExited,
                "the agent ended before its session was ready".to_owned(),
            );
        }
        if self.turns.running.is_some() && !self.is_legacy() {
            return failed(
                FailureCode::AgentExited,
                "the agent ended in the middle of a turn".to_owned(),
            );
        }
        Verdict {
            status: InstanceStatus::Completed,
            failure: None,
            reason: Some("the agent ended".to_owned()),
        }
    }
}

impl Cause {
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Stop { reason, force } => {
                let how = if *force { "stopped at once" } else { "stopped" };
                reason
                    .as_ref()
                    .map_or_else(|| how.to_owned(), |reason| format!("{how}: {reason}"))
            }
            Self::Idle => "idle for too long".to_owned(),
            Self::OneShot { .. } => "its turn is over".to_owned(),
            Self::IgnoredCancel | Self::Restart => "the agent ignored a cancel".to_owned(),
            Self::Failed(failure) => format!("{}: {}", failure.code, failure.message),
            Self::Shutdown => "the server shuts down".to_owned(),
        }
    }
}
