//! Reading events back.

use kandev_domain::{Event, EventKind, InstanceId, InstanceStatus};
use sqlx::{PgPool, Row};

use super::PipeLines;
use crate::error::{Result, StoreError};
use crate::record::{DamagedBatch, Record, unpack};

/// Where an instance's history stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Position {
    /// The last event; 0 when there is none.
    pub seq: i64,
    /// How far the container's output has been stored.
    pub lines: PipeLines,
}

/// Reads where the history of an instance stands.
pub async fn position(pool: &PgPool, id: InstanceId) -> Result<Position> {
    let row = sqlx::query(
        "SELECT last_seq, stdout_lines, stderr_lines FROM journal WHERE instance_id = $1 ORDER BY first_seq DESC LIMIT 1",
    )
    .bind(id.0)
    .fetch_optional(pool)
    .await?;
    Ok(match row {
        None => Position::default(),
        Some(row) => Position {
            seq: row.try_get("last_seq")?,
            lines: PipeLines {
                stdout: row.try_get::<i64, _>("stdout_lines")? as u64,
                stderr: row.try_get::<i64, _>("stderr_lines")? as u64,
            },
        },
    })
}

/// What the history of an instance holds, as of one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Where the instance stands. With a final status the history is complete.
    pub status: InstanceStatus,
    /// The oldest event that is still there; 1 when there is none.
    pub oldest: i64,
    /// The last event; 0 when there is none.
    pub last: i64,
}

/// Reads that in one statement; none if there is no such instance.
pub async fn standing(pool: &PgPool, id: InstanceId) -> Result<Option<Standing>> {
    let row = sqlx::query(
        "SELECT status, \
         (SELECT first_seq FROM journal WHERE instance_id = $1 ORDER BY first_seq LIMIT 1) AS oldest, \
         (SELECT last_seq FROM journal WHERE instance_id = $1 ORDER BY first_seq DESC LIMIT 1) AS last \
         FROM agent_instances WHERE id = $1",
    )
    .bind(id.0)
    .fetch_optional(pool)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let status: String = row.try_get("status")?;
    Ok(Some(Standing {
        status: status
            .parse()
            .map_err(|e| StoreError::bad_row("agent_instances", "status", id, e))?,
        oldest: row.try_get::<Option<i64>, _>("oldest")?.unwrap_or(1),
        last: row.try_get::<Option<i64>, _>("last")?.unwrap_or(0),
    }))
}

/// Which events to read.
#[derive(Debug, Clone)]
pub struct EventQuery {
    /// Only later ones.
    pub after: i64,
    /// Only up to this one, where set.
    pub until: Option<i64>,
    /// Only these kinds; all when empty.
    pub kinds: Vec<EventKind>,
    /// At most so many.
    pub limit: usize,
    /// Stop once this many bytes of lines and data are gathered (at least one event is given).
    pub max_bytes: usize,
}

/// Events in order.
#[derive(Debug, Clone)]
pub struct EventPage {
    /// The events.
    pub events: Vec<Event>,
    /// The number after which the next page begins; none if this one reached the end.
    pub next_after: Option<i64>,
    /// Set where events between the query's `after` and this one are not kept any more; it is the oldest that is.
    pub oldest: Option<i64>,
}

/// How many rows are fetched at once at most; a slow agent has one for each event.
pub(super) const MAX_ROWS: usize = 1000;
/// Rows are fetched up to so many packed bytes (at least one row), which bounds the memory of a read.
pub(super) const BYTES_AT_ONCE: i64 = 1 << 20;

/// No history comes as far, and what is added to a number stays one.
const LAST_AFTER: i64 = i64::MAX / 2;

/// Reads one page of events.
pub async fn events(pool: &PgPool, id: InstanceId, query: &EventQuery) -> Result<EventPage> {
    let mask = query.kinds.iter().fold(0, |mask, kind| mask | kind.bit());
    let mut page = EventPage {
        events: Vec::new(),
        next_after: None,
        oldest: None,
    };
    let mut bytes = 0;
    let mut after = query.after.min(LAST_AFTER);
    loop {
        let missing = query.limit - page.events.len();
        let (oldest, rows) = rows_after(pool, id, after, mask, missing).await?;
        if oldest > after + 1 {
            if after > query.after {
                // Removed just now; the next page says so.
                page.next_after = Some(after);
                return Ok(page);
            }
            page.oldest = Some(oldest);
        }
        let Some(end) = rows.last().map(|r| r.last_seq) else {
            return Ok(page);
        };
        for row in rows {
            for (seq, record) in row.records(id)? {
                if seq <= query.after || (mask != 0 && mask & record.kind.bit() == 0) {
                    continue;
                }
                if query.until.is_some_and(|until| seq > until) {
                    return Ok(page);
                }
                if page.events.len() >= query.limit || (bytes >= query.max_bytes && !page.events.is_empty()) {
                    page.next_after = page.events.last().map(|e| e.seq);
                    return Ok(page);
                }
                bytes += record.line.len() + 200;
                page.events.push(event_of(record, id, seq)?);
            }
        }
        after = end;
    }
}

/// A record as the event that callers see.
pub fn event_of(record: Record, id: InstanceId, seq: i64) -> Result<Event> {
    record.into_event(id, seq).map_err(|e| damaged(id, seq, &e))
}

pub(super) fn damaged(id: InstanceId, seq: i64, problem: &DamagedBatch) -> StoreError {
    StoreError::bad_row("journal", "body", format_args!("{id}/{seq}"), problem)
}

pub(super) struct JournalRow {
    pub(super) first_seq: i64,
    pub(super) last_seq: i64,
    pub(super) body: Vec<u8>,
}

impl TryFrom<&sqlx::postgres::PgRow> for JournalRow {
    type Error = StoreError;

    fn try_from(row: &sqlx::postgres::PgRow) -> Result<Self> {
        Ok(Self {
            first_seq: row.try_get("first_seq")?,
            last_seq: row.try_get("last_seq")?,
            body: row.try_get("body")?,
        })
    }
}

impl JournalRow {
    pub(super) fn records(&self, id: InstanceId) -> Result<Vec<(i64, Record)>> {
        let records = unpack(&self.body).map_err(|e| damaged(id, self.first_seq, &e))?;
        if records.len() as i64 != self.last_seq - self.first_seq + 1 {
            return Err(StoreError::bad_row(
                "journal",
                "last_seq",
                format_args!("{id}/{}", self.first_seq),
                "it does not match the body",
            ));
        }
        Ok(records
            .into_iter()
            .zip(self.first_seq..)
            .map(|(record, seq)| (seq, record))
            .collect())
    }
}

/// The oldest event that is there (1 if there is none), and rows, as of one moment: what is removed cannot go unnoticed.
async fn rows_after(
    pool: &PgPool,
    id: InstanceId,
    after: i64,
    mask: i32,
    wanted: usize,
) -> Result<(i64, Vec<JournalRow>)> {
    // Where every event counts, no row beyond the wanted ones is needed, but for the first that shows that there are more.
    let (mask, events) = match mask {
        0 => (i32::MAX, wanted as i64),
        mask => (mask, i64::from(i32::MAX)),
    };
    // The row that holds `after + 1` may begin before it: rows follow each other without a gap, so it is the last one
    // that begins at or before. The length of a body is known without reading it.
    let rows = sqlx::query(
        "SELECT (SELECT first_seq FROM journal WHERE instance_id = $1 ORDER BY first_seq LIMIT 1) AS oldest, found.* \
         FROM (SELECT 1) one LEFT JOIN LATERAL (\
           SELECT first_seq, last_seq, body FROM (\
             SELECT *, first_value(first_seq) OVER earlier AS first_found, \
               sum(octet_length(body)) OVER earlier - octet_length(body) AS bytes_before FROM (\
               SELECT first_seq, last_seq, body FROM journal \
               WHERE instance_id = $1 AND kinds & $3 <> 0 AND last_seq > $2 AND first_seq >= \
                 coalesce((SELECT max(first_seq) FROM journal WHERE instance_id = $1 AND first_seq <= $2 + 1), 0) \
               ORDER BY first_seq LIMIT $4) AS rows WINDOW earlier AS (ORDER BY first_seq)) AS sized \
           WHERE bytes_before < $5 AND first_seq <= greatest(first_found, $2 + 1) + $6) found ON true \
         ORDER BY found.first_seq",
    )
    .bind(id.0)
    .bind(after)
    .bind(mask)
    .bind(MAX_ROWS.min(wanted.saturating_add(1)) as i64)
    .bind(BYTES_AT_ONCE)
    .bind(events)
    .fetch_all(pool)
    .await?;
    let oldest = match rows.first() {
        Some(row) => row.try_get::<Option<i64>, _>("oldest")?.unwrap_or(1),
        None => 1,
    };
    let found = rows
        .iter()
        .filter(|row| !matches!(row.try_get::<Option<i64>, _>("first_seq"), Ok(None)));
    Ok((oldest, found.map(JournalRow::try_from).collect::<Result<_>>()?))
}
