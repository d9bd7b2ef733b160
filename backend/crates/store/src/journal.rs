//! The journal: what happened to each instance, in order, and the rows that must change together with it.
//!
//! [`JournalWriter::write`] stores the batches of many instances in one transaction. It has its own connection, on which a
//! commit does not wait for the disk (D3), unless a batch says `durable`: then everything before it becomes durable too.

use chrono::{DateTime, Utc};
use futures_util::TryStreamExt;
use kandev_domain::{Event, EventKind, InstanceId, LogLevel, LogStream};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{Connection, PgPool, Row};

use crate::error::{Result, StoreError};
use crate::instances::InstancePatch;
use crate::record::{Data, Record, pack, unpack};
use crate::sessions::{NewSession, SessionFacet};
use crate::tasks::TaskMetadata;
use crate::turns::{NewTurn, TurnPatch};

/// A change that commits together with the events that tell of it.
#[derive(Debug, Clone)]
pub enum Change {
    /// Of the instance itself.
    Instance(Box<InstancePatch>),
    /// A prompt was accepted.
    TurnQueued(NewTurn),
    /// A turn went on.
    Turn(TurnPatch),
    /// A session was established.
    Session(NewSession),
    /// The agent said something about its session.
    Facet(SessionFacet),
    /// The task learns its session's id.
    Task(TaskMetadata),
}

/// Consecutive events of one instance, ready to be stored.
#[derive(Debug, Clone)]
pub struct Batch {
    instance_id: InstanceId,
    first_seq: i64,
    last_seq: i64,
    kinds: i32,
    logs: [i32; 3],
    lines: PipeLines,
    body: Vec<u8>,
    changes: Vec<Change>,
    durable: bool,
}

/// How many lines of each pipe have been stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PipeLines {
    /// Of stdout.
    pub stdout: u64,
    /// Of stderr.
    pub stderr: u64,
}

impl Batch {
    /// Packs `records` as the events from `first_seq` on. A batch may hold changes alone.
    pub fn new(
        instance_id: InstanceId,
        first_seq: i64,
        records: &[Record],
        lines: PipeLines,
        changes: Vec<Change>,
        durable: bool,
    ) -> Self {
        let mut kinds = 0;
        let mut logs = [0; 3];
        for record in records {
            kinds |= record.kind.bit();
            if let Data::Log { stream, .. } = record.data {
                logs[stream as usize] += 1;
            }
        }
        let body = if records.is_empty() {
            Vec::new()
        } else {
            pack(records)
        };
        let last_seq = first_seq + records.len() as i64 - 1;
        Self {
            instance_id,
            first_seq,
            last_seq,
            kinds,
            logs,
            lines,
            body,
            changes,
            durable,
        }
    }

    /// The instance.
    pub const fn instance_id(&self) -> InstanceId {
        self.instance_id
    }

    /// The last event's number; `first_seq - 1` when there are only changes.
    pub const fn last_seq(&self) -> i64 {
        self.last_seq
    }

    /// Bytes to be written.
    pub const fn size(&self) -> usize {
        self.body.len()
    }
}

/// The one writer of a process.
#[derive(Debug)]
pub struct JournalWriter {
    options: PgConnectOptions,
    connection: Option<PgConnection>,
}

impl JournalWriter {
    /// A writer that connects when it first writes.
    pub fn new(pool: &PgPool) -> Self {
        Self {
            options: (*pool.connect_options()).clone(),
            connection: None,
        }
    }

    /// Stores all or nothing. After a transient error the connection is made anew at the next call.
    pub async fn write(&mut self, batches: &[Batch], now: DateTime<Utc>) -> Result<()> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => connect(&self.options).await?,
        };
        let written = write_on(&mut connection, batches, now).await;
        // A connection that failed in the middle may hold half a transaction.
        if written.is_ok() {
            self.connection = Some(connection);
        }
        written
    }

    /// True if these batches are in the database already: after a commit whose answer was lost. They were written in
    /// one transaction, so the first one with events tells for all.
    pub async fn has_written(&mut self, batches: &[Batch]) -> Result<bool> {
        let Some(batch) = batches.iter().find(|b| !b.body.is_empty()) else {
            return Ok(false);
        };
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => connect(&self.options).await?,
        };
        let found = sqlx::query_scalar::<_, bool>(
            "SELECT EXISTS (SELECT 1 FROM journal WHERE instance_id = $1 AND first_seq = $2 AND body = $3)",
        )
        .bind(batch.instance_id.0)
        .bind(batch.first_seq)
        .bind(batch.body.as_slice())
        .fetch_one(&mut connection)
        .await?;
        self.connection = Some(connection);
        Ok(found)
    }
}

async fn connect(options: &PgConnectOptions) -> Result<PgConnection> {
    let options = options
        .clone()
        .application_name("kandev-journal")
        .options([("synchronous_commit", "off")]);
    Ok(PgConnection::connect_with(&options).await?)
}

async fn write_on(connection: &mut PgConnection, batches: &[Batch], now: DateTime<Utc>) -> Result<()> {
    let durable = batches.iter().any(|b| b.durable);
    if !durable && batches.iter().all(|b| b.changes.is_empty()) {
        return insert_rows(connection, batches, now).await;
    }
    let mut tx = connection.begin().await?;
    if durable {
        sqlx::query("SET LOCAL synchronous_commit = on")
            .execute(&mut *tx)
            .await?;
    }
    insert_rows(&mut tx, batches, now).await?;
    for batch in batches {
        for change in &batch.changes {
            apply(&mut tx, change, now).await?;
        }
    }
    tx.commit().await?;
    Ok(())
}

async fn insert_rows(connection: &mut PgConnection, batches: &[Batch], now: DateTime<Utc>) -> Result<()> {
    let rows: Vec<&Batch> = batches.iter().filter(|b| !b.body.is_empty()).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let ids: Vec<_> = rows.iter().map(|b| b.instance_id.0).collect();
    let first: Vec<_> = rows.iter().map(|b| b.first_seq).collect();
    let last: Vec<_> = rows.iter().map(|b| b.last_seq).collect();
    let kinds: Vec<_> = rows.iter().map(|b| b.kinds).collect();
    let log_counts =
        |stream: LogStream| -> Vec<i32> { rows.iter().map(|b| b.logs[stream as usize]).collect() };
    let stdout: Vec<_> = rows.iter().map(|b| b.lines.stdout as i64).collect();
    let stderr: Vec<_> = rows.iter().map(|b| b.lines.stderr as i64).collect();
    let bodies: Vec<&[u8]> = rows.iter().map(|b| b.body.as_slice()).collect();
    sqlx::query(
        "INSERT INTO journal (instance_id, first_seq, last_seq, kinds, log_stdout, log_stderr, log_system, \
         stdout_lines, stderr_lines, body, written_at) \
         SELECT *, $11 FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::int[], $5::int[], $6::int[], $7::int[], \
         $8::bigint[], $9::bigint[], $10::bytea[])",
    )
    .bind(ids)
    .bind(first)
    .bind(last)
    .bind(kinds)
    .bind(log_counts(LogStream::Stdout))
    .bind(log_counts(LogStream::Stderr))
    .bind(log_counts(LogStream::System))
    .bind(stdout)
    .bind(stderr)
    .bind(bodies)
    .bind(now)
    .execute(connection)
    .await?;
    Ok(())
}

async fn apply(connection: &mut PgConnection, change: &Change, now: DateTime<Utc>) -> Result<()> {
    match change {
        Change::Instance(patch) => patch.apply(connection, now).await,
        Change::TurnQueued(turn) => turn.insert(connection).await,
        Change::Turn(patch) => patch.apply(connection).await,
        Change::Session(session) => session.insert(connection).await,
        Change::Facet(facet) => facet.upsert(connection, now).await,
        Change::Task(metadata) => metadata.merge(connection, now).await,
    }
}

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
}

/// How many rows are fetched at once, which bounds the memory of a read.
const ROWS_AT_ONCE: i64 = 16;

/// Reads one page of events.
pub async fn events(pool: &PgPool, id: InstanceId, query: &EventQuery) -> Result<EventPage> {
    let mask = query.kinds.iter().fold(0, |mask, kind| mask | kind.bit());
    let mut page = EventPage {
        events: Vec::new(),
        next_after: None,
    };
    let mut bytes = 0;
    let mut after = query.after;
    loop {
        let rows = rows_after(pool, id, after, if mask == 0 { i32::MAX } else { mask }).await?;
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
                page.events
                    .push(record.into_event(id, seq).map_err(|e| damaged(id, seq, &e))?);
            }
        }
        after = end;
    }
}

fn damaged(id: InstanceId, seq: i64, problem: &crate::record::DamagedBatch) -> StoreError {
    StoreError::bad_row("journal", "body", format_args!("{id}/{seq}"), problem)
}

struct JournalRow {
    first_seq: i64,
    last_seq: i64,
    body: Vec<u8>,
}

impl JournalRow {
    fn records(&self, id: InstanceId) -> Result<Vec<(i64, Record)>> {
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

async fn rows_after(pool: &PgPool, id: InstanceId, after: i64, mask: i32) -> Result<Vec<JournalRow>> {
    // The row that holds `after + 1` may begin before it: rows follow each other without a gap, so it is the last one
    // that begins at or before.
    let rows = sqlx::query(
        "SELECT first_seq, last_seq, body FROM journal WHERE instance_id = $1 AND kinds & $3 <> 0 AND last_seq > $2 \
         AND first_seq >= coalesce((SELECT max(first_seq) FROM journal WHERE instance_id = $1 AND first_seq <= $2 + 1), 0) \
         ORDER BY first_seq LIMIT $4",
    )
    .bind(id.0)
    .bind(after)
    .bind(mask)
    .bind(ROWS_AT_ONCE)
    .fetch(pool)
    .map_err(StoreError::from)
    .and_then(|row| async move {
        Ok(JournalRow { first_seq: row.try_get(0)?, last_seq: row.try_get(1)?, body: row.try_get(2)? })
    })
    .try_collect()
    .await?;
    Ok(rows)
}

/// Which log lines to read.
#[derive(Debug, Clone, Default)]
pub struct LogQuery {
    /// Only later ones than this event.
    pub after: Option<i64>,
    /// Only those at or after this time.
    pub since: Option<DateTime<Utc>>,
    /// Only those before this time.
    pub until: Option<DateTime<Utc>>,
    /// Only from these streams; all when empty.
    pub streams: Vec<LogStream>,
    /// Only these levels; all when empty.
    pub levels: Vec<LogLevel>,
    /// Only those that contain this.
    pub contains: Option<String>,
    /// At most so many: the last ones, or with `after` the first ones.
    pub limit: usize,
}

/// A log line.
#[derive(Debug, Clone)]
pub struct LogLine {
    /// The number of its event.
    pub seq: i64,
    /// When it was seen.
    pub at: DateTime<Utc>,
    /// Where it came from.
    pub stream: LogStream,
    /// How bad it is.
    pub level: LogLevel,
    /// What it says.
    pub message: String,
}

/// Log lines in order.
#[derive(Debug, Clone)]
pub struct LogPage {
    /// The lines.
    pub lines: Vec<LogLine>,
    /// How many lines match in all, whatever `after` and the limit.
    pub total: i64,
    /// The number after which the next page begins; none if this one reached the end.
    pub next_after: Option<i64>,
}

impl LogQuery {
    fn matches(&self, record: &Record) -> Option<(LogStream, LogLevel)> {
        let Data::Log { stream, level } = record.data else {
            return None;
        };
        let wanted = (self.streams.is_empty() || self.streams.contains(&stream))
            && (self.levels.is_empty() || self.levels.contains(&level))
            && self.since.is_none_or(|since| record.at >= since)
            && self.until.is_none_or(|until| record.at < until)
            && self
                .contains
                .as_deref()
                .is_none_or(|q| record.message().contains(q));
        wanted.then_some((stream, level))
    }

    /// True if the counts kept with each row are enough to know the total.
    const fn counts_suffice(&self) -> bool {
        self.since.is_none() && self.until.is_none() && self.levels.is_empty() && self.contains.is_none()
    }
}

/// Reads log lines.
pub async fn logs(pool: &PgPool, id: InstanceId, query: &LogQuery) -> Result<LogPage> {
    if query.counts_suffice() {
        counted_logs(pool, id, query).await
    } else {
        scanned_logs(pool, id, query).await
    }
}

fn line_of(seq: i64, record: &Record, stream: LogStream, level: LogLevel) -> LogLine {
    LogLine {
        seq,
        at: record.at,
        stream,
        level,
        message: record.message().into_owned(),
    }
}

/// Reads only the rows that the answer needs, from the end or from `after`.
async fn counted_logs(pool: &PgPool, id: InstanceId, query: &LogQuery) -> Result<LogPage> {
    let wanted = |stream| query.streams.is_empty() || query.streams.contains(&stream);
    let (stdout, stderr, system) = (
        wanted(LogStream::Stdout),
        wanted(LogStream::Stderr),
        wanted(LogStream::System),
    );
    let total: i64 = sqlx::query_scalar(
        "SELECT coalesce(sum(CASE WHEN $2 THEN log_stdout ELSE 0 END + CASE WHEN $3 THEN log_stderr ELSE 0 END \
         + CASE WHEN $4 THEN log_system ELSE 0 END), 0)::bigint FROM journal \
         WHERE instance_id = $1 AND log_stdout + log_stderr + log_system > 0",
    )
    .bind(id.0)
    .bind(stdout)
    .bind(stderr)
    .bind(system)
    .fetch_one(pool)
    .await?;
    let backwards = query.after.is_none();
    let mut edge = query.after.unwrap_or(i64::MAX);
    let mut lines = Vec::new();
    while lines.len() <= query.limit {
        let rows = log_rows(pool, id, edge, backwards).await?;
        if rows.is_empty() {
            break;
        }
        for row in rows {
            edge = if backwards { row.first_seq } else { row.last_seq };
            let mut found: Vec<_> = row
                .records(id)?
                .iter()
                .filter(|(seq, _)| query.after.is_none_or(|after| *seq > after))
                .filter_map(|(seq, record)| query.matches(record).map(|(s, l)| line_of(*seq, record, s, l)))
                .collect();
            if backwards {
                found.reverse();
            }
            lines.append(&mut found);
        }
    }
    let more = lines.len() > query.limit;
    lines.truncate(query.limit);
    if backwards {
        lines.reverse();
    }
    // A tail reaches the end by what it is.
    let next_after = if more && !backwards {
        lines.last().map(|l| l.seq)
    } else {
        None
    };
    Ok(LogPage {
        lines,
        total,
        next_after,
    })
}

/// Reads every row with logs, since the total needs each line.
async fn scanned_logs(pool: &PgPool, id: InstanceId, query: &LogQuery) -> Result<LogPage> {
    let mut kept = std::collections::VecDeque::new();
    let mut total = 0;
    let mut edge = 0;
    let mut more = false;
    loop {
        let rows = log_rows(pool, id, edge, false).await?;
        let Some(last) = rows.last() else { break };
        edge = last.last_seq;
        for row in &rows {
            for (seq, record) in row.records(id)? {
                let Some((stream, level)) = query.matches(&record) else {
                    continue;
                };
                total += 1;
                match query.after {
                    Some(after) if seq <= after => {}
                    Some(_) if kept.len() >= query.limit => more = true,
                    None if query.limit == 0 => {}
                    None if kept.len() >= query.limit => {
                        kept.pop_front();
                        kept.push_back(line_of(seq, &record, stream, level));
                    }
                    _ => kept.push_back(line_of(seq, &record, stream, level)),
                }
            }
        }
    }
    let lines: Vec<LogLine> = kept.into();
    let next_after = if more { lines.last().map(|l| l.seq) } else { None };
    Ok(LogPage {
        lines,
        total,
        next_after,
    })
}

async fn log_rows(pool: &PgPool, id: InstanceId, edge: i64, backwards: bool) -> Result<Vec<JournalRow>> {
    let sql = if backwards {
        "SELECT first_seq, last_seq, body FROM journal WHERE instance_id = $1 AND first_seq < $2 \
         AND log_stdout + log_stderr + log_system > 0 ORDER BY first_seq DESC LIMIT $3"
    } else {
        "SELECT first_seq, last_seq, body FROM journal WHERE instance_id = $1 AND last_seq > $2 \
         AND log_stdout + log_stderr + log_system > 0 ORDER BY first_seq LIMIT $3"
    };
    let rows = sqlx::query(sql)
        .bind(id.0)
        .bind(edge)
        .bind(ROWS_AT_ONCE)
        .fetch_all(pool)
        .await?;
    rows.iter()
        .map(|row| {
            Ok(JournalRow {
                first_seq: row.try_get(0)?,
                last_seq: row.try_get(1)?,
                body: row.try_get(2)?,
            })
        })
        .collect()
}
