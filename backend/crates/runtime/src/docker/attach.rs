//! A container's stdio on one connection.
//!
//! Source: `POST /containers/{id}/attach` of the Docker Engine API reference.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::StreamExt;
use hyper::Method;
use tokio::io::AsyncWrite;

use super::client::Client;
use super::lifecycle;
use super::stdcopy::Frames;
use super::transport::WriteHalf;
use crate::error::{Result, RuntimeError};
use crate::types::{Attachment, ContainerId};

pub(super) async fn attach(client: &Client, id: &ContainerId) -> Result<Attachment> {
    refuse_tty(client, id).await?;
    let call = client
        .on("attach", Method::POST, &id.0, "/attach")
        .query("stream", "1")
        .query("stdin", "1")
        .query("stdout", "1")
        .query("stderr", "1");
    let (socket, read_ahead) = client.hijack(call).await?;
    let (read, write) = socket.split();
    Ok(Attachment {
        stdin: Box::pin(Stdin(write)),
        output: Frames::new(read, &read_ahead).boxed(),
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
struct Stdin(WriteHalf);

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
