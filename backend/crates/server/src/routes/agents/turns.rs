//! `GET /api/v1/agents/{id}/turns` and `GET /api/v1/agents/{id}/turns/{turn_id}`

use axum::Json;
use axum::extract::State;
use chrono::{DateTime, Utc};
use kandev_acp::dialect::stop_detail;
use kandev_domain::TurnStatus;
use kandev_domain::usage::Cost;
use kandev_orchestrator::transcript::turn_text;
use kandev_store::turns::{self, Turn};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::edge::extract::{ApiPath, ApiQuery};
use crate::error::{ApiError, ApiResult};
use crate::routes::page::{Paging, next_cursor};
use crate::state::AppState;

/// A turn.
#[derive(Debug, Serialize, ToSchema)]
pub struct TurnView {
    id: Uuid,
    session_id: Option<String>,
    status: TurnStatus,
    /// Content blocks.
    #[schema(value_type = Vec<Object>)]
    prompt: Option<Box<RawValue>>,
    /// What the caller had told beside it.
    #[schema(value_type = Option<Object>)]
    prompt_meta: Option<Box<RawValue>>,
    /// The agent's message so far, its pieces joined.
    text: String,
    /// The message is longer than is shown.
    text_truncated: bool,
    /// Of the message the beginning, or all, is not kept any more.
    text_removed: bool,
    /// As the agent gave it.
    stop_reason: Option<String>,
    /// Why the agent broke the turn off, where it tells (Koda: `loop_detected`); out of `meta`.
    stop_detail: Option<String>,
    /// How many updates the turn had; null until it has ended. None at all often means that a model provider failed.
    updates: Option<i64>,
    /// As the agent gave it.
    #[schema(value_type = Option<Object>)]
    usage: Option<Box<RawValue>>,
    /// What it has cost: what the session's cost, which agents tell, has grown by. It may come after the turn's end.
    cost: Option<Cost>,
    /// The agent's `_meta` of the turn's end.
    #[schema(value_type = Option<Object>)]
    meta: Option<Box<RawValue>>,
    error: Option<TurnError>,
    cancel_reason: Option<String>,
    queued_at: DateTime<Utc>,
    started_at: Option<DateTime<Utc>>,
    finished_at: Option<DateTime<Utc>>,
}

impl TurnView {
    /// True once the turn has its end.
    pub const fn has_ended(&self) -> bool {
        self.status.is_final()
    }
}

/// Why a turn failed.
#[derive(Debug, Serialize, ToSchema)]
struct TurnError {
    code: String,
    message: String,
    /// The agent's JSON-RPC error as it came, its `data` included, where that is why.
    #[schema(value_type = Option<Object>)]
    details: Option<Box<RawValue>>,
}

/// Turns, oldest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct TurnList {
    turns: Vec<TurnView>,
    /// How many there are in all.
    total: i64,
    next_cursor: Option<String>,
}

/// A row and its message.
pub(super) async fn view(state: &AppState, turn: Turn) -> ApiResult<TurnView> {
    let text = turn_text(&state.pool, &turn).await?;
    let raw = |json: Option<String>| json.and_then(|json| RawValue::from_string(json).ok());
    let meta = raw(turn.meta);
    Ok(TurnView {
        id: turn.id.0,
        session_id: turn.session_id,
        status: turn.status,
        prompt: raw(Some(turn.prompt)),
        prompt_meta: raw(turn.prompt_meta),
        text: text.text,
        text_truncated: text.truncated,
        text_removed: text.removed,
        stop_reason: turn.stop_reason,
        stop_detail: meta.as_deref().and_then(stop_detail),
        updates: turn.updates,
        usage: raw(turn.usage),
        cost: turn.cost,
        meta,
        error: turn.error_code.map(|code| TurnError {
            code,
            message: turn.error_message.unwrap_or_default(),
            details: raw(turn.error_details),
        }),
        cancel_reason: turn.cancel_reason,
        queued_at: turn.queued_at,
        started_at: turn.started_at,
        finished_at: turn.finished_at,
    })
}

/// Turns of an instance
#[utoipa::path(
    get, path = "/api/v1/agents/{id}/turns", tag = "agents",
    params(("id" = String, Path, description = "The instance"), Paging),
    responses((status = 200, body = TurnList))
)]
pub async fn list(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    ApiQuery(paging): ApiQuery<Paging>,
) -> ApiResult<Json<TurnList>> {
    let instance = super::instance(&state, &id).await?;
    let of = format!("turns-{}", instance.id);
    let (limit, cursor) = paging.resolve(&of)?;
    let page = turns::list(&state.pool, instance.id, cursor.as_ref(), limit).await?;
    let mut views = Vec::with_capacity(page.items.len());
    for turn in page.items {
        views.push(view(&state, turn).await?);
    }
    Ok(Json(TurnList {
        turns: views,
        total: page.total,
        next_cursor: next_cursor(&of, page.next),
    }))
}

/// One turn
#[utoipa::path(
    get, path = "/api/v1/agents/{id}/turns/{turn_id}", tag = "agents",
    params(
        ("id" = String, Path, description = "The instance"),
        ("turn_id" = String, Path, description = "The turn"),
    ),
    responses((status = 200, body = TurnView))
)]
pub async fn get(
    State(state): State<AppState>,
    ApiPath((id, turn_id)): ApiPath<(String, String)>,
) -> ApiResult<Json<TurnView>> {
    let instance = super::instance(&state, &id).await?;
    let missing = || ApiError::not_found("turn", &turn_id);
    let turn = turns::get(&state.pool, instance.id, turn_id.parse().map_err(|_| missing())?).await?;
    Ok(Json(view(&state, turn.ok_or_else(missing)?).await?))
}
