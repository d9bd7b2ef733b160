//! PostgreSQL: migrations, and one module of queries per aggregate.
//!
//! Callers get domain types; a row that does not fit them is an error that names table, column and row. Every write
//! checks how many rows it touched.

pub mod commands;
pub mod elicitations;
mod error;
pub mod instances;
pub mod journal;
pub mod notify;
pub mod page;
pub mod permissions;
pub mod record;
mod requests;
pub mod servers;
pub mod sessions;
pub mod snapshot;
pub mod subagents;
pub mod tasks;
pub mod turns;
pub mod uploads;
pub mod usage;

pub use sqlx::PgPool;

pub use error::{Result, StoreError, is_transient};
pub use page::{Cursor, Page};
pub use requests::RequestFilter;
pub use servers::Fence;

static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("../../../migrations");

/// Brings the schema up to date. Safe to run from several servers at once: one waits for the other.
pub async fn migrate(pool: &PgPool) -> Result<()> {
    MIGRATIONS.run(pool).await.map_err(StoreError::Migration)?;
    journal::take_over_order(pool).await
}

/// Bounds a wait for the database: a server that is frozen, or cut off, keeps its connections and says nothing on them.
///
/// Whether a write that was given up took place is not known.
pub async fn within<T, E: From<StoreError>>(
    limit: std::time::Duration,
    work: impl Future<Output = std::result::Result<T, E>>,
) -> std::result::Result<T, E> {
    tokio::time::timeout(limit, work)
        .await
        .unwrap_or_else(|_| Err(StoreError::Late(limit).into()))
}

/// Text as PostgreSQL takes it: it has no NUL, for which the replacement character stands in.
pub(crate) fn pg_text(text: &str) -> std::borrow::Cow<'_, str> {
    if text.contains('\0') {
        text.replace('\0', "\u{fffd}").into()
    } else {
        text.into()
    }
}
