//! Tasks.

use chrono::{DateTime, Utc};
use kandev_domain::TaskId;
use serde_json::{Map, Value};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{PgPool, Row};

use crate::error::{Result, StoreError};
use crate::page::{Cursor, Page};
use crate::pg_text;

const TABLE: &str = "tasks";

/// What a task is in when nobody said.
pub const DEFAULT_STATE: &str = "open";

/// A task.
#[derive(Debug, Clone)]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// For people.
    pub title: Option<String>,
    /// For people.
    pub description: Option<String>,
    /// The caller's own word.
    pub state: String,
    /// The caller's own, and the ids of its sessions.
    pub metadata: Value,
    /// When it was made.
    pub created_at: DateTime<Utc>,
    /// When it last changed.
    pub updated_at: DateTime<Utc>,
}

impl TryFrom<&PgRow> for Task {
    type Error = StoreError;

    fn try_from(row: &PgRow) -> Result<Self> {
        let id: String = row.try_get("id")?;
        Ok(Self {
            id: id.parse().map_err(|e| StoreError::bad_row(TABLE, "id", &id, e))?,
            title: row.try_get("title")?,
            description: row.try_get("description")?,
            state: row.try_get("state")?,
            metadata: row.try_get("metadata")?,
            created_at: row.try_get("created_at")?,
            updated_at: row.try_get("updated_at")?,
        })
    }
}

/// Stores a new task; false if the id is taken.
pub async fn insert(connection: &mut PgConnection, task: &Task) -> Result<bool> {
    insert_or(connection, task, "NOTHING").await
}

/// Makes sure that there is the task, and keeps it from being deleted until the transaction ends.
pub async fn ensure(connection: &mut PgConnection, task: &Task) -> Result<()> {
    // Changes nothing and locks the row; a deletion under way is waited for, and the task made anew after it.
    insert_or(connection, task, "UPDATE SET id = EXCLUDED.id").await?;
    Ok(())
}

async fn insert_or(connection: &mut PgConnection, task: &Task, on_conflict: &'static str) -> Result<bool> {
    let sql = format!(
        "INSERT INTO tasks (id, title, description, state, metadata, created_at, updated_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $6) ON CONFLICT (id) DO {on_conflict}"
    );
    let done = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(task.id.as_str())
        .bind(task.title.as_deref().map(pg_text).as_deref())
        .bind(task.description.as_deref().map(pg_text).as_deref())
        .bind(pg_text(&task.state).as_ref())
        .bind(&task.metadata)
        .bind(task.created_at)
        .execute(connection)
        .await?;
    Ok(done.rows_affected() == 1)
}

/// One task.
pub async fn get(pool: &PgPool, id: &TaskId) -> Result<Option<Task>> {
    let row = sqlx::query("SELECT * FROM tasks WHERE id = $1")
        .bind(id.as_str())
        .fetch_optional(pool)
        .await?;
    row.as_ref().map(Task::try_from).transpose()
}

/// Tasks, newest first.
pub async fn list(
    pool: &PgPool,
    state: Option<&str>,
    after: Option<&Cursor>,
    limit: i64,
) -> Result<Page<Task>> {
    let state = state.map(pg_text);
    let total: i64 = sqlx::query_scalar("SELECT count(*) FROM tasks WHERE $1::text IS NULL OR state = $1")
        .bind(state.as_deref())
        .fetch_one(pool)
        .await?;
    let rows = sqlx::query(
        "SELECT * FROM tasks WHERE ($1::text IS NULL OR state = $1) \
         AND ($2::timestamptz IS NULL OR (created_at, id) < ($2, $3)) ORDER BY created_at DESC, id DESC LIMIT $4",
    )
    .bind(state.as_deref())
    .bind(after.map(|c| c.created_at))
    .bind(after.map(|c| &c.key))
    .bind(limit + 1)
    .fetch_all(pool)
    .await?;
    let items = rows.iter().map(Task::try_from).collect::<Result<Vec<_>>>()?;
    Ok(Page::cut(items, limit, total, |t| Cursor {
        created_at: t.created_at,
        key: t.id.to_string(),
    }))
}

/// What becomes of a text that need not be there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum TextPatch {
    /// It stays.
    #[default]
    Keep,
    /// There is none from now on.
    Clear,
    /// This.
    Set(String),
}

impl TextPatch {
    /// Whether it changes, and into what.
    fn change(&self) -> (bool, Option<String>) {
        match self {
            Self::Keep => (false, None),
            Self::Clear => (true, None),
            Self::Set(text) => (true, Some(pg_text(text).into_owned())),
        }
    }
}

/// What a caller changes of a task; `None` leaves a field as it is.
#[derive(Debug, Clone, Default)]
pub struct TaskPatch {
    /// For people.
    pub title: TextPatch,
    /// For people.
    pub description: TextPatch,
    /// The caller's own word.
    pub state: Option<String>,
    /// Merged key by key; a null removes its key.
    pub metadata: Option<Map<String, Value>>,
}

/// Changes a task and gives it back; none if there is no such task.
pub async fn patch(
    pool: &PgPool,
    id: &TaskId,
    patch: &TaskPatch,
    now: DateTime<Utc>,
) -> Result<Option<Task>> {
    let (new_title, title) = patch.title.change();
    let (new_description, description) = patch.description.change();
    let row = sqlx::query(
        "UPDATE tasks SET title = CASE WHEN $7 THEN $2 ELSE title END, \
         description = CASE WHEN $8 THEN $3 ELSE description END, \
         state = coalesce($4, state), \
         metadata = CASE WHEN $5::jsonb IS NULL THEN metadata ELSE (metadata || $5::jsonb) - \
             ARRAY(SELECT key FROM jsonb_each($5::jsonb) WHERE value = 'null'::jsonb) END, updated_at = $6 \
         WHERE id = $1 RETURNING *",
    )
    .bind(id.as_str())
    .bind(title)
    .bind(description)
    .bind(patch.state.as_deref().map(pg_text).as_deref())
    .bind(patch.metadata.clone().map(Value::Object))
    .bind(now)
    .bind(new_title)
    .bind(new_description)
    .fetch_optional(pool)
    .await?;
    row.as_ref().map(Task::try_from).transpose()
}

/// What became of a request to delete a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deleted {
    /// It is gone, with all its history.
    Done,
    /// It has an instance that has not ended.
    Busy,
    /// There was none.
    Missing,
}

/// Deletes a task with all its instances, sessions and events, unless one of its instances is active.
pub async fn delete(pool: &PgPool, id: &TaskId) -> Result<Deleted> {
    let mut tx = pool.begin().await?;
    // Waits for a launch that has not committed, whose instance a single statement would take along unseen.
    let locked = sqlx::query("SELECT 1 FROM tasks WHERE id = $1 FOR UPDATE")
        .bind(id.as_str())
        .fetch_optional(&mut *tx)
        .await?;
    if locked.is_none() {
        return Ok(Deleted::Missing);
    }
    let done = sqlx::query(
        "DELETE FROM tasks WHERE id = $1 AND NOT EXISTS (SELECT 1 FROM agent_instances WHERE task_id = $1 \
         AND status IN ('starting', 'running'))",
    )
    .bind(id.as_str())
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(if done.rows_affected() == 1 {
        Deleted::Done
    } else {
        Deleted::Busy
    })
}

/// Ids of sessions that a task learns.
#[derive(Debug, Clone)]
pub struct TaskMetadata {
    /// Which task.
    pub task_id: TaskId,
    /// Keys and ids.
    pub entries: Vec<(String, String)>,
}

impl TaskMetadata {
    pub(crate) async fn merge(&self, connection: &mut PgConnection, now: DateTime<Utc>) -> Result<()> {
        let entries: Map<String, Value> = self
            .entries
            .iter()
            .map(|(k, v)| (k.clone(), Value::from(pg_text(v).into_owned())))
            .collect();
        sqlx::query("UPDATE tasks SET metadata = metadata || $2, updated_at = $3 WHERE id = $1")
            .bind(self.task_id.as_str())
            .bind(Value::Object(entries))
            .bind(now)
            .execute(connection)
            .await?;
        Ok(())
    }
}
