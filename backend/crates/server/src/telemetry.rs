//! Logs on stderr, as text or as JSON.
//!
//! Request and instance ids are fields of the spans around the work, so that every line has them.

use tracing_subscriber::EnvFilter;

use crate::config::{Config, LogFormat};

/// Starts logging; called once per process.
pub fn start(config: &Config) -> anyhow::Result<()> {
    let logs = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_new(&config.log)?)
        .with_writer(std::io::stderr)
        .with_target(true);
    let started = match config.log_format {
        LogFormat::Text => {
            // Colours only for people: in a file they are noise.
            logs.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
                .try_init()
        }
        LogFormat::Json => logs.json().flatten_event(true).with_span_list(false).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("logging cannot start: {error}"))
}
