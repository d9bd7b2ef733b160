//! All routes, and the OpenAPI document that is registered together with them.

pub mod agents;
mod all_events;
pub mod elicitations;
mod failures;
pub mod health;
pub mod metrics;
pub mod openapi;
pub mod page;
pub mod permissions;
pub mod ready;
pub mod requests;
pub mod root;
pub mod sessions;
mod socket;
mod sse;
pub mod tasks;
pub mod uploads;

use axum::Router;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::edge::{self, time_limit};
use crate::state::AppState;

/// Routes under the usual time limit. A new group of routes is merged in here.
fn timed() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(root::root))
        .routes(routes!(health::health))
        .routes(routes!(ready::ready))
        .routes(routes!(metrics::metrics))
        .routes(routes!(openapi::document))
        .merge(agents::timed())
        .merge(all_events::routes())
        .merge(elicitations::timed())
        .merge(permissions::timed())
        .merge(sessions::timed())
        .merge(tasks::routes())
        .merge(uploads::routes())
}

/// Routes that wait by design (`wait: turn`, streams): their handlers bound themselves.
fn untimed() -> OpenApiRouter<AppState> {
    agents::untimed()
        .merge(elicitations::untimed())
        .merge(permissions::untimed())
        .merge(sessions::untimed())
}

/// Everything the server serves, with the edge around it.
pub fn router(state: AppState) -> Router {
    router_with(state, OpenApiRouter::new())
}

/// [`router`] with more routes under the time limit; the tests bring routes that misbehave.
pub fn router_with(state: AppState, more: OpenApiRouter<AppState>) -> Router {
    let limit = axum::middleware::from_fn_with_state(state.clone(), time_limit::limit_time);
    let timed = timed().merge(more).route_layer(limit);
    let (routes, _) = timed.merge(untimed()).split_for_parts();
    edge::wrap(
        routes.merge(openapi::human_page()).with_state(state.clone()),
        &state,
    )
}

/// The OpenAPI document of all routes.
pub fn document() -> utoipa::openapi::OpenApi {
    openapi::complete(timed().merge(untimed()).into_openapi())
}
