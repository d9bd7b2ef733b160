//! Lists of what agents ask of callers: permissions and elicitations are listed alike.

use kandev_domain::InstanceId;
use sqlx::postgres::PgRow;
use sqlx::{PgPool, Row};

use crate::error::{Result, StoreError};
use crate::page::{Cursor, Page};
use crate::pg_text;

/// Which of a table's requests.
pub(crate) struct Filter<'a> {
    pub(crate) instance_id: Option<InstanceId>,
    pub(crate) task_id: Option<&'a str>,
    /// Any when empty.
    pub(crate) statuses: Vec<&'a str>,
}

/// One page of a table, newest first. The cursor's key is the id, which sorts by age.
pub(crate) async fn page<T>(
    pool: &PgPool,
    table: &'static str,
    filter: &Filter<'_>,
    after: Option<&Cursor>,
    limit: i64,
) -> Result<Page<T>>
where
    T: for<'r> TryFrom<&'r PgRow, Error = StoreError>,
{
    const FILTER: &str = "($1::uuid IS NULL OR instance_id = $1) AND (cardinality($2::text[]) = 0 OR status = ANY($2)) \
         AND ($3::text IS NULL OR instance_id IN (SELECT id FROM agent_instances WHERE task_id = $3))";
    let task_id = filter.task_id.map(pg_text);
    let sql = format!("SELECT count(*) FROM {table} WHERE {FILTER}");
    let total: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
        .bind(filter.instance_id.map(|id| id.0))
        .bind(&filter.statuses)
        .bind(task_id.as_deref())
        .fetch_one(pool)
        .await?;
    let sql = format!(
        "SELECT * FROM {table} WHERE {FILTER} AND ($4::uuid IS NULL OR id < $4) ORDER BY id DESC LIMIT $5"
    );
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(filter.instance_id.map(|id| id.0))
        .bind(&filter.statuses)
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
