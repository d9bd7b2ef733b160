//! The database: the one that is configured, or a private one.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use crate::config::Config;
use crate::error::is_outage;
use crate::private_postgres::{Options, PrivatePostgres};

/// How long a database that is away at start is waited for.
const START_LIMIT: Duration = Duration::from_mins(1);
const FIRST_DELAY: Duration = Duration::from_millis(200);
const LAST_DELAY: Duration = Duration::from_secs(5);
/// How long a statement waits for a connection of the pool.
const ACQUIRE_LIMIT: Duration = Duration::from_secs(5);
/// How long the pool's connections get to end in order.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);
const MAX_CONNECTIONS: u32 = 20;

/// A pool, and the private server behind it, if any.
#[derive(Debug)]
pub struct Database {
    pool: PgPool,
    private: Option<PrivatePostgres>,
}

impl Database {
    /// Connects to `database_url`, waiting up to a minute for it, else starts the private PostgreSQL.
    pub async fn open(config: &Config) -> Result<Self> {
        let Some(url) = &config.database_url else {
            let private = PrivatePostgres::start(&Options::new(&config.data_dir)).await?;
            return Ok(Self {
                pool: pool(private.connect_options()),
                private: Some(private),
            });
        };
        let pool = pool(url.options());
        wait_for(&pool, START_LIMIT)
            .await
            .with_context(|| format!("the database at {url} cannot be used"))?;
        Ok(Self { pool, private: None })
    }

    /// The pool.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Ends the connections, and then the private server.
    pub async fn close(self) {
        // A connection that hangs is cut when the process ends.
        let _ = tokio::time::timeout(CLOSE_LIMIT, self.pool.close()).await;
        if let Some(private) = self.private {
            private.stop().await;
        }
    }
}

fn pool(options: &PgConnectOptions) -> PgPool {
    let options = options.clone().application_name("kandev");
    PgPoolOptions::new()
        .max_connections(MAX_CONNECTIONS)
        .acquire_timeout(ACQUIRE_LIMIT)
        .connect_lazy_with(options)
}

/// Brings the schema up to date.
pub async fn migrate(pool: &PgPool) -> Result<()> {
    kandev_store::migrate(pool)
        .await
        .context("the database's schema cannot be brought up to date")
}

/// Retries while the database is away; a refusal, such as a wrong password, is final.
async fn wait_for(pool: &PgPool, limit: Duration) -> Result<()> {
    let deadline = Instant::now() + limit;
    let mut delay = FIRST_DELAY;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let error = match tokio::time::timeout(left, sqlx::query("SELECT 1").execute(pool)).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) if is_outage(&error) => anyhow!(error),
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => anyhow!("no answer"),
        };
        if Instant::now() + delay >= deadline {
            return Err(error.context(format!("it did not answer within {} s", limit.as_secs())));
        }
        tracing::warn!(error = format!("{error:#}"), "the database does not answer yet");
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(LAST_DELAY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_database_that_is_away_is_given_up_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let nowhere = PgConnectOptions::new_without_pgpass().socket(dir.path()).port(1);
        let started = Instant::now();
        let error = wait_for(&pool(&nowhere), Duration::from_secs(1))
            .await
            .unwrap_err();
        assert!(format!("{error:#}").contains("within 1 s"), "{error:#}");
        assert!(started.elapsed() < Duration::from_secs(5));
    }
}
