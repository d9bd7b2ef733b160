//! What agents ask people for: forms and URLs.

use chrono::{DateTime, Utc};
use kandev_domain::{DecidedBy, ElicitationId, ElicitationMode, ElicitationStatus, InstanceId, TurnId};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{PgPool, Row};

use crate::error::{Result, StoreError};
use crate::page::{Cursor, Page};
use crate::pg_text;
use crate::requests::{self, RequestFilter, changed, parse};

const TABLE: &str = "elicitations";

/// Something that an agent asks for.
#[derive(Debug, Clone)]
pub struct NewElicitation {
    /// Its id.
    pub id: ElicitationId,
    /// Whose.
    pub instance_id: InstanceId,
    /// The session as the agent named it.
    pub session_id: Option<String>,
    /// The turn in which it was asked, or after which.
    pub turn_id: Option<TurnId>,
    /// The agent's id of its request, as JSON text.
    pub request_id: String,
    /// How.
    pub mode: ElicitationMode,
    /// For people.
    pub message: String,
    /// The tool call that it is about.
    pub tool_call_id: Option<String>,
    /// Of a form, as JSON text.
    pub requested_schema: Option<String>,
    /// Where to go.
    pub url: Option<String>,
    /// The agent's name for what is done there.
    pub agent_key: Option<String>,
    /// When it was asked.
    pub requested_at: DateTime<Utc>,
    /// When the default is answered.
    pub expires_at: Option<DateTime<Utc>>,
}

impl NewElicitation {
    pub(crate) async fn insert(&self, connection: &mut PgConnection) -> Result<()> {
        sqlx::query(
            "INSERT INTO elicitations (id, instance_id, session_id, turn_id, request_id, mode, message, tool_call_id, \
             requested_schema, url, agent_key, status, requested_at, expires_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, 'pending', $12, $13)",
        )
        .bind(self.id.0)
        .bind(self.instance_id.0)
        .bind(self.session_id.as_deref().map(pg_text))
        .bind(self.turn_id.map(|id| id.0))
        .bind(&self.request_id)
        .bind(self.mode.as_str())
        .bind(pg_text(&self.message))
        .bind(self.tool_call_id.as_deref().map(pg_text))
        .bind(&self.requested_schema)
        .bind(self.url.as_deref().map(pg_text))
        .bind(self.agent_key.as_deref().map(pg_text))
        .bind(self.requested_at)
        .bind(self.expires_at)
        .execute(connection)
        .await?;
        Ok(())
    }
}

/// How an elicitation ended.
#[derive(Debug, Clone)]
pub struct ElicitationEnd {
    /// Which one.
    pub id: ElicitationId,
    /// Not pending.
    pub status: ElicitationStatus,
    /// What the agent is told, as JSON text.
    pub outcome: String,
    /// Who decided.
    pub decided_by: DecidedBy,
    /// Now.
    pub answered_at: DateTime<Utc>,
}

impl ElicitationEnd {
    /// Writes it. One that has its answer is not changed any more, and that is an error.
    pub(crate) async fn apply(&self, connection: &mut PgConnection) -> Result<()> {
        let done = sqlx::query(
            "UPDATE elicitations SET status = $2, outcome = $3, decided_by = $4, answered_at = $5 \
             WHERE id = $1 AND status = 'pending'",
        )
        .bind(self.id.0)
        .bind(self.status.as_str())
        .bind(&self.outcome)
        .bind(self.decided_by.as_str())
        .bind(self.answered_at)
        .execute(connection)
        .await?;
        changed(TABLE, done.rows_affected(), self.id)
    }
}

/// What is done at an elicitation's URL was done.
#[derive(Debug, Clone, Copy)]
pub struct ElicitationCompletion {
    /// Which one.
    pub id: ElicitationId,
    /// Now.
    pub completed_at: DateTime<Utc>,
}

impl ElicitationCompletion {
    pub(crate) async fn apply(&self, connection: &mut PgConnection) -> Result<()> {
        let done =
            sqlx::query("UPDATE elicitations SET completed_at = $2 WHERE id = $1 AND completed_at IS NULL")
                .bind(self.id.0)
                .bind(self.completed_at)
                .execute(connection)
                .await?;
        changed(TABLE, done.rows_affected(), self.id)
    }
}

/// An elicitation.
#[derive(Debug, Clone)]
pub struct Elicitation {
    /// Its id.
    pub id: ElicitationId,
    /// Whose.
    pub instance_id: InstanceId,
    /// The session as the agent named it.
    pub session_id: Option<String>,
    /// The turn in which it was asked, or after which.
    pub turn_id: Option<TurnId>,
    /// The agent's id of its request, as JSON text.
    pub request_id: String,
    /// How.
    pub mode: ElicitationMode,
    /// For people.
    pub message: String,
    /// The tool call that it is about.
    pub tool_call_id: Option<String>,
    /// Of a form, as JSON text.
    pub requested_schema: Option<String>,
    /// Where to go.
    pub url: Option<String>,
    /// The agent's name for what is done there.
    pub agent_key: Option<String>,
    /// Where it stands.
    pub status: ElicitationStatus,
    /// What the agent was told, as JSON text.
    pub outcome: Option<String>,
    /// Who decided.
    pub decided_by: Option<DecidedBy>,
    /// When it was asked.
    pub requested_at: DateTime<Utc>,
    /// When the default is answered.
    pub expires_at: Option<DateTime<Utc>>,
    /// When it was decided.
    pub answered_at: Option<DateTime<Utc>>,
    /// When the agent told that what is done at the URL was done.
    pub completed_at: Option<DateTime<Utc>>,
}

impl TryFrom<&PgRow> for Elicitation {
    type Error = StoreError;

    fn try_from(row: &PgRow) -> Result<Self> {
        let id = ElicitationId(row.try_get("id")?);
        let decided_by: Option<String> = row.try_get("decided_by")?;
        Ok(Self {
            id,
            instance_id: InstanceId(row.try_get("instance_id")?),
            session_id: row.try_get("session_id")?,
            turn_id: row.try_get::<Option<_>, _>("turn_id")?.map(TurnId),
            request_id: row.try_get("request_id")?,
            mode: parse(TABLE, id, "mode", row.try_get("mode")?)?,
            message: row.try_get("message")?,
            tool_call_id: row.try_get("tool_call_id")?,
            requested_schema: row.try_get("requested_schema")?,
            url: row.try_get("url")?,
            agent_key: row.try_get("agent_key")?,
            status: parse(TABLE, id, "status", row.try_get("status")?)?,
            outcome: row.try_get("outcome")?,
            decided_by: decided_by
                .map(|by| parse(TABLE, id, "decided_by", &by))
                .transpose()?,
            requested_at: row.try_get("requested_at")?,
            expires_at: row.try_get("expires_at")?,
            answered_at: row.try_get("answered_at")?,
            completed_at: row.try_get("completed_at")?,
        })
    }
}

/// One elicitation of an instance.
pub async fn get(pool: &PgPool, instance_id: InstanceId, id: ElicitationId) -> Result<Option<Elicitation>> {
    requests::get(pool, TABLE, instance_id, id.0).await
}

/// Which elicitations to list.
pub type ElicitationFilter = RequestFilter<ElicitationStatus>;

/// Elicitations, newest first. The cursor's key is the id, which sorts by age.
pub async fn list(
    pool: &PgPool,
    filter: &ElicitationFilter,
    after: Option<&Cursor>,
    limit: i64,
) -> Result<Page<Elicitation>> {
    requests::page(pool, TABLE, filter, after, limit).await
}

/// Those of an instance that wait for an answer, oldest first.
pub async fn pending(pool: &PgPool, instance_id: InstanceId) -> Result<Vec<Elicitation>> {
    let mut connection = pool.acquire().await?;
    pending_on(&mut connection, instance_id).await
}

pub(crate) async fn pending_on(
    connection: &mut PgConnection,
    instance_id: InstanceId,
) -> Result<Vec<Elicitation>> {
    requests::pending(connection, TABLE, instance_id).await
}

/// Those of an instance whose URL somebody agreed to go to, and of which the agent has not told that it is done: oldest first;
/// of too many the latest.
pub async fn awaited(pool: &PgPool, instance_id: InstanceId, limit: i64) -> Result<Vec<Elicitation>> {
    let rows = sqlx::query(
        "SELECT * FROM elicitations WHERE instance_id = $1 AND mode = 'url' AND status = 'accepted' \
         AND completed_at IS NULL ORDER BY id DESC LIMIT $2",
    )
    .bind(instance_id.0)
    .bind(limit)
    .fetch_all(pool)
    .await?;
    rows.iter().rev().map(Elicitation::try_from).collect()
}
