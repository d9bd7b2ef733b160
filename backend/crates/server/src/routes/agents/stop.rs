//! `POST /api/v1/agents/{id}/stop` and `DELETE /api/v1/agents/{id}`

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use kandev_orchestrator::Stopped;
use serde::Deserialize;
use utoipa::IntoParams;

use super::cancel::{Done, ReasonBody};
use crate::edge::extract::{ApiJson, ApiPath, ApiQuery};
use crate::error::ApiResult;
use crate::state::AppState;

/// How.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct StopParams {
    /// Why.
    reason: Option<String>,
    /// Do not wait for the agent.
    #[serde(default)]
    force: bool,
}

/// Stop an instance
///
/// Answers once it has ended and its container is gone; its history stays. When that takes longer than it should, because
/// the agent takes its time or the database is away, the answer is 202: the instance is being stopped, and its end will be
/// on record. Idempotent.
#[utoipa::path(
    post, path = "/api/v1/agents/{id}/stop", tag = "agents", request_body = ReasonBody,
    params(("id" = String, Path, description = "The instance")),
    responses(
        (status = 200, description = "It has ended", body = Done),
        (status = 202, description = "It is being stopped", body = Done),
    )
)]
pub async fn stop(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    body: Option<ApiJson<ReasonBody>>,
) -> ApiResult<(StatusCode, Json<Done>)> {
    let body = body.map(|ApiJson(body)| body).unwrap_or_default();
    stop_now(state, id, body.reason, body.force).await
}

/// Stop an instance
///
/// The same as `POST …/stop`.
#[utoipa::path(
    delete, path = "/api/v1/agents/{id}", tag = "agents",
    params(("id" = String, Path, description = "The instance"), StopParams),
    responses(
        (status = 200, description = "It has ended", body = Done),
        (status = 202, description = "It is being stopped", body = Done),
    )
)]
pub async fn delete(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    ApiQuery(params): ApiQuery<StopParams>,
) -> ApiResult<(StatusCode, Json<Done>)> {
    stop_now(state, id, params.reason, params.force).await
}

async fn stop_now(
    state: AppState,
    text: String,
    reason: Option<String>,
    force: bool,
) -> ApiResult<(StatusCode, Json<Done>)> {
    let id = super::instance_id(&text)?;
    // What is held here is told before the database is asked for anything: a stop works while it is away.
    let watch = state.orchestrator.watch(id);
    let stopped = super::commanded(state.orchestrator.stop(id, reason, force).await, &text)?;
    let (code, message, status) = match (stopped, watch) {
        (Stopped::Underway, Some(watch)) => (
            StatusCode::ACCEPTED,
            "the instance is being stopped; its end is not on record yet",
            watch.borrow().status,
        ),
        (_, watch) => {
            let message = if watch.is_some() {
                "the instance is stopped"
            } else {
                "the instance had ended"
            };
            let status = super::instance(&state, &text).await?.status;
            (StatusCode::OK, message, status)
        }
    };
    let done = Done {
        success: true,
        id: id.0,
        status,
        message,
    };
    Ok((code, Json(done)))
}
