//! bollard on our own transport, and the few requests that it does not make.

use std::io;

use bollard::errors::Error;
use bollard::models::ErrorResponse;
use bollard::{API_DEFAULT_VERSION, BollardRequest, ClientVersion, Docker, body_full};
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderValue, UPGRADE};
use hyper::{Method, Response, StatusCode};

use super::asked::Asked;
use super::transport::{Raw, Socket, Transport};
use crate::error::RuntimeError;

/// The name of every engine: a socket has none, and HTTP/1.1 wants one.
const ENGINE: &str = "engine";
/// bollard's own limit of a call, in seconds, which ours are below.
const NO_LIMIT: u64 = u64::MAX;
/// The longest error that is read.
const ERROR_LIMIT: usize = 64 << 10;

/// Sends requests at one version of the API, or at none.
#[derive(Debug, Clone)]
struct Wire {
    transport: Transport,
    version: Option<ClientVersion>,
}

/// An engine that we agreed on a version with. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Engine {
    pub(super) docker: Docker,
    wire: Wire,
}

impl Wire {
    async fn send(self, mut request: BollardRequest) -> Result<Response<Incoming>, Error> {
        let target = request
            .uri()
            .path_and_query()
            .map_or("/", |target| target.as_str());
        *request.uri_mut() = self.versioned(target).parse()?;
        request
            .headers_mut()
            .insert(HOST, HeaderValue::from_static(ENGINE));
        self.transport.send(request).await.map_err(wrapped)
    }

    fn versioned(&self, target: &str) -> String {
        match self.version {
            Some(version) => format!("/v{version}{target}"),
            None => target.to_owned(),
        }
    }
}

impl Engine {
    pub(super) fn new(transport: Transport, version: Option<ClientVersion>) -> Result<Self, Error> {
        let wire = Wire { transport, version };
        let docker = Docker::connect_with_custom_transport(
            {
                let wire = wire.clone();
                move |request| wire.clone().send(request)
            },
            Some(format!("http://{ENGINE}")),
            NO_LIMIT,
            &version.unwrap_or(*API_DEFAULT_VERSION),
        )?;
        Ok(Self { docker, wire })
    }

    /// Gets an answer whose body is read by the caller.
    pub(super) async fn get(&self, target: &str) -> Result<Response<Incoming>, Error> {
        self.exchange(request(Method::GET, target, Bytes::new())?).await
    }

    /// Asks by a POST without a body; the answer may be long in coming, after its head.
    pub(super) async fn ask(&self, target: &str) -> Result<Asked<Socket>, Error> {
        let target = self.wire.versioned(target);
        let asked = self.wire.transport.ask(ENGINE, &target).await.map_err(wrapped)?;
        let status = asked.status;
        if (200..300).contains(&status) {
            return Ok(asked);
        }
        let words = asked.body().await.unwrap_or_default();
        Err(refused(status, &words))
    }

    /// Turns a connection into a raw one by a POST.
    pub(super) async fn hijack(&self, target: &str, json: &'static str) -> Result<Raw, Error> {
        let mut request = request(Method::POST, target, Bytes::from_static(json.as_bytes()))?;
        let headers = request.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("tcp"));
        let response = self.exchange(request).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(Error::DockerResponseServerError {
                status_code: response.status().as_u16(),
                message: "the engine (or a proxy before it) does not upgrade connections".to_owned(),
            });
        }
        Raw::upgraded(response).await.map_err(wrapped)
    }

    async fn exchange(&self, request: BollardRequest) -> Result<Response<Incoming>, Error> {
        let response = self.wire.clone().send(request).await?;
        let status = response.status();
        if status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response);
        }
        let words = Limited::new(response.into_body(), ERROR_LIMIT).collect().await;
        let words = words.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        Err(refused(status.as_u16(), &words))
    }
}

/// The engine's own words about an error.
fn refused(status_code: u16, words: &[u8]) -> Error {
    let message = serde_json::from_slice(words).map_or_else(
        |_| String::from_utf8_lossy(words).trim().to_owned(),
        |ErrorResponse { message }| message,
    );
    Error::DockerResponseServerError { status_code, message }
}

/// Our words in bollard's, which [`Call::error`](super::client::Call::error) unwraps.
fn wrapped(error: RuntimeError) -> Error {
    Error::IOError {
        err: io::Error::other(error),
    }
}

fn request(method: Method, target: &str, json: Bytes) -> Result<BollardRequest, Error> {
    let mut request = BollardRequest::new(body_full(json));
    *request.method_mut() = method;
    *request.uri_mut() = target.parse()?;
    request
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(request)
}
