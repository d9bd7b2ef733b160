//! `POST /api/v1/agents/{id}/resume`

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use kandev_domain::InstanceId;
use kandev_domain::mcp::{McpServer, McpServerFields};
use kandev_orchestrator::ResumeRequest;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::launch::{LaunchResponse, Wait, answer, prompt_of, task_id_of};
use super::prompt::PromptContent;
use crate::edge::extract::{ApiJson, ApiPath};
use crate::error::ApiResult;
use crate::state::AppState;

/// How to go on.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct ResumeBody {
    /// The new instance's task, made if unknown; that of the launch that is resumed if absent. A branch of a session whose instance
    /// runs gets a task of its own then, since a task has at most one active instance.
    task_id: Option<String>,
    /// Added to the environment of the launch that is resumed.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// In the place of the MCP servers of the launch that is resumed; the type's stay.
    #[schema(value_type = Option<Vec<McpServerFields>>)]
    mcp_servers: Option<Vec<McpServer>>,
    /// The first turn: a text, or ACP content blocks.
    #[schema(value_type = Option<PromptContent>)]
    prompt: Option<Value>,
    /// When to answer.
    #[serde(default)]
    wait: Wait,
}

/// Resume the session of an ended instance
///
/// A fresh container, launched as the old one was, goes on with the session.
#[utoipa::path(
    post, path = "/api/v1/agents/{id}/resume", tag = "agents", request_body = ResumeBody,
    params(("id" = String, Path, description = "An instance that has ended")),
    responses((status = 201, body = LaunchResponse, headers(("Location" = String, description = "The new instance"))))
)]
pub async fn resume(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    body: Option<ApiJson<ResumeBody>>,
) -> ApiResult<impl IntoResponse> {
    let id = super::instance_id(&id)?;
    resume_instance(
        &state,
        id,
        None,
        body.map(|ApiJson(body)| body).unwrap_or_default(),
    )
    .await
}

/// Resumes, and answers like a launch.
pub async fn resume_instance(
    state: &AppState,
    id: InstanceId,
    session: Option<String>,
    body: ResumeBody,
) -> ApiResult<impl IntoResponse + use<>> {
    let prompt = body.prompt.map(prompt_of).transpose()?;
    let how = ResumeRequest {
        session,
        task_id: task_id_of(body.task_id)?,
        env: body.env,
        mcp_servers: body.mcp_servers,
        prompt,
    };
    let launched = state.orchestrator.resume(id, how).await?;
    let response = answer(state, launched.id, body.wait).await?;
    let location = format!("/api/v1/agents/{}", launched.id);
    Ok((
        StatusCode::CREATED,
        [(header::LOCATION, location)],
        Json(response),
    ))
}
