//! `GET /api/v1/agents/{id}/events`

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use kandev_domain::{Event, EventKind, InstanceId};
use kandev_store::journal::{self, EventQuery};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::stream::{self, Follower, Start};
use crate::edge::extract::{ApiPath, ApiQuery};
use crate::error::{ApiError, ApiResult, ErrorCode};
use crate::routes::page::{foreign_cursor, names};
use crate::routes::sse::{self, accepts, wants_stream};
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

/// What of them.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct SnapshotParams {
    /// Instead of events what they add up to, and the `seq` to follow from; the other parameters do not count then.
    snapshot: Option<bool>,
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

impl EventView {
    /// What kind of thing it is.
    pub const fn kind(&self) -> EventKind {
        self.kind
    }
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
    /// Says that events between the place that was asked for and these are not kept any more.
    pub reset: Option<EventsReset>,
}

/// Where what is kept begins.
#[derive(Debug, Serialize, ToSchema)]
pub struct EventsReset {
    /// Of this instance.
    pub instance_id: Uuid,
    /// The oldest event that is kept.
    pub oldest_seq: i64,
}

impl EventsReset {
    /// Of a page, if there is something to say.
    pub fn of(id: InstanceId, oldest: Option<i64>) -> Option<Self> {
        oldest.map(|oldest_seq| Self {
            instance_id: id.0,
            oldest_seq,
        })
    }
}

/// A page, or with `snapshot` what all events add up to.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "for the OpenAPI document")]
enum EventsBody {
    Page(EventList),
    Snapshot(Box<super::snapshot::Snapshot>),
}

impl EventParams {
    /// The position that `after`, or else `cursor`, says.
    fn start(&self) -> ApiResult<i64> {
        let cursor = self
            .cursor
            .as_deref()
            .filter(|c| !c.is_empty())
            .map(|c| c.parse().ok().filter(|seq: &i64| *seq >= 0))
            .map(|seq| seq.ok_or_else(foreign_cursor))
            .transpose()?;
        let after = self.after.or(cursor).unwrap_or(0);
        if after < 0 {
            return Err(ApiError::validation("after", "must not be negative"));
        }
        Ok(after)
    }

    /// Checks all but the position.
    pub fn query(&self, after: i64) -> ApiResult<EventQuery> {
        let limit = page_limit(self.limit)?;
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

/// How many events a page may have.
pub fn page_limit(asked: Option<usize>) -> ApiResult<usize> {
    let limit = asked.unwrap_or(DEFAULT_LIMIT);
    if (1..=MAX_LIMIT).contains(&limit) {
        Ok(limit)
    } else {
        Err(ApiError::validation("limit", "must be 1 to 5000"))
    }
}

/// Refuses callers that expect a stream where there is none.
pub fn only_pages(headers: &HeaderMap) -> ApiResult<()> {
    if wants_stream(headers) && !accepts(headers, "application/json") {
        let message = "the events of a session cannot be streamed; follow those of its instance";
        return Err(ApiError::new(ErrorCode::UnsupportedCapability, message));
    }
    Ok(())
}

/// Events of an instance
///
/// With `Accept: text/event-stream` a stream of what was and what comes: `id` is the `seq`, `event` the kind, `data` the
/// event. It begins after `Last-Event-ID`, else after `after`, and ends when the instance has ended (a reader that then
/// comes back for more gets 204) or the server stops. An `event: reset` with `oldest_seq` says that older events than that
/// are not kept any more.
#[utoipa::path(
    get, path = "/api/v1/agents/{id}/events", tag = "agents",
    params(
        ("id" = String, Path, description = "The instance"),
        EventParams,
        SnapshotParams,
        ("Last-Event-ID" = Option<i64>, Header, description = "Of a stream: only later ones than this `seq`"),
    ),
    responses(
        (status = 200, content((EventsBody = "application/json"), (String = "text/event-stream"))),
        (status = 204, description = "The instance has ended, and `Last-Event-ID` is its last event"),
    )
)]
pub async fn events(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    headers: HeaderMap,
    ApiQuery(params): ApiQuery<EventParams>,
    ApiQuery(SnapshotParams { snapshot }): ApiQuery<SnapshotParams>,
) -> ApiResult<Response> {
    let id = super::instance(&state, &id).await?.id;
    if snapshot == Some(true) {
        return Ok(Json(super::snapshot::load(&state, id).await?).into_response());
    }
    if wants_stream(&headers) {
        return follow(state, id, &headers, &params).await;
    }
    let query = params.query(params.start()?)?;
    let page = journal::events(&state.pool, id, &query).await?;
    let list = EventList {
        events: page.events.into_iter().map(Into::into).collect(),
        next_cursor: page.next_after.map(|seq| seq.to_string()),
        reset: EventsReset::of(id, page.oldest),
    };
    Ok(Json(list).into_response())
}

async fn follow(
    state: AppState,
    id: InstanceId,
    headers: &HeaderMap,
    params: &EventParams,
) -> ApiResult<Response> {
    let back = Start::of_header(headers)?;
    let after = params.start()?;
    let start = back.unwrap_or(Start {
        after,
        said_by: "after",
    });
    let kinds = params.query(start.after)?.kinds;
    let standing = stream::standing(&state, id).await?;
    start.check(standing)?;
    if back.is_some() && stream::is_over(standing, start.after) {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let follower = Follower::new(state, id, kinds, start.after);
    Ok(sse::sse(follower, Vec::new(), |out, event| {
        let event = EventView::from(event);
        sse::frame(out, event.seq, event.kind.as_str(), &event);
    }))
}
