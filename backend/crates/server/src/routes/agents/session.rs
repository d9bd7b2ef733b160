//! `GET /api/v1/agents/{id}/session`

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use kandev_domain::usage::Cost;
use kandev_domain::{InstanceStatus, McpTransport, SessionKey};
use kandev_store::subagents::Subagent;
use kandev_store::usage::{self, TotalUsage};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use super::directories::DirectoryTold;
use crate::edge::extract::ApiPath;
use crate::error::ApiResult;
use crate::state::AppState;

/// What the agent last said about a session; each as the agent has it, null if it never said.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct SessionState {
    /// `acp` or `kandev`.
    #[schema(value_type = Option<String>)]
    protocol: Option<Box<RawValue>>,
    #[schema(value_type = Option<Object>)]
    agent_info: Option<Box<RawValue>>,
    #[schema(value_type = Option<Object>)]
    agent_capabilities: Option<Box<RawValue>>,
    #[schema(value_type = Option<Vec<Object>>)]
    auth_methods: Option<Box<RawValue>>,
    #[schema(value_type = Option<Object>)]
    modes: Option<Box<RawValue>>,
    /// The id of the mode it was last in.
    #[schema(value_type = Option<String>)]
    current_mode: Option<Box<RawValue>>,
    #[schema(value_type = Option<Object>)]
    models: Option<Box<RawValue>>,
    /// The id of the model it last had.
    #[schema(value_type = Option<String>)]
    current_model: Option<Box<RawValue>>,
    #[schema(value_type = Option<Vec<Object>>)]
    config_options: Option<Box<RawValue>>,
    #[schema(value_type = Option<Vec<Object>>)]
    commands: Option<Box<RawValue>>,
    #[schema(value_type = Option<Vec<Object>>)]
    pub(super) plan: Option<Box<RawValue>>,
    /// Of its context, and what it has cost in all, by the agent's own account.
    #[schema(value_type = Option<Object>)]
    usage: Option<Box<RawValue>>,
    /// What its turns used, whichever instance carried them; null if no turn told.
    total_usage: Option<TotalUsageView>,
    #[schema(value_type = Option<String>)]
    title: Option<Box<RawValue>>,
    /// When the session was last active, in the agent's words.
    #[schema(value_type = Option<String>)]
    updated_at: Option<Box<RawValue>>,
    /// What became of the MCP servers that it was to be given when it was last opened.
    #[schema(value_type = Option<Vec<McpServerTold>>)]
    pub(super) mcp_servers: Option<Box<RawValue>>,
    /// The same of additional directories.
    #[schema(value_type = Option<Vec<DirectoryTold>>)]
    pub(super) additional_directories: Option<Box<RawValue>>,
    /// The servers of the agent's tools (Koda).
    #[schema(value_type = Option<Object>)]
    mcp_state: Option<Box<RawValue>>,
    /// How full its context is (Koda, in its own words).
    #[schema(value_type = Option<Object>)]
    context_usage: Option<Box<RawValue>>,
    /// What became of its last compaction (Koda).
    #[schema(value_type = Option<Object>)]
    context_compaction: Option<Box<RawValue>>,
    /// The agent's subagents, in the order in which they were first heard of (Koda); the latest 256.
    subagents: Vec<SubagentView>,
    /// Settings of subagents, and the tools that they can be given.
    #[schema(value_type = Option<Object>)]
    subagent_settings: Option<Box<RawValue>>,
    /// Roles of subagents, and what stands in the way of others.
    #[schema(value_type = Option<Object>)]
    subagent_definitions: Option<Box<RawValue>>,
    /// The last marker of a turn that has to do with subagents: `started`, `finished`, `waiting`, `resumed`.
    #[schema(value_type = Option<Object>)]
    subagent_turn: Option<Box<RawValue>>,
}

/// A subagent, by the newest snapshot that the agent gave of it.
#[derive(Debug, Serialize, ToSchema)]
pub struct SubagentView {
    /// The agent's id of it.
    task_id: String,
    /// As the agent has it; fields of more than 8 KiB are left out, and named in `omitted`.
    #[schema(value_type = Object)]
    task: Option<Box<RawValue>>,
    /// The last that was told of what it does.
    #[schema(value_type = Option<Object>)]
    activity: Option<Box<RawValue>>,
}

impl From<Subagent> for SubagentView {
    fn from(subagent: Subagent) -> Self {
        let raw = |json| RawValue::from_string(json).ok();
        Self {
            task_id: subagent.task_id,
            task: raw(subagent.snapshot),
            activity: subagent.activity.and_then(raw),
        }
    }
}

/// What became of an MCP server. Its command, URL, environment and headers are not shown.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct McpServerTold {
    name: String,
    r#type: McpTransport,
    /// `handed` to the agent, or `skipped`.
    status: String,
    /// Why it was skipped.
    reason: Option<String>,
}

impl SessionState {
    /// Reads it.
    pub async fn load(state: &AppState, key: SessionKey) -> ApiResult<Self> {
        let facets = kandev_store::sessions::facets(&state.pool, key).await?;
        let usage = usage::of_session(&state.pool, key).await?;
        let subagents = kandev_store::subagents::list(&state.pool, key).await?;
        Ok(Self::of(facets, usage, subagents))
    }

    /// Out of facets and their JSON texts.
    pub(super) fn of(facets: Vec<(String, String)>, usage: TotalUsage, subagents: Vec<Subagent>) -> Self {
        let mut facets: BTreeMap<String, Box<RawValue>> = facets
            .into_iter()
            .filter_map(|(facet, value)| Some((facet, RawValue::from_string(value).ok()?)))
            .collect();
        let mut take = |facet: &str| facets.remove(facet);
        Self {
            protocol: take("protocol"),
            agent_info: take("agent_info"),
            agent_capabilities: take("agent_capabilities"),
            auth_methods: take("auth_methods"),
            modes: take("modes"),
            current_mode: take("current_mode"),
            models: take("models"),
            current_model: take("current_model"),
            config_options: take("config_options"),
            commands: take("commands"),
            plan: take("plan"),
            usage: take("usage"),
            total_usage: TotalUsageView::of(usage),
            title: take("title"),
            updated_at: take("updated_at"),
            mcp_servers: take("mcp_servers"),
            additional_directories: take("additional_directories"),
            mcp_state: take("mcp_state"),
            context_usage: take("context_usage"),
            context_compaction: take("context_compaction"),
            subagents: subagents.into_iter().map(Into::into).collect(),
            subagent_settings: take("subagent_settings"),
            subagent_definitions: take("subagent_definitions"),
            subagent_turn: take("subagent_turn"),
        }
    }
}

/// What the turns of a session used; null where none told.
#[derive(Debug, Serialize, ToSchema)]
pub struct TotalUsageView {
    /// How many turns told how many tokens they used.
    turns: i64,
    total_tokens: Option<i64>,
    input_tokens: Option<i64>,
    output_tokens: Option<i64>,
    thought_tokens: Option<i64>,
    cached_read_tokens: Option<i64>,
    cached_write_tokens: Option<i64>,
    /// By currency.
    costs: Vec<Cost>,
}

impl TotalUsageView {
    fn of(usage: TotalUsage) -> Option<Self> {
        (usage != TotalUsage::default()).then_some(Self {
            turns: usage.turns,
            total_tokens: usage.total_tokens,
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            thought_tokens: usage.thought_tokens,
            cached_read_tokens: usage.cached_read_tokens,
            cached_write_tokens: usage.cached_write_tokens,
            costs: usage.costs,
        })
    }
}

/// An instance's session.
#[derive(Debug, Serialize, ToSchema)]
pub struct AgentSession {
    instance_id: Uuid,
    task_id: String,
    /// The agent's id; null until it is established.
    session_id: Option<String>,
    status: InstanceStatus,
    #[serde(flatten)]
    state: SessionState,
}

/// The session of an instance
#[utoipa::path(
    get, path = "/api/v1/agents/{id}/session", tag = "agents",
    params(("id" = String, Path, description = "The instance")),
    responses((status = 200, body = AgentSession))
)]
pub async fn session(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
) -> ApiResult<Json<AgentSession>> {
    let instance = super::instance(&state, &id).await?;
    let said = match instance.session_key {
        Some(key) => SessionState::load(&state, key).await?,
        None => SessionState::default(),
    };
    Ok(Json(AgentSession {
        instance_id: instance.id.0,
        task_id: instance.task_id.to_string(),
        session_id: instance.session_id,
        status: instance.status,
        state: said,
    }))
}
