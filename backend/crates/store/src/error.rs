//! What can go wrong with the database.

use std::fmt::Display;

use kandev_domain::InstanceId;

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
    /// An instance that has not ended works in the session, or is about to.
    #[error("instance {instance_id} works in the session")]
    SessionBusy {
        /// The instance.
        instance_id: InstanceId,
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
        if is_transient(&error) {
            Self::Unavailable(error)
        } else {
            Self::Database(error)
        }
    }
}

/// Beginnings of the codes of errors that say nothing about the statement: the same one may well work later.
/// Source: PostgreSQL's documentation, appendix "Error Codes".
const TRANSIENT: [&str; 11] = [
    // Connection exception.
    "08", // Takes no writes: a standby, or the operator's default. A transaction that took too long.
    "25006", "25P03", "25P04",
    // Serialization failure, deadlock.
    "40", // Out of resources: disk, memory, connections.
    "53",
    // Not in a state for it: an object in use, a lock that is not available.
    "55", // Cancelled by a time limit, or the server is ending, crashing or starting.
    "57014", "57P", // The server's own trouble: input and output, internal errors.
    "58", "XX",
];

/// True if the same may well work later.
pub fn is_transient(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => true,
        sqlx::Error::Database(error) => error.code().is_some_and(|code| is_transient_code(&code)),
        _ => false,
    }
}

fn is_transient_code(code: &str) -> bool {
    TRANSIENT.iter().any(|beginning| code.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_work_later_is_told_from_what_never_will() {
        let later = [
            "08006", "25006", "40001", "40P01", "53100", "53200", "53300", "55P03", "57014", "57P01",
            "57P02", "57P03", "58030", "XX000",
        ];
        for code in later {
            assert!(is_transient_code(code), "{code}");
        }
        for code in [
            "22021", "23505", "25001", "25P02", "42703", "54000", "28P01", "3D000",
        ] {
            assert!(!is_transient_code(code), "{code}");
        }
    }
}
