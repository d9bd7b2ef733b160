//! Statuses, and which may follow which.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Generates `as_str`, `FromStr` and `Display` from one table, which is also what the API and the
/// database say.
macro_rules! named {
    ($name:ident { $($variant:ident => $text:literal),+ $(,)? }) => {
        impl $name {
            /// Every value, in order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name in the API and in the database.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::status::UnknownName;
            fn from_str(s: &str) -> Result<Self, Self::Err> {
                match s {
                    $($text => Ok(Self::$variant),)+
                    _ => Err($crate::status::UnknownName {
                        what: stringify!($name),
                        name: s.to_owned(),
                        names: &[$($text),+],
                    }),
                }
            }
        }
    };
}
pub(crate) use named;

/// A name that is not in the vocabulary.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{name}' is no {what}")]
pub struct UnknownName {
    /// The type it was read as.
    pub what: &'static str,
    /// What was read.
    pub name: String,
    /// What there is.
    pub names: &'static [&'static str],
}

impl UnknownName {
    /// What it has to be, for a caller: without what it was.
    pub fn wanted(&self) -> String {
        let quoted: Vec<String> = self.names.iter().map(|name| format!("'{name}'")).collect();
        match quoted.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("must be {} or {last}", rest.join(", ")),
            _ => format!("must be {}", quoted.concat()),
        }
    }
}

/// The five statuses of an instance.
///
/// ```text
/// starting ──► running ──► completed
///     │           │  └───► stopped
///     │           └──────► failed
///     └──► failed | stopped | completed
/// ```
/// The last three are final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum InstanceStatus {
    /// Waiting for a slot, being created, or shaking hands.
    Starting,
    /// The session is ready.
    Running,
    /// The agent ended by itself, or had nothing more to do.
    Completed,
    /// Something went wrong; the failure code says what.
    Failed,
    /// The caller ended it.
    Stopped,
}
named!(InstanceStatus {
    Starting => "starting",
    Running => "running",
    Completed => "completed",
    Failed => "failed",
    Stopped => "stopped",
});

impl InstanceStatus {
    /// True once nothing more will happen.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Stopped)
    }

    /// True if `next` may follow.
    pub const fn admits(self, next: Self) -> bool {
        match self {
            Self::Starting => !matches!(next, Self::Starting),
            Self::Running => next.is_final(),
            Self::Completed | Self::Failed | Self::Stopped => false,
        }
    }
}

/// What the running instance is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TurnState {
    /// No turn.
    Idle,
    /// A turn runs.
    Prompting,
    /// A turn waits for a permission.
    AwaitingPermission,
    /// A turn waits for an elicitation.
    AwaitingInput,
    /// A turn was told to end and has not yet.
    Cancelling,
}
named!(TurnState {
    Idle => "idle",
    Prompting => "prompting",
    AwaitingPermission => "awaiting_permission",
    AwaitingInput => "awaiting_input",
    Cancelling => "cancelling",
});

/// Where a turn stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TurnStatus {
    /// Waiting for the turn before it.
    Queued,
    /// With the agent.
    Running,
    /// Ended by the agent.
    Completed,
    /// Ended by the caller.
    Cancelled,
    /// Ended by an error.
    Failed,
}
named!(TurnStatus {
    Queued => "queued",
    Running => "running",
    Completed => "completed",
    Cancelled => "cancelled",
    Failed => "failed",
});

impl TurnStatus {
    /// True once the turn has its end.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Cancelled | Self::Failed)
    }
}

/// Why an instance failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FailureCode {
    /// The engine has no such image.
    ImageNotFound,
    /// The engine would not create or start the container.
    ContainerCreateFailed,
    /// The agent did not answer in time while starting.
    HandshakeTimeout,
    /// The agent answered the handshake with something unusable.
    HandshakeFailed,
    /// The agent wants to be authenticated first.
    AuthRequired,
    /// The session to resume is not there any more.
    SessionLost,
    /// The agent ended on its own, with an error.
    AgentExited,
    /// The memory limit was hit.
    OomKilled,
    /// The instance's time was up.
    Timeout,
    /// The agent broke the protocol beyond repair.
    ProtocolError,
    /// The container is gone, or kandev lost it.
    RuntimeLost,
}
named!(FailureCode {
    ImageNotFound => "image_not_found",
    ContainerCreateFailed => "container_create_failed",
    HandshakeTimeout => "handshake_timeout",
    HandshakeFailed => "handshake_failed",
    AuthRequired => "auth_required",
    SessionLost => "session_lost",
    AgentExited => "agent_exited",
    OomKilled => "oom_killed",
    Timeout => "timeout",
    ProtocolError => "protocol_error",
    RuntimeLost => "runtime_lost",
});

/// What a launch answers to an agent's permission requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PermissionPolicy {
    /// Ask the caller.
    Ask,
    /// Choose the narrowest option that allows.
    Allow,
    /// Choose the narrowest option that rejects.
    Reject,
}
named!(PermissionPolicy { Ask => "ask", Allow => "allow", Reject => "reject" });

/// How long an instance stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum InstanceLifecycle {
    /// Until it is stopped, idle for too long, or its time is up.
    Interactive,
    /// Until its first turn ends.
    OneShot,
}
named!(InstanceLifecycle { Interactive => "interactive", OneShot => "one_shot" });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn final_statuses_admit_nothing() {
        for from in InstanceStatus::ALL.iter().filter(|s| s.is_final()) {
            for to in InstanceStatus::ALL {
                assert!(!from.admits(*to), "{from} -> {to}");
            }
        }
    }

    #[test]
    fn names_round_trip() {
        for code in FailureCode::ALL {
            assert_eq!(code.as_str().parse(), Ok(*code));
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
        }
        assert!("runing".parse::<InstanceStatus>().is_err());
    }
}
