//! What callers ask of an agent beside prompts: its mode, its model, a fork, or any method by its name.
//!
//! The request is on record before it goes out, with the command of another server that it is for, so a server that takes
//! the instance up can still answer that one, and does not ask twice. What the agent's answer changes is kept whether or not
//! somebody still waits for it.

use std::collections::BTreeMap;

use kandev_acp::dialect::{self, Ask, Place};
use kandev_acp::{Dialect, RpcError, outgoing};
use kandev_domain::{CommandId, EventKind, LogLevel, SessionKey};
use kandev_store::journal::Change;
use kandev_store::sessions::SessionDeleted;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::actor::{Actor, Phase};
use super::choices::Setting;
use super::handshake::Call;
use super::setup::{DIRECTORIES, MCP_SERVERS, Setup};
use crate::command::{Answer, Reply};

/// How many may wait for the agent at once.
const AT_ONCE: usize = 32;

/// Of how many branches it is known what the agent says of them.
const MAX_BRANCHES: usize = 256;

/// What is kept with an open request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Asked {
    ask: Ask,
    /// The command of another server that it is for.
    elsewhere: Option<CommandId>,
}

/// Who waits for the agent's answer.
#[derive(Debug)]
struct Waiting {
    reply: Reply,
    until: Instant,
}

/// Those who wait, by the request's id.
#[derive(Debug, Default)]
pub(super) struct Asks(BTreeMap<u64, Waiting>);

/// What the agent made of it, as JSON texts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AskOutcome {
    /// Its result.
    Done {
        /// Unchanged.
        result: String,
        /// The agent's session.
        session_id: String,
    },
    /// Its error.
    Failed {
        /// JSON-RPC's.
        code: i64,
        /// For people.
        message: String,
        /// Unchanged.
        data: Option<String>,
    },
}

/// Why the agent was not asked, or did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum AskRefused {
    /// It has no session yet, or none any more.
    #[error("the instance has no session that could be asked now")]
    NotReady,
    /// A turn runs.
    #[error("the agent cannot do this while a turn runs")]
    Busy,
    /// Its protocol has no such thing.
    #[error("the agent's protocol has no {0}")]
    Unsupported(String),
    /// Too many wait for it.
    #[error("too many requests wait for the agent")]
    TooMany,
    /// In the time that it had.
    #[error("the agent did not answer in time")]
    NoAnswer,
    /// Before it answered.
    #[error("the instance ended before the agent answered")]
    Ended,
}

impl Asks {
    /// When the next one has waited long enough.
    pub(super) fn until(&self) -> Option<Instant> {
        self.0.values().map(|waiting| waiting.until).min()
    }

    fn is_for(&self, command: CommandId) -> bool {
        let is_it = |waiting: &Waiting| matches!(waiting.reply, Reply::Elsewhere(id) if id == command);
        self.0.values().any(is_it)
    }
}

impl Actor {
    /// Puts back what another process had asked for a third one.
    pub(super) fn restore_asks(&mut self) {
        let until = Instant::now() + self.shared.settings.call_timeout;
        for (id, call) in self.peer.snapshot().pending {
            if let Call::Asked(Asked {
                elsewhere: Some(command),
                ..
            }) = call
            {
                let reply = Reply::Elsewhere(command);
                self.asks.0.insert(id, Waiting { reply, until });
            }
        }
    }

    pub(super) fn ask(&mut self, ask: Ask, reply: Reply) {
        let elsewhere = match reply {
            Reply::Elsewhere(id) => Some(id),
            Reply::Here(_) => None,
        };
        // Asked by the server before this one: its answer is the command's.
        if elsewhere.is_some_and(|command| self.asks.is_for(command)) {
            return;
        }
        match self.request_of(&ask) {
            Err(refused) => self.reply(reply, Answer::Ask(Err(refused))),
            Ok(params) => {
                let method = ask.method().to_owned();
                let call = Call::Asked(Asked { ask, elsewhere });
                match self.peer.request(call, &method, &params) {
                    Err(error) => {
                        self.log(LogLevel::Error, error.to_string());
                        self.reply(reply, Answer::Ask(Err(AskRefused::TooMany)));
                    }
                    Ok((id, frame)) => {
                        let until = Instant::now() + self.shared.settings.call_timeout;
                        self.asks.0.insert(id, Waiting { reply, until });
                        self.log(LogLevel::Info, format!("a caller asks for {method}"));
                        self.send(frame);
                        self.outbox.durable();
                    }
                }
            }
        }
    }

    /// What is to be sent, if it can be now.
    fn request_of(&mut self, ask: &Ask) -> Result<serde_json::Value, AskRefused> {
        let ready = matches!(self.phase, Phase::Ready) && self.ending.is_none();
        let (Some(agent), Some(session), true) = (&self.agent, self.session.clone(), ready) else {
            return Err(AskRefused::NotReady);
        };
        let dialect = agent.dialect;
        if self.asks.0.len() >= AT_ONCE {
            return Err(AskRefused::TooMany);
        }
        if matches!(ask, Ask::Compact) && self.turns.running.is_some() {
            return Err(AskRefused::Busy);
        }
        let setup = self.setup_of(ask);
        self.log_skipped(&setup);
        let place = Place {
            session_id: &session.id,
            cwd: &self.spec.agent_type.working_dir,
            mcp_servers: &setup.servers,
            additional: &setup.additional,
        };
        let params = ask.params(dialect, place);
        params.ok_or_else(|| AskRefused::Unsupported(ask.method().to_owned()))
    }

    /// What a branch is opened with.
    fn setup_of(&self, ask: &Ask) -> Setup {
        match ask {
            Ask::Fork { mcp_servers, .. } => {
                self.setup_with(mcp_servers.as_ref().unwrap_or(&self.spec.mcp_servers))
            }
            _ => Setup::default(),
        }
    }

    /// The agent's answer to one of them.
    pub(super) fn ask_answered(&mut self, id: u64, asked: &Asked, outcome: Result<Box<RawValue>, RpcError>) {
        let Some(session) = self.session.clone() else {
            return;
        };
        let answer = match outcome {
            Ok(result) => {
                self.was_done(&asked.ask, &result);
                AskOutcome::Done {
                    result: result.get().to_owned(),
                    session_id: session.id,
                }
            }
            Err(error) => AskOutcome::Failed {
                code: error.code,
                message: error.message,
                data: error.data.map(|data| data.get().to_owned()),
            },
        };
        self.outbox.durable();
        if let Some(waiting) = self.asks.0.remove(&id) {
            self.reply(waiting.reply, Answer::Ask(Ok(answer)));
        }
    }

    /// Keeps what the agent need not tell again.
    fn was_done(&mut self, ask: &Ask, result: &RawValue) {
        match ask {
            Ask::Mode { mode_id } => self.was_set(&Setting::Mode(mode_id.clone()), result),
            Ask::Model { model_id } => self.was_set(&Setting::Model(model_id.clone()), result),
            Ask::Option { config_id, value } => {
                self.was_set(&Setting::Option(config_id.clone(), value.clone()), result);
            }
            Ask::ReasoningEffort { .. } => {
                if let Some(models) = dialect::session_established(Dialect::Acp, result).models {
                    self.facet("models", &models);
                }
            }
            Ask::Fork { .. } => self.was_forked(result, &self.setup_of(ask)),
            Ask::Authenticate { method_id } => self.login.method = Some(method_id.clone()),
            Ask::Logout => self.login.method = None,
            Ask::Close { session_id } => {
                self.release_terminals_of(session_id);
                self.session_event(session_id, "closed");
            }
            Ask::Delete { session_id } => {
                self.release_terminals_of(session_id);
                self.outbox.change(Change::SessionDeleted(SessionDeleted {
                    session_id: session_id.clone(),
                    agent_type: self.spec.agent_type.id.clone(),
                    workspace_path: self.spec.workspace.to_string_lossy().into_owned(),
                    deleted_at: self.shared.clock.now(),
                }));
                self.session_event(session_id, "deleted");
            }
            Ask::Rpc { method, params } if method.starts_with("session/subagent_") => {
                let named = params.as_ref().and_then(|params| params["sessionId"].as_str());
                let own = self.session.as_ref();
                let own = own.filter(|own| named.is_none_or(|named| named == own.id));
                if let Some(key) = own.map(|own| own.key) {
                    self.keep_subagents(key, result);
                }
            }
            Ask::Plan { .. } | Ask::Compact | Ask::List { .. } | Ask::Rpc { .. } => {}
        }
    }

    /// Another session than the instance's own is not any more what it was.
    fn session_event(&mut self, session_id: &str, how: &str) {
        self.event(EventKind::Session, &json!({"session_id": session_id, "how": how}));
    }

    /// The branch is a session of its own, which can be resumed.
    fn was_forked(&mut self, result: &RawValue, setup: &Setup) {
        let info = dialect::session_established(Dialect::Acp, result);
        let Some(id) = info.session_id.clone() else { return };
        let key = SessionKey::generate();
        let own = self.session.as_ref().map(|session| session.key);
        self.record_session(key, id.clone(), own);
        self.branches.insert(id.clone(), key);
        while self.branches.len() > MAX_BRANCHES {
            self.branches.pop_first();
        }
        let mut facets = self.opened_facets(&info);
        facets.push((MCP_SERVERS, super::raw(&setup.told)));
        facets.push((DIRECTORIES, super::raw(&setup.directories)));
        if let Some(block) = &info.subagents {
            self.keep_subagents(key, block);
        }
        for (facet, value) in facets {
            self.facet_of(key, facet, &value);
        }
        let from = self.session.as_ref().map(|session| &session.id);
        let data = json!({"session_id": id, "how": "forked", "forked_from": from, "mcp_servers": setup.told});
        self.event(EventKind::Session, &data);
    }

    /// Those who have waited long enough are told so, and the agent that nobody waits any more.
    pub(super) fn expire_asks(&mut self) {
        let now = Instant::now();
        let late: Vec<u64> = self
            .asks
            .0
            .iter()
            .filter(|(_, w)| w.until <= now)
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            let Some(waiting) = self.asks.0.remove(&id) else {
                continue;
            };
            self.reply(waiting.reply, Answer::Ask(Err(AskRefused::NoAnswer)));
            match outgoing::notification("$/cancel_request", &json!({"requestId": id})) {
                Ok(frame) => self.send(frame),
                Err(error) => self.log(LogLevel::Error, error.to_string()),
            }
        }
    }

    /// Nobody will answer them any more.
    pub(super) fn refuse_asks(&mut self) {
        for (_, waiting) in std::mem::take(&mut self.asks.0) {
            self.reply(waiting.reply, Answer::Ask(Err(AskRefused::Ended)));
        }
    }
}
