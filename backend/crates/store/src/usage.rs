//! What turns used, and what that adds up to.

use kandev_domain::usage::Cost;
use kandev_domain::{SessionKey, TurnId};
use sqlx::postgres::PgConnection;
use sqlx::{PgPool, Row};

use crate::error::{Result, StoreError};
use crate::pg_text;

/// What a turn has cost so far. It may grow after the turn's end.
#[derive(Debug, Clone)]
pub struct TurnCost {
    /// Which turn.
    pub id: TurnId,
    /// All of it.
    pub cost: Cost,
}

impl TurnCost {
    pub(crate) async fn apply(&self, connection: &mut PgConnection) -> Result<()> {
        let done = sqlx::query("UPDATE turns SET cost = $2, cost_currency = $3 WHERE id = $1")
            .bind(self.id.0)
            .bind(self.cost.amount)
            .bind(pg_text(&self.cost.currency).as_ref())
            .execute(connection)
            .await?;
        if done.rows_affected() == 1 {
            return Ok(());
        }
        Err(StoreError::NoSuchRow {
            table: "turns",
            row: self.id.to_string(),
        })
    }
}

/// The sum over the turns of a session, whichever instance carried them. None of what no turn told.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TotalUsage {
    /// How many turns told how many tokens they used.
    pub turns: i64,
    /// Of all kinds.
    pub total_tokens: Option<i64>,
    /// Sent to the model.
    pub input_tokens: Option<i64>,
    /// Made by it.
    pub output_tokens: Option<i64>,
    /// Made by it while it thought.
    pub thought_tokens: Option<i64>,
    /// Read from its provider's cache.
    pub cached_read_tokens: Option<i64>,
    /// Written to it.
    pub cached_write_tokens: Option<i64>,
    /// By currency.
    pub costs: Vec<Cost>,
}

/// Reads it.
pub async fn of_session(pool: &PgPool, key: SessionKey) -> Result<TotalUsage> {
    of_session_on(&mut *pool.acquire().await?, key).await
}

pub(crate) async fn of_session_on(connection: &mut PgConnection, key: SessionKey) -> Result<TotalUsage> {
    let sums: Vec<String> = COLUMNS
        .iter()
        .map(|column| format!("(CASE WHEN sum({column}) > {MAX} THEN {MAX} ELSE sum({column}) END)::bigint"))
        .collect();
    let sql = format!(
        "SELECT count(total_tokens), {} FROM turns WHERE session_key = $1",
        sums.join(", ")
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(key.0)
        .fetch_one(&mut *connection)
        .await?;
    let costs = sqlx::query(
        "SELECT cost_currency, sum(cost) FROM turns WHERE session_key = $1 AND cost IS NOT NULL \
         GROUP BY cost_currency ORDER BY cost_currency",
    )
    .bind(key.0)
    .fetch_all(connection)
    .await?;
    Ok(TotalUsage {
        turns: row.try_get(0)?,
        total_tokens: row.try_get(1)?,
        input_tokens: row.try_get(2)?,
        output_tokens: row.try_get(3)?,
        thought_tokens: row.try_get(4)?,
        cached_read_tokens: row.try_get(5)?,
        cached_write_tokens: row.try_get(6)?,
        costs: costs
            .iter()
            .map(|row| Ok(Cost::rounded(row.try_get(1)?, row.try_get(0)?)))
            .collect::<Result<_>>()?,
    })
}

const MAX: i64 = i64::MAX;
const COLUMNS: [&str; 6] = [
    "total_tokens",
    "input_tokens",
    "output_tokens",
    "thought_tokens",
    "cached_read_tokens",
    "cached_write_tokens",
];
