//! Everything that a client needs to draw an instance, as of one position in its history.

use kandev_domain::{InstanceId, InstanceStatus, SessionKey, TaskId, TurnState};
use sqlx::postgres::PgConnection;
use sqlx::{PgPool, Row};

use crate::elicitations::{self, Elicitation};
use crate::error::{Result, StoreError};
use crate::permissions::{self, Permission};
use crate::subagents::{self, Subagent};
use crate::turns::{self, Turn};
use crate::usage::{self, TotalUsage};

const TABLE: &str = "agent_instances";

/// An instance and what belongs to it. Since the rows change in the transaction that stores the events that tell of it,
/// they are what the events up to `seq` made of them.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The last event.
    pub seq: i64,
    /// The instance's task.
    pub task_id: TaskId,
    /// Where it stands.
    pub status: InstanceStatus,
    /// What it is doing.
    pub turn_state: TurnState,
    /// The agent's id of its session.
    pub session_id: Option<String>,
    /// What the agent last said about the session: facet and JSON text.
    pub facets: Vec<(String, String)>,
    /// What the session's turns used.
    pub usage: TotalUsage,
    /// The session's subagents.
    pub subagents: Vec<Subagent>,
    /// Its last turns, oldest first. One that has no end has no `last_seq`.
    pub turns: Vec<Turn>,
    /// How many turns there are in all.
    pub total_turns: i64,
    /// Permission requests that wait for an answer, oldest first.
    pub permissions: Vec<Permission>,
    /// Elicitations that wait for an answer, oldest first.
    pub elicitations: Vec<Elicitation>,
}

/// Reads one, with at most so many turns; none if there is no such instance.
pub async fn read(pool: &PgPool, id: InstanceId, max_turns: i64) -> Result<Option<Snapshot>> {
    let mut tx = pool
        .begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        .await?;
    let snapshot = read_on(&mut tx, id, max_turns).await?;
    tx.commit().await?;
    Ok(snapshot)
}

async fn read_on(connection: &mut PgConnection, id: InstanceId, max_turns: i64) -> Result<Option<Snapshot>> {
    let row = sqlx::query(
        "SELECT i.task_id, i.status, i.turn_state, i.session_key, s.session_id, \
         coalesce((SELECT last_seq FROM journal WHERE instance_id = $1 ORDER BY first_seq DESC LIMIT 1), 0) AS seq, \
         (SELECT count(*) FROM turns WHERE instance_id = $1) AS total_turns \
         FROM agent_instances i LEFT JOIN sessions s ON s.key = i.session_key WHERE i.id = $1",
    )
    .bind(id.0)
    .fetch_optional(&mut *connection)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let facets = sqlx::query(
        "SELECT facet, value FROM session_facets f JOIN agent_instances i ON i.session_key = f.session_key \
         WHERE i.id = $1 ORDER BY facet",
    )
    .bind(id.0)
    .fetch_all(&mut *connection)
    .await?;
    let key: Option<uuid::Uuid> = row.try_get("session_key")?;
    let usage = match key {
        Some(key) => usage::of_session_on(connection, SessionKey(key)).await?,
        None => TotalUsage::default(),
    };
    let subagents = match key {
        Some(key) => subagents::list_on(connection, SessionKey(key)).await?,
        None => Vec::new(),
    };
    let mut turns = turns::last(connection, id, max_turns).await?;
    turns.reverse();
    let permissions = permissions::pending_on(&mut *connection, id).await?;
    let elicitations = elicitations::pending_on(connection, id).await?;
    let text = |column: &str| row.try_get::<String, _>(column);
    Ok(Some(Snapshot {
        seq: row.try_get("seq")?,
        task_id: text("task_id")?
            .parse()
            .map_err(|e| StoreError::bad_row(TABLE, "task_id", id, e))?,
        status: text("status")?
            .parse()
            .map_err(|e| StoreError::bad_row(TABLE, "status", id, e))?,
        turn_state: text("turn_state")?
            .parse()
            .map_err(|e| StoreError::bad_row(TABLE, "turn_state", id, e))?,
        session_id: row.try_get("session_id")?,
        facets: facets
            .iter()
            .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
            .collect::<Result<_>>()?,
        usage,
        subagents,
        turns,
        total_turns: row.try_get("total_turns")?,
        permissions,
        elicitations,
    }))
}
