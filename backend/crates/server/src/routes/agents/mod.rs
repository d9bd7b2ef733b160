//! `/api/v1/agents`: one file a route.

pub mod asks;
pub mod cancel;
mod directories;
pub mod events;
pub mod launch;
pub mod list;
pub mod logs;
mod policy;
pub mod prompt;
pub mod resume;
pub mod session;
mod snapshot;
pub mod status;
pub mod stop;
mod stream;
pub mod turns;
pub mod types;
mod view;
pub mod ws;

use std::time::Duration;

use kandev_domain::InstanceId;
use kandev_orchestrator::CommandError;
use kandev_store::instances::{self, Instance};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::error::{ApiError, ApiResult};
use crate::state::AppState;

pub use view::{AgentInstance, InstanceError};

/// Routes under the usual time limit, which is about the head of a response: that of a stream comes at once.
pub fn timed() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list::list))
        .routes(routes!(types::list))
        .routes(routes!(types::get))
        .routes(routes!(list::get))
        .routes(routes!(status::status))
        .routes(routes!(logs::logs))
        .routes(routes!(session::session))
        .routes(routes!(cancel::cancel))
        .routes(routes!(turns::list))
        .routes(routes!(turns::get))
        .routes(routes!(events::events))
        .routes(routes!(ws::ws))
}

/// Routes that wait for an engine or an agent.
pub fn untimed() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(launch::launch))
        .routes(routes!(prompt::prompt))
        .routes(routes!(stop::stop))
        .routes(routes!(stop::delete))
        .routes(routes!(resume::resume))
        .merge(asks::untimed())
}

/// The id in a path; one that is none names nothing.
pub(super) fn instance_id(text: &str) -> ApiResult<InstanceId> {
    text.parse()
        .map_err(|_| ApiError::not_found("agent instance", text))
}

/// How long a look at the database may take.
const STORE_LIMIT: Duration = Duration::from_secs(15);

/// The instance that a path names.
pub async fn instance(state: &AppState, text: &str) -> ApiResult<Instance> {
    let id = instance_id(text)?;
    kandev_store::within(STORE_LIMIT, instances::get(&state.pool, id))
        .await?
        .ok_or_else(|| ApiError::not_found("agent instance", text))
}

/// What became of a command to an instance: a caller learns that there is none with the id as everywhere.
pub(super) fn commanded<T>(result: Result<T, CommandError>, text: &str) -> ApiResult<T> {
    result.map_err(|error| match error {
        CommandError::NotFound => ApiError::not_found("agent instance", text),
        error => error.into(),
    })
}
