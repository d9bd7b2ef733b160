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
use crate::error::Result;
use crate::types::{ContainerId, LogsFrom, OutputStream};

pub(super) async fn logs_from(client: &Client, id: &ContainerId, from: LogsFrom) -> Result<OutputStream> {
    refuse_tty(client, id).await?;
    let mut target = format!(
        "/containers/{}/logs?stdout=1&stderr=1&follow={}",
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
    let reader = StreamReader::new(body.map_err(io::Error::other));
    Ok(Frames::new(reader, &bytes::Bytes::new()).boxed())
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
