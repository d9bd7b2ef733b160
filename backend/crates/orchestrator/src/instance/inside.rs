//! What the agent asks to be done inside its container: files and terminals.
//!
//! ```text
//! asked ─► on record ─► the helper (kandev_runtime::helper) ─► on record ─► answered
//! ```
//!
//! A request is an event, and saved, before the helper is asked; its outcome is an event before the agent has it. Everything
//! the helper is asked can be asked again, under the same tag (the number of the agent's line) or the same terminal: so
//! whoever takes the instance up, or finds its connection broken, asks again what has no answer yet. Answers that are small
//! are on record until they are written, like all frames; those with contents are made again.
//!
//! What each request is to the helper is in [`op`], what its replies are to the agent in [`answer`], and what becomes of
//! terminals in [`terminals`], what the agent takes back in [`withdrawn`].

mod answer;
mod op;
mod terminals;
mod told;
mod withdrawn;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use kandev_acp::client_methods::{ClientCall, Offered};
use kandev_acp::{Id, RpcError, outgoing, rpc_error};
use kandev_domain::{EventKind, LogLevel};
use kandev_runtime::RuntimeError;
use kandev_runtime::helper::wire::{self, Message, Notice, Reply};
use kandev_runtime::helper::{Link, LinkEvent, connect};
use kandev_store::record::{Data, Record, Source};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use super::actor::{Actor, Phase};
use crate::outbox::{Context, Effect};
use op::Op;
use terminals::Terminal;
use told::Told;

/// How many requests of one agent may be open, and how many bytes of what they bring.
const MAX_OPEN: usize = 256;
const MAX_OPEN_BYTES: usize = 64 << 20;
/// How long a path, or a command with all that goes with it, may be.
const MAX_WORDS: usize = 256 << 10;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Inside {
    open: Vec<Open>,
    terminals: Vec<Terminal>,
    /// Kandev's own requests, by tag: what they are for.
    errands: BTreeMap<u64, String>,
    link: Option<Link>,
    /// The helper listens.
    up: Option<mpsc::Sender<(u64, wire::Request)>>,
    /// The container is being taken up, which pauses it. A process that is begun in it just then would never have begun, and
    /// the engine would wait for it, and not unpause.
    held: bool,
    /// The instance ends: nothing more is begun.
    closed: bool,
}

/// A request that has no answer that is known to have reached the agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Open {
    request: Id,
    /// The number of its line.
    tag: u64,
    session_id: Option<String>,
    turn_id: Option<kandev_domain::TurnId>,
    op: Op,
    /// The agent took it back, and the helper says what becomes of it.
    #[serde(default)]
    withdrawn: bool,
    /// Its outcome is an event already, and the answer may not have reached the agent.
    #[serde(default)]
    told: bool,
    /// It is on record, and may be asked for.
    #[serde(skip)]
    recorded: bool,
    /// The number of the frame that answers it.
    #[serde(skip)]
    answered: Option<u64>,
}

/// What another process needs of all that.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct SavedInside {
    open: Vec<Open>,
    terminals: Vec<Terminal>,
}

impl SavedInside {
    /// The events whose lines have what is to be written.
    pub(crate) fn lines(&self) -> Vec<i64> {
        self.open.iter().filter_map(|open| open.op.line()).collect()
    }

    /// Brings what is to be written.
    pub(crate) fn bring(&mut self, seq: i64, line: &[u8]) {
        for open in self.open.iter_mut().filter(|open| open.op.line() == Some(seq)) {
            open.op.bring(line);
        }
    }
}

/// Waits for the next thing on the way to the helper; none if its task is gone.
pub(super) async fn next_inside(inside: &mut Inside) -> Option<LinkEvent> {
    match &mut inside.link {
        Some(link) => link.events.recv().await,
        None => std::future::pending().await,
    }
}

impl Inside {
    pub(super) fn saved(&self) -> SavedInside {
        SavedInside {
            open: self.open.clone(),
            terminals: self.terminals.clone(),
        }
    }

    pub(super) fn restore(saved: SavedInside) -> Self {
        let mut open = saved.open;
        for open in &mut open {
            open.recorded = true;
        }
        let mut terminals = saved.terminals;
        for terminal in &mut terminals {
            terminal.may_have_been_asked_for();
        }
        Self {
            open,
            terminals,
            held: true,
            ..Self::default()
        }
    }

    /// The container has just been started: there is nothing to catch up with.
    pub(super) const fn is_found(&mut self) {
        self.held = false;
    }

    /// Whether the agent waits for an answer, which may be on its way.
    pub(super) fn is_asked(&self) -> bool {
        !self.open.is_empty()
    }

    /// The frame of this number is an answer that can be made again.
    pub(super) fn has_answered(&self, number: u64) -> bool {
        self.open.iter().any(|open| open.answered == Some(number))
    }

    /// The answers up to this number have been written, or are on record.
    pub(super) fn have_answers(&mut self, number: u64) {
        self.open
            .retain(|open| open.answered.is_none_or(|answered| answered > number));
    }

    fn send(&self, tag: u64, request: wire::Request) {
        if let Some(up) = &self.up {
            // There is room for all that can be open. A closed one is replaced in a moment, and all is asked again.
            let _ = up.try_send((tag, request));
        }
    }
}

impl Actor {
    /// Takes a request for files or terminals; false if it is about something else.
    pub(super) fn asked_inside(
        &mut self,
        source: Source,
        line: &Bytes,
        id: &Id,
        method: &str,
        params: Option<&RawValue>,
    ) -> bool {
        let Some(read) = ClientCall::read(method, params.unwrap_or(RawValue::NULL)) else {
            return false;
        };
        let protocol = self.spec.agent_type.protocol;
        let offered = Offered::of(protocol, &self.initialize_params());
        let (session, call) = match read {
            Ok((_, call)) if !offered.allows(&call) => return false,
            Ok(read) => read,
            Err(error) => {
                self.message(source, line.clone());
                self.send(outgoing::respond_error(Some(id), &error));
                return true;
            }
        };
        if self
            .inside
            .open
            .iter()
            .any(|open| open.request == *id && open.answered.is_none())
        {
            let text = format!(
                "the agent asks again under the id {id} of an open request; there will be one answer"
            );
            self.log(LogLevel::Warn, text);
            self.message(source, line.clone());
            return true;
        }
        let (Source::Stdout(tag) | Source::Stderr(tag)) = source;
        let mut context = self.context();
        context.session_id = session.or(context.session_id);
        let seq = self.outbox.next_seq();
        let (op, refused) = self.prepare(call, tag, seq);
        self.record_asked(source, line.clone(), id, &context, &op);
        let open = Open {
            request: id.clone(),
            tag,
            session_id: context.session_id,
            turn_id: context.turn_id,
            op,
            withdrawn: false,
            told: false,
            recorded: false,
            answered: None,
        };
        if let Some(answer) = refused {
            self.terminal_replied(&open.op, &answer);
            self.answer_inside(open, answer);
            return true;
        }
        open.op
            .begin(open.session_id.as_deref(), &mut self.inside.terminals);
        self.inside.open.push(open);
        self.outbox.effect(Effect::Inside(tag));
        self.link_inside();
        true
    }

    /// What is to be done, and the answer if that is known already.
    fn prepare(&self, call: ClientCall, tag: u64, seq: i64) -> (Op, Option<Result<answer::Good, RpcError>>) {
        let op = Op::of(call, tag, seq, &self.spec.agent_type);
        let limit = self.spec.agent_type.fs.max_file_bytes;
        let waiting: usize = self.inside.open.iter().map(|open| open.op.weight()).sum();
        let unanswered = self.inside.open.iter().filter(|open| open.answered.is_none());
        let error = |code, reason, message: &str| {
            let data = serde_json::json!({ "reason": reason });
            Some(Err(RpcError::new(code, message).with_data(&data)))
        };
        let answer = if self.inside.closed {
            error(rpc_error::INTERNAL_ERROR, "ending", "the instance is ending")
        } else if op.bytes() as u64 > limit {
            let message = format!("more than the {limit} bytes that can be written at once");
            error(rpc_error::INVALID_PARAMS, "too_large", &message)
        } else if op.weight() - op.bytes() > MAX_WORDS {
            let message = format!("more than {MAX_WORDS} bytes of path, command, arguments and variables");
            error(rpc_error::INVALID_PARAMS, "too_large", &message)
        } else if let Some(cwd) = op.relative_cwd() {
            let message = format!("the working directory '{cwd}' is not an absolute path");
            error(rpc_error::INVALID_PARAMS, "invalid_cwd", &message)
        } else if unanswered.count() >= MAX_OPEN || waiting + op.weight() > MAX_OPEN_BYTES {
            error(
                rpc_error::INTERNAL_ERROR,
                "too_many",
                "too many requests are open",
            )
        } else {
            self.answer_of_terminals(&op)
        };
        (op, answer)
    }

    fn record_asked(&mut self, source: Source, line: Bytes, id: &Id, context: &Context, op: &Op) {
        let mut told = Told::of(op);
        told.request_id = Some(id);
        told.outcome = Some("pending");
        let data = super::raw(&told);
        self.outbox.record(Record {
            at: self.shared.clock.now(),
            kind: op.event_kind(),
            session_id: context.session_id.clone(),
            turn_id: context.turn_id,
            source: Some(source),
            line,
            data: Data::Json(data),
        });
    }

    /// Connects to the helper, unless that is under way.
    fn link_inside(&mut self) {
        let reachable = matches!(self.phase, Phase::Handshaking | Phase::Ready);
        let Some(container) = self
            .container
            .clone()
            .filter(|_| reachable && !self.inside.closed && !self.inside.held)
        else {
            return;
        };
        if self.inside.link.is_none() {
            let runtime = Arc::clone(&self.shared.runtime);
            self.inside.link = Some(connect(runtime, container, &self.shared.tracker));
        }
    }

    /// The request of this tag is on record; with tag 0, releases are.
    pub(super) fn go_inside(&mut self, tag: u64) {
        if tag == terminals::RELEASES {
            return self.ask_releases();
        }
        let Some(open) = self.inside.open.iter_mut().find(|open| open.tag == tag) else {
            return;
        };
        open.recorded = true;
        self.ask_inside(tag);
    }

    fn ask_inside(&mut self, tag: u64) {
        let found = self.inside.open.iter().find(|open| open.tag == tag);
        let Some(open) = found.filter(|open| open.recorded && open.answered.is_none()) else {
            return;
        };
        if open.withdrawn {
            return self.replied(tag, withdrawn::failed());
        }
        if let Some(request) = open.op.request(&self.spec.agent_type) {
            if let wire::Request::Create(command) = &request {
                self.terminal_is_asked_for(&command.id);
            }
            return self.inside.send(tag, request);
        }
        let lost = "what was to be written is lost; write it again".to_owned();
        self.replied(tag, Reply::Failed(wire::Reason::Io, lost));
    }

    /// The container is to be found again.
    pub(super) fn hold_inside(&mut self) {
        self.inside.held = true;
        self.inside.link = None;
        self.inside.up = None;
    }

    /// It was found: goes on with what was left.
    pub(super) fn resume_inside(&mut self) {
        self.inside.held = false;
        if !self.inside.open.is_empty() || !self.inside.terminals.is_empty() {
            self.link_inside();
        }
    }

    pub(super) fn inside_event(&mut self, event: Option<LinkEvent>) {
        match event {
            Some(LinkEvent::Up(up)) => {
                self.inside.up = Some(up);
                self.inside.errands.clear();
                self.follow_terminals();
                self.ask_releases();
                let open: Vec<u64> = self.inside.open.iter().map(|open| open.tag).collect();
                for tag in open {
                    self.ask_inside(tag);
                }
            }
            Some(LinkEvent::Message(Message::Reply(tag, reply))) => self.replied(tag, reply),
            Some(LinkEvent::Message(Message::Notice(notice))) => match notice {
                Notice::Hello(_) => {}
                Notice::Output(id, from, bytes) => self.terminal_said(&id, from, &bytes),
                Notice::Exited(id, exit) => self.terminal_exited(&id, exit),
            },
            Some(LinkEvent::Down(error)) => self.inside_down(&error),
            None => self.inside_down(&RuntimeError::Broken("the connection's task is gone".to_owned())),
        }
    }

    fn replied(&mut self, tag: u64, reply: Reply) {
        if let Some(terminal) = self.inside.errands.remove(&tag) {
            return self.errand_done(&terminal, &reply);
        }
        let at = self
            .inside
            .open
            .iter()
            .position(|open| open.tag == tag && open.answered.is_none());
        let Some(at) = at else { return };
        let open = self.inside.open.remove(at);
        if let (Reply::Failed(wire::Reason::UnknownTerminal, _), Some(id)) = (&reply, open.op.terminal()) {
            // It was there, so the helper that had it is gone.
            self.lose_terminal(id);
        }
        let answer = match self.answer_of_terminals(&open.op) {
            Some(known)
                if !matches!(
                    reply,
                    Reply::Exited(_) | Reply::Done | Reply::Failed(wire::Reason::Cancelled, _)
                ) =>
            {
                known
            }
            _ => {
                let limit = open.op.terminal().map_or(op::KEPT, |id| self.kept_of(id));
                answer::of(&open.op, reply, &self.spec.agent_type.fs, limit)
            }
        };
        self.terminal_replied(&open.op, &answer);
        self.answer_inside(open, answer);
    }

    /// The helper cannot be reached: whoever waits for it is told.
    fn inside_down(&mut self, error: &RuntimeError) {
        self.log(
            LogLevel::Error,
            format!("files and terminals in the container cannot be used: {error}"),
        );
        self.inside.link = None;
        self.inside.up = None;
        self.lose_terminals();
        let (open, answered) = std::mem::take(&mut self.inside.open)
            .into_iter()
            .partition(|open| open.answered.is_none());
        self.inside.open = answered;
        let open: Vec<Open> = open;
        for open in open {
            let data = serde_json::json!({"reason": "helper_unavailable"});
            let message = "files and terminals in the container cannot be used";
            let error = RpcError::new(rpc_error::INTERNAL_ERROR, message).with_data(&data);
            let known = self.answer_of_terminals(&open.op);
            self.answer_inside(open, known.unwrap_or(Err(error)));
        }
    }

    /// Gives a request its answer, on record and to the agent. One that is only made again is not told again, unless it has become
    /// another one.
    fn answer_inside(&mut self, mut open: Open, answer: Result<answer::Good, RpcError>) {
        if !open.told || answer.is_err() {
            let mut told = Told::of(&open.op);
            told.request_id = Some(&open.request);
            told.take_answer(&answer);
            told.again = open.told.then_some(true);
            told.retried = answer
                .is_ok()
                .then(|| self.was_retried(&open.op))
                .filter(|retried| *retried);
            let data = super::raw(&told);
            let context = Context {
                session_id: open.session_id.clone(),
                turn_id: open.turn_id,
            };
            let now = self.shared.clock.now();
            self.outbox.event(now, open.op.event_kind(), context, &data);
            open.told = true;
        }
        match answer {
            Err(error) => self.send(outgoing::respond_error(Some(&open.request), &error)),
            Ok(good) if open.op.has_contents() => {
                let frame = outgoing::respond(&open.request, &good.result);
                open.answered = self.send_unrecorded(frame);
                if open.answered.is_some() {
                    self.inside.open.push(open);
                }
            }
            Ok(good) => self.send(outgoing::respond(&open.request, &good.result)),
        }
    }

    /// The container is about to be ended: an engine could hang on a connection into it.
    pub(super) fn close_inside(&mut self) {
        self.inside.closed = true;
        self.inside.link = None;
        self.inside.up = None;
    }

    /// The container has ended: what is open stays without an answer.
    pub(super) fn abandon_inside(&mut self) {
        self.close_inside();
        for open in std::mem::take(&mut self.inside.open) {
            if open.told {
                continue;
            }
            let mut told = Told::of(&open.op);
            told.request_id = Some(&open.request);
            told.outcome = Some("abandoned");
            let data = super::raw(&told);
            let (session_id, turn_id) = (open.session_id, open.turn_id);
            let now = self.shared.clock.now();
            let kind = open.op.event_kind();
            self.outbox
                .event(now, kind, Context { session_id, turn_id }, &data);
        }
        self.forget_terminals();
    }

    fn terminal_event(&mut self, told: &Told<'_>) {
        let data = super::raw(told);
        self.event(EventKind::Terminal, &data);
    }
}
