//! What all WebSockets have in common: who may open one, and how one ends.

use std::time::Duration;

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket};
use axum::http::{HeaderMap, StatusCode, header};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::time::timeout;

use crate::error::{ApiError, ApiResult, ErrorCode};

/// A client that answers none of so many pings is gone.
pub(super) const MAX_MISSED: u32 = 4;
/// What a client gets to take note of the end.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// For a request that is no handshake, or not a good one.
pub(super) fn no_handshake(rejection: WebSocketUpgradeRejection) -> ApiError {
    ApiError::bad_request("this route is a WebSocket: it needs that handshake")
        .status(StatusCode::UPGRADE_REQUIRED)
        .caused_by(rejection)
}

/// A browser asks no one before it lets a page of any site open a WebSocket here, so a page of another origin is refused.
pub(super) fn same_origin(headers: &HeaderMap) -> ApiResult<()> {
    let text = |name| headers.get(name).and_then(|v| v.to_str().ok());
    let Some(origin) = headers.get(header::ORIGIN) else {
        return Ok(());
    };
    let authority = origin
        .to_str()
        .ok()
        .and_then(|origin| origin.split_once("://"))
        .map(|(_, authority)| authority);
    match (authority, text(header::HOST)) {
        (Some(authority), Some(host)) if authority.eq_ignore_ascii_case(host) => Ok(()),
        _ => Err(ApiError::new(
            ErrorCode::Forbidden,
            "pages of another origin may not connect",
        )),
    }
}

/// Closes, and waits until the client has closed too, so that it gets to see why. One that does not take part is cut off.
pub(super) async fn close(
    mut sink: SplitSink<WebSocket, Message>,
    mut source: SplitStream<WebSocket>,
    code: u16,
    reason: &'static str,
) {
    let farewell = async {
        let reason = reason.into();
        let frame = CloseFrame { code, reason };
        if sink.send(Message::Close(Some(frame))).await.is_ok() {
            while let Some(Ok(_)) = source.next().await {}
        }
    };
    let _ = timeout(CLOSE_LIMIT, farewell).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_another_origin_are_refused() {
        let allowed = |origin: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, "localhost:8080".parse().unwrap());
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().unwrap());
            }
            same_origin(&headers).is_ok()
        };
        assert!(allowed(None) && allowed(Some("http://localhost:8080")));
        for other in [
            "http://evil.example",
            "http://localhost:8081",
            "http://localhost",
            "null",
            "",
        ] {
            assert!(!allowed(Some(other)), "{other}");
        }
    }
}
