//! The real engine, with calls that fail on purpose.

use std::future::Future;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use kandev_runtime::docker::DockerRuntime;
use kandev_runtime::{
    Attachment, ContainerId, ContainerRuntime, ContainerSpec, ContainerState, ContainerSummary, EngineInfo,
    Exec, ExecSpec, ExitWatch, Labels, LogsFrom, OutputStream, Result, RunSign, RuntimeError,
};
use tokio::sync::watch;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    EnsureVolume,
    Create,
    Attach,
    Wait,
    Start,
    Stop,
    Remove,
    List,
}

/// Whether the engine does what it was told before the call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    Before,
    After,
}

/// A call that fails.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    step: Step,
    moment: Moment,
    error: fn() -> RuntimeError,
    times: usize,
    container: Option<ContainerId>,
}

impl Fault {
    /// The next call of this step.
    pub(crate) fn once(step: Step, moment: Moment, error: fn() -> RuntimeError) -> Self {
        Self {
            step,
            moment,
            error,
            times: 1,
            container: None,
        }
    }

    /// Every call of this step, until [`FaultyRuntime::heal`].
    pub(crate) fn always(step: Step, error: fn() -> RuntimeError) -> Self {
        Self {
            times: usize::MAX,
            ..Self::once(step, Moment::Before, error)
        }
    }

    /// Only on this container.
    pub(crate) fn of(mut self, container: &ContainerId) -> Self {
        self.container = Some(container.clone());
        self
    }
}

pub(crate) struct FaultyRuntime {
    engine: DockerRuntime,
    faults: Mutex<Vec<Fault>>,
    /// How many faults have happened.
    happened: watch::Sender<usize>,
    /// How many listings were answered, failed or not.
    lists: watch::Sender<usize>,
}

impl FaultyRuntime {
    pub(crate) fn new() -> Self {
        Self {
            engine: DockerRuntime::connect(std::env::var("DOCKER_HOST").ok().as_deref()).unwrap(),
            faults: Mutex::default(),
            happened: watch::Sender::default(),
            lists: watch::Sender::default(),
        }
    }

    /// The engine itself.
    pub(crate) const fn engine(&self) -> &DockerRuntime {
        &self.engine
    }

    pub(crate) fn fail(&self, fault: Fault) {
        self.faults.lock().unwrap().push(fault);
    }

    pub(crate) fn heal(&self) {
        self.faults.lock().unwrap().clear();
    }

    /// How many faults have happened.
    pub(crate) fn happened(&self) -> usize {
        *self.happened.borrow()
    }

    /// Waits for that many further listings, which the reconciler begins its rounds with.
    pub(crate) async fn rounds(&self, count: usize) {
        let mut lists = self.lists.subscribe();
        let until = *lists.borrow() + count;
        let reached = lists.wait_for(|n| *n >= until);
        tokio::time::timeout(Duration::from_secs(20), reached)
            .await
            .expect("the reconciler looks")
            .unwrap();
    }

    /// Waits for the first round of the reconciler to have read its list.
    pub(crate) async fn first_round(&self) {
        let mut lists = self.lists.subscribe();
        lists.wait_for(|n| *n >= 1).await.unwrap();
    }

    fn due(&self, step: Step, moment: Moment, container: Option<&ContainerId>) -> Option<RuntimeError> {
        let mut faults = self.faults.lock().unwrap();
        let fault = faults.iter_mut().find(|f| {
            let here = f.container.is_none() || f.container.as_ref() == container;
            f.step == step && f.moment == moment && f.times > 0 && here
        })?;
        fault.times -= 1;
        self.happened.send_modify(|n| *n += 1);
        Some((fault.error)())
    }

    async fn step<T>(
        &self,
        step: Step,
        container: Option<&ContainerId>,
        call: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        if let Some(error) = self.due(step, Moment::Before, container) {
            return Err(error);
        }
        let done = call.await?;
        match self.due(step, Moment::After, container) {
            Some(error) => Err(error),
            None => Ok(done),
        }
    }
}

#[async_trait]
impl ContainerRuntime for FaultyRuntime {
    async fn ping(&self) -> Result<EngineInfo> {
        self.engine.ping().await
    }
    async fn ensure_volume(&self, name: &str, labels: &Labels) -> Result<()> {
        self.step(Step::EnsureVolume, None, self.engine.ensure_volume(name, labels))
            .await
    }
    async fn create(&self, spec: &ContainerSpec) -> Result<ContainerId> {
        self.step(Step::Create, None, self.engine.create(spec)).await
    }
    async fn attach(&self, id: &ContainerId) -> Result<Attachment> {
        self.step(Step::Attach, Some(id), self.engine.attach(id)).await
    }
    async fn wait(&self, id: &ContainerId) -> Result<ExitWatch> {
        self.step(Step::Wait, Some(id), self.engine.wait(id)).await
    }
    async fn start(&self, id: &ContainerId) -> Result<()> {
        self.step(Step::Start, Some(id), self.engine.start(id)).await
    }
    async fn inspect(&self, id: &ContainerId) -> Result<ContainerState> {
        self.engine.inspect(id).await
    }
    async fn exec(&self, id: &ContainerId, spec: &ExecSpec) -> Result<Exec> {
        self.engine.exec(id, spec).await
    }
    async fn run_sign(&self, id: &ContainerId) -> Result<RunSign> {
        self.engine.run_sign(id).await
    }
    async fn has_sign(&self, id: &ContainerId, sign: &RunSign) -> Result<bool> {
        self.engine.has_sign(id, sign).await
    }
    async fn read_file(&self, id: &ContainerId, path: &str, limit: u64) -> Result<Bytes> {
        self.engine.read_file(id, path, limit).await
    }
    async fn write_file(&self, id: &ContainerId, path: &str, contents: Bytes) -> Result<()> {
        self.engine.write_file(id, path, contents).await
    }
    async fn install(&self, id: &ContainerId, path: &str, program: Bytes) -> Result<()> {
        self.engine.install(id, path, program).await
    }
    async fn logs_from(&self, id: &ContainerId, from: LogsFrom) -> Result<OutputStream> {
        self.engine.logs_from(id, from).await
    }
    async fn log_entries(
        &self,
        id: &ContainerId,
        since: Option<std::time::SystemTime>,
    ) -> Result<kandev_runtime::LogEntries> {
        self.engine.log_entries(id, since).await
    }
    async fn pause(&self, id: &ContainerId) -> Result<()> {
        self.engine.pause(id).await
    }
    async fn unpause(&self, id: &ContainerId) -> Result<()> {
        self.engine.unpause(id).await
    }
    async fn stop(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        self.step(Step::Stop, Some(id), self.engine.stop(id, grace)).await
    }
    async fn kill(&self, id: &ContainerId) -> Result<()> {
        self.engine.kill(id).await
    }
    async fn remove(&self, id: &ContainerId) -> Result<()> {
        self.step(Step::Remove, Some(id), self.engine.remove(id)).await
    }
    async fn list(&self, owner: &str) -> Result<Vec<ContainerSummary>> {
        let listed = self.step(Step::List, None, self.engine.list(owner)).await;
        self.lists.send_modify(|n| *n += 1);
        listed
    }
}
