//! Docker, or what speaks its API (Podman).
//!
//! Requests and answers are bollard's; the connections they go over are our own (see `wire`), for attaching needs one that
//! can be closed while its stdin is held, which an upgraded connection of bollard's cannot. What else stays with us, and
//! what was measured: `docs/adr/docker-client.md`. bollard logs request and answer bodies at debug level, and so the
//! secrets in a container's environment: whoever collects logs must keep it at warn.
//!
//! What engines do that callers must know (measured on Docker Engine 20.10, cgroup v1):
//! - An attachment whose output is not read makes `inspect`, `kill`, `stop`, `remove` *and the exit watch* of that
//!   container hang until the output is read or dropped. So drop it before the container is to be ended.
//! - A container whose stdin is to outlive an attachment (`StdinOnce: false`) keeps its stdin open for good: closing
//!   the write side of an attachment ends that attachment's output and leaves the container's stdin as it was.
//!   Shutting down the `stdin` of an [`Attachment`] is therefore refused with [`std::io::ErrorKind::Unsupported`] and
//!   changes nothing. An exec's stdin can be closed.
//! - The OOM flag of an ended container says that the kernel killed *some* process of it for memory, at any time of its
//!   life, whatever it died of later: the agent itself (code 137), a child that the agent outlived (the agent's own
//!   code), or one before we killed it (code 137 too, so the caller must know its own kills). So the flag is
//!   [`ExitStatus::oom_hint`](crate::ExitStatus::oom_hint), and with code 137
//!   [`ExitStatus::oom_killed`](crate::ExitStatus::oom_killed). A kill in the moment of the end itself can go unseen, the
//!   agent's own too: none of 20 on a quiet machine, 20 of 560 on a loaded one, of which the engine's event log had a
//!   third, late. So code 137 without the flag, and without a kill of ours, may still be an agent out of memory.

mod access;
mod asked;
mod attach;
mod client;
mod create;
mod exec;
mod files;
mod lifecycle;
mod logs;
mod stdcopy;
mod transport;
mod user;
mod version;
mod wait;
mod wire;

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bollard::models::VolumeCreateRequest;
use bytes::Bytes;

use self::client::{Client, Subject};
use self::transport::Endpoint;
use crate::ContainerRuntime;
use crate::error::Result;
use crate::types::{
    Attachment, CALL_TIMEOUT, ContainerId, ContainerSpec, ContainerState, ContainerSummary, EngineInfo, Exec,
    ExecSpec, ExitWatch, Labels, LogEntries, LogsFrom, OutputStream, RunSign,
};

/// How long to wait for an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The time of one call, [`CALL_TIMEOUT`] by default.
    pub call: Duration,
    /// How often an exit watch looks for itself, in case its connection died unnoticed. Once in 15 s by default.
    pub exit_poll: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            call: CALL_TIMEOUT,
            exit_poll: Duration::from_secs(15),
        }
    }
}

/// A Docker engine. Cheap to clone.
#[derive(Debug, Clone)]
pub struct DockerRuntime {
    client: Client,
}

impl DockerRuntime {
    /// An engine by its `DOCKER_HOST` value (`unix://`, `tcp://` or `http://`), or the one on the default socket.
    ///
    /// Nothing is sent: the engine need not be there yet, and may go and come back. Calls answer
    /// [`RuntimeError::Unavailable`](crate::RuntimeError::Unavailable) meanwhile. The API version is agreed on with the
    /// first call, and anew after the engine was away.
    ///
    /// # Errors
    /// [`RuntimeError::Refused`](crate::RuntimeError::Refused) for an address that cannot be one.
    pub fn connect(host: Option<&str>) -> Result<Self> {
        Self::connect_with(host, Limits::default())
    }

    /// The same with other time limits.
    pub fn connect_with(host: Option<&str>, limits: Limits) -> Result<Self> {
        Ok(Self {
            client: Client::new(Endpoint::parse(host)?, limits),
        })
    }

    /// Returns when no connection is left: every call answered or given up, every attachment, log and exit watch
    /// finished or dropped. For an orderly shutdown, and for tests.
    pub async fn drained(&self) {
        let drivers = self.client.drivers();
        drivers.close();
        drivers.wait().await;
        drivers.reopen();
    }
}

#[async_trait]
impl ContainerRuntime for DockerRuntime {
    async fn ping(&self) -> Result<EngineInfo> {
        self.client.negotiate().await
    }

    async fn ensure_volume(&self, name: &str, labels: &Labels) -> Result<()> {
        let volume = &VolumeCreateRequest {
            name: Some(name.to_owned()),
            labels: Some(labels.clone().into_iter().collect()),
            ..VolumeCreateRequest::default()
        };
        // The engine answers with the volume that is there, if one is.
        let call = self.client.call("ensure_volume", Subject::Engine);
        let made = self.client.make(call, |engine| async move {
            engine.docker.create_volume(volume.clone()).await
        });
        made.await.map(drop)
    }

    async fn create(&self, spec: &ContainerSpec) -> Result<ContainerId> {
        create::create(&self.client, spec).await
    }

    async fn attach(&self, id: &ContainerId) -> Result<Attachment> {
        attach::attach(&self.client, id).await
    }

    async fn wait(&self, id: &ContainerId) -> Result<ExitWatch> {
        wait::watch(&self.client, id).await
    }

    async fn start(&self, id: &ContainerId) -> Result<()> {
        access::check(&self.client, id).await?;
        lifecycle::start(&self.client, id).await
    }

    async fn inspect(&self, id: &ContainerId) -> Result<ContainerState> {
        lifecycle::inspect(&self.client, id)
            .await
            .map(|inspected| inspected.state)
    }

    async fn exec(&self, id: &ContainerId, spec: &ExecSpec) -> Result<Exec> {
        exec::exec(&self.client, id, spec).await
    }

    async fn run_sign(&self, id: &ContainerId) -> Result<RunSign> {
        exec::run_sign(&self.client, id).await
    }

    async fn has_sign(&self, _: &ContainerId, sign: &RunSign) -> Result<bool> {
        exec::has_sign(&self.client, sign).await
    }

    async fn read_file(&self, id: &ContainerId, path: &str, limit: u64) -> Result<Bytes> {
        files::read(&self.client, id, path, limit).await
    }

    async fn write_file(&self, id: &ContainerId, path: &str, contents: Bytes) -> Result<()> {
        files::write(&self.client, id, path, &contents).await
    }

    async fn install(&self, id: &ContainerId, path: &str, program: Bytes) -> Result<()> {
        files::install(&self.client, id, path, &program).await
    }

    async fn logs_from(&self, id: &ContainerId, from: LogsFrom) -> Result<OutputStream> {
        logs::logs_from(&self.client, id, from).await
    }

    async fn log_entries(&self, id: &ContainerId, since: Option<SystemTime>) -> Result<LogEntries> {
        logs::entries(&self.client, id, since).await
    }

    async fn pause(&self, id: &ContainerId) -> Result<()> {
        lifecycle::pause(&self.client, id).await
    }

    async fn unpause(&self, id: &ContainerId) -> Result<()> {
        lifecycle::unpause(&self.client, id).await
    }

    async fn stop(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        lifecycle::stop(&self.client, id, grace).await
    }

    async fn kill(&self, id: &ContainerId) -> Result<()> {
        lifecycle::kill(&self.client, id).await
    }

    async fn remove(&self, id: &ContainerId) -> Result<()> {
        lifecycle::remove(&self.client, id).await
    }

    async fn list(&self, owner: &str) -> Result<Vec<ContainerSummary>> {
        lifecycle::list(&self.client, owner).await
    }
}
