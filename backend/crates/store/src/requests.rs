//! What agents ask of callers: permissions and elicitations are found and listed alike.

use kandev_domain::InstanceId;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{PgPool, Row};

use crate::error::{Result, StoreError};
use crate::page::{Cursor, Page};
use crate::pg_text;

/// Which requests to list.
#[derive(Debug, Clone)]
pub struct RequestFilter<S> {
    /// Only of this instance.
    pub instance_id: Option<InstanceId>,
    /// Only of this task's instances.
    pub task_id: Option<String>,
    /// Only with one of these statuses; any when empty.
    pub statuses: Vec<S>,
}

impl<S> Default for RequestFilter<S> {
    fn default() -> Self {
        Self {
            instance_id: None,
            task_id: None,
            statuses: Vec::new(),
        }
    }
}

/// One request of an instance.
pub(crate) async fn get<T>(
    pool: &PgPool,
    table: &'static str,
    instance_id: InstanceId,
    id: uuid::Uuid,
) -> Result<Option<T>>
where
    T: for<'r> TryFrom<&'r PgRow, Error = StoreError>,
{
    let sql = format!("SELECT * FROM {table} WHERE id = $1 AND instance_id = $2");
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(id)
        .bind(instance_id.0)
        .fetch_optional(pool)
        .await?;
    row.as_ref().map(T::try_from).transpose()
}

/// Those of an instance that wait for an answer, oldest first.
pub(crate) async fn pending<T>(
    connection: &mut PgConnection,
    table: &'static str,
    instance_id: InstanceId,
) -> Result<Vec<T>>
where
    T: for<'r> TryFrom<&'r PgRow, Error = StoreError>,
{
    let sql = format!("SELECT * FROM {table} WHERE instance_id = $1 AND status = 'pending' ORDER BY id");
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(instance_id.0)
        .fetch_all(connection)
        .await?;
    rows.iter().map(T::try_from).collect()
}

/// A change to one request, of which there must have been a row to change.
pub(crate) fn changed(table: &'static str, rows: u64, id: impl std::fmt::Display) -> Result<()> {
    if rows == 1 {
        return Ok(());
    }
    Err(StoreError::NoSuchRow {
        table,
        row: id.to_string(),
    })
}

/// One page of a table, newest first. The cursor's key is the id, which sorts by age.
pub(crate) async fn page<T, S: ToString>(
    pool: &PgPool,
    table: &'static str,
    filter: &RequestFilter<S>,
    after: Option<&Cursor>,
    limit: i64,
) -> Result<Page<T>>
where
    T: for<'r> TryFrom<&'r PgRow, Error = StoreError>,
{
    const FILTER: &str = "($1::uuid IS NULL OR instance_id = $1) AND (cardinality($2::text[]) = 0 OR status = ANY($2)) \
         AND ($3::text IS NULL OR instance_id IN (SELECT id FROM agent_instances WHERE task_id = $3))";
    let task_id = filter.task_id.as_deref().map(pg_text);
    let statuses: Vec<_> = filter.statuses.iter().map(S::to_string).collect();
    let sql = format!("SELECT count(*) FROM {table} WHERE {FILTER}");
    let total: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
        .bind(filter.instance_id.map(|id| id.0))
        .bind(&statuses)
        .bind(task_id.as_deref())
        .fetch_one(pool)
        .await?;
    let sql = format!(
        "SELECT * FROM {table} WHERE {FILTER} AND ($4::uuid IS NULL OR id < $4) ORDER BY id DESC LIMIT $5"
    );
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(filter.instance_id.map(|id| id.0))
        .bind(&statuses)
        .bind(task_id.as_deref())
        // A cursor of another list names no place in this one, which then ends.
        .bind(after.map(|c| c.key.parse().unwrap_or(uuid::Uuid::nil())))
        .bind(limit + 1)
        .fetch_all(pool)
        .await?;
    let item = |row: &PgRow| {
        let cursor = Cursor {
            created_at: row.try_get("requested_at")?,
            key: row.try_get::<uuid::Uuid, _>("id")?.to_string(),
        };
        Ok((T::try_from(row)?, cursor))
    };
    let items = rows.iter().map(item).collect::<Result<Vec<_>>>()?;
    let page = Page::cut(items, limit, total, |(_, cursor)| cursor.clone());
    Ok(Page {
        items: page.items.into_iter().map(|(item, _)| item).collect(),
        total: page.total,
        next: page.next,
    })
}

/// Reads a word of a row.
pub(crate) fn parse<T>(
    table: &'static str,
    row: impl std::fmt::Display,
    column: &'static str,
    text: &str,
) -> Result<T>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    text.parse()
        .map_err(|e| StoreError::bad_row(table, column, row, e))
}
