//! Turns: one runs, others wait; each has exactly one end.

use std::collections::VecDeque;

use kandev_acp::RpcError;
use kandev_acp::dialect::{self, PromptOutcome};
use kandev_acp::update::TurnEnd;
use kandev_domain::content::Prompt;
use kandev_domain::lifecycle::{Decision, Refusal, State};
use kandev_domain::status::InstanceLifecycle;
use kandev_domain::{
    DecidedBy, EventKind, InstanceStatus, LogLevel, SessionKey, TurnId, TurnState, TurnStatus,
};
use kandev_store::journal::Change;
use kandev_store::turns::{NewTurn, TurnPatch};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::actor::{Actor, Phase};
use super::ending::Cause;
use super::handshake::Call;
use super::{Accepted, PromptRefused, View};

/// The turn with the agent.
#[derive(Debug)]
pub(super) struct Running {
    pub id: TurnId,
    /// How many updates it had.
    pub updates: u64,
    pub cancel: Option<Cancel>,
    pub until: Option<Instant>,
}

/// A cancel that was sent.
#[derive(Debug)]
pub(super) struct Cancel {
    pub reason: Option<String>,
    /// When the agent's patience-worthy time is over.
    pub until: Instant,
}

#[derive(Debug)]
struct Queued {
    id: TurnId,
    prompt: Prompt,
    meta: Map<String, Value>,
}

/// A prompt, and what is told beside it.
pub(crate) type PromptWithMeta = (Prompt, Map<String, Value>);

/// The turns of an instance.
#[derive(Debug, Default)]
pub(super) struct Turns {
    pub running: Option<Running>,
    queue: VecDeque<Queued>,
    pub last: Option<TurnId>,
    pub count: i32,
    /// When the last one ended, if it was cancelled.
    cancelled: Option<Instant>,
    /// How the last one ended.
    pub last_status: Option<TurnStatus>,
    /// The agent says when it begins with a prompt, in the kandev dialect: what it ended before that was another one.
    pub accepts: bool,
    /// How many have their end.
    pub ended: u32,
    /// What the agent does beside them.
    pub aside: super::subagents::Aside,
    /// What watchers were last told.
    pub shown: Option<View>,
}

/// How a turn ended.
#[derive(Debug, Default)]
pub(super) struct End {
    pub stop_reason: Option<String>,
    pub usage: Option<Box<RawValue>>,
    pub meta: Option<Box<RawValue>>,
    pub error: Option<TurnFailure>,
}

/// Why a turn failed.
#[derive(Debug, Serialize)]
pub(super) struct TurnFailure {
    pub code: &'static str,
    pub message: String,
    pub details: Option<Box<RawValue>>,
}

/// The event's data.
#[derive(Serialize)]
struct TurnEnded<'a> {
    turn_id: TurnId,
    status: TurnStatus,
    stop_reason: Option<&'a str>,
    /// Koda's word on it.
    stop_detail: Option<String>,
    usage: Option<&'a RawValue>,
    meta: Option<&'a RawValue>,
    error: Option<&'a TurnFailure>,
    cancel_reason: Option<&'a str>,
    updates: u64,
}

impl Turns {
    /// Puts back a prompt that was accepted before.
    pub(super) fn put_back(&mut self, id: TurnId, (prompt, meta): PromptWithMeta) {
        self.queue.push_back(Queued { id, prompt, meta });
    }

    pub(crate) fn state(&self) -> TurnState {
        match &self.running {
            None => TurnState::Idle,
            Some(running) if running.cancel.is_some() => TurnState::Cancelling,
            Some(_) => TurnState::Prompting,
        }
    }

    /// Nothing that is said from now on belongs to a turn that was.
    pub(super) fn forget_agent(&mut self) {
        self.aside = super::subagents::Aside::default();
        self.last = None;
        self.cancelled = None;
        self.accepts = false;
    }

    /// The running turn was told to end, or the last one was, not longer than `grace` ago.
    pub(crate) fn cancelled_within(&self, grace: std::time::Duration) -> bool {
        match &self.running {
            Some(running) => running.cancel.is_some(),
            None => self.cancelled.is_some_and(|at| at.elapsed() <= grace),
        }
    }

    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// The turn that output belongs to now: the running one, else the last, since agents tell things after the end.
    pub(crate) fn attributed(&self) -> Option<TurnId> {
        self.running.as_ref().map(|r| r.id).or(self.last)
    }
}

impl Actor {
    /// The facts that decide what is admitted now.
    pub(super) fn admission(&self) -> State {
        State {
            status: self.status,
            turn: self.turn_state(),
            queued: self.turns.queued(),
            asking: self.asking() + usize::from(self.turns.aside.can_cancel()),
            queue_limit: self.shared.settings.max_prompt_queue,
            stopping: self.is_stopping(),
        }
    }

    /// A prompt of a caller's, after what the state admits.
    pub(super) fn prompt(
        &mut self,
        (prompt, meta): PromptWithMeta,
        decision: Decision,
    ) -> Result<Accepted, PromptRefused> {
        if let Decision::Refuse(refusal) = decision {
            return Err(refusal.into());
        }
        if let Some(agent) = &self.agent {
            prompt.supported_by(agent.prompt)?;
        }
        match decision {
            Decision::CancelThenProceed => {
                self.cancel_queued("interrupted by a later prompt");
                self.cancel(Some("interrupted by a later prompt".to_owned()));
            }
            Decision::Proceed | Decision::Enqueue => {}
            Decision::AlreadySo | Decision::Refuse(_) => return Err(Refusal::Busy.into()),
        }
        let turn_id = self.accept_prompt((prompt, meta));
        if matches!(self.phase, Phase::Ready) && self.turns.running.is_none() {
            self.next_turn();
        }
        let queued = self.turns.queue.iter().any(|q| q.id == turn_id);
        Ok(Accepted {
            turn_id,
            session_id: self.session.as_ref().map(|s| s.id.clone()),
            queued,
        })
    }

    /// Puts a prompt at the end of the queue.
    pub(super) fn accept_prompt(&mut self, (prompt, meta): PromptWithMeta) -> TurnId {
        let id = TurnId::generate();
        self.turns.count += 1;
        self.outbox.change(Change::TurnQueued(NewTurn {
            id,
            instance_id: self.spec.id,
            ordinal: self.turns.count,
            prompt: serde_json::to_string(&prompt).unwrap_or_default(),
            prompt_meta: Some(&meta)
                .filter(|meta| !meta.is_empty())
                .and_then(|meta| serde_json::to_string(meta).ok()),
            queued_at: self.shared.clock.now(),
        }));
        self.log(LogLevel::Debug, format!("prompt {} accepted", self.turns.count));
        self.outbox.durable();
        self.turns.queue.push_back(Queued { id, prompt, meta });
        id
    }

    /// Hands the next prompt to the agent, if it is free.
    pub(super) fn next_turn(&mut self) {
        while self.turns.running.is_none() && self.ending.is_none() && matches!(self.phase, Phase::Ready) {
            let Some(queued) = self.turns.queue.pop_front() else {
                break;
            };
            if self.is_legacy() {
                // It has its task already.
                return self.start_turn(&queued, None);
            }
            let (Some(agent), Some(session)) = (&self.agent, self.session.clone()) else {
                return;
            };
            let label = agent.session.fork.then(|| queued.id.to_string());
            let call = queued.prompt.for_agent(agent.prompt).map(|prompt| {
                agent
                    .dialect
                    .prompt_with(&session.id, &prompt, &queued.meta, label.as_deref())
            });
            self.start_turn(&queued, Some(session.key));
            match call {
                Ok(call) => self.call(Call::Prompt(queued.id), call),
                // Accepted before the agent had said what it takes, or a file is gone.
                Err(error) => {
                    let error = TurnFailure {
                        code: "validation_error",
                        message: error.to_string(),
                        details: None,
                    };
                    self.end_turn(End {
                        error: Some(error),
                        ..End::default()
                    });
                }
            }
        }
    }

    /// The turn runs from now on.
    fn start_turn(&mut self, queued: &Queued, session_key: Option<SessionKey>) {
        self.turns.last = Some(queued.id);
        self.idle_since = None;
        let until = self.shared.settings.turn_timeout;
        self.turns.running = Some(Running {
            id: queued.id,
            updates: 0,
            cancel: None,
            until: until.map(|limit| Instant::now() + limit),
        });
        let mut patch = TurnPatch::of(queued.id, TurnStatus::Running);
        patch.session_key = session_key;
        patch.first_seq = Some(self.outbox.next_seq());
        patch.started_at = Some(self.shared.clock.now());
        self.outbox.change(Change::Turn(Box::new(patch)));
        let mut data = json!({"turn_id": queued.id, "prompt": queued.prompt});
        if !queued.meta.is_empty() {
            data["prompt_meta"] = json!(queued.meta);
        }
        self.event(EventKind::TurnStarted, &data);
        self.outbox.durable();
    }

    /// Tells the agent to end the running turn. Before there is a session, the waiting prompts are given up instead.
    pub(super) fn cancel(&mut self, reason: Option<String>) {
        let until = Instant::now() + self.shared.settings.cancel_grace;
        let Some(running) = &mut self.turns.running else {
            self.cancel_own_turn(reason.as_deref());
            self.cancel_requests(DecidedBy::Cancel);
            return self.give_up_waiting(reason.as_deref());
        };
        if running.cancel.is_some() {
            return;
        }
        running.cancel = Some(Cancel {
            reason: reason.clone(),
            until,
        });
        self.log(
            LogLevel::Info,
            format!(
                "cancelling the turn: {}",
                reason.as_deref().unwrap_or("no reason given")
            ),
        );
        self.outbox.durable();
        self.send_cancel(reason.as_deref());
        // After it, as ACP has it, and since it may go out before anything is stored.
        self.cancel_requests(if self.ending.is_some() {
            DecidedBy::InstanceEnd
        } else {
            DecidedBy::Cancel
        });
    }

    /// No turn runs, and those that wait never will: the one turn of a one-shot is over then.
    fn give_up_waiting(&mut self, reason: Option<&str>) {
        let had_one = !self.turns.queue.is_empty();
        self.cancel_queued(reason.unwrap_or("cancelled before it began"));
        if had_one && self.ends_with_its_turn() {
            let turn = TurnStatus::Cancelled;
            self.end(Cause::OneShot { turn });
        }
    }

    /// It ends with its first turn. An agent that had its task at its start ends by itself.
    fn ends_with_its_turn(&self) -> bool {
        self.spec.lifecycle == InstanceLifecycle::OneShot && !self.is_legacy()
    }

    /// What the agent is told, if there is one that can be told.
    pub(super) fn send_cancel(&mut self, reason: Option<&str>) {
        let (Some(agent), Some(session)) = (&self.agent, &self.session) else {
            return;
        };
        let (method, params) = agent.dialect.cancel(&session.id, reason);
        match kandev_acp::outgoing::notification(method, &params) {
            Ok(frame) => self.send_now(frame),
            Err(error) => self.log(
                LogLevel::Error,
                format!("the cancel could not be written: {error}"),
            ),
        }
    }

    /// Gives every waiting prompt its end.
    pub(super) fn cancel_queued(&mut self, reason: &str) {
        while let Some(queued) = self.turns.queue.pop_front() {
            let now = self.shared.clock.now();
            let mut context = self.context();
            context.turn_id = Some(queued.id);
            let mut patch = TurnPatch::of(queued.id, TurnStatus::Cancelled);
            patch.cancel_reason = Some(reason.to_owned());
            patch.finished_at = Some(now);
            patch.last_seq = Some(self.outbox.next_seq());
            let data =
                json!({"turn_id": queued.id, "status": TurnStatus::Cancelled, "cancel_reason": reason});
            self.outbox.event(now, EventKind::TurnEnded, context, &data);
            self.outbox.change(Change::Turn(Box::new(patch)));
            self.outbox.durable();
            self.turns.ended += 1;
        }
    }

    /// The agent's answer to a prompt. One that belongs to an earlier turn ends nothing.
    pub(super) fn prompt_answered(&mut self, turn: TurnId, outcome: Result<Box<RawValue>, RpcError>) {
        if self.turns.running.as_ref().is_none_or(|r| r.id != turn) {
            return;
        }
        let Some(agent) = &self.agent else { return };
        let outcome = dialect::prompt_outcome(agent.dialect, outcome);
        match outcome {
            PromptOutcome::Accepted => self.turns.accepts = true,
            PromptOutcome::Ended {
                stop_reason,
                usage,
                meta,
            } => {
                self.end_turn(End {
                    stop_reason: Some(stop_reason),
                    usage,
                    meta,
                    error: None,
                });
            }
            PromptOutcome::Failed(error) => {
                let details = super::raw(&error);
                let failure = TurnFailure {
                    code: if error.is_auth_required() {
                        "auth_required"
                    } else {
                        "agent_error"
                    },
                    message: error.message,
                    details: Some(details),
                };
                self.end_turn(End {
                    error: Some(failure),
                    ..End::default()
                });
            }
        }
    }

    /// The end of a turn in the kandev dialect.
    pub(super) fn turn_ended_by_update(&mut self, end: TurnEnd) {
        if self.turns.accepts && self.has_not_begun() {
            let text = "the agent ended a turn before it began with the running one; an earlier one is meant";
            return self.log(LogLevel::Warn, text.to_owned());
        }
        let error = match end.error {
            Some(error) => Some((error.message, error.details)),
            None if !end.success => Some((
                end.summary
                    .clone()
                    .unwrap_or_else(|| "the agent reported no success".to_owned()),
                None,
            )),
            None => None,
        };
        let error = error.map(|(message, details)| TurnFailure {
            code: "agent_error",
            message,
            details: details.map(|d| super::raw(&d)),
        });
        let meta = end
            .summary
            .and_then(|s| serde_json::value::to_raw_value(&json!({"summary": s})).ok());
        self.end_turn(End {
            stop_reason: Some(end.stop_reason),
            usage: None,
            meta,
            error,
        });
    }

    /// The running turn's prompt has no answer yet.
    fn has_not_begun(&self) -> bool {
        let Some(running) = &self.turns.running else {
            return false;
        };
        let mut pending = self.peer.pending();
        pending.any(|call| matches!(call, Call::Prompt(id) if *id == running.id))
    }

    /// Gives the running turn its end. What was cancelled ends cancelled, whatever the agent made of it.
    pub(super) fn end_turn(&mut self, end: End) {
        let Some(running) = self.turns.running.take() else {
            return;
        };
        self.cancel_requests_of(running.id);
        self.release_terminals("turn_end");
        let status = match (&running.cancel, &end) {
            (Some(_), _) => TurnStatus::Cancelled,
            (
                None,
                End {
                    stop_reason: Some(reason),
                    ..
                },
            ) if reason == "cancelled" => TurnStatus::Cancelled,
            (None, End { error: Some(_), .. }) => TurnStatus::Failed,
            (None, _) => TurnStatus::Completed,
        };
        let now = self.shared.clock.now();
        let mut context = self.context();
        context.turn_id = Some(running.id);
        let cancel_reason = running.cancel.as_ref().and_then(|c| c.reason.clone());
        let data = super::raw(&TurnEnded {
            turn_id: running.id,
            status,
            stop_reason: end.stop_reason.as_deref(),
            stop_detail: end.meta.as_deref().and_then(dialect::stop_detail),
            usage: end.usage.as_deref(),
            meta: end.meta.as_deref(),
            error: end.error.as_ref(),
            cancel_reason: cancel_reason.as_deref(),
            updates: running.updates,
        });
        if status == TurnStatus::Completed && running.updates == 0 {
            let text = "the turn ended without any update; agents do so when their model provider fails";
            self.log(LogLevel::Warn, text.to_owned());
        }
        let mut patch = TurnPatch::of(running.id, status);
        patch.stop_reason = end.stop_reason;
        patch.tokens = end.usage.as_deref().and_then(kandev_acp::usage::tokens);
        patch.usage = end.usage.map(|u| u.get().to_owned());
        patch.meta = end.meta.map(|m| m.get().to_owned());
        patch.updates = i64::try_from(running.updates).ok();
        patch.cancel_reason = cancel_reason;
        patch.last_seq = Some(self.outbox.next_seq());
        patch.finished_at = Some(now);
        if let Some(error) = end.error {
            patch.error_code = Some(error.code.to_owned());
            patch.error_message = Some(error.message);
            patch.error_details = error.details.map(|d| d.get().to_owned());
        }
        self.outbox.event(now, EventKind::TurnEnded, context, &data);
        self.outbox.change(Change::Turn(Box::new(patch)));
        self.outbox.durable();
        self.turns.ended += 1;
        self.turns.last_status = Some(status);
        self.turns.cancelled = (status == TurnStatus::Cancelled).then(Instant::now);
        self.idle_since = Some(Instant::now());
        if self.ending.is_some() {
            return self.turn_over_while_ending();
        }
        if self.ends_with_its_turn() && self.status == InstanceStatus::Running {
            return self.end(Cause::OneShot { turn: status });
        }
        self.next_turn();
    }
}
