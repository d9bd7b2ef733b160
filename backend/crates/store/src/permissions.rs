//! Permission requests of agents.

use chrono::{DateTime, Utc};
use kandev_domain::permission::Remembered;
use kandev_domain::{DecidedBy, InstanceId, PermissionId, PermissionStatus, SessionKey, ToolKind, TurnId};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{PgPool, Row};

use crate::error::{Result, StoreError};
use crate::page::{Cursor, Page};
use crate::pg_text;
use crate::requests::{self, RequestFilter, changed, parse};

const TABLE: &str = "permissions";

/// A permission that an agent asks for.
#[derive(Debug, Clone)]
pub struct NewPermission {
    /// Its id.
    pub id: PermissionId,
    /// Whose.
    pub instance_id: InstanceId,
    /// The instance's session.
    pub session_key: Option<SessionKey>,
    /// The session as the agent named it.
    pub session_id: Option<String>,
    /// The turn in which it was asked, or after which.
    pub turn_id: Option<TurnId>,
    /// The agent's id of its request, as JSON text.
    pub request_id: String,
    /// What the tool does.
    pub tool_kind: ToolKind,
    /// As JSON text.
    pub tool_call: Option<String>,
    /// A JSON array as text.
    pub options: String,
    /// When it was asked.
    pub requested_at: DateTime<Utc>,
    /// When the default is answered.
    pub expires_at: Option<DateTime<Utc>>,
}

impl NewPermission {
    pub(crate) async fn insert(&self, connection: &mut PgConnection) -> Result<()> {
        sqlx::query(
            "INSERT INTO permissions (id, instance_id, session_key, session_id, turn_id, request_id, tool_kind, tool_call, \
             options, status, requested_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 'pending', $10, $11)",
        )
        .bind(self.id.0)
        .bind(self.instance_id.0)
        .bind(self.session_key.map(|key| key.0))
        .bind(self.session_id.as_deref().map(pg_text))
        .bind(self.turn_id.map(|id| id.0))
        .bind(&self.request_id)
        .bind(self.tool_kind.as_str())
        .bind(&self.tool_call)
        .bind(&self.options)
        .bind(self.requested_at)
        .bind(self.expires_at)
        .execute(connection)
        .await?;
        Ok(())
    }
}

/// How a permission request ended.
#[derive(Debug, Clone)]
pub struct PermissionEnd {
    /// Which one.
    pub id: PermissionId,
    /// Not pending.
    pub status: PermissionStatus,
    /// What the agent is told, as JSON text.
    pub outcome: String,
    /// Who decided.
    pub decided_by: DecidedBy,
    /// An answer that counts for later requests of the session.
    pub remembered: Option<Remembered>,
    /// Now.
    pub answered_at: DateTime<Utc>,
}

impl PermissionEnd {
    /// Writes it. A request that has its answer is not changed any more, and that is an error.
    pub(crate) async fn apply(&self, connection: &mut PgConnection) -> Result<()> {
        let remembered = self.remembered.as_ref().map(serde_json::to_string).transpose();
        let remembered = remembered.map_err(|e| StoreError::bad_row(TABLE, "remembered", self.id, e))?;
        let done = sqlx::query(
            "UPDATE permissions SET status = $2, outcome = $3, decided_by = $4, remembered = $5, answered_at = $6 \
             WHERE id = $1 AND status = 'pending'",
        )
        .bind(self.id.0)
        .bind(self.status.as_str())
        .bind(&self.outcome)
        .bind(self.decided_by.as_str())
        .bind(remembered)
        .bind(self.answered_at)
        .execute(connection)
        .await?;
        changed(TABLE, done.rows_affected(), self.id)
    }
}

/// A permission request.
#[derive(Debug, Clone)]
pub struct Permission {
    /// Its id.
    pub id: PermissionId,
    /// Whose.
    pub instance_id: InstanceId,
    /// The session as the agent named it.
    pub session_id: Option<String>,
    /// The turn in which it was asked, or after which.
    pub turn_id: Option<TurnId>,
    /// The agent's id of its request, as JSON text.
    pub request_id: String,
    /// What the tool does.
    pub tool_kind: ToolKind,
    /// As JSON text.
    pub tool_call: Option<String>,
    /// A JSON array as text.
    pub options: String,
    /// Where it stands.
    pub status: PermissionStatus,
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
}

impl TryFrom<&PgRow> for Permission {
    type Error = StoreError;

    fn try_from(row: &PgRow) -> Result<Self> {
        let id = PermissionId(row.try_get("id")?);
        let decided_by: Option<String> = row.try_get("decided_by")?;
        Ok(Self {
            id,
            instance_id: InstanceId(row.try_get("instance_id")?),
            session_id: row.try_get("session_id")?,
            turn_id: row.try_get::<Option<_>, _>("turn_id")?.map(TurnId),
            request_id: row.try_get("request_id")?,
            tool_kind: parse(TABLE, id, "tool_kind", row.try_get("tool_kind")?)?,
            tool_call: row.try_get("tool_call")?,
            options: row.try_get("options")?,
            status: parse(TABLE, id, "status", row.try_get("status")?)?,
            outcome: row.try_get("outcome")?,
            decided_by: decided_by
                .map(|by| parse(TABLE, id, "decided_by", &by))
                .transpose()?,
            requested_at: row.try_get("requested_at")?,
            expires_at: row.try_get("expires_at")?,
            answered_at: row.try_get("answered_at")?,
        })
    }
}

/// One permission request of an instance.
pub async fn get(pool: &PgPool, instance_id: InstanceId, id: PermissionId) -> Result<Option<Permission>> {
    requests::get(pool, TABLE, instance_id, id.0).await
}

/// Which permission requests to list.
pub type PermissionFilter = RequestFilter<PermissionStatus>;

/// Permission requests, newest first. The cursor's key is the id, which sorts by age.
pub async fn list(
    pool: &PgPool,
    filter: &PermissionFilter,
    after: Option<&Cursor>,
    limit: i64,
) -> Result<Page<Permission>> {
    requests::page(pool, TABLE, filter, after, limit).await
}

/// Those of an instance that wait for an answer, oldest first.
pub async fn pending(pool: &PgPool, instance_id: InstanceId) -> Result<Vec<Permission>> {
    let mut connection = pool.acquire().await?;
    pending_on(&mut connection, instance_id).await
}

pub(crate) async fn pending_on(
    connection: &mut PgConnection,
    instance_id: InstanceId,
) -> Result<Vec<Permission>> {
    requests::pending(connection, TABLE, instance_id).await
}

/// The answers that count for later requests of a session, oldest first; of too many the latest.
pub async fn remembered(pool: &PgPool, session_key: SessionKey, limit: i64) -> Result<Vec<Remembered>> {
    let rows: Vec<String> = sqlx::query_scalar(
        "SELECT remembered FROM permissions WHERE session_key = $1 AND remembered IS NOT NULL \
         ORDER BY answered_at DESC, id DESC LIMIT $2",
    )
    .bind(session_key.0)
    .bind(limit)
    .fetch_all(pool)
    .await?;
    let read = |text: &String| {
        serde_json::from_str(text).map_err(|e| StoreError::bad_row(TABLE, "remembered", session_key, e))
    };
    rows.iter().rev().map(read).collect()
}
