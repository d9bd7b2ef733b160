//! Container runtimes behind one trait. Nothing Docker-shaped leaves this crate, and no ACP enters it.

pub mod docker;
pub mod error;
pub mod helper;
pub mod types;

use async_trait::async_trait;
use bytes::Bytes;

pub use error::{FileError, Result, RuntimeError};
pub use types::*;

/// What kandev needs of a container engine.
///
/// Every call has a time limit of its own and answers [`RuntimeError::Timeout`] when it passes, since an engine
/// can hang on one container and serve the others.
#[async_trait]
pub trait ContainerRuntime: Send + Sync + 'static {
    /// Is the engine there, and what is it?
    async fn ping(&self) -> Result<EngineInfo>;

    /// Creates a persistent volume with these labels, if it is not there yet.
    async fn ensure_volume(&self, name: &str, labels: &Labels) -> Result<()>;

    /// Creates a container without starting it.
    async fn create(&self, spec: &ContainerSpec) -> Result<ContainerId>;

    /// Attaches to stdin, stdout and stderr. Called before [`start`](Self::start), so that nothing is missed; may be
    /// called again later. A container with a TTY is refused, since its output has no frames.
    async fn attach(&self, id: &ContainerId) -> Result<Attachment>;

    /// Begins to wait for the end. Called before [`start`](Self::start): the returned watch gives the status even of
    /// an agent that ends at once. Of a container that has ended already it gives the status, too.
    async fn wait(&self, id: &ContainerId) -> Result<ExitWatch>;

    /// Starts a created container.
    async fn start(&self, id: &ContainerId) -> Result<()>;

    /// How it stands.
    async fn inspect(&self, id: &ContainerId) -> Result<ContainerState>;

    /// A sign that the engine keeps with a running container as long as the engine itself runs: which [`Self::has_sign`]
    /// does not know any more, it has restarted since.
    async fn run_sign(&self, id: &ContainerId) -> Result<RunSign>;

    /// Whether the engine's run is still the one that gave the sign.
    async fn has_sign(&self, id: &ContainerId, sign: &RunSign) -> Result<bool>;

    /// Runs a process inside.
    async fn exec(&self, id: &ContainerId, spec: &ExecSpec) -> Result<Exec>;

    /// Reads a regular file inside, resolving the path there, up to `limit` bytes.
    async fn read_file(&self, id: &ContainerId, path: &str, limit: u64) -> Result<Bytes>;

    /// Writes a regular file inside, through a symlink if it is one, making no parent directories. An existing file keeps
    /// its mode and owner. Not atomic: a reader inside can meet no file, or a part of it.
    async fn write_file(&self, id: &ContainerId, path: &str, contents: Bytes) -> Result<()>;

    /// Puts a program there that everybody inside may run, together with the one directory that it is in.
    async fn install(&self, id: &ContainerId, path: &str, program: Bytes) -> Result<()>;

    /// The engine's own log of the output, from a point, followed or not.
    async fn logs_from(&self, id: &ContainerId, from: LogsFrom) -> Result<OutputStream>;

    /// What the engine's own log has, entry by entry with its time, from a time on (that included).
    async fn log_entries(&self, id: &ContainerId, since: Option<std::time::SystemTime>)
    -> Result<LogEntries>;

    /// Freezes its processes. Fine if they are.
    async fn pause(&self, id: &ContainerId) -> Result<()>;

    /// Lets them go on. Fine if they do.
    async fn unpause(&self, id: &ContainerId) -> Result<()>;

    /// Asks it to end (SIGTERM), and kills it after `grace`. Fine if it has ended.
    async fn stop(&self, id: &ContainerId, grace: std::time::Duration) -> Result<()>;

    /// Kills it. Fine if it has ended.
    async fn kill(&self, id: &ContainerId) -> Result<()>;

    /// Removes it, running or not. Fine if it is gone.
    async fn remove(&self, id: &ContainerId) -> Result<()>;

    /// All containers of this deployment, ended ones too.
    async fn list(&self, owner: &str) -> Result<Vec<ContainerSummary>>;
}
