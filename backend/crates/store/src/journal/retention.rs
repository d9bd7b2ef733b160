//! Removing the oldest rows of the journal, a few at a time.
//!
//! Of each instance a beginning is removed, never a part in the middle, so that what is left has no gap. What the next server
//! needs to take an instance up stays: its last row, which says where its history and its output stand, and the rows of
//! turns that have not ended.

use chrono::{DateTime, Utc};
use kandev_domain::InstanceId;
use sqlx::{PgPool, Row};
use uuid::Uuid;

use crate::error::Result;

/// How many rows are looked at in one transaction.
const ROWS_AT_ONCE: i64 = 500;
/// How many rows are counted in one statement.
const COUNTED_AT_ONCE: i64 = 5000;
/// What a row takes besides its body, indexes included: its fixed columns, and an entry in each of three indexes.
const ROW_BYTES: i64 = 250;
/// Sets this lock apart from kandev's others.
const LOCK: (i32, i32) = (0x6b61_6e64, 0x7265_7465);

/// Where a walk through the journal in the order of its writing stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Walk {
    xid: i64,
    instance_id: Uuid,
    first_seq: i64,
}

/// A stretch of the journal.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counted {
    /// Rows.
    pub rows: u64,
    /// What they take.
    pub bytes: u64,
    /// Behind them.
    pub walk: Walk,
}

/// What the journal takes on disk, with what was removed and not reclaimed yet: never less than [`count`] says.
pub async fn size_on_disk(pool: &PgPool) -> Result<u64> {
    let size: i64 = sqlx::query_scalar("SELECT pg_total_relation_size('journal')")
        .fetch_one(pool)
        .await?;
    Ok(size.max(0).cast_unsigned())
}

/// Counts what some rows behind `from` take; no rows at the end.
pub async fn count(pool: &PgPool, from: Walk) -> Result<Counted> {
    let rows = sqlx::query(
        "SELECT j.xid::text::bigint AS at, j.instance_id, j.first_seq, octet_length(j.body) + $4 AS bytes FROM journal j \
         WHERE (j.xid, j.instance_id, j.first_seq) > ($1::bigint::text::xid8, $2, $3) \
         AND j.xid < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY j.xid, j.instance_id, j.first_seq LIMIT $5",
    )
    .bind(from.xid)
    .bind(from.instance_id)
    .bind(from.first_seq)
    .bind(ROW_BYTES)
    .bind(COUNTED_AT_ONCE)
    .fetch_all(pool)
    .await?;
    let mut counted = Counted {
        walk: from,
        ..Counted::default()
    };
    for row in &rows {
        counted.rows += 1;
        counted.bytes += row.try_get::<i64, _>("bytes")?.cast_unsigned();
        counted.walk = Walk {
            xid: row.try_get("at")?,
            instance_id: row.try_get("instance_id")?,
            first_seq: row.try_get("first_seq")?,
        };
    }
    Ok(counted)
}

/// What is too much.
#[derive(Debug, Clone, Copy)]
pub struct Excess {
    /// Rows that were written before this.
    pub before: Option<DateTime<Utc>>,
    /// Rows that take so much, of whatever age.
    pub bytes: u64,
}

/// What one step removed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Removed {
    /// Rows.
    pub rows: u64,
    /// Events in them.
    pub events: u64,
    /// What they took.
    pub bytes: u64,
    /// Behind the last row that was looked at.
    pub walk: Walk,
    /// There is nothing more that is too much.
    pub done: bool,
}

struct Candidate {
    walk: Walk,
    last_seq: i64,
    bytes: u64,
}

/// Looks at some of the oldest rows behind `from` and removes those that are too much. None while another server does so.
pub async fn remove(pool: &PgPool, from: Walk, excess: Excess) -> Result<Option<Removed>> {
    let mut tx = pool.begin().await?;
    // It must never be in anybody's way for long, and what a crash brings back is removed again.
    for statement in [
        "SET LOCAL statement_timeout = '10s'",
        "SET LOCAL lock_timeout = '1s'",
        "SET LOCAL synchronous_commit = off",
    ] {
        sqlx::query(statement).execute(&mut *tx).await?;
    }
    let locked: bool = sqlx::query_scalar("SELECT pg_try_advisory_xact_lock($1, $2)")
        .bind(LOCK.0)
        .bind(LOCK.1)
        .fetch_one(&mut *tx)
        .await?;
    if !locked {
        return Ok(None);
    }
    let rows = sqlx::query(
        "SELECT j.xid::text::bigint AS at, j.instance_id, j.first_seq, j.last_seq, j.written_at, \
         octet_length(j.body) + $4 AS bytes, \
         EXISTS (SELECT 1 FROM journal later WHERE later.instance_id = j.instance_id AND later.first_seq > j.first_seq) \
         AND j.last_seq < coalesce((SELECT min(t.first_seq) FROM turns t WHERE t.instance_id = j.instance_id \
         AND t.status IN ('queued', 'running')), 9223372036854775807) AS removable \
         FROM journal j WHERE (j.xid, j.instance_id, j.first_seq) > ($1::bigint::text::xid8, $2, $3) \
         AND j.xid < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY j.xid, j.instance_id, j.first_seq LIMIT $5",
    )
    .bind(from.xid)
    .bind(from.instance_id)
    .bind(from.first_seq)
    .bind(ROW_BYTES)
    .bind(ROWS_AT_ONCE)
    .fetch_all(&mut *tx)
    .await?;
    let mut removed = Removed {
        walk: from,
        done: (rows.len() as i64) < ROWS_AT_ONCE,
        ..Removed::default()
    };
    let mut gone = Vec::new();
    for row in &rows {
        // Rows lie by age: behind one that is young enough there is none that is too old.
        let old = excess.before.is_some_and(|before| {
            row.try_get::<DateTime<Utc>, _>("written_at")
                .is_ok_and(|at| at < before)
        });
        if !old && removed.bytes >= excess.bytes {
            removed.done = true;
            break;
        }
        removed.walk = Walk {
            xid: row.try_get("at")?,
            instance_id: row.try_get("instance_id")?,
            first_seq: row.try_get("first_seq")?,
        };
        if row.try_get("removable")? {
            let candidate = Candidate {
                walk: removed.walk,
                last_seq: row.try_get("last_seq")?,
                bytes: row.try_get::<i64, _>("bytes")?.cast_unsigned(),
            };
            removed.rows += 1;
            removed.events += (candidate.last_seq - candidate.walk.first_seq + 1).cast_unsigned();
            removed.bytes += candidate.bytes;
            gone.push(candidate);
        }
    }
    if let Some(last) = gone.last() {
        let ids: Vec<_> = gone.iter().map(|c| c.walk.instance_id).collect();
        let first: Vec<_> = gone.iter().map(|c| c.walk.first_seq).collect();
        sqlx::query(
            "DELETE FROM journal j USING unnest($1::uuid[], $2::bigint[]) AS gone(instance_id, first_seq) \
             WHERE j.instance_id = gone.instance_id AND j.first_seq = gone.first_seq",
        )
        .bind(ids)
        .bind(first)
        .execute(&mut *tx)
        .await?;
        // With the rows, so that no reader sees one without the other.
        sqlx::query(
            "UPDATE journal_retention SET removed_xid = $1::bigint::text::xid8, removed_instance = $2, removed_seq = $3 \
             WHERE (removed_xid, removed_instance, removed_seq) < ($1::bigint::text::xid8, $2, $3)",
        )
        .bind(last.walk.xid)
        .bind(InstanceId(last.walk.instance_id).0)
        .bind(last.last_seq)
        .execute(&mut *tx)
        .await?;
    }
    tx.commit().await?;
    Ok(Some(removed))
}
