//! The engine's HTTP API: version, requests, answers, errors, time limits.

use std::fmt::Write as _;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, UPGRADE};
use hyper::{Method, Response, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio_util::task::TaskTracker;

use super::Limits;
use super::transport::{Endpoint, Failure, Socket, Transport};
use super::version::{ApiVersion, EngineVersion};
use crate::error::{Result, RuntimeError};

/// The longest JSON answer that is read.
const ANSWER_LIMIT: usize = 32 << 20;
/// The longest error that is read.
const ERROR_LIMIT: usize = 64 << 10;

/// What a request is about, which tells what a 404 means.
#[derive(Debug, Clone, Copy)]
pub(super) enum Subject<'a> {
    Engine,
    Image(&'a str),
    Container(&'a str),
}

/// A request to the engine.
#[derive(Debug, Clone)]
pub(super) struct Call<'a> {
    operation: &'static str,
    subject: Subject<'a>,
    method: Method,
    /// Path and query, percent-encoded, without the version.
    target: String,
    body: Bytes,
    content_type: &'static str,
    upgrade: bool,
    limit: Duration,
}

/// Talks to one engine. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Client {
    transport: Transport,
    limits: Limits,
    /// The version agreed on with the engine that answered last. None before, and again when it went away: what comes
    /// back may be another one.
    agreed: Arc<Mutex<Option<EngineVersion>>>,
}

impl<'a> Call<'a> {
    pub(super) fn new(operation: &'static str, method: Method, path: String, limit: Duration) -> Self {
        Self {
            operation,
            subject: Subject::Engine,
            method,
            target: path,
            body: Bytes::new(),
            content_type: "application/json",
            upgrade: false,
            limit,
        }
    }

    pub(super) const fn about(mut self, subject: Subject<'a>) -> Self {
        self.subject = subject;
        self
    }

    pub(super) const fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    pub(super) fn query(mut self, key: &str, value: &str) -> Self {
        self.target
            .push(if self.target.contains('?') { '&' } else { '?' });
        self.target.push_str(key);
        self.target.push('=');
        self.target.push_str(&encode(value));
        self
    }

    pub(super) fn json(mut self, body: &serde_json::Value) -> Self {
        self.body = body.to_string().into();
        self
    }

    pub(super) fn tar(mut self, body: Vec<u8>) -> Self {
        self.body = body.into();
        self.content_type = "application/x-tar";
        self
    }

    fn request(&self, version: Option<ApiVersion>) -> hyper::Request<Full<Bytes>> {
        let target = match version {
            Some(version) => format!("/v{version}{}", self.target),
            None => self.target.clone(),
        };
        let mut request = hyper::Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        let headers = request.headers_mut();
        headers.insert(HOST, hyper::header::HeaderValue::from_static("engine"));
        let value = hyper::header::HeaderValue::from_static;
        if !self.body.is_empty() {
            headers.insert(CONTENT_TYPE, value(self.content_type));
        }
        if self.upgrade {
            headers.insert(CONNECTION, value("Upgrade"));
            headers.insert(UPGRADE, value("tcp"));
        }
        // `encode` leaves nothing that a target may not hold; should it ever, the engine answers 404 to "/".
        *request.uri_mut() = target.parse().unwrap_or_default();
        request
    }

    pub(super) fn refused(&self, status: Option<StatusCode>, message: String) -> RuntimeError {
        RuntimeError::Refused {
            operation: self.operation,
            status: status.map(|status| status.as_u16()),
            message,
        }
    }

    /// The engine's error in our words. It tells a missing container from, say, a missing network by its message only.
    fn error(&self, status: StatusCode, message: String) -> RuntimeError {
        if status == StatusCode::NOT_FOUND {
            let words = message.to_lowercase();
            match self.subject {
                Subject::Image(image)
                    if words.contains("no such image") || words.contains("image not known") =>
                {
                    return RuntimeError::ImageNotFound(image.to_owned());
                }
                Subject::Container(id) if words.contains("no such container") => {
                    return RuntimeError::ContainerNotFound(id.to_owned());
                }
                _ => {}
            }
        }
        self.refused(Some(status), message)
    }
}

#[derive(Deserialize)]
struct ErrorBody {
    message: String,
}

impl Client {
    pub(super) fn new(endpoint: Endpoint, limits: Limits) -> Self {
        Self {
            transport: Transport::new(endpoint),
            limits,
            agreed: Arc::default(),
        }
    }

    pub(super) const fn limits(&self) -> Limits {
        self.limits
    }

    pub(super) const fn drivers(&self) -> &TaskTracker {
        self.transport.drivers()
    }

    /// A call with the usual time limit.
    pub(super) fn call<'a>(&self, operation: &'static str, method: Method, path: &str) -> Call<'a> {
        Call::new(operation, method, path.to_owned(), self.limits.call)
    }

    /// A call about a container.
    pub(super) fn on<'a>(
        &self,
        operation: &'static str,
        method: Method,
        id: &'a str,
        rest: &str,
    ) -> Call<'a> {
        let path = format!("/containers/{}{rest}", encode(id));
        Call::new(operation, method, path, self.limits.call).about(Subject::Container(id))
    }

    /// Asks the engine anew what it is, and agrees on a version with it.
    pub(super) async fn negotiate(&self) -> Result<EngineVersion> {
        let call = self.call("version", Method::GET, "/version");
        within(call.operation, call.limit, async {
            let response = self.exchange(&call, None).await?;
            let version = EngineVersion::agree(&call, &body(response, ANSWER_LIMIT).await?)?;
            self.remember(Some(version.clone()));
            Ok(version)
        })
        .await
    }

    /// Makes a call and gives the head of a good answer; its body is not under the call's time limit.
    pub(super) async fn send(&self, call: &Call<'_>) -> Result<Response<Incoming>> {
        within(call.operation, call.limit, self.send_unlimited(call)).await
    }

    /// Makes a call and reads the answer.
    pub(super) async fn json<T: DeserializeOwned>(&self, call: &Call<'_>) -> Result<T> {
        let bytes = self.bytes(call, ANSWER_LIMIT).await?;
        serde_json::from_slice(&bytes)
            .map_err(|error| call.refused(None, format!("the answer is not understood: {error}")))
    }

    /// Makes a call whose answer says nothing.
    pub(super) async fn done(&self, call: &Call<'_>) -> Result<()> {
        self.bytes(call, ANSWER_LIMIT).await.map(drop)
    }

    async fn bytes(&self, call: &Call<'_>, limit: usize) -> Result<Bytes> {
        within(call.operation, call.limit, async {
            body(self.send_unlimited(call).await?, limit).await
        })
        .await
    }

    /// Makes a call that turns the connection into a raw one, with the bytes that already came over it.
    pub(super) async fn hijack(&self, call: Call<'_>) -> Result<(Socket, Bytes)> {
        let call = Call {
            upgrade: true,
            ..call
        };
        within(call.operation, call.limit, async {
            let response = self.send_unlimited(&call).await?;
            if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                let words = "the engine (or a proxy before it) does not upgrade connections";
                return Err(call.refused(Some(response.status()), words.to_owned()));
            }
            Socket::upgraded(response)
                .await
                .map_err(|failure| unavailable(&failure))
        })
        .await
    }

    async fn send_unlimited(&self, call: &Call<'_>) -> Result<Response<Incoming>> {
        let remembered = self.agreed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(version) = remembered {
            match self.exchange(call, Some(version.api)).await {
                // Another engine than the one we agreed with. It did nothing, so the call may be made again.
                Err(RuntimeError::Refused {
                    status: Some(400),
                    message,
                    ..
                }) if message.contains("client version") => {
                    tracing::info!(%message, "agreeing on an API version with the engine again");
                }
                answer => return answer,
            }
        }
        let version = self.negotiate().await?;
        self.exchange(call, Some(version.api)).await
    }

    async fn exchange(&self, call: &Call<'_>, version: Option<ApiVersion>) -> Result<Response<Incoming>> {
        let response = match self.transport.send(call.request(version)).await {
            Ok(response) => response,
            Err(failure) => {
                self.remember(None);
                return Err(unavailable(&failure));
            }
        };
        let status = response.status();
        if status.is_success() || matches!(status, StatusCode::SWITCHING_PROTOCOLS | StatusCode::NOT_MODIFIED)
        {
            return Ok(response);
        }
        let words = body(response, ERROR_LIMIT).await.unwrap_or_default();
        let message = serde_json::from_slice(&words).map_or_else(
            |_| String::from_utf8_lossy(&words).trim().to_owned(),
            |ErrorBody { message }| message,
        );
        Err(call.error(status, message))
    }

    fn remember(&self, version: Option<EngineVersion>) {
        *self.agreed.lock().unwrap_or_else(PoisonError::into_inner) = version;
    }
}

/// Gives a call its time.
pub(super) async fn within<T>(
    operation: &'static str,
    limit: Duration,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::time::timeout(limit, call)
        .await
        .unwrap_or(Err(RuntimeError::Timeout { operation, limit }))
}

/// Reads a whole body of a bounded length.
pub(super) async fn body(response: Response<Incoming>, limit: usize) -> Result<Bytes> {
    let collected = Limited::new(response.into_body(), limit)
        .collect()
        .await
        .map_err(|error| RuntimeError::Broken(error.to_string()))?;
    Ok(collected.to_bytes())
}

fn unavailable(failure: &Failure) -> RuntimeError {
    let words = match failure {
        Failure::Connect(error) => error.to_string(),
        Failure::Http(error) => std::error::Error::source(error)
            .map_or_else(|| error.to_string(), |source| format!("{error}: {source}")),
    };
    RuntimeError::Unavailable(words)
}

/// Percent-encodes all but the unreserved characters of RFC 3986.
pub(super) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_its_place_in_the_path() {
        assert_eq!(encode("../a?b=c d&é"), "..%2Fa%3Fb%3Dc%20d%26%C3%A9");
        let call = Call::new("inspect", Method::GET, "/x".to_owned(), Duration::ZERO)
            .query("path", "/a b")
            .query("v", "1");
        let version = ApiVersion { major: 1, minor: 41 };
        assert_eq!(call.request(Some(version)).uri(), "/v1.41/x?path=%2Fa%20b&v=1");
    }

    #[test]
    fn a_missing_thing_is_named_by_what_the_engine_says() {
        let call = |subject| Call::new("x", Method::GET, String::new(), Duration::ZERO).about(subject);
        let not_found = |subject, words: &str| call(subject).error(StatusCode::NOT_FOUND, words.to_owned());
        assert!(matches!(
            not_found(Subject::Image("a:b"), "No such image: a:b"),
            RuntimeError::ImageNotFound(image) if image == "a:b"
        ));
        assert!(matches!(
            not_found(Subject::Container("c1"), "No such container: c1"),
            RuntimeError::ContainerNotFound(id) if id == "c1"
        ));
        for subject in [Subject::Engine, Subject::Image("i"), Subject::Container("c")] {
            assert!(matches!(
                not_found(subject, "network lan not found"),
                RuntimeError::Refused {
                    status: Some(404),
                    ..
                }
            ));
        }
    }
}
