//! The journal: what happened to each instance, in order, and the rows that must change together with it.
//!
//! [`JournalWriter::write`] stores the batches of many instances in one transaction. It has its own connection, on which a
//! commit does not wait for the disk (D3), unless a batch says `durable`: then everything before it becomes durable too. What
//! a crash of PostgreSQL takes back before that, the writer writes again.

mod all;
mod flush;
mod line;
mod logs;
mod place;
mod read;
mod recent;
pub mod retention;
mod tail;

use chrono::{DateTime, Utc};
use kandev_domain::{InstanceId, LogStream};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{Connection, PgPool};

use crate::commands::Answer;
use crate::elicitations::{ElicitationCompletion, ElicitationEnd, NewElicitation};
use crate::error::{Result, StoreError};
use crate::instances::InstancePatch;
use crate::notify::{self, Wake};
use crate::permissions::{NewPermission, PermissionEnd};
use crate::record::{Data, Record, pack};
use crate::servers::{self, Fence};
use crate::sessions::{NewSession, SessionDeleted, SessionFacet};
use crate::subagents::SubagentChange;
use crate::tasks::TaskMetadata;
use crate::turns::{NewTurn, TurnPatch};
use crate::usage::TurnCost;

pub use all::{AllQuery, AllReader, Read, Reset, Room, take_over_order};
pub use flush::Flusher;
pub use line::line;
pub use logs::{LogLine, LogPage, LogQuery, logs};
pub use place::{InvalidPlace, Place};
pub use read::{EventPage, EventQuery, Position, Standing, event_of, events, position, standing};
pub use tail::{LastLines, StoredLine, last_lines};

/// How long a connection may take to be made.
const CONNECT_LIMIT: std::time::Duration = std::time::Duration::from_secs(15);

/// A change that commits together with the events that tell of it.
#[derive(Debug, Clone)]
pub enum Change {
    /// Of the instance itself.
    Instance(Box<InstancePatch>),
    /// A prompt was accepted.
    TurnQueued(NewTurn),
    /// A turn went on.
    Turn(Box<TurnPatch>),
    /// A turn has cost more, or the last one has.
    TurnCost(TurnCost),
    /// A session was established.
    Session(NewSession),
    /// The agent has deleted one.
    SessionDeleted(SessionDeleted),
    /// The agent said something about its session.
    Facet(SessionFacet),
    /// It said something about a subagent.
    Subagent(SubagentChange),
    /// The task learns its session's id.
    Task(TaskMetadata),
    /// A command that another server handed over is answered.
    Answer(Answer),
    /// The agent asks for a permission.
    PermissionAsked(Box<NewPermission>),
    /// It has its answer.
    PermissionAnswered(PermissionEnd),
    /// The agent asks people for something.
    ElicitationAsked(Box<NewElicitation>),
    /// It has its answer.
    ElicitationAnswered(ElicitationEnd),
    /// What was to be done elsewhere was done.
    ElicitationCompleted(ElicitationCompletion),
}

/// Consecutive events of one instance, ready to be stored.
#[derive(Debug, Clone)]
pub struct Batch {
    instance_id: InstanceId,
    fence: Fence,
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
    /// Packs `records` as the events from `first_seq` on, written by the run that holds the instance. A batch may hold
    /// changes alone.
    pub fn new(
        (instance_id, fence): (InstanceId, Fence),
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
            fence,
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

    /// It answers a command that another server handed over.
    pub fn answers(&self) -> bool {
        self.changes.iter().any(|c| matches!(c, Change::Answer(_)))
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
    recent: recent::Recent,
}

impl JournalWriter {
    /// A writer that connects when it first writes.
    pub fn new(pool: &PgPool) -> Self {
        Self {
            options: (*pool.connect_options()).clone(),
            connection: None,
            recent: recent::Recent::default(),
        }
    }

    /// Stores all or nothing; nothing ([`StoreError::Fenced`]) if a run that wrote one of them has been ended. After a
    /// transient error the connection is made anew at the next call.
    pub async fn write(&mut self, batches: &[Batch], now: DateTime<Utc>) -> Result<()> {
        let mut connection = self.connection().await?;
        self.recent.begin();
        let durable = batches.iter().any(|b| b.durable) || self.recent.is_due();
        let written = write_on(&mut connection, batches, now, durable).await;
        // A connection that failed in the middle may hold half a transaction.
        if written.is_ok() {
            self.connection = Some(connection);
            if durable {
                self.recent.forget();
            } else {
                self.recent.keep(batches, now);
            }
        }
        written
    }

    /// What brings this writer's commits to the disk.
    pub fn flusher(&self) -> Flusher {
        Flusher::new(self.options.clone(), self.recent.marks())
    }

    /// How many of its transactions may not be on the disk.
    pub fn unflushed(&self) -> usize {
        self.recent.len()
    }

    /// A new one finds what the database had, or gives it back.
    async fn connection(&mut self) -> Result<PgConnection> {
        if let Some(connection) = self.connection.take() {
            return Ok(connection);
        }
        let mut connection = connect(&self.options).await?;
        self.recent.restore(&mut connection).await?;
        Ok(connection)
    }

    /// Wakes the other servers of the database, unless the connection is broken.
    pub async fn wake(&mut self, wake: &Wake) -> Result<()> {
        let Some(mut connection) = self.connection.take() else {
            return Ok(());
        };
        notify::send(&mut connection, wake).await?;
        self.connection = Some(connection);
        Ok(())
    }

    /// True if these batches are in the database already: after a commit whose answer was lost. They were written in
    /// one transaction, so the first one with events tells for all.
    pub async fn has_written(&mut self, batches: &[Batch], now: DateTime<Utc>) -> Result<bool> {
        let Some(batch) = batches.iter().find(|b| !b.body.is_empty()) else {
            return Ok(false);
        };
        let mut connection = self.connection().await?;
        let found = has(&mut connection, batch).await?;
        self.connection = Some(connection);
        if found {
            self.recent.keep(batches, now);
        }
        Ok(found)
    }
}

/// True if a batch with events is in the database.
async fn has(connection: &mut PgConnection, batch: &Batch) -> Result<bool> {
    let found = sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM journal WHERE instance_id = $1 AND first_seq = $2 AND body = $3)",
    )
    .bind(batch.instance_id.0)
    .bind(batch.first_seq)
    .bind(batch.body.as_slice())
    .fetch_one(connection)
    .await?;
    Ok(found)
}

async fn connect(options: &PgConnectOptions) -> Result<PgConnection> {
    let options = options.clone().application_name("kandev-journal").options([
        ("synchronous_commit", "off"),
        // A server that stands still in the middle must not keep another one from taking over.
        ("idle_in_transaction_session_timeout", "5s"),
    ]);
    // Whatever keeps us out (a password that was changed, say) may let us in again; it says nothing about a batch.
    let connect = async {
        PgConnection::connect_with(&options)
            .await
            .map_err(StoreError::Unavailable)
    };
    crate::within(CONNECT_LIMIT, connect).await
}

async fn write_on(
    connection: &mut PgConnection,
    batches: &[Batch],
    now: DateTime<Utc>,
    durable: bool,
) -> Result<()> {
    if !durable && batches.iter().all(|b| b.changes.is_empty()) {
        return insert_rows(connection, batches, now).await;
    }
    let mut tx = connection.begin().await?;
    if durable {
        sqlx::query("SET LOCAL synchronous_commit = on")
            .execute(&mut *tx)
            .await?;
    }
    hold_all(&mut tx, batches).await?;
    insert_rows(&mut tx, batches, now).await?;
    for batch in batches {
        for change in &batch.changes {
            apply(&mut tx, change, now).await?;
        }
    }
    tx.commit().await?;
    Ok(())
}

/// The runs that wrote these, each once.
fn fences(batches: &[Batch]) -> Vec<i64> {
    let mut fences: Vec<_> = batches.iter().map(|b| b.fence.0).collect();
    fences.sort_unstable();
    fences.dedup();
    fences
}

async fn hold_all(connection: &mut PgConnection, batches: &[Batch]) -> Result<()> {
    for fence in fences(batches) {
        servers::hold(connection, Fence(fence)).await?;
    }
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
    let fences = fences(batches);
    // One statement, so that it needs no transaction: all or nothing, and the runs' rows are locked for as long as it takes.
    let done = sqlx::query(
        "WITH alive AS MATERIALIZED (SELECT fence FROM servers WHERE fence = ANY($12) AND ended_at IS NULL FOR KEY SHARE) \
         INSERT INTO journal (instance_id, first_seq, last_seq, kinds, log_stdout, log_stderr, log_system, \
         stdout_lines, stderr_lines, body, written_at) \
         SELECT *, $11 FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::int[], $5::int[], $6::int[], $7::int[], \
         $8::bigint[], $9::bigint[], $10::bytea[]) \
         WHERE (SELECT count(*) FROM alive) = $13",
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
    .bind(&fences)
    .bind(fences.len() as i64)
    .execute(connection)
    .await?;
    if done.rows_affected() == 0 {
        return Err(StoreError::Fenced);
    }
    Ok(())
}

async fn apply(connection: &mut PgConnection, change: &Change, now: DateTime<Utc>) -> Result<()> {
    match change {
        Change::Instance(patch) => patch.apply(connection, now).await,
        Change::TurnQueued(turn) => turn.insert(connection).await,
        Change::Turn(patch) => patch.apply(connection).await,
        Change::TurnCost(cost) => cost.apply(connection).await,
        Change::Session(session) => session.insert(connection).await,
        Change::SessionDeleted(session) => session.mark(connection).await,
        Change::Facet(facet) => facet.upsert(connection, now).await,
        Change::Subagent(change) => change.upsert(connection, now).await,
        Change::Task(metadata) => metadata.merge(connection, now).await,
        Change::Answer(answer) => answer.write(connection).await,
        Change::PermissionAsked(permission) => permission.insert(connection).await,
        Change::PermissionAnswered(end) => end.apply(connection).await,
        Change::ElicitationAsked(elicitation) => elicitation.insert(connection).await,
        Change::ElicitationAnswered(end) => end.apply(connection).await,
        Change::ElicitationCompleted(completion) => completion.apply(connection).await,
    }
}
