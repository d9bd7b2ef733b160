//! One instance: one task that owns it.
//!
//! ```text
//!  Queued ─► Creating ─► Connecting ─► Handshaking ─► Ready
//!    │          │            │              │           │
//!    └──────────┴────────────┴──────┬───────┴───────────┘
//!                                   ▼   told to end, or the container ended
//!                   (ending) ─► Draining ─► Settled ─► Removing ─► Ended
//!                                                          │
//!               Creating ◄── it ignored a cancel, and starts again
//! ```
//!
//! Everything that changes an instance is a step of this task: a command from the mailbox, a line of output, the end of
//! the container, an engine call that came back, a batch that was stored, a time that is up. Engine calls run beside the
//! loop, one at a time; nothing in the loop waits for I/O, so a command is always answered. What a step decided is stored
//! first and done after ([`crate::outbox`]).
//!
//! What becomes due is in [`deadlines`], how an instance ends in [`ending`], how one starts again in [`restart`], what it is called then in [`verdict`], its first words with the agent in [`handshake`], its turns in [`turns`], and
//! what each line of output means in [`output`]. Agents of the protocol before JSON-RPC are in [`legacy`]. What the agent asks to be done in its container is in
//! [`inside`], what it asks to be allowed in [`permissions`], what it asks people for in [`elicitations`].

mod actor;
mod asked;
mod asks;
mod catch_up;
mod choices;
mod costs;
mod deadlines;
mod elicitations;
mod ending;
mod engine;
mod frames;
mod handshake;
mod inside;
mod legacy;
mod login;
mod marks;
mod output;
mod permissions;
mod pump;
mod reconnect;
mod relink;
mod rest;
mod restart;
mod saved;
mod setup;
mod shifts;
mod state;
mod subagents;
mod turns;
mod verdict;
mod waits;

use std::sync::Arc;

use kandev_domain::content::PromptError;
use kandev_domain::lifecycle::Refusal;
use kandev_domain::{InstanceStatus, TurnId, TurnState};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::{broadcast, mpsc, watch};

use crate::command::Command;
use crate::fresh::Stored;

pub(crate) use actor::{Actor, Parts};
pub use asks::{AskOutcome, AskRefused};
pub(crate) use choices::inherits;
pub use choices::{Choices, Offered};
pub(crate) use costs::SESSION_COST;
pub(crate) use elicitations::MAX_AWAITED;
pub use ending::Failure;
pub use permissions::{AnswerRefused, PermissionAnswer};
pub(crate) use permissions::{MAX_REMEMBERED, ToolKinds};
pub(crate) use reconnect::TakeUp;
pub(crate) use saved::Saved;

/// As JSON. What an agent wrote stays as it wrote it: through a `Value` (and so through `json!`), a lone surrogate or a
/// number too large would not come, and `json!` panics then.
fn raw(value: &impl Serialize) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// How many commands may wait for the task.
const MAILBOX: usize = 64;

/// What watchers see of an instance; never ahead of the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Where it stands.
    pub status: InstanceStatus,
    /// What it is doing.
    pub turn_state: TurnState,
    /// How many turns have their end.
    pub ended_turns: u32,
    /// The last event stored. Every commit with events changes it.
    pub seq: i64,
}

/// A prompt that was accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// The turn it became.
    pub turn_id: TurnId,
    /// The agent's session, if it is established.
    pub session_id: Option<String>,
    /// It waits for the turn before it, or for the session.
    pub queued: bool,
}

/// Why a prompt was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum PromptRefused {
    /// By the instance's state.
    #[error(transparent)]
    State(#[from] Refusal),
    /// By what the agent takes.
    #[error(transparent)]
    Content(#[from] PromptError),
}

/// What a cancel did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cancelled {
    /// The turn was told to end.
    Cancelling,
    /// There was nothing to cancel, or it had been already.
    Nothing,
    /// The instance was told, and what it made of it is not on record yet.
    Underway,
}

/// What became of a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stopped {
    /// The instance has ended, and that is on record.
    Ended,
    /// It ends, or has ended, and that is not on record yet: the agent takes its time, or the database is away.
    Underway,
}

/// A way to an instance's task.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    pub mailbox: mpsc::Sender<Command>,
    pub view: watch::Receiver<View>,
    pub fresh: broadcast::Sender<Arc<Stored>>,
}
