//! Kandev's own protocol, version 1.0. Source: `kandev/AGENTS.md`, "Message Specifications".

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::acp::{text, unknown_method, with_load_fault};
use crate::agent::{Agent, Delay, Reply};
use crate::clock;
use crate::config::New;
use crate::frame::{self, AUTH_REQUIRED, INVALID_PARAMS, INVALID_REQUEST, Id, RpcError};
use crate::sync::{Signal, lock};
use crate::turn::{Halt, Turn};

/// The result of `initialize`.
pub(crate) fn initialize_result(agent: &Agent) -> Value {
    json!({
        "protocolVersion": "1.0",
        "serverInfo": {"name": "kandev-mock-agent", "version": env!("CARGO_PKG_VERSION")},
        "capabilities": {"streaming": true, "sessionResumption": agent.config.has("load")},
    })
}

/// Handles any request but `initialize`.
pub(crate) fn handle(agent: &Arc<Agent>, id: Id, method: &str, params: &Value) {
    let reply = match method {
        "session/new" => new(agent),
        "session/load" if agent.config.has("load") => with_load_fault(agent, load(agent, params)),
        "session/prompt" => match prompt(agent, &id, params) {
            Ok(turn) => return agent.admit(turn),
            Err(error) => Err(error).into(),
        },
        other => unknown_method(other).into(),
    };
    agent.reply(id, reply);
}

/// The protocol names no directory: the process's own it is.
fn cwd() -> String {
    let cwd = std::env::current_dir().unwrap_or_else(|_| "/".into());
    cwd.to_string_lossy().into_owned()
}

fn new(agent: &Arc<Agent>) -> Reply {
    let mut reply = match agent.config.new {
        New::Error(code) if code != AUTH_REQUIRED || !agent.authenticated.load(Ordering::SeqCst) => {
            return Err(RpcError::new(code, "MOCK_NEW says so")).into();
        }
        _ => {
            let session = agent.open(clock::new_id(), "new", cwd(), json!([]), Vec::new());
            Reply::from(Ok(json!({"sessionId": session.id})))
        }
    };
    match agent.config.new {
        New::Slow(ms) => reply.delay = Delay::Slow(ms),
        New::Never => reply.delay = Delay::Never,
        New::EarlyUpdates(_) => {
            let data = json!({"type": "content", "data": {"text": "early"}});
            reply.before.push(frame::notification("session/update", &data));
        }
        New::Normal | New::Ask | New::Error(_) => {}
    }
    reply
}

fn load(agent: &Arc<Agent>, params: &Value) -> Result<Reply, RpcError> {
    let id = text(params, "sessionId")?;
    let (_, history) = agent.past(id)?;
    let session = agent.open(id.to_owned(), "load", cwd(), json!([]), history);
    Ok(Reply::from(Ok(json!({"sessionId": session.id, "loaded": true}))))
}

fn prompt(agent: &Arc<Agent>, id: &Id, params: &Value) -> Result<Arc<Turn>, RpcError> {
    let message = params["message"].as_str();
    let message = message.ok_or_else(|| {
        RpcError::new(INVALID_PARAMS, "Invalid params")
            .with_data(json!("Missing required parameter: message"))
    })?;
    let session = lock(&agent.current).clone();
    let session = session.ok_or_else(|| RpcError::new(INVALID_REQUEST, "there is no session yet"))?;
    Ok(Arc::new(Turn {
        agent: Arc::clone(agent),
        session,
        id: id.clone(),
        prompt: vec![json!({"type": "text", "text": message})],
        entry: None,
        roles: Vec::new(),
        signal: Arc::new(Signal::default()),
    }))
}

/// The params of a `session/update` that say the same as an ACP update.
pub(crate) fn update_params(update: &Value) -> Value {
    let text = &update["content"]["text"];
    match update["sessionUpdate"].as_str() {
        Some("agent_message_chunk") => json!({"type": "content", "data": {"text": text}}),
        Some("agent_thought_chunk") => json!({"type": "content", "data": {"text": text, "thought": true}}),
        Some("tool_call" | "tool_call_update") => {
            let status = match update["status"].as_str() {
                Some("in_progress") => "running",
                Some(other) => other,
                None => "pending",
            };
            let args = &update["rawInput"];
            json!({"type": "toolCall", "data": {
                "toolCallId": update["toolCallId"],
                "toolName": update["title"],
                "status": status,
                "args": if args.is_null() { json!({}) } else { args.clone() },
            }})
        }
        Some(kind) => {
            let mut data = update.clone();
            if let Some(object) = data.as_object_mut() {
                object.remove("sessionUpdate");
            }
            json!({"type": kind, "data": data})
        }
        // What `/update` gives in this dialect.
        None => update.clone(),
    }
}

/// The update that ends a turn.
pub(crate) fn end_line(session_id: &str, ending: &Halt, summary: &str) -> String {
    let params = match ending {
        Halt::Error(error) => json!({"type": "error", "data": {
            "message": error.message,
            "details": format!("code {}", error.code),
        }}),
        Halt::Cancelled => complete(session_id, false, "cancelled"),
        Halt::Stop(reason) if reason == "end_turn" => complete(session_id, true, summary),
        Halt::Stop(reason) => complete(session_id, false, reason),
    };
    frame::notification("session/update", &params)
}

fn complete(session_id: &str, success: bool, summary: &str) -> Value {
    json!({"type": "complete", "data": {"sessionId": session_id, "success": success, "summary": summary}})
}
