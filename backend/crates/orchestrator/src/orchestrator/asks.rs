//! Asking agents for more than turns.

use kandev_acp::dialect::Ask;
use kandev_domain::InstanceId;

use super::Orchestrator;
use crate::command::{ANSWER_LIMIT, Answer, CommandError, Request};
use crate::instance::{AskOutcome, AskRefused};

/// Why there is no answer of the agent's.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// It was not asked, or did not answer.
    #[error(transparent)]
    Refused(#[from] AskRefused),
    /// The instance was not reached.
    #[error(transparent)]
    Command(#[from] CommandError),
}

impl Orchestrator {
    /// Asks an instance's agent, and gives its answer.
    pub async fn ask(&self, id: InstanceId, ask: Ask) -> Result<AskOutcome, AskError> {
        let limit = self.shared.settings.call_timeout + ANSWER_LIMIT;
        match self.command(id, Request::Ask { ask }, limit).await? {
            Some(Answer::Ask(answer)) => Ok(answer?),
            None => Err(AskRefused::NotReady.into()),
            Some(other) => Err(CommandError::unexpected(&other).into()),
        }
    }
}
