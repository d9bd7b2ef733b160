//! A container's stdio on one connection.
//!
//! Source: `POST /containers/{id}/attach` of the Docker Engine API reference.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::StreamExt;
use tokio::io::{AsyncWrite, WriteHalf};

use super::client::{Client, segment};
use super::lifecycle;
use super::stdcopy::Frames;
use super::transport::Socket;
use crate::error::{Result, RuntimeError};
use crate::types::{Attachment, ContainerId};

pub(super) async fn attach(client: &Client, id: &ContainerId) -> Result<Attachment> {
    refuse_tty(client, id).await?;
    let target = &format!(
        "/containers/{}/attach?stream=1&stdin=1&stdout=1&stderr=1",
        segment(&id.0)
    );
    let connection = client
        .make(client.on("attach", id), |engine| async move {
            engine.hijack(target, "").await
        })
        .await?;
    Ok(Attachment {
        stdin: Box::pin(Stdin(connection.write)),
        output: Frames::new(connection.read, &connection.read_ahead).boxed(),
    })
}

/// The output of a TTY has no frames: its text, read as a header, would ask for gigabytes.
pub(super) async fn refuse_tty(client: &Client, id: &ContainerId) -> Result<()> {
    if lifecycle::inspect(client, id).await?.tty {
        return Err(RuntimeError::TtyNotSupported(id.0.clone()));
    }
    Ok(())
}

/// Input to a container, which no attachment can end (see [`super`]). Closing the write side of the connection would
/// only lose the output that is still to come.
struct Stdin(WriteHalf<Socket>);

impl AsyncWrite for Stdin {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the engine keeps a container's stdin open for the next attachment",
        )))
    }
}
