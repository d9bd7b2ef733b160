//! Models: Koda's own, and those that a user adds.

use serde_json::{Value, json};

use crate::acp::{Changed, text};
use crate::agent::{Agent, Reply};
use crate::frame::{INVALID_PARAMS, RpcError};
use crate::koda::refusal;
use crate::session::Settings;

pub(crate) const DEFAULT: &str = "koda-pro";
/// With the efforts that each supports.
const OWN: [(&str, &[&str]); 2] = [("koda-pro", EFFORTS), ("koda-lite", &["low", "medium"])];
/// Every effort there is.
pub(crate) const EFFORTS: &[&str] = &["low", "medium", "high"];

/// A model of the user's. Its key is kept nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Custom {
    id: String,
    base_url: String,
}

fn efforts_of(model: &str) -> Option<&'static [&'static str]> {
    let found = OWN.iter().find(|(id, _)| *id == model);
    found.map(|(_, efforts)| *efforts)
}

/// The session's own list: a model that was added later is not in it.
fn offered(settings: &Settings) -> impl Iterator<Item = &str> {
    let own = OWN.iter().map(|(id, _)| *id);
    own.chain(settings.custom_models.iter().map(|model| model.id.as_str()))
}

/// A model that a role may ask for.
pub(crate) fn is_there(settings: &Settings, model: &str) -> bool {
    offered(settings).any(|id| id == model)
}

/// The choices of the option `models`.
pub(crate) fn choices(settings: &Settings) -> Vec<(&str, &str)> {
    offered(settings).map(|id| (id, id)).collect()
}

pub(crate) fn describe(settings: &Settings) -> Value {
    let model = |id: &str| {
        let mut model = json!({"modelId": id, "name": id, "description": null, "imageSupport": true});
        if let Some(efforts) = efforts_of(id) {
            let chosen = settings.effort.as_str();
            let is_current = id == settings.model && efforts.contains(&chosen);
            model["reasoning"] = json!({
                "supportedEfforts": efforts,
                "defaultEffort": "medium",
                "currentEffort": if is_current { chosen } else { "medium" },
            });
        }
        model
    };
    let available: Vec<Value> = offered(settings).map(model).collect();
    json!({"currentModelId": settings.model, "availableModels": available})
}

/// Fails for a model that the session was not opened with.
pub(crate) fn check(settings: &Settings, model: &str) -> Result<(), RpcError> {
    if is_there(settings, model) {
        return Ok(());
    }
    Err(refusal(
        INVALID_PARAMS,
        "unknown_model",
        format!("unknown model '{model}'"),
    ))
}

pub(crate) fn set_model(_: &Agent, settings: &mut Settings, params: &Value) -> Changed {
    let model = text(params, "modelId")?;
    check(settings, model)?;
    model.clone_into(&mut settings.model);
    Ok((json!({}), Vec::new()))
}

pub(crate) fn set_effort(agent: &Agent, settings: &mut Settings, params: &Value) -> Changed {
    let effort = text(params, "effort")?;
    let supported = efforts_of(&settings.model).unwrap_or_default();
    if !supported.contains(&effort) {
        let details = format!("model '{}' does not support effort '{effort}'", settings.model);
        return Err(refusal(INVALID_PARAMS, "unsupported_effort", details));
    }
    effort.clone_into(&mut settings.effort);
    agent.koda.with(|shared| shared.effort = Some(effort.to_owned()));
    Ok((json!({"models": describe(settings)}), Vec::new()))
}

/// `koda/custom_models/*`.
pub(crate) fn manage(agent: &Agent, method: &str, params: &Value) -> Result<Reply, RpcError> {
    let changed = agent.koda.with(|shared| {
        let list = &mut shared.custom_models;
        match method {
            "list" => Ok(()),
            "upsert" => upsert(list, params),
            "delete" => {
                let id = text(params, "modelId")?;
                let before = list.len();
                list.retain(|model| model.id != id);
                if list.len() == before {
                    return Err(unknown(id));
                }
                Ok(())
            }
            other => Err(crate::acp::no_method(&format!("koda/custom_models/{other}"))),
        }?;
        let models = list
            .iter()
            .map(|model| json!({"modelId": model.id, "baseUrl": model.base_url}));
        Ok(json!({"models": models.collect::<Vec<_>>()}))
    });
    changed.map(|result| Reply::from(Ok(result)))
}

fn unknown(id: &str) -> RpcError {
    let details = format!("there is no custom model '{id}'");
    refusal(INVALID_PARAMS, "model_not_found", details)
}

fn upsert(list: &mut Vec<Custom>, params: &Value) -> Result<(), RpcError> {
    let (id, base_url) = (text(params, "modelId")?, text(params, "baseUrl")?);
    let model = Custom {
        id: id.to_owned(),
        base_url: base_url.to_owned(),
    };
    let old = params["previousModelId"].as_str().unwrap_or(id);
    let known = list.iter().position(|model| model.id == old);
    match known {
        Some(at) => list[at] = model,
        None if old != id => return Err(unknown(old)),
        None if params["apiKey"].as_str().is_none_or(str::is_empty) => {
            let details = "a new model needs params.apiKey";
            return Err(refusal(INVALID_PARAMS, "api_key_missing", details));
        }
        None => list.push(model),
    }
    Ok(())
}
