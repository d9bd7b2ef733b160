//! Where ACP and the container engine meet: launches, the task that owns each instance, the journal, the reconciler.
//!
//! Start reading at [`Orchestrator::launch`], which ends in [`instance`]; what an instance decides goes through its
//! outbox into the [`journal`] before anything else sees it.

pub mod catalogue;
mod changes;
mod command;
mod fresh;
mod home;
pub mod instance;
pub mod journal;
pub mod launch;
mod lease;
mod orchestrator;
mod outbox;
pub mod reconcile;
pub mod retention;
pub mod secrets;
pub mod settings;
mod slots;
mod tail;
pub mod transcript;
mod wakes;
pub mod workspace;

use std::sync::Arc;

use kandev_domain::Clock;
use kandev_runtime::ContainerRuntime;
use kandev_store::PgPool;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use catalogue::Catalogue;
pub use changes::Changes;
pub use command::CommandError;
pub use fresh::Stored;
pub use instance::{
    Accepted, AnswerRefused, AskOutcome, AskRefused, Cancelled, Failure, PermissionAnswer, PromptRefused,
    Stopped, View,
};
pub use launch::{
    AdditionalDirectory, LaunchError, LaunchOptions, LaunchRequest, OnLost, Resources, ResumeRequest,
};
pub use orchestrator::{AnswerError, AskError, ElicitationError, FileError, Launched, Orchestrator, Parts};
pub use secrets::Sealer;
pub use settings::Settings;
pub use wakes::Wakes;

/// What every instance's task shares.
pub(crate) struct Shared {
    pub pool: PgPool,
    pub runtime: Arc<dyn ContainerRuntime>,
    pub journal: journal::Journal,
    pub clock: Arc<dyn Clock>,
    pub sealer: Sealer,
    pub settings: Settings,
    pub slots: slots::Slots,
    pub lease: lease::Lease,
    pub wakes: wakes::Wakes,
    pub tracker: TaskTracker,
    /// Every instance is to be let go, for another process to take up.
    pub leave: CancellationToken,
    /// Every instance is to end, since the server does.
    pub stop_agents: CancellationToken,
}
