//! `GET /api/v1/agents/types` and `GET /api/v1/agents/types/{id}`

use axum::Json;
use axum::extract::State;
use kandev_domain::{AgentType, McpServer};
use serde::Serialize;
use utoipa::ToSchema;

use crate::edge::extract::ApiPath;
use crate::error::{ApiError, ApiResult};
use crate::state::AppState;

/// The catalogue.
#[derive(Debug, Serialize, ToSchema)]
pub struct TypeList {
    types: Vec<AgentType>,
    /// How many there are.
    total: usize,
    /// Always null: the catalogue is one page.
    next_cursor: Option<String>,
}

/// Agent types
#[utoipa::path(get, path = "/api/v1/agents/types", tag = "agents", responses((status = 200, body = TypeList)))]
pub async fn list(State(state): State<AppState>) -> Json<TypeList> {
    let types: Vec<_> = state.orchestrator.catalogue().all().map(shown).collect();
    Json(TypeList {
        total: types.len(),
        types,
        next_cursor: None,
    })
}

/// One agent type
#[utoipa::path(
    get, path = "/api/v1/agents/types/{id}", tag = "agents",
    params(("id" = String, Path, description = "The type")),
    responses((status = 200, body = AgentType))
)]
pub async fn get(State(state): State<AppState>, ApiPath(id): ApiPath<String>) -> ApiResult<Json<AgentType>> {
    let found = state.orchestrator.catalogue().get(&id).map(shown);
    found
        .map(Json)
        .ok_or_else(|| ApiError::not_found("agent type", id))
}

/// Without the values of secret variables, and without what MCP servers are given.
fn shown(entry: &AgentType) -> AgentType {
    let mut entry = entry.clone();
    let secret: Vec<String> = entry
        .env
        .keys()
        .filter(|name| entry.is_secret(name))
        .cloned()
        .collect();
    for name in secret {
        entry.env.insert(name, "(secret)".to_owned());
    }
    entry.mcp_servers = entry.mcp_servers.iter().map(McpServer::shown).collect();
    entry
}
