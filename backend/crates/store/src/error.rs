//! What can go wrong with the database.

use std::fmt::Display;

/// The result of a store call.
pub type Result<T> = std::result::Result<T, StoreError>;

/// A store error.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database does not answer, or its connection broke.
    #[error("the database does not answer: {0}")]
    Unavailable(#[source] sqlx::Error),
    /// The database did not answer in time.
    #[error("the database did not answer within {0:?}")]
    Late(std::time::Duration),
    /// The database refused.
    #[error("the database refused: {0}")]
    Database(#[source] sqlx::Error),
    /// A migration failed.
    #[error("a migration failed: {0}")]
    Migration(#[source] sqlx::migrate::MigrateError),
    /// A row that does not fit its type.
    #[error("{table}.{column} of row {row}: {problem}")]
    BadRow {
        /// Which table.
        table: &'static str,
        /// Which column.
        column: &'static str,
        /// The row's key.
        row: String,
        /// What is wrong.
        problem: String,
    },
    /// The row to change is not there.
    #[error("{table}: no row {row} to change")]
    NoSuchRow {
        /// Which table.
        table: &'static str,
        /// The row's key.
        row: String,
    },
    /// The run that wanted to write has been ended by another server.
    #[error("this run of the server has been ended by another one")]
    Fenced,
    /// The task has an instance that has not ended.
    #[error("task {task_id} has an active instance")]
    TaskBusy {
        /// The task.
        task_id: String,
    },
}

impl StoreError {
    /// True if the same call may well work later.
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Late(_))
    }

    /// The database did not answer within the caller's patience.
    pub const fn no_answer() -> Self {
        Self::Unavailable(sqlx::Error::PoolTimedOut)
    }

    pub(crate) fn bad_row(
        table: &'static str,
        column: &'static str,
        row: impl Display,
        problem: impl Display,
    ) -> Self {
        Self::BadRow {
            table,
            column,
            row: row.to_string(),
            problem: problem.to_string(),
        }
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        let unavailable = match &error {
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => true,
            // 57P: the server is ending or starting; 08: connection exception; 53: out of resources (connections, disk);
            // 40: serialization failure or deadlock; 55: not in a state for it; 58, XX: the server's own trouble.
            sqlx::Error::Database(db) => db.code().is_some_and(|c| {
                ["57P", "08", "53", "40", "55", "58", "XX"]
                    .iter()
                    .any(|class| c.starts_with(class))
            }),
            _ => false,
        };
        if unavailable {
            Self::Unavailable(error)
        } else {
            Self::Database(error)
        }
    }
}
