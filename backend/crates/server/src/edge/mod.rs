//! What every request passes on its way in and every response on its way out.
//!
//! From outside to inside: [`respond`] (request id, span, access log, metrics, error body, headers), panics, the body
//! limit, and per group of routes the time limit. [`respond`] is the reason why every path answers in the same form:
//! whatever error leaves the router, ours or the framework's, gets our body there.

pub mod extract;
pub mod request_id;
pub mod time_limit;
mod words;

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{DefaultBodyLimit, MatchedPath, RawPathParams, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use tower_http::catch_panic::CatchPanicLayer;
use tracing::{Instrument as _, field};

use crate::error::{ApiError, ErrorCode};
use crate::state::AppState;
use request_id::RequestId;

/// Marks an error response that has its own body by contract, such as that of `/ready`.
#[derive(Debug, Clone, Copy)]
pub struct OwnBody;

/// Puts the edge around a router.
pub fn wrap(router: Router, state: &AppState) -> Router {
    router
        .fallback(no_such_route)
        .layer(DefaultBodyLimit::max(state.config.body_limit_bytes))
        .layer(CatchPanicLayer::custom(after_panic))
        .layer(middleware::from_fn_with_state(state.clone(), respond))
}

async fn no_such_route(request: Request) -> ApiError {
    ApiError::not_found("route", request.uri().path())
}

fn after_panic(panic: Box<dyn Any + Send>) -> Response {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
    ApiError::internal(format!(
        "panic: {}",
        text.unwrap_or_else(|| "of unknown kind".to_owned())
    ))
    .into_response()
}

async fn respond(
    State(state): State<AppState>,
    route: Option<MatchedPath>,
    parameters: Result<RawPathParams, RawPathParamsRejection>,
    mut request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let id = RequestId::of(request.headers());
    let method = request.method().clone();
    let route = route.as_ref().map_or("(none)", MatchedPath::as_str);
    let span = tracing::info_span!(
        "request",
        request_id = %id,
        method = %method,
        path = request.uri().path(),
        instance_id = field::Empty,
    );
    if let Some(instance) = parameters
        .as_ref()
        .ok()
        .and_then(|parameters| instance_of(route, parameters))
    {
        span.record("instance_id", instance);
    }
    request.extensions_mut().insert(id.clone());
    request
        .extensions_mut()
        .insert(time_limit::BodyClock::new(state.config.request_timeout));

    let response = next.run(request).instrument(span.clone()).await;
    let mut response = span.in_scope(|| finish(response, &method, &id));

    let elapsed = started.elapsed();
    let status = response.status();
    state.metrics.http_request(&method, route, status, elapsed);
    span.in_scope(|| {
        tracing::info!(
            status = status.as_u16(),
            elapsed_ms = elapsed.as_micros() as f64 / 1e3,
            "answered"
        );
    });
    let headers = response.headers_mut();
    headers.insert(request_id::HEADER, id.header());
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] as [(HeaderName, &'static str); 3]
    {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// The instance that a route is about.
fn instance_of<'a>(route: &str, parameters: &'a RawPathParams) -> Option<&'a str> {
    let about_one = route.starts_with("/api/v1/agents/{");
    parameters
        .iter()
        .find(|(name, value)| about_one && *name == "id" && value.len() == 36)
        .map(|(_, value)| value)
}

/// Gives an error response its body, and logs the error: here and nowhere else.
fn finish(response: Response, method: &Method, id: &RequestId) -> Response {
    let status = response.status();
    if status == StatusCode::METHOD_NOT_ALLOWED && method == Method::OPTIONS {
        // The router puts the Allow header on it, as on the refusal.
        return StatusCode::NO_CONTENT.into_response();
    }
    if !(status.is_client_error() || status.is_server_error())
        || response.extensions().get::<OwnBody>().is_some()
    {
        return response;
    }
    let error = response.extensions().get::<Arc<ApiError>>().cloned();
    let error = error.unwrap_or_else(|| Arc::new(of_bare_status(status)));
    let (code, cause) = (error.code().as_str(), error.cause_text());
    if status.is_server_error() && error.code() == ErrorCode::InternalError {
        tracing::error!(code, cause, "{error}");
    } else if status.is_server_error() {
        tracing::warn!(code, cause, "{error}");
    } else {
        // The message may repeat what the caller sent, so it stays out of the log.
        tracing::debug!(code, cause, "refused");
    }
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.remove(header::CONTENT_TYPE);
    let mut finished = (status, axum::Json(error.body(Some(id.to_string())))).into_response();
    finished.headers_mut().extend(parts.headers);
    finished
}

/// An error that the framework made, of which only the status is known.
fn of_bare_status(status: StatusCode) -> ApiError {
    let (code, message) = match status {
        StatusCode::NOT_FOUND => (ErrorCode::NotFound, "there is no such thing"),
        StatusCode::METHOD_NOT_ALLOWED => (
            ErrorCode::BadRequest,
            "this route does not take this method; the Allow header lists those it takes",
        ),
        StatusCode::PAYLOAD_TOO_LARGE => (ErrorCode::PayloadTooLarge, "the request body is over the limit"),
        StatusCode::UNSUPPORTED_MEDIA_TYPE => (ErrorCode::BadRequest, "this content type is not supported"),
        StatusCode::UNAUTHORIZED => (ErrorCode::Unauthorized, "a key is needed"),
        StatusCode::FORBIDDEN => (ErrorCode::Forbidden, "this key may not do this"),
        StatusCode::TOO_MANY_REQUESTS => (ErrorCode::TooManyRequests, "too many requests; try again later"),
        status if status.is_client_error() => (ErrorCode::BadRequest, "the request cannot be read"),
        _ => return ApiError::internal(format!("a bare {status}")).status(status),
    };
    ApiError::new(code, message).status(status)
}
