//! `/api/v1/tasks`

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use chrono::{DateTime, Utc};
use kandev_domain::TaskId;
use kandev_domain::ids::InvalidTaskId;
use kandev_store::tasks::{self, DEFAULT_STATE, Deleted, Task, TaskPatch, TextPatch};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::page::{Paging, next_cursor};
use crate::edge::extract::{ApiJson, ApiPath, ApiQuery};
use crate::error::{ApiError, ApiResult};
use crate::state::AppState;

const MAX_STATE: usize = 64;

/// The routes of tasks.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(get, patch, delete))
}

/// A task.
#[derive(Debug, Serialize, ToSchema)]
pub struct TaskView {
    id: String,
    title: Option<String>,
    description: Option<String>,
    /// The caller's own word; `open` unless said otherwise.
    state: String,
    /// The caller's own; `session_id` and the agent type's key are written when a session is established.
    #[schema(value_type = Object)]
    metadata: Value,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
}

impl From<Task> for TaskView {
    fn from(task: Task) -> Self {
        Self {
            id: task.id.to_string(),
            title: task.title,
            description: task.description,
            state: task.state,
            metadata: task.metadata,
            created_at: task.created_at,
            updated_at: task.updated_at,
        }
    }
}

/// A task to make or to change. What is absent stays as it is, or as it is by default.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct TaskBody {
    /// Only when making one; made up if absent.
    id: Option<String>,
    /// Null takes it away.
    #[schema(value_type = Option<String>)]
    #[serde(default)]
    title: Said<String>,
    /// Null takes it away.
    #[schema(value_type = Option<String>)]
    #[serde(default)]
    description: Said<String>,
    /// A task always has one.
    #[schema(value_type = String, required = false)]
    #[serde(default)]
    state: Said<String>,
    /// Merged key by key; null in the place of a value removes a key.
    #[schema(value_type = Object, required = false)]
    #[serde(default)]
    metadata: Said<Map<String, Value>>,
}

/// What is said of a field: a null is not the same as nothing.
#[derive(Debug, Default)]
enum Said<T> {
    #[default]
    Nothing,
    Null,
    This(T),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Said<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::deserialize(deserializer)?.map_or(Self::Null, Self::This))
    }
}

impl<T> Said<T> {
    /// Of a field that cannot be null.
    fn required(self, field: &str, wanted: &str) -> ApiResult<Option<T>> {
        match self {
            Self::Nothing => Ok(None),
            Self::Null => Err(ApiError::validation(field, wanted)),
            Self::This(value) => Ok(Some(value)),
        }
    }
}

impl From<Said<String>> for TextPatch {
    fn from(said: Said<String>) -> Self {
        match said {
            Said::Nothing => Self::Keep,
            Said::Null => Self::Clear,
            Said::This(text) => Self::Set(text),
        }
    }
}

impl TaskBody {
    fn check(self) -> ApiResult<(Option<TaskId>, TaskPatch)> {
        const STATE: &str = "must have 1 to 64 characters";
        let id = self.id.map(|id| id.parse()).transpose();
        let id = id.map_err(|e: InvalidTaskId| ApiError::validation("id", &e.to_string()))?;
        let state = self.state.required("state", STATE)?;
        if state
            .as_ref()
            .is_some_and(|s| s.trim().is_empty() || s.len() > MAX_STATE)
        {
            return Err(ApiError::validation("state", STATE));
        }
        let metadata = self.metadata.required("metadata", "must be an object")?;
        let metadata = metadata.map(|m| storable("metadata", m)).transpose()?;
        let patch = TaskPatch {
            title: self.title.into(),
            description: self.description.into(),
            state,
            metadata,
        };
        Ok((id, patch))
    }
}

/// Refuses what PostgreSQL's `jsonb` cannot hold.
pub(super) fn storable(field: &str, metadata: Map<String, Value>) -> ApiResult<Map<String, Value>> {
    fn has_nul(value: &Value) -> bool {
        match value {
            Value::String(text) => text.contains('\0'),
            Value::Array(items) => items.iter().any(has_nul),
            Value::Object(map) => map
                .iter()
                .any(|(key, value)| key.contains('\0') || has_nul(value)),
            _ => false,
        }
    }
    if metadata
        .iter()
        .any(|(key, value)| key.contains('\0') || has_nul(value))
    {
        return Err(ApiError::validation(
            field,
            "must not contain the character U+0000",
        ));
    }
    Ok(metadata)
}

fn task_id(text: &str) -> ApiResult<TaskId> {
    text.parse().map_err(|_| ApiError::not_found("task", text))
}

/// Which tasks.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct TaskParams {
    /// Only in this state.
    state: Option<String>,
    /// At most so many; 1 to 500, 50 if absent.
    limit: Option<i64>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// Tasks, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct TaskList {
    tasks: Vec<TaskView>,
    /// How many match in all.
    total: i64,
    next_cursor: Option<String>,
}

/// List tasks
#[utoipa::path(get, path = "/api/v1/tasks", tag = "tasks", params(TaskParams), responses((status = 200, body = TaskList)))]
async fn list(
    State(state): State<AppState>,
    ApiQuery(params): ApiQuery<TaskParams>,
) -> ApiResult<Json<TaskList>> {
    let (limit, cursor) = Paging {
        limit: params.limit,
        cursor: params.cursor,
    }
    .resolve("tasks")?;
    let page = tasks::list(&state.pool, params.state.as_deref(), cursor.as_ref(), limit).await?;
    Ok(Json(TaskList {
        tasks: page.items.into_iter().map(Into::into).collect(),
        total: page.total,
        next_cursor: next_cursor("tasks", page.next),
    }))
}

fn text(said: TextPatch) -> Option<String> {
    match said {
        TextPatch::Set(text) => Some(text),
        TextPatch::Keep | TextPatch::Clear => None,
    }
}

/// Make a task
#[utoipa::path(
    post, path = "/api/v1/tasks", tag = "tasks", request_body = TaskBody,
    responses((status = 201, body = TaskView, headers(("Location" = String, description = "The task"))))
)]
async fn create(
    State(state): State<AppState>,
    ApiJson(body): ApiJson<TaskBody>,
) -> ApiResult<impl IntoResponse> {
    let (id, new) = body.check()?;
    let now = state.orchestrator.clock().now();
    let task = Task {
        id: id.unwrap_or_else(TaskId::generate),
        title: text(new.title),
        description: text(new.description),
        state: new.state.unwrap_or_else(|| DEFAULT_STATE.to_owned()),
        metadata: Value::Object(new.metadata.unwrap_or_default()),
        created_at: now,
        updated_at: now,
    };
    let mut connection = state.pool.acquire().await?;
    if !tasks::insert(&mut connection, &task).await? {
        return Err(ApiError::conflict(format!(
            "there is a task '{}' already",
            task.id
        )));
    }
    let location = format!("/api/v1/tasks/{}", task.id);
    Ok((
        StatusCode::CREATED,
        [(header::LOCATION, location)],
        Json(TaskView::from(task)),
    ))
}

/// One task
#[utoipa::path(
    get, path = "/api/v1/tasks/{id}", tag = "tasks", params(("id" = String, Path, description = "The task")),
    responses((status = 200, body = TaskView))
)]
async fn get(State(state): State<AppState>, ApiPath(id): ApiPath<String>) -> ApiResult<Json<TaskView>> {
    let task = tasks::get(&state.pool, &task_id(&id)?).await?;
    Ok(Json(task.ok_or_else(|| ApiError::not_found("task", id))?.into()))
}

/// Change a task
#[utoipa::path(
    patch, path = "/api/v1/tasks/{id}", tag = "tasks", request_body = TaskBody,
    params(("id" = String, Path, description = "The task")),
    responses((status = 200, body = TaskView))
)]
async fn patch(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    ApiJson(body): ApiJson<TaskBody>,
) -> ApiResult<Json<TaskView>> {
    let (new_id, patch) = body.check()?;
    let id = task_id(&id)?;
    if new_id.is_some_and(|new| new != id) {
        return Err(ApiError::validation("id", "cannot be changed"));
    }
    let task = tasks::patch(&state.pool, &id, &patch, state.orchestrator.clock().now()).await?;
    Ok(Json(task.ok_or_else(|| ApiError::not_found("task", id))?.into()))
}

/// Delete a task
///
/// With its instances, sessions and events; not while one of its instances is active.
#[utoipa::path(
    delete, path = "/api/v1/tasks/{id}", tag = "tasks", params(("id" = String, Path, description = "The task")),
    responses((status = 204, description = "It is gone"))
)]
async fn delete(State(state): State<AppState>, ApiPath(id): ApiPath<String>) -> ApiResult<StatusCode> {
    match tasks::delete(&state.pool, &task_id(&id)?).await? {
        Deleted::Done => Ok(StatusCode::NO_CONTENT),
        Deleted::Busy => Err(ApiError::conflict(
            "the task has an active instance; stop it first",
        )),
        Deleted::Missing => Err(ApiError::not_found("task", id)),
    }
}
