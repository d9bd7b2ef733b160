//! B1, B2: floods of updates, stored and received, against a bare reader that discards. B9: what the stored ones take.
//!
//! The clock starts before the prompt and stops when the last reader has its last update. The readers of kandev check
//! every event's number and every update's own: one lost, repeated or out of order ends the benchmark. Afterwards the
//! database must have them all. Bare and kandev take turns on agents that are both there all the time.

use std::ops::ControlFlow;
use std::time::Instant;

use anyhow::{Result, ensure};
use sqlx::PgPool;
use tokio::task::JoinSet;

use super::Bench;
use crate::bare::BareAgent;
use crate::kandev::Kandev;
use crate::report::{Row, Target, median};
use crate::sse::{Reader, Seen};

const ROUNDS: usize = 5;
/// Of an update's text.
const BYTES: usize = 200;

/// B1 and B9.
pub(super) async fn b1_b9(bench: &Bench) -> Result<Vec<Row>> {
    let server = bench.server("B1").await?;
    let rate = flood(bench, &server, 1, 200_000).await?;
    let rows = vec![
        rate.row("B1", "1 agent, 200,000 updates, 1 reader"),
        storage(&server.database.pool).await?,
    ];
    server.end().await?;
    Ok(rows)
}

/// B2.
pub(super) async fn b2(bench: &Bench) -> Result<Row> {
    let server = bench.server("B2").await?;
    let rate = flood(bench, &server, 20, 10_000).await?;
    server.end().await?;
    Ok(rate.row("B2", "20 agents, 10,000 updates each, 20 readers"))
}

/// Updates per second, and what kandev's cost.
struct Rate {
    bare: f64,
    kandev: f64,
    /// Of the ratios of each round.
    ratio: f64,
    cpu_micros: f64,
}

impl Rate {
    fn row(&self, name: &'static str, what: &str) -> Row {
        let target = Target::RateAtLeast(0.5);
        Row::new(name, what, "updates/s", Some(self.bare), self.kandev, target).noting(format!(
            "median of the {ROUNDS} rounds' ratios {:.2}; {:.1} µs of kandev's CPU per update",
            self.ratio, self.cpu_micros
        ))
    }
}

async fn flood(bench: &Bench, server: &Kandev, agents: usize, updates: usize) -> Result<Rate> {
    let workspace = server.workspace("flood")?;
    let mut bare = Vec::new();
    let mut readers = Vec::new();
    for n in 0..agents {
        let agent = bench.bare.launch(&format!("flood-{n}"), &workspace).await?;
        bare.push(agent.greeted().await?);
        let id = server.launch(&workspace).await?;
        let reader = Reader::open(&server.http, &server.base, &id, 0, 0).await?;
        readers.push((id, reader));
    }
    let prompt = format!("/flood {updates} {BYTES} prose");
    let total = (agents * updates) as f64;
    let (mut of_bare, mut of_kandev, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let mut cpu = 0.0;
    for _ in 0..ROUNDS {
        let seconds = flood_bare(&mut bare, &prompt, updates).await?;
        of_bare.push(total / seconds);
        let before = server.cpu_seconds()?;
        let seconds = flood_kandev(server, &mut readers, &prompt, updates).await?;
        cpu += server.cpu_seconds()? - before;
        of_kandev.push(total / seconds);
        ratios.extend(
            of_kandev
                .last()
                .zip(of_bare.last())
                .map(|(kandev, bare)| kandev / bare),
        );
    }
    for (id, reader) in &readers {
        stored(&server.database.pool, id, reader.seq).await?;
    }
    for agent in bare {
        agent.remove().await?;
    }
    Ok(Rate {
        bare: median(of_bare),
        kandev: median(of_kandev),
        ratio: median(ratios),
        cpu_micros: cpu * 1e6 / (total * ROUNDS as f64),
    })
}

/// Seconds.
async fn flood_bare(agents: &mut Vec<BareAgent>, prompt: &str, updates: usize) -> Result<f64> {
    let begun = Instant::now();
    let mut readers = JoinSet::new();
    for mut agent in agents.drain(..) {
        let prompt = prompt.to_owned();
        readers.spawn(async move {
            agent.prompt(&prompt).await?;
            agent.discard(updates).await?;
            anyhow::Ok((agent, Instant::now()))
        });
    }
    let mut last = begun;
    while let Some(done) = readers.join_next().await {
        let (agent, at) = done??;
        last = last.max(at);
        agents.push(agent);
    }
    for agent in agents {
        // The prompt's answer.
        agent.discard(1).await?;
    }
    Ok((last - begun).as_secs_f64())
}

/// Seconds.
async fn flood_kandev(
    server: &Kandev,
    readers: &mut Vec<(String, Reader)>,
    prompt: &str,
    updates: usize,
) -> Result<f64> {
    let begun = Instant::now();
    let mut reading = JoinSet::new();
    let mut prompts = Vec::new();
    for (id, mut reader) in readers.drain(..) {
        prompts.push(server.prompt_owned(&id, prompt));
        reading.spawn(async move {
            let mut left = updates;
            let read = reader.read(|seen| {
                left -= usize::from(matches!(seen, Seen::Update(_)));
                if left == 0 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
            ensure!(read.await?, "the stream of {id} ended early");
            anyhow::Ok((id, reader, Instant::now()))
        });
    }
    futures_util::future::try_join_all(prompts).await?;
    let mut last = begun;
    while let Some(done) = reading.join_next().await {
        let (id, mut reader, at) = done??;
        last = last.max(at);
        reader.until_turn_end().await?;
        readers.push((id, reader));
    }
    Ok((last - begun).as_secs_f64())
}

/// Fails unless the database has every event up to this one, each once.
async fn stored(pool: &PgPool, id: &str, seq: i64) -> Result<()> {
    let (events, last): (i64, i64) = sqlx::query_as(
        "SELECT sum(last_seq - first_seq + 1)::bigint, max(last_seq) FROM journal WHERE instance_id = $1::text::uuid",
    )
    .bind(id)
    .fetch_one(pool)
    .await?;
    ensure!(
        events == last && last >= seq,
        "of {seq} events of {id} {events} are stored, up to {last}"
    );
    Ok(())
}

async fn storage(pool: &PgPool) -> Result<Row> {
    let (bytes, events): (i64, i64) = sqlx::query_as(
        "SELECT pg_total_relation_size('journal'), sum(last_seq - first_seq + 1)::bigint FROM journal",
    )
    .fetch_one(pool)
    .await?;
    let each = bytes as f64 / events as f64;
    let target = Target::TimesAtMost(2.0);
    let row = Row::new(
        "B9",
        "storage per update of 200 bytes, after B1",
        "bytes",
        Some(BYTES as f64),
        each,
        target,
    );
    Ok(row.noting(format!(
        "{events} events, {} MiB with indexes; text that packs like an agent's",
        bytes >> 20
    )))
}
