//! `/api/v1/sessions`

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use chrono::{DateTime, Utc};
use kandev_domain::InstanceId;
use kandev_store::journal;
use kandev_store::sessions::{self, Session};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::agents::events::{EventList, EventParams, EventsReset, only_pages};
use super::agents::launch::LaunchResponse;
use super::agents::resume::{ResumeBody, resume_instance};
use super::agents::session::SessionState;
use super::page::{Paging, foreign_cursor, next_cursor};
use crate::edge::extract::{ApiJson, ApiPath, ApiQuery};
use crate::error::{ApiError, ApiResult};
use crate::state::AppState;

/// Routes under the usual time limit.
pub fn timed() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get))
        .routes(routes!(events))
}

/// Routes that wait for an engine.
pub fn untimed() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(resume))
}

/// A session, across the instances that carried it.
#[derive(Debug, Serialize, ToSchema)]
pub struct SessionView {
    /// kandev's own id of it.
    id: Uuid,
    /// The agent's id.
    session_id: String,
    agent_type: String,
    workspace_path: String,
    /// The task it began with.
    task_id: String,
    created_at: DateTime<Utc>,
    /// The session that it was branched off, by kandev's id.
    forked_from: Option<Uuid>,
    /// When its agent was made to delete it: it cannot be resumed any more.
    deleted_at: Option<DateTime<Utc>>,
}

impl From<Session> for SessionView {
    fn from(session: Session) -> Self {
        Self {
            id: session.key.0,
            session_id: session.session_id,
            agent_type: session.agent_type,
            workspace_path: session.workspace_path,
            task_id: session.task_id.to_string(),
            created_at: session.created_at,
            forked_from: session.forked_from.map(|key| key.0),
            deleted_at: session.deleted_at,
        }
    }
}

/// A session with what the agent last said about it.
#[derive(Debug, Serialize, ToSchema)]
pub struct SessionDetail {
    #[serde(flatten)]
    session: SessionView,
    /// The instances that carried it, oldest first.
    instances: Vec<Uuid>,
    #[serde(flatten)]
    state: SessionState,
}

/// Sessions, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct SessionList {
    sessions: Vec<SessionView>,
    /// How many match in all.
    total: i64,
    next_cursor: Option<String>,
}

/// Which sessions.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct SessionParams {
    /// Only of this task.
    task_id: Option<String>,
    /// Only of this type.
    agent_type: Option<String>,
    /// At most so many; 1 to 500, 50 if absent.
    limit: Option<i64>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// The session that a path names: by our id, else by the agent's, of which the newest counts.
async fn session(state: &AppState, text: &str) -> ApiResult<Session> {
    if let Ok(key) = text.parse()
        && let Some(session) = sessions::get(&state.pool, key).await?
    {
        return Ok(session);
    }
    let session = sessions::by_agents_id(&state.pool, text, None).await?;
    session.ok_or_else(|| ApiError::not_found("session", text))
}

/// List sessions
#[utoipa::path(
    get, path = "/api/v1/sessions", tag = "sessions", params(SessionParams),
    responses((status = 200, body = SessionList))
)]
async fn list(
    State(state): State<AppState>,
    ApiQuery(params): ApiQuery<SessionParams>,
) -> ApiResult<Json<SessionList>> {
    let (limit, cursor) = Paging {
        limit: params.limit,
        cursor: params.cursor,
    }
    .resolve("sessions")?;
    let (task, kind) = (params.task_id.as_deref(), params.agent_type.as_deref());
    let page = sessions::list(&state.pool, task, kind, cursor.as_ref(), limit).await?;
    Ok(Json(SessionList {
        sessions: page.items.into_iter().map(Into::into).collect(),
        total: page.total,
        next_cursor: next_cursor("sessions", page.next),
    }))
}

/// One session
#[utoipa::path(
    get, path = "/api/v1/sessions/{id}", tag = "sessions",
    params(("id" = String, Path, description = "The session's id, or the agent's")),
    responses((status = 200, body = SessionDetail))
)]
async fn get(State(state): State<AppState>, ApiPath(id): ApiPath<String>) -> ApiResult<Json<SessionDetail>> {
    let session = session(&state, &id).await?;
    let instances = sessions::instances(&state.pool, session.key).await?;
    Ok(Json(SessionDetail {
        state: SessionState::load(&state, session.key).await?,
        instances: instances.into_iter().map(|id| id.0).collect(),
        session: session.into(),
    }))
}

/// Events of a session
///
/// Those of all instances that carried it, one instance after the other.
#[utoipa::path(
    get, path = "/api/v1/sessions/{id}/events", tag = "sessions",
    params(("id" = String, Path, description = "The session's id, or the agent's"), EventParams),
    responses((status = 200, body = EventList))
)]
async fn events(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    headers: HeaderMap,
    ApiQuery(params): ApiQuery<EventParams>,
) -> ApiResult<Json<EventList>> {
    let session = session(&state, &id).await?;
    only_pages(&headers)?;
    if params.after.is_some() {
        return Err(ApiError::validation(
            "after",
            "counts within one instance; use 'cursor' here",
        ));
    }
    let start = position(params.cursor.as_deref())?;
    let instances = sessions::instances(&state.pool, session.key).await?;
    if let Some((from, _)) = start
        && !instances.contains(&from)
        && kandev_store::instances::get(&state.pool, from).await?.is_some()
    {
        // It belongs to another session.
        return Err(foreign_cursor());
    }
    let mut left = params.query(0)?;
    let mut list = EventList {
        events: Vec::new(),
        next_cursor: None,
        reset: None,
    };
    for instance in instances
        .into_iter()
        .filter(|id| start.is_none_or(|(from, _)| *id >= from))
    {
        left.after = start
            .filter(|(from, _)| *from == instance)
            .map_or(0, |(_, seq)| seq);
        if left.limit == 0 {
            list.next_cursor = Some(format!("{instance}.0"));
            break;
        }
        let page = journal::events(&state.pool, instance, &left).await?;
        if page.oldest.is_some() && !list.events.is_empty() {
            // It belongs before the first event of the next page.
            list.next_cursor = Some(format!("{instance}.0"));
            break;
        }
        list.reset = list.reset.or(EventsReset::of(instance, page.oldest));
        left.limit -= page.events.len();
        list.events.extend(page.events.into_iter().map(Into::into));
        if let Some(seq) = page.next_after {
            list.next_cursor = Some(format!("{instance}.{seq}"));
            break;
        }
    }
    Ok(Json(list))
}

fn position(cursor: Option<&str>) -> ApiResult<Option<(InstanceId, i64)>> {
    let Some(text) = cursor.filter(|c| !c.is_empty()) else {
        return Ok(None);
    };
    let parsed = text
        .rsplit_once('.')
        .and_then(|(id, seq)| Some((id.parse().ok()?, seq.parse().ok()?)));
    parsed.map(Some).ok_or_else(foreign_cursor)
}

/// Resume a session
///
/// A fresh container, launched as the session's last one was (a branch's first one as that of the session it was made of, which may
/// still run), goes on with it.
#[utoipa::path(
    post, path = "/api/v1/sessions/{id}/resume", tag = "sessions", request_body = ResumeBody,
    params(("id" = String, Path, description = "The session's id, or the agent's")),
    responses((status = 201, body = LaunchResponse, headers(("Location" = String, description = "The new instance"))))
)]
async fn resume(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    body: Option<ApiJson<ResumeBody>>,
) -> ApiResult<impl IntoResponse> {
    let session = session(&state, &id).await?;
    let last = sessions::last_instance(&state.pool, session.key).await?;
    let last = last.ok_or_else(|| ApiError::conflict("no instance of the session is left"))?;
    let own = Some(session.session_id);
    resume_instance(
        &state,
        last,
        own,
        body.map(|ApiJson(body)| body).unwrap_or_default(),
    )
    .await
}
