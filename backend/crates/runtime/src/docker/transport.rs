//! Sockets to the engine, and HTTP/1.1 over them: one connection per request, as the engine's own clients do.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};

use bollard::BollardRequest;
use bytes::Bytes;
use hyper::Response;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream, tcp, unix};
use tokio_util::task::TaskTracker;

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
            Self::Unix(path) => UnixStream::connect(path).await.map(Socket::Unix),
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Ok(Socket::Tcp(stream))
            }
        }
    }
}

/// Why an exchange with the engine came to nothing.
#[derive(Debug)]
pub(super) enum Failure {
    /// No connection.
    Connect(io::Error),
    /// It broke.
    Http(hyper::Error),
}

pub(super) fn unavailable(failure: &Failure) -> RuntimeError {
    let words = match failure {
        Failure::Connect(error) => error.to_string(),
        Failure::Http(error) => std::error::Error::source(error)
            .map_or_else(|| error.to_string(), |source| format!("{error}: {source}")),
    };
    RuntimeError::Unavailable(words)
}

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

    /// Sends a request and waits for the head of the answer.
    pub(super) async fn send(&self, request: BollardRequest) -> Result<Response<Incoming>, Failure> {
        let socket = self.endpoint.open().await.map_err(Failure::Connect)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(socket))
            .await
            .map_err(Failure::Http)?;
        self.drivers.spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::trace!(%error, "a connection to the engine ended badly");
            }
        });
        sender.send_request(request).await.map_err(Failure::Http)
    }
}

/// A connection.
#[derive(Debug)]
pub(super) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    /// Takes back the socket of an upgraded connection, with the bytes that were read too far.
    pub(super) async fn upgraded(response: Response<Incoming>) -> Result<(Self, Bytes), Failure> {
        let upgraded = hyper::upgrade::on(response).await.map_err(Failure::Http)?;
        let parts = upgraded
            .downcast::<TokioIo<Self>>()
            .map_err(|_| Failure::Connect(io::Error::other("the upgraded connection is of another kind")))?;
        Ok((parts.io.into_inner(), parts.read_buf))
    }

    /// Cuts it in two.
    pub(super) fn split(self) -> (ReadHalf, WriteHalf) {
        match self {
            Self::Unix(stream) => {
                let (read, write) = stream.into_split();
                (ReadHalf::Unix(read), WriteHalf(Some(Half::Unix(write))))
            }
            Self::Tcp(stream) => {
                let (read, write) = stream.into_split();
                (ReadHalf::Tcp(read), WriteHalf(Some(Half::Tcp(write))))
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// The reading half. Dropping it closes the whole connection, whoever holds the other half: the engine must see that
/// nobody reads, or it goes on holding the container back.
#[derive(Debug)]
pub(super) enum ReadHalf {
    Unix(unix::OwnedReadHalf),
    Tcp(tcp::OwnedReadHalf),
}

impl AsyncRead for ReadHalf {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(half) => Pin::new(half).poll_read(cx, buf),
            Self::Tcp(half) => Pin::new(half).poll_read(cx, buf),
        }
    }
}

impl Drop for ReadHalf {
    fn drop(&mut self) {
        // tokio does not offer `shutdown(2)` for both directions, std does, on a duplicate of the descriptor. That
        // it fails on a connection that is closed already is no news.
        let closed = match self {
            Self::Unix(half) => half
                .as_ref()
                .as_fd()
                .try_clone_to_owned()
                .and_then(|fd| std::os::unix::net::UnixStream::from(fd).shutdown(Shutdown::Both)),
            Self::Tcp(half) => half
                .as_ref()
                .as_fd()
                .try_clone_to_owned()
                .and_then(|fd| std::net::TcpStream::from(fd).shutdown(Shutdown::Both)),
        };
        if let Err(error) = closed {
            tracing::trace!(%error, "the connection was closed before");
        }
    }
}

#[derive(Debug)]
enum Half {
    Unix(unix::OwnedWriteHalf),
    Tcp(tcp::OwnedWriteHalf),
}

/// The writing half. Dropping it sends no end of input.
#[derive(Debug)]
pub(super) struct WriteHalf(Option<Half>);

impl Drop for WriteHalf {
    fn drop(&mut self) {
        match self.0.take() {
            Some(Half::Unix(half)) => half.forget(),
            Some(Half::Tcp(half)) => half.forget(),
            None => {}
        }
    }
}

impl AsyncWrite for WriteHalf {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().0 {
            Some(Half::Unix(half)) => Pin::new(half).poll_write(cx, buf),
            Some(Half::Tcp(half)) => Pin::new(half).poll_write(cx, buf),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().0 {
            Some(Half::Unix(half)) => Pin::new(half).poll_shutdown(cx),
            Some(Half::Tcp(half)) => Pin::new(half).poll_shutdown(cx),
            None => Poll::Ready(Ok(())),
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
