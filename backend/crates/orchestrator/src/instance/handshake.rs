//! From the container's start to a session that takes prompts.
//!
//! ```text
//! initialize ─► session/new | session/resume | session/load ─► mode, model, options ─► Ready
//!                    │    ▲
//!        -32000 ─► authenticate, once, if the environment answers one of the agent's methods (login.rs)
//!
//! Where a method was named, by the launch or by a caller later, authenticate comes before the session.
//! ```

use kandev_acp::dialect::{self, ClientInfo, Negotiated};
use kandev_acp::{Dialect, RpcError};
use kandev_domain::agent_type::Protocol;
use kandev_domain::{EventKind, FailureCode, LogLevel, SessionKey, TurnId};
use kandev_store::journal::Change;
use kandev_store::sessions::{NewSession, SessionFacet};
use kandev_store::tasks::TaskMetadata;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::actor::{Actor, Phase, SessionRef};
use super::asks::Asked;
use super::choices::{self, INHERITED_FACETS, Offered, Setting, Step};
use super::ending::{Cause, Failure};
use super::setup::{DIRECTORIES, MCP_SERVERS, Setup};
use super::state;
use crate::launch::{OnLost, ResumeFrom};

/// Longest thing that is kept of a session, in bytes of JSON. Real agents' lists of commands have half a MiB.
const MAX_FACET: usize = 4 << 20;

/// What an answer of the agent's belongs to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Call {
    Initialize,
    Authenticate,
    NewSession,
    /// `session/load` or `session/resume`.
    OldSession,
    Configure(Step),
    Prompt(TurnId),
    Asked(Asked),
}

/// Updates that say what has happened, not what the session is like.
pub(super) const HISTORY: [&str; 5] = [
    "user_message_chunk",
    "agent_message_chunk",
    "agent_thought_chunk",
    "tool_call",
    "tool_call_update",
];

/// A `session/load` or `session/resume` of a session whose history kandev has already.
#[derive(Debug)]
pub(super) struct Replay {
    /// By `session/resume`, which replays nothing; some agents do it all the same.
    pub silent: bool,
    pub updates: u64,
    /// How many of them are in the lines that are counted on record.
    pub stored: u64,
}

impl Replay {
    const fn new(silent: bool) -> Self {
        Self {
            silent,
            updates: 0,
            stored: 0,
        }
    }
}

impl Actor {
    /// Makes the first request, whose answer counts from now on.
    pub(super) fn prepare_handshake(&mut self) {
        if self.is_legacy() {
            return;
        }
        let protocol = self.spec.agent_type.protocol;
        self.peer.set_lenient_ids(protocol != Protocol::Acp);
        let params = self.initialize_params();
        match self.peer.request(Call::Initialize, "initialize", &params) {
            Ok((_, frame)) => self.initialize = Some(frame),
            Err(error) => self.fail(FailureCode::HandshakeFailed, error.to_string()),
        }
    }

    /// What the agent is told of kandev.
    pub(super) fn initialize_params(&self) -> Value {
        let entry = &self.spec.agent_type;
        let info = ClientInfo {
            name: "kandev".to_owned(),
            title: Some("kandev".to_owned()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        dialect::initialize_params(entry.protocol, &info, &entry.client_capabilities)
    }

    /// The container runs: the time of the handshake begins.
    pub(super) fn begin_handshake(&mut self) {
        self.log(LogLevel::Info, "container started".to_owned());
        if self.is_legacy() {
            return self.ready();
        }
        self.handshake_until = Some(Instant::now() + self.shared.settings.handshake_timeout);
        if let Some(frame) = self.initialize.take() {
            self.send(frame);
        }
    }

    /// Sends a request that belongs to the handshake or follows it.
    pub(super) fn call(&mut self, tag: Call, call: (&'static str, Value)) {
        match self.peer.request(tag, call.0, &call.1) {
            Ok((_, frame)) => self.send(frame),
            Err(error) => self.fail(FailureCode::ProtocolError, error.to_string()),
        }
    }

    pub(super) fn fail(&mut self, code: FailureCode, message: String) {
        self.end(Cause::Failed(Failure {
            code,
            message,
            details: None,
            transient: false,
        }));
    }

    fn fail_with(&mut self, code: FailureCode, message: String, error: &RpcError) {
        let details = super::raw(error);
        self.end(Cause::Failed(Failure {
            code,
            message,
            details: Some(details),
            transient: false,
        }));
    }

    /// An answer to one of our requests.
    pub(super) fn answered(&mut self, id: u64, tag: Call, outcome: Result<Box<RawValue>, RpcError>) {
        if self.ending.is_some() && !matches!(tag, Call::Prompt(_) | Call::Asked(_)) {
            return;
        }
        match (tag, outcome) {
            (Call::Initialize, Ok(result)) => self.initialized(&result),
            (Call::Initialize, Err(error)) => {
                let message = format!("the agent refused initialize: {}", error.message);
                self.fail_with(FailureCode::HandshakeFailed, message, &error);
            }
            (Call::Authenticate, Ok(_)) => self.open_session(),
            (Call::NewSession, Ok(result)) => self.session_established(&result, "new"),
            (Call::OldSession, Ok(result)) => {
                let how = if self.replay.as_ref().is_some_and(|replay| !replay.silent) {
                    "loaded"
                } else {
                    "resumed"
                };
                self.session_established(&result, how);
            }
            (Call::NewSession | Call::OldSession, Err(error)) if error.is_auth_required() => {
                self.authenticate(&error);
            }
            (Call::Authenticate, Err(error)) => self.auth_required(&error),
            (Call::NewSession, Err(error)) => {
                let message = format!("the agent refused session/new: {}", error.message);
                self.fail_with(FailureCode::HandshakeFailed, message, &error);
            }
            (Call::OldSession, Err(error)) => {
                self.session_lost(
                    format!("the agent did not resume the session: {}", error.message),
                    &error,
                );
            }
            (Call::Configure(step), Err(error)) => {
                let message = format!("the agent refused {}: {}", step.setting.describe(), error.message);
                if !step.again {
                    return self.fail_with(FailureCode::HandshakeFailed, message, &error);
                }
                self.log(LogLevel::Warn, format!("{message}; the session had it before"));
                self.configure_next();
            }
            (Call::Configure(step), Ok(result)) => {
                self.was_set(&step.setting, &result);
                self.configure_next();
            }
            (Call::Prompt(turn), outcome) => self.prompt_answered(turn, outcome),
            (Call::Asked(asked), outcome) => self.ask_answered(id, &asked, outcome),
        }
    }

    fn initialized(&mut self, result: &RawValue) {
        let negotiated = match dialect::negotiate(self.spec.agent_type.protocol, result) {
            Ok(negotiated) => negotiated,
            Err(error) => return self.fail(FailureCode::HandshakeFailed, error.to_string()),
        };
        self.peer.set_lenient_ids(negotiated.dialect == Dialect::Kandev);
        self.agent = Some(negotiated);
        let setup = self.setup();
        self.log_skipped(&setup);
        match self.login.method.clone() {
            Some(method) => self.log_in(&method),
            None => self.open_session(),
        }
    }

    pub(super) fn open_session(&mut self) {
        let Some(agent) = &self.agent else { return };
        let (dialect, methods) = (agent.dialect, agent.session);
        let cwd = self.spec.agent_type.working_dir.clone();
        let Setup {
            servers, additional, ..
        } = self.setup();
        let resume = self.resuming().cloned();
        let call = match resume {
            None => (Call::NewSession, dialect.session_new(&cwd, &servers, &additional)),
            Some(resume) => {
                // With a history of our own a silent resume is enough. Without one the replay is the history.
                let silent = dialect.session_resume(&resume.session_id, &cwd, &servers, &additional);
                let known = resume.key.is_some();
                match silent.filter(|_| methods.resume && (known || !methods.load)) {
                    Some(call) => {
                        self.replay = known.then(|| Replay::new(true));
                        (Call::OldSession, call)
                    }
                    None if methods.load => {
                        self.replay = known.then(|| Replay::new(false));
                        (
                            Call::OldSession,
                            dialect.session_load(&resume.session_id, &cwd, &servers, &additional),
                        )
                    }
                    None => {
                        let error = RpcError::method_not_found("session/load");
                        return self.session_lost("the agent cannot resume sessions".to_owned(), &error);
                    }
                }
            }
        };
        self.call(call.0, call.1);
    }

    fn session_lost(&mut self, message: String, error: &RpcError) {
        if self.spec.options.on_lost == OnLost::Fail {
            return self.fail_with(FailureCode::SessionLost, message, error);
        }
        self.log(
            LogLevel::Warn,
            format!("{message}; a fresh session is started, as the launch allows"),
        );
        if let Some(resume) = &mut self.spec.resume {
            resume.lost = true;
        }
        self.permissions.forget_answers();
        self.costs = super::costs::Costs::default();
        self.replay = None;
        self.open_session();
    }

    /// The session to go on with, unless it is lost.
    pub(super) fn resuming(&self) -> Option<&ResumeFrom> {
        self.spec.resume.as_ref().filter(|resume| !resume.lost)
    }

    fn session_established(&mut self, result: &RawValue, how: &'static str) {
        let Some(agent) = &self.agent else { return };
        let dialect = agent.dialect;
        let info = dialect::session_established(dialect, result);
        let resumed = self.resuming();
        let id = info
            .session_id
            .clone()
            .or_else(|| resumed.map(|r| r.session_id.clone()));
        let Some(id) = id else {
            let message = "the agent's answer to session/new has no sessionId".to_owned();
            return self.fail(FailureCode::HandshakeFailed, message);
        };
        let known = resumed.and_then(|r| r.key);
        let key = known.unwrap_or_else(SessionKey::generate);
        self.session = Some(SessionRef { key, id: id.clone() });
        if known.is_none() {
            self.record_session(key, id.clone(), None);
        }
        self.outbox.patch(|p| p.session_key = Some(key));
        let keys =
            std::iter::once("session_id".to_owned()).chain(self.spec.agent_type.session_metadata_key.clone());
        let entries = keys.map(|k| (k, id.clone())).collect();
        self.outbox.change(Change::Task(TaskMetadata {
            task_id: self.spec.task_id.clone(),
            entries,
        }));
        let replayed = self.replay.take().filter(|r| !r.silent || r.updates > 0);
        let replayed = replayed.map(|r| r.updates);
        let Setup {
            told, directories, ..
        } = self.setup();
        self.facet(MCP_SERVERS, &super::raw(&told));
        self.facet(DIRECTORIES, &super::raw(&directories));
        let data = json!({
            "session_id": id, "how": how, "replayed_updates": replayed, "mcp_servers": told,
            "additional_directories": directories,
        });
        self.event(EventKind::Session, &data);
        for (facet, value) in std::mem::take(&mut self.early_facets) {
            self.outbox.facet(SessionFacet {
                session_key: key,
                facet: facet.into(),
                value: String::from(Box::<str>::from(value)),
            });
        }
        self.keep_facets(&info);
        self.outbox.durable();
        self.plan_configuration(&info, result.get() == "null");
        self.configure_next();
    }

    /// A session of the agent's that is new to us, branched off another one or not.
    pub(super) fn record_session(&mut self, key: SessionKey, id: String, forked_from: Option<SessionKey>) {
        self.outbox.change(Change::Session(NewSession {
            key,
            session_id: id,
            agent_type: self.spec.agent_type.id.clone(),
            workspace_path: self.spec.workspace.to_string_lossy().into_owned(),
            task_id: self.spec.task_id.clone(),
            created_at: self.shared.clock.now(),
            forked_from,
        }));
    }

    fn keep_facets(&mut self, info: &dialect::SessionInfo) {
        for (facet, value) in self.opened_facets(info) {
            self.facet(facet, &value);
        }
        if let (Some(block), Some(session)) = (&info.subagents, &self.session) {
            self.keep_subagents(session.key, block);
        }
    }

    /// What is known of a session that was just opened.
    pub(super) fn opened_facets(&self, info: &dialect::SessionInfo) -> Vec<state::Facet> {
        let agent = self.agent.as_ref();
        let methods: Vec<&RawValue> = agent
            .iter()
            .flat_map(|a| &a.auth_methods)
            .map(|m| m.raw.as_ref())
            .collect();
        let methods = serde_json::value::to_raw_value(&methods).ok();
        let protocol = agent.map(|a| {
            json!(if a.dialect == Dialect::Acp {
                "acp"
            } else {
                "kandev"
            })
        });
        let protocol = protocol.and_then(|p| serde_json::value::to_raw_value(&p).ok());
        let agent_info = agent.and_then(|a: &Negotiated| a.agent_info.clone());
        let capabilities = agent.and_then(|a| a.capabilities.clone());
        let facets = [
            ("agent_info", agent_info),
            ("agent_capabilities", capabilities),
            ("auth_methods", methods),
            ("protocol", protocol),
            ("modes", info.modes.clone()),
            ("models", info.models.clone()),
            ("mcp_state", info.mcp_state.clone()),
        ];
        let told = facets
            .into_iter()
            .filter_map(|(facet, value)| Some((facet, value?)));
        let mut facets: Vec<state::Facet> = told.collect();
        if let Some(options) = &info.config_options {
            facets.extend(state::of_options(options));
        }
        // What an earlier instance was in is not what this one is in.
        let chosen = Offered::of(info).chosen();
        for (facet, chosen) in [("current_mode", chosen.mode), ("current_model", chosen.model)] {
            if let Some(chosen) = chosen {
                facets.push((facet, super::raw(&chosen)));
            }
        }
        facets
    }

    /// Keeps the latest of something that the agent says about its session, which it may do before the session is
    /// established.
    pub(super) fn facet(&mut self, facet: &'static str, value: &RawValue) {
        let Some(session) = &self.session else {
            self.early_facets.insert(facet.to_owned(), value.to_owned());
            return;
        };
        self.facet_of(session.key, facet, value);
    }

    /// The same of a session that is known, this one or another.
    pub(super) fn facet_of(&mut self, key: SessionKey, facet: &'static str, value: &RawValue) {
        if value.get().len() > MAX_FACET {
            let message = format!(
                "what the agent says of {facet} is longer than {MAX_FACET} bytes and not kept of the session"
            );
            return self.log(LogLevel::Warn, message);
        }
        self.outbox.facet(SessionFacet {
            session_key: key,
            facet: facet.into(),
            value: value.get().to_owned(),
        });
    }

    /// What has to be set before the first turn, after what the agent says of its session.
    fn plan_configuration(&mut self, info: &dialect::SessionInfo, says_nothing: bool) {
        let mut offered = Offered::of(info);
        self.chosen = offered.chosen();
        if self.spec.resume.as_ref().is_some_and(|resume| resume.inherits) {
            for name in INHERITED_FACETS {
                self.facet_value(name, &Value::Null);
            }
        }
        // Koda says nothing of a session that it takes up; then what it offered before is the best that is known.
        if let Some(resume) = self.resuming().filter(|_| says_nothing) {
            offered = resume.offered.clone();
        }
        let before = self.spec.resume.clone().unwrap_or_default();
        let mut asked = self.spec.options.clone();
        if before.restarted {
            before.chosen.supersede(&mut asked);
        }
        self.configure = choices::plan(&asked, &before.chosen, &offered);
    }

    fn configure_next(&mut self) {
        let step = loop {
            match self.configure.pop_front() {
                None => return self.ready(),
                Some(step) if self.chosen.has(&step.setting) => {}
                Some(step) => break step,
            }
        };
        let (Some(agent), Some(session)) = (&self.agent, &self.session) else {
            return;
        };
        let call = match &step.setting {
            Setting::Mode(mode) => agent.dialect.set_mode(&session.id, mode),
            Setting::Model(model) => agent.dialect.set_model(&session.id, model),
            Setting::Option(id, value) => agent.dialect.set_config_option(&session.id, id, value),
        };
        if let Some(call) = call {
            return self.call(Call::Configure(step), call);
        }
        let message = format!("the agent's protocol has no {}", step.setting.describe());
        self.fail(FailureCode::HandshakeFailed, message);
    }

    /// The agent has taken a setting. It need not tell so itself.
    pub(super) fn was_set(&mut self, setting: &Setting, result: &RawValue) {
        self.chosen.see(setting);
        match setting {
            Setting::Mode(mode) => self.facet_value("current_mode", &json!(mode)),
            Setting::Model(model) => self.facet_value("current_model", &json!(model)),
            Setting::Option(..) => {}
        }
        let info = self
            .agent
            .as_ref()
            .map(|a| dialect::session_established(a.dialect, result));
        if let Some(options) = info.and_then(|info| info.config_options) {
            self.chosen.see_options(&options);
            for (facet, value) in state::of_options(&options) {
                self.facet(facet, &value);
            }
        }
    }

    /// It runs, and takes prompts.
    fn ready(&mut self) {
        self.phase = Phase::Ready;
        self.handshake_until = None;
        self.idle_since = Some(Instant::now());
        self.tell_ready();
        self.next_turn();
    }
}
