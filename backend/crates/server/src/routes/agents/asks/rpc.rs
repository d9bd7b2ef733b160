//! `POST /api/v1/agents/{id}/rpc`

use axum::Json;
use axum::extract::State;
use kandev_acp::dialect::Ask;
use kandev_orchestrator::AskOutcome;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{answer, raw};
use crate::edge::extract::{ApiJson, ApiPath};
use crate::error::{ApiError, ApiResult};
use crate::state::AppState;

/// Longest name of a method, in bytes.
const LONGEST: usize = 256;

/// Methods that have a route of their own, or that kandev itself lives by.
const MANAGED: [&str; 20] = [
    "initialize",
    "authenticate",
    "logout",
    "session/new",
    "session/load",
    "session/resume",
    "session/prompt",
    "session/cancel",
    "session/set_mode",
    "session/set_model",
    "session/set_config_option",
    "session/set_reasoning_effort",
    "session/set_plan",
    "session/compact",
    "session/fork",
    "session/list",
    "session/close",
    "session/delete",
    "session/update",
    "session/request_permission",
];

/// A method of the agent's.
#[derive(Debug, Deserialize, ToSchema)]
pub struct RpcBody {
    method: String,
    /// An object or a list. `sessionId` is added to a method that begins with `session/`, unless it is there.
    #[schema(value_type = Option<Value>)]
    params: Option<Value>,
}

/// The agent's answer: one of both.
#[derive(Debug, Serialize, ToSchema)]
pub struct RpcAnswer {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Value>)]
    result: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<RpcFailure>,
}

/// A JSON-RPC error.
#[derive(Debug, Serialize, ToSchema)]
pub struct RpcFailure {
    code: i64,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Value>)]
    data: Option<Box<RawValue>>,
}

/// Call any other method of the agent
///
/// The agent's own error is an answer too, with status 200. Methods that have a route of their own, or that kandev lives by, are
/// refused.
#[utoipa::path(
    post, path = "/api/v1/agents/{id}/rpc", tag = "agents", request_body = RpcBody,
    params(("id" = String, Path, description = "The instance")),
    responses((status = 200, body = RpcAnswer))
)]
pub async fn rpc(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    ApiJson(body): ApiJson<RpcBody>,
) -> ApiResult<Json<RpcAnswer>> {
    let RpcBody { method, params } = body;
    let instance = super::super::instance(&state, &id).await?;
    check(&method, params.as_ref())?;
    let answer = match answer(&state, &instance, Ask::Rpc { method, params }).await? {
        AskOutcome::Done { result, .. } => RpcAnswer {
            result: Some(raw(result)),
            error: None,
        },
        AskOutcome::Failed { code, message, data } => RpcAnswer {
            result: None,
            error: Some(RpcFailure {
                code,
                message,
                data: data.map(raw),
            }),
        },
    };
    Ok(Json(answer))
}

fn check(method: &str, params: Option<&Value>) -> ApiResult<()> {
    if method.is_empty() || method.len() > LONGEST {
        let problem = format!("must have 1 to {LONGEST} bytes");
        return Err(ApiError::validation("method", &problem));
    }
    if MANAGED.contains(&method) || method.starts_with("$/") {
        let problem = format!("'{method}' is managed by kandev, or has a route of its own");
        return Err(ApiError::validation("method", &problem));
    }
    match params {
        None | Some(Value::Object(_) | Value::Array(_)) => Ok(()),
        Some(_) => Err(ApiError::validation("params", "must be an object or a list")),
    }
}
