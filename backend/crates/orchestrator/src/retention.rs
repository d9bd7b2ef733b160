//! Keeps the journal within the age and the size that the operator wants, beside everything else that goes on.
//!
//! The size is what the rows take, not what the relation does: that shrinks only when PostgreSQL gets round to it, and would
//! have ever more removed. It is counted once and then goes on with what is new; before anything is removed for its
//! size it is counted again, since tasks are deleted with their history.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use chrono::TimeDelta;
use kandev_store::journal::retention::{self, Excess, Removed, Walk};
use kandev_store::{PgPool, StoreError};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::Shared;

/// How much is kept.
#[derive(Debug, Clone, Copy)]
pub struct Retention {
    /// Events older than this are removed, where set.
    pub max_age: Option<Duration>,
    /// The oldest events are removed when all take more bytes than this, where set.
    pub max_bytes: Option<u64>,
    /// How often to look.
    pub interval: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            max_age: None,
            max_bytes: None,
            interval: Duration::from_mins(5),
        }
    }
}

/// Between two steps, so that others come first.
const PAUSE: Duration = Duration::from_millis(20);
/// Of the size that is allowed, so much is left when something is removed, in percent: a count serves for a while.
const LEAVE_PERCENT: u64 = 90;

/// What has been removed since the process began.
#[derive(Debug, Default)]
pub struct RemovedTotals {
    /// Rows of the journal.
    pub rows: AtomicU64,
    /// Events in them.
    pub events: AtomicU64,
    /// Bytes that they took.
    pub bytes: AtomicU64,
}

impl RemovedTotals {
    fn add(&self, removed: &Removed) {
        self.rows.fetch_add(removed.rows, Ordering::Relaxed);
        self.events.fetch_add(removed.events, Ordering::Relaxed);
        self.bytes.fetch_add(removed.bytes, Ordering::Relaxed);
    }
}

/// What the rows take, as far as they have been counted.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    bytes: u64,
    walk: Walk,
}

/// Looks at every interval until the process ends.
pub(crate) async fn run(shared: &Shared, totals: &RemovedTotals, closing: CancellationToken) {
    let retention = shared.settings.retention;
    if retention.max_age.is_none() && retention.max_bytes.is_none() {
        return;
    }
    let mut size = None;
    let looking = async {
        loop {
            if let Err(error) = look(shared, totals, &mut size).await {
                // What is not removed now is removed the next time.
                tracing::warn!(%error, "old events could not be removed");
            }
            sleep(retention.interval).await;
        }
    };
    tokio::select! {
        () = looking => {}
        () = closing.cancelled() => {}
    }
}

async fn look(shared: &Shared, totals: &RemovedTotals, size: &mut Option<Size>) -> Result<(), StoreError> {
    let retention = shared.settings.retention;
    let before = retention.max_age.and_then(|age| {
        shared
            .clock
            .now()
            .checked_sub_signed(TimeDelta::from_std(age).ok()?)
    });
    let mut excess = Excess { before, bytes: 0 };
    if let Some(max) = retention.max_bytes {
        excess.bytes = too_much(&shared.pool, max, size).await?;
    }
    if excess.before.is_none() && excess.bytes == 0 {
        return Ok(());
    }
    let mut sum = Removed::default();
    loop {
        let Some(step) = retention::remove(&shared.pool, sum.walk, excess).await? else {
            tracing::debug!("another server removes old events");
            break;
        };
        totals.add(&step);
        if let Some(size) = size {
            size.bytes = size.bytes.saturating_sub(step.bytes);
        }
        excess.bytes = excess.bytes.saturating_sub(step.bytes);
        sum.rows += step.rows;
        sum.events += step.events;
        sum.bytes += step.bytes;
        sum.walk = step.walk;
        if step.done {
            break;
        }
        sleep(PAUSE).await;
    }
    if sum.rows > 0 {
        let (rows, events, bytes) = (sum.rows, sum.events, sum.bytes);
        tracing::info!(rows, events, bytes, "old events were removed");
    }
    Ok(())
}

/// How many bytes must go.
async fn too_much(pool: &PgPool, max: u64, size: &mut Option<Size>) -> Result<u64, StoreError> {
    if retention::size_on_disk(pool).await? <= max {
        return Ok(0);
    }
    if let Some(known) = *size {
        let now = *size.insert(counted(pool, known).await?);
        if now.bytes <= max {
            return Ok(0);
        }
    }
    let now = *size.insert(counted(pool, Size::default()).await?);
    if now.bytes <= max {
        return Ok(0);
    }
    Ok(now.bytes - max / 100 * LEAVE_PERCENT)
}

/// Counts on to the end.
async fn counted(pool: &PgPool, mut size: Size) -> Result<Size, StoreError> {
    loop {
        let more = retention::count(pool, size.walk).await?;
        if more.rows == 0 {
            return Ok(size);
        }
        size.bytes += more.bytes;
        size.walk = more.walk;
        sleep(PAUSE).await;
    }
}
