//! `GET /api/v1/agents/{id}/sessions`, `POST …/sessions/{session_id}/close` and `DELETE …/sessions/{session_id}`: what the agent
//! itself keeps of sessions, its instance's own and others.

use axum::Json;
use axum::extract::State;
use kandev_acp::dialect::Ask;
use kandev_domain::SessionKey;
use kandev_store::sessions::{self, Session};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::super::cancel::ReasonBody;
use super::{Asked, Subject, unsupported};
use crate::edge::extract::{ApiJson, ApiPath, ApiQuery};
use crate::error::{ApiError, ApiResult, ErrorCode};
use crate::routes::page::foreign_cursor;
use crate::state::AppState;

/// Longest id of a session, cursor or path, in bytes.
const LONGEST: usize = 4096;

/// Which of them.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct AgentSessionParams {
    /// Only of this directory, in the container.
    cwd: Option<String>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// A session as its agent has it.
#[derive(Debug, Serialize, ToSchema)]
pub struct KeptSession {
    /// kandev's own id of it, if it knows it.
    id: Option<Uuid>,
    session_id: String,
    cwd: Option<String>,
    title: Option<String>,
    updated_at: Option<String>,
    additional_directories: Vec<String>,
    /// It is the one that the instance works in.
    own: bool,
    /// What else the agent says of it.
    #[serde(rename = "_meta")]
    #[schema(value_type = Option<Object>)]
    meta: Option<Value>,
}

/// Sessions in the agent's order.
#[derive(Debug, Serialize, ToSchema)]
pub struct KeptSessions {
    sessions: Vec<KeptSession>,
    /// The agent's, if there are more.
    next_cursor: Option<String>,
}

/// List the sessions that the agent keeps
#[utoipa::path(
    get, path = "/api/v1/agents/{id}/sessions", tag = "agents",
    params(("id" = String, Path, description = "The instance"), AgentSessionParams),
    responses((status = 200, body = KeptSessions))
)]
pub async fn list(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    ApiQuery(params): ApiQuery<AgentSessionParams>,
) -> ApiResult<Json<KeptSessions>> {
    let subject = Subject::load(&state, &id).await?;
    if !subject.can(&["list"]) {
        return Err(unsupported("that its sessions can be listed"));
    }
    let AgentSessionParams { cwd, cursor } = params;
    if cwd
        .as_deref()
        .is_some_and(|cwd| !cwd.starts_with('/') || cwd.len() > LONGEST)
    {
        return Err(ApiError::validation(
            "cwd",
            "must be an absolute path in the container",
        ));
    }
    if cursor.as_deref().is_some_and(|cursor| cursor.len() > LONGEST) {
        return Err(foreign_cursor());
    }
    let cursor = cursor.filter(|cursor| !cursor.is_empty());
    let asked = subject.ask(&state, Ask::List { cwd, cursor }).await?;
    let answer: Value = serde_json::from_str(asked.result.get()).unwrap_or_default();
    let Some(listed) = answer["sessions"].as_array() else {
        let text = "the agent's answer to session/list has no sessions";
        return Err(ApiError::new(ErrorCode::AgentError, text).details(answer));
    };
    let text = |info: &Value, key: &str| info[key].as_str().map(str::to_owned);
    let mut kept = Vec::with_capacity(listed.len());
    // Without an id it is nothing that could be named.
    for info in listed {
        let Some(session_id) = text(info, "sessionId") else {
            continue;
        };
        let directories = info["additionalDirectories"].as_array().map(Vec::as_slice);
        let directories = directories.unwrap_or_default().iter();
        kept.push(KeptSession {
            id: None,
            cwd: text(info, "cwd"),
            title: text(info, "title"),
            updated_at: text(info, "updatedAt"),
            additional_directories: directories
                .filter_map(|d| d.as_str().map(str::to_owned))
                .collect(),
            own: subject.instance.session_id.as_deref() == Some(session_id.as_str()),
            meta: info.get("_meta").cloned(),
            session_id,
        });
    }
    let ids: Vec<&str> = kept.iter().map(|session| session.session_id.as_str()).collect();
    let known = sessions::keys_of(&state.pool, &ids, &subject.instance.agent_type).await?;
    for session in &mut kept {
        session.id = known.get(&session.session_id).map(|key: &SessionKey| key.0);
    }
    Ok(Json(KeptSessions {
        sessions: kept,
        next_cursor: text(&answer, "nextCursor"),
    }))
}

/// Close a session in the agent
///
/// The agent gives up what it holds for it; the session can be resumed later. Not the instance's own: stop the instance instead.
#[utoipa::path(
    post, path = "/api/v1/agents/{id}/sessions/{session_id}/close", tag = "agents",
    params(
        ("id" = String, Path, description = "The instance"),
        ("session_id" = String, Path, description = "The session's id, or the agent's"),
    ),
    responses((status = 200, body = Asked))
)]
pub async fn close(
    State(state): State<AppState>,
    ApiPath((id, session_id)): ApiPath<(String, String)>,
    // Nothing is needed; what is sent must be readable all the same.
    _: Option<ApiJson<ReasonBody>>,
) -> ApiResult<Json<Asked>> {
    let subject = Subject::load(&state, &id).await?;
    if !subject.can(&["close"]) {
        return Err(unsupported("that its sessions can be closed"));
    }
    let (session_id, _) = other(&state, &subject, &session_id).await?;
    subject.ask(&state, Ask::Close { session_id }).await
}

/// Delete a session at the agent
///
/// Nothing can go on with it then; what kandev has of it stays, with `deleted_at`. Not one that an active instance works in.
#[utoipa::path(
    delete, path = "/api/v1/agents/{id}/sessions/{session_id}", tag = "agents",
    params(
        ("id" = String, Path, description = "The instance"),
        ("session_id" = String, Path, description = "The session's id, or the agent's"),
    ),
    responses((status = 200, body = Asked))
)]
pub async fn delete(
    State(state): State<AppState>,
    ApiPath((id, session_id)): ApiPath<(String, String)>,
) -> ApiResult<Json<Asked>> {
    let subject = Subject::load(&state, &id).await?;
    if !subject.can(&["delete"]) {
        return Err(unsupported("that its sessions can be deleted"));
    }
    let (session_id, known) = other(&state, &subject, &session_id).await?;
    if let Some(session) = known
        && let Some(instance) = sessions::active_instance(&state.pool, session.key).await?
    {
        let text = format!("the instance '{instance}' works in this session");
        return Err(ApiError::conflict(text));
    }
    subject.ask(&state, Ask::Delete { session_id }).await
}

/// The agent's id of the session that a path names, which must not be the instance's own; and what kandev knows of it.
async fn other(state: &AppState, subject: &Subject, text: &str) -> ApiResult<(String, Option<Session>)> {
    if text.is_empty() || text.len() > LONGEST || text.contains('\0') {
        return Err(ApiError::not_found("session", text));
    }
    let agent_type = &subject.instance.agent_type;
    let by_key = match text.parse() {
        Ok(key) => sessions::get(&state.pool, key).await?,
        Err(_) => None,
    };
    let known = match by_key.filter(|session| session.agent_type == *agent_type) {
        Some(session) => Some(session),
        None => sessions::by_agents_id(&state.pool, text, Some(agent_type)).await?,
    };
    let session_id = known
        .as_ref()
        .map_or(text, |session| session.session_id.as_str())
        .to_owned();
    if subject.instance.session_id.as_deref() == Some(session_id.as_str()) {
        return Err(ApiError::conflict(
            "this is the instance's own session: stop the instance instead",
        ));
    }
    Ok((session_id, known))
}
