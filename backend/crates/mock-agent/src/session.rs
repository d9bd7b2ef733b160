//! One conversation: its settings, its past turns, and the turn that runs.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Map, Value, json};

use crate::config::Busy;
use crate::koda::models::Custom;
use crate::koda::subagents::Subagents;
use crate::store::StoredTurn;
use crate::sync::lock;
use crate::turn::Turn;

/// How many turns are remembered; the oldest go first.
const MAX_TURNS: usize = 1000;
/// How many prompts wait behind a running one.
const MAX_QUEUED: usize = 100;

/// What a client may set. Not restored by load or resume: the client has to set it again.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) mode: String,
    pub(crate) model: String,
    pub(crate) effort: String,
    pub(crate) verbose: bool,
    /// Koda's access policy.
    pub(crate) access_policy: String,
    /// Koda's models of the user's, as they were when the session was opened.
    pub(crate) custom_models: Vec<Custom>,
}

/// What changes in a session.
pub(crate) struct State {
    pub(crate) settings: Settings,
    pub(crate) title: Option<String>,
    /// What the client said beside ACP's fields when it opened the session (Koda).
    pub(crate) given: Map<String, Value>,
    /// The plan that the client set (Koda).
    pub(crate) plan: Vec<Value>,
    pub(crate) history: Vec<StoredTurn>,
    /// The first one runs, the others wait.
    turns: VecDeque<Arc<Turn>>,
}

/// A session in memory.
pub(crate) struct Session {
    pub(crate) id: String,
    /// How it came to be: `new`, `load`, `resume` or `fork`.
    pub(crate) origin: &'static str,
    pub(crate) cwd: String,
    pub(crate) mcp_servers: Value,
    pub(crate) ignore_cancel: AtomicBool,
    pub(crate) subagents: Subagents,
    state: Mutex<State>,
}

/// What becomes of a new turn.
pub(crate) enum Admission {
    /// It is the running one; start it.
    Start,
    /// It will be started when the ones before it have ended.
    Wait,
    /// Refuse it.
    Busy,
    /// Never mention it again.
    Drop,
}

impl Session {
    pub(crate) fn new(
        id: String,
        origin: &'static str,
        cwd: String,
        mcp_servers: Value,
        history: Vec<StoredTurn>,
        settings: Settings,
    ) -> Self {
        let title = history.iter().rev().find_map(|turn| turn.title.clone());
        Self {
            id,
            origin,
            cwd,
            mcp_servers,
            ignore_cancel: AtomicBool::new(false),
            subagents: Subagents::default(),
            state: Mutex::new(State {
                settings,
                title,
                given: Map::new(),
                plan: Vec::new(),
                history,
                turns: VecDeque::new(),
            }),
        }
    }

    /// Reads or changes the state; never held across output.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut lock(&self.state))
    }

    pub(crate) fn settings(&self) -> Settings {
        self.with(|state| state.settings.clone())
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.with(|state| !state.turns.is_empty())
    }

    /// Takes in a turn.
    pub(crate) fn admit(&self, turn: &Arc<Turn>, busy: Busy) -> Admission {
        self.with(|state| {
            if state.turns.is_empty() {
                state.turns.push_back(Arc::clone(turn));
                return Admission::Start;
            }
            match busy {
                Busy::Error => Admission::Busy,
                Busy::Silent => Admission::Drop,
                Busy::Queue | Busy::Replace if state.turns.len() > MAX_QUEUED => Admission::Busy,
                Busy::Queue => {
                    state.turns.push_back(Arc::clone(turn));
                    Admission::Wait
                }
                Busy::Replace => {
                    state.turns.iter().for_each(|old| old.signal.cancel());
                    state.turns.push_back(Arc::clone(turn));
                    Admission::Wait
                }
            }
        })
    }

    /// Takes out the turn that ran, and hands over the next one.
    pub(crate) fn finish(&self, stored: StoredTurn) -> Option<Arc<Turn>> {
        self.with(|state| {
            if state.history.len() >= MAX_TURNS {
                state.history.remove(0);
            }
            state.history.push(stored);
            state.turns.pop_front();
            state.turns.front().cloned()
        })
    }

    /// Cancels what runs and what waits, unless told to ignore that.
    pub(crate) fn cancel(&self) {
        if self.ignore_cancel.load(Ordering::SeqCst) {
            return;
        }
        self.for_each_turn(|turn| turn.signal.cancel());
    }

    pub(crate) fn for_each_turn(&self, f: impl FnMut(&Arc<Turn>)) {
        self.with(|state| state.turns.iter().for_each(f));
    }

    /// What `/session` says.
    pub(crate) fn describe(&self) -> Value {
        let settings = self.settings();
        json!({
            "sessionId": self.id,
            "origin": self.origin,
            "cwd": self.cwd,
            "mcpServers": self.mcp_servers,
            "mode": settings.mode,
            "model": settings.model,
            "config": {
                "effort": settings.effort,
                "verbose": settings.verbose,
                "access_policy": settings.access_policy,
            },
            "given": self.with(|state| state.given.clone()),
            "plan": self.with(|state| state.plan.clone()),
            "turns": self.with(|state| state.history.len()),
        })
    }
}
