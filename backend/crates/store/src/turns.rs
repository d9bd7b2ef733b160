//! Turns.

use chrono::{DateTime, Utc};
use kandev_domain::usage::{Cost, Tokens};
use kandev_domain::{InstanceId, SessionKey, TurnId, TurnStatus};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{PgPool, Row};

use crate::error::{Result, StoreError};
use crate::page::{Cursor, Page};
use crate::pg_text;

const TABLE: &str = "turns";

/// A prompt that was accepted.
#[derive(Debug, Clone)]
pub struct NewTurn {
    /// Its id.
    pub id: TurnId,
    /// Whose.
    pub instance_id: InstanceId,
    /// Position among the instance's turns, from 1.
    pub ordinal: i32,
    /// The content blocks as JSON text.
    pub prompt: String,
    /// What is told beside them, as JSON text.
    pub prompt_meta: Option<String>,
    /// Now.
    pub queued_at: DateTime<Utc>,
}

impl NewTurn {
    pub(crate) async fn insert(&self, connection: &mut PgConnection) -> Result<()> {
        sqlx::query(
            "INSERT INTO turns (id, instance_id, ordinal, status, prompt, queued_at, prompt_meta) \
             VALUES ($1, $2, $3, 'queued', $4, $5, $6)",
        )
        .bind(self.id.0)
        .bind(self.instance_id.0)
        .bind(self.ordinal)
        .bind(&self.prompt)
        .bind(self.queued_at)
        .bind(&self.prompt_meta)
        .execute(connection)
        .await?;
        Ok(())
    }
}

/// What changes of a turn; `None` leaves a field as it is.
#[derive(Debug, Clone)]
pub struct TurnPatch {
    /// Which one.
    pub id: TurnId,
    /// Where it stands.
    pub status: TurnStatus,
    /// Its session.
    pub session_key: Option<SessionKey>,
    /// The agent's stop reason, as it came.
    pub stop_reason: Option<String>,
    /// Token usage as JSON text, as it came.
    pub usage: Option<String>,
    /// Of that usage, what can be summed.
    pub tokens: Option<Tokens>,
    /// The result's `_meta` as JSON text.
    pub meta: Option<String>,
    /// Why it failed.
    pub error_code: Option<String>,
    /// The same for people.
    pub error_message: Option<String>,
    /// The same as JSON text.
    pub error_details: Option<String>,
    /// Why the caller cancelled it.
    pub cancel_reason: Option<String>,
    /// How many updates it had; known at its end.
    pub updates: Option<i64>,
    /// The event that began it.
    pub first_seq: Option<i64>,
    /// The event that ended it.
    pub last_seq: Option<i64>,
    /// When it was handed to the agent.
    pub started_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub finished_at: Option<DateTime<Utc>>,
}

impl TurnPatch {
    /// Sets only the status.
    pub const fn of(id: TurnId, status: TurnStatus) -> Self {
        Self {
            id,
            status,
            session_key: None,
            stop_reason: None,
            usage: None,
            tokens: None,
            meta: None,
            error_code: None,
            error_message: None,
            error_details: None,
            cancel_reason: None,
            updates: None,
            first_seq: None,
            last_seq: None,
            started_at: None,
            finished_at: None,
        }
    }

    /// Writes it. A turn that has its end is not changed any more, and that is an error.
    pub(crate) async fn apply(&self, connection: &mut PgConnection) -> Result<()> {
        let text = |t: &Option<String>| t.as_deref().map(|t| pg_text(t).into_owned());
        let tokens = self.tokens.unwrap_or_default();
        let count = |tokens: Option<u64>| tokens.map(|n| i64::try_from(n).unwrap_or(i64::MAX));
        let done = sqlx::query(
            "UPDATE turns SET status = $2, session_key = coalesce($3, session_key), stop_reason = coalesce($4, stop_reason), \
             usage = coalesce($5, usage), meta = coalesce($6, meta), error_code = coalesce($7, error_code), \
             error_message = coalesce($8, error_message), error_details = coalesce($9, error_details), \
             cancel_reason = coalesce($10, cancel_reason), first_seq = coalesce($11, first_seq), \
             last_seq = coalesce($12, last_seq), started_at = coalesce($13, started_at), \
             finished_at = coalesce($14, finished_at), updates = coalesce($15, updates), \
             total_tokens = coalesce($16, total_tokens), input_tokens = coalesce($17, input_tokens), \
             output_tokens = coalesce($18, output_tokens), thought_tokens = coalesce($19, thought_tokens), \
             cached_read_tokens = coalesce($20, cached_read_tokens), \
             cached_write_tokens = coalesce($21, cached_write_tokens) WHERE id = $1 AND status IN ('queued', 'running')",
        )
        .bind(self.id.0)
        .bind(self.status.as_str())
        .bind(self.session_key.map(|k| k.0))
        .bind(text(&self.stop_reason))
        .bind(text(&self.usage))
        .bind(text(&self.meta))
        .bind(text(&self.error_code))
        .bind(text(&self.error_message))
        .bind(text(&self.error_details))
        .bind(text(&self.cancel_reason))
        .bind(self.first_seq)
        .bind(self.last_seq)
        .bind(self.started_at)
        .bind(self.finished_at)
        .bind(self.updates)
        .bind(count(tokens.total))
        .bind(count(tokens.input))
        .bind(count(tokens.output))
        .bind(count(tokens.thought))
        .bind(count(tokens.cached_read))
        .bind(count(tokens.cached_write))
        .execute(connection)
        .await?;
        if done.rows_affected() == 1 {
            return Ok(());
        }
        Err(StoreError::NoSuchRow {
            table: TABLE,
            row: self.id.to_string(),
        })
    }
}

/// A turn.
#[derive(Debug, Clone)]
pub struct Turn {
    /// Its id.
    pub id: TurnId,
    /// Whose.
    pub instance_id: InstanceId,
    /// The agent's id of its session.
    pub session_id: Option<String>,
    /// Position among the instance's turns, from 1.
    pub ordinal: i32,
    /// Where it stands.
    pub status: TurnStatus,
    /// The content blocks as JSON text.
    pub prompt: String,
    /// What was told beside them, as JSON text.
    pub prompt_meta: Option<String>,
    /// The agent's stop reason, as it came.
    pub stop_reason: Option<String>,
    /// Token usage as JSON text, as it came.
    pub usage: Option<String>,
    /// What it has cost, as far as is known.
    pub cost: Option<Cost>,
    /// The result's `_meta` as JSON text.
    pub meta: Option<String>,
    /// Why it failed.
    pub error_code: Option<String>,
    /// The same for people.
    pub error_message: Option<String>,
    /// The same as JSON text.
    pub error_details: Option<String>,
    /// Why the caller cancelled it.
    pub cancel_reason: Option<String>,
    /// How many updates it had; known at its end.
    pub updates: Option<i64>,
    /// The event that began it.
    pub first_seq: Option<i64>,
    /// The event that ended it.
    pub last_seq: Option<i64>,
    /// When it was accepted.
    pub queued_at: DateTime<Utc>,
    /// When it was handed to the agent.
    pub started_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub finished_at: Option<DateTime<Utc>>,
}

impl TryFrom<&PgRow> for Turn {
    type Error = StoreError;

    fn try_from(row: &PgRow) -> Result<Self> {
        let id = TurnId(row.try_get("id")?);
        let status: String = row.try_get("status")?;
        Ok(Self {
            id,
            instance_id: InstanceId(row.try_get("instance_id")?),
            session_id: row.try_get("session_id")?,
            ordinal: row.try_get("ordinal")?,
            status: status
                .parse()
                .map_err(|e| StoreError::bad_row(TABLE, "status", id, e))?,
            prompt: row.try_get("prompt")?,
            prompt_meta: row.try_get("prompt_meta")?,
            stop_reason: row.try_get("stop_reason")?,
            usage: row.try_get("usage")?,
            cost: {
                let amount: Option<f64> = row.try_get("cost")?;
                let currency: Option<String> = row.try_get("cost_currency")?;
                let both = amount.zip(currency);
                both.map(|(amount, currency)| Cost { amount, currency })
            },
            meta: row.try_get("meta")?,
            error_code: row.try_get("error_code")?,
            error_message: row.try_get("error_message")?,
            error_details: row.try_get("error_details")?,
            cancel_reason: row.try_get("cancel_reason")?,
            updates: row.try_get("updates")?,
            first_seq: row.try_get("first_seq")?,
            last_seq: row.try_get("last_seq")?,
            queued_at: row.try_get("queued_at")?,
            started_at: row.try_get("started_at")?,
            finished_at: row.try_get("finished_at")?,
        })
    }
}

const SELECT: &str = "SELECT t.*, s.session_id FROM turns t LEFT JOIN sessions s ON s.key = t.session_key";

/// One turn of an instance.
pub async fn get(pool: &PgPool, instance_id: InstanceId, id: TurnId) -> Result<Option<Turn>> {
    let sql = format!("{SELECT} WHERE t.id = $1 AND t.instance_id = $2");
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(id.0)
        .bind(instance_id.0)
        .fetch_optional(pool)
        .await?;
    row.as_ref().map(Turn::try_from).transpose()
}

/// Whether a turn was one of this session's, whichever instance carried it.
pub async fn is_of_session(pool: &PgPool, session: SessionKey, id: TurnId) -> Result<bool> {
    let found = sqlx::query_scalar("SELECT EXISTS (SELECT FROM turns WHERE id = $1 AND session_key = $2)");
    Ok(found.bind(id.0).bind(session.0).fetch_one(pool).await?)
}

/// The turns of an instance, oldest first. The cursor's key is the ordinal.
pub async fn list(
    pool: &PgPool,
    instance_id: InstanceId,
    after: Option<&Cursor>,
    limit: i64,
) -> Result<Page<Turn>> {
    let total: i64 = sqlx::query_scalar("SELECT count(*) FROM turns WHERE instance_id = $1")
        .bind(instance_id.0)
        .fetch_one(pool)
        .await?;
    let after = after.and_then(|c| c.key.parse::<i32>().ok()).unwrap_or(0);
    let sql = format!("{SELECT} WHERE t.instance_id = $1 AND t.ordinal > $2 ORDER BY t.ordinal LIMIT $3");
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(instance_id.0)
        .bind(after)
        .bind(limit + 1)
        .fetch_all(pool)
        .await?;
    let items = rows.iter().map(Turn::try_from).collect::<Result<Vec<_>>>()?;
    Ok(Page::cut(items, limit, total, |t| Cursor {
        created_at: t.queued_at,
        key: t.ordinal.to_string(),
    }))
}

/// The last turns of an instance, newest first.
pub(crate) async fn last(
    connection: &mut PgConnection,
    instance_id: InstanceId,
    limit: i64,
) -> Result<Vec<Turn>> {
    let sql = format!("{SELECT} WHERE t.instance_id = $1 ORDER BY t.ordinal DESC LIMIT $2");
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(instance_id.0)
        .bind(limit)
        .fetch_all(connection)
        .await?;
    rows.iter().map(Turn::try_from).collect()
}

/// The turns of an instance that have no end yet, oldest first.
pub async fn unfinished(pool: &PgPool, instance_id: InstanceId) -> Result<Vec<Turn>> {
    let sql =
        format!("{SELECT} WHERE t.instance_id = $1 AND t.status IN ('queued', 'running') ORDER BY t.ordinal");
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(instance_id.0)
        .fetch_all(pool)
        .await?;
    rows.iter().map(Turn::try_from).collect()
}
