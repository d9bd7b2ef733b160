//! Commands to instances: prompts, cancels, stops.

use std::time::Duration;

use kandev_domain::InstanceId;
use kandev_domain::content::Prompt;
use kandev_domain::lifecycle::{Refusal, WhenBusy};
use kandev_store::{StoreError, instances};
use tokio::sync::{mpsc, oneshot};

use super::{Orchestrator, STORE_LIMIT};
use crate::instance::{Accepted, Cancelled, Command, PromptRefused, Stopped};

/// How long a command waits for its answer, which comes when what it changed is stored.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Why a command did not reach an instance, or did nothing.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// There is none with this id.
    #[error("there is no such instance")]
    NotFound,
    /// Its state does not admit it.
    #[error(transparent)]
    Refused(#[from] PromptRefused),
    /// Too many commands wait.
    #[error("too many commands wait for the instance")]
    TooMany,
    /// The instance is recorded as active, but not held here.
    #[error("the instance is not held by this server")]
    NotHere,
    /// It was given to the instance, and what came of it is not on record yet.
    #[error("the database does not answer; what came of it will be seen when it does")]
    Unanswered,
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Orchestrator {
    /// Gives an instance a prompt.
    pub async fn prompt(
        &self,
        id: InstanceId,
        prompt: Prompt,
        when_busy: WhenBusy,
    ) -> Result<Accepted, CommandError> {
        let (reply, answer) = oneshot::channel();
        let answered = self
            .command(
                id,
                Command::Prompt {
                    prompt,
                    when_busy,
                    reply,
                },
                answer,
                ANSWER_LIMIT,
            )
            .await?;
        Ok(answered.ok_or(PromptRefused::State(Refusal::Ended))??)
    }

    /// Cancels what an instance is doing. Works while the database is away.
    pub async fn cancel(&self, id: InstanceId, reason: Option<String>) -> Result<Cancelled, CommandError> {
        let (reply, answer) = oneshot::channel();
        match self
            .command(id, Command::Cancel { reason, reply }, answer, ANSWER_LIMIT)
            .await
        {
            Err(CommandError::Unanswered) => Ok(Cancelled::Underway),
            answered => Ok(answered?.unwrap_or(Cancelled::Nothing)),
        }
    }

    /// Ends an instance, and answers once it has ended, or when that takes longer than it should. Works while the database
    /// is away.
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
        let (reply, answer) = oneshot::channel();
        match self
            .command(
                id,
                Command::Stop { reason, force, reply },
                answer,
                graces + ANSWER_LIMIT,
            )
            .await
        {
            Err(CommandError::Unanswered) => Ok(Stopped::Underway),
            answered => Ok(answered?.unwrap_or(Stopped::Ended)),
        }
    }

    /// Sends a command to an instance's task; none if the instance has ended. One that is held here is told without a look
    /// at the database.
    async fn command<T>(
        &self,
        id: InstanceId,
        command: Command,
        answer: oneshot::Receiver<T>,
        limit: Duration,
    ) -> Result<Option<T>, CommandError> {
        if let Some(mailbox) = self.held.mailbox(id) {
            match mailbox.try_send(command) {
                Ok(()) => match tokio::time::timeout(limit, answer).await {
                    Ok(Ok(answer)) => return Ok(Some(answer)),
                    // It has just ended.
                    Ok(Err(_)) => {}
                    Err(_) => return Err(CommandError::Unanswered),
                },
                Err(mpsc::error::TrySendError::Full(_)) => return Err(CommandError::TooMany),
                // It has just ended.
                Err(mpsc::error::TrySendError::Closed(_)) => {}
            }
        }
        let instance = kandev_store::within(STORE_LIMIT, instances::get(&self.shared.pool, id))
            .await?
            .ok_or(CommandError::NotFound)?;
        if instance.status.is_final() {
            Ok(None)
        } else {
            Err(CommandError::NotHere)
        }
    }
}
