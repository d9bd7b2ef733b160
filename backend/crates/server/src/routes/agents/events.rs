//! `GET /api/v1/agents/{id}/events`

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use chrono::{DateTime, Utc};
use kandev_domain::{Event, EventKind};
use kandev_store::journal::{self, EventQuery};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::edge::extract::{ApiPath, ApiQuery};
use crate::error::{ApiError, ApiResult, ErrorCode};
use crate::routes::page::names;
use crate::state::AppState;

const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 5000;
/// A page is cut short once it holds so much.
const MAX_PAGE_BYTES: usize = 8 << 20;

/// Which events.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct EventParams {
    /// Only later ones than this `seq`.
    pub after: Option<i64>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
    /// At most so many; 1 to 5000, 100 if absent. A page of large events may be shorter.
    pub limit: Option<usize>,
    /// Only these kinds, separated by commas.
    pub kind: Option<String>,
}

/// One thing that happened.
#[derive(Debug, Serialize, ToSchema)]
pub struct EventView {
    /// Position in the instance's history, without gaps from 1.
    seq: i64,
    instance_id: Uuid,
    session_id: Option<String>,
    turn_id: Option<Uuid>,
    timestamp: DateTime<Utc>,
    kind: EventKind,
    /// Depends on the kind; for `update` the agent's own params of `session/update`.
    #[schema(value_type = Object)]
    data: Box<RawValue>,
}

impl From<Event> for EventView {
    fn from(event: Event) -> Self {
        Self {
            seq: event.seq,
            instance_id: event.instance_id.0,
            session_id: event.session_id,
            turn_id: event.turn_id.map(|id| id.0),
            timestamp: event.timestamp,
            kind: event.kind,
            data: event.data,
        }
    }
}

/// Events in order.
#[derive(Debug, Serialize, ToSchema)]
pub struct EventList {
    /// The events.
    pub events: Vec<EventView>,
    /// For `cursor`, if there are more.
    pub next_cursor: Option<String>,
}

impl EventParams {
    /// Checks all but the position.
    pub fn query(&self, after: i64) -> ApiResult<EventQuery> {
        let limit = self.limit.unwrap_or(DEFAULT_LIMIT);
        if !(1..=MAX_LIMIT).contains(&limit) {
            return Err(ApiError::validation("limit", "must be 1 to 5000"));
        }
        let kinds = names("kind", self.kind.as_deref())?;
        Ok(EventQuery {
            after,
            until: None,
            kinds,
            limit,
            max_bytes: MAX_PAGE_BYTES,
        })
    }
}

/// Refuses callers that expect a stream.
pub fn only_pages(headers: &HeaderMap) -> ApiResult<()> {
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|v| v.to_str().ok())
        .unwrap_or_default();
    if accept.contains("text/event-stream") && !accept.contains("application/json") {
        let message = "events cannot be streamed yet; read pages of JSON";
        return Err(ApiError::new(ErrorCode::UnsupportedCapability, message));
    }
    Ok(())
}

/// Events of an instance
#[utoipa::path(
    get, path = "/api/v1/agents/{id}/events", tag = "agents",
    params(("id" = String, Path, description = "The instance"), EventParams),
    responses((status = 200, body = EventList))
)]
pub async fn events(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    headers: HeaderMap,
    ApiQuery(params): ApiQuery<EventParams>,
) -> ApiResult<Json<EventList>> {
    let instance = super::instance(&state, &id).await?;
    only_pages(&headers)?;
    let cursor = params
        .cursor
        .as_deref()
        .filter(|c| !c.is_empty())
        .map(|c| c.parse().ok().filter(|seq: &i64| *seq >= 0))
        .map(|seq| seq.ok_or_else(|| ApiError::validation("cursor", "is no cursor of this list")))
        .transpose()?;
    let after = params.after.or(cursor).unwrap_or(0);
    if after < 0 {
        return Err(ApiError::validation("after", "must not be negative"));
    }
    let page = journal::events(&state.pool, instance.id, &params.query(after)?).await?;
    Ok(Json(EventList {
        events: page.events.into_iter().map(Into::into).collect(),
        next_cursor: page.next_after.map(|seq| seq.to_string()),
    }))
}
