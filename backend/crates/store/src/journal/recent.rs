//! What was acknowledged and may not have reached the disk yet.
//!
//! A commit that does not wait for the disk is lost when PostgreSQL crashes within a moment of it. The writer lives on then,
//! and has gone on counting. So it keeps what it wrote since the last commit that did wait, makes one wait now and then,
//! and writes what is missing once more when it has to connect anew. Commits are lost from the end only.

use std::collections::VecDeque;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::postgres::PgConnection;
use tokio::time::Instant;

use super::{Batch, write_on};
use crate::error::Result;

/// How much may be kept, and for how long while more is written.
const MAX_BYTES: usize = 4 << 20;
const MAX_AGE: Duration = Duration::from_millis(250);

/// One transaction.
#[derive(Debug)]
struct Group {
    batches: Vec<Batch>,
    at: DateTime<Utc>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Recent {
    groups: VecDeque<Group>,
    bytes: usize,
    since: Option<Instant>,
}

impl Recent {
    /// The next commit is to wait for the disk.
    pub(super) fn is_due(&self) -> bool {
        self.bytes >= MAX_BYTES || self.since.is_some_and(|since| since.elapsed() >= MAX_AGE)
    }

    pub(super) fn keep(&mut self, batches: &[Batch], at: DateTime<Utc>) {
        self.bytes += batches.iter().map(Batch::size).sum::<usize>();
        self.since.get_or_insert_with(Instant::now);
        self.groups.push_back(Group {
            batches: batches.to_vec(),
            at,
        });
    }

    /// All of it is on the disk.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
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
