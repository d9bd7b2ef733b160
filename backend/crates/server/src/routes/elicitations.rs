//! `/api/v1/elicitations` and `/api/v1/agents/{id}/elicitations`: what agents ask people for.

use axum::Json;
use axum::extract::State;
use chrono::{DateTime, Utc};
use kandev_acp::elicitation::Action;
use kandev_domain::{DecidedBy, ElicitationId, ElicitationMode, ElicitationStatus};
use kandev_store::elicitations::{self, Elicitation, ElicitationFilter};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::agents::instance;
use super::page::{Paging, next_cursor};
use super::requests::{InstanceRequestParams, RequestParams};
use crate::edge::extract::{ApiJson, ApiPath, ApiQuery};
use crate::error::{ApiError, ApiResult};
use crate::state::AppState;

/// Routes under the usual time limit.
pub fn timed() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(list_of_instance))
        .routes(routes!(get))
}

/// Routes that wait for an instance.
pub fn untimed() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(answer))
}

/// A form, or a URL to go to.
#[derive(Debug, Serialize, ToSchema)]
pub struct ElicitationView {
    id: Uuid,
    instance_id: Uuid,
    /// The session that the agent named: its own, or a subagent's.
    session_id: Option<String>,
    /// The turn in which it was asked; outside of one, the turn before.
    turn_id: Option<Uuid>,
    mode: ElicitationMode,
    /// For people.
    message: String,
    /// The tool call that it is about.
    tool_call_id: Option<String>,
    /// Of a form, as the agent gave it: a JSON Schema of plain fields.
    #[schema(value_type = Option<Object>)]
    requested_schema: Option<Box<RawValue>>,
    /// Where to go: `http` or `https`.
    url: Option<String>,
    /// The agent's name for what is done there (`elicitationId`).
    agent_key: Option<String>,
    status: ElicitationStatus,
    requested_at: DateTime<Utc>,
    /// When the default is answered.
    expires_at: Option<DateTime<Utc>>,
    answered_at: Option<DateTime<Utc>>,
    /// What the agent was told, in ACP's form: `{"action":"accept","content":{…}}`, `{"action":"decline"}` or `{"action":"cancel"}`.
    #[schema(value_type = Option<Object>)]
    outcome: Option<Box<RawValue>>,
    decided_by: Option<DecidedBy>,
    /// When the agent told that what is done at the URL was done.
    completed_at: Option<DateTime<Utc>>,
}

impl From<Elicitation> for ElicitationView {
    fn from(elicitation: Elicitation) -> Self {
        let raw = |json: String| RawValue::from_string(json).ok();
        Self {
            id: elicitation.id.0,
            instance_id: elicitation.instance_id.0,
            session_id: elicitation.session_id,
            turn_id: elicitation.turn_id.map(|id| id.0),
            mode: elicitation.mode,
            message: elicitation.message,
            tool_call_id: elicitation.tool_call_id,
            requested_schema: elicitation.requested_schema.and_then(raw),
            url: elicitation.url,
            agent_key: elicitation.agent_key,
            status: elicitation.status,
            requested_at: elicitation.requested_at,
            expires_at: elicitation.expires_at,
            answered_at: elicitation.answered_at,
            outcome: elicitation.outcome.and_then(raw),
            decided_by: elicitation.decided_by,
            completed_at: elicitation.completed_at,
        }
    }
}

/// Elicitations, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct ElicitationList {
    elicitations: Vec<ElicitationView>,
    /// How many match in all.
    total: i64,
    next_cursor: Option<String>,
}

/// An answer.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ElicitationAnswerBody {
    /// `accept`: here it is, or I go there. `decline`: no. `cancel`: I do not decide.
    action: String,
    /// What is accepted: the fields of the form, which have to fit its schema. Texts, numbers, true and false, and lists of texts.
    #[schema(value_type = Option<Object>)]
    content: Option<Map<String, Value>>,
}

impl ElicitationAnswerBody {
    /// Checks that it says one thing.
    pub(super) fn into_answer(self) -> ApiResult<Action> {
        match (self.action.as_str(), self.content) {
            ("accept", content) => Ok(Action::Accept { content }),
            ("decline", None) => Ok(Action::Decline),
            ("cancel", None) => Ok(Action::Cancel),
            ("decline" | "cancel", Some(_)) => Err(ApiError::validation(
                "content",
                "goes with the action 'accept' only",
            )),
            _ => Err(ApiError::validation(
                "action",
                "must be 'accept', 'decline' or 'cancel'",
            )),
        }
    }
}

/// The id in a path or a command; one that is none names nothing.
pub(super) fn elicitation_id(text: &str) -> ApiResult<ElicitationId> {
    text.parse().map_err(|_| ApiError::not_found("elicitation", text))
}

async fn page(
    state: &AppState,
    filter: ElicitationFilter,
    paging: Paging,
) -> ApiResult<Json<ElicitationList>> {
    let (limit, cursor) = paging.resolve("elicitations")?;
    let page = elicitations::list(&state.pool, &filter, cursor.as_ref(), limit).await?;
    Ok(Json(ElicitationList {
        elicitations: page.items.into_iter().map(Into::into).collect(),
        total: page.total,
        next_cursor: next_cursor("elicitations", page.next),
    }))
}

/// Elicitations
///
/// Of all instances, newest first; `status=pending` are those that wait for an answer.
#[utoipa::path(
    get, path = "/api/v1/elicitations", tag = "elicitations", params(RequestParams),
    responses((status = 200, body = ElicitationList))
)]
async fn list(
    State(state): State<AppState>,
    ApiQuery(params): ApiQuery<RequestParams>,
) -> ApiResult<Json<ElicitationList>> {
    let (filter, paging) = params.read()?;
    page(&state, filter, paging).await
}

/// Elicitations of an instance
#[utoipa::path(
    get, path = "/api/v1/agents/{id}/elicitations", tag = "elicitations",
    params(("id" = String, Path, description = "The instance"), InstanceRequestParams),
    responses((status = 200, body = ElicitationList))
)]
async fn list_of_instance(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    ApiQuery(params): ApiQuery<InstanceRequestParams>,
) -> ApiResult<Json<ElicitationList>> {
    let (filter, paging) = params.read(&state, &id).await?;
    page(&state, filter, paging).await
}

/// One elicitation
#[utoipa::path(
    get, path = "/api/v1/agents/{id}/elicitations/{elicitation_id}", tag = "elicitations",
    params(
        ("id" = String, Path, description = "The instance"),
        ("elicitation_id" = String, Path, description = "The elicitation"),
    ),
    responses((status = 200, body = ElicitationView))
)]
async fn get(
    State(state): State<AppState>,
    ApiPath((id, elicitation)): ApiPath<(String, String)>,
) -> ApiResult<Json<ElicitationView>> {
    let instance = instance(&state, &id).await?;
    let found = elicitations::get(&state.pool, instance.id, elicitation_id(&elicitation)?).await?;
    let found = found.ok_or_else(|| ApiError::not_found("elicitation", &elicitation))?;
    Ok(Json(found.into()))
}

/// Answer an elicitation
///
/// The first answer counts; a later one is 409, and so is one that comes after the turn or the time for it ended. Content that does
/// not fit the form is 400, names the field, and changes nothing. When this is answered, the answer is on record and will reach
/// the agent, also if the server dies.
#[utoipa::path(
    post, path = "/api/v1/agents/{id}/elicitations/{elicitation_id}", tag = "elicitations",
    request_body = ElicitationAnswerBody,
    params(
        ("id" = String, Path, description = "The instance"),
        ("elicitation_id" = String, Path, description = "The elicitation"),
    ),
    responses((status = 200, body = ElicitationView))
)]
async fn answer(
    State(state): State<AppState>,
    ApiPath((id, elicitation)): ApiPath<(String, String)>,
    ApiJson(body): ApiJson<ElicitationAnswerBody>,
) -> ApiResult<Json<ElicitationView>> {
    let instance = instance(&state, &id).await?;
    let answer = body.into_answer()?;
    let elicitation = elicitation_id(&elicitation)?;
    let answered = state
        .orchestrator
        .answer_elicitation(instance.id, elicitation, answer)
        .await?;
    Ok(Json(answered.into()))
}
