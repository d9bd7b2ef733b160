//! The way in: launches, and commands to instances.

mod asks;
mod elicitations;
mod files;
mod permissions;
mod resume;
mod take_up;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kandev_domain::agent_type::Protocol;
use kandev_domain::content::Prompt;
use kandev_domain::{AgentType, Clock, InstanceId, McpServer, TaskId, mcp};
use kandev_runtime::ContainerRuntime;
use kandev_store::instances::{self, NewInstance, Resumes};
use kandev_store::journal::Position;
use kandev_store::tasks::{self, Task};
use kandev_store::uploads::{self, NewUpload};
use kandev_store::{Fence, PgPool, StoreError};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::catalogue::Catalogue;
use crate::command::{self, Command};
use crate::fresh::Stored;
use crate::instance::{Actor, Handle, Parts as ActorParts, View};
use crate::journal::{Journal, Trouble};
use crate::launch::{self, Checked, InstanceSpec, LaunchError, LaunchRequest, ResumeFrom, TASK_DESCRIPTION};
use crate::retention::RemovedTotals;
use crate::secrets::Sealer;
use crate::settings::Settings;
use crate::slots::Slots;
use crate::wakes::{self, Wakes};
use crate::{Shared, lease, reconcile, retention};

pub use asks::AskError;
pub use elicitations::ElicitationError;
pub use files::FileError;
pub use permissions::AnswerError;

use files::Workplace;

/// How long instances have to end when the server does, beyond their own graces.
const SHUTDOWN_MARGIN: Duration = Duration::from_secs(15);
/// How long what is left to store may take then.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// How long one look at the database may take.
pub(crate) const STORE_LIMIT: Duration = Duration::from_secs(15);
/// How long a launch waits for its container to be on record.
const LAUNCH_LIMIT: Duration = Duration::from_secs(90);

/// What an orchestrator is made of.
pub struct Parts {
    /// The database, migrated.
    pub pool: PgPool,
    /// The engine.
    pub runtime: Arc<dyn ContainerRuntime>,
    /// The agent types.
    pub catalogue: Catalogue,
    /// The operator's decisions.
    pub settings: Settings,
    /// The key for what is secret.
    pub sealer: Sealer,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

/// What is kept encrypted of a launch.
#[derive(Serialize, Deserialize)]
struct Secrets {
    env: BTreeMap<String, String>,
    /// JSON text.
    mcp_servers: String,
}

impl Secrets {
    /// Those of the launch. What an older version took and this one does not know is left out.
    fn mcp_servers(&self) -> Vec<McpServer> {
        let servers: Vec<Value> = serde_json::from_str(&self.mcp_servers).unwrap_or_default();
        let read = |server| serde_json::from_value(server).ok();
        servers.into_iter().filter_map(read).collect()
    }
}

/// The instances of this process.
#[derive(Debug, Default)]
pub(crate) struct Held {
    handles: Mutex<HashMap<InstanceId, Handle>>,
    /// Those that are being recorded and have no task yet.
    launching: Mutex<HashSet<InstanceId>>,
}

impl Held {
    fn has(&self, id: InstanceId) -> bool {
        lock(&self.launching).contains(&id) || lock(&self.handles).contains_key(&id)
    }

    pub(crate) fn ids(&self) -> Vec<InstanceId> {
        lock(&self.handles).keys().copied().collect()
    }

    pub(crate) fn mailbox(&self, id: InstanceId) -> Option<mpsc::Sender<Command>> {
        lock(&self.handles).get(&id).map(|handle| handle.mailbox.clone())
    }
}

/// Marks an instance as launching until it is dropped.
struct Launching(Arc<Held>, InstanceId);

impl Launching {
    fn new(held: &Arc<Held>, id: InstanceId) -> Self {
        lock(&held.launching).insert(id);
        Self(Arc::clone(held), id)
    }
}

impl Drop for Launching {
    fn drop(&mut self) {
        lock(&self.0.launching).remove(&self.1);
    }
}

/// Launches instances and hands commands to them.
pub struct Orchestrator {
    pub(crate) shared: Arc<Shared>,
    catalogue: Catalogue,
    pub(crate) held: Arc<Held>,
    removed: Arc<RemovedTotals>,
    close_journal: CancellationToken,
    abandon_journal: CancellationToken,
    closing: CancellationToken,
    give_back: CancellationToken,
    keepers: TaskTracker,
}

impl std::fmt::Debug for Orchestrator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Orchestrator").finish_non_exhaustive()
    }
}

/// A launch that was recorded.
#[derive(Debug, Clone, Copy)]
pub struct Launched {
    /// The instance.
    pub id: InstanceId,
}

impl Orchestrator {
    /// Starts the journal, the lease and the reconciler.
    pub fn start(parts: Parts) -> Arc<Self> {
        let tracker = TaskTracker::new();
        let close_journal = CancellationToken::new();
        let abandon_journal = CancellationToken::new();
        let closing = CancellationToken::new();
        let wakes = Wakes::new();
        let (keeper, lease) = lease::new(&parts.pool, &parts.settings, Arc::clone(&wakes.unheld));
        let give_back = CancellationToken::new();
        let keepers = TaskTracker::new();
        keepers.spawn(keeper.run(parts.settings.data_dir.clone(), give_back.clone()));
        keepers.close();
        let journal = Journal::start(
            &parts.pool,
            Arc::clone(&parts.clock),
            (lease.clone(), wakes.clone()),
            &tracker,
            close_journal.clone(),
            abandon_journal.clone(),
        );
        let slots = Slots::new(parts.settings.max_instances.max(1));
        let shared = Arc::new(Shared {
            pool: parts.pool,
            runtime: parts.runtime,
            journal,
            clock: parts.clock,
            sealer: parts.sealer,
            settings: parts.settings,
            slots,
            lease,
            wakes,
            tracker,
            leave: CancellationToken::new(),
            stop_agents: CancellationToken::new(),
        });
        let orchestrator = Arc::new(Self {
            shared: Arc::clone(&shared),
            catalogue: parts.catalogue,
            held: Arc::default(),
            removed: Arc::default(),
            close_journal,
            abandon_journal,
            closing: closing.clone(),
            give_back,
            keepers,
        });
        let tracker = &shared.tracker;
        tracker.spawn(wakes::listen(
            shared.pool.clone(),
            shared.wakes.clone(),
            closing.clone(),
        ));
        tracker.spawn(command::take_handed(Arc::clone(&orchestrator), closing.clone()));
        tracker.spawn(reconcile::run(Arc::clone(&orchestrator), closing.clone()));
        let (of_all, removed) = (Arc::clone(&shared), Arc::clone(&orchestrator.removed));
        tracker.spawn(async move { retention::run(&of_all, &removed, closing).await });
        orchestrator
    }

    /// What keeps the journal from storing, if anything does.
    pub fn journal_trouble(&self) -> Option<Trouble> {
        self.shared.journal.trouble()
    }

    /// The agent types.
    pub const fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// The operator's decisions.
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// The time.
    pub fn clock(&self) -> &dyn Clock {
        self.shared.clock.as_ref()
    }

    /// Where a starting instance stands in the queue for a slot, from 1.
    pub fn queue_position(&self, id: InstanceId) -> Option<usize> {
        self.shared.slots.position(id)
    }

    /// Watches an instance that is held here.
    pub fn watch(&self, id: InstanceId) -> Option<watch::Receiver<View>> {
        lock(&self.held.handles)
            .get(&id)
            .map(|handle| handle.view.clone())
    }

    /// How much retention has removed.
    pub const fn removed(&self) -> &Arc<RemovedTotals> {
        &self.removed
    }

    /// Tells when the journal may have more.
    pub fn wakes(&self) -> &Wakes {
        &self.shared.wakes
    }

    /// News of instances that other servers hold.
    pub(crate) fn news(&self) -> broadcast::Receiver<Option<InstanceId>> {
        self.shared.wakes.journals.subscribe()
    }

    /// What is stored from now on of an instance that is held here. It ends when the instance is not held any more.
    pub fn follow(&self, id: InstanceId) -> Option<broadcast::Receiver<Arc<Stored>>> {
        lock(&self.held.handles)
            .get(&id)
            .map(|handle| handle.fresh.subscribe())
    }

    /// Launches an instance, and answers once it has a container or a place in the queue.
    ///
    /// Once begun it is finished or undone, whether or not the caller waits.
    pub async fn launch(self: &Arc<Self>, request: LaunchRequest) -> Result<Launched, LaunchError> {
        let this = Arc::clone(self);
        let task = self
            .shared
            .tracker
            .spawn(async move { this.launch_now(request).await });
        task.await
            .map_err(|error| LaunchError::Internal(error.to_string()))?
    }

    async fn launch_now(self: Arc<Self>, mut request: LaunchRequest) -> Result<Launched, LaunchError> {
        if self.closing.is_cancelled() {
            return Err(LaunchError::ShuttingDown);
        }
        let mut agent_type = self
            .catalogue
            .get(&request.agent_type)
            .ok_or_else(|| LaunchError::UnknownType(request.agent_type.clone()))?
            .clone();
        apply_env(&mut request, &agent_type)?;
        if agent_type.protocol == Protocol::Legacy {
            launch::legacy::prepare(&mut request)?;
        }
        let Checked {
            workspace,
            directories,
        } = {
            // Looking at the file system can block.
            let (request, agent_type) = (request.clone(), agent_type.clone());
            let settings = self.shared.settings.clone();
            let check = move || launch::check(&request, &agent_type, &settings);
            tokio::task::spawn_blocking(check)
                .await
                .map_err(|e| LaunchError::Internal(e.to_string()))??
        };
        launch::directories::add(&mut agent_type, &directories);
        request.options.additional_directories = directories;
        let id = InstanceId::generate();
        let copies = match &mut request.prompt {
            Some(prompt) => {
                let place = Workplace::of(workspace.clone(), Some(&agent_type));
                let copies = self.take_in(prompt, &place, id).await?;
                self.load_uploads(prompt).await?;
                copies
            }
            None => Vec::new(),
        };
        let term = self.shared.lease.registered().await?;
        let resume = self.session_to_resume(&request).await?;
        if let (Some(resume), true) = (&resume, request.resumed_from.is_some()) {
            // What the old launch asked for may have changed since.
            resume.chosen.supersede(&mut request.options);
        }
        let remembered = self.remembered(resume.as_ref().and_then(|from| from.key)).await?;
        let task_id = request.task_id.clone().unwrap_or_else(TaskId::generate);
        let launching = Launching::new(&self.held, id);
        let workspace_path = workspace.to_string_lossy();
        let place = (&task_id, workspace_path.as_ref());
        let record = self.record((id, term.fence), place, &request, resume.as_ref(), &copies);
        kandev_store::within(STORE_LIMIT, record).await?;
        let mcp_servers = mcp::merge(&agent_type.mcp_servers, &request.mcp_servers);
        let spec = InstanceSpec {
            id,
            task_id,
            agent_type,
            workspace,
            env: request.env,
            mcp_servers,
            priority: request.priority,
            permission_policy: request.permission_policy,
            lifecycle: request.lifecycle,
            options: request.options,
            resume,
            remembered,
            first_prompt: request.prompt,
        };
        let (created, answer) = oneshot::channel();
        let parts = ActorParts {
            shared: Arc::clone(&self.shared),
            term,
            spec,
            position: Position::default(),
            take_up: None,
            created,
        };
        self.start_task(parts);
        drop(launching);
        let Ok(answer) = tokio::time::timeout(LAUNCH_LIMIT, answer).await else {
            return Err(LaunchError::Unanswered { id });
        };
        match answer {
            Ok(Ok(())) => Ok(Launched { id }),
            Ok(Err(failure)) => Err(LaunchError::Failed {
                id,
                code: failure.code,
                message: failure.message,
                transient: failure.transient,
            }),
            Err(_) => Err(LaunchError::Internal(
                "the instance's task ended early".to_owned(),
            )),
        }
    }

    fn start_task(&self, parts: ActorParts) {
        let id = parts.spec.id;
        let held = Arc::clone(&self.held);
        // Locked over the start, so that the end of the task finds what it has to take away.
        let mut handles = lock(&self.held.handles);
        let handle = Actor::start(parts, move || drop(lock(&held.handles).remove(&id)));
        handles.insert(id, handle);
        // Commands may wait for it.
        self.shared.wakes.commands.notify_one();
    }

    /// True if a task of this process has the instance, or is about to.
    pub(crate) fn holds(&self, id: InstanceId) -> bool {
        self.held.has(id)
    }

    async fn record(
        &self,
        (id, held_by): (InstanceId, Fence),
        (task_id, workspace): (&TaskId, &str),
        request: &LaunchRequest,
        resume: Option<&ResumeFrom>,
        copies: &[NewUpload],
    ) -> Result<(), LaunchError> {
        let now = self.shared.clock.now();
        let env_sealed = self.seal(id, request)?;
        let launch =
            serde_json::to_string(&request.options).map_err(|e| LaunchError::Internal(e.to_string()))?;
        let task = Task {
            id: task_id.clone(),
            title: None,
            description: None,
            state: tasks::DEFAULT_STATE.to_owned(),
            metadata: Value::Object(Map::new()),
            created_at: now,
            updated_at: now,
        };
        let new = NewInstance {
            id,
            task_id: task_id.clone(),
            agent_type: request.agent_type.clone(),
            workspace_path: workspace.to_owned(),
            priority: request.priority,
            metadata: Value::Object(request.metadata.clone()),
            launch,
            env_names: request.env.keys().cloned().collect(),
            env_sealed,
            permission_policy: request.permission_policy,
            lifecycle: request.lifecycle,
            owner: self.shared.settings.owner.clone(),
            resumed_from: request.resumed_from,
            resumes: resume.map(|resume| Resumes {
                session_id: resume.session_id.clone(),
                key: resume.key,
            }),
            held_by,
            created_at: now,
        };
        let mut tx = self.shared.pool.begin().await.map_err(StoreError::from)?;
        tasks::ensure(&mut tx, &task).await?;
        match instances::insert(&mut tx, &new).await {
            Err(StoreError::TaskBusy { task_id }) => {
                drop(tx);
                let instance = instances::active_of_task(&self.shared.pool, &task_id).await?;
                return Err(LaunchError::TaskBusy { task_id, instance });
            }
            Err(StoreError::SessionBusy { instance_id }) => {
                return Err(LaunchError::SessionBusy(instance_id));
            }
            inserted => inserted?,
        }
        let limit = self.shared.settings.upload_total_bytes;
        if !uploads::insert(&mut tx, copies, limit).await? {
            return Err(FileError::Full { limit }.into());
        }
        tx.commit().await.map_err(StoreError::from)?;
        Ok(())
    }

    fn seal(&self, id: InstanceId, request: &LaunchRequest) -> Result<Vec<u8>, LaunchError> {
        let mcp_servers =
            serde_json::to_string(&request.mcp_servers).map_err(|e| LaunchError::Internal(e.to_string()))?;
        let secrets = Secrets {
            env: request.env.clone(),
            mcp_servers,
        };
        self.shared
            .sealer
            .seal(id, &secrets)
            .map_err(|e| LaunchError::Internal(e.to_string()))
    }

    /// Stores the last of what happened and lets every instance go, for the next server to take up; or ends them all.
    pub async fn shut_down(&self, stop_agents: bool) {
        self.closing.cancel();
        if stop_agents {
            self.shared.stop_agents.cancel();
        } else {
            self.shared.leave.cancel();
        }
        self.shared.tracker.close();
        let settings = &self.shared.settings;
        let limit = settings.cancel_grace + settings.stop_grace * 2 + SHUTDOWN_MARGIN;
        let ended = async {
            let mut watchers: Vec<_> = lock(&self.held.handles)
                .values()
                .map(|h| h.view.clone())
                .collect();
            for watcher in &mut watchers {
                // An error means that the task has ended.
                let _ = watcher.wait_for(|_| false).await;
            }
        };
        if tokio::time::timeout(limit, ended).await.is_err() {
            tracing::warn!("some instances have not ended; the next start takes care of them");
        }
        self.close_journal.cancel();
        if tokio::time::timeout(CLOSE_LIMIT, self.shared.tracker.wait())
            .await
            .is_err()
        {
            self.abandon_journal.cancel();
            // What does not end now hangs on the engine, and ends with the process.
            let _ = tokio::time::timeout(CLOSE_LIMIT, self.shared.tracker.wait()).await;
        }
        // Last: what is stored no other server can have begun to go on with.
        self.give_back.cancel();
        self.keepers.wait().await;
    }
}

/// What the seed's callers say by environment variables: the first prompt, and the session to go on with.
fn apply_env(request: &mut LaunchRequest, agent_type: &AgentType) -> Result<(), LaunchError> {
    if request.prompt.is_none()
        && let Some(text) = request
            .env
            .get(TASK_DESCRIPTION)
            .filter(|text| !text.trim().is_empty())
    {
        let prompt = Prompt::text(text).map_err(|e| LaunchError::invalid("env", e.to_string()))?;
        request.prompt = Some(prompt);
    }
    // What a legacy agent goes on with is between the caller and the agent.
    if request.session_id.is_none() && agent_type.protocol != Protocol::Legacy {
        let resume = agent_type
            .resume_env
            .as_ref()
            .and_then(|name| request.env.get(name));
        request.session_id = resume.filter(|id| !id.is_empty()).cloned();
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
