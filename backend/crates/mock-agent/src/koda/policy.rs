//! What a session may do: its access policy, and the tools that its client left it.

use serde_json::{Value, json};

use crate::acp::{Changed, text};
use crate::agent::Agent;
use crate::config::Dialect;
use crate::frame::INVALID_PARAMS;
use crate::koda::{models, refusal};
use crate::session::{Session, Settings};
use crate::settings::select;

pub(crate) const POLICIES: [(&str, &str); 4] = [
    ("read_only", "Read only"),
    ("default", "Default"),
    ("auto_edit", "Auto edit"),
    ("yolo", "Yolo"),
];
/// Tools that change something.
const WRITING: [&str; 3] = ["replace", "write_file", "run_shell_command"];

pub(crate) fn config_options(agent: &Agent, settings: &Settings) -> Value {
    let mut options = vec![select(
        "models",
        "Model",
        "model",
        &settings.model,
        &models::choices(settings),
    )];
    if agent.config.has("accessPolicy") {
        options.push(select(
            "access_policy",
            "Access policy",
            "access_policy",
            &settings.access_policy,
            &POLICIES,
        ));
    }
    json!(options)
}

pub(crate) fn set_config_option(agent: &Agent, settings: &mut Settings, params: &Value) -> Changed {
    let (id, value) = (text(params, "configId")?, text(params, "value")?);
    match id {
        "models" => {
            models::check(settings, value)?;
            value.clone_into(&mut settings.model);
        }
        "access_policy" if agent.config.has("accessPolicy") => {
            if !POLICIES.iter().any(|(id, _)| *id == value) {
                let details = format!("unknown access policy '{value}'");
                return Err(refusal(INVALID_PARAMS, "unknown_value", details));
            }
            value.clone_into(&mut settings.access_policy);
        }
        other => {
            let details = format!("unknown config option '{other}'");
            return Err(refusal(INVALID_PARAMS, "unknown_option", details));
        }
    }
    let options = config_options(agent, settings);
    Ok((json!({"configOptions": options}), Vec::new()))
}

/// Whether the model is offered a tool, and each call of it is let through.
pub(crate) fn is_allowed(agent: &Agent, session: &Session, tool: &str) -> bool {
    if agent.config.dialect != Dialect::Koda {
        return true;
    }
    session.with(|state| {
        let lists = |field: &str| {
            let list = state.given.get(field).and_then(Value::as_array);
            list.map(|list| list.iter().any(|name| name == tool))
        };
        let read_only = state.settings.access_policy == "read_only";
        !(read_only && WRITING.contains(&tool))
            && lists("coreTools") != Some(false)
            && lists("excludeTools") != Some(true)
    })
}
