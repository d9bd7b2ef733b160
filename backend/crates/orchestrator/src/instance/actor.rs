//! The task itself: its state, its loop, and what each kind of step leads to.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use kandev_acp::dialect::Negotiated;
use kandev_acp::{FrameWriter, KandevState, Line, Peer};
use kandev_domain::lifecycle::{self, Decision};
use kandev_domain::{EventKind, InstanceStatus, LogLevel, SessionKey, TurnState};
use kandev_runtime::{Channel, ContainerId, ExitStatus, ExitWatch, RunSign, RuntimeError};
use kandev_store::journal::{Change, Position};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::Instrument;

use super::ending::{Cause, Ending};
use super::handshake::Call;
use super::inside::next_inside;
use super::pump::{Output, Pump};
use super::reconnect::Reconnected;
use super::saved::SavedPhase;
use super::turns::Turns;
use super::verdict::Verdict;
use super::waits::{LinkStep, granted, next, next_of_link, send_first};
use super::{Cancelled, Handle, MAILBOX, Stopped, View};
use crate::Shared;
use crate::command::{Answer, Command, Reply, Request};
use crate::fresh::{BATCHES, Stored};
use crate::journal::JournalError;
use crate::launch::InstanceSpec;
use crate::lease::Term;
use crate::outbox::{Context, Effect, Outbox};
use crate::slots::{Admission, Place, Slot};
use crate::tail::Tail;

/// Where the instance stands.
pub(super) enum Phase {
    /// Waiting for a slot.
    Queued(Place),
    /// The engine makes the container.
    Creating,
    /// Attached, waited for and started, in this order.
    Connecting,
    /// Taken up from another process, at what it had come to.
    Reconnecting(SavedPhase),
    /// The session is being established.
    Handshaking,
    /// Prompts go straight to the agent.
    Ready,
    /// The container has ended; the rest of its output is read.
    Draining { until: Instant },
    /// Everything there will be is on its way to the database. Until it is there the container stays: its log has it too.
    Settled { since: Instant },
    /// The container is being removed.
    Removing,
    /// The last batch is on its way.
    Ended,
}

/// An engine call that came back.
pub(super) enum EngineDone {
    Created(Result<ContainerId, RuntimeError>),
    Connected(Result<Connected, RuntimeError>),
    /// And whether the engine was away meanwhile.
    Reconnected(Result<Reconnected, RuntimeError>, bool),
    Stopped(Result<(), RuntimeError>),
    Removed(Result<(), RuntimeError>),
}

pub(super) struct Connected {
    pub(super) stdio: super::catch_up::Stdio,
    pub(super) exit: ExitWatch,
    /// Of the engine's present run, if it could be had.
    pub(super) sign: Option<RunSign>,
}

type EngineCall = Pin<Box<dyn Future<Output = EngineDone> + Send>>;

/// The way to the container.
pub(super) struct Link {
    pub writer: FrameWriter,
    pub(super) written: watch::Receiver<u64>,
    pub pump: Pump,
    /// The output has ended.
    pub ended: bool,
    /// It is read from the engine's log, after the container's end.
    pub from_log: bool,
    /// What it ended with, without a newline.
    pub(super) rest: Vec<(Channel, Line)>,
}

/// The session, once established.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct SessionRef {
    pub key: SessionKey,
    pub id: String,
}

/// What a task is made of.
pub(crate) struct Parts {
    pub shared: Arc<Shared>,
    /// The run that holds the instance.
    pub term: Arc<Term>,
    pub spec: InstanceSpec,
    pub position: Position,
    /// What another process left, if this one takes the instance up.
    pub take_up: Option<super::TakeUp>,
    /// Told when there is a container, or that there will be none.
    pub created: oneshot::Sender<Result<(), super::ending::Failure>>,
}

pub(crate) struct Actor {
    pub(super) shared: Arc<Shared>,
    pub(super) term: Arc<Term>,
    pub(super) spec: InstanceSpec,
    pub(super) outbox: Outbox,
    pub(super) phase: Phase,
    pub(super) slot: Option<Slot>,
    pub(super) container: Option<ContainerId>,
    pub(super) link: Option<Link>,
    pub(super) exit: Option<ExitWatch>,
    pub(super) exit_status: Option<ExitStatus>,
    pub(super) engine: Option<EngineCall>,
    pub(super) ending: Option<Ending>,
    pub(super) verdict: Option<Verdict>,
    /// The container should have ended by then.
    pub(super) exit_expected: Option<Instant>,
    pub(super) peer: Peer<Call>,
    pub(super) kandev: KandevState,
    pub(super) agent: Option<Negotiated>,
    pub(super) session: Option<SessionRef>,
    /// Sessions that were branched off it, by the agent's ids.
    pub(super) branches: std::collections::BTreeMap<String, SessionKey>,
    pub(super) replay: Option<super::handshake::Replay>,
    pub(super) login: super::login::Login,
    /// Said before the session was established; the latest of each.
    pub(super) early_facets: std::collections::BTreeMap<String, Box<serde_json::value::RawValue>>,
    pub(super) configure: std::collections::VecDeque<super::choices::Step>,
    /// What the agent says is chosen in its session.
    pub(super) chosen: super::choices::Choices,
    pub(super) costs: super::costs::Costs,
    pub(super) initialize: Option<Bytes>,
    pub(super) turns: Turns,
    pub(super) permissions: super::permissions::Permissions,
    pub(super) elicitations: super::elicitations::Elicitations,
    pub(super) inside: super::inside::Inside,
    pub(super) asks: super::asks::Asks,
    pub(super) status: InstanceStatus,
    pub(super) stderr_tail: Tail,
    pub(super) created: Option<oneshot::Sender<Result<(), super::ending::Failure>>>,
    pub(super) stop_replies: Vec<Reply>,
    /// Frames that found the writer's queue full.
    pub(super) unsent: std::collections::VecDeque<Bytes>,
    /// Frames since the link was made that may not have reached the agent, by number.
    pub(super) unwritten: std::collections::VecDeque<(u64, Bytes)>,
    /// Answers and notices that were written a moment ago, and may not have come further than the engine.
    pub(super) just_written: std::collections::VecDeque<(Instant, Bytes)>,
    pub(super) numbered: u64,
    /// The last one that was let out, and the last one that the writer has.
    pub(super) let_out: u64,
    pub(super) given: u64,
    /// How many went to connections before this one.
    pub(super) written_before: u64,
    /// Frames of another process of which that was not known.
    pub(super) ambiguous: Vec<Bytes>,
    /// When those are decided on.
    pub(super) resend_at: Option<Instant>,
    /// Output was given up that the engine's log has.
    pub(super) unread: bool,
    /// When the log is tried again.
    pub(super) reread_at: Option<Instant>,
    /// Since when output waits for the database.
    pub(super) stalled: Option<Instant>,
    /// The marks of the container's first lines.
    pub(super) head: super::marks::Head,
    /// How the numbers of lines go with the engine's log.
    pub(super) shifts: super::shifts::Shifts,
    /// The connection to the engine, and what is known of its breaks.
    pub(super) breaks: super::relink::Breaks,
    /// An end that was under way.
    pub(super) taken_cause: Option<Cause>,
    /// Lines of each pipe that were stored when the instance was taken up.
    pub(super) taken_lines: kandev_store::journal::PipeLines,
    saved_text: String,
    pub(super) handshake_until: Option<Instant>,
    pub(super) life_until: Instant,
    pub(super) idle_since: Option<Instant>,
    pub(super) view: watch::Sender<View>,
    fresh: broadcast::Sender<Arc<Stored>>,
    mailbox: mpsc::Receiver<Command>,
}

impl Actor {
    /// Starts the task of an instance whose row is in the database.
    pub(crate) fn start(parts: Parts, on_end: impl FnOnce() + Send + 'static) -> Handle {
        let (commands, mailbox) = mpsc::channel(MAILBOX);
        let first = View {
            status: InstanceStatus::Starting,
            turn_state: TurnState::Idle,
            ended_turns: 0,
            seq: parts.position.seq,
        };
        let (view, watcher) = watch::channel(first);
        let mut parts = parts;
        let take_up = parts.take_up.take();
        let id = parts.spec.id;
        let span = tracing::info_span!("instance", instance_id = %id, agent_type = %parts.spec.agent_type.id);
        let shared = Arc::clone(&parts.shared);
        let mut actor = Self::new(parts, view, mailbox);
        if let Some(take_up) = take_up {
            actor.restore(take_up);
        }
        let fresh = actor.fresh.clone();
        let ended = OnEnd(Some(on_end));
        shared.tracker.spawn(
            async move {
                actor.run().await;
                drop(ended);
            }
            .instrument(span),
        );
        Handle {
            mailbox: commands,
            view: watcher,
            fresh,
        }
    }

    pub(super) fn new(parts: Parts, view: watch::Sender<View>, mailbox: mpsc::Receiver<Command>) -> Self {
        let Parts {
            shared,
            term,
            spec,
            position,
            created,
            ..
        } = parts;
        let seconds = spec
            .options
            .timeout_seconds
            .unwrap_or(spec.agent_type.timeout_seconds);
        let outbox = Outbox::new(spec.id, Arc::clone(&term), shared.journal.clone(), position);
        let (phase, slot) = match shared.slots.ask(spec.id, spec.priority) {
            Admission::Now(slot) => (Phase::Creating, Some(slot)),
            Admission::Later(place) => (Phase::Queued(place), None),
        };
        Self {
            shared,
            term,
            outbox,
            phase,
            slot,
            container: None,
            link: None,
            exit: None,
            exit_status: None,
            engine: None,
            ending: None,
            verdict: None,
            exit_expected: None,
            peer: Peer::new(),
            kandev: KandevState::default(),
            agent: None,
            session: None,
            branches: std::collections::BTreeMap::new(),
            replay: None,
            login: super::login::Login::by(spec.options.auth_method.as_ref()),
            early_facets: std::collections::BTreeMap::new(),
            configure: std::collections::VecDeque::new(),
            chosen: super::choices::Choices::default(),
            costs: super::costs::Costs::of_session(spec.resume.as_ref().and_then(|r| r.cost.clone())),
            initialize: None,
            turns: Turns::default(),
            permissions: super::permissions::Permissions::with(spec.remembered.clone()),
            elicitations: super::elicitations::Elicitations::default(),
            inside: super::inside::Inside::default(),
            asks: super::asks::Asks::default(),
            status: InstanceStatus::Starting,
            stderr_tail: Tail::default(),
            created: Some(created),
            stop_replies: Vec::new(),
            unsent: std::collections::VecDeque::new(),
            unwritten: std::collections::VecDeque::new(),
            just_written: std::collections::VecDeque::new(),
            numbered: 0,
            let_out: 0,
            given: 0,
            written_before: 0,
            ambiguous: Vec::new(),
            resend_at: None,
            unread: false,
            reread_at: None,
            stalled: None,
            head: super::marks::Head::default(),
            shifts: super::shifts::Shifts::default(),
            breaks: super::relink::Breaks::default(),
            taken_cause: None,
            taken_lines: kandev_store::journal::PipeLines::default(),
            saved_text: String::new(),
            handshake_until: None,
            life_until: Instant::now() + std::time::Duration::from_secs(seconds),
            idle_since: None,
            view,
            fresh: broadcast::Sender::new(BATCHES),
            mailbox,
            spec,
        }
    }

    async fn run(&mut self) {
        match (self.is_taken_up(), &self.created) {
            (true, _) => self.take_up(),
            (false, None) => self.queue_again(),
            (false, Some(_)) => self.begin(),
        }
        self.steps().await;
    }

    /// A launch: the first step.
    fn begin(&mut self) {
        let data = serde_json::json!({"status": InstanceStatus::Starting});
        self.event(EventKind::Status, &data);
        if let Some(prompt) = self.spec.first_prompt.take() {
            self.accept_prompt((prompt, serde_json::Map::new()));
        }
        if matches!(self.phase, Phase::Creating) {
            self.create();
        } else {
            self.log(LogLevel::Info, "waiting for a free slot".to_owned());
            self.reply_created(Ok(()));
        }
    }

    async fn steps(&mut self) {
        loop {
            self.forget_written();
            self.show();
            self.save();
            self.outbox.flush(self.fresh.receiver_count() > 0);
            self.watch_stall();
            if matches!(self.phase, Phase::Settled { .. }) && self.outbox.is_idle() {
                self.remove();
            }
            if matches!(self.phase, Phase::Ended) && self.outbox.is_idle() {
                break;
            }
            // What is under way with the engine is waited for, so that its outcome is on record.
            if self.shared.leave.is_cancelled() && self.engine.is_none() && self.outbox.is_idle() {
                self.let_go();
                break;
            }
            let deadline = self.next_deadline();
            let may_act = self.may_act();
            let takes_output = self.takes_output();
            let takes_inside = !self.outbox.is_full() && self.unsent.is_empty();
            let unsent = self.unsent.front().cloned();
            let writer = self
                .link
                .as_ref()
                .filter(|_| unsent.is_some())
                .map(|link| link.writer.clone());
            tokio::select! {
                biased;
                // First: what is lost is not acted on any more.
                () = self.term.lost.cancelled() => return self.let_go(),
                stored = self.outbox.stored(), if self.outbox.is_storing() => match stored {
                    Ok(effects) => self.let_out(effects),
                    // The server ends without its database: the next one takes the instance up where the database stands.
                    // Or another server has taken over.
                    Err(JournalError::Closed | JournalError::Fenced) => return self.let_go(),
                    Err(error) => {
                        tracing::error!(%error, "the instance cannot be recorded any more and is given up");
                        return self.give_up().await;
                    }
                },
                Some(command) = self.mailbox.recv() => self.command(command),
                done = next(&mut self.engine) => { self.engine = None; self.engine_done(done); }
                status = next(&mut self.exit) => { self.exit = None; self.exited(status); }
                slot = granted(&mut self.phase) => self.admitted(slot),
                sent = send_first(writer, unsent), if !self.unsent.is_empty() => {
                    self.unsent.pop_front();
                    if sent { self.given += 1; } else { self.unsent.clear(); }
                }
                step = next_of_link(&mut self.link, takes_output, !self.unwritten.is_empty()) => match step {
                    LinkStep::Written(count) => self.were_written(count),
                    LinkStep::Output(output) => self.output(output),
                },
                event = next_inside(&mut self.inside), if takes_inside => self.inside_event(event),
                () = tokio::time::sleep_until(deadline), if may_act => self.time_is_up(),
                _ = self.term.current(), if !may_act => {}
                () = self.shared.leave.cancelled(), if !self.shared.leave.is_cancelled() => {}
                () = self.shared.stop_agents.cancelled(), if !self.is_stopping() => {
                    self.end(Cause::Shutdown);
                }
            }
        }
    }

    /// A time that is up ends the instance only if nobody can have taken it over; an end under way goes on.
    fn may_act(&self) -> bool {
        self.ending.is_some() || self.is_over() || self.term.is_current()
    }

    fn takes_output(&self) -> bool {
        self.link.as_ref().is_some_and(|link| !link.ended)
            && !self.outbox.is_full()
            && self.unsent.is_empty()
            && !self.shared.leave.is_cancelled()
    }

    /// Output is not taken because the database does not keep up.
    pub(super) fn is_stalled(&self) -> bool {
        self.link.as_ref().is_some_and(|link| !link.ended) && !self.takes_output()
    }

    fn let_out(&mut self, effects: Vec<Effect>) {
        let seq = self.outbox.stored_seq();
        for effect in effects {
            match effect {
                Effect::Write(frame) => self.write(frame),
                Effect::Inside(tag) => self.go_inside(tag),
                Effect::Reply(reply) => reply(),
                Effect::CloseStdin => self.close_stdin(),
                Effect::View(view) => drop(self.view.send_replace(View { seq, ..view })),
                // Nobody follows: then nobody needs it.
                Effect::Publish(stored) => drop(self.fresh.send(Arc::new(stored))),
            }
        }
        self.view
            .send_if_modified(|view| std::mem::replace(&mut view.seq, seq) != seq);
    }

    /// Keeps what another process would need, if it has changed.
    fn save(&mut self) {
        if self.outbox.is_storing() || matches!(self.phase, Phase::Ended) {
            return;
        }
        if let Some(replay) = &mut self.replay
            && self.outbox.has_records()
        {
            // Lines are counted in the rows of events.
            replay.stored = replay.updates;
        }
        let saved = super::raw(&self.saved());
        if saved.get() == self.saved_text {
            return;
        }
        match self.shared.sealer.seal(self.spec.id, &saved) {
            Ok(sealed) => self.outbox.patch(|p| p.saved = Some(sealed)),
            Err(error) => tracing::error!(%error, "the instance could not be taken up from here"),
        }
        self.saved_text = String::from(Box::<str>::from(saved));
    }

    fn show(&mut self) {
        let view = View {
            status: self.status,
            turn_state: self.turn_state(),
            ended_turns: self.turns.ended,
            seq: self.outbox.next_seq() - 1,
        };
        let current = self.turns.shown.as_ref();
        let same = current.is_some_and(|v| {
            (v.status, v.turn_state, v.ended_turns) == (view.status, view.turn_state, view.ended_turns)
        });
        if !same {
            let turn_state = view.turn_state;
            self.outbox.patch(|p| p.turn_state = Some(turn_state));
            self.turns.shown = Some(view.clone());
            self.outbox.effect(Effect::View(view));
        }
    }

    pub(super) fn context(&self) -> Context {
        Context {
            session_id: self.session.as_ref().map(|s| s.id.clone()),
            turn_id: self.turns.attributed(),
        }
    }

    pub(super) fn event(&mut self, kind: EventKind, data: &impl serde::Serialize) {
        let (now, context) = (self.shared.clock.now(), self.context());
        self.outbox.event(now, kind, context, data);
    }

    pub(super) fn log(&mut self, level: LogLevel, message: String) {
        match level {
            LogLevel::Error | LogLevel::Warn => tracing::warn!("{message}"),
            LogLevel::Info | LogLevel::Debug => tracing::info!("{message}"),
        }
        let (now, context) = (self.shared.clock.now(), self.context());
        self.outbox.log(now, level, context, message);
    }

    pub(super) fn reply(&mut self, to: Reply, answer: Answer) {
        match to {
            // A caller that went away does not need the answer.
            Reply::Here(to) => self
                .outbox
                .effect(Effect::Reply(Box::new(move || drop(to.send(answer))))),
            Reply::Elsewhere(id) => self.outbox.change(Change::Answer(answer.stored(id))),
        }
    }

    pub(super) fn reply_created(&mut self, result: Result<(), super::ending::Failure>) {
        if let Some(created) = self.created.take() {
            // A caller that went away does not need to know.
            self.outbox
                .effect(Effect::Reply(Box::new(move || drop(created.send(result)))));
        }
    }

    fn command(&mut self, command: Command) {
        let Command { request, reply } = command;
        match request {
            Request::Prompt { .. } | Request::Cancel { .. } if self.is_legacy() => {
                self.reply(reply, Answer::Unsupported(super::legacy::READ_ONLY.to_owned()));
            }
            Request::Prompt {
                prompt,
                meta,
                when_busy,
            } => {
                let decision = lifecycle::admit(self.admission(), lifecycle::Request::Prompt { when_busy });
                let answer = self.prompt((prompt, meta), decision);
                self.reply(reply, Answer::Prompt(answer));
            }
            Request::Cancel { reason } => {
                let answer = match lifecycle::admit(self.admission(), lifecycle::Request::Cancel) {
                    Decision::Proceed => {
                        self.cancel(reason);
                        Cancelled::Cancelling
                    }
                    _ => Cancelled::Nothing,
                };
                self.reply(reply, Answer::Cancel(answer));
            }
            Request::Stop { reason, force } => {
                self.stop_replies.push(reply);
                match lifecycle::admit(self.admission(), lifecycle::Request::Stop) {
                    Decision::Proceed => self.end(Cause::Stop { reason, force }),
                    _ if force => self.force(),
                    _ => {}
                }
                if matches!(self.phase, Phase::Ended) {
                    self.answer_stops(Stopped::Ended);
                }
            }
            Request::Ask { ask } => self.ask(ask, reply),
            Request::Permission { permission, answer } => {
                let answer = self.answer_permission(permission, &answer);
                self.reply(reply, Answer::Permission(answer));
            }
            Request::Elicitation { elicitation, answer } => {
                let was_open = self.answer_elicitation(elicitation, &answer);
                self.reply(reply, Answer::Elicitation(was_open));
            }
        }
    }

    fn admitted(&mut self, slot: Option<Slot>) {
        self.slot = slot;
        self.phase = Phase::Creating;
        self.log(LogLevel::Info, "a slot is free".to_owned());
        // A server before this one may have come as far, and died.
        self.recreate();
    }

    fn output(&mut self, output: Option<Output>) {
        self.drain_on();
        match output {
            Some(Output::Lines { lines, .. }) => {
                self.breaks.saw_output();
                for (channel, line) in lines {
                    self.line(channel, line);
                }
            }
            Some(Output::Gap(gap)) => self.output_is_missing(gap),
            Some(Output::CaughtUp) => self.caught_up(),
            Some(Output::End { error, rest }) => self.output_ended(error, rest),
            None => {
                let error = RuntimeError::Broken("the reader stopped".to_owned());
                self.output_ended(Some(error), Vec::new());
            }
        }
    }
}

/// Called when dropped, and so also when the task panics: then the reconciler finds an instance that nobody holds.
struct OnEnd<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for OnEnd<F> {
    fn drop(&mut self) {
        if let Some(on_end) = self.0.take() {
            on_end();
        }
    }
}
