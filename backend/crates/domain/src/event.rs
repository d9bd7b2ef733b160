//! Events: what happened to an instance, numbered without a gap from 1.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::ids::{InstanceId, TurnId};
use crate::status::named;

/// What kind of thing happened. The names are part of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The instance changed status.
    Status,
    /// A session was established, loaded or changed.
    Session,
    /// A prompt was handed to the agent.
    TurnStarted,
    /// A turn has its end.
    TurnEnded,
    /// The agent's `session/update`, its params unchanged.
    Update,
    /// The agent asks for a permission.
    PermissionRequested,
    /// A permission request has its answer.
    PermissionResolved,
    /// The agent asks for input.
    ElicitationRequested,
    /// An elicitation has its answer.
    ElicitationResolved,
    /// The agent used the file system through kandev.
    Fs,
    /// The agent used a terminal through kandev.
    Terminal,
    /// Any other frame of the agent.
    Message,
    /// A line of log.
    Log,
    /// Something is missing here, and this says what.
    Gap,
    /// An error that did not end the instance.
    Error,
    /// What is done at the URL of an elicitation was done.
    ElicitationCompleted,
}
named!(EventKind {
    Status => "status",
    Session => "session",
    TurnStarted => "turn_started",
    TurnEnded => "turn_ended",
    Update => "update",
    PermissionRequested => "permission_requested",
    PermissionResolved => "permission_resolved",
    ElicitationRequested => "elicitation_requested",
    ElicitationResolved => "elicitation_resolved",
    Fs => "fs",
    Terminal => "terminal",
    Message => "message",
    Log => "log",
    Gap => "gap",
    Error => "error",
    ElicitationCompleted => "elicitation_completed",
});

impl EventKind {
    /// This kind's bit in the set of kinds that a stored batch holds. Positions are on disk: append only.
    pub const fn bit(self) -> i32 {
        1 << (self as i32)
    }
}

/// One event as the API gives it.
#[derive(Debug, Clone, Serialize)]
pub struct Event {
    /// Position in the instance's history, gapless from 1.
    pub seq: i64,
    /// Whose history.
    pub instance_id: InstanceId,
    /// The agent's session, where there is one.
    pub session_id: Option<String>,
    /// The turn it belongs to.
    pub turn_id: Option<TurnId>,
    /// When kandev saw it.
    pub timestamp: DateTime<Utc>,
    /// What happened.
    pub kind: EventKind,
    /// The particulars.
    pub data: Box<RawValue>,
}
