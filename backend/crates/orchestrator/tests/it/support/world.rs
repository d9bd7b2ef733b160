//! An orchestrator of one test: a database, a deployment's name and a directory of its own.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kandev_domain::content::Prompt;
use kandev_domain::status::{InstanceLifecycle, PermissionPolicy};
use kandev_domain::{InstanceId, InstanceStatus, SystemClock, TaskId};
use kandev_orchestrator::{Catalogue, LaunchOptions, LaunchRequest, Orchestrator, Parts, Sealer, Settings};
use kandev_runtime::{ContainerRuntime as _, ContainerSummary, LABEL_INSTANCE};
use kandev_store::instances::{self, Instance};
use kandev_store::{PgPool, turns};

use super::{FaultyRuntime, TestDatabase};

/// Generous: the engine shares two cores with other tests.
const LIMIT: Duration = Duration::from_mins(1);

pub(crate) struct World {
    pub(crate) runtime: Arc<FaultyRuntime>,
    pub(crate) orchestrator: Arc<Orchestrator>,
    pub(crate) pool: PgPool,
    pub(crate) owner: String,
    dir: tempfile::TempDir,
    database: Option<TestDatabase>,
}

/// A launch of the mock agent with a first prompt.
pub(crate) fn launch(task: &TaskId, env: &[(&str, &str)]) -> LaunchRequest {
    LaunchRequest {
        agent_type: "mock-agent".to_owned(),
        // The world's own, unless the test says otherwise.
        workspace_path: String::new(),
        task_id: Some(task.clone()),
        env: env
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect::<BTreeMap<_, _>>(),
        priority: 0,
        metadata: serde_json::Map::new(),
        prompt: Some(Prompt::text("/say hello").unwrap()),
        session_id: None,
        mcp_servers: Vec::new(),
        permission_policy: PermissionPolicy::Allow,
        lifecycle: InstanceLifecycle::Interactive,
        options: LaunchOptions::default(),
        resumed_from: None,
    }
}

impl World {
    /// With a reconciler that looks once, at the start: what is undone later is undone by the instance itself.
    pub(crate) async fn start() -> Self {
        let once = |s: &mut Settings| s.reconcile_interval = Duration::from_hours(1);
        let world = Self::with(FaultyRuntime::new(), once).await;
        world.runtime.first_round().await;
        world
    }

    /// With a reconciler that looks all the time.
    pub(crate) async fn with(runtime: FaultyRuntime, change: impl FnOnce(&mut Settings)) -> Self {
        let database = TestDatabase::create().await;
        let pool = database.pool().await;
        kandev_store::migrate(&pool).await.unwrap();
        Self::over(database, pool, runtime, change)
    }

    /// Over a database that is prepared, with a pool that may be of no use.
    pub(crate) fn over(
        database: TestDatabase,
        pool: PgPool,
        runtime: FaultyRuntime,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let dir = tempfile::Builder::new().prefix("kandev-it-").tempdir().unwrap();
        for sub in ["data", "workspace", "agents"] {
            std::fs::create_dir(dir.path().join(sub)).unwrap();
        }
        let missing = "id = 'no-image'\nname = 'x'\nimage = 'kandev-test/no-such-image:1'\n";
        std::fs::write(dir.path().join("agents/no-image.toml"), missing).unwrap();
        let mut settings = Settings {
            owner: format!("test-{}", InstanceId::generate()),
            workspace_roots: vec![dir.path().to_owned()],
            data_dir: dir.path().join("data"),
            stop_grace: Duration::from_secs(2),
            reconcile_interval: Duration::from_millis(100),
            orphan_grace: Duration::ZERO,
            ..Settings::default()
        };
        change(&mut settings);
        let owner = settings.owner.clone();
        let runtime = Arc::new(runtime);
        let orchestrator = Orchestrator::start(Parts {
            pool: pool.clone(),
            runtime: runtime.clone(),
            catalogue: Catalogue::load(Some(&dir.path().join("agents"))).unwrap(),
            settings,
            sealer: Sealer::new([7; 32]),
            clock: Arc::new(SystemClock),
        });
        Self {
            runtime,
            orchestrator,
            pool,
            owner,
            dir,
            database: Some(database),
        }
    }

    /// Launches: the instance, and what the caller was told if it was no success.
    pub(crate) async fn launch(
        &self,
        mut request: LaunchRequest,
    ) -> (InstanceId, Option<kandev_orchestrator::LaunchError>) {
        if request.workspace_path.is_empty() {
            let workspace = self.dir.path().join("workspace");
            workspace
                .to_str()
                .unwrap()
                .clone_into(&mut request.workspace_path);
        }
        match self.orchestrator.launch(request).await {
            Ok(launched) => (launched.id, None),
            Err(error) => match &error {
                kandev_orchestrator::LaunchError::Failed { id, .. } => (*id, Some(error)),
                _ => panic!("it was not even recorded: {error}"),
            },
        }
    }

    /// Of containers that are none of ours, which go with the world all the same.
    pub(crate) fn other_owner(&self) -> String {
        format!("{}-other", self.owner)
    }

    pub(crate) async fn instance(&self, id: InstanceId) -> Instance {
        instances::get(&self.pool, id)
            .await
            .unwrap()
            .expect("it was recorded")
    }

    /// Waits until the instance has such a status.
    #[track_caller]
    pub(crate) fn reaches(
        &self,
        id: InstanceId,
        is: impl Fn(InstanceStatus) -> bool + Send,
    ) -> impl Future<Output = Instance> {
        let caller = std::panic::Location::caller();
        async move {
            if let Some(mut view) = self.orchestrator.watch(id) {
                let reached = view.wait_for(|view| is(view.status) || view.status.is_final());
                // An error means that its task has ended.
                let _ = tokio::time::timeout(LIMIT, reached)
                    .await
                    .expect("it gets somewhere");
            }
            let instance = self.instance(id).await;
            assert!(is(instance.status), "{caller}: {instance:#?}");
            instance
        }
    }

    /// The instance has failed, each of its turns has an end, and nothing is left of it. Then its task takes another.
    pub(crate) async fn assert_undone(&self, id: InstanceId) -> Instance {
        let instance = self.reaches(id, |s| s == InstanceStatus::Failed).await;
        assert!(
            instance.finished_at.is_some() && instance.error_message.is_some(),
            "{instance:#?}"
        );
        assert!(turns::unfinished(&self.pool, id).await.unwrap().is_empty());
        let page = turns::list(&self.pool, id, None, 10).await.unwrap();
        assert_eq!(page.total, 1, "the first prompt is a turn");
        assert!(
            page.items.iter().all(|t| t.finished_at.is_some()),
            "{:#?}",
            page.items
        );
        assert!(self.containers(Some(id)).await.is_empty(), "a container is left");
        self.assert_launchable(&instance.task_id).await;
        instance
    }

    /// The task's next launch gets through its first turn.
    pub(crate) async fn assert_launchable(&self, task: &TaskId) {
        let mut request = launch(task, &[]);
        request.lifecycle = InstanceLifecycle::OneShot;
        let (id, error) = self.launch(request).await;
        assert!(error.is_none(), "{error:?}");
        self.reaches(id, |s| s == InstanceStatus::Completed).await;
    }

    /// This deployment's containers, or one instance's.
    pub(crate) async fn containers(&self, id: Option<InstanceId>) -> Vec<ContainerSummary> {
        let id = id.map(|id| id.to_string());
        let mut all = self.runtime.engine().list(&self.owner).await.unwrap();
        all.retain(|c| id.is_none() || c.labels.get(LABEL_INSTANCE) == id.as_ref());
        all
    }

    /// Waits until there are so many containers, which the engine tells nobody by itself.
    pub(crate) async fn until_containers(&self, count: usize) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let there = self.containers(None).await;
            if there.len() == count {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "there are {} and not {count}: {there:#?}",
                there.len()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends the orchestrator: after that nothing is left.
    pub(crate) async fn end(self) {
        self.runtime.heal();
        self.orchestrator.shut_down(true).await;
        assert!(self.containers(None).await.is_empty(), "a container is left");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let label = format!("label=kandev.owner={}", self.owner);
        let other = format!("label=kandev.owner={}", self.other_owner());
        for label in [&label, &other] {
            for container in docker(&["ps", "-aq", "--filter", label]) {
                docker(&["rm", "-f", "-v", &container]);
            }
        }
        for volume in docker(&["volume", "ls", "-q", "--filter", &label]) {
            docker(&["volume", "rm", "-f", &volume]);
        }
        drop(self.database.take());
    }
}

fn docker(args: &[&str]) -> Vec<String> {
    let output = Command::new("docker").args(args).output().unwrap();
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect()
}
