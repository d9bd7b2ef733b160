//! One database per test.

use std::str::FromStr as _;

use kandev_domain::InstanceId;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, PgPool};

/// A new, empty database on the server of `DATABASE_URL`. Dropping it drops the database too.
pub(crate) struct TestDatabase {
    name: String,
    url: String,
    base: String,
}

impl TestDatabase {
    pub(crate) async fn create() -> Self {
        Self::create_on(base_url()).await
    }

    /// On a server of the test's own.
    pub(crate) async fn create_on(base: String) -> Self {
        let name = format!("kandev_test_{}", InstanceId::generate().0.simple());
        execute(&base, format!("CREATE DATABASE {name}")).await;
        Self {
            url: with_database(&base, &name),
            name,
            base,
        }
    }

    /// For `DATABASE_URL`.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The database goes away: who is in is thrown out, and nobody gets in.
    pub(crate) async fn go_away(&self) {
        execute(
            &self.base,
            format!("ALTER DATABASE {} ALLOW_CONNECTIONS false", self.name),
        )
        .await;
        let out = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'",
            self.name
        );
        execute(&self.base, out).await;
    }

    pub(crate) async fn come_back(&self) {
        execute(
            &self.base,
            format!("ALTER DATABASE {} ALLOW_CONNECTIONS true", self.name),
        )
        .await;
    }

    /// It takes no writes any more, or does again; who is in is thrown out, since the setting is a session's.
    pub(crate) async fn read_only(&self, it_is: bool) {
        let base = base_url();
        let setting = format!(
            "ALTER DATABASE {} SET default_transaction_read_only = {it_is}",
            self.name
        );
        execute(&base, setting).await;
        let out = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'",
            self.name
        );
        execute(&base, out).await;
    }

    pub(crate) async fn pool(&self) -> PgPool {
        PgPool::connect(&self.url).await.unwrap()
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let statement = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        let base = self.base.clone();
        // A runtime of its own, since the test's may be on its way down.
        let dropper = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(execute(&base, statement));
        });
        assert!(
            dropper.join().is_ok() || std::thread::panicking(),
            "{} is left behind",
            self.name
        );
    }
}

fn base_url() -> String {
    std::env::var("DATABASE_URL").expect("these tests need DATABASE_URL (`make test` sets it)")
}

async fn execute(url: &str, statement: String) {
    let mut connection = PgConnectOptions::from_str(url).unwrap().connect().await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement))
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
}

/// The same URL with another path.
fn with_database(url: &str, name: &str) -> String {
    let (head, query) = url
        .split_once('?')
        .map_or((url, None), |(head, query)| (head, Some(query)));
    let (scheme, rest) = head.split_once("://").unwrap();
    let authority = rest.split('/').next().unwrap();
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("{scheme}://{authority}/{name}{query}")
}

#[tokio::test]
async fn a_test_database_is_dropped() {
    let database = TestDatabase::create().await;
    let url = database.url().to_owned();
    let pool = database.pool().await;
    drop(database);
    drop(pool);
    let error = PgConnectOptions::from_str(&url)
        .unwrap()
        .connect()
        .await
        .unwrap_err();
    assert!(error.to_string().contains("does not exist"), "{error}");
}
