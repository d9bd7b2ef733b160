//! One reader of the events of all instances, whatever way they go out.

use std::fmt::Display;
use std::time::Duration;

use kandev_domain::Event;
use kandev_store::journal::{self, AllReader, Place, Read, Room};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::sleep;
use utoipa::ToSchema;

use crate::error::ApiResult;
use crate::routes::sse::{self, Follow};
use crate::state::AppState;

/// How often to look where nobody says when: another server's commits need not be heard of here.
const POLL: Duration = Duration::from_millis(500);
/// How soon to look again where events wait for an older transaction, or for the disk. It doubles up to [`POLL`].
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// What is read at once, and so what a reader holds in memory.
const PAGE: Room = Room {
    events: 1000,
    bytes: 1 << 20,
};

pub(super) type Step = sse::Step<(Place, Event), Reset>;

/// The place that a reader came with was not one to go on from without a gap. What follows is all that there is.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(as = AllEventsReset)]
pub(super) struct Reset {
    reason: Reason,
}

/// Why.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = AllEventsResetReason)]
enum Reason {
    /// Events behind it are not kept any more.
    Removed,
    /// It is of another database, or of one that has been restored.
    Unknown,
}

impl From<journal::Reset> for Reset {
    fn from(reset: journal::Reset) -> Self {
        let reason = match reset {
            journal::Reset::Removed => Reason::Removed,
            journal::Reset::Unknown => Reason::Unknown,
        };
        Self { reason }
    }
}

/// Waits until the reader can read all that has been committed so far.
pub(super) async fn settle(reader: &mut AllReader) -> ApiResult<()> {
    while !reader.settle().await? {
        sleep(LOOK_AGAIN).await;
    }
    Ok(())
}

/// Follows the events of all instances from a place on.
pub(super) struct Follower {
    state: AppState,
    reader: AllReader,
    commits: watch::Receiver<u64>,
    look_again: Duration,
}

impl Follower {
    pub(super) fn new(state: AppState, reader: AllReader) -> Self {
        Self {
            commits: state.orchestrator.wakes().commits(),
            state,
            reader,
            look_again: LOOK_AGAIN,
        }
    }

    async fn wait(&mut self, held: bool) {
        let stopping = self.state.stopping.clone();
        let woken = async {
            if held {
                // More commits would not change that.
                sleep(self.look_again).await;
                self.look_again = (self.look_again * 2).min(POLL);
            } else {
                tokio::select! {
                    // An error, at the very end, is a reason to look as well.
                    _ = self.commits.changed() => {}
                    () = sleep(POLL) => {}
                }
            }
        };
        tokio::select! {
            () = woken => {}
            () = stopping.cancelled() => {}
        }
    }
}

impl Follow for Follower {
    type Item = (Place, Event);
    type Reset = Reset;

    async fn next(&mut self) -> ApiResult<Step> {
        loop {
            if self.state.stopping.is_cancelled() {
                return Ok(Step::Stopping);
            }
            // First listen, then read: what is committed in between wakes the next wait.
            self.commits.mark_unchanged();
            match self.reader.read(PAGE).await {
                Ok(Read::Events(events)) => {
                    self.look_again = LOOK_AGAIN;
                    if !events.is_empty() {
                        return Ok(Step::Events(events));
                    }
                }
                Ok(Read::Reset(reset)) => return Ok(Step::Reset(reset.into())),
                Ok(Read::Nothing { held }) => self.wait(held).await,
                // The connection stays: the database will be back.
                Err(error) if error.is_transient() => {
                    tracing::debug!(%error, "a stream waits for the database");
                    self.look_again = POLL;
                    self.wait(true).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn place(&self) -> impl Display + Send {
        self.reader.place()
    }
}
