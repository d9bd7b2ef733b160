//! The ACP v1 methods. Shapes follow the official schema, version 1.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::agent::{Agent, Delay, Reply};
use crate::clock;
use crate::config::{Auth, Dialect, Load, New, Set};
use crate::frame::{AUTH_REQUIRED, INVALID_PARAMS, INVALID_REQUEST, Id, METHOD_NOT_FOUND, RpcError};
use crate::koda;
use crate::out::complain;
use crate::session::{Session, Settings};
use crate::settings;
use crate::store::StoredTurn;
use crate::sync::{Answer, Signal};
use crate::turn::{Turn, message_chunk, prompt_text};

/// The one auth method of `MOCK_AUTH`.
const AUTH_METHOD: &str = "mock_login";
/// What it wants to be given, with `MOCK_AUTH=env`.
const AUTH_VARIABLE: &str = "MOCK_LOGIN_TOKEN";
/// Update kinds that a load sends again.
const REPLAYED: [&str; 5] = [
    "agent_message_chunk",
    "agent_thought_chunk",
    "tool_call",
    "tool_call_update",
    "plan",
];

/// Handles any request but `initialize`.
pub(crate) fn handle(agent: &Arc<Agent>, id: Id, method: &str, params: &Value) {
    let reply = match method {
        "authenticate" => authenticate(agent, params).into(),
        "logout" if agent.config.has("logout") => Ok(logout(agent)).into(),
        "session/new" if agent.config.new == New::Ask => return ask_and_open(agent, id, params),
        "session/new" => new(agent, params),
        "session/load" if agent.config.has("load") => load(agent, params),
        "session/resume" if agent.config.has("resume") => resume(agent, params),
        "session/fork" if agent.config.has("fork") => fork(agent, params).unwrap_or_else(|e| Err(e).into()),
        "session/list" if agent.config.has("list") => list(agent, params).into(),
        "session/close" if agent.config.has("close") => close(agent, params).into(),
        "session/delete" if agent.config.has("delete") => delete(agent, params).into(),
        "_mock/echo" => Ok(params.clone()).into(),
        "session/set_mode" if agent.config.has("modes") => change(agent, params, settings::set_mode),
        "session/set_model" if agent.config.has("models") => change(agent, params, settings::set_model),
        "session/set_config_option" if agent.config.has("configOptions") => {
            change(agent, params, settings::set_config_option)
        }
        "session/prompt" => match prompt(agent, &id, params) {
            Ok(turn) => return agent.admit(turn),
            Err(error) => Err(error).into(),
        },
        other => unknown_method(other).into(),
    };
    agent.reply(id, reply);
}

pub(crate) fn no_method(method: &str) -> RpcError {
    RpcError::new(METHOD_NOT_FOUND, format!("Method not found: {method}"))
}

pub(crate) fn unknown_method(method: &str) -> Answer {
    Err(no_method(method))
}

/// A string of the params.
pub(crate) fn text<'a>(params: &'a Value, field: &str) -> Result<&'a str, RpcError> {
    let found = params[field].as_str();
    found.ok_or_else(|| RpcError::new(INVALID_PARAMS, format!("params.{field} must be a string")))
}

/// The session that the params name.
pub(crate) fn session_of(agent: &Agent, params: &Value) -> Result<Arc<Session>, RpcError> {
    agent.session(text(params, "sessionId")?)
}

/// The result of `initialize`, for koda too.
pub(crate) fn initialize_result(agent: &Agent) -> Value {
    let has = |name: &str| agent.config.has(name);
    let koda = agent.config.dialect == Dialect::Koda;
    let mut session_capabilities = json!({});
    for name in [
        "list",
        "resume",
        "close",
        "delete",
        "additionalDirectories",
        "fork",
    ] {
        if has(name) {
            session_capabilities[name] = json!({});
        }
    }
    if koda {
        session_capabilities = koda::session_capabilities(agent);
    }
    let auth_methods = if koda {
        koda::auth_methods()
    } else {
        auth_methods(agent.config.auth)
    };
    // Koda's page knows no logout.
    let auth = if has("logout") && !koda {
        json!({"logout": {}})
    } else {
        json!({})
    };
    json!({
        "protocolVersion": 1,
        "agentCapabilities": {
            "loadSession": has("load") && (!koda || agent.store.is_some()),
            "promptCapabilities": {
                "image": has("image"),
                "audio": has("audio"),
                "embeddedContext": has("embeddedContext"),
            },
            "mcpCapabilities": {"http": has("http"), "sse": has("sse")},
            "sessionCapabilities": session_capabilities,
            "auth": auth,
        },
        "agentInfo": {
            "name": "kandev-mock-agent",
            "title": "kandev's mock agent",
            "version": env!("CARGO_PKG_VERSION"),
        },
        "authMethods": auth_methods,
    })
}

fn auth_methods(auth: Auth) -> Value {
    let mut method = json!({"id": AUTH_METHOD, "name": "Mock login", "description": "Always succeeds"});
    match auth {
        Auth::None => return json!([]),
        Auth::Login => {}
        Auth::EnvVar => {
            method["type"] = json!("env_var");
            method["vars"] = json!([{"name": AUTH_VARIABLE, "label": "Token"}]);
            // Not what a client that offers no terminal should be shown, but what some agents do.
            let program = json!({"id": "mock_program", "name": "Mock login program", "type": "terminal"});
            return json!([program, method]);
        }
    }
    json!([method])
}

/// What is open goes on; nothing else is opened until the next login.
fn logout(agent: &Agent) -> Value {
    agent.authenticated.store(false, Ordering::SeqCst);
    json!({})
}

fn authenticate(agent: &Agent, params: &Value) -> Answer {
    let method = text(params, "methodId")?;
    if agent.config.auth == Auth::None || method != AUTH_METHOD {
        return Err(RpcError::new(
            INVALID_PARAMS,
            format!("unknown auth method '{method}'"),
        ));
    }
    agent.authenticated.store(true, Ordering::SeqCst);
    Ok(json!({}))
}

/// The directory and MCP servers that open a session; ACP requires both.
pub(crate) fn place(params: &Value) -> Result<(String, Value), RpcError> {
    let cwd = text(params, "cwd")?;
    if !Path::new(cwd).is_absolute() {
        return Err(RpcError::new(
            INVALID_PARAMS,
            "params.cwd must be an absolute path",
        ));
    }
    let servers = params["mcpServers"].clone();
    if !servers.is_array() {
        return Err(RpcError::new(
            INVALID_PARAMS,
            "params.mcpServers must be an array",
        ));
    }
    Ok((cwd.to_owned(), servers))
}

/// The result of opening a session, and the lines that follow it.
fn opened(agent: &Agent, session: &Session) -> Reply {
    let (result, updates) = match agent.config.dialect {
        Dialect::Koda => koda::opened(agent, session),
        _ => (
            settings::describe(agent, session),
            vec![settings::commands_update()],
        ),
    };
    let mut reply = Reply::from(Ok(result));
    reply.after = update_lines(agent, session, &updates);
    reply
}

fn update_lines(agent: &Agent, session: &Session, updates: &[Value]) -> Vec<String> {
    let line = |update| agent.update_line(&session.id, update);
    updates.iter().map(line).collect()
}

fn new(agent: &Arc<Agent>, params: &Value) -> Reply {
    let opened_new = || {
        agent.check_auth()?;
        if let New::Error(code) = agent.config.new
            && !(code == AUTH_REQUIRED && agent.authenticated.load(Ordering::SeqCst))
        {
            return Err(RpcError::new(code, "MOCK_NEW says so"));
        }
        let (cwd, servers) = place(params)?;
        Ok(agent.open(clock::new_id(), "new", cwd, servers, Vec::new()))
    };
    if agent.config.new == New::Never {
        let mut reply = Reply::from(Ok(Value::Null));
        reply.delay = Delay::Never;
        return reply;
    }
    let session = match opened_new() {
        Ok(session) => session,
        Err(error) => return Err(error).into(),
    };
    session.with(|state| state.given = koda::given(params));
    let mut reply = with_session_id(opened(agent, &session), &session);
    match agent.config.new {
        New::Slow(ms) => reply.delay = Delay::Slow(ms),
        New::EarlyUpdates(ms) => {
            let early = agent.update_line(&session.id, &message_chunk("early"));
            reply.before = std::mem::take(&mut reply.after);
            reply.before.push(early);
            reply.pause = Duration::from_millis(ms / reply.before.len() as u64);
        }
        New::Normal | New::Ask | New::Never | New::Error(_) => {}
    }
    reply
}

/// Asks the user something before there is a session, in the name of the request for one.
fn ask_and_open(agent: &Arc<Agent>, id: Id, params: &Value) {
    let (opener, params) = (Arc::clone(agent), params.clone());
    let spawned = agent.workers.spawn("ask", move || {
        let request: Value = serde_json::from_str(&id.0).unwrap_or_default();
        let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
        let question =
            json!({"requestId": request, "mode": "form", "message": "Who are you?", "requestedSchema": schema});
        let signal = Arc::new(Signal::default());
        let asked = opener.request(None, "elicitation/create", &question, &signal);
        let reply = match signal.wait_answer(&asked, None, Duration::ZERO) {
            Some(Ok(answer)) if answer["action"] == "accept" => new(&opener, &params),
            _ => Err(RpcError::new(INVALID_PARAMS, "nobody said who they are")).into(),
        };
        opener.forget(&signal);
        opener.reply(id, reply);
    });
    if let Err(e) = spawned {
        complain(&format!("nobody can be asked: {e}"));
    }
}

fn with_session_id(mut reply: Reply, session: &Session) -> Reply {
    if let Ok(result) = &mut reply.outcome {
        result["sessionId"] = json!(session.id);
    }
    reply
}

/// What `MOCK_LOAD` leaves of a load or resume.
pub(crate) fn with_load_fault(agent: &Agent, reply: Result<Reply, RpcError>) -> Reply {
    let mut reply = reply.unwrap_or_else(|error| Err(error).into());
    match agent.config.load {
        Load::Normal | Load::State | Load::Replay(..) => {}
        Load::Slow(ms) => reply.delay = Delay::Slow(ms),
        Load::Never => reply.delay = Delay::Never,
        Load::Error(code) => reply = Err(RpcError::new(code, "MOCK_LOAD says so")).into(),
    }
    reply
}

fn load(agent: &Arc<Agent>, params: &Value) -> Reply {
    let loaded = || {
        agent.check_auth()?;
        let (cwd, servers) = place(params)?;
        let id = text(params, "sessionId")?;
        let (_, history) = agent.past(id)?;
        let updates = match agent.config.load {
            Load::Replay(n, _) => made_up_replay(n),
            Load::State => [replay(&history), settings::restored_updates()].concat(),
            _ => replay(&history),
        };
        let session = agent.open(id.to_owned(), "load", cwd, servers, history);
        let mut reply = opened(agent, &session);
        reply.before = update_lines(agent, &session, &updates);
        match agent.config.load {
            Load::Replay(_, ms) => reply.pause = Duration::from_millis(ms),
            // All that is told has been told before.
            Load::State => reply.after.clear(),
            _ => {}
        }
        Ok(reply)
    };
    with_load_fault(agent, loaded())
}

fn resume(agent: &Arc<Agent>, params: &Value) -> Reply {
    let resumed = || {
        agent.check_auth()?;
        // Unlike load, resume may leave out the MCP servers.
        let mut params = params.clone();
        if params["mcpServers"].is_null() {
            params["mcpServers"] = json!([]);
        }
        let (cwd, servers) = place(&params)?;
        let id = text(&params, "sessionId")?;
        let (_, history) = agent.past(id)?;
        let session = agent.open(id.to_owned(), "resume", cwd, servers, history);
        let mut reply = opened(agent, &session);
        // Not what the protocol says, but what some agents do.
        if let Load::Replay(n, ms) = agent.config.load {
            reply.before = update_lines(agent, &session, &made_up_replay(n));
            reply.pause = Duration::from_millis(ms);
        }
        Ok(reply)
    };
    with_load_fault(agent, resumed())
}

fn fork(agent: &Arc<Agent>, params: &Value) -> Result<Reply, RpcError> {
    agent.check_auth()?;
    let (cwd, servers) = place(params)?;
    let (_, history) = agent.past(text(params, "sessionId")?)?;
    Ok(fork_of(agent, cwd, servers, history, Map::new()))
}

/// Opens a session that begins with these turns.
pub(crate) fn fork_of(
    agent: &Arc<Agent>,
    cwd: String,
    servers: Value,
    history: Vec<StoredTurn>,
    given: Map<String, Value>,
) -> Reply {
    let session = agent.open(clock::new_id(), "fork", cwd, servers, history);
    session.with(|state| state.given = given);
    with_session_id(opened(agent, &session), &session)
}

/// The updates of past turns.
fn replay(history: &[StoredTurn]) -> Vec<Value> {
    let mut updates = Vec::new();
    for turn in history {
        let user = |block| json!({"sessionUpdate": "user_message_chunk", "content": block});
        updates.extend(turn.prompt.iter().map(user));
        let again = |update: &&Value| {
            let kind = update["sessionUpdate"].as_str();
            kind.is_some_and(|kind| REPLAYED.contains(&kind))
        };
        updates.extend(turn.updates.iter().filter(again).cloned());
    }
    updates
}

fn made_up_replay(count: u64) -> Vec<Value> {
    let made_up = |n: u64| {
        let text = format!("replayed {n}");
        if n % 2 == 1 {
            json!({"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": text}})
        } else {
            message_chunk(&text)
        }
    };
    (1..=count.min(100_000)).map(made_up).collect()
}

fn list(agent: &Agent, params: &Value) -> Answer {
    let wanted = params["cwd"].as_str();
    let mut found: Vec<(String, Value)> = Vec::new();
    let mut add = |id: &str, cwd: &str, turns: &[StoredTurn], created: &str| {
        if wanted.is_some_and(|wanted| wanted != cwd) || found.iter().any(|(_, s)| s["sessionId"] == id) {
            return;
        }
        let title = turns.iter().rev().find_map(|turn| turn.title.clone());
        let first = turns.first().map(|turn| prompt_text(&turn.prompt));
        let title = title.or(first.map(|text| text.chars().take(60).collect()));
        let updated = turns.last().map_or(created, |turn| turn.ended_at.as_str());
        let info = json!({"sessionId": id, "cwd": cwd, "title": title, "updatedAt": updated});
        found.push((updated.to_owned(), info));
    };
    for session in agent.sessions() {
        session.with(|state| add(&session.id, &session.cwd, &state.history, ""));
    }
    if let Some(store) = &agent.store {
        let stored = store.list();
        for stored in stored.map_err(|e| RpcError::new(INVALID_REQUEST, e.to_string()))? {
            let header = &stored.header;
            add(&header.session_id, &header.cwd, &stored.turns, &header.created_at);
        }
    }
    found.sort_by(|a, b| b.0.cmp(&a.0));
    let sessions: Vec<Value> = found.into_iter().map(|(_, info)| info).collect();
    Ok(json!({"sessions": sessions}))
}

fn close(agent: &Agent, params: &Value) -> Answer {
    agent.close(text(params, "sessionId")?)?;
    Ok(json!({}))
}

fn delete(agent: &Agent, params: &Value) -> Answer {
    agent.delete(text(params, "sessionId")?)?;
    Ok(json!({}))
}

/// What a setting's change answers: the result, and the updates that follow it.
pub(crate) type Changed = Result<(Value, Vec<Value>), RpcError>;

/// Changes a setting of a session.
pub(crate) fn change(
    agent: &Agent,
    params: &Value,
    apply: impl FnOnce(&Agent, &mut Settings, &Value) -> Changed,
) -> Reply {
    let changed = || {
        if let Set::Error(code) = agent.config.set {
            return Err(RpcError::new(code, "MOCK_SET says so"));
        }
        let session = session_of(agent, params)?;
        let before = session.with(|state| state.settings.clone());
        let (result, updates) = session.with(|state| apply(agent, &mut state.settings, params))?;
        let mut reply = Reply::from(Ok(result));
        reply.after = update_lines(agent, &session, &updates);
        if let Set::Slow(ms) | Set::Yields(ms) = agent.config.set {
            reply.delay = Delay::Slow(ms);
        }
        if let Set::Yields(_) = agent.config.set {
            reply.undo = Some(Box::new(move || session.with(|state| state.settings = before)));
        }
        Ok(reply)
    };
    changed().unwrap_or_else(|error: RpcError| Err(error).into())
}

/// Makes a turn of a prompt that is in order.
pub(crate) fn prompt(agent: &Arc<Agent>, id: &Id, params: &Value) -> Result<Arc<Turn>, RpcError> {
    let session = session_of(agent, params)?;
    let blocks = params["prompt"].as_array().filter(|blocks| !blocks.is_empty());
    let blocks =
        blocks.ok_or_else(|| RpcError::new(INVALID_PARAMS, "params.prompt must be a non-empty array"))?;
    for block in blocks {
        let taken = match block["type"].as_str() {
            Some("text") => block["text"].is_string(),
            Some("resource_link") => true,
            Some(kind @ ("image" | "audio")) => agent.config.has(kind),
            Some("resource") => agent.config.has("embeddedContext"),
            _ => false,
        };
        if !taken {
            let message = format!("a content block of type {} is not taken", block["type"]);
            return Err(RpcError::new(INVALID_PARAMS, message));
        }
    }
    let entry = params["_meta"][koda::ENTRY_MARK].as_str().map(str::to_owned);
    let roles = match agent.config.dialect {
        Dialect::Koda => koda::roles_of(&params["_meta"]),
        _ => Vec::new(),
    };
    Ok(Arc::new(Turn {
        agent: Arc::clone(agent),
        session,
        id: id.clone(),
        prompt: blocks.clone(),
        entry,
        roles,
        signal: Arc::new(Signal::default()),
    }))
}
