//! Koda's differences from ACP. Source: Koda CLI's page on its ACP server.
//!
//! Not there: `koda/custom_models/*` and the subagent methods, which it does not advertise.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::acp::{self, Changed, change, place, session_of, text, with_load_fault};
use crate::agent::{Agent, Reply};
use crate::frame::{INVALID_PARAMS, INVALID_REQUEST, Id, NOT_FOUND, RESTORE_UNAVAILABLE, RpcError};
use crate::session::{Session, Settings};
use crate::settings::{check, commands_update, select};
use crate::sync::Answer;

/// The client's mark of a prompt, in `_meta`.
pub(crate) const ENTRY_MARK: &str = "com.kodadev.desktopEntryId";

const MODELS: [(&str, &str); 2] = [("koda-pro", "koda-pro"), ("koda-lite", "koda-lite")];
const EFFORTS: [(&str, &str); 3] = [("low", "low"), ("medium", "medium"), ("high", "high")];
const POLICIES: [(&str, &str); 4] = [
    ("read_only", "Read only"),
    ("default", "Default"),
    ("auto_edit", "Auto edit"),
    ("yolo", "Yolo"),
];

/// Handles any request but `initialize`.
pub(crate) fn handle(agent: &Arc<Agent>, id: Id, method: &str, params: &Value) {
    let reply = match method {
        "session/load" if agent.config.has("load") => with_load_fault(agent, load(agent, params)),
        "session/fork" if agent.config.has("fork") => {
            fork(agent, params).unwrap_or_else(|error| Err(error).into())
        }
        "session/compact" => compact(agent, params).unwrap_or_else(|error| Err(error).into()),
        "session/set_model" if agent.config.has("models") => change(agent, params, set_model),
        "session/set_reasoning_effort" if agent.config.has("models") => change(agent, params, set_effort),
        "session/set_config_option" => change(agent, params, set_config_option),
        "session/set_plan" => change(agent, params, |_, _, params| set_plan(params)),
        "session/resume" | "session/list" | "session/close" | "session/delete" => {
            acp::unknown_method(method).into()
        }
        _ => return acp::handle(agent, id, method, params),
    };
    agent.reply(id, reply);
}

/// The settings of a session that was just opened.
pub(crate) fn default_settings() -> Settings {
    Settings {
        model: MODELS[0].0.to_owned(),
        ..Settings::default()
    }
}

fn models(settings: &Settings) -> Value {
    let efforts: Vec<&str> = EFFORTS.iter().map(|(id, _)| *id).collect();
    let model = |(id, name): &(&str, &str)| {
        json!({
            "modelId": id, "name": name, "description": null, "imageSupport": true,
            "reasoning": {
                "supportedEfforts": efforts,
                "defaultEffort": "medium",
                "currentEffort": if *id == settings.model { settings.effort.as_str() } else { "medium" },
            },
        })
    };
    let available: Vec<Value> = MODELS.iter().map(model).collect();
    json!({"currentModelId": settings.model, "availableModels": available})
}

fn config_options(settings: &Settings) -> Value {
    json!([
        select("models", "Model", "model", &settings.model, &MODELS),
        select(
            "access_policy",
            "Access policy",
            "access_policy",
            &settings.access_policy,
            &POLICIES
        ),
    ])
}

/// The result of opening a session (a load's is null), and the updates that follow it.
pub(crate) fn opened(session: &Session) -> (Value, Vec<Value>) {
    let settings = session.settings();
    let mcp = mcp_state(session);
    let mut mcp_update = mcp.clone();
    mcp_update["sessionUpdate"] = json!("mcp_state_update");
    let title = session.with(|state| state.title.clone());
    let updates = vec![
        commands_update(),
        mcp_update,
        json!({"sessionUpdate": "session_info_update", "title": title}),
        json!({"sessionUpdate": "context_usage_update", "usedTokens": 0, "maxTokens": 200_000}),
    ];
    let result = if session.origin == "load" {
        Value::Null
    } else {
        json!({
            "models": models(&settings),
            "configOptions": config_options(&settings),
            "mcpState": mcp,
        })
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

fn load(agent: &Agent, params: &Value) -> Result<Reply, RpcError> {
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
    let (result, updates) = opened(&session);
    let mut reply = Reply::from(Ok(result));
    let line = |update| agent.update_line(&session.id, update);
    reply.after = updates.iter().map(line).collect();
    Ok(reply)
}

/// The branch begins before the prompt that bears the mark.
fn fork(agent: &Agent, params: &Value) -> Result<Reply, RpcError> {
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
    Ok(acp::fork_of(agent, cwd, servers, history))
}

fn compact(agent: &Agent, params: &Value) -> Result<Reply, RpcError> {
    let session = session_of(agent, params)?;
    if session.is_busy() {
        return Err(RpcError::new(INVALID_REQUEST, "a prompt is running"));
    }
    // Four bytes are a token, as a rule of thumb; the summary keeps a tenth.
    let bytes: usize = session.with(|state| state.history.iter().map(|turn| turn.text.len()).sum());
    let (before, after) = (bytes / 4, bytes / 40);
    let counts = json!({"originalTokenCount": before, "newTokenCount": after});
    let mut update = counts.clone();
    update["sessionUpdate"] = json!("context_compaction_update");
    update["status"] = json!("completed");
    let mut result = counts;
    result["compacted"] = json!(true);
    let mut reply = Reply::from(Ok(result));
    reply.before.push(agent.update_line(&session.id, &update));
    Ok(reply)
}

fn set_model(_: &Agent, settings: &mut Settings, params: &Value) -> Changed {
    let model = text(params, "modelId")?;
    check("model", model, &MODELS)?;
    model.clone_into(&mut settings.model);
    Ok((json!({}), Vec::new()))
}

fn set_effort(_: &Agent, settings: &mut Settings, params: &Value) -> Changed {
    let effort = text(params, "effort")?;
    check("effort", effort, &EFFORTS)?;
    effort.clone_into(&mut settings.effort);
    Ok((json!({"models": models(settings)}), Vec::new()))
}

fn set_config_option(_: &Agent, settings: &mut Settings, params: &Value) -> Changed {
    let (id, value) = (text(params, "configId")?, text(params, "value")?);
    match id {
        "models" => {
            check("model", value, &MODELS)?;
            value.clone_into(&mut settings.model);
        }
        "access_policy" => {
            check("access policy", value, &POLICIES)?;
            value.clone_into(&mut settings.access_policy);
        }
        other => {
            return Err(RpcError::new(
                INVALID_PARAMS,
                format!("unknown config option '{other}'"),
            ));
        }
    }
    Ok((json!({"configOptions": config_options(settings)}), Vec::new()))
}

fn set_plan(params: &Value) -> Changed {
    let entries = plan_entries(params)?;
    let update = json!({"sessionUpdate": "plan", "entries": entries});
    Ok((json!({}), vec![update]))
}

/// The entries with their defaults; fails where no plan can be made of them.
fn plan_entries(params: &Value) -> Answer {
    let invalid = |message: &str| RpcError::new(INVALID_PARAMS, message);
    let mut entries = params["entries"].clone();
    let list = entries.as_array_mut();
    let list = list.ok_or_else(|| invalid("params.entries must be an array"))?;
    let mut running = 0;
    for entry in list {
        if entry["content"]
            .as_str()
            .is_none_or(|text| text.trim().is_empty())
        {
            return Err(invalid("every entry needs content"));
        }
        if entry["status"].is_null() {
            entry["status"] = json!("pending");
        }
        if entry["priority"].is_null() {
            entry["priority"] = json!("medium");
        }
        running += usize::from(entry["status"] == "in_progress");
    }
    if running > 1 {
        return Err(invalid("more than one entry is in_progress"));
    }
    Ok(entries)
}
