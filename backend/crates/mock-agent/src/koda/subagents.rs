//! Subagents: tasks that work beside the turn that started them.
//!
//! ```text
//! run_subagent ─► running ─► completed | failed ─► delivered to the model, at a boundary of the turn or in a turn of its own
//!                   │  ▲
//!                   │  └── extend ── stalled
//!                   └── cancel ─► cancelled
//! ```
//! Each works in a thread; what it tells comes in no order with what others tell.

mod methods;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::roles::{self, Catalogue, Role};
use super::{models, settings};
use crate::agent::Agent;
use crate::clock;
use crate::out::complain;
use crate::session::Session;
use crate::sync::lock;
use crate::turn::{Halt, Run, message_chunk};

pub(crate) use methods::manage;

/// How many steps one run may have.
const MAX_STEPS: u64 = 50;
/// How many lines of its history are shown, and how long each is.
const MAX_HISTORY: usize = 400;
const MAX_TEXT: usize = 2000;
/// Tasks a session keeps; the oldest go first.
const MAX_TASKS: usize = 1000;
/// How often one who waits looks whether the turn was cancelled.
const LOOK: Duration = Duration::from_millis(10);
const MAX_TOKENS: u64 = 200_000;

/// How a run ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Complete,
    Fail,
    /// It does nothing more until it is extended or cancelled.
    Stall,
}

/// What a subagent is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) text: String,
    pub(crate) role: Option<String>,
    pub(crate) steps: u64,
    /// Before each step.
    pub(crate) pause: Duration,
    pub(crate) end: End,
    /// All that it tells comes at its end, the newest first.
    pub(crate) backwards: bool,
}

impl Start {
    pub(crate) fn of(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            role: None,
            steps: 1,
            pause: Duration::ZERO,
            end: End::Complete,
            backwards: false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Status {
    Running,
    Stalled,
    Completed,
    Failed,
    Cancelled,
}

/// As it is kept on disk.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Task {
    id: String,
    description: String,
    role: Option<String>,
    call: Option<String>,
    status: Status,
    /// Since 1970.
    updated_ms: u64,
    used: Option<u64>,
    history: VecDeque<Value>,
    result: String,
    delivery: Option<String>,
    /// Its result is the model's, once it has ended and until it is delivered.
    for_model: bool,
    #[serde(skip)]
    compressing: bool,
    /// Which run of it this is.
    #[serde(skip)]
    run: u64,
}

#[derive(Default)]
struct Tasks {
    list: Vec<Task>,
    last_ms: u64,
    started: usize,
    deliveries: usize,
    /// The prompt whose turn waits for subagents.
    waiting: Option<String>,
    /// The one whose turn waits no more.
    released: Option<String>,
    stopped: bool,
    catalogue: Option<Catalogue>,
    file: Option<PathBuf>,
}

/// The subagents of a session.
#[derive(Default)]
pub(crate) struct Subagents {
    state: Mutex<Tasks>,
    changed: Condvar,
    /// Held from a look at the roles' files until what is new there is on its way to the client.
    pub(crate) files: Mutex<()>,
}

impl Task {
    const fn has_ended(&self) -> bool {
        matches!(
            self.status,
            Status::Completed | Status::Failed | Status::Cancelled
        )
    }

    fn snapshot(&self) -> Value {
        let context = self
            .used
            .map(|used| json!({"usedTokens": used, "maxTokens": MAX_TOKENS}));
        let mut snapshot = json!({
            "taskId": self.id, "description": self.description, "status": self.status, "agentName": self.role,
            "acpToolCallId": self.call, "contextUsage": context,
            "updatedAt": clock::rfc3339(Duration::from_millis(self.updated_ms)),
        });
        if self.has_ended() {
            snapshot["result"] = json!(self.result);
        }
        snapshot
    }

    fn update(&self, activity: Option<Value>) -> Value {
        let mut update = json!({"sessionUpdate": "subagent_update", "task": self.snapshot()});
        if let Some(activity) = activity {
            update["activity"] = activity;
        }
        if let Some(delivery) = self.delivery.as_ref().filter(|_| self.has_ended()) {
            update["deliveryId"] = json!(delivery);
        }
        update
    }

    fn remember(&mut self, row: Value) {
        if self.history.len() == MAX_HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(row);
    }
}

fn row(kind: &str, text: &str) -> Value {
    json!({"kind": kind, "text": text.chars().take(MAX_TEXT).collect::<String>()})
}

impl Tasks {
    /// Changes a task and the time of its change, which never stands still.
    fn change<T>(&mut self, id: &str, f: impl FnOnce(&mut Task) -> T) -> Option<T> {
        let now = u64::try_from(clock::since_epoch().as_millis()).unwrap_or(u64::MAX);
        self.last_ms = now.max(self.last_ms + 1);
        let task = self.list.iter_mut().find(|task| task.id == id)?;
        task.updated_ms = self.last_ms;
        Some(f(task))
    }

    fn running(&self) -> Vec<String> {
        let running = self.list.iter().filter(|task| task.status == Status::Running);
        running.map(|task| task.id.clone()).collect()
    }

    fn save(&self) {
        if let Some(file) = &self.file
            && let Err(e) = serde_json::to_vec(&self.list)
                .map_err(Into::into)
                .and_then(|bytes| std::fs::write(file, bytes))
        {
            complain(&format!("subagents are not stored: {e}"));
        }
    }
}

impl Subagents {
    fn with<T>(&self, f: impl FnOnce(&mut Tasks) -> T) -> T {
        let done = f(&mut lock(&self.state));
        self.changed.notify_all();
        done
    }

    /// Takes what was kept of the tasks of a session that is loaded; what had not ended stands still.
    pub(crate) fn open(&self, file: Option<PathBuf>, origin: &str) {
        let kept = file.as_ref().filter(|_| origin == "load");
        let kept = kept.and_then(|file| std::fs::read(file).ok());
        let mut list: Vec<Task> = kept
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default();
        for task in &mut list {
            if task.status == Status::Running {
                task.status = Status::Stalled;
            }
        }
        self.with(|tasks| {
            tasks.last_ms = list.iter().map(|task| task.updated_ms).max().unwrap_or(0);
            tasks.started = list.len();
            tasks.list = list;
            tasks.file = file;
        });
    }

    /// Nobody wants to know any more.
    pub(crate) fn stop(&self) {
        self.with(|tasks| tasks.stopped = true);
    }

    /// Keeps the roles that the client is told of. The update, if they are others than before.
    pub(crate) fn new_catalogue(&self, found: Catalogue) -> Option<Value> {
        self.with(|tasks| {
            let update = found.update();
            let old = tasks.catalogue.replace(found.clone());
            // What was there at first was not a change.
            (old.unwrap_or_default() != found).then_some(update)
        })
    }
}

pub(crate) fn capability() -> Value {
    let (least, most) = settings::CONCURRENT;
    json!({
        "maxConcurrentRange": {"min": least, "max": most}, "maxSteps": MAX_STEPS,
        "releaseWait": true, "liveEnable": true, "roles": true,
    })
}

/// Whether the client said that it knows what it would be told.
pub(crate) fn is_understood(agent: &Agent) -> bool {
    agent.config.has("subagents") && lock(&agent.client)["clientCapabilities"]["subagents"] == true
}

/// Tells a client that understands it.
pub(crate) fn tell(agent: &Agent, session: &Session, update: &Value) {
    if is_understood(agent) {
        agent.out().line(&agent.update_line(&session.id, update));
    }
}

/// The tasks and the settings.
pub(crate) fn block(agent: &Agent, session: &Session) -> Value {
    let (settings, available) = settings::describe(agent, session);
    let tasks = session.subagents.with(|tasks| {
        let all = tasks.list.iter();
        all.map(Task::snapshot).collect::<Vec<_>>()
    });
    json!({"tasks": tasks, "settings": settings, "availableTools": available})
}

/// What a client that understands it is told of a session that was opened.
pub(crate) fn at_start(agent: &Agent, session: &Session) -> Vec<Value> {
    if !is_understood(agent) {
        return Vec::new();
    }
    let found = roles::catalogue(agent, &session.cwd);
    let mut updates = vec![settings::update(agent, session), found.update()];
    session.subagents.new_catalogue(found);
    updates.extend(session.subagents.with(|tasks| {
        let all = tasks.list.iter();
        all.map(|task| task.update(None)).collect::<Vec<_>>()
    }));
    updates
}

/// The tool call that starts one. What stands in its way is the call's failure.
pub(crate) fn call(run: &mut Run<'_>, start: &Start) {
    let call = run.next_call();
    let title = format!(
        "run_subagent: {}",
        start.text.chars().take(60).collect::<String>()
    );
    run.update(json!({
        "sessionUpdate": "tool_call", "toolCallId": call, "title": title, "kind": "other", "status": "in_progress",
        "rawInput": {"task": start.text, "agent": start.role},
    }));
    let (agent, session) = (run.agent(), &run.turn.session);
    let (status, said) = match begin(agent, session, start, Some(call.clone())) {
        Ok(id) => ("completed", format!("started {id}")),
        Err(problem) => ("failed", problem),
    };
    run.update(json!({
        "sessionUpdate": "tool_call_update", "toolCallId": call, "title": title, "status": status,
        "content": [{"type": "content", "content": {"type": "text", "text": said}}],
    }));
}

/// The role, if it can be used now.
fn role(agent: &Agent, session: &Session, name: &str) -> Result<Role, String> {
    let disabled = agent
        .koda
        .with(|shared| shared.subagents.disabled_roles.iter().any(|off| off == name));
    if disabled {
        return Err(format!("role '{name}' is disabled"));
    }
    let found = roles::catalogue(agent, &session.cwd);
    let role = found
        .find(name)
        .ok_or_else(|| format!("there is no role '{name}'"))?;
    match &role.model {
        Some(model) if !models::is_there(&session.settings(), model) => {
            Err(format!("role '{name}' has a model that is not there"))
        }
        _ => Ok(role.clone()),
    }
}

fn begin(
    agent: &Arc<Agent>,
    session: &Arc<Session>,
    start: &Start,
    call: Option<String>,
) -> Result<String, String> {
    let (enabled, most) = agent
        .koda
        .with(|shared| (shared.subagents.enabled, shared.subagents.max_concurrent));
    if !enabled {
        return Err("subagents are disabled".to_owned());
    }
    if let Some(name) = &start.role {
        role(agent, session, name)?;
    }
    let id = session.subagents.with(|tasks| {
        if tasks.running().len() as u64 >= most {
            return Err(format!("{most} subagents run already"));
        }
        if tasks.list.len() == MAX_TASKS {
            tasks.list.remove(0);
        }
        tasks.started += 1;
        let id = format!("task-{}", tasks.started);
        tasks.list.push(Task {
            id: id.clone(),
            description: start.text.clone(),
            role: start.role.clone(),
            call,
            status: Status::Running,
            updated_ms: 0,
            used: None,
            history: VecDeque::from([row("user", &start.text)]),
            result: String::new(),
            delivery: None,
            for_model: true,
            compressing: false,
            run: 0,
        });
        Ok(id)
    })?;
    go(agent, session, &id, start, true);
    Ok(id)
}

/// Lets a task run, from now on.
fn go(agent: &Arc<Agent>, session: &Arc<Session>, id: &str, start: &Start, for_model: bool) {
    let (run, update) = session.subagents.with(|tasks| {
        let begun = tasks.change(id, |task| {
            task.status = Status::Running;
            task.for_model = for_model;
            task.delivery = None;
            task.run += 1;
            (task.run, task.update(None))
        });
        tasks.save();
        begun.unwrap_or_default()
    });
    let (of, on, start, id) = (
        Arc::clone(agent),
        Arc::clone(session),
        start.clone(),
        id.to_owned(),
    );
    let spawned = agent.workers.spawn("subagent", move || {
        let mut held = Vec::new();
        let mut emit = |update: Value| {
            if start.backwards {
                held.push(update);
            } else {
                tell(&of, &on, &update);
            }
        };
        emit(update);
        work(&on, &id, run, &start, &mut emit);
        held.iter().rev().for_each(|update| tell(&of, &on, update));
        deliver_if_idle(&of, &on);
    });
    if let Err(e) = spawned {
        complain(&format!("no thread for a subagent: {e}"));
    }
}

/// The run itself, until its end or until it is another's.
fn work(session: &Session, id: &str, run: u64, start: &Start, emit: &mut impl FnMut(Value)) {
    for n in 1..=start.steps.min(MAX_STEPS) {
        if !pause(session, id, run, start.pause) {
            return;
        }
        let kind = if n % 2 == 1 { "tool" } else { "model" };
        let text = format!("step {n}");
        let update = session.subagents.with(|tasks| {
            tasks.change(id, |task| {
                task.used = Some(task.used.unwrap_or(0) + 1000);
                task.remember(row(kind, &text));
                let activity = json!({"kind": kind, "status": "completed", "text": text});
                task.update(Some(activity))
            })
        });
        update.into_iter().for_each(&mut *emit);
    }
    if start.steps == 0 && !pause(session, id, run, start.pause) {
        return;
    }
    let update = session.subagents.with(|tasks| {
        let update = tasks.change(id, |task| {
            if task.status != Status::Running || task.run != run {
                return None;
            }
            let (status, result) = match start.end {
                End::Complete => (Status::Completed, format!("done: {}", start.text)),
                End::Fail => (Status::Failed, "it went wrong".to_owned()),
                End::Stall => (Status::Stalled, String::new()),
            };
            task.status = status;
            if status != Status::Stalled {
                task.remember(row("model", &result));
            }
            task.result = result;
            Some(task.update(None))
        });
        tasks.save();
        update.flatten()
    });
    update.into_iter().for_each(emit);
}

/// Waits; false once the run is over.
fn pause(session: &Session, id: &str, run: u64, time: Duration) -> bool {
    let is_on = |tasks: &Tasks| {
        let task = tasks.list.iter().find(|task| task.id == id);
        !tasks.stopped && task.is_some_and(|task| task.run == run && task.status == Status::Running)
    };
    let guard = lock(&session.subagents.state);
    let waited = session
        .subagents
        .changed
        .wait_timeout_while(guard, time, |tasks| is_on(tasks));
    let (tasks, _) = waited.unwrap_or_else(PoisonError::into_inner);
    is_on(&tasks)
}

/// Gives the model what has ended: the updates that tell so, and what it reads.
fn deliver(session: &Session) -> Vec<(Value, String)> {
    session.subagents.with(|tasks| {
        let due = |task: &&Task| task.for_model && task.has_ended();
        let due: Vec<String> = tasks
            .list
            .iter()
            .filter(due)
            .map(|task| task.id.clone())
            .collect();
        let mut delivered = Vec::new();
        for id in due {
            tasks.deliveries += 1;
            let delivery = format!("delivery-{}", tasks.deliveries);
            delivered.extend(tasks.change(&id, |task| {
                task.for_model = false;
                task.delivery = Some(delivery);
                (
                    task.update(None),
                    format!("subagent {}: {}\n", task.id, task.result),
                )
            }));
        }
        tasks.save();
        delivered
    })
}

/// A boundary between the groups of tool calls of a turn: subagents are waited for, if so set, and their results read.
pub(crate) fn boundary(run: &mut Run<'_>) -> Result<(), Halt> {
    let (agent, session) = (run.agent(), Arc::clone(&run.turn.session));
    let prompt = run.prompt_id();
    let goes_on = || {
        agent
            .koda
            .with(|shared| shared.subagents.allow_parent_to_continue)
    };
    let mut ids = session.subagents.with(|tasks| {
        if tasks.released.as_ref() == Some(&prompt) || goes_on() {
            return Vec::new();
        }
        let ids = tasks.running();
        if !ids.is_empty() {
            tasks.waiting = Some(prompt.clone());
        }
        ids
    });
    if !ids.is_empty() {
        let marker = |state: &str, ids: &[String]| json!({"sessionUpdate": "subagent_turn", "state": state, "promptId": prompt, "taskIds": ids});
        tell(agent, &session, &marker("waiting", &ids));
        loop {
            let waits = session.subagents.with(|tasks| {
                let running = tasks.running();
                tasks.waiting.is_some() && !goes_on() && ids.iter().any(|id| running.contains(id))
            });
            if !waits || run.turn.signal.is_over() {
                break;
            }
            std::thread::sleep(LOOK);
        }
        session.subagents.with(|tasks| tasks.waiting = None);
        tell(agent, &session, &marker("resumed", &ids));
        ids.clear();
    }
    run.turn.signal.check()?;
    for (update, text) in deliver(&session) {
        tell(agent, &session, &update);
        run.say(&text);
    }
    Ok(())
}

/// A turn that no prompt began, if there is something to deliver and no other turn that will.
pub(crate) fn deliver_if_idle(agent: &Arc<Agent>, session: &Session) {
    if session.is_busy() {
        return;
    }
    let delivered = deliver(session);
    if delivered.is_empty() {
        return;
    }
    let prompt = session
        .subagents
        .with(|tasks| format!("own-{}", tasks.deliveries));
    let marker = |state: &str| json!({"sessionUpdate": "subagent_turn", "state": state, "promptId": prompt});
    tell(agent, session, &marker("started"));
    for (update, text) in &delivered {
        tell(agent, session, update);
        agent
            .out()
            .line(&agent.update_line(&session.id, &message_chunk(text)));
    }
    tell(agent, session, &marker("finished"));
}
