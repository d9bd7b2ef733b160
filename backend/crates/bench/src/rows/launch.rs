//! B4: `POST /agents/launch` until the session is ready, against create, attach, start, `initialize` and `session/new` by
//! hand. The two take turns, so that the machine's noise hits both.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use futures_util::future::try_join_all;

use super::Bench;
use crate::kandev::Kandev;
use crate::report::{Row, Target, median};

const ROUNDS: usize = 20;
const AT_ONCE: usize = 10;
const ROUNDS_AT_ONCE: usize = 3;

/// B4.
pub(super) async fn b4(bench: &Bench) -> Result<Vec<Row>> {
    let server = bench.server("B4").await?;
    let workspace = server.workspace("launch")?;
    // The first of each pays for caches.
    round(bench, &server, &workspace, 1).await?;
    let mut rows = Vec::new();
    for (at_once, rounds) in [(1, ROUNDS), (AT_ONCE, ROUNDS_AT_ONCE)] {
        let mut times = Vec::new();
        for _ in 0..rounds {
            times.push(round(bench, &server, &workspace, at_once).await?);
        }
        let hand = median(times.iter().map(|(hand, _)| *hand));
        let kandev = median(times.iter().map(|(_, kandev)| *kandev));
        let what = if at_once == 1 {
            format!("launch to session ready, median of {rounds}")
        } else {
            format!("{at_once} at once, the slowest, median of {rounds}")
        };
        rows.push(Row::new(
            "B4",
            what,
            "ms",
            Some(hand),
            kandev,
            Target::TimesAtMost(1.1),
        ));
    }
    server.end().await?;
    Ok(rows)
}

/// Milliseconds until the last of so many at once is ready: by hand, and by kandev.
async fn round(bench: &Bench, server: &Kandev, workspace: &Path, at_once: usize) -> Result<(f64, f64)> {
    let names: Vec<String> = (0..at_once).map(|n| format!("launch-{n}")).collect();
    let begun = Instant::now();
    let agents = try_join_all(names.iter().map(|name| bench.bare.launch(name, workspace))).await?;
    let hand = begun.elapsed().as_secs_f64() * 1e3;
    for agent in agents {
        agent.remove().await?;
    }
    let begun = Instant::now();
    let ids = try_join_all((0..at_once).map(|_| server.launch(workspace))).await?;
    let kandev = begun.elapsed().as_secs_f64() * 1e3;
    for id in ids {
        server.stop(&id).await?;
    }
    Ok((hand, kandev))
}
