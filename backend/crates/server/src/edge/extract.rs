//! Extractors whose refusals say what is wrong and where.
//!
//! Unknown fields are ignored: callers written for the first Kandev send some of their own. What serde says is put into words
//! that repeat no value ([`words`](super::words)).

use std::time::Duration;

use axum::body::Body;
use axum::extract::path::ErrorKind;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, FromRequestParts, OptionalFromRequest, Path as RoutePath, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use futures_util::StreamExt as _;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use serde_path_to_error::Path;

use super::time_limit::{BodyClock, late_body};
use super::words;
use crate::error::{ApiError, ErrorCode};
use crate::state::AppState;

/// A JSON body.
#[derive(Debug, Clone, Copy)]
pub struct ApiJson<T>(pub T);

/// A query string. Repeated keys: the last counts, unless the field takes several.
#[derive(Debug, Clone, Copy)]
pub struct ApiQuery<T>(pub T);

/// Path parameters.
#[derive(Debug, Clone, Copy)]
pub struct ApiPath<T>(pub T);

impl<T: DeserializeOwned> FromRequest<AppState> for ApiJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        require_json(request.headers())?;
        let limit = state.config.body_limit_bytes;
        from_json(&read_in_time(request, state, limit).await?).map(Self)
    }
}

/// A body that is a file: any bytes, up to the limit for uploads.
#[derive(Debug, Clone)]
pub struct ApiBytes(pub Vec<u8>);

impl FromRequest<AppState> for ApiBytes {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let limit = state.config.upload_limit_bytes;
        read_in_time(request, state, limit).await.map(Self)
    }
}

/// For routes whose body may be left out: an empty one is `None`, with or without a content type.
impl<T: DeserializeOwned> OptionalFromRequest<AppState> for ApiJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Option<Self>, ApiError> {
        let headers = request.headers().clone();
        let bytes = read_in_time(request, state, state.config.body_limit_bytes).await?;
        if bytes.is_empty() {
            return Ok(None);
        }
        require_json(&headers)?;
        from_json(&bytes).map(|value| Some(Self(value)))
    }
}

async fn read_in_time(request: Request, state: &AppState, limit: usize) -> Result<Vec<u8>, ApiError> {
    let clock = request.extensions().get::<BodyClock>().cloned();
    let clock = clock.unwrap_or_else(|| BodyClock::new(state.config.request_timeout));
    clock.set_reading(true);
    let read = read_body(request.into_body(), limit);
    let bytes = tokio::time::timeout(clock.limit, read)
        .await
        .map_err(|_| late_body())??;
    clock.set_reading(false);
    Ok(bytes)
}

/// `application/json` or `application/…+json`, with or without parameters.
fn require_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let refuse = |message| Err(ApiError::bad_request(message).status(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return refuse("the body needs the header 'Content-Type: application/json'");
    };
    let essence = value
        .to_str()
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    let is_json =
        essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"));
    if is_json {
        Ok(())
    } else {
        refuse("the body must be JSON, with the header 'Content-Type: application/json'")
    }
}

/// Reads a body up to `limit`. Beyond it, some more is read and thrown away, so that a client that sends before it
/// listens gets to see the refusal.
async fn read_body(body: Body, limit: usize) -> Result<Vec<u8>, ApiError> {
    let mut stream = body.into_data_stream();
    let mut bytes = Vec::new();
    while let Some(piece) = stream.next().await {
        let piece =
            piece.map_err(|error| ApiError::bad_request("the request body broke off").caused_by(error))?;
        if bytes.len() + piece.len() > limit {
            drain(stream, limit).await;
            let message = format!("the request body is over the limit of {limit} bytes");
            return Err(
                ApiError::new(ErrorCode::PayloadTooLarge, message).details(json!({ "limit_bytes": limit }))
            );
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

async fn drain(mut stream: axum::body::BodyDataStream, limit: usize) {
    const PATIENCE: Duration = Duration::from_secs(5);
    let read = async {
        let mut left = limit.saturating_mul(4);
        while let Some(Ok(piece)) = stream.next().await {
            match left.checked_sub(piece.len()) {
                Some(less) => left = less,
                None => break,
            }
        }
    };
    // Either way the answer is the same.
    let _ = tokio::time::timeout(PATIENCE, read).await;
}

/// The same words for JSON that did not come as a body.
pub(crate) fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        ApiError::bad_request("the body is not valid UTF-8").details(json!({ "offset": error.valid_up_to() }))
    })?;
    let mut json = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        if error.inner().is_data() {
            return invalid_field(&error.path().to_string(), &without_position(error.inner()));
        }
        // In the place of a name, serde takes any other JSON for none at all.
        match serde_json::from_str(text) {
            Ok(whole) => no_name::<T>(error.path(), whole),
            Err(error) => malformed(&error),
        }
    })?;
    json.end().map_err(|error| malformed(&error))?;
    // Fields in a row, without their names, would do otherwise.
    if text.trim_start().starts_with('[') {
        return Err(ApiError::validation("body", "must be an object"));
    }
    Ok(value)
}

fn malformed(error: &serde_json::Error) -> ApiError {
    let (line, column) = (error.line(), error.column());
    ApiError::bad_request(format!(
        "the body is no JSON at line {line}, column {column}: {}",
        without_position(error)
    ))
    .details(json!({ "line": line, "column": column }))
}

fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let suffix = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&suffix).map(str::to_owned).unwrap_or(text)
}

/// A refusal out of serde's path (`.` for the whole) and its words.
fn invalid_field(path: &str, words: &str) -> ApiError {
    if let Some(missing) = words
        .strip_prefix("missing field `")
        .and_then(|rest| rest.split('`').next())
    {
        let whole = path.is_empty() || path == "." || path == missing;
        let field = if whole {
            missing.to_owned()
        } else {
            format!("{path}.{missing}")
        };
        return ApiError::validation(&field, "is required");
    }
    let problem = words::expectation(words);
    if path.is_empty() || path == "." {
        return ApiError::new(ErrorCode::ValidationError, problem);
    }
    ApiError::validation(path, &problem)
}

/// The refusal of something where one of some names is wanted. Which those are serde tells of a text only, so it is asked of one.
fn no_name<T: DeserializeOwned>(path: &Path, mut whole: Value) -> ApiError {
    const NO_NAME: &str = "\0";
    if let Some(place) = words::at(path, &mut whole) {
        *place = NO_NAME.into();
    }
    let said = serde_path_to_error::deserialize::<_, T>(whole).err();
    let said = said.filter(|said| said.path().to_string() == path.to_string());
    let words = said.map_or_else(|| "invalid type".to_owned(), |said| said.inner().to_string());
    invalid_field(&path.to_string(), &words)
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for ApiQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let pairs = form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes());
        serde_path_to_error::deserialize(serde_urlencoded::Deserializer::new(pairs))
            .map(Self)
            .map_err(|error| {
                let path = error.path().to_string();
                invalid_field(&path, &error.into_inner().to_string())
            })
    }
}

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for ApiPath<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        RoutePath::from_request_parts(parts, state)
            .await
            .map(|RoutePath(value)| Self(value))
            .map_err(refused_path)
    }
}

fn refused_path(rejection: PathRejection) -> ApiError {
    let PathRejection::FailedToDeserializePathParams(failed) = rejection else {
        return ApiError::internal(rejection);
    };
    match failed.into_kind() {
        ErrorKind::ParseErrorAtKey {
            key, expected_type, ..
        } => ApiError::validation(&key, &words::must_be(expected_type)),
        ErrorKind::DeserializeError { key, message, .. } => {
            ApiError::validation(&key, &words::expectation(&message))
        }
        ErrorKind::InvalidUtf8InPathParam { key } => ApiError::validation(&key, "is not valid UTF-8"),
        ErrorKind::Message(message) => {
            ApiError::new(ErrorCode::ValidationError, words::expectation(&message))
        }
        ErrorKind::ParseError { expected_type, .. } => ApiError::new(
            ErrorCode::ValidationError,
            format!("a part of the path {}", words::must_be(expected_type)),
        ),
        other => ApiError::internal(other.to_string()),
    }
}
