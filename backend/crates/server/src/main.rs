//! `kandev`: see [`kandev::cli`].

use std::process::ExitCode;

use clap::Parser as _;

#[tokio::main]
async fn main() -> ExitCode {
    kandev::run(
        kandev::cli::Cli::parse(),
        kandev::config::Environment::of_process(),
    )
    .await
}
