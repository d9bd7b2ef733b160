//! The running agent: what all its threads share.
//!
//! ```text
//! main thread:  stdin → receive ─┬─ answers, cancels ───────→ the turn's Signal
//!                                └─ everything else → jobs → answer thread → stdout
//! turn threads: script → stdout                               └─ starts turn threads
//! ```
//! The main thread changes state and never writes, so that a client which does not read can still cancel. Replies are
//! jobs of the answer thread, in the order of their requests; a prompt's turn is one of these jobs, so that it begins
//! after the replies before it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::config::{Auth, Config, Dialect, Init};
use crate::fault::Process;
use crate::frame::{
    self, AUTH_REQUIRED, INTERNAL_ERROR, INVALID_REQUEST, Id, Incoming, NOT_FOUND, REQUEST_CANCELLED,
    RpcError,
};
use crate::out::{Out, complain};
use crate::session::{Admission, Session, Settings};
use crate::store::{Store, StoredTurn};
use crate::strict::{self, Strict};
use crate::sync::{Answer, NULL_ID, Signal, Workers, lock};
use crate::turn::{self, Turn};
use crate::{acp, kandev, koda};

/// How many replies wait for a client that does not read, before the agent stops reading too.
const MAX_JOBS: usize = 1024;
/// How long running turns may take once stdin has ended.
const LAST_WORK: Duration = Duration::from_secs(30);

type Job = Box<dyn FnOnce() + Send>;

/// When a reply is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delay {
    None,
    Slow(u64),
    Never,
}

/// A reply, with the lines that go before and after it.
pub(crate) struct Reply {
    pub(crate) before: Vec<String>,
    pub(crate) outcome: Answer,
    pub(crate) after: Vec<String>,
    pub(crate) delay: Delay,
    /// After each of the lines before.
    pub(crate) pause: Duration,
    /// Of a slow one that the client may take back: undoes what was done for it.
    pub(crate) undo: Option<Box<dyn FnOnce() + Send>>,
}

impl From<Answer> for Reply {
    fn from(outcome: Answer) -> Self {
        let (before, after, delay) = (Vec::new(), Vec::new(), Delay::None);
        Self {
            before,
            outcome,
            after,
            delay,
            pause: Duration::ZERO,
            undo: None,
        }
    }
}

/// What all threads share.
pub(crate) struct Agent {
    pub(crate) config: Config,
    pub(crate) process: Arc<Process>,
    pub(crate) store: Option<Store>,
    pub(crate) authenticated: AtomicBool,
    /// The params of `initialize`.
    pub(crate) client: Mutex<Value>,
    /// The session of dialects whose prompts name none.
    pub(crate) current: Mutex<Option<Arc<Session>>>,
    pub(crate) workers: Workers,
    /// Nothing, where the client's frames are not checked.
    strict: Option<Strict>,
    /// What Koda's sessions share.
    pub(crate) koda: koda::Shared,
    watched: AtomicBool,
    sessions: Mutex<HashMap<String, Arc<Session>>>,
    pending: Mutex<HashMap<String, Arc<Signal>>>,
    /// Slow replies that the client may take back, by the request's id.
    slow: Mutex<HashMap<String, Arc<Signal>>>,
    next_request: AtomicU64,
    jobs: SyncSender<Job>,
}

impl Agent {
    /// Opens the session store and starts the answer thread.
    pub(crate) fn start(config: Config, process: Arc<Process>) -> std::io::Result<Arc<Self>> {
        let store = config
            .session_dir
            .as_deref()
            .and_then(|dir| match Store::open(dir) {
                Ok(store) => Some(store),
                Err(e) => {
                    complain(&format!(
                        "sessions are kept in memory only: {}: {e}",
                        dir.display()
                    ));
                    None
                }
            });
        let (jobs, queue): (_, Receiver<Job>) = sync_channel(MAX_JOBS);
        let strict = Strict::new(config.dialect, config.strict);
        let agent = Arc::new(Self {
            config,
            process,
            store,
            authenticated: AtomicBool::new(false),
            client: Mutex::new(Value::Null),
            current: Mutex::new(None),
            workers: Workers::default(),
            strict,
            koda: koda::Shared::default(),
            watched: AtomicBool::new(false),
            sessions: Mutex::default(),
            pending: Mutex::default(),
            slow: Mutex::default(),
            next_request: AtomicU64::new(0),
            jobs,
        });
        // It lives as long as the process: the queue is never closed.
        std::thread::Builder::new()
            .name("answers".to_owned())
            .spawn(move || queue.into_iter().for_each(|job| job()))?;
        if agent.config.init == Init::Early {
            let result = match agent.config.dialect {
                Dialect::Kandev => kandev::initialize_result(&agent),
                _ => acp::initialize_result(&agent),
            };
            agent.write_answer(Id("1".to_owned()), &Ok(result));
        }
        Ok(agent)
    }

    pub(crate) fn out(&self) -> &Out {
        &self.process.out
    }

    /// Takes one line of stdin.
    pub(crate) fn receive(self: &Arc<Self>, line: &[u8]) {
        let incoming = frame::parse(line);
        if let Some(Err(problem)) = self.strict.as_ref().map(|strict| strict.check(line, &incoming)) {
            complain(&format!("not of the official schema: {problem}"));
            std::process::exit(strict::EXIT_CODE);
        }
        match incoming {
            Incoming::Blank => {}
            Incoming::Invalid(error) => self.reply(Id::null(), Err(error)),
            Incoming::Answer { id, answer } => self.settle(&id.0, answer),
            Incoming::Call { id, method, params } => match (id, method.as_str()) {
                (None, "session/cancel") => self.cancel(&params),
                (None, "$/cancel_request") => self.cancel_request(&params),
                (None, _) => {}
                (Some(id), "initialize") => self.initialize(id, params),
                (Some(id), method) => match self.config.dialect {
                    Dialect::Kandev => kandev::handle(self, id, method, &params),
                    Dialect::Koda => koda::handle(self, id, method, &params),
                    Dialect::Acp | Dialect::Legacy => acp::handle(self, id, method, &params),
                },
            },
        }
    }

    fn initialize(self: &Arc<Self>, id: Id, params: Value) {
        *lock(&self.client) = params;
        let mut reply = Reply::from(Ok(match self.config.dialect {
            Dialect::Kandev => kandev::initialize_result(self),
            _ => acp::initialize_result(self),
        }));
        match self.config.init {
            Init::Normal => {}
            Init::Slow(ms) => reply.delay = Delay::Slow(ms),
            Init::Never | Init::Early => reply.delay = Delay::Never,
            Init::Error(code) => reply.outcome = Err(RpcError::new(code, "MOCK_INIT says so")),
            Init::Garbage => reply.outcome = Ok(json!("garbage")),
            Init::Version(version) => {
                if let Ok(result) = &mut reply.outcome {
                    result["protocolVersion"] = json!(version);
                }
            }
            Init::Exit(code) => std::process::exit(code),
        }
        self.reply(id, reply);
    }

    /// Sends a reply after those before it.
    pub(crate) fn reply(self: &Arc<Self>, id: Id, reply: impl Into<Reply>) {
        let mut reply = reply.into();
        let agent = Arc::clone(self);
        let undo = reply.undo.take();
        let request = id.clone();
        let write = move || {
            for line in &reply.before {
                agent.out().line(line);
                std::thread::sleep(reply.pause);
            }
            agent.write_answer(id, &reply.outcome);
            reply.after.iter().for_each(|line| agent.out().line(line));
        };
        match reply.delay {
            Delay::None => self.job(write),
            Delay::Never => {}
            Delay::Slow(ms) => {
                let (agent, signal) = (Arc::clone(self), Arc::new(Signal::default()));
                if undo.is_some() {
                    lock(&self.slow).insert(request.0.clone(), Arc::clone(&signal));
                }
                let spawned = self.workers.spawn("slow", move || {
                    let taken_back = signal.sleep(Duration::from_millis(ms)).is_err();
                    lock(&agent.slow).remove(&request.0);
                    match undo.filter(|_| taken_back) {
                        Some(undo) => {
                            undo();
                            let error = RpcError::new(REQUEST_CANCELLED, "Request cancelled");
                            agent.write_answer(request, &Err(error));
                        }
                        None => write(),
                    }
                });
                if let Err(e) = spawned {
                    complain(&format!("no thread for a slow reply: {e}"));
                }
            }
        }
    }

    /// Writes an answer now.
    pub(crate) fn write_answer(&self, id: Id, outcome: &Answer) {
        self.out().line(&self.answer_line(id, outcome));
    }

    /// The line of an answer, in the dialect.
    pub(crate) fn answer_line(&self, id: Id, outcome: &Answer) -> String {
        let id = if self.config.text_ids { id.into_text() } else { id };
        match outcome {
            Err(error) if self.config.dialect == Dialect::Koda => {
                frame::answer(&id, &Err(koda::typed(error)))
            }
            outcome => frame::answer(&id, outcome),
        }
    }

    fn job(&self, job: impl FnOnce() + Send + 'static) {
        // The receiver lives as long as the process.
        let _ = self.jobs.send(Box::new(job));
    }

    /// Lets a turn into its session, and starts it when it is its turn.
    pub(crate) fn admit(self: &Arc<Self>, turn: Arc<Turn>) {
        match turn.session.admit(&turn, self.config.busy) {
            Admission::Start => self.start_turn(turn),
            Admission::Wait | Admission::Drop => {}
            Admission::Busy => {
                let error = RpcError::new(INVALID_REQUEST, "the session is busy with another prompt");
                self.reply(turn.id.clone(), Err(error));
            }
        }
    }

    pub(crate) fn start_turn(self: &Arc<Self>, turn: Arc<Turn>) {
        let agent = Arc::clone(self);
        self.job(move || {
            let (id, session) = (turn.id.clone(), Arc::clone(&turn.session));
            if let Err(e) = agent.workers.spawn("turn", move || turn::run(&turn)) {
                session.finish(StoredTurn::empty("error"));
                let error = RpcError::new(INTERNAL_ERROR, format!("no thread for the turn: {e}"));
                agent.write_answer(id, &Err(error));
            }
        });
    }

    fn cancel(&self, params: &Value) {
        if self.config.exit_on_cancel {
            std::process::exit(0);
        }
        let named = params["sessionId"].as_str().map(|id| self.session(id));
        let session = match named {
            Some(found) => found.ok(),
            None => lock(&self.current).clone(),
        };
        if let Some(session) = session {
            session.cancel();
        }
    }

    fn cancel_request(&self, params: &Value) {
        let wanted = params["requestId"].to_string();
        if let Some(slow) = lock(&self.slow).get(&wanted) {
            slow.cancel();
        }
        for session in self.sessions() {
            session.for_each_turn(|turn| {
                if turn.id.0 == wanted && !session.ignore_cancel.load(Ordering::SeqCst) {
                    turn.signal.cancel();
                }
            });
        }
    }

    /// Hands the client's answer to the turn that waits for it. An answer without id goes to every turn.
    fn settle(&self, id: &str, answer: Answer) {
        if id == NULL_ID {
            for session in self.sessions() {
                session.for_each_turn(|turn| turn.signal.answer(id, answer.clone()));
            }
        } else if let Some(signal) = lock(&self.pending).remove(id) {
            signal.answer(id, answer);
        }
    }

    /// Sends a request to the client, and returns its id's text.
    pub(crate) fn request(
        &self,
        id: Option<String>,
        method: &str,
        params: &Value,
        to: &Arc<Signal>,
    ) -> String {
        let id = id.unwrap_or_else(|| self.next_request.fetch_add(1, Ordering::SeqCst).to_string());
        lock(&self.pending).insert(id.clone(), Arc::clone(to));
        if let Some(strict) = &self.strict {
            strict.asks(&id, method);
        }
        self.out().line(&frame::request(&id, method, params));
        id
    }

    /// Forgets the requests of a turn that ended.
    pub(crate) fn forget(&self, signal: &Arc<Signal>) {
        lock(&self.pending).retain(|_, waiting| !Arc::ptr_eq(waiting, signal));
    }

    /// The line of a `session/update`, in the dialect.
    pub(crate) fn update_line(&self, session_id: &str, update: &Value) -> String {
        let params = match self.config.dialect {
            Dialect::Kandev => kandev::update_params(update),
            _ => json!({"sessionId": session_id, "update": update}),
        };
        frame::notification("session/update", &params)
    }

    /// Opens a session in memory, and on disk if it is new there.
    pub(crate) fn open(
        self: &Arc<Self>,
        id: String,
        origin: &'static str,
        cwd: String,
        mcp_servers: Value,
        history: Vec<StoredTurn>,
    ) -> Arc<Session> {
        if let (Some(store), "new" | "fork") = (&self.store, origin)
            && let Err(e) = store.create(&id, &cwd, &history)
        {
            complain(&format!("session {id} is not stored: {e}"));
        }
        let settings = match self.config.dialect {
            Dialect::Koda => koda::default_settings(self),
            _ => Settings::default(),
        };
        let session = Arc::new(Session::new(id, origin, cwd, mcp_servers, history, settings));
        if self.config.dialect == Dialect::Koda {
            let file = self
                .store
                .as_ref()
                .and_then(|store| store.beside(&session.id, "subagents"));
            session.subagents.open(file, origin);
            koda::watch::start(self, &self.watched);
        }
        lock(&self.sessions).insert(session.id.clone(), Arc::clone(&session));
        *lock(&self.current) = Some(Arc::clone(&session));
        session
    }

    pub(crate) fn session(&self, id: &str) -> Result<Arc<Session>, RpcError> {
        let found = lock(&self.sessions).get(id).cloned();
        found.ok_or_else(|| not_found(id))
    }

    pub(crate) fn sessions(&self) -> Vec<Arc<Session>> {
        lock(&self.sessions).values().cloned().collect()
    }

    pub(crate) fn close(&self, id: &str) -> Result<(), RpcError> {
        let session = lock(&self.sessions).remove(id).ok_or_else(|| not_found(id))?;
        session.for_each_turn(|turn| turn.signal.cancel());
        Ok(())
    }

    /// Forgets a session, in memory and on disk.
    pub(crate) fn delete(&self, id: &str) -> Result<(), RpcError> {
        let in_memory = self.close(id);
        let stored = self.store.as_ref().map(|store| store.delete(id));
        match stored {
            Some(Err(e)) if e.kind() != std::io::ErrorKind::NotFound => {
                let message = format!("session {id} cannot be deleted: {e}");
                Err(RpcError::new(INTERNAL_ERROR, message))
            }
            Some(Ok(())) => Ok(()),
            Some(Err(_)) | None => in_memory,
        }
    }

    /// Directory and turns of a session in memory or on disk.
    pub(crate) fn past(&self, id: &str) -> Result<(String, Vec<StoredTurn>), RpcError> {
        if let Ok(session) = self.session(id) {
            if session.is_busy() {
                return Err(RpcError::new(
                    INVALID_REQUEST,
                    "the session is busy with a prompt",
                ));
            }
            return Ok((session.cwd.clone(), session.with(|state| state.history.clone())));
        }
        let Some(store) = &self.store else {
            return Err(not_found(id));
        };
        match store.load(id) {
            Ok(Some(stored)) => Ok((stored.header.cwd, stored.turns)),
            Ok(None) => Err(not_found(id)),
            Err(e) => Err(RpcError::new(
                INTERNAL_ERROR,
                format!("session {id} cannot be read: {e}"),
            )),
        }
    }

    /// Fails until the client has authenticated, where it must.
    pub(crate) fn check_auth(&self) -> Result<(), RpcError> {
        if self.config.auth != Auth::None && !self.authenticated.load(Ordering::SeqCst) {
            return Err(RpcError::new(AUTH_REQUIRED, "Authentication required"));
        }
        Ok(())
    }

    /// What happens when stdin ends: the work there is gets done, and the process exits.
    pub(crate) fn end(self: &Arc<Self>) {
        if !self.process.ignores_eof() {
            for session in self.sessions() {
                session.for_each_turn(|turn| turn.signal.end_stdin());
                session.subagents.stop();
            }
            let (done, barrier) = sync_channel(1);
            let mark = move || {
                let _ = done.send(());
            };
            if self.jobs.try_send(Box::new(mark)).is_ok() {
                let _ = barrier.recv_timeout(LAST_WORK);
            }
            self.workers.wait(LAST_WORK);
            if !self.process.ignores_eof() {
                std::process::exit(0);
            }
        }
        loop {
            std::thread::park();
        }
    }
}

fn not_found(id: &str) -> RpcError {
    let error = RpcError::new(NOT_FOUND, format!("Resource not found: session {id}"));
    error.with_data(json!({"reason": "not_found", "details": format!("there is no session '{id}'")}))
}
