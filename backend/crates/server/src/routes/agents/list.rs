//! `GET /api/v1/agents` and `GET /api/v1/agents/{id}`

use axum::Json;
use axum::extract::State;
use kandev_store::instances::{self, InstanceFilter};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::AgentInstance;
use crate::edge::extract::{ApiPath, ApiQuery};
use crate::error::ApiResult;
use crate::routes::page::{Paging, names, next_cursor};
use crate::state::AppState;

/// Which instances.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Filter {
    /// Only with one of these statuses, separated by commas.
    status: Option<String>,
    /// Only of this type.
    agent_type: Option<String>,
    /// Only of this task.
    task_id: Option<String>,
    /// At most so many; 1 to 500, 50 if absent.
    limit: Option<i64>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// Instances, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct AgentList {
    agents: Vec<AgentInstance>,
    /// How many match in all.
    total: i64,
    next_cursor: Option<String>,
}

/// List instances
#[utoipa::path(get, path = "/api/v1/agents", tag = "agents", params(Filter), responses((status = 200, body = AgentList)))]
pub async fn list(
    State(state): State<AppState>,
    ApiQuery(filter): ApiQuery<Filter>,
) -> ApiResult<Json<AgentList>> {
    let (limit, cursor) = Paging {
        limit: filter.limit,
        cursor: filter.cursor,
    }
    .resolve("agents")?;
    let filter = InstanceFilter {
        statuses: names("status", filter.status.as_deref())?,
        agent_type: filter.agent_type,
        task_id: filter.task_id,
    };
    let page = instances::list(&state.pool, &filter, cursor.as_ref(), limit).await?;
    Ok(Json(AgentList {
        agents: page
            .items
            .into_iter()
            .map(|i| AgentInstance::of(&state, i))
            .collect(),
        total: page.total,
        next_cursor: next_cursor("agents", page.next),
    }))
}

/// One instance
#[utoipa::path(
    get, path = "/api/v1/agents/{id}", tag = "agents",
    params(("id" = String, Path, description = "The instance")),
    responses((status = 200, body = AgentInstance))
)]
pub async fn get(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
) -> ApiResult<Json<AgentInstance>> {
    let instance = super::instance(&state, &id).await?;
    Ok(Json(AgentInstance::of(&state, instance)))
}
