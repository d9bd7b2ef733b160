//! B3: from an agent's write to a reader's receipt, ten agents at a hundred updates a second.
//!
//! Each update carries the time at which it was written, by the clock that the machine's containers share.

use std::ops::ControlFlow;

use anyhow::{Result, ensure};
use kandev_domain::{Clock as _, SystemClock};
use memchr::memmem;
use tokio::task::JoinSet;

use super::Bench;
use crate::bare::BareAgent;
use crate::kandev::Kandev;
use crate::report::{Row, Target, median, percentile};
use crate::sse::{Reader, Seen, stamp};

const ROUNDS: usize = 3;
const AGENTS: usize = 10;
const UPDATES: usize = 500;
const PROMPT: &str = "/clock 500 10";

/// B3.
pub(super) async fn b3(bench: &Bench) -> Result<Vec<Row>> {
    let server = bench.server("B3").await?;
    let workspace = server.workspace("clock")?;
    let mut bare = Vec::new();
    let mut readers = Vec::new();
    for n in 0..AGENTS {
        let agent = bench.bare.launch(&format!("clock-{n}"), &workspace).await?;
        bare.push(agent.greeted().await?);
        let id = server.launch(&workspace).await?;
        let reader = Reader::open(&server.http, &server.base, &id, 0, 0).await?;
        readers.push((id, reader));
    }
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let of_bare = clock_bare(&mut bare).await?;
        let of_kandev = clock_kandev(&server, &mut readers).await?;
        rounds.push((of_bare, of_kandev));
    }
    for agent in bare {
        agent.remove().await?;
    }
    server.end().await?;
    let at = |percent: f64| {
        let bare = median(
            rounds
                .iter()
                .map(|(bare, _)| percentile(bare.iter().copied(), percent)),
        );
        let kandev = median(
            rounds
                .iter()
                .map(|(_, kandev)| percentile(kandev.iter().copied(), percent)),
        );
        (Some(bare), kandev)
    };
    Ok([("p50", 50.0, 1.0), ("p99", 99.0, 5.0)]
        .into_iter()
        .map(|(name, percent, more)| {
            let (bare, kandev) = at(percent);
            let what = format!("from agent to reader, {AGENTS} agents at 100/s, {name}");
            Row::new("B3", what, "ms", bare, kandev, Target::MoreAtMost(more)).noting(format!(
                "median of {ROUNDS} rounds of {} updates",
                AGENTS * UPDATES
            ))
        })
        .collect())
}

/// Milliseconds since an update was written.
pub(super) fn age(text: &[u8]) -> f64 {
    let now = SystemClock.now().timestamp_micros() as f64;
    now / 1e3 - stamp(text) as f64 / 1e6
}

async fn clock_bare(agents: &mut Vec<BareAgent>) -> Result<Vec<f64>> {
    let mut reading = JoinSet::new();
    for mut agent in agents.drain(..) {
        reading.spawn(async move {
            let mut ages = Vec::with_capacity(UPDATES);
            agent.prompt(PROMPT).await?;
            let text = br#""text":""#;
            let read = agent.read(UPDATES + 1, |line| {
                if let Some(at) = memmem::find(line, text) {
                    ages.push(age(&line[at + text.len()..]));
                }
            });
            read.await?;
            ensure!(ages.len() == UPDATES, "{} updates came", ages.len());
            Ok((agent, ages))
        });
    }
    let mut all = Vec::new();
    while let Some(done) = reading.join_next().await {
        let (agent, ages) = done??;
        agents.push(agent);
        all.extend(ages);
    }
    Ok(all)
}

async fn clock_kandev(server: &Kandev, readers: &mut Vec<(String, Reader)>) -> Result<Vec<f64>> {
    let mut reading = JoinSet::new();
    let mut prompts = Vec::new();
    for (id, mut reader) in readers.drain(..) {
        prompts.push(server.prompt_owned(&id, PROMPT));
        reading.spawn(async move {
            let mut ages = Vec::with_capacity(UPDATES);
            let read = reader.read(|seen| {
                if let Seen::Update(update) = seen {
                    ages.push(age(update.text));
                }
                if ages.len() == UPDATES {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
            ensure!(read.await?, "the stream of {id} ended early");
            reader.until_turn_end().await?;
            Ok((id, reader, ages))
        });
    }
    futures_util::future::try_join_all(prompts).await?;
    let mut all = Vec::new();
    while let Some(done) = reading.join_next().await {
        let (id, reader, ages) = done??;
        readers.push((id, reader));
        all.extend(ages);
    }
    Ok(all)
}
