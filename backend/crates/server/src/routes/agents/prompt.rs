//! `POST /api/v1/agents/{id}/prompt`

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use kandev_acp::dialect::ENTRY_MARK;
use kandev_domain::content::Prompt;
use kandev_domain::lifecycle::WhenBusy;
use kandev_domain::{InstanceId, TurnId};
use kandev_orchestrator::Changes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, OneOfBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};
use uuid::Uuid;

use super::launch::prompt_of;
use super::turns::{TurnView, view};
use crate::edge::extract::{ApiJson, ApiPath};
use crate::error::{ApiError, ApiResult};
use crate::state::AppState;

/// Most that is told beside a prompt, in bytes of JSON.
const MAX_META: usize = 64 << 10;

/// A prompt: `message`, or `prompt`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct PromptBody {
    /// A text; in the place of `prompt`.
    message: Option<String>,
    /// A text, or ACP content blocks; in the place of `message`.
    #[schema(value_type = Option<PromptContent>)]
    prompt: Option<Value>,
    /// Told to the agent as the request's `_meta` (Koda's `com.kodadev.subagentRoles`); agents of the kandev dialect have no
    /// place for it.
    #[serde(default)]
    #[schema(value_type = Object)]
    prompt_meta: Map<String, Value>,
    /// What to do when a turn runs, or prompts wait. `queue`: wait behind them. `interrupt`: cancel the turn and every prompt that
    /// waits, whoever sent it, and be the next; before the session is ready, where nothing runs, it waits like `queue`. `reject`: 409.
    #[serde(default)]
    when_busy: WhenBusy,
    /// Answer when the turn has ended.
    #[serde(default)]
    wait: bool,
}

/// The forms of a prompt, for the API's document.
pub(super) struct PromptContent;

impl PartialSchema for PromptContent {
    fn schema() -> RefOr<Schema> {
        let block = ObjectBuilder::new().schema_type(Type::Object);
        OneOfBuilder::new()
            .description(Some("A text, or ACP content blocks."))
            .item(ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)))
            .item(ArrayBuilder::new().items(block).min_items(Some(1)))
            .into()
    }
}

impl ToSchema for PromptContent {}

impl PromptBody {
    /// What to prompt and to tell beside it, and what to do when a turn runs.
    pub(super) fn into_prompt(self) -> ApiResult<(Prompt, Map<String, Value>, WhenBusy)> {
        check_meta(&self.prompt_meta)?;
        let prompt = match (self.prompt, self.message) {
            (Some(_), Some(_)) => {
                let problem = "give either 'message' or 'prompt', not both";
                return Err(ApiError::validation("prompt", problem));
            }
            (Some(prompt), None) => prompt_of(prompt)?,
            (None, Some(message)) => prompt_of(Value::String(message))?,
            (None, None) => return Err(ApiError::validation("message", "is required")),
        };
        Ok((prompt, self.prompt_meta, self.when_busy))
    }
}

fn check_meta(meta: &Map<String, Value>) -> ApiResult<()> {
    const FIELD: &str = "prompt_meta";
    if meta.contains_key(ENTRY_MARK) {
        let problem = format!("'{ENTRY_MARK}' is kandev's to say: the turn's id");
        return Err(ApiError::validation(FIELD, &problem));
    }
    let bytes = serde_json::to_string(meta).map_or(usize::MAX, |json| json.len());
    if bytes > MAX_META {
        let problem = format!("must have at most {MAX_META} bytes");
        return Err(ApiError::validation(FIELD, &problem));
    }
    Ok(())
}

/// A prompt that was accepted.
#[derive(Debug, Serialize, ToSchema)]
pub struct PromptResponse {
    success: bool,
    session_id: Option<String>,
    turn_id: Uuid,
    message: &'static str,
    /// The turn, if its end was waited for.
    turn: Option<TurnView>,
}

/// Prompt an agent
#[utoipa::path(
    post, path = "/api/v1/agents/{id}/prompt", tag = "agents", request_body = PromptBody,
    params(("id" = String, Path, description = "The instance")),
    responses(
        (status = 202, description = "Accepted", body = PromptResponse),
        (status = 200, description = "The turn has ended (`wait`)", body = PromptResponse),
    )
)]
pub async fn prompt(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    ApiJson(body): ApiJson<PromptBody>,
) -> ApiResult<(StatusCode, Json<PromptResponse>)> {
    let id = super::instance(&state, &id).await?.id;
    let wait = body.wait;
    let (prompt, meta, when_busy) = body.into_prompt()?;
    let changes = Changes::of(&state.orchestrator, id);
    let accepted = state.orchestrator.prompt(id, prompt, meta, when_busy).await?;
    let mut response = PromptResponse {
        success: true,
        session_id: accepted.session_id,
        turn_id: accepted.turn_id.0,
        message: if accepted.queued {
            "prompt queued"
        } else {
            "prompt sent to the agent"
        },
        turn: None,
    };
    if !wait {
        return Ok((StatusCode::ACCEPTED, Json(response)));
    }
    let turn = await_end(&state, id, accepted.turn_id, changes).await?;
    if turn.has_ended() {
        response.message = "the turn has ended";
        response.turn = Some(turn);
        return Ok((StatusCode::OK, Json(response)));
    }
    // The server is stopping: the turn is recorded, and so will be its end.
    Ok((StatusCode::ACCEPTED, Json(response)))
}

async fn await_end(
    state: &AppState,
    id: InstanceId,
    turn_id: TurnId,
    mut changes: Changes,
) -> ApiResult<TurnView> {
    loop {
        changes.subscribe();
        let ended = changes.view().map(|view| view.ended_turns);
        let turn = kandev_store::turns::get(&state.pool, id, turn_id).await?;
        let turn = turn.ok_or_else(|| ApiError::not_found("turn", turn_id))?;
        if turn.status.is_final() || state.stopping.is_cancelled() {
            return view(state, turn).await;
        }
        tokio::select! {
            // Not every commit is worth a look.
            () = changes.wait_until(|view| Some(view.ended_turns) != ended) => {}
            () = state.stopping.cancelled() => {}
        }
    }
}
