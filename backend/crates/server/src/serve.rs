//! `kandev serve`: from nothing to ready, and back in order.
//!
//! ```text
//! bind ─► database ─► schema ─► engine ─► serve ─┬─► drain ≤ 10 s ─► work ends ─► database ends
//!                                    first signal ┘    (a second signal cuts the waiting short)
//! ```

use std::future::IntoFuture as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::serve::ListenerExt as _;
use kandev_domain::SystemClock;
use kandev_orchestrator::retention::Retention;
use kandev_orchestrator::{Catalogue, Orchestrator, Parts, Sealer, Settings};
use kandev_runtime::ContainerRuntime;
use kandev_runtime::docker::DockerRuntime;
use sqlx::PgPool;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{Config, SecretKey};
use crate::database::{self, Database};
use crate::metrics::Metrics;
use crate::state::AppState;
use crate::{router, secret_key};

/// What open requests get to end by themselves.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// The two stages of stopping.
#[derive(Debug, Clone, Default)]
struct Stopping {
    /// No new work.
    gently: CancellationToken,
    /// No more waiting.
    firmly: CancellationToken,
}

/// Runs the service until SIGTERM or SIGINT.
pub async fn serve(config: Config, stop_agents: bool) -> Result<()> {
    let tasks = TaskTracker::new();
    let stopping = Stopping::default();
    tasks.spawn(listen_for_signals(stopping.clone())?);
    tasks.close();

    let address = config.listen.as_str().to_owned();
    let listener = TcpListener::bind(&address)
        .await
        .with_context(|| format!("cannot listen on {address}"))?;
    let key = secret_key::load_or_create(&config)?;
    let Some(database) = open_database(&config, &stopping).await? else {
        tracing::info!("kandev has stopped before it was ready");
        return Ok(());
    };
    let served = serve_with(config, key, listener, database.pool(), &stopping, stop_agents).await;
    database.close().await;
    // Ends the signal listener if we stop for another reason.
    stopping.gently.cancel();
    stopping.firmly.cancel();
    tasks.wait().await;
    tracing::info!("kandev has stopped");
    served
}

/// None if a signal came first. The start of a private PostgreSQL is not left half way unless a second one says so; what
/// is left then, the next start adopts.
async fn open_database(config: &Config, stopping: &Stopping) -> Result<Option<Database>> {
    tokio::select! {
        opened = Database::open(config) => opened.map(Some),
        () = stopping.gently.cancelled(), if config.database_url.is_some() => Ok(None),
        () = stopping.firmly.cancelled() => Ok(None),
    }
}

/// Everything that needs the database, which the caller closes afterwards whatever comes of it.
async fn serve_with(
    config: Config,
    key: SecretKey,
    listener: TcpListener,
    pool: &PgPool,
    stopping: &Stopping,
    stop_agents: bool,
) -> Result<()> {
    database::migrate(pool).await?;
    let runtime =
        DockerRuntime::connect(config.docker_host.as_deref()).context("the container engine's address")?;
    let runtime: Arc<dyn ContainerRuntime> = Arc::new(runtime);
    let orchestrator = Orchestrator::start(Parts {
        pool: pool.clone(),
        runtime: Arc::clone(&runtime),
        catalogue: Catalogue::load(config.agents_dir.as_deref()).context("the catalogue of agent types")?,
        settings: settings(&config),
        sealer: Sealer::new(*key.expose()),
        clock: Arc::new(SystemClock),
    });
    let sockets = TaskTracker::new();
    sockets.close();
    let state = AppState {
        config: Arc::new(config),
        pool: pool.clone(),
        runtime,
        orchestrator: Arc::clone(&orchestrator),
        metrics: Arc::new(metrics(pool, &orchestrator)),
        stopping: stopping.gently.clone(),
        sockets: sockets.clone(),
    };
    let address = listener.local_addr()?;
    let listener = listener.tap_io(|stream| {
        // Without it, small events wait for the acknowledgement of those before them.
        let _ = stream.set_nodelay(true);
    });
    let server = axum::serve(listener, router(state))
        .with_graceful_shutdown(stopping.gently.clone().cancelled_owned());
    if !stopping.gently.is_cancelled() {
        tracing::info!("kandev is ready at http://{address}");
    }
    let served = async {
        let ended = server.into_future().await;
        sockets.wait().await;
        ended
    };
    tokio::select! {
        ended = served => ended.context("serving ended")?,
        () = drain_limit(stopping) => tracing::warn!("connections that did not end are cut"),
    }
    orchestrator.shut_down(stop_agents).await;
    Ok(())
}

/// What the configuration says about every instance.
fn settings(config: &Config) -> Settings {
    Settings {
        owner: config.owner.clone(),
        server_name: config.server_name.clone(),
        lease: config.lease,
        workspace_roots: config.workspace_roots.clone(),
        data_dir: config.data_dir.clone(),
        max_line_bytes: config.max_line_bytes,
        upload_limit_bytes: config.upload_limit_bytes as u64,
        upload_total_bytes: config.upload_total_bytes.unwrap_or(u64::MAX),
        handshake_timeout: config.handshake_timeout,
        cancel_grace: config.cancel_grace,
        call_timeout: config.call_timeout,
        stop_grace: config.stop_grace,
        turn_timeout: config.turn_timeout,
        idle_timeout: config.idle_timeout,
        permission_timeout: config.permission_timeout,
        permission_default: config.permission_default,
        elicitation_timeout: config.elicitation_timeout,
        elicitation_default: config.elicitation_default,
        max_instances: config.max_instances,
        max_prompt_queue: config.max_prompt_queue,
        log_file_bytes: config.container_log_file_bytes as u64,
        log_files: u32::try_from(config.container_log_files).unwrap_or(u32::MAX),
        reconcile_interval: config.reconcile_interval,
        orphan_grace: config.orphan_grace,
        retention: Retention {
            max_age: config.retention_age,
            max_bytes: config.retention_max_bytes,
            interval: config.retention_interval,
        },
    }
}

async fn drain_limit(stopping: &Stopping) {
    stopping.gently.cancelled().await;
    tokio::select! {
        () = tokio::time::sleep(DRAIN_LIMIT) => {}
        () = stopping.firmly.cancelled() => {}
    }
}

fn listen_for_signals(stopping: Stopping) -> Result<impl Future<Output = ()> + Send> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        for stage in [&stopping.gently, &stopping.firmly] {
            tokio::select! {
                _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
                _ = interrupt.recv() => tracing::info!("SIGINT: stopping"),
                () = stage.cancelled() => {}
            }
            stage.cancel();
        }
    })
}

fn metrics(pool: &PgPool, orchestrator: &Orchestrator) -> Metrics {
    let metrics = Metrics::default();
    let removed = Arc::clone(orchestrator.removed());
    let pool = pool.clone();
    metrics.observe(
        "kandev_db_connections",
        "Connections of the pool, by state.",
        "gauge",
        move || {
            let idle = pool.num_idle();
            let used = (pool.size() as usize).saturating_sub(idle);
            [("idle", idle), ("used", used)]
                .map(|(state, n)| (vec![("state", state.to_owned())], n as f64))
                .to_vec()
        },
    );
    metrics.observe(
        "kandev_retention_removed_total",
        "What was removed from the journal, by unit.",
        "counter",
        move || {
            [
                ("rows", &removed.rows),
                ("events", &removed.events),
                ("bytes", &removed.bytes),
            ]
            .map(|(unit, n)| (vec![("unit", unit.to_owned())], n.load(Ordering::Relaxed) as f64))
            .to_vec()
        },
    );
    metrics
}
