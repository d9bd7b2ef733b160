//! What callers ask of an agent beside prompts: one file a route.
//!
//! Whether the agent can do it is read from what it last said of itself and its session; what it then answers is given on.

pub mod authenticate;
pub mod compact;
pub mod config_option;
pub mod fork;
pub mod logout;
pub mod mode;
pub mod model;
pub mod plan;
pub mod reasoning_effort;
pub mod rpc;
pub mod sessions;

use std::collections::BTreeMap;

use axum::Json;
use kandev_acp::dialect::Ask;
use kandev_domain::SessionKey;
use kandev_orchestrator::{AskError, AskOutcome, AskRefused};
use kandev_store::instances::Instance;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::error::{ApiError, ApiResult, ErrorCode};
use crate::state::AppState;

/// All of them wait for an agent.
pub(super) fn untimed() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(mode::set))
        .routes(routes!(model::set))
        .routes(routes!(config_option::set))
        .routes(routes!(reasoning_effort::set))
        .routes(routes!(plan::set))
        .routes(routes!(compact::compact))
        .routes(routes!(fork::fork))
        .routes(routes!(authenticate::authenticate))
        .routes(routes!(logout::logout))
        .routes(routes!(rpc::rpc))
        .routes(routes!(sessions::list))
        .routes(routes!(sessions::close))
        .routes(routes!(sessions::delete))
}

/// The agent has done it.
#[derive(Debug, Serialize, ToSchema)]
pub struct Asked {
    /// Always true: errors have a body of their own.
    success: bool,
    /// The agent's session.
    session_id: String,
    /// What the agent answered.
    #[schema(value_type = Value)]
    result: Box<RawValue>,
}

/// An instance, and what its agent said of itself and its session.
struct Subject {
    instance: Instance,
    key: SessionKey,
    said: BTreeMap<String, Value>,
}

impl Subject {
    async fn load(state: &AppState, id: &str) -> ApiResult<Self> {
        let instance = super::instance(state, id).await?;
        let Some(key) = instance.session_key else {
            return Err(refused(&AskRefused::NotReady));
        };
        let facets = kandev_store::sessions::facets(&state.pool, key);
        let facets = kandev_store::within(super::STORE_LIMIT, facets).await?;
        let said = facets
            .into_iter()
            .filter_map(|(facet, json)| Some((facet, serde_json::from_str(&json).ok()?)))
            .collect();
        Ok(Self { instance, key, said })
    }

    fn said(&self, facet: &str) -> &Value {
        self.said.get(facet).unwrap_or(&Value::Null)
    }

    /// Whether the agent advertises one of these session capabilities. Of Koda's own only some have a name that is known: an
    /// agent that has those is taken to have the rest.
    fn can(&self, names: &[&str]) -> bool {
        let capabilities = &self.said("agent_capabilities")["sessionCapabilities"];
        let has = |name: &str| !matches!(capabilities[name], Value::Null | Value::Bool(false));
        names.iter().any(|name| has(name))
    }

    /// The option of this category, for what has no method of its own.
    fn option_of(&self, category: &str) -> Option<&Value> {
        let options = self.said("config_options").as_array()?;
        options.iter().find(|option| option["category"] == category)
    }

    async fn ask(&self, state: &AppState, ask: Ask) -> ApiResult<Json<Asked>> {
        match answer(state, &self.instance, ask).await? {
            AskOutcome::Done { result, session_id } => Ok(Json(Asked {
                success: true,
                session_id,
                result: raw(result),
            })),
            AskOutcome::Failed { code, message, data } => {
                let data = data.and_then(|data| serde_json::from_str::<Value>(&data).ok());
                let text = format!("the agent refused: {message}");
                let details = json!({"code": code, "message": message, "data": data});
                Err(ApiError::new(ErrorCode::AgentError, text).details(details))
            }
        }
    }

    /// Sets an option, once its value is one that it has.
    async fn set_option(
        &self,
        state: &AppState,
        option: &Value,
        value: Value,
        field: &str,
    ) -> ApiResult<Json<Asked>> {
        check_option(option, &value, field)?;
        let config_id = option["id"].as_str().unwrap_or_default().to_owned();
        self.ask(state, Ask::Option { config_id, value }).await
    }
}

async fn answer(state: &AppState, instance: &Instance, ask: Ask) -> ApiResult<AskOutcome> {
    state
        .orchestrator
        .ask(instance.id, ask)
        .await
        .map_err(|error| match error {
            AskError::Refused(why) => refused(&why),
            AskError::Command(error) => error.into(),
        })
}

fn refused(why: &AskRefused) -> ApiError {
    let text = why.to_string();
    match why {
        AskRefused::NotReady | AskRefused::Busy | AskRefused::Ended => ApiError::conflict(text),
        AskRefused::Unsupported(_) => ApiError::new(ErrorCode::UnsupportedCapability, text),
        AskRefused::TooMany => ApiError::new(ErrorCode::TooManyRequests, text).retry_after_seconds(1),
        AskRefused::NoAnswer => ApiError::new(ErrorCode::AgentError, text),
    }
}

fn unsupported(what: &str) -> ApiError {
    let text = format!("the agent did not advertise {what}");
    ApiError::new(ErrorCode::UnsupportedCapability, text)
}

fn raw(json: String) -> Box<RawValue> {
    RawValue::from_string(json).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// The texts under a key of a list's items.
fn texts<'a>(list: &'a Value, key: &str) -> Vec<&'a str> {
    let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(|item| item[key].as_str()).collect()
}

/// Refuses what is not among what the agent offers.
fn check(field: &str, value: &str, allowed: &[&str]) -> ApiResult<()> {
    if allowed.contains(&value) {
        return Ok(());
    }
    let problem = format!("the agent does not offer '{value}'");
    Err(ApiError::validation(field, &problem).details(json!({"field": field, "allowed": allowed})))
}

fn check_option(option: &Value, value: &Value, field: &str) -> ApiResult<()> {
    if option["type"] == "boolean" || option["currentValue"].is_boolean() {
        return match value {
            Value::Bool(_) => Ok(()),
            _ => Err(ApiError::validation(field, "must be true or false")),
        };
    }
    let Some(text) = value.as_str() else {
        return Err(ApiError::validation(field, "must be a text"));
    };
    let choices = option["options"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let mut allowed = Vec::new();
    for choice in choices {
        allowed.extend(choice["value"].as_str());
        // Choices may come in groups.
        allowed.extend(texts(&choice["options"], "value"));
    }
    check(field, text, &allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_an_option_has_is_taken() {
        let select = json!({"id": "e", "type": "select", "options": [
            {"value": "low"}, {"group": "g", "options": [{"value": "high"}]},
        ]});
        let switch = json!({"id": "v", "type": "boolean", "currentValue": false});
        for (option, value, ok) in [
            (&select, json!("low"), true),
            (&select, json!("high"), true),
            (&select, json!("g"), false),
            (&select, json!(true), false),
            (&switch, json!(true), true),
            (&switch, json!("true"), false),
        ] {
            assert_eq!(
                check_option(option, &value, "value").is_ok(),
                ok,
                "{option} {value}"
            );
        }
    }
}
