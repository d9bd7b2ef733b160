//! Taking an instance up from a process that has ended.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kandev_acp::peer::Peer;
use kandev_acp::{Dialect, dialect};
use kandev_domain::{FailureCode, InstanceId, InstanceStatus, LogLevel, TurnId};
use kandev_runtime::{ContainerId, ContainerRuntime, ContainerState, ExitStatus, RunSign, RuntimeError};
use kandev_store::elicitations::Elicitation;
use kandev_store::journal::{LastLines, PipeLines};
use kandev_store::permissions::Permission;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::View;
use super::actor::{Actor, Connected, EngineDone, Phase};
use super::catch_up::{self, OnRecord};
use super::ending::Cause;
use super::handshake::Replay;
use super::inside::Inside;
use super::marks::mark;
use super::permissions::ToolKinds;
use super::saved::{Saved, SavedPhase};
use super::turns::{Cancel, PromptWithMeta, Running};
use crate::Shared;

/// How long the agent gets to show that a frame reached it of which that is not known.
const SIGN_OF_LIFE: Duration = Duration::from_millis(500);
/// How often an engine that is away is asked again.
pub(super) const ENGINE_RETRY: Duration = Duration::from_secs(1);
/// How often a refusal is asked again about.
const MAX_REFUSALS: u32 = 3;
/// How often an engine that is away is asked for what is to be removed before a container is made.
const MAX_CLEARINGS: u32 = 10;
/// How often a database that is away is asked again.
const DATABASE_RETRY: Duration = Duration::from_secs(1);

/// What a process has to know of an instance to take it up.
#[derive(Debug)]
pub(crate) struct TakeUp {
    pub(crate) saved: Saved<'static>,
    pub(crate) status: InstanceStatus,
    pub(crate) lines: PipeLines,
    /// Prompts that were accepted and not yet handed to the agent, in order.
    pub(crate) queue: Vec<(TurnId, PromptWithMeta)>,
    /// How many updates the running turn had.
    pub(crate) updates: u64,
    /// Permission requests without an answer, oldest first.
    pub(crate) permissions: Vec<Permission>,
    /// Elicitations without an answer, oldest first.
    pub(crate) elicitations: Vec<Elicitation>,
    /// And those that were accepted, of which it is not known that they are done.
    pub(crate) awaited: Vec<Elicitation>,
    /// What is known of the running turn's tool calls.
    pub(crate) kinds: ToolKinds,
    /// What is left of its life.
    pub(crate) life: Duration,
}

/// A container that was found again.
pub(super) enum Reconnected {
    /// It had never been started, and is now.
    Started(Connected),
    /// Its output goes on after what is stored. And whether its engine is another run than the one before.
    Found(Connected, bool),
    /// It has ended, and its output is in the engine's log.
    Ended(ExitStatus),
}

impl Actor {
    /// Puts back what another process had come to.
    pub(super) fn restore(&mut self, from: TakeUp) {
        let TakeUp {
            saved,
            status,
            lines,
            queue,
            updates,
            permissions,
            elicitations,
            awaited,
            kinds,
            life,
        } = from;
        // One that waited for a slot has asked for one again, like any launch.
        if saved.phase != SavedPhase::Queued {
            self.slot = Some(self.shared.slots.take());
            self.phase = Phase::Reconnecting(saved.phase);
        }
        self.created = None;
        self.status = status;
        self.life_until = Instant::now() + life;
        self.container = saved.container.map(ContainerId);
        self.peer = Peer::restore(saved.peer.next_id, saved.peer.pending);
        let protocol = self.spec.agent_type.protocol;
        self.agent = saved
            .agent
            .and_then(|answer| dialect::negotiate(protocol, &answer).ok());
        let lenient = self
            .agent
            .as_ref()
            .map_or(protocol != kandev_domain::agent_type::Protocol::Acp, |a| {
                a.dialect == Dialect::Kandev
            });
        self.peer.set_lenient_ids(lenient);
        self.session = saved.session;
        self.branches = saved.branches;
        self.replay = saved.replaying.map(|stored| Replay {
            silent: saved.replaying_silently,
            updates: stored,
            stored,
        });
        self.login = saved.login;
        self.configure = saved.configure;
        self.chosen = saved.chosen;
        self.costs = saved.costs;
        self.early_facets = saved.early_facets;
        self.kandev = saved.kandev;
        self.head = saved.head;
        self.shifts = saved.shifts;
        self.breaks.sign = saved.sign.map(RunSign);
        self.inside = Inside::restore(saved.inside);
        self.ambiguous = saved.unwritten.into_iter().map(Bytes::from).collect();
        self.turns.last = saved.last_turn;
        self.turns.count = saved.turn_count;
        self.turns.ended = saved.ended_turns;
        self.turns.accepts = saved.accepts;
        self.turns.last_status = saved.last_status;
        self.turns.aside = saved.aside;
        let now = Instant::now();
        self.turns.running = saved.running.map(|turn| Running {
            id: turn.id,
            updates,
            cancel: turn.cancelled.then(|| Cancel {
                reason: turn.reason,
                until: now + self.shared.settings.cancel_grace,
            }),
            until: self.shared.settings.turn_timeout.map(|limit| now + limit),
        });
        for (id, prompt) in queue {
            self.turns.put_back(id, prompt);
        }
        self.restore_permissions(permissions, kinds);
        self.restore_elicitations(elicitations, awaited);
        self.restore_asks();
        self.taken_cause = saved.ending;
        self.verdict = saved.verdict;
        self.taken_lines = lines;
    }

    pub(super) const fn is_taken_up(&self) -> bool {
        matches!(self.phase, Phase::Reconnecting(_))
    }

    /// The first step of one that waited for a slot.
    pub(super) fn queue_again(&mut self) {
        self.log(
            LogLevel::Info,
            "waiting for a slot again after the server ended".to_owned(),
        );
        if matches!(self.phase, Phase::Creating) {
            self.recreate();
        }
    }

    /// The first step.
    pub(super) fn take_up(&mut self) {
        let Phase::Reconnecting(phase) = self.phase else {
            return;
        };
        self.log(
            LogLevel::Info,
            "taking the instance up after its server ended".to_owned(),
        );
        match (phase, self.container.clone()) {
            (SavedPhase::Queued | SavedPhase::Creating, _) => {
                // There may be a container that nobody was told of.
                self.phase = Phase::Creating;
                self.recreate();
            }
            (_, None) => self.lost("the instance had no container".to_owned()),
            (SavedPhase::Connecting, Some(container)) => {
                // The handshake begins anew; what the agent said before it was asked is in the log.
                self.peer = Peer::new();
                self.prepare_handshake();
                self.reconnect(container);
            }
            (_, Some(container)) => self.reconnect(container),
        }
    }

    /// Makes a container where there may be one that nobody was told of, or one that could not be removed.
    pub(super) fn recreate(&mut self) {
        let runtime = Arc::clone(&self.shared.runtime);
        let term = Arc::clone(&self.term);
        let (id, owner) = (self.spec.id.to_string(), self.shared.settings.owner.clone());
        self.create();
        let Some(create) = self.engine.take() else { return };
        self.engine = Some(Box::pin(async move {
            let clear = async || {
                // Another server that has taken over may have made one of its own.
                if term.current().await.is_err() {
                    return Err(RuntimeError::Broken(
                        "another server holds the instance".to_owned(),
                    ));
                }
                for found in runtime.list(&owner).await? {
                    if found.labels.get(kandev_runtime::LABEL_INSTANCE) == Some(&id) {
                        runtime.remove(&found.id).await?;
                    }
                }
                Ok(())
            };
            let mut refusals = 0;
            loop {
                match clear().await {
                    Ok(()) => return create.await,
                    // The engine may be on its way back.
                    Err(error) if error.is_transient() && refusals < MAX_CLEARINGS => {
                        refusals += 1;
                        tokio::time::sleep(ENGINE_RETRY).await;
                    }
                    Err(error) => return EngineDone::Created(Err(error)),
                }
            }
        }));
    }

    pub(super) fn reconnect(&mut self, container: ContainerId) {
        let runtime = Arc::clone(&self.shared.runtime);
        let tracker = self.shared.tracker.clone();
        let on_record = self.on_record(self.taken_lines);
        let sign = self.breaks.sign.clone();
        self.engine = Some(Box::pin(async move {
            let (mut refusals, mut away) = (0, false);
            loop {
                match find(
                    Arc::clone(&runtime),
                    &container,
                    sign.as_ref(),
                    on_record(),
                    &tracker,
                )
                .await
                {
                    // The engine may be on its way back together with us.
                    Err(error) if error.is_transient() => {
                        tracing::warn!(%error, "the container cannot be taken up yet");
                        away = true;
                        tokio::time::sleep(ENGINE_RETRY).await;
                    }
                    // It may have ended between two calls.
                    Err(RuntimeError::Refused { message, .. }) if refusals < MAX_REFUSALS => {
                        tracing::warn!(message, "the container cannot be taken up yet");
                        refusals += 1;
                        tokio::time::sleep(ENGINE_RETRY).await;
                    }
                    found => return EngineDone::Reconnected(found, away),
                }
            }
        }));
    }

    /// What is on record of the output, of which so many lines have been counted. Made anew for each try.
    pub(super) fn on_record(&self, lines: PipeLines) -> impl Fn() -> OnRecord + Send + 'static {
        let shared = Arc::clone(&self.shared);
        let (id, head, shifts) = (self.spec.id, self.head.clone(), self.shifts);
        let (seq, view) = (self.outbox.next_seq() - 1, self.view.subscribe());
        move || OnRecord {
            shifts,
            head: head.clone(),
            last: {
                let stored = last_lines(Arc::clone(&shared), id, lines, (seq, view.clone()));
                Box::pin(async move { shifts.own(stored.await) })
            },
            log_file_bytes: shared.settings.log_file_bytes,
        }
    }

    pub(super) fn reconnected(&mut self, found: Result<Reconnected, RuntimeError>, away: bool) {
        let Phase::Reconnecting(phase) = self.phase else {
            return;
        };
        self.is_back(away, &found);
        let started = matches!(found, Ok(Reconnected::Started(_)));
        let connected = match found {
            Err(error) => return self.lost(format!("the container could not be taken up: {error}")),
            Ok(Reconnected::Started(connected) | Reconnected::Found(connected, _)) => connected,
            Ok(Reconnected::Ended(status)) => {
                if let Some(cause) = self.taken_cause.take() {
                    self.end(cause);
                }
                self.unread = true;
                return self.exited(Ok(status));
            }
        };
        self.link(connected);
        if started {
            self.breaks.is_up_to_date();
            self.inside.is_found();
        }
        self.phase = match phase {
            SavedPhase::Ready | SavedPhase::Over => Phase::Ready,
            SavedPhase::Queued | SavedPhase::Creating | SavedPhase::Connecting | SavedPhase::Handshaking => {
                Phase::Handshaking
            }
        };
        match phase {
            SavedPhase::Connecting => self.begin_handshake(),
            SavedPhase::Handshaking => {
                self.handshake_until = Some(Instant::now() + self.shared.settings.handshake_timeout);
            }
            SavedPhase::Queued | SavedPhase::Creating | SavedPhase::Ready | SavedPhase::Over => {
                self.idle_since = self.turns.running.is_none().then(Instant::now);
            }
        }
        if self.ending.is_some() {
            return self.terminate();
        }
        match self.taken_cause.take() {
            Some(cause) => self.end(cause),
            None => self.next_turn(),
        }
    }

    /// There is nothing to take up. What was being ended has ended.
    fn lost(&mut self, message: String) {
        // One that was to be started again need not be there; but what it said at last may be missing.
        let over = matches!(self.phase, Phase::Reconnecting(SavedPhase::Over));
        self.unread |= !over && matches!(self.taken_cause, Some(Cause::Restart));
        match self.taken_cause.take() {
            Some(cause) => self.end(cause),
            None => self.fail(FailureCode::RuntimeLost, message),
        }
        self.settle();
    }

    /// The log has been read up to now.
    pub(super) fn caught_up(&mut self) {
        self.log(LogLevel::Info, "the output is read up to now".to_owned());
        self.tell_doubt();
        self.resume_inside();
        if !self.ambiguous.is_empty() {
            self.resend_at = Some(Instant::now() + SIGN_OF_LIFE);
        }
    }

    /// Frames that may not have reached the agent are sent again: answers and notices always, since agents take them
    /// twice; a request only if it is still open and nothing was heard since.
    pub(super) fn resend(&mut self) {
        self.resend_at = None;
        let silent = self.outbox.lines().stdout == self.taken_lines.stdout;
        for frame in std::mem::take(&mut self.ambiguous) {
            let message: Value = serde_json::from_slice(&frame).unwrap_or(Value::Null);
            let id = message["id"].as_u64().filter(|_| message["method"].is_string());
            let wanted = match id {
                Some(id) => silent && self.peer.is_pending(id),
                // A cancel must not hit the turn after the one that it was for.
                None if message["method"] == "session/cancel" => {
                    self.turns.running.as_ref().is_some_and(|r| r.cancel.is_some())
                }
                None => true,
            };
            if wanted {
                self.send(frame);
            }
        }
    }
}

async fn find(
    runtime: Arc<dyn ContainerRuntime>,
    id: &ContainerId,
    sign: Option<&RunSign>,
    stored: OnRecord,
    tracker: &TaskTracker,
) -> Result<Reconnected, RuntimeError> {
    match runtime.inspect(id).await? {
        ContainerState::Created => {
            let attachment = runtime.attach(id).await?;
            let exit = runtime.wait(id).await?;
            runtime.start(id).await?;
            let (stdio, sign) = (attachment.into(), runtime.run_sign(id).await.ok());
            Ok(Reconnected::Started(Connected { stdio, exit, sign }))
        }
        ContainerState::Running => {
            let exit = runtime.wait(id).await?;
            // Left paused by a process that ended while it took the instance up.
            runtime.unpause(id).await?;
            let another_run = match sign {
                Some(sign) => !runtime.has_sign(id, sign).await?,
                None => false,
            };
            let sign = match sign {
                Some(sign) if !another_run => Some(sign.clone()),
                _ => runtime.run_sign(id).await.ok(),
            };
            let stdio = catch_up::running(runtime, id.clone(), stored, tracker).await?;
            Ok(Reconnected::Found(Connected { stdio, exit, sign }, another_run))
        }
        ContainerState::Exited(status) => Ok(Reconnected::Ended(status)),
    }
}

/// Reads the last lines that are stored, as soon as all up to `seq` are. A database that is away is waited for.
async fn last_lines(
    shared: Arc<Shared>,
    id: InstanceId,
    lines: PipeLines,
    (seq, mut view): (i64, watch::Receiver<View>),
) -> LastLines {
    // If the task has ended, nobody wants to know.
    let _ = view.wait_for(|view| view.seq >= seq).await.is_ok();
    loop {
        match kandev_store::journal::last_lines(&shared.pool, id, lines, mark).await {
            Ok(last) => return last,
            Err(error) if error.is_transient() => tokio::time::sleep(DATABASE_RETRY).await,
            Err(error) => {
                tracing::error!(%error, "what is stored of the output cannot be read");
                return LastLines {
                    lines,
                    ..LastLines::default()
                };
            }
        }
    }
}
