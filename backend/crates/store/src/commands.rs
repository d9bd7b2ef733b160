//! Commands on their way from the server that they reached to the one that holds the instance.

use kandev_domain::{CommandId, InstanceId};
use sqlx::postgres::PgConnection;
use sqlx::{PgPool, Row};

use crate::error::Result;
use crate::servers::Fence;

/// A command for an instance of this run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handed {
    /// Its id.
    pub id: CommandId,
    /// For whom.
    pub instance_id: InstanceId,
    /// What: JSON text, or sealed by who gave it.
    pub request: String,
}

/// An answer to a command, stored together with what the command changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The command.
    pub id: CommandId,
    /// JSON text.
    pub answer: String,
}

impl Answer {
    /// Writes it; a caller that has gone, and taken its command along, does not mind.
    pub(crate) async fn write(&self, connection: &mut PgConnection) -> Result<()> {
        sqlx::query("UPDATE commands SET answer = $2 WHERE id = $1")
            .bind(self.id.0)
            .bind(&self.answer)
            .execute(connection)
            .await?;
        Ok(())
    }
}

/// Answers a command that changes nothing.
pub async fn answer(pool: &PgPool, answer: &Answer) -> Result<()> {
    let mut connection = pool.acquire().await?;
    answer.write(&mut connection).await
}

/// Leaves a command for whoever holds the instance.
pub async fn hand_over(pool: &PgPool, id: CommandId, instance_id: InstanceId, request: &str) -> Result<()> {
    sqlx::query("INSERT INTO commands (id, instance_id, request) VALUES ($1, $2, $3)")
        .bind(id.0)
        .bind(instance_id.0)
        .bind(request)
        .execute(pool)
        .await?;
    Ok(())
}

/// Takes the oldest commands for these instances of a run that it has not taken yet. What an earlier run has taken and not
/// answered comes again.
pub async fn take(pool: &PgPool, fence: Fence, held: &[InstanceId], limit: i64) -> Result<Vec<Handed>> {
    let held: Vec<_> = held.iter().map(|id| id.0).collect();
    let rows = sqlx::query(
        "UPDATE commands c SET taken_by = $1 FROM (\
            SELECT c.id, c.asked_at FROM commands c JOIN agent_instances i ON i.id = c.instance_id \
            WHERE i.held_by = $1 AND c.instance_id = ANY($3) AND c.answer IS NULL AND c.taken_by IS DISTINCT FROM $1 \
            ORDER BY c.asked_at, c.id LIMIT $2 FOR UPDATE OF c SKIP LOCKED) mine \
         WHERE c.id = mine.id RETURNING c.id, c.instance_id, c.request, c.asked_at",
    )
    .bind(fence.0)
    .bind(limit)
    .bind(held)
    .fetch_all(pool)
    .await?;
    let mut handed = Vec::with_capacity(rows.len());
    for row in &rows {
        let asked_at: chrono::DateTime<chrono::Utc> = row.try_get("asked_at")?;
        let command = Handed {
            id: CommandId(row.try_get("id")?),
            instance_id: InstanceId(row.try_get("instance_id")?),
            request: row.try_get("request")?,
        };
        handed.push((asked_at, command));
    }
    handed.sort_by_key(|(asked_at, command)| (*asked_at, command.id));
    Ok(handed.into_iter().map(|(_, command)| command).collect())
}

/// The answer to a command, if there is one.
pub async fn answer_to(pool: &PgPool, id: CommandId) -> Result<Option<String>> {
    let answer: Option<Option<String>> = sqlx::query_scalar("SELECT answer FROM commands WHERE id = $1")
        .bind(id.0)
        .fetch_optional(pool)
        .await?;
    Ok(answer.flatten())
}

/// Takes a command away: its answer has been read, or is not waited for any more. Gives the answer if it has come meanwhile.
pub async fn withdraw(pool: &PgPool, id: CommandId) -> Result<Option<String>> {
    let answer: Option<Option<String>> =
        sqlx::query_scalar("DELETE FROM commands WHERE id = $1 RETURNING answer")
            .bind(id.0)
            .fetch_optional(pool)
            .await?;
    Ok(answer.flatten())
}
