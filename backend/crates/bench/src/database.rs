//! A database of its own for each server that is measured.

use anyhow::{Context as _, Result};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool};

/// A database, made new. [`Database::drop_it`] removes it.
pub(crate) struct Database {
    cluster: PgConnectOptions,
    name: String,
    /// For a server's `DATABASE_URL`.
    pub(crate) url: String,
    /// For us.
    pub(crate) pool: PgPool,
}

impl Database {
    /// An empty database.
    pub(crate) async fn create(cluster: &str, name: &str) -> Result<Self> {
        let options: PgConnectOptions = cluster.parse().context("the cluster's URL")?;
        let database = Self {
            cluster: options.clone(),
            name: name.to_owned(),
            url: with_path(cluster, name)?,
            pool: PgPoolOptions::new()
                .max_connections(2)
                .connect_lazy_with(options.database(name)),
        };
        database
            .execute(&format!("DROP DATABASE IF EXISTS \"{name}\""))
            .await?;
        database.execute(&format!("CREATE DATABASE \"{name}\"")).await?;
        Ok(database)
    }

    /// Removes it, whoever is connected.
    pub(crate) async fn drop_it(self) -> Result<()> {
        self.pool.close().await;
        let name = &self.name;
        self.execute(&format!("DROP DATABASE \"{name}\" WITH (FORCE)"))
            .await
    }

    async fn execute(&self, sql: &str) -> Result<()> {
        let mut connection = PgConnection::connect_with(&self.cluster).await?;
        sqlx::query(AssertSqlSafe(sql)).execute(&mut connection).await?;
        connection.close().await?;
        Ok(())
    }
}

/// What the cluster is, in words.
pub(crate) async fn describe(cluster: &str) -> Result<String> {
    let options: PgConnectOptions = cluster.parse().context("the cluster's URL")?;
    let mut connection = PgConnection::connect_with(&options).await?;
    let mut shown = Vec::new();
    for name in ["server_version", "fsync", "synchronous_commit", "shared_buffers"] {
        let value: String = sqlx::query_scalar("SELECT current_setting($1)")
            .bind(name)
            .fetch_one(&mut connection)
            .await?;
        shown.push(format!("{name} {value}"));
    }
    connection.close().await?;
    Ok(format!("PostgreSQL: {}", shown.join(", ")))
}

/// The URL of another database of the same cluster.
fn with_path(url: &str, name: &str) -> Result<String> {
    let (scheme, rest) = url.split_once("://").context("the cluster's URL has no scheme")?;
    let (rest, query) = rest
        .split_once('?')
        .map_or((rest, String::new()), |(rest, query)| (rest, format!("?{query}")));
    let host = rest.split('/').next().unwrap_or_default();
    Ok(format!("{scheme}://{host}/{name}{query}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_a_url_is_replaced() {
        for (url, other) in [
            (
                "postgresql:///postgres?host=/tmp&user=a",
                "postgresql:///b?host=/tmp&user=a",
            ),
            ("postgres://u:p@h:5432/x", "postgres://u:p@h:5432/b"),
            ("postgres://h", "postgres://h/b"),
        ] {
            assert_eq!(with_path(url, "b").unwrap(), other);
        }
    }
}
