//! Koda's differences from ACP. Source: Koda CLI's page on its ACP server.
//!
//! Tables of that page are lost. What they must have named and the text does not (the parameters of the subagent methods, the
//! form of a task's snapshot) is this agent's own; it invents no method.

pub(crate) mod models;
pub(crate) mod plan;
pub(crate) mod policy;
pub(crate) mod roles;
pub(crate) mod settings;
pub(crate) mod subagents;
pub(crate) mod watch;

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use serde_json::{Map, Value, json};

use crate::acp::{self, change, place, session_of, text, with_load_fault};
use crate::agent::{Agent, Reply};
use crate::frame::{
    AUTH_REQUIRED, INVALID_PARAMS, INVALID_REQUEST, Id, METHOD_NOT_FOUND, NOT_FOUND, RESTORE_UNAVAILABLE,
    RpcError,
};
use crate::session::{Session, Settings};
use crate::settings::commands_update;
use crate::sync::{Answer, lock};
use crate::turn::Run;

/// The client's mark of a prompt, in `_meta`.
pub(crate) const ENTRY_MARK: &str = "com.kodadev.desktopEntryId";
/// Why a turn was broken off, in `_meta` of its result.
pub(crate) const STOP_DETAIL: &str = "com.kodadev.stopDetail";

/// Roles that a client starts with a prompt, in `_meta`.
const ROLES: &str = "com.kodadev.subagentRoles";
/// How many at most.
const MAX_ROLES: usize = 4;
const KODA_AUTH: &str = "koda_auth";
/// Fields of `session/new` beside ACP's.
const GIVEN: [&str; 4] = ["systemPrompt", "allowedSkills", "coreTools", "excludeTools"];

/// What all sessions of the process share: the user's settings, of which there is one set.
#[derive(Default)]
pub(crate) struct Shared(Mutex<SharedState>);

#[derive(Default)]
pub(crate) struct SharedState {
    pub(crate) custom_models: Vec<models::Custom>,
    /// Chosen by `session/set_reasoning_effort`.
    pub(crate) effort: Option<String>,
    pub(crate) subagents: settings::SubagentSettings,
}

impl Shared {
    /// Reads or changes it; never held across output.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut SharedState) -> T) -> T {
        f(&mut lock(&self.0))
    }
}

/// Handles any request but `initialize`.
pub(crate) fn handle(agent: &Arc<Agent>, id: Id, method: &str, params: &Value) {
    let has = |capability: &str| agent.config.has(capability);
    let reply = match method {
        "authenticate" => authenticate(agent, params).into(),
        "session/load" if has("load") => with_load_fault(agent, load(agent, params)),
        "session/fork" if has("fork") => or_error(fork(agent, params)),
        "session/compact" if has("compact") => or_error(compact(agent, params)),
        "session/set_model" if has("models") => change(agent, params, models::set_model),
        "session/set_reasoning_effort" if has("models") => change(agent, params, models::set_effort),
        "session/set_config_option" => change(agent, params, policy::set_config_option),
        "session/set_mode" if has("modes") => change(agent, params, plan::set_mode),
        "session/set_plan" if has("plan") => or_error(plan::set_plan(agent, params)),
        "session/resume" | "session/list" | "session/close" | "session/delete" => {
            acp::unknown_method(method).into()
        }
        _ => {
            let other = method
                .strip_prefix("koda/custom_models/")
                .filter(|_| has("customModels"))
                .map(|rest| models::manage(agent, rest, params))
                .or_else(|| {
                    let rest = method.strip_prefix("session/subagent_")?;
                    Some(rest)
                        .filter(|_| has("subagents"))
                        .map(|rest| subagents::manage(agent, rest, params))
                });
            match other {
                Some(reply) => or_error(reply),
                None => return acp::handle(agent, id, method, params),
            }
        }
    };
    agent.reply(id, reply);
}

fn or_error(reply: Result<Reply, RpcError>) -> Reply {
    reply.unwrap_or_else(|error| Err(error).into())
}

/// Every error has details for people, and a reason for programs.
pub(crate) fn typed(error: &RpcError) -> RpcError {
    if error.data.is_some() {
        return error.clone();
    }
    let reason = match error.code {
        AUTH_REQUIRED => "auth_required",
        INVALID_PARAMS => "invalid_params",
        INVALID_REQUEST => "invalid_request",
        METHOD_NOT_FOUND => "method_not_found",
        _ => "agent_error",
    };
    error
        .clone()
        .with_data(json!({"details": error.message, "reason": reason}))
}

/// An error with a reason of its own.
pub(crate) fn refusal(code: i64, reason: &str, details: impl Into<String>) -> RpcError {
    let details = details.into();
    let data = json!({"details": details, "reason": reason});
    RpcError::new(code, details).with_data(data)
}

/// The settings of a session that was just opened.
pub(crate) fn default_settings(agent: &Agent) -> Settings {
    Settings {
        mode: "default".to_owned(),
        model: models::DEFAULT.to_owned(),
        effort: agent
            .koda
            .with(|shared| shared.effort.clone())
            .unwrap_or_else(|| "medium".to_owned()),
        access_policy: agent.config.approval_mode.clone(),
        custom_models: agent.koda.with(|shared| shared.custom_models.clone()),
        ..Settings::default()
    }
}

/// What `initialize` says beside ACP.
pub(crate) fn session_capabilities(agent: &Agent) -> Value {
    let mut capabilities = json!({});
    for (name, value) in [
        ("fork", json!({})),
        ("accessPolicy", json!({})),
        ("subagents", subagents::capability()),
    ] {
        if agent.config.has(name) {
            capabilities[name] = value;
        }
    }
    capabilities
}

pub(crate) fn auth_methods() -> Value {
    json!([
        {"id": KODA_AUTH, "name": "Koda Auth", "description": "Authenticate via Jarvis API"},
        {"id": "without_auth", "name": "Continue without authentication", "description": null},
    ])
}

/// With `MOCK_AUTH` only an account is good enough.
fn authenticate(agent: &Agent, params: &Value) -> Answer {
    match text(params, "methodId")? {
        KODA_AUTH => agent.authenticated.store(true, Ordering::SeqCst),
        "without_auth" => {}
        other => {
            return Err(RpcError::new(
                INVALID_PARAMS,
                format!("unknown auth method '{other}'"),
            ));
        }
    }
    Ok(Value::Null)
}

/// What a client says of a session beside ACP's fields.
pub(crate) fn given(params: &Value) -> Map<String, Value> {
    let given = GIVEN.iter().filter(|name| !params[**name].is_null());
    given
        .map(|name| ((*name).to_owned(), params[*name].clone()))
        .collect()
}

/// The result of opening a session (a load's is null), and the updates that follow it.
pub(crate) fn opened(agent: &Agent, session: &Session) -> (Value, Vec<Value>) {
    let settings = session.settings();
    let mcp = mcp_state(session);
    let mut mcp_update = mcp.clone();
    mcp_update["sessionUpdate"] = json!("mcp_state_update");
    let title = session.with(|state| state.title.clone());
    let mut updates = vec![
        commands_update(),
        mcp_update,
        json!({"sessionUpdate": "session_info_update", "title": title}),
        json!({"sessionUpdate": "context_usage_update", "usedTokens": 0, "maxTokens": 200_000}),
    ];
    updates.extend(subagents::at_start(agent, session));
    let result = if session.origin == "load" {
        Value::Null
    } else {
        let mut result = json!({
            "models": models::describe(&settings),
            "configOptions": policy::config_options(agent, &settings),
            "mcpState": mcp,
        });
        if agent.config.has("subagents") {
            result["subagents"] = subagents::block(agent, session);
        }
        result
    };
    (result, updates)
}

fn mcp_state(session: &Session) -> Value {
    let servers = session.mcp_servers.as_array();
    let servers: Vec<Value> = servers
        .into_iter()
        .flatten()
        .map(|server| json!({"name": server["name"], "status": "connected"}))
        .collect();
    json!({"discoveryState": "completed", "servers": servers})
}

fn unavailable(code: i64, what: &str, reason: &str) -> RpcError {
    let details = format!("{what} unavailable: {reason}");
    RpcError::new(code, format!("{what} unavailable"))
        .with_data(json!({"details": details, "reason": reason}))
}

fn load(agent: &Arc<Agent>, params: &Value) -> Result<Reply, RpcError> {
    let lost = |reason| unavailable(RESTORE_UNAVAILABLE, "session restore", reason);
    agent.check_auth()?;
    let (cwd, servers) = place(params)?;
    let id = text(params, "sessionId")?;
    if agent.store.is_none() {
        return Err(lost("store_disabled"));
    }
    let (was, history) = agent.past(id).map_err(|_| lost("not_found"))?;
    if was != cwd {
        return Err(lost("cwd_mismatch"));
    }
    let session = agent.open(id.to_owned(), "load", cwd, servers, history);
    session.with(|state| state.given = given(params));
    let (result, updates) = opened(agent, &session);
    let mut reply = Reply::from(Ok(result));
    let line = |update| agent.update_line(&session.id, update);
    reply.after = updates.iter().map(line).collect();
    Ok(reply)
}

/// The branch begins before the prompt that bears the mark.
fn fork(agent: &Arc<Agent>, params: &Value) -> Result<Reply, RpcError> {
    let lost = |reason| unavailable(NOT_FOUND, "session fork", reason);
    agent.check_auth()?;
    let (cwd, servers) = place(params)?;
    let mark = params["_meta"][ENTRY_MARK].as_str();
    let mark = mark.ok_or_else(|| lost("entry_missing"))?;
    if agent.store.is_none() {
        return Err(lost("store_disabled"));
    }
    let id = text(params, "sessionId")?;
    let (was, mut history) = agent.past(id).map_err(|_| lost("not_found"))?;
    if was != cwd {
        return Err(lost("cwd_mismatch"));
    }
    let boundary = history
        .iter()
        .position(|turn| turn.entry.as_deref() == Some(mark));
    history.truncate(boundary.ok_or_else(|| lost("entry_not_found"))?);
    let reply = acp::fork_of(agent, cwd, servers, history, given(params));
    Ok(reply)
}

fn compact(agent: &Agent, params: &Value) -> Result<Reply, RpcError> {
    let session = session_of(agent, params)?;
    if session.is_busy() {
        return Err(refusal(INVALID_REQUEST, "prompt_running", "a prompt is running"));
    }
    // Four bytes are a token, as a rule of thumb; the summary keeps a tenth.
    let bytes: usize = session.with(|state| state.history.iter().map(|turn| turn.text.len()).sum());
    let (before, after) = (bytes / 4, bytes / 40);
    let update = |status: &str| json!({"sessionUpdate": "context_compaction_update", "status": status});
    let mut done = update("completed");
    done["originalTokenCount"] = json!(before);
    done["newTokenCount"] = json!(after);
    let result = json!({"compacted": true, "originalTokenCount": before, "newTokenCount": after});
    let mut reply = Reply::from(Ok(result));
    for update in [update("in_progress"), done] {
        reply.before.push(agent.update_line(&session.id, &update));
    }
    Ok(reply)
}

/// The roles that a prompt starts, each once; what is no name is left out.
pub(crate) fn roles_of(meta: &Value) -> Vec<String> {
    let mut roles: Vec<String> = Vec::new();
    for name in meta[ROLES]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
    {
        if roles::is_name(name) && roles.len() < MAX_ROLES && !roles.iter().any(|other| other == name) {
            roles.push(name.to_owned());
        }
    }
    roles
}

/// What happens of a prompt before the model sees it: files that it links to are read, and its roles are started.
pub(crate) fn before_turn(run: &mut Run<'_>) -> Result<(), crate::turn::Halt> {
    for block in run.turn.prompt.clone() {
        let path = block["uri"].as_str().and_then(|uri| uri.strip_prefix("file://"));
        if let Some(path) = path.filter(|_| block["type"] == "resource_link") {
            let said = match crate::script::client::file(run, path) {
                Ok(text) => format!("{path}: {} bytes", text.len()),
                Err(problem) => format!("{path}: {problem}"),
            };
            run.report("file", &said);
        }
    }
    let text = run.turn.text();
    for role in run.turn.roles.clone() {
        let start = subagents::Start {
            role: Some(role),
            ..subagents::Start::of(&text)
        };
        subagents::call(run, &start);
    }
    subagents::boundary(run)
}
