//! An engine that can be taken away.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use kandev_runtime::{
    Attachment, ContainerId, ContainerRuntime, ContainerSpec, ContainerState, ContainerSummary, EngineInfo,
    Exec, ExecSpec, ExitWatch, Labels, LogsFrom, OutputStream, Result, RunSign, RuntimeError,
};

/// Answers `ping`, refuses the rest.
#[derive(Default)]
pub(crate) struct FakeRuntime(AtomicU8);

const UP: u8 = 0;
const AWAY: u8 = 1;
const HANGING: u8 = 2;

impl FakeRuntime {
    pub(crate) fn go_away(&self) {
        self.0.store(AWAY, Ordering::SeqCst);
    }

    pub(crate) fn hang(&self) {
        self.0.store(HANGING, Ordering::SeqCst);
    }

    pub(crate) fn come_back(&self) {
        self.0.store(UP, Ordering::SeqCst);
    }
}

fn away<T>() -> Result<T> {
    Err(RuntimeError::Unavailable("the fake engine is away".to_owned()))
}

#[async_trait]
impl ContainerRuntime for FakeRuntime {
    async fn ping(&self) -> Result<EngineInfo> {
        match self.0.load(Ordering::SeqCst) {
            UP => Ok(EngineInfo {
                version: "1.2.3".to_owned(),
                api_version: "1.41".to_owned(),
            }),
            HANGING => std::future::pending().await,
            _ => away(),
        }
    }
    async fn ensure_volume(&self, _: &str, _: &Labels) -> Result<()> {
        away()
    }
    async fn create(&self, _: &ContainerSpec) -> Result<ContainerId> {
        away()
    }
    async fn attach(&self, _: &ContainerId) -> Result<Attachment> {
        away()
    }
    async fn wait(&self, _: &ContainerId) -> Result<ExitWatch> {
        away()
    }
    async fn start(&self, _: &ContainerId) -> Result<()> {
        away()
    }
    async fn inspect(&self, _: &ContainerId) -> Result<ContainerState> {
        away()
    }
    async fn exec(&self, _: &ContainerId, _: &ExecSpec) -> Result<Exec> {
        away()
    }
    async fn run_sign(&self, _: &ContainerId) -> Result<RunSign> {
        away()
    }
    async fn has_sign(&self, _: &ContainerId, _: &RunSign) -> Result<bool> {
        away()
    }
    async fn read_file(&self, _: &ContainerId, _: &str, _: u64) -> Result<Bytes> {
        away()
    }
    async fn write_file(&self, _: &ContainerId, _: &str, _: Bytes) -> Result<()> {
        away()
    }
    async fn install(&self, _: &ContainerId, _: &str, _: Bytes) -> Result<()> {
        away()
    }
    async fn logs_from(&self, _: &ContainerId, _: LogsFrom) -> Result<OutputStream> {
        away()
    }
    async fn log_entries(
        &self,
        _: &ContainerId,
        _: Option<std::time::SystemTime>,
    ) -> Result<kandev_runtime::LogEntries> {
        away()
    }
    async fn pause(&self, _: &ContainerId) -> Result<()> {
        away()
    }
    async fn unpause(&self, _: &ContainerId) -> Result<()> {
        away()
    }
    async fn stop(&self, _: &ContainerId, _: Duration) -> Result<()> {
        away()
    }
    async fn kill(&self, _: &ContainerId) -> Result<()> {
        away()
    }
    async fn remove(&self, _: &ContainerId) -> Result<()> {
        away()
    }
    async fn list(&self, _: &str) -> Result<Vec<ContainerSummary>> {
        away()
    }
}
