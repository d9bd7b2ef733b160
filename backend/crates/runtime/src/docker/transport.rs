//! Sockets to the engine, and HTTP over them: one connection per request, as the engine's own clients do.

use std::fmt::Debug;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};

use bollard::BollardRequest;
use bytes::Bytes;
use hyper::Response;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, WriteHalf};
use tokio::net::{TcpStream, UnixStream};
use tokio_util::task::TaskTracker;

use super::asked::Asked;
use crate::error::{Result, RuntimeError};

/// Where an engine listens when nobody says.
const DEFAULT_SOCKET: &str = "/var/run/docker.sock";
/// The port of an engine that names none.
const DEFAULT_PORT: u16 = 2375;

/// Where the engine listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Endpoint {
    Unix(PathBuf),
    /// `host:port`.
    Tcp(String),
}

impl Endpoint {
    /// Reads a `DOCKER_HOST` value.
    pub(super) fn parse(host: Option<&str>) -> Result<Self> {
        let Some(host) = host.map(str::trim).filter(|host| !host.is_empty()) else {
            return Ok(Self::Unix(DEFAULT_SOCKET.into()));
        };
        if let Some(path) = host.strip_prefix("unix://") {
            if path.starts_with('/') {
                return Ok(Self::Unix(path.into()));
            }
        } else if let Some(address) = host
            .strip_prefix("tcp://")
            .or_else(|| host.strip_prefix("http://"))
        {
            let address = address.trim_end_matches('/');
            if !address.is_empty() && !address.contains('/') {
                let bare = address.ends_with(']') || !address.contains(':');
                return Ok(Self::Tcp(if bare {
                    format!("{address}:{DEFAULT_PORT}")
                } else {
                    address.to_owned()
                }));
            }
        }
        Err(RuntimeError::Refused {
            operation: "connect",
            status: None,
            message: format!(
                "'{host}' is not an address of an engine (unix:///path, tcp://host:port or http://host:port)"
            ),
        })
    }

    async fn open(&self) -> io::Result<Socket> {
        match self {
            Self::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
        }
    }
}

/// A connection.
pub(super) type Socket = Box<dyn Stream>;

/// What a connection can do.
pub(super) trait Stream: AsyncRead + AsyncWrite + AsFd + Debug + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + AsFd + Debug + Send + Unpin> Stream for S {}

/// Makes the connections, and knows the tasks that drive them.
#[derive(Debug, Clone)]
pub(super) struct Transport {
    endpoint: Endpoint,
    drivers: TaskTracker,
}

impl Transport {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            drivers: TaskTracker::new(),
        }
    }

    /// The tasks that drive connections. Each ends with its exchange: when the answer was read or dropped, or the
    /// request given up.
    pub(super) const fn drivers(&self) -> &TaskTracker {
        &self.drivers
    }

    /// Asks what may take long, and waits for the head of the answer.
    pub(super) async fn ask(&self, host: &str, target: &str) -> Result<Asked<Socket>> {
        let unavailable = |error: io::Error| RuntimeError::Unavailable(error.to_string());
        let socket = self.endpoint.open().await.map_err(unavailable)?;
        let asked = Asked::post(socket, host, target, self.drivers.token());
        asked.await.map_err(unavailable)
    }

    /// Sends a request and waits for the head of the answer.
    pub(super) async fn send(&self, request: BollardRequest) -> Result<Response<Incoming>> {
        let socket = self.endpoint.open().await;
        let socket = socket.map_err(|error| RuntimeError::Unavailable(error.to_string()))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await.map_err(broke)?;
        self.drivers.spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::trace!(%error, "a connection to the engine ended badly");
            }
        });
        sender.send_request(request).await.map_err(broke)
    }
}

/// The connection broke before an answer came.
fn broke(error: hyper::Error) -> RuntimeError {
    let source = std::error::Error::source(&error);
    RuntimeError::Unavailable(source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}")))
}

/// The two halves of an upgraded connection, with the bytes that were read too far.
#[derive(Debug)]
pub(super) struct Raw {
    pub(super) read: ReadHalf,
    /// Dropping it sends no end of input.
    pub(super) write: WriteHalf<Socket>,
    pub(super) read_ahead: Bytes,
}

impl Raw {
    pub(super) async fn upgraded(response: Response<Incoming>) -> Result<Self> {
        let upgraded = hyper::upgrade::on(response).await.map_err(broke)?;
        let parts = upgraded
            .downcast::<TokioIo<Socket>>()
            .map_err(|_| RuntimeError::Broken("the upgraded connection is of another kind".to_owned()))?;
        let socket = parts.io.into_inner();
        let connection = socket.as_fd().try_clone_to_owned();
        let connection = connection.map_err(|error| RuntimeError::Broken(error.to_string()))?;
        let (half, write) = tokio::io::split(socket);
        Ok(Self {
            read: ReadHalf { half, connection },
            write,
            read_ahead: parts.read_buf,
        })
    }
}

/// The reading half. Dropping it closes the whole connection, whoever holds the other half: the engine must see that
/// nobody reads, or it goes on holding the container back.
#[derive(Debug)]
pub(super) struct ReadHalf {
    half: tokio::io::ReadHalf<Socket>,
    connection: OwnedFd,
}

impl AsyncRead for ReadHalf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.half).poll_read(cx, buf)
    }
}

impl Drop for ReadHalf {
    fn drop(&mut self) {
        if let Err(error) = SockRef::from(&self.connection).shutdown(Shutdown::Both) {
            tracing::trace!(%error, "the connection was closed before");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_docker_host() {
        let unix = |path: &str| Endpoint::Unix(path.into());
        let tcp = |address: &str| Endpoint::Tcp(address.into());
        for (host, endpoint) in [
            (None, unix(DEFAULT_SOCKET)),
            (Some(""), unix(DEFAULT_SOCKET)),
            (
                Some("unix:///run/podman/podman.sock"),
                unix("/run/podman/podman.sock"),
            ),
            (Some("tcp://10.0.0.1:2376"), tcp("10.0.0.1:2376")),
            (Some("http://engine/"), tcp("engine:2375")),
            (Some("tcp://[::1]"), tcp("[::1]:2375")),
            (Some("tcp://[::1]:99"), tcp("[::1]:99")),
        ] {
            assert_eq!(Endpoint::parse(host).unwrap(), endpoint, "{host:?}");
        }
        for host in [
            "ssh://engine",
            "https://engine:2376",
            "unix://relative",
            "tcp://",
            "tcp://a/b",
        ] {
            assert!(
                matches!(Endpoint::parse(Some(host)), Err(RuntimeError::Refused { .. })),
                "{host}"
            );
        }
    }
}
