//! Files that prompts name.

use chrono::{DateTime, Utc};
use kandev_domain::content::FileContent;
use kandev_domain::{InstanceId, UploadId};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{PgPool, Row};

use crate::error::{Result, StoreError};
use crate::page::{Cursor, Page};
use crate::pg_text;

/// Held while one is added, so that several at once do not get over the limit together.
const LOCK: i64 = 0x6b61_6e64_6576_0008;

/// A file to be stored.
#[derive(Debug, Clone)]
pub struct NewUpload {
    /// Its id.
    pub id: UploadId,
    /// The instance that it goes with; none for a caller's own.
    pub instance_id: Option<InstanceId>,
    /// What is in it.
    pub file: std::sync::Arc<FileContent>,
    /// Now.
    pub created_at: DateTime<Utc>,
}

/// A file that is stored, without what is in it.
#[derive(Debug, Clone)]
pub struct Upload {
    /// Its id.
    pub id: UploadId,
    /// The instance that it goes with; none for a caller's own.
    pub instance_id: Option<InstanceId>,
    /// For people.
    pub name: String,
    /// `type/subtype`.
    pub mime_type: String,
    /// By which an agent knows it.
    pub uri: String,
    /// In bytes.
    pub size: u64,
    /// When it came.
    pub created_at: DateTime<Utc>,
}

impl TryFrom<&PgRow> for Upload {
    type Error = StoreError;

    fn try_from(row: &PgRow) -> Result<Self> {
        let id = UploadId(row.try_get("id")?);
        let size: i64 = row.try_get("size")?;
        Ok(Self {
            id,
            instance_id: row.try_get::<Option<_>, _>("instance_id")?.map(InstanceId),
            name: row.try_get("name")?,
            mime_type: row.try_get("mime_type")?,
            uri: row.try_get("uri")?,
            size: size
                .try_into()
                .map_err(|e| StoreError::bad_row("uploads", "size", id, e))?,
            created_at: row.try_get("created_at")?,
        })
    }
}

const COLUMNS: &str = "id, instance_id, name, mime_type, uri, size, created_at";

/// Stores these in a transaction; false, with none stored, if all files together would then have more than `max_total` bytes.
pub async fn insert(connection: &mut PgConnection, new: &[NewUpload], max_total: u64) -> Result<bool> {
    if new.is_empty() {
        return Ok(true);
    }
    sqlx::query("SELECT pg_advisory_xact_lock($1)")
        .bind(LOCK)
        .execute(&mut *connection)
        .await?;
    let taken: i64 = sqlx::query_scalar("SELECT coalesce(sum(size), 0)::bigint FROM uploads")
        .fetch_one(&mut *connection)
        .await?;
    let more: u64 = new.iter().map(|upload| upload.file.bytes.len() as u64).sum();
    if u64::try_from(taken).unwrap_or(0).saturating_add(more) > max_total {
        return Ok(false);
    }
    for upload in new {
        sqlx::query(
            "INSERT INTO uploads (id, instance_id, name, mime_type, uri, size, created_at, content) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(upload.id.0)
        .bind(upload.instance_id.map(|id| id.0))
        .bind(pg_text(&upload.file.name).as_ref())
        .bind(&upload.file.mime_type)
        .bind(pg_text(&upload.file.uri).as_ref())
        .bind(upload.file.bytes.len() as i64)
        .bind(upload.created_at)
        .bind(&upload.file.bytes)
        .execute(&mut *connection)
        .await?;
    }
    Ok(true)
}

/// One file, without what is in it.
pub async fn get(pool: &PgPool, id: UploadId) -> Result<Option<Upload>> {
    let sql = format!("SELECT {COLUMNS} FROM uploads WHERE id = $1");
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(id.0)
        .fetch_optional(pool)
        .await?;
    row.as_ref().map(Upload::try_from).transpose()
}

/// One file with what is in it.
pub async fn content(pool: &PgPool, id: UploadId) -> Result<Option<FileContent>> {
    let row = sqlx::query("SELECT name, mime_type, uri, content FROM uploads WHERE id = $1")
        .bind(id.0)
        .fetch_optional(pool)
        .await?;
    row.map(|row| {
        Ok(FileContent {
            name: row.try_get("name")?,
            mime_type: row.try_get("mime_type")?,
            uri: row.try_get("uri")?,
            bytes: row.try_get("content")?,
        })
    })
    .transpose()
}

/// Callers' own files, newest first.
pub async fn list(pool: &PgPool, after: Option<&Cursor>, limit: i64) -> Result<Page<Upload>> {
    let total: i64 = sqlx::query_scalar("SELECT count(*) FROM uploads WHERE instance_id IS NULL")
        .fetch_one(pool)
        .await?;
    let sql = format!(
        "SELECT {COLUMNS} FROM uploads WHERE instance_id IS NULL \
         AND ($1::timestamptz IS NULL OR (created_at, id::text) < ($1, $2)) ORDER BY created_at DESC, id DESC LIMIT $3"
    );
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(after.map(|c| c.created_at))
        .bind(after.map(|c| &c.key))
        .bind(limit + 1)
        .fetch_all(pool)
        .await?;
    let items = rows.iter().map(Upload::try_from).collect::<Result<Vec<_>>>()?;
    Ok(Page::cut(items, limit, total, |upload| Cursor {
        created_at: upload.created_at,
        key: upload.id.to_string(),
    }))
}

/// Removes one; false if there is none.
pub async fn delete(pool: &PgPool, id: UploadId) -> Result<bool> {
    let done = sqlx::query("DELETE FROM uploads WHERE id = $1")
        .bind(id.0)
        .execute(pool)
        .await?;
    Ok(done.rows_affected() == 1)
}
