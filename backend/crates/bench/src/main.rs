//! `make bench`: the rows of the benchmark, each against a baseline of the same run, in one table and one JSON file.
//!
//! What a row means, and why it is measured the way it is, stands at its module under [`rows`].

mod bare;
mod database;
mod kandev;
mod report;
mod rows;
mod sse;

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Parser;

use crate::rows::Bench;

/// What to measure.
#[derive(Debug, Parser)]
struct Arguments {
    /// The release binary of the server.
    #[arg(long)]
    kandev: PathBuf,
    /// A PostgreSQL cluster in which databases may be made and dropped.
    #[arg(long)]
    cluster: String,
    /// Where the figures go as JSON.
    #[arg(long)]
    json: PathBuf,
    /// The mock agent's image.
    #[arg(long, env = "MOCK_IMAGE", default_value = "kandev/mock-agent:latest")]
    image: String,
    /// Only these rows, as `B1`; all when none.
    rows: Vec<String>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let bench = Bench::new(
        arguments.kandev,
        arguments.cluster,
        arguments.image,
        std::env::var("DOCKER_HOST").ok(),
    )?;
    let wanted: Vec<String> = arguments.rows.iter().map(|row| row.to_uppercase()).collect();
    let report = rows::run(&bench, &wanted).await?;
    std::io::stdout().write_all(report.table().as_bytes())?;
    let json = serde_json::to_string_pretty(&report)?;
    std::fs::write(&arguments.json, json + "\n")
        .with_context(|| format!("{} cannot be written", arguments.json.display()))
}
