//! What an agent says of its subagents: the latest snapshot of each is kept, by the agent's own clock.
//!
//! What goes on beside the turns of callers counts too: subagents that work, and turns that the agent begins by itself, to read what
//! came of them. Such an instance is not idle, and a cancel reaches such a turn. Source: Koda's page, "Субагенты".

use std::collections::BTreeSet;

use kandev_acp::update::koda::{self, Subagent, Subagents};
use kandev_domain::SessionKey;
use kandev_store::sessions::SessionFacet;
use kandev_store::subagents::SubagentChange;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::actor::Actor;

/// Most subagents that are followed; of more it is not known whether they work.
const MAX_FOLLOWED: usize = 256;

/// What goes on beside the turns of callers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Aside {
    working: BTreeSet<String>,
    /// A turn that the agent began by itself.
    turn: bool,
    /// It was told to end.
    cancelled: bool,
}

impl Aside {
    pub(super) fn is_busy(&self) -> bool {
        self.turn || !self.working.is_empty()
    }

    /// Whether there is a turn of the agent's own that can be told to end.
    pub(super) const fn can_cancel(&self) -> bool {
        self.turn && !self.cancelled
    }

    fn see(&mut self, subagent: &Subagent) {
        if !subagent.works {
            self.working.remove(&subagent.task_id);
        } else if self.working.len() < MAX_FOLLOWED {
            self.working.insert(subagent.task_id.clone());
        }
    }

    fn see_turn(&mut self, marker: &RawValue) {
        let marker: Value = serde_json::from_str(marker.get()).unwrap_or_default();
        match marker["state"].as_str() {
            Some("started") => (self.turn, self.cancelled) = (true, false),
            Some("finished") => self.turn = false,
            _ => {}
        }
    }
}

impl Actor {
    /// Something changed beside the turns: who has just finished is idle from now on.
    fn aside(&mut self, change: impl FnOnce(&mut Aside)) {
        let was_busy = self.turns.aside.is_busy();
        change(&mut self.turns.aside);
        if was_busy && !self.turns.aside.is_busy() && self.idle_since.is_some() {
            self.idle_since = Some(Instant::now());
        }
    }

    /// A marker of a turn that has to do with subagents.
    pub(super) fn see_own_turn(&mut self, marker: &RawValue) {
        self.aside(|aside| aside.see_turn(marker));
    }

    /// Tells the agent to end the turn that it began by itself.
    pub(super) fn cancel_own_turn(&mut self, reason: Option<&str>) {
        if self.turns.aside.can_cancel() {
            self.turns.aside.cancelled = true;
            self.outbox.durable();
            self.send_cancel(reason);
        }
    }

    /// One snapshot. Before its session is known there is nobody that it could be of.
    pub(super) fn keep_subagent(&mut self, subagent: Subagent) {
        self.aside(|aside| aside.see(&subagent));
        let own = self.session.as_ref().map(|session| session.key);
        if let Some(key) = own.or_else(|| self.resuming().and_then(|resume| resume.key)) {
            self.outbox.subagent(change(key, subagent));
        }
    }

    /// All that an answer of the agent's has of a session.
    pub(super) fn keep_subagents(&mut self, key: SessionKey, block: &RawValue) {
        let Subagents { tasks, settings } = koda::subagents(block);
        let own = self.session.as_ref().is_some_and(|session| session.key == key);
        for subagent in tasks {
            if own {
                self.aside(|aside| aside.see(&subagent));
            }
            self.outbox.subagent(change(key, subagent));
        }
        if let Some(settings) = settings {
            self.outbox.facet(SessionFacet {
                session_key: key,
                facet: "subagent_settings".into(),
                value: String::from(Box::<str>::from(settings)),
            });
        }
    }
}

fn change(session_key: SessionKey, subagent: Subagent) -> SubagentChange {
    SubagentChange {
        session_key,
        task_id: subagent.task_id,
        changed_at: subagent.changed_at,
        snapshot: String::from(Box::<str>::from(subagent.snapshot)),
        activity: subagent.activity.map(|json| String::from(Box::<str>::from(json))),
    }
}
