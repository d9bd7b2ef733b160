//! `POST /api/v1/agents/{id}/compact`

use axum::Json;
use axum::extract::State;
use kandev_acp::dialect::Ask;

use super::super::cancel::ReasonBody;
use super::{Asked, Subject, unsupported};
use crate::edge::extract::{ApiJson, ApiPath};
use crate::error::ApiResult;
use crate::state::AppState;

/// Compact the session's context
///
/// Not while a turn runs. The result has the numbers of tokens before and after.
#[utoipa::path(
    post, path = "/api/v1/agents/{id}/compact", tag = "agents",
    params(("id" = String, Path, description = "The instance")),
    responses((status = 200, body = Asked))
)]
pub async fn compact(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    // Nothing is needed; what is sent must be readable all the same.
    _: Option<ApiJson<ReasonBody>>,
) -> ApiResult<Json<Asked>> {
    let subject = Subject::load(&state, &id).await?;
    if !subject.can(&["compact", "accessPolicy", "subagents"]) {
        return Err(unsupported("that its context can be compacted"));
    }
    subject.ask(&state, Ask::Compact).await
}
