//! Log lines of an instance.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::status::named;

/// Where a log line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogStream {
    /// The agent's stdout, where it was no protocol message.
    Stdout,
    /// The agent's stderr.
    Stderr,
    /// kandev itself.
    System,
}
named!(LogStream { Stdout => "stdout", Stderr => "stderr", System => "system" });

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// For a developer.
    Debug,
    /// Ordinary.
    Info,
    /// Worth a look.
    Warn,
    /// Wrong.
    Error,
}
named!(LogLevel { Debug => "debug", Info => "info", Warn => "warn", Error => "error" });

/// How far into a line a level is looked for.
const LEVEL_WINDOW: usize = 80;

impl LogLevel {
    /// The level a line names near its start (`INFO:root:…`, `[warn] …`, `"level":"error"`), else `Info`.
    pub fn guess(line: &str) -> Self {
        let mut end = line.len().min(LEVEL_WINDOW);
        while !line.is_char_boundary(end) {
            end -= 1;
        }
        line[..end]
            .split(|c: char| !c.is_ascii_alphabetic())
            .find_map(|word| match word.to_ascii_lowercase().as_str() {
                "trace" | "debug" => Some(Self::Debug),
                "info" | "notice" => Some(Self::Info),
                "warn" | "warning" => Some(Self::Warn),
                "error" | "err" | "fatal" | "critical" | "panicked" => Some(Self::Error),
                _ => None,
            })
            .unwrap_or(Self::Info)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_guessed_from_the_start_of_a_line() {
        assert_eq!(LogLevel::guess("INFO:root:Received error report"), LogLevel::Info);
        assert_eq!(LogLevel::guess("[2026-01-01] WARNING: hm"), LogLevel::Warn);
        assert_eq!(LogLevel::guess(r#"{"ts":1,"level":"error"}"#), LogLevel::Error);
        assert_eq!(LogLevel::guess("plain"), LogLevel::Info);
        assert_eq!(LogLevel::guess(&"é".repeat(60)), LogLevel::Info);
    }
}
