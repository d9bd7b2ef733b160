//! Keeps the postmaster running.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::binaries::Binaries;
use super::cluster;
use super::place::Place;
use super::postmaster::Postmaster;

const FIRST_DELAY: Duration = Duration::from_millis(250);
const LAST_DELAY: Duration = Duration::from_secs(30);
/// One that ran this long was healthy: the next delay is the first again.
const HEALTHY: Duration = Duration::from_mins(1);

/// Starts it again whenever it ends, until told to stop, and then stops it.
pub(super) async fn supervise(
    place: Place,
    binaries: Binaries,
    mut postmaster: Postmaster,
    stopping: CancellationToken,
) {
    let mut delay = FIRST_DELAY;
    loop {
        let since = Instant::now();
        tokio::select! {
            () = stopping.cancelled() => return postmaster.stop().await,
            status = postmaster.ended() => {
                let status = status.map_or_else(|| "unknown status".to_owned(), |status| status.to_string());
                tracing::error!(status, log = %place.log.display(), "PostgreSQL ended; starting it again");
            }
        }
        if since.elapsed() >= HEALTHY {
            delay = FIRST_DELAY;
        }
        postmaster = loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                () = tokio::time::sleep(delay) => {}
            }
            delay = (delay * 2).min(LAST_DELAY);
            match cluster::start(&place, &binaries) {
                Ok(started) => break started,
                Err(error) => tracing::error!(%error, "PostgreSQL does not start"),
            }
        };
    }
}
