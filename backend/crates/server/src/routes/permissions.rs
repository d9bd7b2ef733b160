//! `/api/v1/permissions` and `/api/v1/agents/{id}/permissions`: what agents ask to be allowed.

use axum::Json;
use axum::extract::State;
use chrono::{DateTime, Utc};
use kandev_domain::{DecidedBy, PermissionId, PermissionStatus, ToolKind};
use kandev_orchestrator::PermissionAnswer;
use kandev_store::permissions::{self, Permission, PermissionFilter};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
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

/// A permission request.
#[derive(Debug, Serialize, ToSchema)]
pub struct PermissionView {
    id: Uuid,
    instance_id: Uuid,
    /// The session that the agent named: its own, or a subagent's.
    session_id: Option<String>,
    /// The turn in which it was asked; outside of one, the turn before.
    turn_id: Option<Uuid>,
    /// As the agent gave it. Of a very large one only id, kind and title, with `_meta["kandev.truncated"]`; its event has it whole.
    #[schema(value_type = Option<Object>)]
    tool_call: Option<Box<RawValue>>,
    /// Of the request, else of the call as it was announced, else `other`. Rules go by it.
    tool_kind: ToolKind,
    /// As the agent gave them.
    #[schema(value_type = Vec<Object>)]
    options: Option<Box<RawValue>>,
    status: PermissionStatus,
    requested_at: DateTime<Utc>,
    /// When the default is answered.
    expires_at: Option<DateTime<Utc>>,
    answered_at: Option<DateTime<Utc>>,
    /// What the agent was told, in ACP's form: `{"outcome":"selected","optionId":…}` or `{"outcome":"cancelled"}`.
    #[schema(value_type = Option<Object>)]
    outcome: Option<Box<RawValue>>,
    decided_by: Option<DecidedBy>,
}

impl From<Permission> for PermissionView {
    fn from(permission: Permission) -> Self {
        let raw = |json: String| RawValue::from_string(json).ok();
        Self {
            id: permission.id.0,
            instance_id: permission.instance_id.0,
            session_id: permission.session_id,
            turn_id: permission.turn_id.map(|id| id.0),
            tool_call: permission.tool_call.and_then(raw),
            tool_kind: permission.tool_kind,
            options: raw(permission.options),
            status: permission.status,
            requested_at: permission.requested_at,
            expires_at: permission.expires_at,
            answered_at: permission.answered_at,
            outcome: permission.outcome.and_then(raw),
            decided_by: permission.decided_by,
        }
    }
}

/// Permission requests, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct PermissionList {
    permissions: Vec<PermissionView>,
    /// How many match in all.
    total: i64,
    next_cursor: Option<String>,
}

/// An answer: an option by its id or by its kind, or `"outcome": "cancelled"`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct AnswerBody {
    /// `optionId` of one of the options.
    option_id: Option<String>,
    /// The first option of this kind, such as `allow_once`.
    kind: Option<String>,
    /// `cancelled`: none of the options. (`selected` may stand beside an option.)
    outcome: Option<String>,
}

impl AnswerBody {
    /// Checks that it says one thing.
    pub(super) fn into_answer(self) -> ApiResult<PermissionAnswer> {
        let refuse = |field, problem| Err(ApiError::validation(field, problem));
        match (self.option_id, self.kind, self.outcome.as_deref()) {
            (Some(_), Some(_), _) => refuse("kind", "give either 'option_id' or 'kind', not both"),
            (Some(id), None, None | Some("selected")) => Ok(PermissionAnswer::OptionId(id)),
            (None, Some(kind), None | Some("selected")) => Ok(PermissionAnswer::Kind(kind)),
            (None, None, Some("cancelled")) => Ok(PermissionAnswer::Cancelled),
            (None, None, None | Some("selected")) => {
                refuse("option_id", "is required, or 'kind', or the outcome 'cancelled'")
            }
            (_, _, Some("cancelled")) => refuse("outcome", "is 'cancelled', but an option is chosen"),
            (_, _, Some(_)) => refuse("outcome", "must be 'selected' or 'cancelled'"),
        }
    }
}

/// The id in a path or a command; one that is none names nothing.
pub(super) fn permission_id(text: &str) -> ApiResult<PermissionId> {
    text.parse()
        .map_err(|_| ApiError::not_found("permission request", text))
}

async fn page(state: &AppState, filter: PermissionFilter, paging: Paging) -> ApiResult<Json<PermissionList>> {
    let (limit, cursor) = paging.resolve("permissions")?;
    let page = permissions::list(&state.pool, &filter, cursor.as_ref(), limit).await?;
    Ok(Json(PermissionList {
        permissions: page.items.into_iter().map(Into::into).collect(),
        total: page.total,
        next_cursor: next_cursor("permissions", page.next),
    }))
}

/// Permission requests
///
/// Of all instances, newest first; `status=pending` are those that wait for an answer.
#[utoipa::path(
    get, path = "/api/v1/permissions", tag = "permissions", params(RequestParams),
    responses((status = 200, body = PermissionList))
)]
async fn list(
    State(state): State<AppState>,
    ApiQuery(params): ApiQuery<RequestParams>,
) -> ApiResult<Json<PermissionList>> {
    let (filter, paging) = params.read()?;
    page(&state, filter, paging).await
}

/// Permission requests of an instance
#[utoipa::path(
    get, path = "/api/v1/agents/{id}/permissions", tag = "permissions",
    params(("id" = String, Path, description = "The instance"), InstanceRequestParams),
    responses((status = 200, body = PermissionList))
)]
async fn list_of_instance(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    ApiQuery(params): ApiQuery<InstanceRequestParams>,
) -> ApiResult<Json<PermissionList>> {
    let (filter, paging) = params.read(&state, &id).await?;
    page(&state, filter, paging).await
}

/// One permission request
#[utoipa::path(
    get, path = "/api/v1/agents/{id}/permissions/{permission_id}", tag = "permissions",
    params(
        ("id" = String, Path, description = "The instance"),
        ("permission_id" = String, Path, description = "The permission request"),
    ),
    responses((status = 200, body = PermissionView))
)]
async fn get(
    State(state): State<AppState>,
    ApiPath((id, permission)): ApiPath<(String, String)>,
) -> ApiResult<Json<PermissionView>> {
    let instance = instance(&state, &id).await?;
    let found = permissions::get(&state.pool, instance.id, permission_id(&permission)?).await?;
    let found = found.ok_or_else(|| ApiError::not_found("permission request", &permission))?;
    Ok(Json(found.into()))
}

/// Answer a permission request
///
/// The first answer counts; a later one is 409, and so is one that comes after the turn or the time for it ended. When this is
/// answered, the decision is on record and will reach the agent, also if the server dies.
#[utoipa::path(
    post, path = "/api/v1/agents/{id}/permissions/{permission_id}", tag = "permissions", request_body = AnswerBody,
    params(
        ("id" = String, Path, description = "The instance"),
        ("permission_id" = String, Path, description = "The permission request"),
    ),
    responses((status = 200, body = PermissionView))
)]
async fn answer(
    State(state): State<AppState>,
    ApiPath((id, permission)): ApiPath<(String, String)>,
    ApiJson(body): ApiJson<AnswerBody>,
) -> ApiResult<Json<PermissionView>> {
    let instance = instance(&state, &id).await?;
    let answer = body.into_answer()?;
    let permission = permission_id(&permission)?;
    let answered = state
        .orchestrator
        .answer_permission(instance.id, permission, answer)
        .await?;
    Ok(Json(answered.into()))
}
