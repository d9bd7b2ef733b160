//! The words the trait is spoken in.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::stream::BoxStream;
use tokio::io::AsyncWrite;

use crate::error::Result;

/// Labels on a container or volume.
pub type Labels = BTreeMap<String, String>;

/// Marks every container that kandev made.
pub const LABEL_MANAGED: &str = "kandev.managed";
/// Names the deployment it belongs to.
pub const LABEL_OWNER: &str = "kandev.owner";
/// Names its instance.
pub const LABEL_INSTANCE: &str = "kandev.instance_id";
/// Names its task.
pub const LABEL_TASK: &str = "kandev.task_id";
/// Names its agent type.
pub const LABEL_AGENT_TYPE: &str = "kandev.agent_type";

/// The engine's id of a container.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ContainerId(pub String);

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The engine that answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineInfo {
    /// Its version.
    pub version: String,
    /// The API version agreed on.
    pub api_version: String,
}

/// What to mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountSource {
    /// A path of the engine's host.
    Host(String),
    /// A volume by name.
    Volume(String),
}

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// What.
    pub source: MountSource,
    /// Where, absolute, inside.
    pub target: String,
    /// No writing.
    pub read_only: bool,
}

/// Which network it joins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// The engine's default.
    Bridge,
    /// None.
    None,
    /// A named one.
    Named(String),
}

/// A container to be made. `Debug` leaves out the values of `env`.
#[derive(Clone)]
pub struct ContainerSpec {
    /// Unique on the engine.
    pub name: String,
    /// Image reference.
    pub image: String,
    /// In place of the image's entrypoint.
    pub entrypoint: Option<Vec<String>>,
    /// Arguments.
    pub args: Vec<String>,
    /// Environment; values may be secret.
    pub env: BTreeMap<String, String>,
    /// Labels.
    pub labels: Labels,
    /// Working directory inside.
    pub working_dir: String,
    /// Mounts.
    pub mounts: Vec<Mount>,
    /// Memory limit in bytes, swap included.
    pub memory_bytes: u64,
    /// CPU limit in cores.
    pub cpu_cores: f64,
    /// Limit of processes and threads.
    pub pids_limit: u64,
    /// Network.
    pub network: Network,
    /// `uid[:gid]` or name; the image's when none.
    pub user: Option<String>,
    /// Linux capabilities kept.
    pub cap_add: Vec<String>,
    /// Nothing can be written but to mounts; the helper's directory is one.
    pub read_only_root: bool,
    /// Size of one file of the engine's log, in bytes.
    pub log_max_bytes: u64,
    /// How many such files.
    pub log_max_files: u32,
}

impl fmt::Debug for ContainerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContainerSpec")
            .field("name", &self.name)
            .field("image", &self.image)
            .field("env", &self.env.keys())
            .field("mounts", &self.mounts)
            .finish_non_exhaustive()
    }
}

/// Which pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Channel {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A piece of output, as it came: not cut at lines or characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputChunk {
    /// From which pipe.
    pub channel: Channel,
    /// What.
    pub bytes: Bytes,
}

/// Output in order, until the container's pipes close. Not reading it holds the container back.
pub type OutputStream = BoxStream<'static, Result<OutputChunk>>;

/// An entry of the engine's log: a line with its newline, or a piece of a long one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// From which pipe.
    pub channel: Channel,
    /// When the engine had it, by its clock. All pieces of a line have the same time.
    pub at: SystemTime,
    /// What.
    pub bytes: Bytes,
}

/// Entries in order, until the log's end.
pub type LogEntries = BoxStream<'static, Result<LogEntry>>;

/// A container's stdio. Both parts share one connection, and neither outlives `output`.
pub struct Attachment {
    /// To the container. Dropping it changes nothing. Shutting it down closes the container's stdin, on an engine that
    /// can do that while keeping it open for the next attachment; where it cannot (Docker), it fails with
    /// [`std::io::ErrorKind::Unsupported`] and changes nothing.
    pub stdin: Pin<Box<dyn AsyncWrite + Send>>,
    /// From the container. Dropping it closes the connection: `stdin` fails from then on, the container's stdin stays
    /// open, and the container is no longer held back. Drop it before ending a container whose output nobody reads.
    pub output: OutputStream,
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attachment").finish_non_exhaustive()
    }
}

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExitStatus {
    /// The exit code; 128 + n when signal n ended it.
    pub code: i64,
    /// The agent ran out of memory, if nobody else killed it: `oom_hint`, and `code` is 137. Who stops or kills a
    /// container must not believe it, for the hint may be of an earlier time. Rarely missed.
    pub oom_killed: bool,
    /// The kernel killed some process of this container for memory, at any time of its life.
    pub oom_hint: bool,
    /// The engine's own words, if it had any.
    pub error: Option<String>,
}

/// Resolves once, when the container has ended, with its true exit status. Outlasts absences of the engine. On Docker
/// it waits for the output of every attachment to be read or dropped.
pub type ExitWatch = Pin<Box<dyn Future<Output = Result<ExitStatus>> + Send>>;

impl ExitStatus {
    /// The code of a process that SIGKILL ended.
    const KILLED: i64 = 137;

    /// A status with what the engine tells of memory.
    pub(crate) const fn new(code: i64, oom_hint: bool, error: Option<String>) -> Self {
        Self {
            code,
            oom_killed: oom_hint && code == Self::KILLED,
            oom_hint,
            error,
        }
    }
}

/// How a container stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContainerState {
    /// Never started.
    Created,
    /// Runs (or is paused).
    Running,
    /// Ended.
    Exited(ExitStatus),
}

/// One container of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerSummary {
    /// Its id.
    pub id: ContainerId,
    /// Its name, without the engine's slash.
    pub name: String,
    /// Its labels.
    pub labels: Labels,
    /// Runs now.
    pub running: bool,
    /// When it was made.
    pub created_at: SystemTime,
}

/// A process to run inside.
#[derive(Debug, Clone, Default)]
pub struct ExecSpec {
    /// Command line.
    pub command: Vec<String>,
    /// Added to the container's environment.
    pub env: BTreeMap<String, String>,
    /// In place of the container's.
    pub working_dir: Option<String>,
    /// In place of the container's.
    pub user: Option<String>,
    /// Whether its stdin is open.
    pub stdin: bool,
}

/// What an engine knows as long as it runs. See [`ContainerRuntime::run_sign`](crate::ContainerRuntime::run_sign).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunSign(pub String);

/// A process inside.
pub struct Exec {
    /// To it; none unless asked for. Shutting it down closes the process's stdin.
    pub stdin: Option<Pin<Box<dyn AsyncWrite + Send>>>,
    /// From it. Dropping it closes the connection and leaves the process alone.
    pub output: OutputStream,
    /// Its exit code, once `output` has ended.
    pub exit: Pin<Box<dyn Future<Output = Result<i64>> + Send>>,
}

impl fmt::Debug for Exec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exec").finish_non_exhaustive()
    }
}

/// Which part of the log to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogsFrom {
    /// Nothing older than this; everything when none.
    pub since: Option<SystemTime>,
    /// Stay until the container ends.
    pub follow: bool,
}

/// Default time limit of one engine call.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_agents_own_end_is_out_of_memory() {
        for (code, hint, killed) in [
            (137, true, true),
            (137, false, false),
            (0, true, false),
            (3, true, false),
        ] {
            let status = ExitStatus::new(code, hint, None);
            assert_eq!((status.oom_killed, status.oom_hint), (killed, hint), "{code}");
        }
    }
}
