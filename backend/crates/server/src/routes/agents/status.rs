//! `GET /api/v1/agents/{id}/status`

use axum::Json;
use axum::extract::State;
use chrono::{DateTime, Utc};
use kandev_domain::{InstanceStatus, TurnState};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::view::{InstanceError, queue_position};
use crate::edge::extract::ApiPath;
use crate::error::ApiResult;
use crate::state::AppState;

/// Where an instance stands.
#[derive(Debug, Serialize, ToSchema)]
pub struct AgentStatus {
    id: Uuid,
    status: InstanceStatus,
    /// 0 to 100.
    progress: i16,
    started_at: DateTime<Utc>,
    finished_at: Option<DateTime<Utc>>,
    turn_state: TurnState,
    session_id: Option<String>,
    exit_code: Option<i64>,
    error: Option<InstanceError>,
    /// Place in the queue for a slot, from 1, while it waits for one.
    queue_position: Option<usize>,
}

/// Where an instance stands
#[utoipa::path(
    get, path = "/api/v1/agents/{id}/status", tag = "agents",
    params(("id" = String, Path, description = "The instance")),
    responses((status = 200, body = AgentStatus))
)]
pub async fn status(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
) -> ApiResult<Json<AgentStatus>> {
    let instance = super::instance(&state, &id).await?;
    Ok(Json(AgentStatus {
        id: instance.id.0,
        status: instance.status,
        progress: instance.progress,
        started_at: instance.created_at,
        finished_at: instance.finished_at,
        turn_state: instance.turn_state,
        exit_code: instance.exit_code,
        error: InstanceError::of(&instance),
        queue_position: queue_position(&state, &instance),
        session_id: instance.session_id,
    }))
}
