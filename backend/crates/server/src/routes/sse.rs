//! Streams of server-sent events: how what a reader follows goes out.

use std::convert::Infallible;
use std::fmt::Display;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use crate::error::{ApiError, ApiResult};

/// The header by which a reader whose connection broke says where it was, as callers know it.
pub(super) const LAST_EVENT_ID: &str = "Last-Event-ID";
/// A connection on which nothing happens shows that it is alive so often.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// What a reader gets next.
pub(super) enum Step<Item, Reset> {
    /// These.
    Events(Vec<Item>),
    /// What lay between the place it was at and the one it is at now is not there.
    Reset(Reset),
    /// Nothing more will come.
    Ended,
    /// The server is stopping.
    Stopping,
}

/// Something that is followed from a place on.
pub(super) trait Follow: Send {
    /// What comes.
    type Item: Send;
    /// What there is to say of what does not.
    type Reset: Serialize + Send;

    /// Waits for what comes next. Cancel safe: the place moves only with what is handed over.
    fn next(&mut self) -> impl Future<Output = ApiResult<Step<Self::Item, Self::Reset>>> + Send;

    /// Where a reader that has all that was handed over would come back to.
    fn place(&self) -> impl Display + Send;
}

/// True for callers that expect a stream.
pub(super) fn wants_stream(headers: &HeaderMap) -> bool {
    accepts(headers, "text/event-stream")
}

/// True if that media type is named among those that the caller takes.
pub(super) fn accepts(headers: &HeaderMap, media_type: &str) -> bool {
    let mut accepted = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|v| v.to_str().ok());
    accepted.any(|accept| accept.contains(media_type))
}

/// Where a reader that comes back was, if it says so.
pub(super) fn last_event_id<T: std::str::FromStr>(headers: &HeaderMap) -> ApiResult<Option<T>> {
    let Some(value) = headers.get(LAST_EVENT_ID).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let place = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    place
        .map(Some)
        .ok_or_else(|| ApiError::validation(LAST_EVENT_ID, "is no cursor of this stream"))
}

/// Adds one frame: `id`, `event` and `data`.
pub(super) fn frame(out: &mut Vec<u8>, id: impl Display, event: &str, data: &impl Serialize) {
    out.extend_from_slice(format!("id: {id}\nevent: {event}\ndata: ").as_bytes());
    let start = out.len();
    if serde_json::to_writer(&mut *out, data).is_err() {
        out.truncate(start);
        out.extend_from_slice(b"null");
    }
    // An agent may have a carriage return between two tokens, which would end the line here.
    if [b'\r', b'\n'].iter().any(|end| out[start..].contains(end)) {
        for byte in &mut out[start..] {
            if matches!(*byte, b'\r' | b'\n') {
                *byte = b' ';
            }
        }
    }
    out.extend_from_slice(b"\n\n");
}

/// A response of server-sent events: `first`, then what `write` makes of each event (which may be nothing).
///
/// The body is made as it is read, a page at a time.
pub(super) fn sse<F: Follow + 'static>(
    follower: F,
    first: Vec<u8>,
    write: impl Fn(&mut Vec<u8>, F::Item) + Send + Sync + 'static,
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
async fn next_bytes<F: Follow>(
    follower: &mut F,
    write: &(impl Fn(&mut Vec<u8>, F::Item) + Sync),
) -> (Bytes, bool) {
    let deadline = Instant::now() + KEEP_ALIVE;
    loop {
        let mut out = Vec::new();
        match timeout_at(deadline, follower.next()).await {
            Err(_) => return (comment("keep-alive", follower), true),
            Ok(Ok(Step::Events(events))) => events.into_iter().for_each(|event| write(&mut out, event)),
            Ok(Ok(Step::Reset(reset))) => frame(&mut out, follower.place(), "reset", &reset),
            Ok(Ok(Step::Ended)) => return (comment("the instance has ended", follower), false),
            Ok(Ok(Step::Stopping)) => return (comment("the server stops", follower), false),
            Ok(Err(error)) => {
                let (cause, place) = (error.cause_text(), follower.place().to_string());
                tracing::error!(place, cause, "a stream broke off: {error}");
                return (Bytes::new(), false);
            }
        }
        if !out.is_empty() {
            return (out.into(), true);
        }
        if Instant::now() >= deadline {
            return (comment("keep-alive", follower), true);
        }
    }
}

/// A comment, and the place to come back to, which what was filtered out has moved.
fn comment(text: &str, follower: &impl Follow) -> Bytes {
    format!(": {text}\nid: {}\n\n", follower.place()).into()
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
}
