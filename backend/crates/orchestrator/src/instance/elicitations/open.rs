//! The elicitations that are open, and the URLs where something may still be done.

use std::collections::VecDeque;

use chrono::{DateTime, Utc};
use kandev_acp::Id;
use kandev_domain::{ElicitationId, TurnId};
use kandev_store::elicitations::Elicitation;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::outbox::Context;

/// Of how many URLs it is waited for what is done there; of more, the latest.
pub(crate) const MAX_AWAITED: usize = 256;

/// The elicitations of an instance.
#[derive(Debug, Default)]
pub(in crate::instance) struct Elicitations {
    /// Oldest first.
    pub(super) open: Vec<Open>,
    awaited: VecDeque<Awaited>,
}

/// One that has no answer yet.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) id: ElicitationId,
    pub(super) request: Id,
    /// The turn that waits for it.
    pub(super) turn: Option<TurnId>,
    pub(super) context: Context,
    pub(super) until: Option<Instant>,
}

/// A URL where something is to be done.
#[derive(Debug)]
pub(super) struct Awaited {
    pub(super) id: ElicitationId,
    /// The agent's name for it.
    pub(super) key: String,
    pub(super) context: Context,
}

impl Elicitations {
    pub(in crate::instance) const fn open_count(&self) -> usize {
        self.open.len()
    }

    /// When the first of them is due.
    pub(in crate::instance) fn until(&self) -> Option<Instant> {
        self.open.iter().filter_map(|open| open.until).min()
    }

    /// The running turn, or none, waits for one of them.
    pub(in crate::instance) fn wait_in(&self, turn: Option<TurnId>) -> bool {
        self.open.iter().any(|open| open.turn == turn)
    }

    pub(in crate::instance) fn is_open(&self, request: &Id) -> bool {
        self.open.iter().any(|open| open.request == *request)
    }

    pub(super) fn take(&mut self, which: impl Fn(&Open) -> bool) -> Vec<Open> {
        let all = std::mem::take(&mut self.open);
        let (taken, left) = all.into_iter().partition(which);
        self.open = left;
        taken
    }

    pub(super) fn await_done(&mut self, awaited: Awaited) {
        if self.awaited.len() == MAX_AWAITED {
            self.awaited.pop_front();
        }
        self.awaited.push_back(awaited);
    }

    pub(super) fn await_no_more(&mut self, id: ElicitationId) {
        self.awaited.retain(|awaited| awaited.id != id);
    }

    /// The latest of this name is done.
    pub(super) fn is_done(&mut self, key: &str) -> Option<Awaited> {
        let at = self.awaited.iter().rposition(|awaited| awaited.key == key)?;
        self.awaited.remove(at)
    }

    /// Out of their rows, for the turn that is now.
    pub(super) fn restore(
        rows: Vec<Elicitation>,
        accepted: Vec<Elicitation>,
        running: Option<TurnId>,
        wall: DateTime<Utc>,
        now: Instant,
    ) -> Self {
        let mut restored = Self::default();
        let not_done = |row: &&Elicitation| row.completed_at.is_none();
        for row in accepted.iter().chain(&rows).filter(not_done) {
            if let Some(key) = row.agent_key.clone() {
                restored.await_done(Awaited {
                    id: row.id,
                    key,
                    context: context(row),
                });
            }
        }
        let open = rows.into_iter().filter_map(|row| {
            // It was JSON when it was stored.
            let request = RawValue::from_string(row.request_id.clone()).ok()?;
            Some(Open {
                id: row.id,
                request: Id::from_raw(&request)?,
                turn: row.turn_id.filter(|id| Some(*id) == running),
                context: context(&row),
                until: row
                    .expires_at
                    .map(|at| now + (at - wall).to_std().unwrap_or_default()),
            })
        });
        restored.open = open.collect();
        restored
    }
}

fn context(row: &Elicitation) -> Context {
    Context {
        session_id: row.session_id.clone(),
        turn_id: row.turn_id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn awaited(key: &str) -> Awaited {
        Awaited {
            id: ElicitationId::generate(),
            key: key.to_owned(),
            context: Context::default(),
        }
    }

    #[test]
    fn the_latest_of_a_name_is_done_once_and_their_number_is_bounded() {
        let mut elicitations = Elicitations::default();
        let (first, second) = (awaited("a"), awaited("a"));
        let ids = [first.id, second.id];
        elicitations.await_done(first);
        elicitations.await_done(second);
        assert_eq!(elicitations.is_done("a").map(|a| a.id), Some(ids[1]));
        assert!(elicitations.is_done("b").is_none());
        elicitations.await_no_more(ids[0]);
        assert!(elicitations.is_done("a").is_none());
        for n in 0..=MAX_AWAITED {
            elicitations.await_done(awaited(&n.to_string()));
        }
        assert_eq!(elicitations.awaited.len(), MAX_AWAITED);
        assert!(elicitations.is_done("0").is_none());
    }
}
