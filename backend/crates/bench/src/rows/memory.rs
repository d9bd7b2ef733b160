//! B6: resident memory of the idle server, and what each of a hundred idle attached agents adds.

use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use super::Bench;
use super::restart::launch_all;
use crate::report::{Row, Target};

const AGENTS: usize = 100;
/// Until connections that are not needed are closed, and what was freed is given back.
const SETTLE: Duration = Duration::from_secs(5);

/// B6.
pub(super) async fn b6(bench: &Bench) -> Result<Vec<Row>> {
    let server = bench.server("B6").await?;
    sleep(SETTLE).await;
    let idle = server.resident_kib()?;
    launch_all(&server, AGENTS).await?;
    sleep(SETTLE).await;
    let full = server.resident_kib()?;
    server.end().await?;
    let each = full.saturating_sub(idle) as f64 / AGENTS as f64;
    Ok(vec![
        Row::new(
            "B6",
            "idle server",
            "MiB",
            None,
            idle as f64 / 1024.0,
            Target::AtMost(30.0),
        ),
        Row::new(
            "B6",
            "each of 100 idle attached agents",
            "KiB",
            None,
            each,
            Target::AtMost(64.0),
        )
        .noting(format!("{:.1} MiB with all of them", full as f64 / 1024.0)),
    ])
}
