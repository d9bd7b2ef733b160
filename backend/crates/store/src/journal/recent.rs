//! What was acknowledged and may not have reached the disk yet.
//!
//! A commit that does not wait for the disk is lost when PostgreSQL crashes within a moment of it. The writer lives on then,
//! and has gone on counting. So it keeps what it wrote until that is on the disk, and writes what is missing once more when it
//! has to connect anew. Commits are lost from the end only.
//!
//! They come to the disk by a commit of the writer's own that waits, or by the [flusher](super::flush), which spares the
//! writer the waiting. Where that does not keep up, or there is none, the writer makes a commit wait now and then.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::postgres::PgConnection;
use tokio::time::Instant;

use super::flush::Marks;
use super::{Batch, write_on};
use crate::error::Result;

/// How much may be kept, and for how long while more is written.
const MAX_BYTES: usize = 16 << 20;
const MAX_AGE: Duration = Duration::from_secs(2);

/// One transaction.
#[derive(Debug)]
struct Group {
    number: u64,
    batches: Vec<Batch>,
    at: DateTime<Utc>,
    bytes: usize,
    kept_at: Instant,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Recent {
    groups: VecDeque<Group>,
    bytes: usize,
    marks: Arc<Marks>,
}

impl Recent {
    /// For the flusher.
    pub(super) fn marks(&self) -> Arc<Marks> {
        Arc::clone(&self.marks)
    }

    /// A transaction is about to begin.
    pub(super) fn begin(&mut self) {
        self.marks.begun.fetch_add(1, Ordering::SeqCst);
        let (since, until) = *self.marks.flushed.borrow();
        while let Some(oldest) = self.groups.front()
            && (since + 1..=until).contains(&oldest.number)
        {
            self.bytes -= oldest.bytes;
            self.groups.pop_front();
        }
    }

    /// The next commit is to wait for the disk.
    pub(super) fn is_due(&self) -> bool {
        let oldest = self.groups.front();
        self.bytes >= MAX_BYTES || oldest.is_some_and(|group| group.kept_at.elapsed() >= MAX_AGE)
    }

    /// The transaction that was begun last has been answered, or is known to be there, and may not be on the disk.
    pub(super) fn keep(&mut self, batches: &[Batch], at: DateTime<Utc>) {
        let number = self.marks.begun.load(Ordering::SeqCst);
        let bytes = batches.iter().map(Batch::size).sum::<usize>();
        self.bytes += bytes;
        self.groups.push_back(Group {
            number,
            batches: batches.to_vec(),
            at,
            bytes,
            kept_at: Instant::now(),
        });
        self.marks.answered.send_replace(number);
    }

    /// How many transactions are kept.
    pub(super) fn len(&self) -> usize {
        self.groups.len()
    }

    /// All of it is on the disk.
    pub(super) fn forget(&mut self) {
        self.groups.clear();
        self.bytes = 0;
    }

    /// Writes once more what the database has lost.
    pub(super) async fn restore(&mut self, connection: &mut PgConnection) -> Result<()> {
        let mut kept = self.groups.len();
        while kept > 0 && !is_there(connection, &self.groups[kept - 1].batches).await? {
            kept -= 1;
        }
        let lost = self.groups.len() - kept;
        for group in self.groups.iter().skip(kept) {
            match write_on(connection, &group.batches, group.at, true).await {
                Err(error) if !error.is_transient() => {
                    tracing::error!(%error, "a transaction that the database lost cannot be written again");
                }
                written => written?,
            }
        }
        if lost > 0 {
            tracing::warn!(
                lost,
                "the database lost its last transactions; they are written again"
            );
        }
        Ok(())
    }
}

/// Of a transaction with events, they tell; one without changes only what may be changed again.
async fn is_there(connection: &mut PgConnection, batches: &[Batch]) -> Result<bool> {
    match batches.iter().find(|b| !b.body.is_empty()) {
        Some(batch) => super::has(connection, batch).await,
        None => Ok(false),
    }
}
