//! `POST /api/v1/agents/{id}/cancel`

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use kandev_domain::InstanceStatus;
use kandev_orchestrator::Cancelled;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::edge::extract::{ApiJson, ApiPath};
use crate::error::ApiResult;
use crate::state::AppState;

/// Why.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct ReasonBody {
    /// Kept with the turn, and told to agents whose protocol has a place for it.
    pub reason: Option<String>,
    /// For a stop: do not wait for the agent.
    #[serde(default)]
    pub force: bool,
}

/// What was done.
#[derive(Debug, Serialize, ToSchema)]
pub struct Done {
    /// Always true: errors have a body of their own.
    pub success: bool,
    /// The instance.
    pub id: Uuid,
    /// Where it stands now.
    pub status: InstanceStatus,
    /// For people.
    pub message: &'static str,
}

/// Cancel the running turn
///
/// The instance stays, unless its agent does not end the turn in time. Idempotent.
#[utoipa::path(
    post, path = "/api/v1/agents/{id}/cancel", tag = "agents", request_body = ReasonBody,
    params(("id" = String, Path, description = "The instance")),
    responses(
        (status = 200, body = Done),
        (status = 202, description = "The instance was told, and the database is away", body = Done),
    )
)]
pub async fn cancel(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    body: Option<ApiJson<ReasonBody>>,
) -> ApiResult<(StatusCode, Json<Done>)> {
    let text = id;
    let id = super::instance_id(&text)?;
    let reason = body.and_then(|ApiJson(body)| body.reason);
    // What is held here is told before the database is asked for anything: a cancel works while it is away.
    let watch = state.orchestrator.watch(id);
    let cancelled = super::commanded(state.orchestrator.cancel(id, reason).await, &text)?;
    let (code, message) = match cancelled {
        Cancelled::Cancelling => (StatusCode::OK, "the turn is being cancelled"),
        Cancelled::Nothing => (StatusCode::OK, "there is no turn to cancel"),
        Cancelled::Underway => (
            StatusCode::ACCEPTED,
            "the instance was told; what came of it is not on record yet",
        ),
    };
    let status = match watch {
        Some(watch) => watch.borrow().status,
        None => super::instance(&state, &text).await?.status,
    };
    let done = Done {
        success: true,
        id: id.0,
        status,
        message,
    };
    Ok((code, Json(done)))
}
