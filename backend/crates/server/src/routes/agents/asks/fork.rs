//! `POST /api/v1/agents/{id}/fork`

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use kandev_acp::dialect::Ask;
use kandev_domain::TurnId;
use kandev_domain::mcp::{self, McpServer, McpServerFields};
use kandev_store::sessions;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::super::session::{McpServerTold, SessionState};
use super::{Subject, unsupported};
use crate::edge::extract::{ApiJson, ApiPath};
use crate::error::{ApiError, ApiResult, ErrorCode};
use crate::state::AppState;

/// Where to branch off.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct ForkBody {
    /// The branch begins before this turn, if the agent can do that (Koda must be told); else at the session's end.
    turn_id: Option<String>,
    /// MCP servers for the branch, in the place of those that the session was given.
    #[schema(value_type = Option<Vec<McpServerFields>>)]
    mcp_servers: Option<Vec<McpServer>>,
}

/// A branch.
#[derive(Debug, Serialize, ToSchema)]
pub struct ForkResponse {
    success: bool,
    /// The new session, in the agent's words. `POST /sessions/{id}/resume` goes on with it.
    session_id: String,
    /// The one it was made of.
    forked_from: String,
    /// What became of the branch's MCP servers.
    #[schema(value_type = Option<Vec<McpServerTold>>)]
    mcp_servers: Option<Box<RawValue>>,
    /// What the agent answered.
    #[schema(value_type = Object)]
    result: Box<RawValue>,
}

/// Branch the session off
///
/// The instance stays with its own session.
#[utoipa::path(
    post, path = "/api/v1/agents/{id}/fork", tag = "agents", request_body = ForkBody,
    params(("id" = String, Path, description = "The instance")),
    responses((status = 201, body = ForkResponse))
)]
pub async fn fork(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    body: Option<ApiJson<ForkBody>>,
) -> ApiResult<(StatusCode, Json<ForkResponse>)> {
    let ForkBody {
        turn_id: before,
        mcp_servers,
    } = body.map(|ApiJson(body)| body).unwrap_or_default();
    mcp::check(mcp_servers.as_deref().unwrap_or_default())
        .map_err(|e| ApiError::validation("mcp_servers", &e.to_string()))?;
    let subject = Subject::load(&state, &id).await?;
    if !subject.can(&["fork"]) {
        return Err(unsupported("that its session can be forked"));
    }
    if let Some(turn) = &before {
        let known = match turn.parse::<TurnId>() {
            Ok(turn) => kandev_store::turns::is_of_session(&state.pool, subject.key, turn).await?,
            Err(_) => false,
        };
        if !known {
            return Err(ApiError::not_found("turn of this session", turn));
        }
    }
    let asked = subject.ask(&state, Ask::Fork { before, mcp_servers }).await?;
    let answer: Value = serde_json::from_str(asked.result.get()).unwrap_or_default();
    let Some(session_id) = answer["sessionId"].as_str() else {
        let text = "the agent's answer to session/fork has no sessionId";
        return Err(ApiError::new(ErrorCode::AgentError, text).details(answer));
    };
    let agent_type = Some(subject.instance.agent_type.as_str());
    let branch = sessions::by_agents_id(&state.pool, session_id, agent_type).await?;
    let branch = match branch {
        Some(branch) => SessionState::load(&state, branch.key).await?,
        None => SessionState::default(),
    };
    let forked = ForkResponse {
        success: true,
        session_id: session_id.to_owned(),
        forked_from: asked.session_id.clone(),
        mcp_servers: branch.mcp_servers,
        result: asked.0.result,
    };
    Ok((StatusCode::CREATED, Json(forked)))
}
