//! What can go wrong with an engine, in kandev's words.

use std::time::Duration;

/// The result of a runtime call.
pub type Result<T, E = RuntimeError> = std::result::Result<T, E>;

/// A runtime error.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The engine does not answer.
    #[error("the container engine does not answer: {0}")]
    Unavailable(String),
    /// The engine did not answer this call in time.
    #[error("the container engine did not answer '{operation}' within {limit:?}")]
    Timeout {
        /// Which call.
        operation: &'static str,
        /// The time it had.
        limit: Duration,
    },
    /// The engine has no such image.
    #[error("the container engine has no image '{0}'")]
    ImageNotFound(String),
    /// The engine has no such container.
    #[error("the container engine has no container '{0}'")]
    ContainerNotFound(String),
    /// The container's user may not enter its working directory.
    #[error("the workspace cannot be used: {0}")]
    NoAccess(String),
    /// The container has a TTY, so its output cannot be told apart.
    #[error("container '{0}' has a TTY and cannot be attached to")]
    TtyNotSupported(String),
    /// The engine refused.
    #[error("the container engine refused '{operation}': {message}")]
    Refused {
        /// Which call.
        operation: &'static str,
        /// HTTP status of the engine's answer, where it has one.
        status: Option<u16>,
        /// The engine's words.
        message: String,
    },
    /// The connection to the engine broke in the middle.
    #[error("the connection to the container engine broke: {0}")]
    Broken(String),
    /// A file inside the container.
    #[error("{path}: {error}")]
    File {
        /// Its path.
        path: String,
        /// What is wrong.
        error: FileError,
    },
}

/// What the system says when there is no room left on a disk.
const NO_SPACE: [&str; 2] = ["no space left on device", "disk quota exceeded"];

impl RuntimeError {
    /// True if the engine may well answer the same call later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unavailable(_) | Self::Timeout { .. } | Self::Broken(_) => true,
            // The engine hands the words of its system on: its disk is full.
            Self::Refused { message, .. } => NO_SPACE.iter().any(|words| message.contains(words)),
            _ => false,
        }
    }
}

/// What is wrong with a file inside a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// Not there.
    #[error("no such file or directory")]
    NotFound,
    /// Not a regular file.
    #[error("not a regular file")]
    NotAFile,
    /// Larger than the caller's limit.
    #[error("larger than the limit of {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: u64,
    },
}
