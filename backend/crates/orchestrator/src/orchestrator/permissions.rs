//! Answers to what agents ask to be allowed.

use kandev_domain::permission::Remembered;
use kandev_domain::{InstanceId, PermissionId, PermissionStatus, SessionKey};
use kandev_store::StoreError;
use kandev_store::permissions::{self, Permission};

use super::{Orchestrator, STORE_LIMIT};
use crate::command::{ANSWER_LIMIT, Answer, CommandError, Request};
use crate::instance::{AnswerRefused, MAX_REMEMBERED, PermissionAnswer};

/// Why an answer was not given.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// The instance has no such request.
    #[error("the instance has no such permission request")]
    NoSuchRequest,
    /// It has its answer.
    #[error("the permission request is {0} already")]
    Resolved(PermissionStatus),
    /// The agent offers no such thing.
    #[error(transparent)]
    Refused(AnswerRefused),
    /// It did not get to the instance.
    #[error(transparent)]
    Command(#[from] CommandError),
}

impl From<StoreError> for AnswerError {
    fn from(error: StoreError) -> Self {
        Self::Command(error.into())
    }
}

impl Orchestrator {
    /// Answers a permission request, and gives it as it is then. The answer is on record, and on its way to the agent.
    pub async fn answer_permission(
        &self,
        instance: InstanceId,
        id: PermissionId,
        answer: PermissionAnswer,
    ) -> Result<Permission, AnswerError> {
        let open = self.permission(instance, id).await?;
        if open.status != PermissionStatus::Pending {
            return Err(AnswerError::Resolved(open.status));
        }
        // One that is seen before its instance is taken up after a restart gets its answer then.
        let request = Request::Permission {
            permission: id,
            answer,
        };
        let answered = self.command(instance, request, ANSWER_LIMIT).await?;
        let now = self.permission(instance, id).await?;
        match answered {
            Some(Answer::Permission(Ok(()))) => Ok(now),
            // Another answer, its time, or the instance's end came first.
            Some(Answer::Permission(Err(AnswerRefused::NotOpen))) | None => {
                Err(AnswerError::Resolved(now.status))
            }
            Some(Answer::Permission(Err(refused))) => Err(AnswerError::Refused(refused)),
            Some(other) => Err(CommandError::unexpected(&other).into()),
        }
    }

    async fn permission(&self, instance: InstanceId, id: PermissionId) -> Result<Permission, AnswerError> {
        let found = permissions::get(&self.shared.pool, instance, id);
        let found = kandev_store::within(STORE_LIMIT, found).await?;
        found.ok_or(AnswerError::NoSuchRequest)
    }

    /// What callers answered for always in a session, oldest first.
    pub(super) async fn remembered(
        &self,
        session: Option<SessionKey>,
    ) -> Result<Vec<Remembered>, StoreError> {
        match session {
            Some(key) => {
                let known = permissions::remembered(&self.shared.pool, key, MAX_REMEMBERED as i64);
                kandev_store::within(STORE_LIMIT, known).await
            }
            None => Ok(Vec::new()),
        }
    }
}
