//! The real router on a real port.

use std::sync::Arc;

use kandev::config::{Config, Environment, Flags};
use kandev::metrics::Metrics;
use kandev::{AppState, routes};
use kandev_domain::SystemClock;
use kandev_orchestrator::{Catalogue, Orchestrator, Parts, Sealer, Settings};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use utoipa_axum::router::OpenApiRouter;

use super::FakeRuntime;

/// A server of one test.
pub(crate) struct TestServer {
    pub(crate) address: String,
    pub(crate) client: reqwest::Client,
    pub(crate) runtime: Arc<FakeRuntime>,
    orchestrator: Arc<Orchestrator>,
    stopping: CancellationToken,
    tasks: TaskTracker,
}

impl TestServer {
    /// With settings as flags, and with routes besides the real ones.
    pub(crate) async fn start(pool: PgPool, flags: Flags, more: OpenApiRouter<AppState>) -> Self {
        let environment: Environment = [("HOME", "/nonexistent")].into_iter().collect();
        let config = Config::load(&flags, None, &environment).unwrap();
        let runtime = Arc::new(FakeRuntime::default());
        let stopping = CancellationToken::new();
        let orchestrator = Orchestrator::start(Parts {
            pool: pool.clone(),
            runtime: runtime.clone(),
            catalogue: Catalogue::load(None).unwrap(),
            settings: Settings {
                data_dir: config.data_dir.clone(),
                ..Settings::default()
            },
            sealer: Sealer::new([7; 32]),
            clock: Arc::new(SystemClock),
        });
        let state = AppState {
            config: Arc::new(config),
            pool,
            runtime: runtime.clone(),
            orchestrator: orchestrator.clone(),
            metrics: Arc::new(Metrics::default()),
            stopping: stopping.clone(),
            sockets: TaskTracker::new(),
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let tasks = TaskTracker::new();
        let router = routes::router_with(state, more);
        let stop = stopping.clone().cancelled_owned();
        tasks.spawn(async move {
            axum::serve(listener, router)
                .with_graceful_shutdown(stop)
                .await
                .unwrap();
        });
        tasks.close();
        Self {
            address,
            client: reqwest::Client::new(),
            runtime,
            orchestrator,
            stopping,
            tasks,
        }
    }

    /// The same over a database that is not there.
    pub(crate) async fn without_database(flags: Flags, more: OpenApiRouter<AppState>) -> Self {
        let nowhere = PgConnectOptions::new_without_pgpass()
            .socket("/nonexistent")
            .port(1);
        Self::start(PgPoolOptions::new().connect_lazy_with(nowhere), flags, more).await
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) async fn get(&self, path: &str) -> reqwest::Response {
        self.client.get(self.url(path)).send().await.unwrap()
    }

    pub(crate) async fn stop(self) {
        drop(self.client);
        self.stopping.cancel();
        self.tasks.wait().await;
        self.orchestrator.shut_down(true).await;
    }
}
