//! Agent instances.

use chrono::{DateTime, Utc};
use kandev_domain::status::{InstanceLifecycle, PermissionPolicy};
use kandev_domain::{FailureCode, InstanceId, InstanceStatus, SessionKey, TaskId, TurnState};
use serde_json::Value;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{PgPool, Row};

use crate::error::{Result, StoreError};
use crate::page::{Cursor, Page};
use crate::pg_text;
use crate::servers::{self, Fence};

const TABLE: &str = "agent_instances";

/// An instance to be.
#[derive(Debug, Clone)]
pub struct NewInstance {
    /// Its id.
    pub id: InstanceId,
    /// Its task, which must exist.
    pub task_id: TaskId,
    /// Its type.
    pub agent_type: String,
    /// The directory it works on.
    pub workspace_path: String,
    /// Higher first.
    pub priority: i32,
    /// The caller's own.
    pub metadata: Value,
    /// The launch as JSON text, less its environment.
    pub launch: String,
    /// Names in its environment.
    pub env_names: Vec<String>,
    /// Its environment, encrypted.
    pub env_sealed: Vec<u8>,
    /// How permission requests are answered.
    pub permission_policy: PermissionPolicy,
    /// How long it stays.
    pub lifecycle: InstanceLifecycle,
    /// The deployment.
    pub owner: String,
    /// The instance whose session it goes on with.
    pub resumed_from: Option<InstanceId>,
    /// The session that it is to go on with.
    pub resumes: Option<Resumes>,
    /// The run that holds it.
    pub held_by: Fence,
    /// Now.
    pub created_at: DateTime<Utc>,
}

/// A session that an instance is to go on with.
#[derive(Debug, Clone)]
pub struct Resumes {
    /// The agent's id.
    pub session_id: String,
    /// Our key, if it is known.
    pub key: Option<SessionKey>,
}

/// An instance.
#[derive(Debug, Clone)]
pub struct Instance {
    /// Its id.
    pub id: InstanceId,
    /// Its task.
    pub task_id: TaskId,
    /// Its type.
    pub agent_type: String,
    /// The directory it works on.
    pub workspace_path: String,
    /// Higher first.
    pub priority: i32,
    /// The caller's own.
    pub metadata: Value,
    /// The launch as JSON text, less its environment.
    pub launch: String,
    /// Names in its environment.
    pub env_names: Vec<String>,
    /// Its environment, encrypted.
    pub env_sealed: Vec<u8>,
    /// How permission requests are answered.
    pub permission_policy: PermissionPolicy,
    /// How long it stays.
    pub lifecycle: InstanceLifecycle,
    /// The deployment.
    pub owner: String,
    /// Where it stands.
    pub status: InstanceStatus,
    /// What it is doing.
    pub turn_state: TurnState,
    /// 0 to 100.
    pub progress: i16,
    /// Its session.
    pub session_key: Option<SessionKey>,
    /// Its session's id, as the agent calls it.
    pub session_id: Option<String>,
    /// The instance whose session it goes on with.
    pub resumed_from: Option<InstanceId>,
    /// Its container, as long as there is or was one.
    pub container_id: Option<String>,
    /// How the container ended.
    pub exit_code: Option<i64>,
    /// The memory limit was hit.
    pub oom_killed: bool,
    /// Why it failed.
    pub error_code: Option<FailureCode>,
    /// The same for people.
    pub error_message: Option<String>,
    /// The same as JSON text.
    pub error_details: Option<String>,
    /// The end of what it wrote to stderr.
    pub stderr_tail: Option<String>,
    /// Why it was ended.
    pub ended_reason: Option<String>,
    /// When it was launched.
    pub created_at: DateTime<Utc>,
    /// When its session was ready.
    pub running_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub finished_at: Option<DateTime<Utc>>,
    /// What another process needs to take it up, encrypted.
    pub saved: Option<Vec<u8>>,
    /// The run that holds it; none once it has ended.
    pub holder: Option<Holder>,
}

/// The run that holds an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its number.
    pub fence: Fence,
    /// For people.
    pub name: String,
    /// It has ended: any other may take the instance up.
    pub ended: bool,
}

fn parse<T>(row: &PgRow, id: &str, column: &'static str) -> Result<T>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    let text: String = row.try_get(column)?;
    text.parse()
        .map_err(|e| StoreError::bad_row(TABLE, column, id, e))
}

impl TryFrom<&PgRow> for Instance {
    type Error = StoreError;

    fn try_from(row: &PgRow) -> Result<Self> {
        let id = InstanceId(row.try_get("id")?);
        let key = id.to_string();
        let error_code: Option<String> = row.try_get("error_code")?;
        Ok(Self {
            id,
            task_id: parse(row, &key, "task_id")?,
            agent_type: row.try_get("agent_type")?,
            workspace_path: row.try_get("workspace_path")?,
            priority: row.try_get("priority")?,
            metadata: row.try_get("metadata")?,
            launch: row.try_get("launch")?,
            env_names: row.try_get("env_names")?,
            env_sealed: row.try_get("env_sealed")?,
            permission_policy: parse(row, &key, "permission_policy")?,
            lifecycle: parse(row, &key, "lifecycle")?,
            owner: row.try_get("owner")?,
            status: parse(row, &key, "status")?,
            turn_state: parse(row, &key, "turn_state")?,
            progress: row.try_get("progress")?,
            session_key: row.try_get::<Option<_>, _>("session_key")?.map(SessionKey),
            session_id: row.try_get("session_id")?,
            resumed_from: row.try_get::<Option<_>, _>("resumed_from")?.map(InstanceId),
            container_id: row.try_get("container_id")?,
            exit_code: row.try_get("exit_code")?,
            oom_killed: row.try_get("oom_killed")?,
            error_code: error_code
                .map(|c| {
                    c.parse()
                        .map_err(|e| StoreError::bad_row(TABLE, "error_code", &key, e))
                })
                .transpose()?,
            error_message: row.try_get("error_message")?,
            error_details: row.try_get("error_details")?,
            stderr_tail: row.try_get("stderr_tail")?,
            ended_reason: row.try_get("ended_reason")?,
            created_at: row.try_get("created_at")?,
            running_at: row.try_get("running_at")?,
            finished_at: row.try_get("finished_at")?,
            saved: row.try_get("saved")?,
            holder: holder(row)?,
        })
    }
}

fn holder(row: &PgRow) -> Result<Option<Holder>> {
    let Some(fence) = row.try_get::<Option<i64>, _>("held_by")? else {
        return Ok(None);
    };
    Ok(Some(Holder {
        fence: Fence(fence),
        name: row.try_get("holder_name")?,
        ended: row.try_get("holder_ended")?,
    }))
}

const SELECT: &str = "SELECT i.*, s.session_id, v.name AS holder_name, v.ended_at IS NOT NULL AS holder_ended \
    FROM agent_instances i LEFT JOIN sessions s ON s.key = i.session_key LEFT JOIN servers v ON v.fence = i.held_by";

/// Stores a new instance, `starting`. [`StoreError::TaskBusy`] if its task has one that has not ended,
/// [`StoreError::SessionBusy`] if one works in the session that it is to go on with, [`StoreError::Fenced`] if the run that is to
/// hold it has been ended. In a transaction.
pub async fn insert(connection: &mut PgConnection, new: &NewInstance) -> Result<()> {
    servers::hold(connection, new.held_by).await?;
    if let Some(resumes) = &new.resumes {
        claim_session(connection, new, resumes).await?;
    }
    let inserted = sqlx::query(
        "INSERT INTO agent_instances (id, task_id, agent_type, workspace_path, priority, metadata, launch, env_names, \
         env_sealed, permission_policy, lifecycle, owner, resumed_from, held_by, resumes_id, resumes_key, status, turn_state, \
         created_at, updated_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $15, $16, $17, 'starting', 'idle', $14, $14)",
    )
    .bind(new.id.0)
    .bind(new.task_id.as_str())
    .bind(&new.agent_type)
    .bind(&new.workspace_path)
    .bind(new.priority)
    .bind(&new.metadata)
    .bind(&new.launch)
    .bind(&new.env_names)
    .bind(&new.env_sealed)
    .bind(new.permission_policy.as_str())
    .bind(new.lifecycle.as_str())
    .bind(&new.owner)
    .bind(new.resumed_from.map(|id| id.0))
    .bind(new.created_at)
    .bind(new.held_by.0)
    .bind(new.resumes.as_ref().map(|r| pg_text(&r.session_id).into_owned()))
    .bind(new.resumes.as_ref().and_then(|r| r.key).map(|key| key.0))
    .execute(connection)
    .await;
    match inserted {
        Ok(_) => Ok(()),
        Err(sqlx::Error::Database(e)) if e.constraint() == Some("one_active_instance_per_task") => {
            Err(StoreError::TaskBusy {
                task_id: new.task_id.to_string(),
            })
        }
        Err(e) => Err(e.into()),
    }
}

/// Makes sure that nobody works in the session, or is about to, and that nobody else begins to until the transaction ends.
async fn claim_session(connection: &mut PgConnection, new: &NewInstance, resumes: &Resumes) -> Result<()> {
    let session_id = pg_text(&resumes.session_id);
    sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))")
        .bind(format!("session {} {session_id}", new.agent_type))
        .execute(&mut *connection)
        .await?;
    // A statement of its own, which sees what was committed while the lock was waited for. Agents' ids need not be unique, but
    // what one type calls so in one directory is one session to it, whether or not it is known here yet.
    let found: Option<uuid::Uuid> = sqlx::query_scalar(
        "SELECT i.id FROM agent_instances i LEFT JOIN sessions s ON s.key = i.session_key \
         WHERE i.status IN ('starting', 'running') AND (coalesce(i.session_key, i.resumes_key) = $1 \
         OR (i.agent_type = $2 AND i.workspace_path = $3 AND coalesce(s.session_id, i.resumes_id) = $4)) LIMIT 1",
    )
    .bind(resumes.key.map(|key| key.0))
    .bind(&new.agent_type)
    .bind(&new.workspace_path)
    .bind(session_id.as_ref())
    .fetch_optional(connection)
    .await?;
    match found {
        None => Ok(()),
        Some(id) => Err(StoreError::SessionBusy {
            instance_id: InstanceId(id),
        }),
    }
}

/// One instance.
pub async fn get(pool: &PgPool, id: InstanceId) -> Result<Option<Instance>> {
    let row = sqlx::query(sqlx::AssertSqlSafe(format!("{SELECT} WHERE i.id = $1")))
        .bind(id.0)
        .fetch_optional(pool)
        .await?;
    row.as_ref().map(Instance::try_from).transpose()
}

/// The one of a task that has not ended, if there is one.
pub async fn active_of_task(pool: &PgPool, task_id: &str) -> Result<Option<InstanceId>> {
    let found: Option<uuid::Uuid> = sqlx::query_scalar(
        "SELECT id FROM agent_instances WHERE task_id = $1 AND status IN ('starting', 'running')",
    )
    .bind(task_id)
    .fetch_optional(pool)
    .await?;
    Ok(found.map(InstanceId))
}

/// All of a deployment that have not ended, oldest first.
pub async fn active(pool: &PgPool, owner: &str) -> Result<Vec<Instance>> {
    let sql = format!(
        "{SELECT} WHERE i.owner = $1 AND i.status IN ('starting', 'running') ORDER BY i.created_at, i.id"
    );
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(owner)
        .fetch_all(pool)
        .await?;
    rows.iter().map(Instance::try_from).collect()
}

/// Which instances to list.
#[derive(Debug, Clone, Default)]
pub struct InstanceFilter {
    /// Only with one of these statuses; any when empty.
    pub statuses: Vec<InstanceStatus>,
    /// Only of this type.
    pub agent_type: Option<String>,
    /// Only of this task.
    pub task_id: Option<String>,
}

/// Instances, newest first.
pub async fn list(
    pool: &PgPool,
    filter: &InstanceFilter,
    after: Option<&Cursor>,
    limit: i64,
) -> Result<Page<Instance>> {
    const FILTER: &str = "(cardinality($1::text[]) = 0 OR i.status = ANY($1)) \
         AND ($2::text IS NULL OR i.agent_type = $2) AND ($3::text IS NULL OR i.task_id = $3)";
    let statuses: Vec<&str> = filter.statuses.iter().map(|s| s.as_str()).collect();
    let agent_type = filter.agent_type.as_deref().map(pg_text);
    let task_id = filter.task_id.as_deref().map(pg_text);
    let count = format!("SELECT count(*) FROM agent_instances i WHERE {FILTER}");
    let total: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(count))
        .bind(&statuses)
        .bind(agent_type.as_deref())
        .bind(task_id.as_deref())
        .fetch_one(pool)
        .await?;
    let sql = format!(
        "{SELECT} WHERE {FILTER} AND ($4::timestamptz IS NULL OR (i.created_at, i.id::text) < ($4, $5)) \
         ORDER BY i.created_at DESC, i.id DESC LIMIT $6"
    );
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(&statuses)
        .bind(agent_type.as_deref())
        .bind(task_id.as_deref())
        .bind(after.map(|c| c.created_at))
        .bind(after.map(|c| &c.key))
        .bind(limit + 1)
        .fetch_all(pool)
        .await?;
    let items = rows.iter().map(Instance::try_from).collect::<Result<Vec<_>>>()?;
    Ok(Page::cut(items, limit, total, |i| Cursor {
        created_at: i.created_at,
        key: i.id.to_string(),
    }))
}

/// What changes of an instance; `None` leaves a field as it is.
#[derive(Debug, Clone, Default)]
pub struct InstancePatch {
    /// Which one.
    pub id: Option<InstanceId>,
    /// Its status.
    pub status: Option<InstanceStatus>,
    /// What it is doing.
    pub turn_state: Option<TurnState>,
    /// 0 to 100.
    pub progress: Option<u8>,
    /// Its session.
    pub session_key: Option<SessionKey>,
    /// Its container.
    pub container_id: Option<String>,
    /// How the container ended.
    pub exit_code: Option<i64>,
    /// The memory limit was hit.
    pub oom_killed: Option<bool>,
    /// Why it failed.
    pub error_code: Option<FailureCode>,
    /// The same for people.
    pub error_message: Option<String>,
    /// The same as JSON text.
    pub error_details: Option<String>,
    /// The end of stderr.
    pub stderr_tail: Option<String>,
    /// Why it was ended.
    pub ended_reason: Option<String>,
    /// When its session was ready.
    pub running_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub finished_at: Option<DateTime<Utc>>,
    /// What another process needs to take it up, encrypted.
    pub saved: Option<Vec<u8>>,
}

impl InstancePatch {
    /// A patch of this instance.
    pub fn of(id: InstanceId) -> Self {
        Self {
            id: Some(id),
            ..Self::default()
        }
    }

    /// Writes it. An instance that has ended is not changed any more, and that is an error.
    pub(crate) async fn apply(&self, connection: &mut PgConnection, now: DateTime<Utc>) -> Result<()> {
        let id = self.id.map(|id| id.0);
        let text = |t: &Option<String>| t.as_deref().map(|t| pg_text(t).into_owned());
        let done = sqlx::query(
            "UPDATE agent_instances SET status = coalesce($2, status), turn_state = coalesce($3, turn_state), \
             progress = coalesce($4, progress), session_key = coalesce($5, session_key), \
             container_id = coalesce($6, container_id), exit_code = coalesce($7, exit_code), \
             oom_killed = coalesce($8, oom_killed), error_code = coalesce($9, error_code), \
             error_message = coalesce($10, error_message), error_details = coalesce($11, error_details), \
             stderr_tail = coalesce($12, stderr_tail), ended_reason = coalesce($13, ended_reason), \
             running_at = coalesce($14, running_at), finished_at = coalesce($15, finished_at), updated_at = $16, \
             saved = coalesce($17, saved), held_by = CASE WHEN $18 THEN NULL ELSE held_by END \
             WHERE id = $1 AND status IN ('starting', 'running')",
        )
        .bind(id)
        .bind(self.status.map(InstanceStatus::as_str))
        .bind(self.turn_state.map(TurnState::as_str))
        .bind(self.progress.map(i16::from))
        .bind(self.session_key.map(|k| k.0))
        .bind(&self.container_id)
        .bind(self.exit_code)
        .bind(self.oom_killed)
        .bind(self.error_code.map(FailureCode::as_str))
        .bind(text(&self.error_message))
        .bind(text(&self.error_details))
        .bind(text(&self.stderr_tail))
        .bind(text(&self.ended_reason))
        .bind(self.running_at)
        .bind(self.finished_at)
        .bind(now)
        .bind(&self.saved)
        .bind(self.status.is_some_and(InstanceStatus::is_final))
        .execute(connection)
        .await?;
        if done.rows_affected() == 1 {
            return Ok(());
        }
        Err(StoreError::NoSuchRow {
            table: TABLE,
            row: self.id.map(|id| id.to_string()).unwrap_or_default(),
        })
    }
}
