//! Errors of the crates below, as callers see them.

use kandev_domain::FailureCode;
use kandev_domain::content::PromptError;
use kandev_domain::lifecycle::Refusal;
use kandev_orchestrator::{
    AnswerError, AnswerRefused, CommandError, ElicitationError, LaunchError, PromptRefused,
};
use kandev_store::StoreError;
use serde_json::json;

use crate::error::{ApiError, ErrorCode};

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        if error.is_transient() {
            Self::database_unavailable(error)
        } else {
            Self::internal(error)
        }
    }
}

impl From<PromptError> for ApiError {
    fn from(error: PromptError) -> Self {
        Self::validation("prompt", &error.to_string())
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::QueueFull => Self::new(ErrorCode::TooManyRequests, refusal.to_string()),
            _ => Self::conflict(refusal.to_string()),
        }
    }
}

impl From<CommandError> for ApiError {
    fn from(error: CommandError) -> Self {
        match error {
            CommandError::NotFound => Self::new(ErrorCode::NotFound, error.to_string()),
            CommandError::Refused(PromptRefused::State(refusal)) => refusal.into(),
            CommandError::Refused(PromptRefused::Content(error)) => error.into(),
            CommandError::Unsupported(text) => Self::new(ErrorCode::UnsupportedCapability, text),
            CommandError::TooMany => {
                Self::new(ErrorCode::TooManyRequests, error.to_string()).retry_after_seconds(1)
            }
            CommandError::NotHere => {
                Self::new(ErrorCode::RuntimeUnavailable, error.to_string()).retry_after_seconds(5)
            }
            CommandError::Unanswered => Self::database_unavailable(error),
            CommandError::Internal(_) => Self::internal(error),
            CommandError::Store(error) => error.into(),
        }
    }
}

impl From<AnswerError> for ApiError {
    fn from(error: AnswerError) -> Self {
        let text = error.to_string();
        match error {
            AnswerError::NoSuchRequest => Self::new(ErrorCode::NotFound, text),
            AnswerError::Resolved(status) => Self::conflict(text).details(json!({ "status": status })),
            AnswerError::Refused(AnswerRefused::NotOpen) => Self::conflict(text),
            AnswerError::Refused(AnswerRefused::NoSuchOption) => Self::validation("option_id", &text),
            AnswerError::Refused(AnswerRefused::NoSuchKind) => Self::validation("kind", &text),
            AnswerError::Command(error) => error.into(),
        }
    }
}

impl From<ElicitationError> for ApiError {
    fn from(error: ElicitationError) -> Self {
        let text = error.to_string();
        match error {
            ElicitationError::NoSuchRequest => Self::new(ErrorCode::NotFound, text),
            ElicitationError::Resolved(status) => Self::conflict(text).details(json!({ "status": status })),
            ElicitationError::Misfit {
                field: Some(field), ..
            } => Self::validation(&format!("content.{field}"), &text),
            ElicitationError::Misfit { field: None, .. } => Self::validation("content", &text),
            ElicitationError::Command(error) => error.into(),
        }
    }
}

impl From<LaunchError> for ApiError {
    fn from(error: LaunchError) -> Self {
        let text = error.to_string();
        match error {
            LaunchError::UnknownType(_) | LaunchError::DisabledType(_) => {
                Self::new(ErrorCode::ValidationError, text).details(json!({ "field": "agent_type" }))
            }
            LaunchError::MissingEnv { missing, .. } => Self::new(ErrorCode::ValidationError, text)
                .details(json!({ "field": "env", "missing": missing })),
            LaunchError::Workspace(error) => Self::validation("workspace_path", &error.to_string()),
            LaunchError::Invalid { field, problem } => Self::validation(field, &problem),
            LaunchError::Unsupported { field, .. } => {
                Self::new(ErrorCode::UnsupportedCapability, text).details(json!({ "field": field }))
            }
            LaunchError::TaskBusy { task_id, instance } => {
                Self::conflict(text).details(json!({ "task_id": task_id, "instance_id": instance }))
            }
            LaunchError::SessionBusy(id) | LaunchError::StillActive(id) => {
                Self::conflict(text).details(json!({ "instance_id": id }))
            }
            LaunchError::NoSuchInstance => Self::new(ErrorCode::NotFound, text),
            LaunchError::NotResumable(_) => Self::conflict(text),
            LaunchError::ShuttingDown => {
                Self::new(ErrorCode::RuntimeUnavailable, text).retry_after_seconds(5)
            }
            LaunchError::Unanswered { id } => {
                Self::database_unavailable(error).details(json!({ "instance_id": id }))
            }
            LaunchError::Store(error) => error.into(),
            LaunchError::Internal(_) => Self::internal(text),
            LaunchError::Failed {
                id,
                code,
                message,
                transient,
            } => {
                let details = json!({ "instance_id": id, "code": code });
                match code {
                    FailureCode::ImageNotFound => Self::new(ErrorCode::ImageNotFound, message),
                    _ if transient => {
                        Self::new(ErrorCode::RuntimeUnavailable, message).retry_after_seconds(5)
                    }
                    // The engine said no to what the caller and the catalogue asked for.
                    _ => Self::bad_request(message),
                }
                .details(details)
            }
        }
    }
}
