//! `PUT /api/v1/agents/{id}/reasoning_effort`

use axum::Json;
use axum::extract::State;
use kandev_acp::dialect::Ask;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::{Asked, Subject, check, unsupported};
use crate::edge::extract::{ApiJson, ApiPath};
use crate::error::ApiResult;
use crate::state::AppState;

/// How much a model is to think.
#[derive(Debug, Deserialize, ToSchema)]
pub struct EffortBody {
    /// One that the session's model has.
    effort: String,
}

/// Change how much the session's model thinks
///
/// By Koda's `session/set_reasoning_effort`, or by the agent's config option for it.
#[utoipa::path(
    put, path = "/api/v1/agents/{id}/reasoning_effort", tag = "agents", request_body = EffortBody,
    params(("id" = String, Path, description = "The instance")),
    responses((status = 200, body = Asked))
)]
pub async fn set(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    ApiJson(body): ApiJson<EffortBody>,
) -> ApiResult<Json<Asked>> {
    let subject = Subject::load(&state, &id).await?;
    let models = subject.said("models");
    let current = match subject.said("current_model") {
        Value::Null => &models["currentModelId"],
        current => current,
    };
    let available = models["availableModels"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let model = available.iter().find(|model| model["modelId"] == *current);
    let efforts = model.and_then(|model| model["reasoning"]["supportedEfforts"].as_array());
    if let Some(efforts) = efforts {
        let allowed: Vec<&str> = efforts.iter().filter_map(Value::as_str).collect();
        check("effort", &body.effort, &allowed)?;
        let effort = body.effort;
        return subject.ask(&state, Ask::ReasoningEffort { effort }).await;
    }
    let option = subject.option_of("thought_level");
    let option = option.ok_or_else(|| unsupported("reasoning efforts for this model"))?;
    subject
        .set_option(&state, option, body.effort.into(), "effort")
        .await
}
