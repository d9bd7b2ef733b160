//! Subagents: what an agent last said of each task that it has given away. Source: Koda's page on its ACP server.

use chrono::{DateTime, Utc};
use kandev_domain::SessionKey;
use sqlx::postgres::PgConnection;
use sqlx::{PgPool, Row};

use crate::error::Result;
use crate::pg_text;

/// How many are kept of a session; of more, the ones that were longest silent go.
pub const MAX_TASKS: i64 = 256;

/// A snapshot of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubagentChange {
    /// Whose.
    pub session_key: SessionKey,
    /// The agent's id of it.
    pub task_id: String,
    /// By the agent's clock, in microseconds since 1970; none if it does not tell.
    pub changed_at: Option<i64>,
    /// JSON text.
    pub snapshot: String,
    /// What it was doing, as JSON text; none if the snapshot has another occasion.
    pub activity: Option<String>,
}

impl SubagentChange {
    /// Takes another one of the same task, unless it is older. One without a time is older than one with.
    pub fn merge(&mut self, other: Self) {
        let is_older = match (other.changed_at, self.changed_at) {
            (Some(other), Some(own)) => other < own,
            (None, Some(_)) => true,
            (_, None) => false,
        };
        if !is_older {
            let activity = other.activity.or_else(|| self.activity.take());
            *self = Self { activity, ..other };
        }
    }

    /// The same against the row.
    pub(crate) async fn upsert(&self, connection: &mut PgConnection, now: DateTime<Utc>) -> Result<()> {
        let is_new: Option<bool> = sqlx::query_scalar(
            "INSERT INTO subagents AS s (session_key, task_id, changed_at, snapshot, activity, created_at, updated_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $6) \
             ON CONFLICT (session_key, task_id) DO UPDATE SET changed_at = excluded.changed_at, \
             snapshot = excluded.snapshot, activity = coalesce(excluded.activity, s.activity), updated_at = excluded.updated_at \
             WHERE s.changed_at IS NULL OR excluded.changed_at >= s.changed_at RETURNING xmax = 0",
        )
        .bind(self.session_key.0)
        .bind(pg_text(&self.task_id).as_ref())
        .bind(self.changed_at)
        .bind(&self.snapshot)
        .bind(&self.activity)
        .bind(now)
        .fetch_optional(&mut *connection)
        .await?;
        if is_new == Some(true) {
            sqlx::query(
                "DELETE FROM subagents WHERE session_key = $1 AND task_id IN (SELECT task_id FROM subagents \
                 WHERE session_key = $1 ORDER BY updated_at DESC, created_at DESC, task_id OFFSET $2)",
            )
            .bind(self.session_key.0)
            .bind(MAX_TASKS)
            .execute(connection)
            .await?;
        }
        Ok(())
    }
}

/// What was last said of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subagent {
    /// The agent's id of it.
    pub task_id: String,
    /// JSON text.
    pub snapshot: String,
    /// The last activity that was told of, as JSON text.
    pub activity: Option<String>,
}

/// All of a session, in the order in which they were first heard of.
pub async fn list(pool: &PgPool, key: SessionKey) -> Result<Vec<Subagent>> {
    let mut connection = pool.acquire().await?;
    list_on(&mut connection, key).await
}

pub(crate) async fn list_on(connection: &mut PgConnection, key: SessionKey) -> Result<Vec<Subagent>> {
    let rows = sqlx::query(
        "SELECT task_id, snapshot, activity FROM subagents WHERE session_key = $1 ORDER BY created_at, task_id",
    )
    .bind(key.0)
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(Subagent {
                task_id: row.try_get("task_id")?,
                snapshot: row.try_get("snapshot")?,
                activity: row.try_get("activity")?,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(changed_at: Option<i64>, snapshot: &str, activity: Option<&str>) -> SubagentChange {
        SubagentChange {
            session_key: SessionKey(uuid::Uuid::nil()),
            task_id: "t".to_owned(),
            changed_at,
            snapshot: snapshot.to_owned(),
            activity: activity.map(str::to_owned),
        }
    }

    #[test]
    fn an_older_one_changes_nothing() {
        let mut known = told(Some(5), "a", Some("x"));
        known.merge(told(Some(4), "b", Some("y")));
        known.merge(told(None, "c", None));
        assert_eq!(known, told(Some(5), "a", Some("x")));
        known.merge(told(Some(5), "d", None));
        assert_eq!(known, told(Some(5), "d", Some("x")));
        let mut undated = told(None, "a", None);
        undated.merge(told(None, "b", None));
        undated.merge(told(Some(1), "c", Some("z")));
        assert_eq!(undated, told(Some(1), "c", Some("z")));
    }
}
