//! `POST /api/v1/agents/{id}/stop` and `DELETE /api/v1/agents/{id}`

use axum::Json;
use axum::extract::State;
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
/// Answers once it has ended and its container is gone; its history stays. Idempotent.
#[utoipa::path(
    post, path = "/api/v1/agents/{id}/stop", tag = "agents", request_body = ReasonBody,
    params(("id" = String, Path, description = "The instance")),
    responses((status = 200, body = Done))
)]
pub async fn stop(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    body: Option<ApiJson<ReasonBody>>,
) -> ApiResult<Json<Done>> {
    let body = body.map(|ApiJson(body)| body).unwrap_or_default();
    stop_now(state, id, body.reason, body.force).await
}

/// Stop an instance
///
/// The same as `POST …/stop`.
#[utoipa::path(
    delete, path = "/api/v1/agents/{id}", tag = "agents",
    params(("id" = String, Path, description = "The instance"), StopParams),
    responses((status = 200, body = Done))
)]
pub async fn delete(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    ApiQuery(params): ApiQuery<StopParams>,
) -> ApiResult<Json<Done>> {
    stop_now(state, id, params.reason, params.force).await
}

async fn stop_now(state: AppState, id: String, reason: Option<String>, force: bool) -> ApiResult<Json<Done>> {
    let instance = super::instance(&state, &id).await?;
    let message = if instance.status.is_final() {
        "the instance had ended"
    } else {
        "the instance is stopped"
    };
    state.orchestrator.stop(instance.id, reason, force).await?;
    let status = super::instance(&state, &id).await?.status;
    Ok(Json(Done {
        success: true,
        id: instance.id.0,
        status,
        message,
    }))
}
