//! `POST /api/v1/agents/{id}/authenticate`

use axum::Json;
use axum::extract::State;
use kandev_acp::dialect::{Ask, AuthMethod};
use serde::Deserialize;
use utoipa::ToSchema;

use super::{Asked, Subject, check, texts, unsupported};
use crate::edge::extract::{ApiJson, ApiPath};
use crate::error::ApiResult;
use crate::state::AppState;

/// A way to authenticate.
#[derive(Debug, Deserialize, ToSchema)]
pub struct MethodBody {
    /// One of the agent's `auth_methods`, and not of type `terminal`.
    method_id: String,
}

/// Authenticate with the agent
#[utoipa::path(
    post, path = "/api/v1/agents/{id}/authenticate", tag = "agents", request_body = MethodBody,
    params(("id" = String, Path, description = "The instance")),
    responses((status = 200, body = Asked))
)]
pub async fn authenticate(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    ApiJson(body): ApiJson<MethodBody>,
) -> ApiResult<Json<Asked>> {
    let subject = Subject::load(&state, &id).await?;
    // Those of type `terminal` are programs of the user's, of which the agent is told nothing.
    let mut offered = subject.said("auth_methods").clone();
    if let Some(methods) = offered.as_array_mut() {
        methods.retain(|method| !AuthMethod::is_program(method));
    }
    let methods = texts(&offered, "id");
    if methods.is_empty() {
        return Err(unsupported("a way to authenticate"));
    }
    check("method_id", &body.method_id, &methods)?;
    let method_id = body.method_id;
    subject.ask(&state, Ask::Authenticate { method_id }).await
}
