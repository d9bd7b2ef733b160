//! The rows, a module for those that are measured the same way.

mod history;
mod latency;
mod launch;
mod memory;
mod restart;
mod throughput;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use kandev_runtime::ContainerRuntime as _;
use kandev_runtime::docker::DockerRuntime;

use crate::bare::Bare;
use crate::database::{self, Database};
use crate::kandev::{self, Kandev};
use crate::report::{Report, Row};

/// What every row needs.
pub(crate) struct Bench {
    kandev: PathBuf,
    cluster: String,
    bare: Bare,
}

/// In the order in which they run.
const ROWS: [&str; 8] = ["B4", "B1", "B9", "B2", "B3", "B5", "B6", "B7"];

impl Bench {
    /// Nothing is made yet.
    pub(crate) fn new(
        kandev: PathBuf,
        cluster: String,
        image: String,
        engine: Option<String>,
    ) -> Result<Self> {
        Ok(Self {
            kandev,
            cluster,
            bare: Bare {
                runtime: Arc::new(DockerRuntime::connect(engine.as_deref())?),
                owner: format!("kandev-bench-{}", std::process::id()),
                image,
            },
        })
    }

    /// A server with a database of its own.
    async fn server(&self, row: &str) -> Result<Kandev> {
        let name = format!("{}-{}", self.bare.owner, row.to_lowercase());
        let database = Database::create(&self.cluster, &name).await?;
        Kandev::start(&self.kandev, &self.bare.owner, &self.bare.image, database).await
    }
}

/// Runs the wanted rows; all when none is named.
pub(crate) async fn run(bench: &Bench, wanted: &[String]) -> Result<Report> {
    for name in wanted {
        ensure!(
            ROWS.contains(&name.as_str()),
            "there is no row {name}, only {ROWS:?}"
        );
    }
    let wants = |name: &str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name);
    let mut machine = vec![
        describe_machine(bench).await?,
        database::describe(&bench.cluster).await?,
        format!("load at the begin: {}", load()),
    ];
    bench.bare.prepare().await?;
    let rows = measure(bench, &wants).await;
    let removed = kandev::remove_all(&bench.bare.owner);
    let mut rows = rows?;
    removed?;
    machine.push(format!("load at the end: {}", load()));
    rows.sort_by_key(|row| row.name);
    Ok(Report { machine, rows })
}

async fn measure(bench: &Bench, wants: &impl Fn(&str) -> bool) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    if wants("B4") {
        say("B4: launches");
        rows.extend(launch::b4(bench).await.context("B4")?);
    }
    if wants("B1") || wants("B9") {
        say("B1, B9: one agent floods");
        let both = throughput::b1_b9(bench).await.context("B1")?;
        rows.extend(both.into_iter().filter(|row| wants(row.name)));
    }
    if wants("B2") {
        say("B2: twenty agents flood");
        rows.push(throughput::b2(bench).await.context("B2")?);
    }
    if wants("B3") {
        say("B3: the time from an agent to a reader");
        rows.extend(latency::b3(bench).await.context("B3")?);
    }
    if wants("B5") {
        say("B5: fifty agents lose their server");
        rows.push(restart::b5(bench).await.context("B5")?);
    }
    if wants("B6") {
        say("B6: a hundred idle agents");
        rows.extend(memory::b6(bench).await.context("B6")?);
    }
    if wants("B7") {
        say("B7: ten million events");
        rows.extend(history::b7(bench).await.context("B7")?);
    }
    Ok(rows)
}

async fn describe_machine(bench: &Bench) -> Result<String> {
    let engine = bench.bare.runtime.ping().await?;
    let cores = std::thread::available_parallelism()?;
    let mut text = format!("machine: {cores} cores, engine {}", engine.version);
    if let Ok(info) = std::fs::read_to_string("/proc/meminfo")
        && let Some(kib) = info
            .split_whitespace()
            .nth(1)
            .and_then(|kib| kib.parse::<u64>().ok())
    {
        let _ = write!(text, ", {} GiB", kib >> 20);
    }
    Ok(text)
}

fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

/// Tells what goes on.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "==> {text}");
}
