//! The engine's own log of a container's output.
//!
//! Source: `GET /containers/{id}/logs` of the Docker Engine API reference. bollard's call takes a point in time in whole
//! seconds only, as an i32.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use futures_util::{StreamExt, TryStreamExt};
use http_body_util::BodyDataStream;
use tokio_util::io::StreamReader;

use super::attach::refuse_tty;
use super::client::{Client, segment};
use super::stdcopy::Frames;
use crate::error::{Result, RuntimeError};
use crate::types::{ContainerId, LogEntries, LogEntry, LogsFrom, OutputChunk, OutputStream};

pub(super) async fn logs_from(client: &Client, id: &ContainerId, from: LogsFrom) -> Result<OutputStream> {
    let reader = read(client, id, from, "").await?;
    Ok(Frames::new(reader, &bytes::Bytes::new()).boxed())
}

/// The engine puts the time before each frame, and a space.
pub(super) async fn entries(
    client: &Client,
    id: &ContainerId,
    since: Option<SystemTime>,
) -> Result<LogEntries> {
    let reader = read(client, id, LogsFrom { since, follow: false }, "&timestamps=1").await?;
    Ok(Frames::whole(reader).map(|frame| entry(frame?)).boxed())
}

fn entry(frame: OutputChunk) -> Result<LogEntry> {
    let space = frame.bytes.iter().position(|b| *b == b' ');
    let time = space.and_then(|end| std::str::from_utf8(&frame.bytes[..end]).ok());
    let at = time.and_then(|time| chrono::DateTime::parse_from_rfc3339(time).ok());
    match (at, space) {
        (Some(at), Some(space)) => Ok(LogEntry {
            channel: frame.channel,
            at: at.into(),
            bytes: frame.bytes.slice(space + 1..),
        }),
        _ => Err(RuntimeError::Broken(
            "a line of the engine's log has no time".to_owned(),
        )),
    }
}

async fn read(
    client: &Client,
    id: &ContainerId,
    from: LogsFrom,
    more: &str,
) -> Result<impl tokio::io::AsyncRead + Send + Unpin + use<>> {
    refuse_tty(client, id).await?;
    let mut target = format!(
        "/containers/{}/logs?stdout=1&stderr=1&follow={}{more}",
        segment(&id.0),
        u8::from(from.follow)
    );
    if let Some(since) = from.since {
        target.push_str("&since=");
        target.push_str(&timestamp(since));
    }
    let target = &target;
    let answer = client
        .make(
            client.on("logs", id),
            |engine| async move { engine.get(target).await },
        )
        .await?;
    let body = BodyDataStream::new(answer.into_body());
    Ok(StreamReader::new(body.map_err(io::Error::other)))
}

/// Seconds since 1970 with a fraction, as the engine reads them.
fn timestamp(time: SystemTime) -> String {
    let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}.{:09}", since_epoch.as_secs(), since_epoch.subsec_nanos())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_point_in_time_keeps_its_nanoseconds() {
        assert_eq!(
            timestamp(UNIX_EPOCH + Duration::new(1_700_000_000, 5)),
            "1700000000.000000005"
        );
        assert_eq!(timestamp(UNIX_EPOCH - Duration::from_secs(1)), "0.000000000");
    }
}
