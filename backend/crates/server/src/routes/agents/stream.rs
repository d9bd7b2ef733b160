//! One reader of an instance's events, whatever way they go out.
//!
//! The database is the source that always works: a reader that is slow, or late, or comes to a server that does not hold
//! the instance, gets the same events, each once, in order. One that keeps up is handed what the instance's task has just
//! stored.

use std::fmt::Display;
use std::sync::Arc;

use axum::http::HeaderMap;
use kandev_domain::{Event, EventKind, InstanceId};
use kandev_orchestrator::{Changes, Stored};
use kandev_store::StoreError;
use kandev_store::journal::{self, EventQuery, Standing};
use serde::Serialize;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::error::{ApiError, ApiResult};
use crate::routes::sse::{self, Follow, LAST_EVENT_ID};
use crate::state::AppState;

/// What is read at once, and so what a reader holds in memory.
const PAGE_EVENTS: usize = 1000;
const PAGE_BYTES: usize = 1 << 20;

/// What comes next.
pub(super) type Step = sse::Step<Event, Reset>;

/// What lay between the cursor and this event is not there any more.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Reset {
    pub(super) oldest_seq: i64,
}

/// Follows the events of an instance from a position on.
pub(super) struct Follower {
    state: AppState,
    id: InstanceId,
    kinds: Vec<EventKind>,
    cursor: i64,
    /// Tells when to look while the instance is not held here.
    changes: Changes,
    /// What is stored from now on, while the instance is held here.
    fresh: Option<broadcast::Receiver<Arc<Stored>>>,
    /// Of that, what is not all given out.
    held: Option<Arc<Stored>>,
    /// There may be events in the database that will not come by `fresh`.
    behind: bool,
}

/// Where a reader wants to begin, and which part of its request said so.
#[derive(Debug, Clone, Copy)]
pub(super) struct Start {
    pub(super) after: i64,
    pub(super) said_by: &'static str,
}

impl Start {
    /// The header of a reader that comes back, if there is one.
    pub(super) fn of_header(headers: &HeaderMap) -> ApiResult<Option<Self>> {
        let said_by = LAST_EVENT_ID;
        match sse::last_event_id(headers)? {
            Some(after) if after < 0 => Err(ApiError::validation(said_by, "is no cursor of this stream")),
            after => Ok(after.map(|after| Self { after, said_by })),
        }
    }

    /// Refuses a position that the history has not come to.
    pub(super) fn check(self, standing: Standing) -> ApiResult<()> {
        if self.after <= standing.last {
            return Ok(());
        }
        let problem = format!("is beyond the last event, which is {}", standing.last);
        Err(ApiError::validation(self.said_by, &problem))
    }
}

/// What there is of an instance's history.
pub(super) async fn standing(state: &AppState, id: InstanceId) -> ApiResult<Standing> {
    let standing = journal::standing(&state.pool, id).await?;
    standing.ok_or_else(|| ApiError::not_found("agent instance", id))
}

/// True if nothing will come after `cursor`. To a reader that comes back there, 204 is what makes a browser's
/// EventSource stop coming back.
pub(super) const fn is_over(standing: Standing, cursor: i64) -> bool {
    standing.status.is_final() && cursor >= standing.last
}

impl Follow for Follower {
    type Item = Event;
    type Reset = Reset;

    async fn next(&mut self) -> ApiResult<Step> {
        loop {
            if self.state.stopping.is_cancelled() {
                return Ok(Step::Stopping);
            }
            if self.held.is_some() {
                let events = self.take_held()?;
                if !events.is_empty() {
                    return Ok(Step::Events(events));
                }
                continue;
            }
            if !self.behind {
                self.wait().await;
                continue;
            }
            match self.read().await {
                Ok(Some(step)) => return Ok(step),
                // What is waited for says whether to read again.
                Ok(None) => self.behind = false,
                // The connection stays: the database will be back.
                Err(error) if error.is_transient() => {
                    tracing::debug!(%error, "a stream waits for the database");
                    self.fresh = None;
                    self.changes.look_soon();
                    self.wait().await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn place(&self) -> impl Display + Send {
        self.cursor
    }
}

impl Follower {
    pub(super) fn new(state: AppState, id: InstanceId, kinds: Vec<EventKind>, after: i64) -> Self {
        Self {
            changes: Changes::of(&state.orchestrator, id),
            state,
            id,
            kinds,
            cursor: after,
            fresh: None,
            held: None,
            behind: true,
        }
    }

    /// None if all there is has been read.
    async fn read(&mut self) -> Result<Option<Step>, StoreError> {
        loop {
            // First subscribe, then read: what is committed in between wakes the next wait.
            self.changes.subscribe();
            self.subscribe();
            let Some(standing) = journal::standing(&self.state.pool, self.id).await? else {
                return Ok(Some(Step::Ended));
            };
            if standing.oldest > self.cursor + 1 {
                return Ok(Some(self.reset(standing.oldest)));
            }
            if self.cursor >= standing.last {
                return Ok(standing.status.is_final().then_some(Step::Ended));
            }
            let query = EventQuery {
                after: self.cursor,
                until: Some(standing.last),
                kinds: self.kinds.clone(),
                limit: PAGE_EVENTS,
                max_bytes: PAGE_BYTES,
            };
            let page = journal::events(&self.state.pool, self.id, &query).await?;
            if let Some(oldest) = page.oldest {
                // Removed since.
                return Ok(Some(self.reset(oldest)));
            }
            self.cursor = page.next_after.unwrap_or(standing.last);
            if !page.events.is_empty() {
                return Ok(Some(Step::Events(page.events)));
            }
        }
    }

    fn reset(&mut self, oldest_seq: i64) -> Step {
        self.cursor = oldest_seq - 1;
        Step::Reset(Reset { oldest_seq })
    }

    fn subscribe(&mut self) {
        if self.fresh.is_none() {
            self.fresh = self.state.orchestrator.follow(self.id);
        }
    }

    /// Waits until there may be more.
    async fn wait(&mut self) {
        let stopping = self.state.stopping.clone();
        let woken = async {
            let Some(fresh) = &mut self.fresh else {
                self.changes.wait().await;
                self.behind = true;
                return;
            };
            match fresh.recv().await {
                Ok(stored) => self.held = Some(stored),
                // What was missed is in the database.
                Err(RecvError::Lagged(_)) => self.behind = true,
                // The task has ended, or has let the instance go.
                Err(RecvError::Closed) => {
                    self.fresh = None;
                    self.behind = true;
                }
            }
        };
        tokio::select! {
            () = woken => {}
            () = stopping.cancelled() => {}
        }
    }

    /// The next page of what was handed over. None of it if that is not what comes next.
    fn take_held(&mut self) -> Result<Vec<Event>, StoreError> {
        let mut events = Vec::new();
        let Some(held) = &self.held else { return Ok(events) };
        let skip = usize::try_from(self.cursor + 1 - held.first_seq);
        let (Ok(skip), false) = (skip, held.records.is_empty()) else {
            self.held = None;
            self.behind = true;
            return Ok(events);
        };
        let records = held.records.get(skip..).unwrap_or_default();
        let mut bytes = 0;
        let mut given = 0;
        for record in records {
            if given == PAGE_EVENTS || bytes >= PAGE_BYTES {
                break;
            }
            bytes += record.line.len();
            given += 1;
            // It may be the last one, which only the instance's row can tell.
            self.behind |= record.kind == EventKind::Status;
            let seq = self.cursor + given as i64;
            if self.kinds.is_empty() || self.kinds.contains(&record.kind) {
                events.push(journal::event_of(record.clone(), self.id, seq)?);
            }
        }
        self.cursor += given as i64;
        if given == records.len() {
            self.held = None;
        }
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_a_number_or_refused() {
        let start = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(LAST_EVENT_ID, value.parse().unwrap());
            Start::of_header(&headers).map(|start| start.map(|start| start.after))
        };
        assert_eq!(start("12").unwrap(), Some(12));
        assert_eq!(start("").unwrap(), None);
        assert!(start("-1").is_err() && start("a").is_err() && start("99999999999999999999").is_err());
        assert_eq!(
            Start::of_header(&HeaderMap::new()).unwrap().map(|s| s.after),
            None
        );
    }
}
