//! `PUT /api/v1/agents/{id}/plan`

use axum::Json;
use axum::extract::State;
use kandev_acp::dialect::Ask;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::{Asked, Subject, unsupported};
use crate::edge::extract::{ApiJson, ApiPath};
use crate::error::{ApiError, ApiResult};
use crate::state::AppState;

/// How many entries a plan may have.
const MOST: usize = 500;

/// A plan.
#[derive(Debug, Deserialize, ToSchema)]
pub struct PlanBody {
    /// All of it, each `{content, status?, priority?}`; none gives the plan up.
    #[schema(value_type = Vec<Object>)]
    entries: Vec<Value>,
    /// Why.
    explanation: Option<String>,
}

/// Replace the agent's plan
///
/// Also while a turn runs. The agent answers with an update of kind `plan`.
#[utoipa::path(
    put, path = "/api/v1/agents/{id}/plan", tag = "agents", request_body = PlanBody,
    params(("id" = String, Path, description = "The instance")),
    responses((status = 200, body = Asked))
)]
pub async fn set(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    ApiJson(body): ApiJson<PlanBody>,
) -> ApiResult<Json<Asked>> {
    let PlanBody { entries, explanation } = body;
    let named = |entry: &Value| {
        entry["content"]
            .as_str()
            .is_some_and(|text| !text.trim().is_empty())
    };
    if entries.len() > MOST || !entries.iter().all(named) {
        let problem = format!("must be at most {MOST} objects, each with a 'content'");
        return Err(ApiError::validation("entries", &problem));
    }
    let subject = Subject::load(&state, &id).await?;
    if !subject.can(&["setPlan", "plan", "accessPolicy", "subagents"]) {
        return Err(unsupported("that its plan can be set"));
    }
    subject.ask(&state, Ask::Plan { entries, explanation }).await
}
