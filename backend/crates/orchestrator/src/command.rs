//! Commands to instances, and how their answers find back.
//!
//! A command goes to the instance's task through its mailbox. Where another server holds the instance, the command
//! goes there through the database: a row that the holder's [taker](take_handed) hands to the task, which answers it in the
//! transaction that stores what the command changed. So a command whose server dies is carried out by the next one,
//! if it was not before, and never twice.

use std::sync::Arc;
use std::time::Duration;

use kandev_acp::dialect::Ask;
use kandev_acp::elicitation::Action;
use kandev_domain::content::Prompt;
use kandev_domain::lifecycle::{Refusal, WhenBusy};
use kandev_domain::{CommandId, ElicitationId, InstanceId, PermissionId};
use kandev_store::commands::{self, Handed};
use kandev_store::notify::{self, Wake};
use kandev_store::{StoreError, instances};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::Orchestrator;
use crate::instance::{
    Accepted, AnswerRefused, AskOutcome, AskRefused, Cancelled, PermissionAnswer, PromptRefused, Stopped,
};
use crate::orchestrator::STORE_LIMIT;

/// How often to look for commands and answers where no wake came.
const POLL: Duration = Duration::from_secs(1);
/// How many commands are taken at once.
const AT_ONCE: i64 = 64;
/// How long a command waits for its answer, which comes when what it changed is stored.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Why a command did not reach an instance, or did nothing.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// There is none with this id.
    #[error("there is no such instance")]
    NotFound,
    /// Its state does not admit it.
    #[error(transparent)]
    Refused(#[from] PromptRefused),
    /// Its agent has no way to be told so.
    #[error("{0}")]
    Unsupported(String),
    /// Too many commands wait.
    #[error("too many commands wait for the instance")]
    TooMany,
    /// The instance changes servers just now, or the one that holds it does not answer.
    #[error("the server that holds the instance did not answer")]
    NotHere,
    /// It was given to the instance, and what came of it is not on record yet.
    #[error("the database does not answer; what came of it will be seen when it does")]
    Unanswered,
    /// A defect of ours.
    #[error("{0}")]
    Internal(String),
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl CommandError {
    /// What an answer means that is not of the command's own kind.
    pub(crate) fn unexpected(answer: &Answer) -> Self {
        match answer {
            Answer::Unsupported(message) => Self::Unsupported(message.clone()),
            answer => Self::Internal(format!("an answer to another command: {answer:?}")),
        }
    }
}

/// What is wanted of an instance.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Request {
    Prompt {
        prompt: Prompt,
        #[serde(default)]
        meta: Map<String, Value>,
        when_busy: WhenBusy,
    },
    Cancel {
        reason: Option<String>,
    },
    Stop {
        reason: Option<String>,
        force: bool,
    },
    Ask {
        ask: Ask,
    },
    Permission {
        permission: PermissionId,
        answer: PermissionAnswer,
    },
    Elicitation {
        elicitation: ElicitationId,
        answer: Action,
    },
}

/// What came of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Prompt(Result<Accepted, PromptRefused>),
    Cancel(Cancelled),
    Stop(Stopped),
    Permission(Result<(), AnswerRefused>),
    /// Whether it was open.
    Elicitation(bool),
    Ask(Result<AskOutcome, AskRefused>),
    /// The agent has no way to be told so.
    Unsupported(String),
    /// Too many commands wait for the instance.
    TooMany,
}

/// Whom to answer, after what the command changed is stored.
#[derive(Debug)]
pub(crate) enum Reply {
    /// A caller of this server.
    Here(oneshot::Sender<Answer>),
    /// A caller of another one, by the command's row.
    Elsewhere(CommandId),
}

impl Reply {
    /// True if the caller waits in this process.
    pub(crate) const fn is_here(&self) -> bool {
        matches!(self, Self::Here(_))
    }
}

/// A command to an instance's task.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) request: Request,
    pub(crate) reply: Reply,
}

impl Answer {
    /// As it is stored.
    pub(crate) fn stored(&self, id: CommandId) -> commands::Answer {
        commands::Answer {
            id,
            answer: serde_json::to_string(self).unwrap_or_default(),
        }
    }
}

impl Orchestrator {
    /// Gives an instance a prompt, and `meta` with it, which the agent gets as `_meta`.
    pub async fn prompt(
        &self,
        id: InstanceId,
        prompt: Prompt,
        meta: Map<String, Value>,
        when_busy: WhenBusy,
    ) -> Result<Accepted, CommandError> {
        let prompt = self.with_files(id, prompt).await?;
        let request = Request::Prompt {
            prompt,
            meta,
            when_busy,
        };
        match self.command(id, request, ANSWER_LIMIT).await? {
            Some(Answer::Prompt(answer)) => Ok(answer?),
            None => Err(PromptRefused::State(Refusal::Ended).into()),
            Some(other) => Err(CommandError::unexpected(&other)),
        }
    }

    /// Cancels what an instance is doing. Works while the database is away, where this server holds the instance.
    pub async fn cancel(&self, id: InstanceId, reason: Option<String>) -> Result<Cancelled, CommandError> {
        match self.command(id, Request::Cancel { reason }, ANSWER_LIMIT).await {
            Err(CommandError::Unanswered) => Ok(Cancelled::Underway),
            Err(error) => Err(error),
            Ok(Some(Answer::Cancel(answer))) => Ok(answer),
            Ok(None) => Ok(Cancelled::Nothing),
            Ok(Some(other)) => Err(CommandError::unexpected(&other)),
        }
    }

    /// Ends an instance, and answers once it has ended, or when that takes longer than it should. Works while the database
    /// is away, where this server holds the instance.
    pub async fn stop(
        &self,
        id: InstanceId,
        reason: Option<String>,
        force: bool,
    ) -> Result<Stopped, CommandError> {
        let settings = &self.shared.settings;
        let graces = if force {
            Duration::ZERO
        } else {
            settings.cancel_grace + settings.stop_grace
        };
        let request = Request::Stop { reason, force };
        match self.command(id, request, graces + ANSWER_LIMIT).await {
            Err(CommandError::Unanswered) => Ok(Stopped::Underway),
            Err(error) => Err(error),
            Ok(Some(Answer::Stop(stopped))) => Ok(stopped),
            Ok(None) => Ok(Stopped::Ended),
            Ok(Some(other)) => Err(CommandError::unexpected(&other)),
        }
    }

    /// Sends a command to whoever holds the instance; none if the instance has ended. One that is held here is told without
    /// a look at the database.
    pub(crate) async fn command(
        &self,
        id: InstanceId,
        request: Request,
        limit: Duration,
    ) -> Result<Option<Answer>, CommandError> {
        let mut request = request;
        if let Some(mailbox) = self.held.mailbox(id) {
            let (reply, answer) = oneshot::channel();
            let reply = Reply::Here(reply);
            match mailbox.try_send(Command { request, reply }) {
                Ok(()) => match timeout(limit, answer).await {
                    Ok(Ok(answer)) => return Ok(Some(answer)),
                    // It has ended, or was let go: whether the command was carried out before is not known.
                    Ok(Err(_)) => return self.has_ended(id).await.map(|()| None),
                    Err(_) => return Err(CommandError::Unanswered),
                },
                Err(mpsc::error::TrySendError::Full(_)) => return Err(CommandError::TooMany),
                // It has just ended, or was let go before it took the command.
                Err(mpsc::error::TrySendError::Closed(command)) => request = command.request,
            }
        }
        match self.has_ended(id).await {
            Err(CommandError::NotHere) => self.hand_over(id, &request, limit).await,
            ended => ended.map(|()| None),
        }
    }

    /// [`CommandError::NotHere`] if it has not.
    async fn has_ended(&self, id: InstanceId) -> Result<(), CommandError> {
        let instance = kandev_store::within(STORE_LIMIT, instances::get(&self.shared.pool, id)).await?;
        if instance.ok_or(CommandError::NotFound)?.status.is_final() {
            Ok(())
        } else {
            Err(CommandError::NotHere)
        }
    }

    async fn hand_over(
        &self,
        id: InstanceId,
        request: &Request,
        limit: Duration,
    ) -> Result<Option<Answer>, CommandError> {
        let pool = &self.shared.pool;
        // Another server may have to find out first that the holder is gone.
        let deadline = Instant::now() + self.shared.settings.lease * 2 + limit;
        let mut answered = self.shared.wakes.answers.subscribe();
        let command = CommandId::generate();
        let text = match request {
            // What is asked of an agent may hold secrets. Servers that share a deployment share its key.
            Request::Ask { .. } => {
                let sealed = self.shared.sealer.seal_text(id, request);
                sealed.map_err(|e| CommandError::Internal(e.to_string()))?
            }
            request => serde_json::to_string(request).map_err(|e| CommandError::Internal(e.to_string()))?,
        };
        kandev_store::within(STORE_LIMIT, commands::hand_over(pool, command, id, &text)).await?;
        if let Err(error) = notify::send_on(pool, &Wake::Commands).await {
            tracing::debug!(%error, "the holder finds the command by itself");
        }
        loop {
            answered.mark_unchanged();
            match kandev_store::within(STORE_LIMIT, self.look_for_answer(id, command)).await {
                Ok(Some(found)) => return found,
                Ok(None) => {}
                Err(error) if error.is_transient() => {
                    tracing::debug!(%error, "an answer waits for the database");
                }
                Err(error) => return Err(error.into()),
            }
            if Instant::now() >= deadline {
                let late = kandev_store::within(STORE_LIMIT, commands::withdraw(pool, command)).await?;
                return late.map_or(Err(CommandError::NotHere), |answer| parse(&answer).map(Some));
            }
            let wake = async {
                tokio::select! {
                    _ = answered.changed() => {}
                    () = sleep(POLL) => {}
                }
            };
            // Late is what the next round finds out.
            let _ = timeout_at(deadline, wake).await;
        }
    }

    /// None if there is nothing to tell yet.
    async fn look_for_answer(
        &self,
        id: InstanceId,
        command: CommandId,
    ) -> Result<Option<Result<Option<Answer>, CommandError>>, StoreError> {
        let pool = &self.shared.pool;
        // In this order: the answer to what ended the instance is stored together with its end.
        let ended = instances::get(pool, id)
            .await?
            .is_none_or(|i| i.status.is_final());
        if !ended && commands::answer_to(pool, command).await?.is_none() {
            return Ok(None);
        }
        let answer = commands::withdraw(pool, command).await?;
        Ok(Some(answer.map(|answer| parse(&answer)).transpose()))
    }
}

fn parse(answer: &str) -> Result<Answer, CommandError> {
    match serde_json::from_str(answer) {
        Ok(Answer::TooMany) => Err(CommandError::TooMany),
        Ok(answer) => Ok(answer),
        Err(error) => Err(CommandError::Internal(format!(
            "the answer of another server: {error}"
        ))),
    }
}

/// Hands what other servers left for our instances to their tasks, until `closing`.
pub(crate) async fn take_handed(orchestrator: Arc<Orchestrator>, closing: CancellationToken) {
    let wakes = orchestrator.shared.wakes.clone();
    let mut full = false;
    loop {
        if !full {
            tokio::select! {
                () = wakes.commands.notified() => {}
                () = sleep(POLL) => {}
                () = closing.cancelled() => return,
            }
        }
        let taken = tokio::select! {
            taken = take(&orchestrator) => taken,
            () = closing.cancelled() => return,
        };
        full = match taken {
            Ok(full) => full,
            Err(error) => {
                tracing::debug!(%error, "commands from other servers wait");
                false
            }
        };
    }
}

/// True if there may be more.
async fn take(orchestrator: &Orchestrator) -> Result<bool, StoreError> {
    let shared = &orchestrator.shared;
    let held = orchestrator.held.ids();
    let Some(term) = shared.lease.term().filter(|_| !held.is_empty()) else {
        return Ok(false);
    };
    let handed = commands::take(&shared.pool, term.fence, &held, AT_ONCE).await?;
    let full = handed.len() as i64 == AT_ONCE;
    for command in handed {
        let Handed { id, instance_id, .. } = command;
        let Some(mailbox) = orchestrator.held.mailbox(instance_id) else {
            // It has just ended, which its caller sees, or another server takes it up, and the command with it.
            continue;
        };
        let plain = serde_json::from_str::<Request>(&command.request).ok();
        let open = || shared.sealer.open_text(instance_id, &command.request).ok();
        let Some(request) = plain.or_else(open) else {
            // Of another version, or key: left to a server that knows it.
            tracing::warn!(%instance_id, command = %id, "a command of another server is not understood");
            continue;
        };
        let request = match orchestrator.with_files_again(request).await {
            Ok(request) => request,
            Err(refused) => {
                let answer = Answer::Prompt(Err(refused));
                commands::answer(&shared.pool, &answer.stored(id)).await?;
                continue;
            }
        };
        let reply = Reply::Elsewhere(id);
        match mailbox.try_send(Command { request, reply }) {
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                commands::answer(&shared.pool, &Answer::TooMany.stored(id)).await?;
            }
        }
    }
    Ok(full)
}
