//! How an instance ends.
//!
//! A graceful end: the running turn is cancelled and awaited, stdin is closed, SIGTERM, SIGKILL, each after its grace. (Docker
//! keeps the stdin of a container open that is to outlive our connection, so there SIGTERM comes at once.) The
//! container's end by itself joins in at the same place: the rest of the output is read, the turns get their end, the
//! container is removed, and only then is the final status told.

use std::time::Duration;

use kandev_domain::{DecidedBy, EventKind, FailureCode, InstanceStatus, LogLevel, TurnStatus};
use kandev_runtime::{ExitStatus, RuntimeError};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::Stopped;
use super::actor::{Actor, EngineDone, Phase};
use super::pump::DRAIN_SILENCE;
use super::reconnect::ENGINE_RETRY;
use super::turns::{End, TurnFailure};
use crate::command::{Answer, Reply};
use crate::outbox::Effect;

/// How long the container may live on after its output ended, or after the engine stopped it.
const EXIT_EXPECTED: Duration = Duration::from_secs(10);

/// How often an engine that is away is asked again to remove a container.
const REMOVE_RETRIES: usize = 10;

/// Why an instance fails.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Failure {
    /// For programs.
    pub code: FailureCode,
    /// For people.
    pub message: String,
    /// What the agent or engine said.
    pub details: Option<Box<RawValue>>,
    /// The same may well work later.
    pub transient: bool,
}

/// Why an instance is to end.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Cause {
    /// A caller said so.
    Stop { reason: Option<String>, force: bool },
    /// Nothing to do for too long.
    Idle,
    /// Its one turn is over.
    OneShot { turn: TurnStatus },
    /// The agent did not end its turn when told to.
    IgnoredCancel,
    /// The same, and it can go on with its session: its container ends, and the instance does not.
    Restart,
    /// Something went wrong.
    Failed(Failure),
    /// The server ends.
    Shutdown,
}

/// An end under way.
#[derive(Debug)]
pub(super) struct Ending {
    pub cause: Cause,
    pub(super) stage: Stage,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Stage {
    /// The turn was told to end.
    Cancelling,
    /// The engine was told to stop it.
    Terminating,
}

impl Actor {
    /// Begins to end the instance. The first cause counts.
    pub(super) fn end(&mut self, cause: Cause) {
        if self.restarts() && !matches!(cause, Cause::Restart) {
            return self.end_instead(cause);
        }
        if self.ending.is_some() || self.is_over() {
            return;
        }
        let stage = Stage::Cancelling;
        let gentle = !matches!(
            cause,
            Cause::Stop { force: true, .. } | Cause::IgnoredCancel | Cause::Restart | Cause::Failed(_)
        );
        self.log(LogLevel::Info, format!("ending: {}", cause.describe()));
        self.ending = Some(Ending { cause, stage });
        let cancels = matches!(self.phase, Phase::Ready) && gentle && self.turns.running.is_some();
        if self.restarts() {
            self.begin_restart();
        } else {
            if !cancels {
                self.cancel_requests(DecidedBy::InstanceEnd);
            }
            self.cancel_queued("the instance ended");
        }
        match self.phase {
            Phase::Queued(_) => self.finalize(),
            Phase::Ready if cancels => {
                self.cancel(Some("the instance is ending".to_owned()));
                if self.is_legacy() {
                    // It cannot be told, and so nothing is to be waited for.
                    self.terminate();
                }
            }
            Phase::Handshaking | Phase::Ready => self.terminate(),
            // The engine call under way comes back first; after the container's end nothing is left to do.
            Phase::Creating
            | Phase::Connecting
            | Phase::Reconnecting(_)
            | Phase::Draining { .. }
            | Phase::Settled { .. }
            | Phase::Removing
            | Phase::Ended => {}
        }
    }

    /// The container has ended, or never will be: nothing more can be begun.
    pub(super) const fn is_over(&self) -> bool {
        matches!(
            self.phase,
            Phase::Draining { .. } | Phase::Settled { .. } | Phase::Removing | Phase::Ended
        )
    }

    /// A caller lost patience with an end under way.
    pub(super) fn force(&mut self) {
        if matches!(self.phase, Phase::Handshaking | Phase::Ready) {
            if let Some(ending) = &mut self.ending
                && let Cause::Stop { force, .. } = &mut ending.cause
            {
                *force = true;
            }
            self.terminate();
        }
    }

    /// SIGTERM, and SIGKILL after the grace, or at once when forced.
    pub(super) fn terminate(&mut self) {
        let Some(ending) = &mut self.ending else { return };
        if matches!(ending.stage, Stage::Terminating) && self.engine.is_some() && !ending.is_forced() {
            return;
        }
        ending.stage = Stage::Terminating;
        // After what has been decided so far.
        self.outbox.effect(Effect::CloseStdin);
        let forced = ending.is_forced();
        self.close_inside();
        let Some(container) = self.container.clone() else {
            return;
        };
        let runtime = std::sync::Arc::clone(&self.shared.runtime);
        let grace = self.shared.settings.stop_grace;
        self.engine = Some(Box::pin(async move {
            loop {
                let result = if forced {
                    runtime.kill(&container).await
                } else {
                    runtime.stop(&container, grace).await
                };
                match result {
                    // It comes back, and with it the container.
                    Err(RuntimeError::Unavailable(_) | RuntimeError::Broken(_)) => {
                        tokio::time::sleep(ENGINE_RETRY).await;
                    }
                    result => return EngineDone::Stopped(result),
                }
            }
        }));
    }

    pub(super) fn close_stdin(&self) {
        if let Some(link) = &self.link {
            link.writer.close();
        }
    }

    /// The database refuses what this instance is: the container must not outlive its history.
    pub(super) async fn give_up(&mut self) {
        self.drop_link();
        if let Some(container) = self.container.take()
            && let Err(error) = self.shared.runtime.remove(&container).await
        {
            tracing::warn!(%error, "the container is left to the reconciler");
        }
    }

    /// Lets the container be: another process takes it up.
    pub(super) fn let_go(&mut self) {
        if let Some(link) = &self.link {
            link.pump.abort.cancel();
        }
        self.link = None;
    }

    pub(super) fn drop_link(&mut self) {
        if let Some(link) = &mut self.link {
            link.pump.abort.cancel();
            link.writer.abort();
            link.ended = true;
        }
        self.unsent.clear();
    }

    pub(super) fn turn_over_while_ending(&mut self) {
        if let Some(Ending {
            stage: Stage::Cancelling,
            ..
        }) = &self.ending
        {
            self.terminate();
        }
    }

    /// The container should have ended by now, or will in a moment.
    pub(super) fn expect_exit(&mut self) {
        self.handshake_until = None;
        self.exit_expected = Some(Instant::now() + EXIT_EXPECTED);
    }

    /// The container has ended.
    pub(super) fn exited(&mut self, status: Result<ExitStatus, RuntimeError>) {
        match status {
            Ok(status) => {
                self.log(
                    LogLevel::Info,
                    format!("the container ended with exit code {}", status.code),
                );
                let some_process = status.oom_hint;
                self.exit_status = Some(status);
                if some_process && !self.ran_out_of_memory() {
                    let hint = "the memory limit was hit, and a process of the agent's was killed for it";
                    self.log(LogLevel::Warn, hint.to_owned());
                }
            }
            Err(error) => {
                self.log(LogLevel::Error, format!("the container was lost: {error}"));
                if self.ending.is_none() {
                    self.fail(
                        FailureCode::RuntimeLost,
                        format!("the container was lost: {error}"),
                    );
                }
            }
        }
        self.exit_expected = None;
        if self.is_over() {
            return;
        }
        self.breaks.relink_at = None;
        if self.unread && self.exit_status.is_some() {
            return self.read_rest();
        }
        self.phase = Phase::Draining {
            until: Instant::now() + DRAIN_SILENCE,
        };
        if self.link.as_ref().is_none_or(|link| link.ended) {
            self.take_half_lines();
            self.conclude();
        }
    }

    /// All output is read that will be.
    pub(super) fn conclude(&mut self) {
        if !self.link.as_ref().is_none_or(|link| link.ended) {
            self.log(
                LogLevel::Warn,
                "the container has ended, but its output did not".to_owned(),
            );
            self.event(
                EventKind::Gap,
                &json!({"reason": "the output did not end with the container"}),
            );
        }
        self.settle();
    }

    /// Every turn gets its end.
    fn settle_turns(&mut self) {
        if self.restarts() {
            return self.settle_for_restart();
        }
        self.forget_calls();
        self.cancel_requests(DecidedBy::InstanceEnd);
        self.end_task_by_exit();
        self.abandon_inside();
        if self.turns.running.is_some() {
            let failure = self.verdict().failure;
            let (code, message) = failure.map_or_else(
                || ("agent_exited", "the instance ended".to_owned()),
                |failure| (failure.code.as_str(), failure.message),
            );
            let error = TurnFailure {
                code,
                message,
                details: Some(self.exit_details()),
            };
            self.end_turn(End {
                error: Some(error),
                ..End::default()
            });
        }
        self.cancel_queued("the instance ended");
    }

    pub(super) fn exit_details(&self) -> Box<RawValue> {
        let details = json!({
            "exit_code": self.exit_status.as_ref().map(|s| s.code),
            "oom_killed": self.ran_out_of_memory(),
            "stderr_tail": self.stderr_tail.text(),
        });
        super::raw(&details)
    }

    /// Nothing more will come: every turn gets its end. The container goes when all of it is stored.
    pub(super) fn settle(&mut self) {
        if std::mem::take(&mut self.unread) {
            let reason = json!({"reason": "the rest of the output could not be read"});
            self.event(EventKind::Gap, &reason);
        }
        self.phase = Phase::Settled {
            since: Instant::now(),
        };
        self.drop_link();
        self.exit = None;
        // While it is known what the instance was doing.
        self.verdict = (!self.restarts()).then(|| self.verdict());
        self.settle_turns();
        if self.restarts() {
            return;
        }
        if let Some(exit) = self.exit_status.clone() {
            let oom_killed = self.ran_out_of_memory();
            self.outbox.patch(|p| {
                p.exit_code = Some(exit.code);
                p.oom_killed = Some(oom_killed);
            });
        }
    }

    /// Removes the container, known or not: a create that was not answered may have made one.
    pub(super) fn remove(&mut self) {
        self.phase = Phase::Removing;
        let runtime = std::sync::Arc::clone(&self.shared.runtime);
        let (id, owner) = (self.spec.id.to_string(), self.shared.settings.owner.clone());
        let container = self.container.clone();
        let term = std::sync::Arc::clone(&self.term);
        let retries = if container.is_some() { REMOVE_RETRIES } else { 0 };
        self.engine = Some(Box::pin(async move {
            let remove = async || {
                // Another server that has taken over may still be reading the container's log.
                if term.current().await.is_err() {
                    return Ok(());
                }
                if let Some(container) = &container {
                    return runtime.remove(container).await;
                }
                for found in runtime.list(&owner).await? {
                    if found.labels.get(kandev_runtime::LABEL_INSTANCE) == Some(&id) {
                        runtime.remove(&found.id).await?;
                    }
                }
                Ok(())
            };
            // An engine that restarts is back in a moment; after that, the reconciler takes care. A launch that failed has a
            // caller who waits.
            for _ in 0..retries {
                match remove().await {
                    Err(RuntimeError::Unavailable(_) | RuntimeError::Broken(_)) => {
                        tokio::time::sleep(ENGINE_RETRY).await;
                    }
                    removed => return EngineDone::Removed(removed),
                }
            }
            EngineDone::Removed(remove().await)
        }));
    }

    pub(super) fn removed(&mut self, result: Result<(), RuntimeError>) {
        if let Err(error) = result {
            // The reconciler finds it by its label.
            self.log(
                LogLevel::Warn,
                format!("the container could not be removed yet: {error}"),
            );
        }
        if self.restarts() {
            return self.begin_again();
        }
        self.finalize();
    }

    /// A step of the engine's failed.
    pub(super) fn could_not_create(&mut self, step: &str, error: &RuntimeError) {
        let code = match error {
            RuntimeError::ImageNotFound(_) => FailureCode::ImageNotFound,
            _ => FailureCode::ContainerCreateFailed,
        };
        let failure = Failure {
            code,
            message: format!("{step}: {error}"),
            details: None,
            transient: error.is_transient(),
        };
        if self.ending.is_none() {
            self.end(Cause::Failed(failure));
        }
        self.settle();
    }

    /// Tells the final status, and answers who waits for it.
    fn finalize(&mut self) {
        let verdict = self.verdict();
        self.cancel_queued("the instance ended");
        self.status = verdict.status;
        self.phase = Phase::Ended;
        self.slot = None;
        let now = self.shared.clock.now();
        let exit = self.exit_status.clone();
        let oom_killed = self.ran_out_of_memory();
        let tail = self.stderr_tail.text();
        let failure = verdict.failure.clone();
        let reason = verdict.reason.clone();
        self.outbox.patch(|p| {
            p.status = Some(verdict.status);
            p.finished_at = Some(now);
            p.progress = (verdict.status == InstanceStatus::Completed)
                .then_some(100)
                .or(p.progress);
            p.exit_code = exit.as_ref().map(|e| e.code);
            p.oom_killed = exit.is_some().then_some(oom_killed);
            p.stderr_tail = tail;
            p.ended_reason = reason;
            if let Some(failure) = failure {
                p.error_code = Some(failure.code);
                p.error_message = Some(failure.message);
                p.error_details = failure.details.map(|d| d.get().to_owned());
            }
        });
        let error = verdict
            .failure
            .as_ref()
            .map(|f| json!({"code": f.code, "message": f.message}));
        let exit_code = self.exit_status.as_ref().map(|e| e.code);
        let data = json!({
            "status": verdict.status, "exit_code": exit_code, "error": error, "reason": verdict.reason,
        });
        self.event(EventKind::Status, &data);
        self.outbox.durable();
        let created = verdict.failure.map_or(Ok(()), Err);
        self.reply_created(created);
        self.answer_stops(Stopped::Ended);
    }

    /// Answers those who wait for the end, once this step is stored.
    pub(super) fn answer_stops(&mut self, stopped: Stopped) {
        for reply in std::mem::take(&mut self.stop_replies) {
            self.reply(reply, Answer::Stop(stopped));
        }
    }

    /// The container has ended, and the database does not say so: nobody is kept waiting for that.
    pub(super) fn answer_early(&mut self) {
        for reply in std::mem::take(&mut self.stop_replies) {
            match reply {
                // A caller that went away does not need the answer.
                Reply::Here(reply) => drop(reply.send(Answer::Stop(Stopped::Underway))),
                // That answer goes by the database.
                Reply::Elsewhere(_) => self.stop_replies.push(reply),
            }
        }
    }
}

impl Ending {
    const fn is_forced(&self) -> bool {
        matches!(
            self.cause,
            Cause::Stop { force: true, .. } | Cause::IgnoredCancel | Cause::Restart
        )
    }
}
