//! `GET /api/v1/events`: what happens to all instances, as pages, as a stream, or over a WebSocket.

mod follower;
mod ws;

use axum::Json;
use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use kandev_domain::TaskId;
use kandev_store::journal::{AllQuery, AllReader, Place, Read, Room};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::follower::{Follower, Reset, settle};
use super::agents::events::{EventView, page_limit};
use super::page::{foreign_cursor, names};
use super::socket;
use super::sse::{self, wants_stream};
use crate::edge::extract::ApiQuery;
use crate::error::{ApiError, ApiResult};
use crate::state::AppState;

/// A page is cut short once it holds so much.
const MAX_PAGE_BYTES: usize = 8 << 20;
/// The cursor of a reader that wants nothing of what was.
const LATEST: &str = "latest";

/// Which events of all instances.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct AllEventParams {
    /// Only those of this task's instances.
    task_id: Option<String>,
    /// Only these kinds, separated by commas.
    kind: Option<String>,
    /// Only what comes after this place: a `cursor`, `next_cursor` or `id` of before, or `latest` for what comes from now on.
    /// All that is kept if absent.
    cursor: Option<String>,
    /// Of a page, at most so many; 1 to 5000, 100 if absent. A page of large events may be shorter.
    limit: Option<usize>,
}

/// Events of all instances: each instance's in the order of their `seq`, those of different ones as they were stored.
#[derive(Debug, Serialize, ToSchema)]
struct AllEventList {
    events: Vec<EventView>,
    /// For `cursor`, if there may be more.
    next_cursor: Option<String>,
    /// The place behind these events, also where there are no more: what to follow from.
    cursor: String,
    /// Says that the request's cursor was not one to go on from without a gap, and why.
    reset: Option<Reset>,
}

/// Routes under the usual time limit, which is about the head of a response: that of a stream comes at once.
pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(all_events))
}

/// Events of all instances
///
/// A page; with `Accept: text/event-stream` a stream of what was and what comes (`id` is the cursor behind the event, which
/// comes back as `Last-Event-ID`; `event` the kind, `data` the event); with `Upgrade: websocket` the same as messages
/// `{"type":"event","cursor":…,"event":{…}}`. Each event comes once, those of an instance in the order of their `seq`.
/// `event: reset` (`{"type":"reset",…}`) with a `reason` says that the place to go on from was not one: `removed`, what came
/// next is not kept any more, or `unknown`, this is not the database it was in. A WebSocket also says where it stands while
/// nothing passes the filter (`{"type":"cursor","cursor":…}`), and takes no commands: those go over that of their instance.
#[utoipa::path(
    get, path = "/api/v1/events", tag = "events",
    params(
        AllEventParams,
        ("Last-Event-ID" = Option<String>, Header, description = "Of a stream: the last `id` that was seen; counts more than `cursor`"),
        ("Upgrade" = Option<String>, Header, description = "`websocket`, with the other headers of that handshake"),
    ),
    responses(
        (status = 200, content((AllEventList = "application/json"), (String = "text/event-stream"))),
        (status = 101, description = "With `Upgrade: websocket`: from here on a WebSocket"),
    )
)]
async fn all_events(
    State(state): State<AppState>,
    headers: HeaderMap,
    ApiQuery(params): ApiQuery<AllEventParams>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> ApiResult<Response> {
    let limit = page_limit(params.limit)?;
    let upgrade = match upgrade {
        _ if !wants_socket(&headers) => None,
        Ok(upgrade) => Some(upgrade),
        Err(rejection) => return Err(socket::no_handshake(rejection)),
    };
    if upgrade.is_some() {
        socket::same_origin(&headers)?;
    }
    let streams = upgrade.is_some() || wants_stream(&headers);
    let back = if streams {
        sse::last_event_id(&headers)?
    } else {
        None
    };
    let reader = params.reader(&state, back).await?;
    let Some(upgrade) = upgrade else {
        if streams {
            return Ok(stream(state, reader));
        }
        return Ok(Json(page(reader, limit).await?).into_response());
    };
    // The server's end waits for this one too.
    let tracked = state.sockets.token();
    let upgrade = upgrade
        .max_message_size(ws::MAX_MESSAGE)
        .max_frame_size(ws::MAX_MESSAGE);
    Ok(upgrade.on_upgrade(async move |socket| {
        let stopping = state.stopping.clone();
        ws::run(socket, Follower::new(state, reader), stopping).await;
        drop(tracked);
    }))
}

fn wants_socket(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(header::UPGRADE).and_then(|v| v.to_str().ok());
    upgrade.is_some_and(|protocols| protocols.to_ascii_lowercase().contains("websocket"))
}

impl AllEventParams {
    /// One that begins at `back`, or else where the cursor says.
    async fn reader(&self, state: &AppState, back: Option<Place>) -> ApiResult<AllReader> {
        let task_id = self.task_id.as_deref().map(str::parse::<TaskId>).transpose();
        let query = AllQuery {
            task_id: task_id.map_err(|e| ApiError::validation("task_id", &format!("is none: {e}")))?,
            kinds: names("kind", self.kind.as_deref())?,
        };
        let cursor = self.cursor.as_deref().filter(|cursor| !cursor.is_empty());
        // A browser's EventSource comes back with the query that it began with.
        let latest = back.is_none() && cursor == Some(LATEST);
        let place = cursor.filter(|cursor| *cursor != LATEST);
        let place = place.map(str::parse::<Place>).transpose();
        let place = place.map_err(|_| foreign_cursor())?;
        let mut reader = AllReader::from(&state.pool, query, back.or(place)).await?;
        if latest {
            settle(&mut reader).await?;
            reader.skip_to_end();
        }
        Ok(reader)
    }
}

async fn page(mut reader: AllReader, limit: usize) -> ApiResult<AllEventList> {
    settle(&mut reader).await?;
    let mut list = AllEventList {
        events: Vec::new(),
        next_cursor: None,
        cursor: String::new(),
        reset: None,
    };
    let mut bytes = 0;
    let (place, more) = loop {
        let before = reader.place();
        let room = Room {
            events: limit - list.events.len(),
            bytes: MAX_PAGE_BYTES.saturating_sub(bytes),
        };
        match reader.read(room).await? {
            // It belongs before the first event of the next page.
            Read::Reset(_) if !list.events.is_empty() => break (before, true),
            Read::Reset(reset) => {
                list.reset = Some(reset.into());
                settle(&mut reader).await?;
            }
            Read::Events(events) => {
                bytes += events
                    .iter()
                    .map(|(_, e)| e.data.get().len() + 200)
                    .sum::<usize>();
                list.events
                    .extend(events.into_iter().map(|(_, event)| event.into()));
                if list.events.len() >= limit || bytes >= MAX_PAGE_BYTES {
                    break (reader.place(), true);
                }
            }
            Read::Nothing { .. } => break (reader.place(), false),
        }
    };
    list.cursor = place.to_string();
    list.next_cursor = more.then(|| list.cursor.clone());
    Ok(list)
}

fn stream(state: AppState, reader: AllReader) -> Response {
    sse::sse(Follower::new(state, reader), Vec::new(), |out, (place, event)| {
        let event = EventView::from(event);
        sse::frame(out, place, event.kind().as_str(), &event);
    })
}
