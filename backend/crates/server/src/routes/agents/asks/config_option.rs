//! `PUT /api/v1/agents/{id}/config_options/{config_id}`

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::{Asked, Subject, unsupported};
use crate::edge::extract::{ApiJson, ApiPath};
use crate::error::{ApiError, ApiResult};
use crate::state::AppState;

/// A value.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ValueBody {
    /// One of the option's choices, or for a switch true or false.
    #[schema(value_type = Value)]
    value: Value,
}

/// Change an option of the session
///
/// Koda's `access_policy` is one of them.
#[utoipa::path(
    put, path = "/api/v1/agents/{id}/config_options/{config_id}", tag = "agents", request_body = ValueBody,
    params(
        ("id" = String, Path, description = "The instance"),
        ("config_id" = String, Path, description = "The option"),
    ),
    responses((status = 200, body = Asked))
)]
pub async fn set(
    State(state): State<AppState>,
    ApiPath((id, config_id)): ApiPath<(String, String)>,
    ApiJson(body): ApiJson<ValueBody>,
) -> ApiResult<Json<Asked>> {
    let subject = Subject::load(&state, &id).await?;
    let options = subject.said("config_options").as_array();
    let options = options.ok_or_else(|| unsupported("config options"))?;
    let option = options
        .iter()
        .find(|option| option["id"] == config_id)
        .ok_or_else(|| ApiError::not_found("config option", &config_id))?;
    subject.set_option(&state, option, body.value, "value").await
}
