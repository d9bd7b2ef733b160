//! The kandev service and its command line.

pub mod cli;
pub mod config;
pub mod database;
pub mod edge;
pub mod error;
pub mod metrics;
pub mod private_postgres;
pub mod routes;
pub mod secret_key;
pub mod serve;
pub mod state;
pub mod telemetry;

pub use routes::router;
pub use state::AppState;

use std::process::ExitCode;

/// Runs one command. Its error, if any, is printed to stderr; the exit code is 2 for a bad configuration, 1 for any
/// other failure.
pub async fn run(cli: cli::Cli, environment: config::Environment) -> ExitCode {
    cli::run(cli, &environment).await
}
