//! One reader of an instance's events, whatever way they go out.
//!
//! The database is the only source. The watch of the instance's task only says when to look again, so a reader that is
//! slow, or late, or comes to a server that does not hold the instance, gets the same events: each once, in order.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use kandev_domain::{Event, EventKind, InstanceId};
use kandev_orchestrator::View;
use kandev_store::StoreError;
use kandev_store::journal::{self, EventQuery, Standing};
use serde::Serialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use crate::error::{ApiError, ApiResult};
use crate::state::AppState;

/// Where a reader's position comes back after its connection broke.
pub(super) const LAST_EVENT_ID: &str = "last-event-id";
/// A connection on which nothing happens shows that it is alive so often.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How often to look where nobody says when: another server holds the instance, or this one is about to.
const POLL: Duration = Duration::from_millis(500);
/// What is read at once, and so what a reader holds in memory.
const PAGE_EVENTS: usize = 1000;
const PAGE_BYTES: usize = 1 << 20;

/// What comes next.
pub(super) enum Step {
    /// These events.
    Events(Vec<Event>),
    /// What lay between the cursor and this event is not there any more.
    Reset { oldest: i64 },
    /// Nothing more will come: the instance has ended and all was read.
    Ended,
    /// The server is stopping.
    Stopping,
}

/// Follows the events of an instance from a position on.
pub(super) struct Follower {
    state: AppState,
    id: InstanceId,
    kinds: Vec<EventKind>,
    cursor: i64,
    watch: Option<watch::Receiver<View>>,
}

/// Where a reader wants to begin, and which part of its request said so.
#[derive(Debug, Clone, Copy)]
pub(super) struct Start {
    pub(super) after: i64,
    pub(super) said_by: &'static str,
}

impl Start {
    /// The header of a reader that comes back, if there is one.
    pub(super) fn of_header(headers: &HeaderMap) -> ApiResult<Option<Self>> {
        let Some(value) = headers.get(LAST_EVENT_ID).filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        let said_by = "Last-Event-ID";
        let after = value.to_str().ok().and_then(|text| text.trim().parse().ok());
        match after.filter(|after| *after >= 0) {
            Some(after) => Ok(Some(Self { after, said_by })),
            None => Err(ApiError::validation(said_by, "is no cursor of this stream")),
        }
    }

    /// Refuses a position that the history has not come to.
    pub(super) fn check(self, standing: Standing) -> ApiResult<()> {
        if self.after <= standing.last {
            return Ok(());
        }
        let problem = format!("is beyond the last event, which is {}", standing.last);
        Err(ApiError::validation(self.said_by, &problem))
    }
}

/// What there is of an instance's history.
pub(super) async fn standing(state: &AppState, id: InstanceId) -> ApiResult<Standing> {
    let standing = journal::standing(&state.pool, id).await?;
    standing.ok_or_else(|| ApiError::not_found("agent instance", id))
}

/// True if nothing will come after `cursor`. To a reader that comes back there, 204 is what makes a browser's
/// EventSource stop coming back.
pub(super) const fn is_over(standing: Standing, cursor: i64) -> bool {
    standing.status.is_final() && cursor >= standing.last
}

impl Follower {
    pub(super) fn new(state: AppState, id: InstanceId, kinds: Vec<EventKind>, after: i64) -> Self {
        Self {
            state,
            id,
            kinds,
            cursor: after,
            watch: None,
        }
    }

    /// Waits for what comes next. Cancel safe: the position moves only with what is handed over.
    pub(super) async fn next(&mut self) -> ApiResult<Step> {
        loop {
            if self.state.stopping.is_cancelled() {
                return Ok(Step::Stopping);
            }
            match self.read().await {
                Ok(Some(step)) => return Ok(step),
                Ok(None) => self.wait().await,
                // The connection stays: the database will be back.
                Err(error) if error.is_transient() => {
                    tracing::debug!(%error, "a stream waits for the database");
                    self.watch = None;
                    self.wait().await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// None if all there is has been read.
    async fn read(&mut self) -> Result<Option<Step>, StoreError> {
        loop {
            // First subscribe, then read: what is committed in between wakes the next wait.
            self.subscribe();
            let Some(standing) = journal::standing(&self.state.pool, self.id).await? else {
                return Ok(Some(Step::Ended));
            };
            if standing.oldest > self.cursor + 1 {
                self.cursor = standing.oldest - 1;
                let oldest = standing.oldest;
                return Ok(Some(Step::Reset { oldest }));
            }
            if self.cursor >= standing.last {
                return Ok(standing.status.is_final().then_some(Step::Ended));
            }
            let query = EventQuery {
                after: self.cursor,
                until: Some(standing.last),
                kinds: self.kinds.clone(),
                limit: PAGE_EVENTS,
                max_bytes: PAGE_BYTES,
            };
            let page = journal::events(&self.state.pool, self.id, &query).await?;
            self.cursor = page.next_after.unwrap_or(standing.last);
            if !page.events.is_empty() {
                return Ok(Some(Step::Events(page.events)));
            }
        }
    }

    fn subscribe(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.mark_unchanged();
        } else {
            let watch = self.state.orchestrator.watch(self.id);
            self.watch = watch.filter(|watch| watch.has_changed().is_ok());
        }
    }

    async fn wait(&mut self) {
        let stopping = self.state.stopping.clone();
        let woken = async {
            if let Some(watch) = &mut self.watch {
                watch.changed().await.is_ok()
            } else {
                sleep(POLL).await;
                true
            }
        };
        let holds = tokio::select! {
            holds = woken => holds,
            () = stopping.cancelled() => true,
        };
        if !holds {
            // The task has ended, or has let the instance go.
            self.watch = None;
        }
    }
}

/// Adds one frame: `id`, `event` and `data`.
pub(super) fn frame(out: &mut Vec<u8>, id: i64, event: &str, data: &impl Serialize) {
    out.extend_from_slice(format!("id: {id}\nevent: {event}\ndata: ").as_bytes());
    let start = out.len();
    if serde_json::to_writer(&mut *out, data).is_err() {
        out.truncate(start);
        out.extend_from_slice(b"null");
    }
    // An agent may have a carriage return between two tokens, which would end the line here.
    for byte in &mut out[start..] {
        if matches!(*byte, b'\r' | b'\n') {
            *byte = b' ';
        }
    }
    out.extend_from_slice(b"\n\n");
}

/// A response of server-sent events: `first`, then what `write` makes of each event (which may be nothing).
///
/// The body is made as it is read, a page at a time.
pub(super) fn sse(
    follower: Follower,
    first: Vec<u8>,
    write: impl Fn(&mut Vec<u8>, Event) + Send + Sync + 'static,
) -> Response {
    let mut head = b"retry: 1000\n\n".to_vec();
    head.extend_from_slice(&first);
    let rest = stream::unfold((Some(follower), write), |(follower, write)| async move {
        let mut follower = follower?;
        let (bytes, goes_on) = next_bytes(&mut follower, &write).await;
        Some((Ok::<_, Infallible>(bytes), (goes_on.then_some(follower), write)))
    });
    let head = stream::iter([Ok(Bytes::from(head))]);
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        // For proxies that would hold events back.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    let body = Body::from_stream(futures_util::StreamExt::chain(head, rest));
    (headers, body).into_response()
}

/// The next bytes, and whether there are more.
async fn next_bytes(follower: &mut Follower, write: &(impl Fn(&mut Vec<u8>, Event) + Sync)) -> (Bytes, bool) {
    let deadline = Instant::now() + KEEP_ALIVE;
    loop {
        let mut out = Vec::new();
        match timeout_at(deadline, follower.next()).await {
            Err(_) => return (place(": keep-alive\n", follower), true),
            Ok(Ok(Step::Events(events))) => events.into_iter().for_each(|event| write(&mut out, event)),
            Ok(Ok(Step::Reset { oldest })) => {
                frame(&mut out, oldest - 1, "reset", &json!({"oldest_seq": oldest}));
            }
            Ok(Ok(Step::Ended)) => return (place(": the instance has ended\n", follower), false),
            Ok(Ok(Step::Stopping)) => return (place(": the server stops\n", follower), false),
            Ok(Err(error)) => {
                let cause = error.cause_text();
                tracing::error!(instance_id = %follower.id, cause, "a stream broke off: {error}");
                return (Bytes::new(), false);
            }
        }
        if !out.is_empty() {
            return (out.into(), true);
        }
        if Instant::now() >= deadline {
            return (place(": keep-alive\n", follower), true);
        }
    }
}

/// A comment, and the place to come back to, which what was filtered out has moved.
fn place(comment: &str, follower: &Follower) -> Bytes {
    format!("{comment}id: {}\n\n", follower.cursor).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_one_line_of_data_whatever_the_agent_wrote() {
        let raw = serde_json::value::RawValue::from_string("{\"a\":\r\n\"\\n\"}".to_owned()).unwrap();
        let mut out = Vec::new();
        frame(&mut out, 7, "update", &raw);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "id: 7\nevent: update\ndata: {\"a\":  \"\\n\"}\n\n"
        );
    }

    #[test]
    fn a_header_is_a_number_or_refused() {
        let start = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(LAST_EVENT_ID, value.parse().unwrap());
            Start::of_header(&headers).map(|start| start.map(|start| start.after))
        };
        assert_eq!(start("12").unwrap(), Some(12));
        assert_eq!(start("").unwrap(), None);
        assert!(start("-1").is_err() && start("a").is_err() && start("99999999999999999999").is_err());
        assert_eq!(
            Start::of_header(&HeaderMap::new()).unwrap().map(|s| s.after),
            None
        );
    }
}
