//! What an agent says of its subagents: the latest snapshot of each is kept, by the agent's own clock.

use kandev_acp::update::koda::{self, Subagent, Subagents};
use kandev_domain::SessionKey;
use kandev_store::sessions::SessionFacet;
use kandev_store::subagents::SubagentChange;
use serde_json::value::RawValue;

use super::actor::Actor;

impl Actor {
    /// One snapshot. Before its session is known there is nobody that it could be of.
    pub(super) fn keep_subagent(&mut self, subagent: Subagent) {
        let own = self.session.as_ref().map(|session| session.key);
        if let Some(key) = own.or_else(|| self.resuming().and_then(|resume| resume.key)) {
            self.outbox.subagent(change(key, subagent));
        }
    }

    /// All that an answer of the agent's has of a session.
    pub(super) fn keep_subagents(&mut self, key: SessionKey, block: &RawValue) {
        let Subagents { tasks, settings } = koda::subagents(block);
        for subagent in tasks {
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
