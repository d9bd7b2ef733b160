//! `GET /api/v1/agents/{id}/ws`: events out, commands in, over one WebSocket.
//!
//! The two directions do not wait for each other: a client that does not read its events can still cancel.

use std::sync::atomic::{AtomicU32, Ordering};

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use kandev_domain::InstanceId;
use kandev_orchestrator::Cancelled;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::timeout;
use utoipa::IntoParams;
use uuid::Uuid;

use super::cancel::ReasonBody;
use super::events::EventView;
use super::prompt::PromptBody;
use super::stream::{self, Follower, Reset, Start, Step};
use crate::edge::extract::{ApiPath, ApiQuery, from_json};
use crate::edge::request_id::RequestId;
use crate::error::{ApiError, ApiResult, ErrorBody, ErrorCode};
use crate::routes::elicitations::{ElicitationAnswerBody, ElicitationView, elicitation_id};
use crate::routes::page::names;
use crate::routes::permissions::{AnswerBody, PermissionView, permission_id};
use crate::routes::socket::{self, MAX_MISSED};
use crate::routes::sse::{Follow as _, KEEP_ALIVE};
use crate::state::AppState;

/// How many answers may wait for a client that does not read; then no more commands are taken from it.
const ANSWERS: usize = 16;

/// Which events.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct WsParams {
    /// Only later ones than this `seq`; all if absent.
    after: Option<i64>,
    /// Only these kinds, separated by commas.
    kind: Option<String>,
}

/// What every command has.
#[derive(Deserialize)]
struct Envelope {
    r#type: String,
}

/// What the client calls its command by, whatever else is wrong with it.
#[derive(Default, Deserialize)]
struct Named {
    r#ref: Option<Value>,
}

/// An answer to a permission request.
#[derive(Deserialize)]
struct PermissionCommand {
    permission_id: String,
    #[serde(flatten)]
    answer: AnswerBody,
}

/// An answer to an elicitation.
#[derive(Deserialize)]
struct ElicitationCommand {
    elicitation_id: String,
    #[serde(flatten)]
    answer: ElicitationAnswerBody,
}

/// What is sent.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Outgoing {
    Event {
        event: EventView,
    },
    Reset(Reset),
    Accepted {
        r#ref: Option<Value>,
        #[serde(flatten)]
        done: Done,
    },
    Error {
        r#ref: Option<Value>,
        #[serde(flatten)]
        error: Box<ErrorBody>,
    },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Done {
    Prompt {
        turn_id: Uuid,
        session_id: Option<String>,
        queued: bool,
    },
    Cancel {
        message: &'static str,
    },
    Permission {
        permission: Box<PermissionView>,
    },
    Elicitation {
        elicitation: Box<ElicitationView>,
    },
}

/// Why the server closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Close {
    Ended,
    Stopping,
    Failed,
    /// The client closed, or is gone.
    Gone,
}

/// Events and commands over a WebSocket
///
/// Sends `{"type":"event","event":{…}}` for every event, in order, from `after` on (and `{"type":"reset","oldest_seq":n}` where
/// older ones are not kept any more). Takes `{"type":"prompt","message"|"prompt","prompt_meta","when_busy","ref"}`,
/// `{"type":"cancel","reason","ref"}`, `{"type":"permission","permission_id","option_id"|"kind"|"outcome","ref"}` and
/// `{"type":"elicitation","elicitation_id","action","content","ref"}`, and answers `{"type":"accepted","ref",…}`, or
/// `{"type":"error","ref",…}` with the fields of the error body. Closes with 1000 when the instance has ended and all was sent, with 1001 when the server stops.
#[utoipa::path(
    get, path = "/api/v1/agents/{id}/ws", tag = "agents",
    params(("id" = String, Path, description = "The instance"), WsParams),
    responses((status = 101, description = "From here on a WebSocket"))
)]
pub async fn ws(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    headers: HeaderMap,
    ApiQuery(params): ApiQuery<WsParams>,
    Extension(request_id): Extension<RequestId>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> ApiResult<Response> {
    let id = super::instance(&state, &id).await?.id;
    let upgrade = upgrade.map_err(socket::no_handshake)?;
    socket::same_origin(&headers)?;
    let after = params.after.unwrap_or(0);
    if after < 0 {
        return Err(ApiError::validation("after", "must not be negative"));
    }
    let kinds = names("kind", params.kind.as_deref())?;
    let said_by = "after";
    Start { after, said_by }.check(stream::standing(&state, id).await?)?;
    let follower = Follower::new(state.clone(), id, kinds, after);
    // The server's end waits for this one too.
    let tracked = state.sockets.token();
    // Somewhat too large a message gets an answer; a far too large one ends the connection.
    let limit = state.config.body_limit_bytes.saturating_mul(2);
    let upgrade = upgrade.max_message_size(limit).max_frame_size(limit);
    Ok(upgrade.on_upgrade(async move |socket| {
        let commands = Commands {
            state,
            id,
            request_id: request_id.to_string(),
        };
        run(socket, follower, commands).await;
        drop(tracked);
    }))
}

async fn run(socket: WebSocket, follower: Follower, commands: Commands) {
    let stopping = commands.state.stopping.clone();
    let (mut sink, mut source) = socket.split();
    let (answers, waiting) = mpsc::channel(ANSWERS);
    let missed = AtomicU32::new(0);
    let close = tokio::select! {
        close = send(&mut sink, follower, waiting, &missed) => close,
        close = commands.receive(&mut source, answers, &missed) => close,
        // A client that does not read must not hold up the end.
        () = stopping.cancelled() => Close::Stopping,
    };
    let (code, reason) = match close {
        Close::Ended => (close_code::NORMAL, "the instance has ended"),
        Close::Stopping => (close_code::AWAY, "the server stops"),
        Close::Failed => (close_code::ERROR, "something went wrong on our side"),
        Close::Gone => (
            close_code::POLICY,
            "the message could not be read, or no ping was answered",
        ),
    };
    socket::close(sink, source, code, reason).await;
}

/// Sends events as they come, and answers between them.
async fn send(
    sink: &mut SplitSink<WebSocket, Message>,
    mut follower: Follower,
    mut answers: mpsc::Receiver<Outgoing>,
    missed: &AtomicU32,
) -> Close {
    loop {
        let step = tokio::select! {
            biased;
            Some(answer) = answers.recv() => {
                if sink.send(text(&answer)).await.is_err() { return Close::Gone }
                continue;
            }
            step = timeout(KEEP_ALIVE, follower.next()) => step,
        };
        let sent = match step {
            Ok(Ok(Step::Events(events))) => send_page(sink, events, &mut answers).await,
            Ok(Ok(Step::Reset(reset))) => sink.send(text(&Outgoing::Reset(reset))).await,
            Ok(Ok(Step::Ended)) => {
                while let Ok(answer) = answers.try_recv() {
                    if sink.send(text(&answer)).await.is_err() {
                        return Close::Gone;
                    }
                }
                return Close::Ended;
            }
            Ok(Ok(Step::Stopping)) => return Close::Stopping,
            Ok(Err(error)) => {
                log(&error);
                return Close::Failed;
            }
            Err(_) if missed.fetch_add(1, Ordering::Relaxed) >= MAX_MISSED => return Close::Gone,
            Err(_) => sink.send(Message::Ping(axum::body::Bytes::new())).await,
        };
        if sent.is_err() {
            return Close::Gone;
        }
    }
}

async fn send_page(
    sink: &mut SplitSink<WebSocket, Message>,
    events: Vec<kandev_domain::Event>,
    answers: &mut mpsc::Receiver<Outgoing>,
) -> Result<(), axum::Error> {
    for event in events {
        let event = EventView::from(event);
        sink.feed(text(&Outgoing::Event { event })).await?;
        while let Ok(answer) = answers.try_recv() {
            sink.feed(text(&answer)).await?;
        }
    }
    sink.flush().await
}

fn text(message: &Outgoing) -> Message {
    Message::text(serde_json::to_string(message).unwrap_or_default())
}

/// As the edge does it for responses.
fn log(error: &ApiError) {
    let (code, cause) = (error.code().as_str(), error.cause_text());
    if error.http_status().is_server_error() {
        tracing::error!(code, cause, "{error}");
    } else {
        tracing::debug!(code, cause, "refused");
    }
}

/// The way of commands.
struct Commands {
    state: AppState,
    id: InstanceId,
    request_id: String,
}

impl Commands {
    async fn receive(
        &self,
        source: &mut SplitStream<WebSocket>,
        answers: mpsc::Sender<Outgoing>,
        missed: &AtomicU32,
    ) -> Close {
        while let Some(Ok(message)) = source.next().await {
            missed.store(0, Ordering::Relaxed);
            let outcome = match &message {
                Message::Text(text) => self.command(text.as_str()).await,
                Message::Binary(_) => Err(ApiError::bad_request("commands are text")),
                // Pings are answered by the library.
                Message::Ping(_) | Message::Pong(_) | Message::Close(_) => continue,
            };
            let named = serde_json::from_slice::<Named>(&message.into_data());
            let reference = named.unwrap_or_default().r#ref;
            let answer = match outcome {
                Ok(done) => Outgoing::Accepted {
                    r#ref: reference,
                    done,
                },
                Err(error) => {
                    log(&error);
                    Outgoing::Error {
                        r#ref: reference,
                        error: Box::new(error.body(Some(self.request_id.clone()))),
                    }
                }
            };
            if answers.send(answer).await.is_err() {
                break;
            }
        }
        Close::Gone
    }

    async fn command(&self, text: &str) -> ApiResult<Done> {
        let limit = self.state.config.body_limit_bytes;
        if text.len() > limit {
            let message = format!("the message is over the limit of {limit} bytes");
            return Err(ApiError::new(ErrorCode::PayloadTooLarge, message));
        }
        let bytes = text.as_bytes();
        let orchestrator = &self.state.orchestrator;
        match from_json::<Envelope>(bytes)?.r#type.as_str() {
            "prompt" => {
                let (prompt, meta, when_busy) = from_json::<PromptBody>(bytes)?.into_prompt()?;
                let accepted = orchestrator.prompt(self.id, prompt, meta, when_busy).await?;
                Ok(Done::Prompt {
                    turn_id: accepted.turn_id.0,
                    session_id: accepted.session_id,
                    queued: accepted.queued,
                })
            }
            "cancel" => {
                let reason = from_json::<ReasonBody>(bytes)?.reason;
                let message = match orchestrator.cancel(self.id, reason).await? {
                    Cancelled::Cancelling => "the turn is being cancelled",
                    Cancelled::Nothing => "there is no turn to cancel",
                    Cancelled::Underway => "the instance was told; what came of it is not on record yet",
                };
                Ok(Done::Cancel { message })
            }
            "permission" => {
                let body = from_json::<PermissionCommand>(bytes)?;
                let id = permission_id(&body.permission_id)?;
                let answer = body.answer.into_answer()?;
                let answered = orchestrator.answer_permission(self.id, id, answer).await?;
                Ok(Done::Permission {
                    permission: Box::new(answered.into()),
                })
            }
            "elicitation" => {
                let body = from_json::<ElicitationCommand>(bytes)?;
                let id = elicitation_id(&body.elicitation_id)?;
                let answer = body.answer.into_answer()?;
                let answered = orchestrator.answer_elicitation(self.id, id, answer).await?;
                Ok(Done::Elicitation {
                    elicitation: Box::new(answered.into()),
                })
            }
            _ => Err(ApiError::validation(
                "type",
                "must be 'prompt', 'cancel', 'permission' or 'elicitation'",
            )),
        }
    }
}
