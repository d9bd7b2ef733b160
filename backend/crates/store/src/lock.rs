//! One server per deployment, until several can share one.

use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{Connection, PgPool};

use crate::error::Result;

/// Sets kandev's locks apart from other users' of the database.
const CLASS: i32 = 0x6b61_6e64;
/// How often a lock that is taken is tried again.
const RETRY: Duration = Duration::from_millis(250);

/// Held as long as its connection lives; a server that dies gives it back with its connection.
#[derive(Debug)]
pub struct DeploymentLock(#[expect(dead_code, reason = "held, not used")] PgConnection);

/// Takes the lock of a deployment, waiting up to `patience` for another server to end. None if it does not.
pub async fn take(pool: &PgPool, owner: &str, patience: Duration) -> Result<Option<DeploymentLock>> {
    let options = (*pool.connect_options()).clone().application_name("kandev-lock");
    let mut connection = PgConnection::connect_with(&options).await?;
    let attempts = patience.as_millis() / RETRY.as_millis();
    for attempt in 0..=attempts {
        let taken: bool = sqlx::query_scalar("SELECT pg_try_advisory_lock($1, hashtext($2))")
            .bind(CLASS)
            .bind(owner)
            .fetch_one(&mut connection)
            .await?;
        if taken {
            return Ok(Some(DeploymentLock(connection)));
        }
        if attempt < attempts {
            tokio::time::sleep(RETRY).await;
        }
    }
    Ok(None)
}
