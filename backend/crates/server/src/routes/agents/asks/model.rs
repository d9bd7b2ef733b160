//! `PUT /api/v1/agents/{id}/model`

use axum::Json;
use axum::extract::State;
use kandev_acp::dialect::Ask;
use serde::Deserialize;
use utoipa::ToSchema;

use super::{Asked, Subject, check, texts, unsupported};
use crate::edge::extract::{ApiJson, ApiPath};
use crate::error::ApiResult;
use crate::state::AppState;

/// A model.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ModelBody {
    /// One of the session's models.
    model_id: String,
}

/// Change the session's model
///
/// By `session/set_model`, or by the agent's config option for models.
#[utoipa::path(
    put, path = "/api/v1/agents/{id}/model", tag = "agents", request_body = ModelBody,
    params(("id" = String, Path, description = "The instance")),
    responses((status = 200, body = Asked))
)]
pub async fn set(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    ApiJson(body): ApiJson<ModelBody>,
) -> ApiResult<Json<Asked>> {
    let subject = Subject::load(&state, &id).await?;
    let models = &subject.said("models")["availableModels"];
    if models.is_array() {
        check("model_id", &body.model_id, &texts(models, "modelId"))?;
        let model_id = body.model_id;
        return subject.ask(&state, Ask::Model { model_id }).await;
    }
    let option = subject.option_of("model").ok_or_else(|| unsupported("models"))?;
    subject
        .set_option(&state, option, body.model_id.into(), "model_id")
        .await
}
