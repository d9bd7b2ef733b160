//! Answers to what agents ask people for.

use kandev_acp::elicitation::{Action, Misfit, check};
use kandev_domain::{ElicitationId, ElicitationMode, ElicitationStatus, InstanceId};
use kandev_store::StoreError;
use kandev_store::elicitations::{self, Elicitation};
use serde_json::value::RawValue;

use super::{Orchestrator, STORE_LIMIT};
use crate::command::{ANSWER_LIMIT, Answer, CommandError, Request};

/// How much the content of a form may have, in bytes.
const MAX_CONTENT_BYTES: usize = 256 << 10;

/// Why an answer was not given.
#[derive(Debug, thiserror::Error)]
pub enum ElicitationError {
    /// The instance has no such elicitation.
    #[error("the instance has no such elicitation")]
    NoSuchRequest,
    /// It has its answer.
    #[error("the elicitation is {0} already")]
    Resolved(ElicitationStatus),
    /// A field of the content does not fit the form; the content itself if none is named.
    #[error("{problem}")]
    Misfit {
        /// Of the form.
        field: Option<String>,
        /// For people.
        problem: String,
    },
    /// It did not get to the instance.
    #[error(transparent)]
    Command(#[from] CommandError),
}

impl From<StoreError> for ElicitationError {
    fn from(error: StoreError) -> Self {
        Self::Command(error.into())
    }
}

impl Orchestrator {
    /// Answers an elicitation, and gives it as it is then. The answer is on record, and on its way to the agent.
    pub async fn answer_elicitation(
        &self,
        instance: InstanceId,
        id: ElicitationId,
        answer: Action,
    ) -> Result<Elicitation, ElicitationError> {
        let open = self.elicitation(instance, id).await?;
        if open.status != ElicitationStatus::Pending {
            return Err(ElicitationError::Resolved(open.status));
        }
        let answer = fitting(&open, answer)?;
        // One that is seen before its instance is taken up after a restart gets its answer then.
        let request = Request::Elicitation {
            elicitation: id,
            answer,
        };
        let answered = self.command(instance, request, ANSWER_LIMIT).await?;
        let now = self.elicitation(instance, id).await?;
        match answered {
            Some(Answer::Elicitation(true)) => Ok(now),
            // Another answer, its time, or the instance's end came first.
            Some(Answer::Elicitation(false)) | None => Err(ElicitationError::Resolved(now.status)),
            Some(other) => Err(CommandError::unexpected(&other).into()),
        }
    }

    async fn elicitation(
        &self,
        instance: InstanceId,
        id: ElicitationId,
    ) -> Result<Elicitation, ElicitationError> {
        let found = elicitations::get(&self.shared.pool, instance, id);
        let found = kandev_store::within(STORE_LIMIT, found).await?;
        found.ok_or(ElicitationError::NoSuchRequest)
    }
}

/// The answer, if it is one to this: a form has content, which fits it, and a URL has none.
fn fitting(asked: &Elicitation, answer: Action) -> Result<Action, ElicitationError> {
    let misfit = |field: Option<String>, problem: &str| {
        let problem = problem.to_owned();
        Err(ElicitationError::Misfit { field, problem })
    };
    let Action::Accept { content } = answer else {
        return Ok(answer);
    };
    let content = match (asked.mode, content) {
        (ElicitationMode::Url, None) => return Ok(Action::Accept { content: None }),
        (ElicitationMode::Url, Some(_)) => return misfit(None, "belongs to a form, and this is a URL"),
        (ElicitationMode::Form, content) => content.unwrap_or_default(),
    };
    if serde_json::to_string(&content).map_or(0, |text| text.len()) > MAX_CONTENT_BYTES {
        return misfit(None, &format!("has more than {MAX_CONTENT_BYTES} bytes"));
    }
    // It was JSON when it was stored.
    let schema = asked.requested_schema.clone().unwrap_or_default();
    let schema = RawValue::from_string(schema).unwrap_or_else(|_| RawValue::NULL.to_owned());
    match check(&schema, &content) {
        Ok(()) => Ok(Action::Accept {
            content: Some(content),
        }),
        Err(Misfit { field, problem }) => misfit(Some(field), &problem),
    }
}
