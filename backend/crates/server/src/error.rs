//! The one error of the HTTP API.
//!
//! An [`ApiError`] has an outside (code, message, details: what the caller may see) and an inside (its cause: what the
//! log gets). Handlers only return it; the edge ([`crate::edge`]) adds the request id, and logs it once.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use kandev_runtime::RuntimeError;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

macro_rules! codes {
    ($( $(#[doc = $doc:literal])+ $variant:ident = $text:literal, $status:ident; )+) => {
        /// What went wrong, for programs. Each has a page in `docs/errors/`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, ToSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum ErrorCode {
            $( $(#[doc = $doc])+ $variant, )+
        }

        impl ErrorCode {
            /// Every code.
            pub const ALL: &'static [Self] = &[$( Self::$variant, )+];

            /// Its name in the body.
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$variant => $text, )+ }
            }

            /// Its usual HTTP status.
            pub const fn status(self) -> StatusCode {
                match self { $( Self::$variant => StatusCode::$status, )+ }
            }
        }
    };
}

codes! {
    /// The request cannot be read.
    BadRequest = "bad_request", BAD_REQUEST;
    /// A field of the request has a value that cannot be.
    ValidationError = "validation_error", BAD_REQUEST;
    /// No valid key.
    Unauthorized = "unauthorized", UNAUTHORIZED;
    /// A valid key that may not do this.
    Forbidden = "forbidden", FORBIDDEN;
    /// No such thing.
    NotFound = "not_found", NOT_FOUND;
    /// The thing is not in a state that admits this.
    Conflict = "conflict", CONFLICT;
    /// The idempotency key was used with another request.
    IdempotencyMismatch = "idempotency_mismatch", UNPROCESSABLE_ENTITY;
    /// The body is over the limit.
    PayloadTooLarge = "payload_too_large", PAYLOAD_TOO_LARGE;
    /// Later.
    TooManyRequests = "too_many_requests", TOO_MANY_REQUESTS;
    /// The agent did not advertise it.
    UnsupportedCapability = "unsupported_capability", NOT_IMPLEMENTED;
    /// The agent answered with an error.
    AgentError = "agent_error", BAD_GATEWAY;
    /// The container engine does not answer.
    RuntimeUnavailable = "runtime_unavailable", SERVICE_UNAVAILABLE;
    /// The engine has no such image.
    ImageNotFound = "image_not_found", UNPROCESSABLE_ENTITY;
    /// Our fault.
    InternalError = "internal_error", INTERNAL_SERVER_ERROR;
}

/// The body of every error.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ErrorBody {
    /// What went wrong, for programs.
    pub error: ErrorCode,
    /// What went wrong, for people.
    pub message: String,
    /// More: a text, an object (`field` names a field), or null.
    #[schema(value_type = Value)]
    pub details: Value,
    /// The response's HTTP status.
    pub http_status: u16,
    /// The request's id, as in the `X-Request-Id` header and the log.
    pub request_id: Option<String>,
}

/// An error on its way out.
#[derive(Debug)]
pub struct ApiError(Box<Inner>);

#[derive(Debug)]
struct Inner {
    code: ErrorCode,
    status: StatusCode,
    message: Cow<'static, str>,
    details: Value,
    retry_after_seconds: Option<u32>,
    cause: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The result of a handler.
pub type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    /// An error with the code's usual status.
    pub fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            code,
            status: code.status(),
            message: message.into(),
            details: Value::Null,
            retry_after_seconds: None,
            cause: None,
        }))
    }

    /// 400 `bad_request`.
    pub fn bad_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::BadRequest, message)
    }

    /// 400 `validation_error`; `field` is its path in the request, such as `resources.memory_mb`.
    pub fn validation(field: &str, problem: &str) -> Self {
        Self::new(ErrorCode::ValidationError, format!("{field}: {problem}"))
            .details(json!({ "field": field }))
    }

    /// 404 `not_found`, such as `("agent", id)`.
    pub fn not_found(what: &str, id: impl fmt::Display) -> Self {
        Self::new(ErrorCode::NotFound, format!("there is no {what} '{id}'"))
    }

    /// 409 `conflict`.
    pub fn conflict(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::Conflict, message)
    }

    /// 500 `internal_error`. The cause goes to the log and never to the caller.
    pub fn internal(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::new(
            ErrorCode::InternalError,
            "something went wrong on our side; the log has it under this request id",
        )
        .caused_by(cause)
    }

    /// 503: the database does not answer.
    pub fn database_unavailable(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::new(
            ErrorCode::InternalError,
            "the database does not answer; try again",
        )
        .status(StatusCode::SERVICE_UNAVAILABLE)
        .retry_after_seconds(2)
        .caused_by(cause)
    }

    /// The same with details: a text or an object.
    #[must_use]
    pub fn details(mut self, details: impl Into<Value>) -> Self {
        self.0.details = details.into();
        self
    }

    /// The same under another HTTP status.
    #[must_use]
    pub fn status(mut self, status: StatusCode) -> Self {
        self.0.status = status;
        self
    }

    /// The same with a `Retry-After` header.
    #[must_use]
    pub fn retry_after_seconds(mut self, seconds: u32) -> Self {
        self.0.retry_after_seconds = Some(seconds);
        self
    }

    /// The same with a cause, for the log.
    #[must_use]
    pub fn caused_by(mut self, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.0.cause = Some(cause.into());
        self
    }

    /// Its code.
    pub fn code(&self) -> ErrorCode {
        self.0.code
    }

    /// Its HTTP status.
    pub fn http_status(&self) -> StatusCode {
        self.0.status
    }

    /// The causes, outermost first, joined by colons; empty if there is none.
    pub fn cause_text(&self) -> String {
        let first = self
            .0
            .cause
            .as_deref()
            .map(|cause| cause as &dyn std::error::Error);
        let chain = std::iter::successors(first, |error| error.source());
        chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
    }

    pub(crate) fn body(&self, request_id: Option<String>) -> ErrorBody {
        ErrorBody {
            error: self.0.code,
            message: self.0.message.clone().into_owned(),
            details: self.0.details.clone(),
            http_status: self.0.status.as_u16(),
            request_id,
        }
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.code.as_str(), self.0.message)
    }
}

impl IntoResponse for ApiError {
    /// A complete response but for the request id, which the edge adds: it finds the error in the extensions.
    fn into_response(self) -> Response {
        let mut response = (self.0.status, axum::Json(self.body(None))).into_response();
        if let Some(seconds) = self.0.retry_after_seconds {
            response
                .headers_mut()
                .insert(axum::http::header::RETRY_AFTER, seconds.into());
        }
        response.extensions_mut().insert(Arc::new(self));
        response
    }
}

impl From<RuntimeError> for ApiError {
    fn from(error: RuntimeError) -> Self {
        match &error {
            RuntimeError::ImageNotFound(image) => {
                let message = format!("the container engine has no image '{image}'");
                Self::new(ErrorCode::ImageNotFound, message).details(json!({ "image": image }))
            }
            _ if error.is_transient() => Self::new(
                ErrorCode::RuntimeUnavailable,
                "the container engine does not answer; try again",
            )
            .retry_after_seconds(5)
            .caused_by(error),
            _ => Self::internal(error),
        }
    }
}

impl From<sqlx::Error> for ApiError {
    fn from(error: sqlx::Error) -> Self {
        kandev_store::StoreError::from(error).into()
    }
}

/// True if the database is away, as opposed to having refused a statement.
pub fn is_outage(error: &sqlx::Error) -> bool {
    kandev_store::is_transient(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_page_that_names_it_and_its_status() {
        let pages = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/errors");
        let index = std::fs::read_to_string(pages.join("README.md")).unwrap();
        for code in ErrorCode::ALL {
            let name = code.as_str();
            let page = std::fs::read_to_string(pages.join(format!("{name}.md")));
            let page = page.unwrap_or_else(|e| panic!("docs/errors/{name}.md: {e}"));
            assert!(page.starts_with(&format!("# {name}\n")), "{name}: title");
            assert!(
                page.contains(&format!("HTTP {}", code.status().as_u16())),
                "{name}: status"
            );
            assert!(
                page.contains(&format!("\"error\": \"{name}\"")),
                "{name}: example"
            );
            assert!(index.contains(&format!("({name}.md)")), "{name}: index");
            assert_eq!(serde_json::to_value(code).unwrap(), name);
        }
        let count = std::fs::read_dir(&pages).unwrap().count();
        assert_eq!(count, ErrorCode::ALL.len() + 1, "a page of no code");
    }

    #[test]
    fn causes_stay_inside() {
        let error = ApiError::internal(std::io::Error::other("the secret place"));
        assert_eq!(error.cause_text(), "the secret place");
        let body = serde_json::to_string(&error.body(Some("r1".into()))).unwrap();
        assert!(
            !body.contains("secret") && body.contains("\"request_id\":\"r1\""),
            "{body}"
        );
    }

    #[test]
    fn engine_errors_keep_their_kind() {
        let code = |error: RuntimeError| ApiError::from(error).code();
        assert_eq!(
            code(RuntimeError::Unavailable("x".into())),
            ErrorCode::RuntimeUnavailable
        );
        assert_eq!(
            code(RuntimeError::ImageNotFound("x".into())),
            ErrorCode::ImageNotFound
        );
        assert_eq!(
            code(RuntimeError::ContainerNotFound("x".into())),
            ErrorCode::InternalError
        );
    }
}
