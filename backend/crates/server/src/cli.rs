//! The command line.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use crate::config::{Config, ConfigError, Environment, Flags};
use crate::{database, routes, serve, telemetry};

/// Runs AI coding agents in containers
#[derive(Parser)]
#[command(name = "kandev", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the service
    Serve {
        #[command(flatten)]
        settings: Settings,
        /// When the service ends, end its agents too. Without it they run on, and the next start takes them up
        #[arg(long, env = "KANDEV_STOP_AGENTS")]
        stop_agents: bool,
    },
    /// Bring the database's schema up to date, and end
    Migrate(Settings),
    /// Look at the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print the OpenAPI document
    Openapi,
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Print every setting with its source, secrets redacted
    Check(Settings),
}

/// A flag beats a variable beats the file beats the default
#[derive(Args)]
struct Settings {
    /// Configuration file in TOML [env: KANDEV_CONFIG]
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    #[command(flatten)]
    flags: Flags,
}

impl Settings {
    fn load(&self, environment: &Environment) -> Result<Config, ConfigError> {
        Config::load(&self.flags, self.config.as_deref(), environment)
    }
}

pub(crate) async fn run(cli: Cli, environment: &Environment) -> ExitCode {
    let Err(error) = run_command(cli.command, environment).await else {
        return ExitCode::SUCCESS;
    };
    // Nothing is left to try if stderr is closed.
    let _ = writeln!(std::io::stderr(), "kandev: {error:#}");
    if error.is::<ConfigError>() {
        ExitCode::from(2)
    } else {
        ExitCode::FAILURE
    }
}

async fn run_command(command: Command, environment: &Environment) -> Result<()> {
    match command {
        Command::Serve {
            settings,
            stop_agents,
        } => {
            let config = settings.load(environment)?;
            telemetry::start(&config)?;
            serve::serve(config, stop_agents).await
        }
        Command::Migrate(settings) => {
            let config = settings.load(environment)?;
            telemetry::start(&config)?;
            let database = database::Database::open(&config).await?;
            let migrated = database::migrate(database.pool()).await;
            database.close().await;
            migrated
        }
        Command::Config(ConfigCommand::Check(settings)) => print(&settings.load(environment)?.report_text()),
        Command::Openapi => print(&routes::openapi::document_json()),
    }
}

fn print(text: &str) -> Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        // The reader, such as `head`, has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}
