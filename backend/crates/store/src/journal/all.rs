//! Reading the events of all instances in one order.
//!
//! The order is that of the transactions that wrote them, by their numbers (`xid`), which PostgreSQL hands out when a
//! transaction begins to write. Transactions end in another order, so a reader that took whatever it sees could pass by one
//! that is still running. It takes only what is older than every running transaction, and durable: after a crash of
//! PostgreSQL the numbers of transactions that were lost are handed out again, and a reader must not be ahead of that.

use std::time::{Duration, Instant};

use kandev_domain::{Event, EventKind, InstanceId, TaskId};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgPool, Row};

use super::place::Place;
use super::read::{JournalRow, damaged};
use crate::error::Result;

/// How many rows are fetched at once, which bounds the memory of a read.
const ROWS_AT_ONCE: i64 = 16;

/// Which events of all instances to read.
#[derive(Debug, Clone, Default)]
pub struct AllQuery {
    /// Only those of this task's instances.
    pub task_id: Option<TaskId>,
    /// Only these kinds; all when empty.
    pub kinds: Vec<EventKind>,
}

/// Why a reader's place counts no more. What it has seen since is incomplete, or unrelated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reset {
    /// Events behind it are not kept any more.
    Removed,
    /// It is not a place in this database's order.
    Unknown,
}

/// What a read gave.
#[derive(Debug)]
pub enum Read {
    /// Events, each with the place behind it; none where only the place has moved.
    Events(Vec<(Place, Event)>),
    /// The place was not one to go on from; it is now.
    Reset(Reset),
    /// There is nothing more. `held` if there is, but not yet for readers.
    Nothing {
        /// A transaction that is older is still running, or the disk has not confirmed yet.
        held: bool,
    },
}

/// How much to read at most.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// At most so many events.
    pub events: usize,
    /// Stop once this many bytes of lines and data are gathered (at least one event is given).
    pub bytes: usize,
}

/// How long PostgreSQL gets to write its log to disk by itself, which it does every 200 ms unless told otherwise. A
/// transaction that has begun to write and does nothing more keeps the end of the log from it.
const FLUSH_PATIENCE: Duration = Duration::from_millis(500);

/// One reader of all instances' events.
#[derive(Debug, Clone)]
pub struct AllReader {
    pool: PgPool,
    query: AllQuery,
    place: Place,
    unconfirmed: Option<Unconfirmed>,
    /// Transactions older than this one count.
    confirmed: i64,
    /// What [`settle`](Self::settle) waits for.
    goal: Option<i64>,
}

/// Transactions older than `xid` count once PostgreSQL's log is on disk up to `position`.
#[derive(Debug, Clone, Copy)]
struct Unconfirmed {
    xid: i64,
    position: i64,
    since: Instant,
}

/// How far the order has come.
#[derive(Debug, Clone, Copy)]
struct Horizon {
    database: i64,
    /// The oldest running transaction.
    oldest_running: i64,
    /// Up to where PostgreSQL has written its log, and up to where the disk has it.
    written: i64,
    flushed: i64,
    /// The last transaction that wrote an event.
    newest: i64,
    /// What lies before this place is incomplete.
    removed: Place,
}

async fn horizon(pool: &PgPool) -> Result<Horizon> {
    let row = sqlx::query(
        "SELECT hashtextextended(c.system_identifier || '/' || d.oid, 0) AS database, \
         pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS oldest_running, \
         (pg_current_wal_insert_lsn() - '0/0')::bigint AS written, (pg_current_wal_flush_lsn() - '0/0')::bigint AS flushed, \
         coalesce((SELECT j.xid::text::bigint FROM journal j ORDER BY j.xid DESC LIMIT 1), 0) AS newest, \
         r.removed_xid::text::bigint AS removed_xid, r.removed_instance, r.removed_seq \
         FROM journal_retention r, pg_control_system() c, pg_database d WHERE d.datname = current_database()",
    )
    .fetch_one(pool)
    .await?;
    let database = row.try_get("database")?;
    Ok(Horizon {
        database,
        oldest_running: row.try_get("oldest_running")?,
        written: row.try_get("written")?,
        flushed: row.try_get("flushed")?,
        newest: row.try_get("newest")?,
        removed: removed(database, &row)?,
    })
}

fn removed(database: i64, row: &PgRow) -> Result<Place> {
    Ok(Place {
        database,
        xid: row.try_get("removed_xid")?,
        instance_id: InstanceId(row.try_get("removed_instance")?),
        seq: row.try_get("removed_seq")?,
    })
}

/// Gives rows of another cluster, out of a dump, a place in this one's order where theirs is yet to come: before everything
/// that will be written, among each other by instance. Does nothing else, and is safe at any time.
pub async fn take_over_order(pool: &PgPool) -> Result<()> {
    let mut tx = pool.begin().await?;
    for statement in [
        "UPDATE journal SET xid = pg_current_xact_id() WHERE xid >= pg_snapshot_xmax(pg_current_snapshot())",
        "UPDATE journal_retention SET removed_xid = pg_current_xact_id(), \
         removed_instance = '00000000-0000-0000-0000-000000000000', removed_seq = 0 \
         WHERE removed_xid >= pg_snapshot_xmax(pg_current_snapshot())",
    ] {
        sqlx::query(statement).execute(&mut *tx).await?;
    }
    tx.commit().await?;
    Ok(())
}

/// Has PostgreSQL write its log to disk, by a transaction that waits for it.
async fn flush(pool: &PgPool) -> Result<()> {
    let mut tx = pool.begin().await?;
    sqlx::query("SET LOCAL synchronous_commit = on")
        .execute(&mut *tx)
        .await?;
    sqlx::query("SELECT pg_logical_emit_message(true, 'kandev', '')")
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(())
}

impl AllReader {
    /// One that goes on from `place`, or from the beginning.
    pub async fn from(pool: &PgPool, query: AllQuery, place: Option<Place>) -> Result<Self> {
        let place = match place {
            Some(place) => place,
            None => Place::before(horizon(pool).await?.database, 0),
        };
        Ok(Self {
            pool: pool.clone(),
            query,
            place,
            unconfirmed: None,
            confirmed: 0,
            goal: None,
        })
    }

    /// Behind what was given.
    pub const fn place(&self) -> Place {
        self.place
    }

    /// True once all that was committed before the first call can be read.
    pub async fn settle(&mut self) -> Result<bool> {
        let horizon = self.look().await?;
        let goal = *self.goal.get_or_insert(horizon.oldest_running);
        Ok(self.confirmed >= goal)
    }

    /// Passes by everything that could be read when it was last [settled](Self::settle).
    pub fn skip_to_end(&mut self) {
        self.place = Place::before(self.place.database, self.confirmed);
    }

    /// Looks how far the order has come, and which transactions count.
    async fn look(&mut self) -> Result<Horizon> {
        let mut now = horizon(&self.pool).await?;
        if self
            .unconfirmed
            .is_some_and(|u| now.flushed < u.position && u.since.elapsed() > FLUSH_PATIENCE)
        {
            flush(&self.pool).await?;
            now = horizon(&self.pool).await?;
        }
        let begun = Unconfirmed {
            xid: now.oldest_running,
            position: now.written,
            since: Instant::now(),
        };
        if now.flushed >= now.written {
            self.confirmed = now.oldest_running;
            self.unconfirmed = None;
        } else if let Some(old) = self.unconfirmed.filter(|u| now.flushed < u.position) {
            self.unconfirmed = Some(old);
        } else {
            self.confirmed = self.unconfirmed.map_or(self.confirmed, |u| u.xid);
            self.unconfirmed = Some(begun);
        }
        Ok(now)
    }

    /// Reads what comes next. The place moves only with what is returned.
    pub async fn read(&mut self, room: Room) -> Result<Read> {
        loop {
            let horizon = self.look().await?;
            // The mark of what was removed may be ahead for a moment, while an older transaction runs.
            let reached = horizon.oldest_running.max(horizon.removed.xid);
            if self.place.database != horizon.database || self.place.xid > reached {
                self.place = Place::before(horizon.database, 0).max(horizon.removed);
                (self.unconfirmed, self.confirmed, self.goal) = (None, 0, None);
                return Ok(Read::Reset(Reset::Unknown));
            }
            if self.place < horizon.removed {
                self.place = horizon.removed;
                return Ok(Read::Reset(Reset::Removed));
            }
            if horizon.newest < self.place.xid || self.confirmed <= self.place.xid {
                let held = horizon.newest >= self.place.xid;
                return Ok(Read::Nothing { held });
            }
            let Some(rows) = self.rows().await? else {
                // Something was removed just now.
                continue;
            };
            if rows.is_empty() {
                self.place = Place::before(horizon.database, self.confirmed);
                let held = horizon.newest >= self.confirmed;
                return Ok(Read::Nothing { held });
            }
            return Ok(Read::Events(self.unpack(rows, room)?));
        }
    }

    /// The next rows; none if some between the place and them are gone.
    async fn rows(&self) -> Result<Option<Vec<(i64, InstanceId, JournalRow)>>> {
        let mask = self.query.kinds.iter().fold(0, |mask, kind| mask | kind.bit());
        // Read with the mark of what was removed, in one statement: none can go unnoticed.
        let rows = sqlx::query(AssertSqlSafe(self.sql()))
            .bind(self.place.xid)
            .bind(self.place.instance_id.0)
            .bind(self.place.seq)
            .bind(self.confirmed)
            .bind(if mask == 0 { i32::MAX } else { mask })
            .bind(ROWS_AT_ONCE)
            .bind(self.query.task_id.as_ref().map(TaskId::as_str))
            .fetch_all(&self.pool)
            .await?;
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            if removed(self.place.database, row)? > self.place {
                return Ok(None);
            }
            if let Some(xid) = row.try_get::<Option<i64>, _>("at")? {
                let instance_id = InstanceId(row.try_get("instance_id")?);
                found.push((xid, instance_id, JournalRow::try_from(row)?));
            }
        }
        found.sort_unstable_by_key(|(xid, instance_id, row)| (*xid, *instance_id, row.first_seq));
        Ok(Some(found))
    }

    fn sql(&self) -> String {
        let of_task = match self.query.task_id {
            Some(_) => "j.instance_id IN (SELECT id FROM agent_instances WHERE task_id = $7)",
            None => "$7::text IS NULL",
        };
        // There is a row also when nothing is found, for the mark.
        format!(
            "SELECT r.removed_xid::text::bigint AS removed_xid, r.removed_instance, r.removed_seq, found.* \
             FROM journal_retention r LEFT JOIN LATERAL \
             (SELECT j.xid::text::bigint AS at, j.instance_id, j.first_seq, j.last_seq, j.body FROM journal j \
             WHERE (j.xid, j.instance_id) >= ($1::bigint::text::xid8, $2) AND j.xid < $4::bigint::text::xid8 \
             AND NOT (j.xid = $1::bigint::text::xid8 AND j.instance_id = $2 AND j.last_seq <= $3) \
             AND j.kinds & $5 <> 0 AND {of_task} \
             ORDER BY j.xid, j.instance_id, j.first_seq LIMIT $6) found ON true"
        )
    }

    fn unpack(
        &mut self,
        rows: Vec<(i64, InstanceId, JournalRow)>,
        room: Room,
    ) -> Result<Vec<(Place, Event)>> {
        let from = self.place;
        let mut events = Vec::new();
        let mut bytes = 0;
        for (xid, instance_id, row) in rows {
            let place = |seq| Place {
                database: from.database,
                xid,
                instance_id,
                seq,
            };
            for (seq, record) in row.records(instance_id)? {
                let wanted = self.query.kinds.is_empty() || self.query.kinds.contains(&record.kind);
                if !wanted || place(seq) <= from {
                    continue;
                }
                if events.len() >= room.events || (bytes >= room.bytes && !events.is_empty()) {
                    return Ok(events);
                }
                bytes += record.line.len() + 200;
                let event = record.into_event(instance_id, seq);
                events.push((place(seq), event.map_err(|e| damaged(instance_id, seq, &e))?));
                self.place = place(seq);
            }
            self.place = place(row.last_seq);
        }
        Ok(events)
    }
}
