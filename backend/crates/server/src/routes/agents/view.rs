//! An instance, as callers see it.

use chrono::{DateTime, Utc};
use kandev_domain::status::InstanceLifecycle;
use kandev_domain::{FailureCode, InstanceStatus, TurnState};
use kandev_store::instances::{Holder, Instance};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use super::policy::PolicyView;
use crate::state::AppState;

/// Why an instance failed.
#[derive(Debug, Serialize, ToSchema)]
pub struct InstanceError {
    /// For programs.
    pub code: FailureCode,
    /// For people.
    pub message: String,
    /// What the agent or the engine said; for `auth_required` with `auth_methods`.
    #[schema(value_type = Value)]
    pub details: Option<Box<RawValue>>,
}

impl InstanceError {
    /// Of an instance that failed.
    pub fn of(instance: &Instance) -> Option<Self> {
        Some(Self {
            code: instance.error_code?,
            message: instance.error_message.clone().unwrap_or_default(),
            details: instance
                .error_details
                .clone()
                .and_then(|d| RawValue::from_string(d).ok()),
        })
    }
}

/// A run of a server.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ServerRef {
    /// Its number; a later run has a higher one.
    id: i64,
    /// As `KANDEV_SERVER_NAME` says, else host name and process id.
    name: String,
}

impl From<Holder> for ServerRef {
    fn from(holder: Holder) -> Self {
        Self {
            id: holder.fence.0,
            name: holder.name,
        }
    }
}

/// An agent instance.
#[derive(Debug, Serialize, ToSchema)]
pub struct AgentInstance {
    id: Uuid,
    task_id: String,
    /// The server that holds it; none between two servers, and once it has ended.
    server: Option<ServerRef>,
    agent_type: String,
    workspace_path: String,
    /// Absent until there is one.
    container_id: Option<String>,
    status: InstanceStatus,
    turn_state: TurnState,
    /// 0 to 100: the agent's own figure, else the share of completed plan entries.
    progress: i16,
    /// Place in the queue for a slot, from 1, while it waits for one.
    queue_position: Option<usize>,
    /// The agent's id of its session.
    session_id: Option<String>,
    /// The instance whose session it goes on with.
    resumed_from: Option<Uuid>,
    priority: i32,
    #[schema(value_type = Object)]
    metadata: Value,
    /// A policy, or an object of policies by kind of tool.
    permission_policy: PolicyView,
    lifecycle: InstanceLifecycle,
    /// Names of the variables it was launched with; values are not shown.
    env_names: Vec<String>,
    exit_code: Option<i64>,
    oom_killed: bool,
    error: Option<InstanceError>,
    /// The end of what it wrote to stderr.
    stderr_tail: Option<String>,
    /// Why it ended, where it did not fail.
    reason: Option<String>,
    started_at: DateTime<Utc>,
    /// When its session was ready.
    running_at: Option<DateTime<Utc>>,
    finished_at: Option<DateTime<Utc>>,
}

impl AgentInstance {
    /// Of a row, with what only this process knows.
    pub fn of(state: &AppState, instance: Instance) -> Self {
        Self {
            id: instance.id.0,
            task_id: instance.task_id.to_string(),
            server: instance.holder.clone().filter(|h| !h.ended).map(ServerRef::from),
            queue_position: queue_position(state, &instance),
            error: InstanceError::of(&instance),
            permission_policy: PolicyView::of(&instance),
            agent_type: instance.agent_type,
            workspace_path: instance.workspace_path,
            container_id: instance.container_id,
            status: instance.status,
            turn_state: instance.turn_state,
            progress: instance.progress,
            session_id: instance.session_id,
            resumed_from: instance.resumed_from.map(|id| id.0),
            priority: instance.priority,
            metadata: instance.metadata,
            lifecycle: instance.lifecycle,
            env_names: instance.env_names,
            exit_code: instance.exit_code,
            oom_killed: instance.oom_killed,
            stderr_tail: instance.stderr_tail,
            reason: instance.ended_reason,
            started_at: instance.created_at,
            running_at: instance.running_at,
            finished_at: instance.finished_at,
        }
    }
}

pub(super) fn queue_position(state: &AppState, instance: &Instance) -> Option<usize> {
    let waits = instance.status == InstanceStatus::Starting && instance.container_id.is_none();
    waits
        .then(|| state.orchestrator.queue_position(instance.id))
        .flatten()
}
