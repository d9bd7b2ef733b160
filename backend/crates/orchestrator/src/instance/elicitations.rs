//! What an agent asks people for, forms and URLs, and who answers.
//!
//! They are kept as permission requests are ([`super::permissions`]): on record before anybody sees them, answered once, their
//! answer on record before the agent has it. But no policy answers them: there is nothing that it could fill in. What was to be
//! done at a URL the agent tells when it is done, long after the answer perhaps.

mod open;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use kandev_acp::client_methods::Offered;
use kandev_acp::elicitation::{Action, ElicitationRequest, Mode, completed};
use kandev_acp::{Id, RpcError, outgoing, rpc_error};
use kandev_domain::elicitation::ElicitationDefault;
use kandev_domain::{
    DecidedBy, ElicitationId, ElicitationMode, ElicitationStatus, EventKind, LogLevel, TurnId,
};
use kandev_store::elicitations::{Elicitation, ElicitationCompletion, ElicitationEnd, NewElicitation};
use kandev_store::journal::Change;
use kandev_store::record::{Data, Record, Source};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use open::{Awaited, Open};

use super::actor::Actor;

pub(super) use open::Elicitations;
pub(crate) use open::MAX_AWAITED;

/// How many of one agent may be open; those beyond are cancelled.
const MAX_OPEN: usize = 64;
/// How large the form, and how long the other words may be; what is larger is cancelled.
const MAX_FORM_BYTES: usize = 64 << 10;
const MAX_WORDS: usize = 16 << 10;

/// The event's data: the elicitation as the API has it.
#[derive(Serialize)]
struct Asked<'a> {
    id: ElicitationId,
    request_id: &'a Id,
    session_id: Option<&'a str>,
    turn_id: Option<TurnId>,
    mode: ElicitationMode,
    message: &'a str,
    tool_call_id: Option<&'a str>,
    requested_schema: Option<&'a RawValue>,
    url: Option<&'a str>,
    agent_key: Option<&'a str>,
    status: ElicitationStatus,
    requested_at: DateTime<Utc>,
    expires_at: Option<DateTime<Utc>>,
}

/// The event's data.
#[derive(Serialize)]
struct Resolved<'a> {
    id: ElicitationId,
    request_id: &'a Id,
    status: ElicitationStatus,
    outcome: &'a RawValue,
    decided_by: DecidedBy,
    answered_at: DateTime<Utc>,
}

/// The event's data.
#[derive(Serialize)]
struct Finished<'a> {
    id: ElicitationId,
    agent_key: &'a str,
    completed_at: DateTime<Utc>,
}

impl Actor {
    /// The agent asks people for something, in a turn or outside of one.
    pub(super) fn elicitation_asked(&mut self, source: Source, line: Bytes, id: &Id, params: &RawValue) {
        let request = match self.readable(params) {
            Ok(request) => request,
            Err(error) => {
                self.message(source, line);
                return self.send(outgoing::respond_error(Some(id), &error));
            }
        };
        if self.asks_again(id) {
            return self.message(source, line);
        }
        let now = self.shared.clock.now();
        let mut context = self.context();
        if let Some(session) = &request.session_id {
            context.session_id = Some(session.as_ref().to_owned());
        }
        let open = Open {
            id: ElicitationId::generate(),
            request: id.clone(),
            turn: self.turns.running.as_ref().map(|r| r.id),
            context,
            until: None,
        };
        let decided = self.decide_elicitation(&request);
        let limit = decided.is_none().then(|| self.elicitation_limit()).flatten();
        self.record_elicitation(source, line, &open, &request, now, limit.map(|limit| now + limit));
        if let Mode::Url { key, .. } = &request.mode {
            self.elicitations.await_done(Awaited {
                id: open.id,
                key: key.as_ref().to_owned(),
                context: open.context.clone(),
            });
        }
        if let Some(by) = decided {
            return self.close_elicitation(open, &Action::Cancel, by);
        }
        // The id that callers get to see must be the same after a crash of the database.
        self.outbox.durable();
        self.elicitations.open.push(Open {
            until: limit.map(|limit| Instant::now() + limit),
            ..open
        });
    }

    /// What can be shown, of what was offered.
    fn readable<'a>(&self, params: &'a RawValue) -> Result<ElicitationRequest<'a>, RpcError> {
        let offered = Offered::of(self.spec.agent_type.protocol, &self.initialize_params());
        if !offered.form && !offered.url {
            return Err(RpcError::method_not_found("elicitation/create"));
        }
        let request = ElicitationRequest::read(params)?;
        let is_offered = match request.mode {
            Mode::Form { .. } => offered.form,
            Mode::Url { .. } => offered.url,
        };
        if is_offered {
            return Ok(request);
        }
        let problem = "elicitations of this mode were not offered";
        Err(RpcError::new(rpc_error::INVALID_PARAMS, problem))
    }

    /// Who cancels it, if nobody is to be asked.
    fn decide_elicitation(&mut self, request: &ElicitationRequest<'_>) -> Option<DecidedBy> {
        if self.ending.is_some() {
            return Some(DecidedBy::InstanceEnd);
        }
        if self.turns.running.as_ref().is_some_and(|r| r.cancel.is_some()) {
            return Some(DecidedBy::Cancel);
        }
        let problem = if !fits(request) {
            "it is too large"
        } else if self.elicitations.open_count() >= MAX_OPEN {
            "too many wait for an answer already"
        } else {
            return None;
        };
        self.log(LogLevel::Warn, format!("an elicitation is cancelled: {problem}"));
        Some(DecidedBy::Limit)
    }

    fn elicitation_limit(&self) -> Option<std::time::Duration> {
        let own = self.spec.options.elicitation_timeout_seconds;
        own.map(std::time::Duration::from_secs)
            .or(self.shared.settings.elicitation_timeout)
    }

    fn record_elicitation(
        &mut self,
        source: Source,
        line: Bytes,
        open: &Open,
        request: &ElicitationRequest<'_>,
        now: DateTime<Utc>,
        expires_at: Option<DateTime<Utc>>,
    ) {
        let (mode, schema, url, key) = match &request.mode {
            Mode::Form { schema } => (ElicitationMode::Form, Some(*schema), None, None),
            Mode::Url { url, key } => (ElicitationMode::Url, None, Some(&**url), Some(&**key)),
        };
        let data = super::raw(&Asked {
            id: open.id,
            request_id: &open.request,
            session_id: open.context.session_id.as_deref(),
            turn_id: open.context.turn_id,
            mode,
            message: &request.message,
            tool_call_id: request.tool_call_id.as_deref(),
            requested_schema: schema,
            url,
            agent_key: key,
            status: ElicitationStatus::Pending,
            requested_at: now,
            expires_at,
        });
        self.outbox.record(Record {
            at: now,
            kind: EventKind::ElicitationRequested,
            session_id: open.context.session_id.clone(),
            turn_id: open.context.turn_id,
            source: Some(source),
            line,
            data: Data::Json(data),
        });
        // Of what is too large, the event has it.
        let whole = fits(request);
        let kept = |text: Option<&str>| text.filter(|_| whole).map(ToOwned::to_owned);
        self.outbox
            .change(Change::ElicitationAsked(Box::new(NewElicitation {
                id: open.id,
                instance_id: self.spec.id,
                session_id: open.context.session_id.clone(),
                turn_id: open.context.turn_id,
                request_id: open.request.as_raw().get().to_owned(),
                mode,
                message: kept(Some(&request.message)).unwrap_or_default(),
                tool_call_id: kept(request.tool_call_id.as_deref()),
                requested_schema: kept(schema.map(RawValue::get)),
                url: kept(url),
                agent_key: kept(key),
                requested_at: now,
                expires_at,
            })));
    }

    /// Gives one its answer, on record and, where it can still hear it, to the agent.
    fn close_elicitation(&mut self, open: Open, action: &Action, by: DecidedBy) {
        let now = self.shared.clock.now();
        let status = match action {
            _ if by == DecidedBy::Timeout => ElicitationStatus::Expired,
            Action::Accept { .. } => ElicitationStatus::Accepted,
            Action::Decline => ElicitationStatus::Declined,
            Action::Cancel => ElicitationStatus::Cancelled,
        };
        if status != ElicitationStatus::Accepted {
            self.elicitations.await_no_more(open.id);
        }
        let outcome = action.outcome();
        let data = super::raw(&Resolved {
            id: open.id,
            request_id: &open.request,
            status,
            outcome: &outcome,
            decided_by: by,
            answered_at: now,
        });
        self.outbox
            .event(now, EventKind::ElicitationResolved, open.context, &data);
        self.outbox.change(Change::ElicitationAnswered(ElicitationEnd {
            id: open.id,
            status,
            outcome: outcome.get().to_owned(),
            decided_by: by,
            answered_at: now,
        }));
        self.outbox.durable();
        self.answer_request(&open.request, by, &outcome);
    }

    /// A caller's answer, which fits the form; false if it is not open.
    pub(super) fn answer_elicitation(&mut self, id: ElicitationId, action: &Action) -> bool {
        let found = self.elicitations.take(|open| open.id == id);
        let was_open = !found.is_empty();
        for open in found {
            self.close_elicitation(open, action, DecidedBy::Caller);
        }
        was_open
    }

    /// Answers what has waited too long.
    pub(super) fn expire_elicitations(&mut self) {
        let now = Instant::now();
        let own = self.spec.options.elicitation_default;
        let action = match own.unwrap_or(self.shared.settings.elicitation_default) {
            ElicitationDefault::Cancel => Action::Cancel,
            ElicitationDefault::Decline => Action::Decline,
        };
        let due = self
            .elicitations
            .take(|open| open.until.is_some_and(|until| until <= now));
        for open in due {
            self.close_elicitation(open, &action, DecidedBy::Timeout);
        }
    }

    /// The agent takes one back; false if it is not open.
    pub(super) fn withdraw_elicitation(&mut self, request: &Id) -> bool {
        let found = self.elicitations.take(|open| open.request == *request);
        let was_open = !found.is_empty();
        for open in found {
            self.close_elicitation(open, &Action::Cancel, DecidedBy::Agent);
        }
        was_open
    }

    /// Answers every open one, or those of a turn, `cancel`.
    pub(super) fn cancel_elicitations(&mut self, of: Option<TurnId>, by: DecidedBy) {
        for open in self.elicitations.take(|open| of.is_none() || open.turn == of) {
            self.close_elicitation(open, &Action::Cancel, by);
        }
    }

    /// What was to be done at a URL is done. What names nothing that is waited for is a message like others.
    pub(super) fn elicitation_completed(&mut self, source: Source, line: Bytes, params: Option<&RawValue>) {
        let key = params.and_then(completed);
        let done = key.as_deref().and_then(|key| self.elicitations.is_done(key));
        let Some(Awaited { id, key, context }) = done else {
            return self.message(source, line);
        };
        let now = self.shared.clock.now();
        let data = super::raw(&Finished {
            id,
            agent_key: &key,
            completed_at: now,
        });
        self.outbox.record(Record {
            at: now,
            kind: EventKind::ElicitationCompleted,
            session_id: context.session_id,
            turn_id: context.turn_id,
            source: Some(source),
            line,
            data: Data::Json(data),
        });
        self.outbox
            .change(Change::ElicitationCompleted(ElicitationCompletion {
                id,
                completed_at: now,
            }));
    }

    /// Puts back what another process left.
    pub(super) fn restore_elicitations(&mut self, open: Vec<Elicitation>, accepted: Vec<Elicitation>) {
        let running = self.turns.running.as_ref().map(|r| r.id);
        let wall = self.shared.clock.now();
        self.elicitations = Elicitations::restore(open, accepted, running, wall, Instant::now());
    }
}

/// Within what a row has room for.
fn fits(request: &ElicitationRequest<'_>) -> bool {
    let words = request.message.len() + request.tool_call_id.as_ref().map_or(0, |id| id.len());
    match &request.mode {
        Mode::Form { schema } => schema.get().len() <= MAX_FORM_BYTES && words <= MAX_WORDS,
        Mode::Url { url, key } => url.len() + key.len() + words <= MAX_WORDS,
    }
}
