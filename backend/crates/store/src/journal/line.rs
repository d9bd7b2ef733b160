//! A line of the agent's as it was written.

use bytes::Bytes;
use kandev_domain::InstanceId;
use sqlx::PgPool;

use super::read::JournalRow;
use crate::error::Result;

/// The line that an event came from; none if the event is not kept any more.
pub async fn line(pool: &PgPool, id: InstanceId, seq: i64) -> Result<Option<Bytes>> {
    let row = sqlx::query(
        "SELECT first_seq, last_seq, body FROM journal WHERE instance_id = $1 AND first_seq <= $2 \
         ORDER BY first_seq DESC LIMIT 1",
    )
    .bind(id.0)
    .bind(seq)
    .fetch_optional(pool)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let records = JournalRow::try_from(&row)?.records(id)?;
    let found = records.into_iter().find(|(number, _)| *number == seq);
    Ok(found.map(|(_, record)| record.line))
}
