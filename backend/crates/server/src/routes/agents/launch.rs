//! `POST /api/v1/agents/launch`

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use chrono::{DateTime, Utc};
use kandev_domain::content::Prompt;
use kandev_domain::elicitation::ElicitationDefault;
use kandev_domain::ids::InvalidTaskId;
use kandev_domain::mcp::{McpServer, McpServerFields};
use kandev_domain::permission::PermissionDefault;
use kandev_domain::status::InstanceLifecycle;
use kandev_domain::{InstanceId, InstanceStatus, TaskId};
use kandev_orchestrator::{Changes, LaunchOptions, LaunchRequest, OnLost, Resources, View};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use super::directories::{DirectoryBody, DirectoryTold};
use super::policy::{self, PolicyView};
use super::prompt::PromptContent;
use super::session::{McpServerTold, SessionState};
use super::view::{InstanceError, queue_position};
use crate::edge::extract::ApiJson;
use crate::error::{ApiError, ApiResult};
use crate::state::AppState;

/// What to launch.
#[derive(Debug, Deserialize, ToSchema)]
pub struct LaunchBody {
    /// An entry of the catalogue.
    agent_type: String,
    /// Absolute path of a directory on the engine's host, under a configured root.
    workspace_path: String,
    /// Made if absent or unknown. A task has at most one active instance.
    task_id: Option<String>,
    /// Added to the type's environment. `TASK_DESCRIPTION` is the first prompt when `prompt` is absent.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Who waits for a slot is served by priority, higher first.
    #[serde(default)]
    priority: i32,
    /// The caller's own.
    #[schema(value_type = Object)]
    #[serde(default)]
    metadata: Map<String, Value>,
    /// The first turn: a text, or ACP content blocks.
    #[schema(value_type = Option<PromptContent>)]
    prompt: Option<Value>,
    /// The agent's id of a session to go on with. A session has at most one active instance.
    session_id: Option<String>,
    /// MCP servers for the agent, beside its type's and in the place of those of the same name. What it does not take is not
    /// handed over, and told in the answer's `mcp_servers`.
    #[schema(value_type = Vec<McpServerFields>)]
    #[serde(default)]
    mcp_servers: Vec<McpServer>,
    /// Directories that belong to the agent's work beside its working directory: paths in the container, or objects with `path` and
    /// `source`, a directory of the host to be mounted there. The agent is told of them if it can take that.
    #[serde(default)]
    additional_directories: Vec<DirectoryBody>,
    /// The id of one of the agent's ways to authenticate, to be used before its session is opened, also after a resume. A launch
    /// that failed with `auth_required` lists them.
    auth_method: Option<String>,
    /// Session mode to set before the first turn.
    mode: Option<String>,
    /// Model to set before the first turn.
    model: Option<String>,
    /// Session options to set before the first turn.
    #[schema(value_type = Object)]
    #[serde(default)]
    config_options: BTreeMap<String, Value>,
    /// More parameters for the agent's `session/new`, `session/load` and the like, which are not of the protocol (Koda's
    /// `systemPrompt`, `allowedSkills`, `coreTools`, `excludeTools`; `_meta`).
    #[schema(value_type = Object)]
    #[serde(default)]
    session_params: Map<String, Value>,
    /// How permission requests are answered: `ask` (the default), `allow` or `reject`, or an object of these by kind of tool
    /// (`read`, `edit`, `delete`, `move`, `search`, `execute`, `think`, `fetch`, `switch_mode`, `other`), where `default` is for
    /// the rest.
    #[schema(value_type = Option<PolicyView>)]
    permission_policy: Option<Value>,
    /// How long a permission request waits for an answer, in place of the server's.
    permission_timeout_seconds: Option<u64>,
    /// What is answered then, in place of the server's.
    permission_default: Option<PermissionDefault>,
    /// How long an elicitation waits for an answer, in place of the server's.
    elicitation_timeout_seconds: Option<u64>,
    /// What is answered then, in place of the server's.
    elicitation_default: Option<ElicitationDefault>,
    /// In place of the type's limits.
    #[serde(default)]
    resources: ResourcesBody,
    /// Longest life, in place of the type's.
    timeout_seconds: Option<u64>,
    /// Longest idleness, in place of the server's.
    idle_timeout_seconds: Option<u64>,
    /// `one_shot` ends after its first turn.
    lifecycle: Option<InstanceLifecycle>,
    /// What to do when the session cannot be resumed.
    on_lost: Option<OnLostBody>,
    /// When to answer.
    #[serde(default)]
    wait: Wait,
}

/// Limits of the container.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct ResourcesBody {
    /// In MiB.
    memory_mb: Option<u64>,
    /// In cores.
    cpu_cores: Option<f64>,
    /// Processes and threads.
    pids_limit: Option<u64>,
}

/// What to do when a session cannot be resumed.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnLostBody {
    /// The instance fails with `session_lost`.
    Fail,
    /// A fresh session is started.
    New,
}

/// When a launch is answered.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// Once it has a container, or a place in the queue.
    #[default]
    None,
    /// Once its session is ready.
    Ready,
    /// Once its first turn has ended.
    Turn,
}

/// What was launched.
#[derive(Debug, Serialize, ToSchema)]
pub struct LaunchResponse {
    id: Uuid,
    task_id: String,
    agent_type: String,
    /// Null while it waits for a slot.
    container_id: Option<String>,
    /// `starting`, unless the caller waited.
    status: InstanceStatus,
    started_at: DateTime<Utc>,
    /// Place in the queue for a slot, from 1, while it waits for one.
    queue_position: Option<usize>,
    /// The agent's id of its session, once there is one.
    session_id: Option<String>,
    /// What became of the type's and the launch's MCP servers, once there is a session.
    #[schema(value_type = Option<Vec<McpServerTold>>)]
    mcp_servers: Option<Box<RawValue>>,
    /// What became of the additional directories, once there is a session.
    #[schema(value_type = Option<Vec<DirectoryTold>>)]
    additional_directories: Option<Box<RawValue>>,
    /// Why it failed while the caller waited.
    error: Option<InstanceError>,
}

/// Launch an agent
#[utoipa::path(
    post, path = "/api/v1/agents/launch", tag = "agents", request_body = LaunchBody,
    responses((status = 201, body = LaunchResponse, headers(("Location" = String, description = "The instance"))))
)]
pub async fn launch(
    State(state): State<AppState>,
    ApiJson(body): ApiJson<LaunchBody>,
) -> ApiResult<impl IntoResponse> {
    let wait = body.wait;
    let launched = state.orchestrator.launch(request(body)?).await?;
    let response = answer(&state, launched.id, wait).await?;
    let location = format!("/api/v1/agents/{}", launched.id);
    Ok((
        StatusCode::CREATED,
        [(header::LOCATION, location)],
        Json(response),
    ))
}

/// Waits as asked, and tells what is there then. A launch is `starting` whatever happened in the meantime, unless its
/// caller waited to see.
pub(super) async fn answer(state: &AppState, id: InstanceId, wait: Wait) -> ApiResult<LaunchResponse> {
    if !matches!(wait, Wait::None) {
        await_progress(state, id, wait).await?;
    }
    let instance = kandev_store::instances::get(&state.pool, id).await?;
    let instance = instance.ok_or_else(|| ApiError::not_found("agent instance", id))?;
    let session = match instance.session_key {
        Some(key) => SessionState::load(state, key).await?,
        None => SessionState::default(),
    };
    let status = match wait {
        Wait::None => InstanceStatus::Starting,
        Wait::Ready | Wait::Turn => instance.status,
    };
    Ok(LaunchResponse {
        id: id.0,
        task_id: instance.task_id.to_string(),
        queue_position: queue_position(state, &instance),
        error: InstanceError::of(&instance).filter(|_| status.is_final()),
        agent_type: instance.agent_type,
        container_id: instance.container_id,
        status,
        started_at: instance.created_at,
        session_id: instance.session_id,
        mcp_servers: session.mcp_servers,
        additional_directories: session.additional_directories,
    })
}

async fn await_progress(state: &AppState, id: InstanceId, wait: Wait) -> ApiResult<()> {
    let mut changes = Changes::of(&state.orchestrator, id);
    // Without a prompt there is no turn to wait for.
    let has_turn = kandev_store::turns::list(&state.pool, id, None, 1).await?.total > 0;
    let wait = if has_turn { wait } else { wait.at_most_ready() };
    let reached = |status: InstanceStatus, ended_turns: u32| match wait {
        Wait::None => true,
        _ if status.is_final() => true,
        Wait::Ready => status == InstanceStatus::Running,
        Wait::Turn => ended_turns > 0,
    };
    let shown = |view: &View| reached(view.status, view.ended_turns);
    while !state.stopping.is_cancelled() {
        changes.subscribe();
        if changes.view().is_some_and(|view| shown(&view)) || stands(state, id, &reached).await? {
            return Ok(());
        }
        tokio::select! {
            () = changes.wait_until(shown) => {}
            () = state.stopping.cancelled() => {}
        }
    }
    Ok(())
}

/// What the database says, which also knows of instances that other servers have taken up.
async fn stands(
    state: &AppState,
    id: InstanceId,
    reached: impl Fn(InstanceStatus, u32) -> bool,
) -> ApiResult<bool> {
    let Some(instance) = kandev_store::instances::get(&state.pool, id).await? else {
        return Ok(true);
    };
    let first = kandev_store::turns::list(&state.pool, id, None, 1).await?;
    let ended = first.items.first().is_some_and(|turn| turn.status.is_final());
    Ok(reached(instance.status, u32::from(ended)))
}

impl Wait {
    const fn at_most_ready(self) -> Self {
        match self {
            Self::Turn => Self::Ready,
            other => other,
        }
    }
}

fn request(body: LaunchBody) -> ApiResult<LaunchRequest> {
    let task_id = task_id_of(body.task_id)?;
    let (permission_policy, permission_rules) = policy::read(body.permission_policy)?;
    let metadata = super::super::tasks::storable("metadata", body.metadata)?;
    Ok(LaunchRequest {
        agent_type: body.agent_type,
        workspace_path: body.workspace_path,
        task_id,
        env: body.env,
        priority: body.priority,
        metadata,
        prompt: body.prompt.map(prompt_of).transpose()?,
        session_id: body.session_id,
        mcp_servers: body.mcp_servers,
        permission_policy,
        lifecycle: body.lifecycle.unwrap_or(InstanceLifecycle::Interactive),
        options: LaunchOptions {
            auth_method: body.auth_method,
            mode: body.mode,
            model: body.model,
            config_options: body.config_options,
            session_params: body.session_params,
            resources: Resources {
                memory_mb: body.resources.memory_mb,
                cpu_cores: body.resources.cpu_cores,
                pids_limit: body.resources.pids_limit,
            },
            timeout_seconds: body.timeout_seconds,
            idle_timeout_seconds: body.idle_timeout_seconds,
            permission_rules,
            permission_timeout_seconds: body.permission_timeout_seconds,
            permission_default: body.permission_default,
            elicitation_timeout_seconds: body.elicitation_timeout_seconds,
            elicitation_default: body.elicitation_default,
            on_lost: match body.on_lost {
                Some(OnLostBody::New) => OnLost::New,
                Some(OnLostBody::Fail) | None => OnLost::Fail,
            },
            additional_directories: body.additional_directories.into_iter().map(|d| d.0).collect(),
        },
        resumed_from: None,
    })
}

/// A task that a launch names.
pub(super) fn task_id_of(text: Option<String>) -> ApiResult<Option<TaskId>> {
    text.filter(|id| !id.is_empty())
        .map(|id| id.parse())
        .transpose()
        .map_err(|e: InvalidTaskId| ApiError::validation("task_id", &e.to_string()))
}

/// A prompt as a text or as content blocks.
pub(super) fn prompt_of(value: Value) -> ApiResult<Prompt> {
    match value {
        Value::String(text) => Ok(Prompt::text(&text)?),
        Value::Array(blocks) => Ok(Prompt::blocks(blocks)?),
        _ => Err(ApiError::validation(
            "prompt",
            "must be a text or an array of content blocks",
        )),
    }
}
