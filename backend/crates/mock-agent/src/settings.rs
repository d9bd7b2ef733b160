//! Modes, models, config options and commands: what a session offers, and how a client chooses.

use serde_json::{Value, json};

use crate::acp::{Changed, text};
use crate::agent::Agent;
use crate::frame::{INVALID_PARAMS, RpcError};
use crate::session::{Session, Settings};
use crate::sync::lock;

const MODES: [(&str, &str); 2] = [("ask", "Ask"), ("code", "Code")];
const MODELS: [(&str, &str); 2] = [("mock-large", "Mock Large"), ("mock-small", "Mock Small")];
const EFFORTS: [(&str, &str); 3] = [("low", "Low"), ("medium", "Medium"), ("high", "High")];

/// Directives that are offered as commands, since an ACP client sends commands as `/name input`.
const COMMANDS: [(&str, &str, &str); 8] = [
    ("say", "Say this text", "TEXT"),
    ("plan", "Publish a plan", "A;B;C"),
    ("tool", "Call a tool", "TITLE KIND"),
    ("diff", "Edit a file", "PATH"),
    ("permission", "Ask for permission", "KINDS"),
    ("slow", "Say something slowly", "N MS"),
    ("error", "Fail", "CODE MESSAGE"),
    ("history", "List the earlier prompts", ""),
];

impl Default for Settings {
    fn default() -> Self {
        Self {
            mode: "ask".to_owned(),
            model: "mock-large".to_owned(),
            effort: "medium".to_owned(),
            verbose: false,
            access_policy: "default".to_owned(),
            custom_models: Vec::new(),
        }
    }
}

/// Fails unless `value` is one of these.
pub(crate) fn check(what: &str, value: &str, known: &[(&str, &str)]) -> Result<(), RpcError> {
    if known.iter().any(|(id, _)| *id == value) {
        return Ok(());
    }
    Err(RpcError::new(INVALID_PARAMS, format!("unknown {what} '{value}'")))
}

/// A config option of type `select`.
pub(crate) fn select(id: &str, name: &str, category: &str, current: &str, options: &[(&str, &str)]) -> Value {
    let option = |(value, name): &(&str, &str)| json!({"value": value, "name": name});
    let options: Vec<Value> = options.iter().map(option).collect();
    json!({
        "id": id, "name": name, "category": category, "type": "select",
        "currentValue": current, "options": options,
    })
}

/// A boolean option is for clients that say that they know such.
fn config_options(agent: &Agent, settings: &Settings) -> Value {
    let mut options = vec![
        select("model", "Model", "model", &settings.model, &MODELS),
        select("effort", "Effort", "thought_level", &settings.effort, &EFFORTS),
    ];
    let offered = &lock(&agent.client)["clientCapabilities"]["session"]["configOptions"]["boolean"];
    if offered.is_object() {
        options.push(
            json!({"id": "verbose", "name": "Verbose", "type": "boolean", "currentValue": settings.verbose}),
        );
    }
    Value::Array(options)
}

/// What new, load, resume and fork answer about a session, but its id.
pub(crate) fn describe(agent: &Agent, session: &Session) -> Value {
    let settings = session.settings();
    let mut result = json!({});
    if agent.config.has("modes") {
        let mode = |(id, name): &(&str, &str)| json!({"id": id, "name": name});
        let available: Vec<Value> = MODES.iter().map(mode).collect();
        result["modes"] = json!({"currentModeId": settings.mode, "availableModes": available});
    }
    if agent.config.has("models") {
        let model = |(id, name): &(&str, &str)| json!({"modelId": id, "name": name});
        let available: Vec<Value> = MODELS.iter().map(model).collect();
        result["models"] = json!({"currentModelId": settings.model, "availableModels": available});
    }
    if agent.config.has("configOptions") {
        result["configOptions"] = config_options(agent, &settings);
    }
    result
}

/// The update that lists the commands.
pub(crate) fn commands_update() -> Value {
    let command = |(name, description, hint): &(&str, &str, &str)| {
        let mut command = json!({"name": name, "description": description});
        if !hint.is_empty() {
            command["input"] = json!({"hint": hint});
        }
        command
    };
    let commands: Vec<Value> = COMMANDS.iter().map(command).collect();
    json!({"sessionUpdate": "available_commands_update", "availableCommands": commands})
}

/// What `MOCK_LOAD=state` says of a session that it takes up.
pub(crate) fn restored_updates() -> Vec<Value> {
    let command = json!({"name": "restored", "description": "It was there before"});
    vec![
        json!({"sessionUpdate": "available_commands_update", "availableCommands": [command]}),
        json!({"sessionUpdate": "session_info_update", "title": "Restored"}),
        json!({"sessionUpdate": "usage_update", "used": 5, "size": 100, "cost": {"amount": 0.25, "currency": "USD"}}),
    ]
}

pub(crate) fn set_mode(_: &Agent, settings: &mut Settings, params: &Value) -> Changed {
    let mode = text(params, "modeId")?;
    check("mode", mode, &MODES)?;
    mode.clone_into(&mut settings.mode);
    let update = json!({"sessionUpdate": "current_mode_update", "currentModeId": mode});
    Ok((json!({}), vec![update]))
}

pub(crate) fn set_model(agent: &Agent, settings: &mut Settings, params: &Value) -> Changed {
    let model = text(params, "modelId")?;
    check("model", model, &MODELS)?;
    model.clone_into(&mut settings.model);
    let mut updates = Vec::new();
    if agent.config.has("configOptions") {
        let options = config_options(agent, settings);
        updates.push(json!({"sessionUpdate": "config_option_update", "configOptions": options}));
    }
    Ok((json!({}), updates))
}

pub(crate) fn set_config_option(agent: &Agent, settings: &mut Settings, params: &Value) -> Changed {
    match text(params, "configId")? {
        "model" => {
            let value = text(params, "value")?;
            check("model", value, &MODELS)?;
            value.clone_into(&mut settings.model);
        }
        "effort" => {
            let value = text(params, "value")?;
            check("effort", value, &EFFORTS)?;
            value.clone_into(&mut settings.effort);
        }
        "verbose" => {
            let value = params["value"].as_bool();
            settings.verbose =
                value.ok_or_else(|| RpcError::new(INVALID_PARAMS, "params.value must be a boolean"))?;
        }
        other => {
            return Err(RpcError::new(
                INVALID_PARAMS,
                format!("unknown config option '{other}'"),
            ));
        }
    }
    Ok((
        json!({"configOptions": config_options(agent, settings)}),
        Vec::new(),
    ))
}
