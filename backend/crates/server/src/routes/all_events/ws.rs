//! The events of all instances over a WebSocket. Commands go over that of their instance.

use std::sync::atomic::{AtomicU32, Ordering};

use axum::extract::ws::{Message, WebSocket, close_code};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use serde::Serialize;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::follower::{Follower, Reset, Step};
use crate::routes::agents::events::EventView;
use crate::routes::socket::{self, MAX_MISSED};
use crate::routes::sse::{Follow as _, KEEP_ALIVE};

/// Nothing of any length is expected.
pub(super) const MAX_MESSAGE: usize = 64 << 10;

/// What is sent. `cursor` is the place behind it.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Outgoing {
    Event {
        cursor: String,
        event: EventView,
    },
    Reset {
        cursor: String,
        #[serde(flatten)]
        reset: Reset,
    },
    /// While nothing passes the filter.
    Cursor {
        cursor: String,
    },
}

/// Sends what `follower` gives until either side ends it.
pub(super) async fn run(socket: WebSocket, follower: Follower, stopping: CancellationToken) {
    let (mut sink, mut source) = socket.split();
    let missed = AtomicU32::new(0);
    let (code, reason) = tokio::select! {
        end = send(&mut sink, follower, &missed) => end,
        end = listen(&mut source, &missed) => end,
        // A client that does not read must not hold up the end.
        () = stopping.cancelled() => STOPPING,
    };
    socket::close(sink, source, code, reason).await;
}

type End = (u16, &'static str);
const STOPPING: End = (close_code::AWAY, "the server stops");
const FAILED: End = (close_code::ERROR, "something went wrong on our side");
const GONE: End = (close_code::POLICY, "no ping was answered");
const UNASKED: End = (
    close_code::UNSUPPORTED,
    "events only: commands go to /agents/{id}/ws",
);

async fn send(sink: &mut SplitSink<WebSocket, Message>, mut follower: Follower, missed: &AtomicU32) -> End {
    loop {
        let sent = match timeout(KEEP_ALIVE, follower.next()).await {
            Ok(Ok(Step::Events(events))) => send_page(sink, events).await,
            Ok(Ok(Step::Reset(reset))) => {
                let cursor = follower.place().to_string();
                sink.send(text(&Outgoing::Reset { cursor, reset })).await
            }
            Ok(Ok(Step::Ended | Step::Stopping)) => return STOPPING,
            Ok(Err(error)) => {
                let cause = error.cause_text();
                tracing::error!(cause, "a stream broke off: {error}");
                return FAILED;
            }
            Err(_) if missed.fetch_add(1, Ordering::Relaxed) >= MAX_MISSED => return GONE,
            Err(_) => {
                let cursor = follower.place().to_string();
                let fed = sink.feed(text(&Outgoing::Cursor { cursor })).await;
                match fed {
                    Ok(()) => sink.send(Message::Ping(axum::body::Bytes::new())).await,
                    Err(error) => Err(error),
                }
            }
        };
        if sent.is_err() {
            return GONE;
        }
    }
}

async fn send_page(
    sink: &mut SplitSink<WebSocket, Message>,
    events: Vec<(kandev_store::journal::Place, kandev_domain::Event)>,
) -> Result<(), axum::Error> {
    for (place, event) in events {
        let (cursor, event) = (place.to_string(), event.into());
        sink.feed(text(&Outgoing::Event { cursor, event })).await?;
    }
    sink.flush().await
}

fn text(message: &Outgoing) -> Message {
    Message::text(serde_json::to_string(message).unwrap_or_default())
}

/// Notes signs of life, until the client closes or says what it must not.
async fn listen(source: &mut SplitStream<WebSocket>, missed: &AtomicU32) -> End {
    while let Some(Ok(message)) = source.next().await {
        missed.store(0, Ordering::Relaxed);
        if matches!(message, Message::Text(_) | Message::Binary(_)) {
            return UNASKED;
        }
    }
    GONE
}
