//! `PUT /api/v1/agents/{id}/mode`

use axum::Json;
use axum::extract::State;
use kandev_acp::dialect::Ask;
use serde::Deserialize;
use utoipa::ToSchema;

use super::{Asked, Subject, check, texts, unsupported};
use crate::edge::extract::{ApiJson, ApiPath};
use crate::error::ApiResult;
use crate::state::AppState;

/// A mode.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ModeBody {
    /// One of the session's modes.
    mode_id: String,
}

/// Change the session's mode
///
/// Also while a turn runs. What is chosen is set again when the session is resumed.
#[utoipa::path(
    put, path = "/api/v1/agents/{id}/mode", tag = "agents", request_body = ModeBody,
    params(("id" = String, Path, description = "The instance")),
    responses((status = 200, body = Asked))
)]
pub async fn set(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    ApiJson(body): ApiJson<ModeBody>,
) -> ApiResult<Json<Asked>> {
    let subject = Subject::load(&state, &id).await?;
    let modes = &subject.said("modes")["availableModes"];
    if modes.is_array() {
        check("mode_id", &body.mode_id, &texts(modes, "id"))?;
        let mode_id = body.mode_id;
        return subject.ask(&state, Ask::Mode { mode_id }).await;
    }
    if let Some(option) = subject.option_of("mode") {
        return subject
            .set_option(&state, option, body.mode_id.into(), "mode_id")
            .await;
    }
    // Koda has modes, and no list of them.
    if !subject.can(&["setMode", "accessPolicy", "subagents"]) {
        return Err(unsupported("modes"));
    }
    let mode_id = body.mode_id;
    subject.ask(&state, Ask::Mode { mode_id }).await
}
