//! What an agent asks to be allowed, and who answers.
//!
//! A request is decided at once by the rule of its tool's kind, else by an `…_always` answer that a caller gave before in the
//! session; otherwise it stays open until a caller answers, its time is up, or its turn or the instance ends. It is a row and an
//! event before anybody can see it, and its answer is both before the agent gets it ([`crate::outbox`]); the answer's frame is
//! on record until it is written. So another process finds a request either open or with its answer on the way.

mod open;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use kandev_acp::Id;
use kandev_acp::permission::{Choice, PermissionRequest, PermissionResponse, choose};
use kandev_domain::permission::PermissionDefault;
use kandev_domain::status::PermissionPolicy;
use kandev_domain::{
    DecidedBy, EventKind, LogLevel, PermissionId, PermissionStatus, ToolKind, TurnId, TurnState,
};
use kandev_store::journal::Change;
use kandev_store::permissions::{NewPermission, Permission, PermissionEnd};
use kandev_store::record::{Data, Record, Source};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::Instant;

use open::{MAX_WORDS, Open};

use super::actor::Actor;

pub(super) use open::Permissions;
pub(crate) use open::{MAX_REMEMBERED, ToolKinds};

/// How many requests of one agent may be open; those beyond are cancelled.
const MAX_OPEN: usize = 64;
/// How many options a caller can be asked to choose from, and how many bytes they have.
const MAX_OPTIONS: usize = 64;
const MAX_OPTION_BYTES: usize = 64 << 10;
/// A larger tool call is cut down to its name in the row; the event has it whole.
const MAX_CALL_BYTES: usize = 256 << 10;

/// What a caller answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PermissionAnswer {
    /// The option of this id.
    OptionId(String),
    /// The first option of this kind.
    Kind(String),
    /// None of them.
    Cancelled,
}

/// Why an answer does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum AnswerRefused {
    /// It has its answer, or there never was such a request.
    #[error("the permission request is not open")]
    NotOpen,
    /// The agent offers none of this id.
    #[error("is none of the options")]
    NoSuchOption,
    /// The agent offers none of this kind.
    #[error("none of the options is of this kind")]
    NoSuchKind,
}

/// The event's data: the request as the API has it.
#[derive(Serialize)]
struct Asked<'a> {
    id: PermissionId,
    request_id: &'a Id,
    session_id: Option<&'a str>,
    turn_id: Option<TurnId>,
    tool_kind: ToolKind,
    tool_call: Option<&'a RawValue>,
    options: &'a RawValue,
    status: PermissionStatus,
    requested_at: DateTime<Utc>,
    expires_at: Option<DateTime<Utc>>,
}

/// The event's data.
#[derive(Serialize)]
struct Resolved<'a> {
    id: PermissionId,
    request_id: &'a Id,
    status: PermissionStatus,
    outcome: &'a RawValue,
    option_kind: Option<&'a str>,
    decided_by: DecidedBy,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<PermissionPolicy>,
    answered_at: DateTime<Utc>,
}

impl Actor {
    /// What the running instance is doing.
    pub(super) fn turn_state(&self) -> TurnState {
        let running = self.turns.running.as_ref().map(|r| r.id);
        match self.turns.state() {
            TurnState::Prompting if self.permissions.open.iter().any(|open| open.turn == running) => {
                TurnState::AwaitingPermission
            }
            TurnState::Prompting if self.elicitations.wait_in(running) => TurnState::AwaitingInput,
            state => state,
        }
    }

    /// The agent asks for a permission, in a turn or outside of one.
    pub(super) fn permission_asked(&mut self, source: Source, line: Bytes, id: &Id, params: &RawValue) {
        if self.asks_again(id) {
            return self.message(source, line);
        }
        let request = PermissionRequest::read(params);
        let now = self.shared.clock.now();
        let mut context = self.context();
        if let Some(session) = &request.session_id {
            context.session_id = Some(session.as_ref().to_owned());
        }
        let own = self.session.as_ref().map(|s| s.id.as_str());
        let call_id = request.call_id.as_deref();
        let known = || self.permissions.kinds.of(call_id);
        let open = Open {
            id: PermissionId::generate(),
            request: id.clone(),
            tool_kind: request.tool_kind.or_else(known).unwrap_or_default(),
            title: request.title.as_deref().map(cut),
            own_session: own.is_some() && own == context.session_id.as_deref(),
            turn: self.turns.running.as_ref().map(|r| r.id),
            context,
            until: None,
            options: request.options.clone(),
        };
        let decided = self.decide(&open, &request);
        let limit = decided.is_none().then(|| self.permission_limit()).flatten();
        let expires_at = limit.map(|limit| now + limit);
        self.record_permission(source, line, &open, &request, now, expires_at);
        if let Some((choice, by)) = decided {
            return self.close_permission(open, &choice, by);
        }
        // The id that callers get to see must be the same after a crash of the database.
        self.outbox.durable();
        self.permissions.open.push(Open {
            until: limit.map(|limit| Instant::now() + limit),
            ..open
        });
    }

    /// The answer, if nobody has to be asked.
    fn decide(&mut self, open: &Open, request: &PermissionRequest<'_>) -> Option<(Choice, DecidedBy)> {
        if self.ending.is_some() {
            return Some((Choice::Cancelled, DecidedBy::InstanceEnd));
        }
        if self.turns.running.as_ref().is_some_and(|r| r.cancel.is_some()) {
            return Some((Choice::Cancelled, DecidedBy::Cancel));
        }
        if let Some(choice) = choose(self.policy_for(open.tool_kind), &open.options) {
            return Some((choice, DecidedBy::Policy));
        }
        if let Some(choice) = self.permissions.recall(open) {
            return Some((choice, DecidedBy::Remembered));
        }
        let bytes = request.raw_options.map_or(0, |raw| raw.get().len());
        let problem = if open.options.is_empty() {
            "it has no options"
        } else if open.options.len() > MAX_OPTIONS || bytes > MAX_OPTION_BYTES {
            "it has too many options"
        } else if self.permissions.open.len() >= MAX_OPEN {
            "too many wait for an answer already"
        } else {
            return None;
        };
        self.log(
            LogLevel::Warn,
            format!("a permission request is cancelled: {problem}"),
        );
        Some((Choice::Cancelled, DecidedBy::Limit))
    }

    fn policy_for(&self, kind: ToolKind) -> PermissionPolicy {
        let default = self.spec.permission_policy;
        self.spec.options.permission_rules.policy(kind, default)
    }

    fn permission_limit(&self) -> Option<std::time::Duration> {
        let own = self.spec.options.permission_timeout_seconds;
        own.map(std::time::Duration::from_secs)
            .or(self.shared.settings.permission_timeout)
    }

    fn record_permission(
        &mut self,
        source: Source,
        line: Bytes,
        open: &Open,
        request: &PermissionRequest<'_>,
        now: DateTime<Utc>,
        expires_at: Option<DateTime<Utc>>,
    ) {
        let none = super::raw(&[(); 0]);
        let options = request.raw_options.unwrap_or(&none);
        let data = super::raw(&Asked {
            id: open.id,
            request_id: &open.request,
            session_id: open.context.session_id.as_deref(),
            turn_id: open.context.turn_id,
            tool_kind: open.tool_kind,
            tool_call: request.tool_call,
            options,
            status: PermissionStatus::Pending,
            requested_at: now,
            expires_at,
        });
        self.outbox.record(Record {
            at: now,
            kind: EventKind::PermissionRequested,
            session_id: open.context.session_id.clone(),
            turn_id: open.context.turn_id,
            source: Some(source),
            line,
            data: Data::Json(data),
        });
        let fits = options.get().len() <= MAX_OPTION_BYTES;
        self.outbox
            .change(Change::PermissionAsked(Box::new(NewPermission {
                id: open.id,
                instance_id: self.spec.id,
                session_key: self.session.as_ref().map(|s| s.key),
                session_id: open.context.session_id.clone(),
                turn_id: open.context.turn_id,
                request_id: open.request.as_raw().get().to_owned(),
                tool_kind: open.tool_kind,
                tool_call: request.tool_call.map(|raw| stored_call(raw, request)),
                options: if fits { options } else { &none }.get().to_owned(),
                requested_at: now,
                expires_at,
            })));
    }

    /// Gives a request its answer, on record and, where it can still hear it, to the agent.
    fn close_permission(&mut self, open: Open, choice: &Choice, by: DecidedBy) {
        let now = self.shared.clock.now();
        let (option, status) = match choice {
            Choice::Selected(option) => (Some(option), PermissionStatus::Selected),
            Choice::Cancelled => (None, PermissionStatus::Cancelled),
        };
        let status = if by == DecidedBy::Timeout {
            PermissionStatus::Expired
        } else {
            status
        };
        let remembered = option
            .filter(|_| by == DecidedBy::Caller)
            .and_then(|option| open.words(option));
        let outcome = choice.outcome();
        let data = super::raw(&Resolved {
            id: open.id,
            request_id: &open.request,
            status,
            outcome: &outcome,
            option_kind: option.map(|option| option.kind.as_str()),
            decided_by: by,
            policy: (by == DecidedBy::Policy).then(|| self.policy_for(open.tool_kind)),
            answered_at: now,
        });
        self.outbox
            .event(now, EventKind::PermissionResolved, open.context, &data);
        self.outbox.change(Change::PermissionAnswered(PermissionEnd {
            id: open.id,
            status,
            outcome: outcome.get().to_owned(),
            decided_by: by,
            remembered: remembered.clone(),
            answered_at: now,
        }));
        self.outbox.durable();
        if let Some(answer) = remembered {
            self.permissions.remember(answer);
        }
        self.answer_request(&open.request, by, &PermissionResponse { outcome: &outcome });
    }

    /// A caller's answer.
    pub(super) fn answer_permission(
        &mut self,
        id: PermissionId,
        answer: &PermissionAnswer,
    ) -> Result<(), AnswerRefused> {
        let position = self.permissions.open.iter().position(|open| open.id == id);
        let at = position.ok_or(AnswerRefused::NotOpen)?;
        let mut options = self.permissions.open[at].options.iter();
        let found = match answer {
            PermissionAnswer::Cancelled => None,
            PermissionAnswer::OptionId(id) => {
                Some(options.find(|o| o.id == *id).ok_or(AnswerRefused::NoSuchOption)?)
            }
            PermissionAnswer::Kind(kind) => Some(
                options
                    .find(|o| o.kind == *kind)
                    .ok_or(AnswerRefused::NoSuchKind)?,
            ),
        };
        let choice = found.map_or(Choice::Cancelled, |option| Choice::Selected(option.clone()));
        let open = self.permissions.open.remove(at);
        self.close_permission(open, &choice, DecidedBy::Caller);
        Ok(())
    }

    /// Answers what has waited too long.
    pub(super) fn expire_permissions(&mut self) {
        let now = Instant::now();
        let own = self.spec.options.permission_default;
        let policy = match own.unwrap_or(self.shared.settings.permission_default) {
            PermissionDefault::Allow => Some(PermissionPolicy::Allow),
            PermissionDefault::Reject => Some(PermissionPolicy::Reject),
            PermissionDefault::Cancelled => None,
        };
        for open in self.take_permissions(|open| open.until.is_some_and(|until| until <= now)) {
            let choice = policy.and_then(|policy| choose(policy, &open.options));
            self.close_permission(open, &choice.unwrap_or(Choice::Cancelled), DecidedBy::Timeout);
        }
    }

    /// The agent takes a request back; false if it is not open.
    pub(super) fn withdraw_permission(&mut self, request: &Id) -> bool {
        let found = self.take_permissions(|open| open.request == *request);
        let was_open = !found.is_empty();
        for open in found {
            self.close_permission(open, &Choice::Cancelled, DecidedBy::Agent);
        }
        was_open
    }

    /// Answers every open request, or those of a turn, `cancelled`.
    pub(super) fn cancel_permissions(&mut self, of: Option<TurnId>, by: DecidedBy) {
        for open in self.take_permissions(|open| of.is_none() || open.turn == of) {
            self.close_permission(open, &Choice::Cancelled, by);
        }
    }

    fn take_permissions(&mut self, which: impl Fn(&Open) -> bool) -> Vec<Open> {
        let all = std::mem::take(&mut self.permissions.open);
        let (taken, left) = all.into_iter().partition(which);
        self.permissions.open = left;
        taken
    }

    /// Puts back what another process left open.
    pub(super) fn restore_permissions(&mut self, rows: Vec<Permission>, kinds: ToolKinds) {
        let (wall, now) = (self.shared.clock.now(), Instant::now());
        let running = self.turns.running.as_ref().map(|r| r.id);
        let own = self.session.as_ref().map(|s| s.id.as_str());
        let open = rows
            .into_iter()
            .filter_map(|row| Open::restore(row, own, running, wall, now));
        self.permissions.open = open.collect();
        self.permissions.kinds = kinds;
    }
}

/// Still longer than what is remembered, so that a beginning does not stand for the whole.
fn cut(text: &str) -> String {
    text.chars().take(2 * MAX_WORDS).collect()
}

/// A tool call as its row has it.
fn stored_call(raw: &RawValue, request: &PermissionRequest<'_>) -> String {
    if raw.get().len() <= MAX_CALL_BYTES {
        return raw.get().to_owned();
    }
    let name = json!({
        "toolCallId": request.call_id.as_deref().map(cut),
        "title": request.title.as_deref().map(cut),
        "kind": request.tool_kind,
        "_meta": {"kandev.truncated": true},
    });
    name.to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_large_call_is_cut_down_to_its_name() {
        let call =
            json!({"toolCallId": "t", "title": "é".repeat(5000), "rawInput": "x".repeat(MAX_CALL_BYTES)});
        let params = crate::instance::raw(&json!({"toolCall": call}));
        let request = PermissionRequest::read(&params);
        let stored = stored_call(request.tool_call.unwrap(), &request);
        assert!(stored.len() < 16 << 10, "{}", stored.len());
        let stored: Value = serde_json::from_str(&stored).unwrap();
        assert_eq!(
            (&stored["toolCallId"], &stored["_meta"]),
            (&json!("t"), &json!({"kandev.truncated": true}))
        );
        assert!(stored["title"].as_str().unwrap().len() > MAX_WORDS);
    }
}
