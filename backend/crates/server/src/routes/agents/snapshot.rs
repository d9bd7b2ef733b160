//! `GET /api/v1/agents/{id}/events?snapshot=true`: what the events so far add up to, and the position to follow from.

use std::collections::BTreeMap;

use kandev_domain::{EventKind, InstanceId, InstanceStatus, TurnState, TurnStatus};
use kandev_store::journal::{self, EventQuery};
use kandev_store::{snapshot, turns::Turn};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use super::session::SessionState;
use super::turns::{TurnView, view};
use crate::error::{ApiError, ApiResult};
use crate::routes::elicitations::ElicitationView;
use crate::routes::permissions::PermissionView;
use crate::state::AppState;

/// How many turns are shown: older ones are pages of `GET /agents/{id}/turns`.
const MAX_TURNS: i64 = 50;
/// How many tool calls are shown; of more the latest.
const MAX_CALLS: usize = 64;
/// What is read at once.
const EVENTS_AT_ONCE: usize = 2000;
const BYTES_AT_ONCE: usize = 4 << 20;

/// An instance as of one position in its history.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Snapshot {
    /// The last event that this knows of: follow with `Last-Event-ID: seq`.
    seq: i64,
    instance_id: Uuid,
    task_id: String,
    status: InstanceStatus,
    turn_state: TurnState,
    /// The agent's id; null until it is established.
    session_id: Option<String>,
    session: SessionState,
    /// The session's, once more.
    #[schema(value_type = Option<Vec<Object>>)]
    plan: Option<Box<RawValue>>,
    /// The last 50, oldest first, the running one and those that wait included.
    turns: Vec<TurnView>,
    /// How many there are in all.
    total_turns: i64,
    /// Of the running turn: what was said of each, the latest of each field. At most 64.
    #[schema(value_type = Vec<Object>)]
    open_tool_calls: Vec<ToolCall>,
    /// Those that wait for an answer, oldest first.
    permissions: Vec<PermissionView>,
    /// The same.
    elicitations: Vec<ElicitationView>,
}

/// A tool call's fields, as the agent gave them.
type ToolCall = BTreeMap<String, Box<RawValue>>;

/// Reads it.
pub(super) async fn load(state: &AppState, id: InstanceId) -> ApiResult<Snapshot> {
    let found = snapshot::read(&state.pool, id, MAX_TURNS).await?;
    let found = found.ok_or_else(|| ApiError::not_found("agent instance", id))?;
    let running = found.turns.iter().find(|t| t.status == TurnStatus::Running);
    let open_tool_calls = match running {
        Some(turn) => open_tool_calls(state, turn, found.seq).await?,
        None => Vec::new(),
    };
    let mut turns = Vec::with_capacity(found.turns.len());
    for mut turn in found.turns {
        // What came since is for those who follow.
        turn.last_seq.get_or_insert(found.seq);
        turns.push(view(state, turn).await?);
    }
    let session = SessionState::of(found.facets, found.usage, found.subagents);
    Ok(Snapshot {
        seq: found.seq,
        instance_id: id.0,
        task_id: found.task_id.to_string(),
        status: found.status,
        turn_state: found.turn_state,
        session_id: found.session_id,
        plan: session.plan.clone(),
        session,
        turns,
        total_turns: found.total_turns,
        open_tool_calls,
        permissions: found.permissions.into_iter().map(Into::into).collect(),
        elicitations: found.elicitations.into_iter().map(Into::into).collect(),
    })
}

async fn open_tool_calls(state: &AppState, turn: &Turn, until: i64) -> ApiResult<Vec<ToolCall>> {
    let mut calls = Calls::default();
    let mut query = EventQuery {
        after: turn.first_seq.unwrap_or(until),
        until: Some(until),
        kinds: vec![EventKind::Update],
        limit: EVENTS_AT_ONCE,
        max_bytes: BYTES_AT_ONCE,
    };
    loop {
        let page = journal::events(&state.pool, turn.instance_id, &query).await?;
        for event in page.events.iter().filter(|e| e.turn_id == Some(turn.id)) {
            calls.take(&event.data);
        }
        match page.next_after {
            Some(next) => query.after = next,
            None => return Ok(calls.0.into_iter().map(|(_, call)| call).collect()),
        }
    }
}

/// The open calls by id, in the order in which they began.
#[derive(Default)]
struct Calls(Vec<(String, ToolCall)>);

impl Calls {
    /// Takes an update of any kind.
    fn take(&mut self, params: &RawValue) {
        #[derive(Deserialize)]
        struct Params {
            update: ToolCall,
        }
        let Ok(Params { mut update }) = serde_json::from_str(params.get()) else {
            return;
        };
        let kind = update.remove("sessionUpdate");
        let kind = kind.as_deref().map_or("", RawValue::get);
        if !matches!(kind, r#""tool_call""# | r#""tool_call_update""#) {
            return;
        }
        let Some(id) = update.get("toolCallId").map(|id| id.get().to_owned()) else {
            return;
        };
        // In an update, a field that is null or absent stays as it was.
        update.retain(|_, value| value.get() != "null");
        let known = self.0.iter().position(|(known, _)| *known == id);
        let at = known.unwrap_or_else(|| {
            if self.0.len() == MAX_CALLS {
                self.0.remove(0);
            }
            self.0.push((id, ToolCall::new()));
            self.0.len() - 1
        });
        let call = &mut self.0[at].1;
        call.extend(update);
        let status = call.get("status").map_or("", |status| status.get());
        if matches!(status, r#""completed""# | r#""failed""#) {
            self.0.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn take(calls: &mut Calls, update: Value) {
        let params = json!({"sessionId": "s", "update": update});
        calls.take(&serde_json::value::to_raw_value(&params).unwrap());
    }

    fn call(id: &str, status: &str) -> Value {
        json!({"sessionUpdate": "tool_call", "toolCallId": id, "title": "T", "status": status, "kind": "edit"})
    }

    #[test]
    fn a_call_is_the_latest_of_each_of_its_fields() {
        let mut calls = Calls::default();
        take(&mut calls, call("a", "pending"));
        take(&mut calls, call("b", "pending"));
        take(
            &mut calls,
            json!({"sessionUpdate": "tool_call_update", "toolCallId": "a", "status": "in_progress", "title": null}),
        );
        take(
            &mut calls,
            json!({"sessionUpdate": "tool_call_update", "toolCallId": "b", "status": "failed"}),
        );
        take(
            &mut calls,
            json!({"sessionUpdate": "agent_message_chunk", "toolCallId": "c"}),
        );
        take(&mut calls, json!("nonsense"));
        let open: Vec<_> = calls.0.iter().map(|(_, call)| json!(call)).collect();
        assert_eq!(
            open,
            [json!({"toolCallId": "a", "title": "T", "status": "in_progress", "kind": "edit"})]
        );
    }

    #[test]
    fn of_too_many_calls_the_latest_are_kept() {
        let mut calls = Calls::default();
        for n in 0..=MAX_CALLS {
            take(&mut calls, call(&n.to_string(), "in_progress"));
        }
        let ids: Vec<_> = calls.0.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!((ids.len(), ids[0]), (MAX_CALLS, r#""1""#));
    }
}
