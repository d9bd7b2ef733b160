//! B5: the server of fifty agents in mid-turn is killed and started again at once.
//!
//! An agent counts as attached when its reader, which has come back by itself, gets an update that is fresh: written at
//! most [`FRESH`] before, after the new server was started. Every reader checks over the restart that nothing is lost
//! and nothing comes twice.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Bench;
use super::latency::age;
use crate::kandev::Kandev;
use crate::report::{Row, Target};
use crate::sse::{Reader, Seen};

const AGENTS: usize = 50;
const UPDATES: u64 = 250;
const PROMPT: &str = "/clock 250 100";
const FRESH: Duration = Duration::from_millis(200);
const LIMIT: Duration = Duration::from_mins(3);

/// B5.
pub(super) async fn b5(bench: &Bench) -> Result<Row> {
    let mut server = bench.server("B5").await?;
    let ids = launch_all(&server, AGENTS).await?;
    let (started, restart) = watch::channel(None);
    let (counted, mut counts) = watch::channel(0);
    let mut readers = JoinSet::new();
    for id in &ids {
        let reader = Persistent {
            http: server.http.clone(),
            base: server.base.clone(),
            id: id.clone(),
            restart: restart.clone(),
            counted: counted.clone(),
        };
        readers.spawn(async move { timeout(LIMIT, reader.run()).await.context("it takes too long")? });
    }
    for id in &ids {
        server.prompt(id, PROMPT).await?;
    }
    // In mid-turn: each has said something for a while.
    counts.wait_for(|count| *count >= 20 * AGENTS).await?;
    server.kill().await?;
    server.start_again()?;
    let begun = Instant::now();
    started.send_replace(Some(begun));
    let mut slowest = Duration::ZERO;
    while let Some(done) = readers.join_next().await {
        slowest = slowest.max(done??.context("an agent was never live again")? - begun);
    }
    server.end().await?;
    let row = Row::new(
        "B5",
        "50 agents in mid-turn, kill -9: all attached after",
        "s",
        None,
        slowest.as_secs_f64(),
        Target::AtMost(3.0),
    );
    Ok(row.noting("nothing lost, nothing twice, every turn ended"))
}

/// Launches so many agents, a few at a time.
pub(super) async fn launch_all(server: &Kandev, count: usize) -> Result<Vec<String>> {
    let workspace = server.workspace("crowd")?;
    let mut ids = Vec::new();
    while ids.len() < count {
        let some = (count - ids.len()).min(5);
        ids.extend(futures_util::future::try_join_all((0..some).map(|_| server.launch(&workspace))).await?);
    }
    Ok(ids)
}

/// A reader that comes back where it was, whatever happens to the server.
struct Persistent {
    http: reqwest::Client,
    base: String,
    id: String,
    /// When the server was started again.
    restart: watch::Receiver<Option<Instant>>,
    /// Updates of all readers.
    counted: watch::Sender<usize>,
}

impl Persistent {
    /// Reads the turn to its end. When the first fresh update came from the new server.
    async fn run(self) -> Result<Option<Instant>> {
        let (mut seq, mut updates, mut live) = (0, 0, None);
        loop {
            let Ok(mut reader) = Reader::open(&self.http, &self.base, &self.id, seq, updates).await else {
                sleep(Duration::from_millis(20)).await;
                continue;
            };
            let restart = *self.restart.borrow();
            let read = reader.read(|seen| {
                let Seen::Update(update) = seen else {
                    return ControlFlow::Break(());
                };
                self.counted.send_modify(|count| *count += 1);
                let age = age(update.text);
                // Fresh, and not from before the start.
                if restart.is_some_and(|restart| age / 1e3 < restart.elapsed().as_secs_f64())
                    && age < FRESH.as_secs_f64() * 1e3
                {
                    live.get_or_insert_with(Instant::now);
                }
                ControlFlow::Continue(())
            });
            match read.await {
                Ok(true) => {
                    ensure!(
                        reader.updates == UPDATES,
                        "the turn of {} ended after {}",
                        self.id,
                        reader.updates
                    );
                    return Ok(live);
                }
                // What is wrong with the events is no broken connection.
                Err(error) if !error.is::<reqwest::Error>() => return Err(error),
                Ok(false) | Err(_) => (seq, updates) = (reader.seq, reader.updates),
            }
        }
    }
}
