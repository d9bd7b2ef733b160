//! What an instance has to store, and what may happen only after that.
//!
//! A step of the instance's task adds records, changes and effects. They are stored as one batch, and only then are the
//! effects let out: frames to the agent, answers to callers, what watchers see. While one batch is being stored the next one
//! gathers; when that grows too large, the task takes no more output from its agent.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use kandev_domain::{EventKind, InstanceId, LogLevel, LogStream, TurnId};
use kandev_store::instances::InstancePatch;
use kandev_store::journal::{Batch, Change, PipeLines, Position};
use kandev_store::record::{Data, Record, Source};
use kandev_store::sessions::SessionFacet;
use kandev_store::subagents::SubagentChange;
use kandev_store::usage::TurnCost;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::fresh::{MAX_BYTES, Stored};
use crate::instance::View;
use crate::journal::{Journal, JournalError};
use crate::lease::{Lost, Term};

/// Beyond this many bytes no more output is taken.
const FULL_BYTES: usize = 4 << 20;
/// Beyond this many records no more output is taken.
const FULL_RECORDS: usize = 4096;

/// What happens once the batch is stored.
pub(crate) enum Effect {
    /// A frame for the agent.
    Write(Bytes),
    /// What the agent asked to be done in its container: the number of its line.
    Inside(u64),
    /// The agent gets nothing more.
    CloseStdin,
    /// An answer to a caller.
    Reply(Box<dyn FnOnce() + Send>),
    /// What watchers see.
    View(View),
    /// The batch itself, for those who follow.
    Publish(Stored),
}

type Storing = Pin<Box<dyn Future<Output = Result<(), JournalError>> + Send>>;

struct InFlight {
    effects: Vec<Effect>,
    stored: Storing,
}

/// Where a record belongs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Context {
    pub session_id: Option<String>,
    pub turn_id: Option<TurnId>,
}

/// See the module's text.
pub(crate) struct Outbox {
    id: InstanceId,
    term: Arc<Term>,
    journal: Journal,
    next_seq: i64,
    lines: PipeLines,
    records: Vec<Record>,
    changes: Vec<Change>,
    effects: Vec<Effect>,
    bytes: usize,
    durable: bool,
    in_flight: Option<InFlight>,
}

impl Outbox {
    pub(crate) fn new(id: InstanceId, term: Arc<Term>, journal: Journal, from: Position) -> Self {
        Self {
            id,
            term,
            journal,
            next_seq: from.seq + 1,
            lines: from.lines,
            records: Vec::new(),
            changes: Vec::new(),
            effects: Vec::new(),
            bytes: 0,
            durable: false,
            in_flight: None,
        }
    }

    /// The number of the event that would be added next.
    pub(crate) fn next_seq(&self) -> i64 {
        self.next_seq + self.records.len() as i64
    }

    /// The last event that is stored, while no batch is on its way.
    pub(crate) const fn stored_seq(&self) -> i64 {
        self.next_seq - 1
    }

    /// How many lines of each pipe have been counted.
    pub(crate) const fn lines(&self) -> PipeLines {
        self.lines
    }

    /// Counts the next line of a pipe, stored or not.
    pub(crate) fn count(&mut self, channel: kandev_runtime::Channel) -> Source {
        match channel {
            kandev_runtime::Channel::Stdout => {
                self.lines.stdout += 1;
                Source::Stdout(self.lines.stdout)
            }
            kandev_runtime::Channel::Stderr => {
                self.lines.stderr += 1;
                Source::Stderr(self.lines.stderr)
            }
        }
    }

    /// Adds an event.
    pub(crate) fn record(&mut self, record: Record) {
        self.bytes += record.line.len() + 128;
        if let Data::Json(json) = &record.data {
            self.bytes += json.get().len();
        }
        self.records.push(record);
    }

    /// Adds an event of kandev's own.
    pub(crate) fn event(
        &mut self,
        at: DateTime<Utc>,
        kind: EventKind,
        context: Context,
        data: &impl Serialize,
    ) {
        let json = to_raw_value(data).unwrap_or_else(|_| RawValue::NULL.to_owned());
        self.record(Record {
            at,
            kind,
            session_id: context.session_id,
            turn_id: context.turn_id,
            source: None,
            line: Bytes::new(),
            data: Data::Json(json),
        });
    }

    /// Adds a line of kandev's own log.
    pub(crate) fn log(&mut self, at: DateTime<Utc>, level: LogLevel, context: Context, message: String) {
        self.log_of(LogStream::System, at, level, context, message);
    }

    /// Adds a line of a log, which is not the line that was read.
    pub(crate) fn log_of(
        &mut self,
        stream: LogStream,
        at: DateTime<Utc>,
        level: LogLevel,
        context: Context,
        message: String,
    ) {
        self.record(Record {
            at,
            kind: EventKind::Log,
            session_id: context.session_id,
            turn_id: context.turn_id,
            source: None,
            line: Bytes::from(message),
            data: Data::Log { stream, level },
        });
    }

    /// Changes the instance's row; patches of one batch are merged.
    pub(crate) fn patch(&mut self, change: impl FnOnce(&mut InstancePatch)) {
        let last = self.changes.iter_mut().rev().find_map(|c| match c {
            Change::Instance(patch) => Some(patch),
            _ => None,
        });
        if let Some(patch) = last {
            return change(patch);
        }
        let mut patch = InstancePatch::of(self.id);
        change(&mut patch);
        self.changes.push(Change::Instance(Box::new(patch)));
    }

    /// Keeps the latest value of a facet.
    pub(crate) fn facet(&mut self, facet: SessionFacet) {
        let same = self.changes.iter_mut().find_map(|c| match c {
            Change::Facet(old) if old.facet == facet.facet && old.session_key == facet.session_key => {
                Some(old)
            }
            _ => None,
        });
        match same {
            Some(old) => old.value = facet.value,
            None => self.changes.push(Change::Facet(facet)),
        }
    }

    /// Keeps what a turn has cost by now.
    pub(crate) fn turn_cost(&mut self, cost: TurnCost) {
        let same = self.changes.iter_mut().find_map(|c| match c {
            Change::TurnCost(old) if old.id == cost.id => Some(old),
            _ => None,
        });
        match same {
            Some(old) => *old = cost,
            None => self.changes.push(Change::TurnCost(cost)),
        }
    }

    /// Keeps the latest snapshot of a subagent.
    pub(crate) fn subagent(&mut self, change: SubagentChange) {
        let same = self.changes.iter_mut().find_map(|c| match c {
            Change::Subagent(old)
                if old.task_id == change.task_id && old.session_key == change.session_key =>
            {
                Some(old)
            }
            _ => None,
        });
        match same {
            Some(old) => old.merge(change),
            None => self.changes.push(Change::Subagent(change)),
        }
    }

    /// Changes another row.
    pub(crate) fn change(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// Lets something happen after the batch is stored.
    pub(crate) fn effect(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// This batch holds what no log of the engine's can replay.
    pub(crate) fn durable(&mut self) {
        self.durable = true;
    }

    /// True while no more output should be taken.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes >= FULL_BYTES || self.records.len() >= FULL_RECORDS
    }

    /// True once everything is stored.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_none() && self.is_empty()
    }

    /// True while a batch is on its way.
    pub(crate) fn is_storing(&self) -> bool {
        self.in_flight.is_some()
    }

    /// True if the next batch has events.
    pub(crate) fn has_records(&self) -> bool {
        !self.records.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.records.is_empty() && self.changes.is_empty() && self.effects.is_empty()
    }

    /// Sends what has gathered on its way, unless a batch is on its way already. If it is `followed`, its events are kept
    /// until they are stored.
    pub(crate) fn flush(&mut self, followed: bool) {
        if self.in_flight.is_some() || self.is_empty() {
            return;
        }
        let records = std::mem::take(&mut self.records);
        let changes = std::mem::take(&mut self.changes);
        let mut effects = std::mem::take(&mut self.effects);
        let durable = std::mem::take(&mut self.durable);
        let bytes = std::mem::take(&mut self.bytes);
        let term = Arc::clone(&self.term);
        let stored: Storing = if records.is_empty() && changes.is_empty() {
            Box::pin(async move { term.current().await.map_err(|Lost| JournalError::Fenced) })
        } else {
            let batch = Batch::new(
                (self.id, term.fence),
                self.next_seq,
                &records,
                self.lines,
                changes,
                durable,
            );
            if !records.is_empty() {
                let kept = if followed && bytes <= MAX_BYTES {
                    records
                } else {
                    Vec::new()
                };
                // First, so that who is woken by another effect finds it.
                effects.insert(
                    0,
                    Effect::Publish(Stored {
                        first_seq: self.next_seq,
                        records: kept,
                    }),
                );
            }
            self.next_seq = batch.last_seq() + 1;
            let journal = self.journal.clone();
            Box::pin(async move {
                journal.store(batch).await?;
                // What follows from it is done only by who still holds the instance.
                term.current().await.map_err(|Lost| JournalError::Fenced)
            })
        };
        self.in_flight = Some(InFlight { effects, stored });
    }

    /// Waits until the batch on its way is stored, and gives its effects. Pending for ever when there is none. Cancel
    /// safe.
    pub(crate) async fn stored(&mut self) -> Result<Vec<Effect>, JournalError> {
        let Some(in_flight) = &mut self.in_flight else {
            return std::future::pending().await;
        };
        let result = in_flight.stored.as_mut().await;
        let effects = self.in_flight.take().map(|f| f.effects).unwrap_or_default();
        result.map(|()| effects)
    }
}
