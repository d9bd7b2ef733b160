//! What handlers share.

use std::sync::Arc;

use kandev_orchestrator::Orchestrator;
use kandev_runtime::ContainerRuntime;
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::metrics::Metrics;

/// Cheap to clone.
#[derive(Clone)]
pub struct AppState {
    /// The effective configuration.
    pub config: Arc<Config>,
    /// The database.
    pub pool: PgPool,
    /// The container engine.
    pub runtime: Arc<dyn ContainerRuntime>,
    /// The instances.
    pub orchestrator: Arc<Orchestrator>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Cancelled when the server begins to stop; long-lived responses end on it.
    pub stopping: CancellationToken,
    /// The WebSockets, for which the end of the server waits: to it they are no requests any more.
    pub sockets: TaskTracker,
}
