//! Calls to the engine: time limits, the version agreed on, errors in our words.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bollard::errors::Error;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio_util::task::TaskTracker;

use super::Limits;
use super::transport::{Endpoint, Transport};
use super::version;
use super::wire::Engine;
use crate::error::{Result, RuntimeError};
use crate::types::{ContainerId, EngineInfo};

/// All but the unreserved characters of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// What a call is about, which tells what a 404 means.
#[derive(Debug, Clone, Copy)]
pub(super) enum Subject<'a> {
    Engine,
    Image(&'a str),
    Container(&'a str),
}

/// A call's name, subject and time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) operation: &'static str,
    pub(super) subject: Subject<'a>,
    pub(super) limit: Duration,
}

/// Talks to one engine. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Client {
    transport: Transport,
    limits: Limits,
    /// The engine that answered last, at the version agreed on. None before, and again when it went away: what comes
    /// back may be another one.
    agreed: Arc<Mutex<Option<Engine>>>,
}

impl Call<'_> {
    pub(super) fn refused(&self, status: Option<u16>, message: String) -> RuntimeError {
        RuntimeError::Refused {
            operation: self.operation,
            status,
            message,
        }
    }

    /// An answer that lacks what it must have.
    pub(super) fn not_understood(&self, what: impl std::fmt::Display) -> RuntimeError {
        self.refused(None, format!("the answer is not understood: {what}"))
    }

    /// bollard's error in our words.
    pub(super) fn error(&self, error: Error) -> RuntimeError {
        match error {
            Error::DockerResponseServerError {
                status_code: 404,
                message,
            } => self.not_found(message),
            Error::DockerResponseServerError { status_code, message } => {
                self.refused(Some(status_code), message)
            }
            // The wire's own words come in this wrapping.
            Error::IOError { err } => err
                .downcast::<RuntimeError>()
                .unwrap_or_else(|err| RuntimeError::Broken(err.to_string())),
            Error::HyperResponseError { err } => RuntimeError::Broken(err.to_string()),
            Error::RequestTimeoutError => RuntimeError::Timeout {
                operation: self.operation,
                limit: self.limit,
            },
            error => self.not_understood(error),
        }
    }

    /// The engine tells a missing container from, say, a missing network by its message only.
    fn not_found(&self, message: String) -> RuntimeError {
        let words = message.to_lowercase();
        match self.subject {
            Subject::Image(image) if words.contains("no such image") || words.contains("image not known") => {
                RuntimeError::ImageNotFound(image.to_owned())
            }
            Subject::Container(id) if words.contains("no such container") => {
                RuntimeError::ContainerNotFound(id.to_owned())
            }
            _ => self.refused(Some(404), message),
        }
    }
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
    pub(super) const fn call<'a>(&self, operation: &'static str, subject: Subject<'a>) -> Call<'a> {
        Call {
            operation,
            subject,
            limit: self.limits.call,
        }
    }

    /// The same about a container.
    pub(super) const fn on<'a>(&self, operation: &'static str, id: &'a ContainerId) -> Call<'a> {
        self.call(operation, Subject::Container(id.0.as_str()))
    }

    /// Asks the engine anew what it is, and agrees on a version with it.
    pub(super) async fn negotiate(&self) -> Result<EngineInfo> {
        let call = self.call("version", Subject::Engine);
        let (_, info) = within(call.operation, call.limit, self.agree()).await?;
        Ok(info)
    }

    /// Makes a call by `request`, which may be asked twice.
    pub(super) async fn make<T, F>(&self, call: Call<'_>, request: impl Fn(Engine) -> F) -> Result<T>
    where
        F: Future<Output = Result<T, Error>>,
    {
        within(call.operation, call.limit, async {
            let remembered = self.agreed.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(engine) = remembered {
                match self.told(call, request(engine).await) {
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
            let (engine, _) = self.agree().await?;
            self.told(call, request(engine).await)
        })
        .await
    }

    async fn agree(&self) -> Result<(Engine, EngineInfo)> {
        let call = self.call("version", Subject::Engine);
        let unversioned = Engine::new(self.transport.clone(), None).map_err(|error| call.error(error))?;
        let answer = self.told(call, unversioned.docker.version().await)?;
        let api = version::choose(&answer).map_err(|message| call.refused(None, message))?;
        let engine = Engine::new(self.transport.clone(), Some(api)).map_err(|error| call.error(error))?;
        self.remember(Some(engine.clone()));
        let info = EngineInfo {
            version: answer.version.unwrap_or_default(),
            api_version: api.to_string(),
        };
        Ok((engine, info))
    }

    fn told<T>(&self, call: Call<'_>, answer: Result<T, Error>) -> Result<T> {
        answer.map_err(|error| {
            let error = call.error(error);
            if matches!(error, RuntimeError::Unavailable(_)) {
                self.remember(None);
            }
            error
        })
    }

    fn remember(&self, engine: Option<Engine>) {
        *self.agreed.lock().unwrap_or_else(PoisonError::into_inner) = engine;
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

/// A name as one segment of a path, which bollard takes as it is.
pub(super) fn segment(name: &str) -> String {
    utf8_percent_encode(name, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_its_place_in_the_path() {
        assert_eq!(segment("../a?b=c d&é"), "..%2Fa%3Fb%3Dc%20d%26%C3%A9");
    }

    #[test]
    fn a_missing_thing_is_named_by_what_the_engine_says() {
        let not_found = |subject, words: &str| {
            let call = Call {
                operation: "x",
                subject,
                limit: Duration::ZERO,
            };
            call.error(Error::DockerResponseServerError {
                status_code: 404,
                message: words.to_owned(),
            })
        };
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
