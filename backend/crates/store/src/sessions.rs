//! Sessions, and the latest of each thing an agent said about one.

use std::borrow::Cow;
use std::collections::HashMap;

use chrono::{DateTime, Utc};
use kandev_domain::{SessionKey, TaskId};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{PgPool, Row};

use crate::error::{Result, StoreError};
use crate::page::{Cursor, Page};
use crate::pg_text;

const TABLE: &str = "sessions";

/// What the name of a facet begins with that a branch has of the session that it was branched off.
pub const INHERITED: &str = "inherited_";

/// A session that was just established.
#[derive(Debug, Clone)]
pub struct NewSession {
    /// Our key.
    pub key: SessionKey,
    /// The agent's id.
    pub session_id: String,
    /// Whose it is.
    pub agent_type: String,
    /// The directory it is about.
    pub workspace_path: String,
    /// The task.
    pub task_id: TaskId,
    /// Now.
    pub created_at: DateTime<Utc>,
    /// The session that it was branched off.
    pub forked_from: Option<SessionKey>,
}

impl NewSession {
    pub(crate) async fn insert(&self, connection: &mut PgConnection) -> Result<()> {
        sqlx::query(
            "INSERT INTO sessions (key, session_id, agent_type, workspace_path, task_id, created_at, updated_at, \
             forked_from) VALUES ($1, $2, $3, $4, $5, $6, $6, $7)",
        )
        .bind(self.key.0)
        .bind(pg_text(&self.session_id).as_ref())
        .bind(&self.agent_type)
        .bind(&self.workspace_path)
        .bind(self.task_id.as_str())
        .bind(self.created_at)
        .bind(self.forked_from.map(|key| key.0))
        .execute(&mut *connection)
        .await?;
        if let Some(from) = self.forked_from {
            // Agents do not keep what was chosen: who resumes the branch sets it again.
            sqlx::query(
                "INSERT INTO session_facets (session_key, facet, value, updated_at) \
                 SELECT $1, $3 || facet, value, $4 FROM session_facets WHERE session_key = $2 AND facet = ANY($5)",
            )
            .bind(self.key.0)
            .bind(from.0)
            .bind(INHERITED)
            .bind(self.created_at)
            .bind(["current_mode", "current_model", "config_options"].as_slice())
            .execute(connection)
            .await?;
        }
        Ok(())
    }
}

/// One thing an agent said about a session.
#[derive(Debug, Clone)]
pub struct SessionFacet {
    /// Which session.
    pub session_key: SessionKey,
    /// `modes`, `plan`, `usage`, …
    pub facet: Cow<'static, str>,
    /// JSON text.
    pub value: String,
}

impl SessionFacet {
    pub(crate) async fn upsert(&self, connection: &mut PgConnection, now: DateTime<Utc>) -> Result<()> {
        sqlx::query(
            "INSERT INTO session_facets (session_key, facet, value, updated_at) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (session_key, facet) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at",
        )
        .bind(self.session_key.0)
        .bind(self.facet.as_ref())
        .bind(&self.value)
        .bind(now)
        .execute(connection)
        .await?;
        Ok(())
    }
}

/// A session.
#[derive(Debug, Clone)]
pub struct Session {
    /// Our key.
    pub key: SessionKey,
    /// The agent's id.
    pub session_id: String,
    /// Whose it is.
    pub agent_type: String,
    /// The directory it is about.
    pub workspace_path: String,
    /// The task it began with.
    pub task_id: TaskId,
    /// When it was established.
    pub created_at: DateTime<Utc>,
    /// The session that it was branched off.
    pub forked_from: Option<SessionKey>,
    /// When its agent was made to delete it.
    pub deleted_at: Option<DateTime<Utc>>,
}

/// A session that its agent has deleted. It need not be one that is known.
#[derive(Debug, Clone)]
pub struct SessionDeleted {
    /// The agent's id.
    pub session_id: String,
    /// Whose it was.
    pub agent_type: String,
    /// The directory it was about: agents keep sessions by it.
    pub workspace_path: String,
    /// Now.
    pub deleted_at: DateTime<Utc>,
}

impl SessionDeleted {
    pub(crate) async fn mark(&self, connection: &mut PgConnection) -> Result<()> {
        sqlx::query(
            "UPDATE sessions SET deleted_at = $4, updated_at = $4 \
             WHERE session_id = $1 AND agent_type = $2 AND workspace_path = $3 AND deleted_at IS NULL",
        )
        .bind(pg_text(&self.session_id).as_ref())
        .bind(&self.agent_type)
        .bind(&self.workspace_path)
        .bind(self.deleted_at)
        .execute(connection)
        .await?;
        Ok(())
    }
}

impl TryFrom<&PgRow> for Session {
    type Error = StoreError;

    fn try_from(row: &PgRow) -> Result<Self> {
        let key = SessionKey(row.try_get("key")?);
        let task_id: String = row.try_get("task_id")?;
        Ok(Self {
            key,
            session_id: row.try_get("session_id")?,
            agent_type: row.try_get("agent_type")?,
            workspace_path: row.try_get("workspace_path")?,
            task_id: task_id
                .parse()
                .map_err(|e| StoreError::bad_row(TABLE, "task_id", key, e))?,
            created_at: row.try_get("created_at")?,
            forked_from: row
                .try_get::<Option<uuid::Uuid>, _>("forked_from")?
                .map(SessionKey),
            deleted_at: row.try_get("deleted_at")?,
        })
    }
}

/// One session by our key.
pub async fn get(pool: &PgPool, key: SessionKey) -> Result<Option<Session>> {
    let row = sqlx::query("SELECT * FROM sessions WHERE key = $1")
        .bind(key.0)
        .fetch_optional(pool)
        .await?;
    row.as_ref().map(Session::try_from).transpose()
}

/// The newest session that the agents call so, of one type if given.
pub async fn by_agents_id(
    pool: &PgPool,
    session_id: &str,
    agent_type: Option<&str>,
) -> Result<Option<Session>> {
    let row = sqlx::query(
        "SELECT * FROM sessions WHERE session_id = $1 AND ($2::text IS NULL OR agent_type = $2) \
         ORDER BY created_at DESC LIMIT 1",
    )
    .bind(pg_text(session_id).as_ref())
    .bind(agent_type)
    .fetch_optional(pool)
    .await?;
    row.as_ref().map(Session::try_from).transpose()
}

/// Our keys of the newest sessions of a type that the agents call so.
pub async fn keys_of(
    pool: &PgPool,
    session_ids: &[&str],
    agent_type: &str,
) -> Result<HashMap<String, SessionKey>> {
    let ids: Vec<String> = session_ids.iter().map(|id| pg_text(id).into_owned()).collect();
    let rows = sqlx::query(
        "SELECT DISTINCT ON (session_id) session_id, key FROM sessions WHERE session_id = ANY($1) AND agent_type = $2 \
         ORDER BY session_id, created_at DESC",
    )
    .bind(ids)
    .bind(agent_type)
    .fetch_all(pool)
    .await?;
    rows.iter()
        .map(|row| Ok((row.try_get("session_id")?, SessionKey(row.try_get("key")?))))
        .collect()
}

/// An instance that works in a session now, or is about to.
pub async fn active_instance(pool: &PgPool, key: SessionKey) -> Result<Option<kandev_domain::InstanceId>> {
    let found: Option<uuid::Uuid> = sqlx::query_scalar(
        "SELECT id FROM agent_instances WHERE coalesce(session_key, resumes_key) = $1 AND status IN ('starting', 'running') LIMIT 1",
    )
    .bind(key.0)
    .fetch_optional(pool)
    .await?;
    Ok(found.map(kandev_domain::InstanceId))
}

/// Sessions, newest first.
pub async fn list(
    pool: &PgPool,
    task_id: Option<&str>,
    agent_type: Option<&str>,
    after: Option<&Cursor>,
    limit: i64,
) -> Result<Page<Session>> {
    let (task_id, agent_type) = (task_id.map(pg_text), agent_type.map(pg_text));
    let total: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM sessions WHERE ($1::text IS NULL OR task_id = $1) AND ($2::text IS NULL OR agent_type = $2)",
    )
    .bind(task_id.as_deref())
    .bind(agent_type.as_deref())
    .fetch_one(pool)
    .await?;
    let rows = sqlx::query(
        "SELECT * FROM sessions WHERE ($1::text IS NULL OR task_id = $1) AND ($2::text IS NULL OR agent_type = $2) \
         AND ($3::timestamptz IS NULL OR (created_at, key::text) < ($3, $4)) ORDER BY created_at DESC, key DESC LIMIT $5",
    )
    .bind(task_id.as_deref())
    .bind(agent_type.as_deref())
    .bind(after.map(|c| c.created_at))
    .bind(after.map(|c| &c.key))
    .bind(limit + 1)
    .fetch_all(pool)
    .await?;
    let items = rows.iter().map(Session::try_from).collect::<Result<Vec<_>>>()?;
    Ok(Page::cut(items, limit, total, |s| Cursor {
        created_at: s.created_at,
        key: s.key.to_string(),
    }))
}

/// Everything the agent last said about a session: facet and JSON text.
pub async fn facets(pool: &PgPool, key: SessionKey) -> Result<Vec<(String, String)>> {
    let rows = sqlx::query("SELECT facet, value FROM session_facets WHERE session_key = $1 ORDER BY facet")
        .bind(key.0)
        .fetch_all(pool)
        .await?;
    rows.iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect()
}

/// The last instance that carried a session or, if none has yet, the one that it was branched off.
pub async fn last_instance(pool: &PgPool, key: SessionKey) -> Result<Option<kandev_domain::InstanceId>> {
    let found: Option<uuid::Uuid> = sqlx::query_scalar(
        "WITH RECURSIVE line (key, forked_from, depth) AS ( \
             SELECT key, forked_from, 0 FROM sessions WHERE key = $1 \
             UNION ALL SELECT s.key, s.forked_from, depth + 1 FROM sessions s JOIN line ON s.key = line.forked_from \
             WHERE depth < 64) \
         SELECT i.id FROM line JOIN agent_instances i ON i.session_key = line.key \
         ORDER BY depth, i.created_at DESC, i.id DESC LIMIT 1",
    )
    .bind(key.0)
    .fetch_optional(pool)
    .await?;
    Ok(found.map(kandev_domain::InstanceId))
}

/// The instances that carried a session, oldest first.
pub async fn instances(pool: &PgPool, key: SessionKey) -> Result<Vec<kandev_domain::InstanceId>> {
    let ids: Vec<uuid::Uuid> =
        sqlx::query_scalar("SELECT id FROM agent_instances WHERE session_key = $1 ORDER BY created_at, id")
            .bind(key.0)
            .fetch_all(pool)
            .await?;
    Ok(ids.into_iter().map(kandev_domain::InstanceId).collect())
}
