//! `POST /api/v1/agents/{id}/logout`

use axum::Json;
use axum::extract::State;
use kandev_acp::dialect::Ask;

use super::super::cancel::ReasonBody;
use super::{Asked, Subject, unsupported};
use crate::edge::extract::{ApiJson, ApiPath};
use crate::error::ApiResult;
use crate::state::AppState;

/// Log out of what the agent is authenticated with
#[utoipa::path(
    post, path = "/api/v1/agents/{id}/logout", tag = "agents",
    params(("id" = String, Path, description = "The instance")),
    responses((status = 200, body = Asked))
)]
pub async fn logout(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    // Nothing is needed; what is sent must be readable all the same.
    _: Option<ApiJson<ReasonBody>>,
) -> ApiResult<Json<Asked>> {
    let subject = Subject::load(&state, &id).await?;
    if !subject.said("agent_capabilities")["auth"]["logout"].is_object() {
        return Err(unsupported("a logout"));
    }
    subject.ask(&state, Ask::Logout).await
}
