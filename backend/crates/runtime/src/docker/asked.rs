//! A question whose answer may take as long as a container lives, of which there is one for each.
//!
//! It is asked in HTTP/1.0, whose answers are not cut into chunks and end with the connection, so that nothing but the socket
//! has to be held meanwhile. A connection of hyper's holds 27 KiB.

use std::fmt::{self, Debug};
use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_util::task::task_tracker::TaskTrackerToken;

/// The longest head, and the longest body, that is read.
const HEAD_LIMIT: usize = 16 << 10;
const BODY_LIMIT: u64 = 64 << 10;

/// An answer whose head is there.
pub(super) struct Asked<S> {
    pub(super) status: u16,
    socket: S,
    /// What came of the body with the head.
    begun: Vec<u8>,
    /// The connection counts for as long as it is there.
    _counted: TaskTrackerToken,
}

impl<S> Debug for Asked<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asked")
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Asked<S> {
    /// Asks by a POST without a body, and waits for the head of the answer.
    pub(super) async fn post(
        mut socket: S,
        host: &str,
        target: &str,
        counted: TaskTrackerToken,
    ) -> io::Result<Self> {
        let request = format!("POST {target} HTTP/1.0\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n");
        socket.write_all(request.as_bytes()).await?;
        socket.flush().await?;
        let mut head = Vec::with_capacity(512);
        let end = loop {
            if let Some(end) = memchr::memmem::find(&head, b"\r\n\r\n") {
                break end;
            }
            if head.len() > HEAD_LIMIT {
                return Err(odd("the head of an answer is too long"));
            }
            if socket.read_buf(&mut head).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        };
        let begun = head.split_off(end + 4);
        let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
        if head.contains("\r\ntransfer-encoding:") {
            return Err(odd("an answer in HTTP/1.0 is cut into chunks"));
        }
        let status = head
            .strip_prefix("http/1.")
            .and_then(|rest| rest.split(' ').nth(1));
        let status = status.and_then(|status| status.trim().parse().ok());
        Ok(Self {
            status: status.ok_or_else(|| odd("an answer is not HTTP/1"))?,
            socket,
            begun,
            _counted: counted,
        })
    }

    /// Waits for the body.
    pub(super) async fn body(mut self) -> io::Result<Vec<u8>> {
        let mut body = std::mem::take(&mut self.begun);
        // No buffer until there is something to read.
        let mut byte = [0];
        if self.socket.read(&mut byte).await? > 0 {
            body.push(byte[0]);
            (&mut self.socket).take(BODY_LIMIT).read_to_end(&mut body).await?;
        }
        Ok(body)
    }
}

fn odd(words: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, words)
}

#[cfg(test)]
mod tests {
    use tokio_util::task::TaskTracker;

    use super::*;

    /// Twice this is more than a head may have.
    const LONG: &str = match str::from_utf8(&[b'x'; HEAD_LIMIT]) {
        Ok(text) => text,
        Err(_) => unreachable!(),
    };
    const REQUEST: &str = "POST /wait?a=b HTTP/1.0\r\nHost: engine\r\nContent-Length: 0\r\n\r\n";

    /// What becomes of an answer that comes in these pieces.
    async fn answered(pieces: &[&str]) -> io::Result<(u16, String)> {
        let (near, mut far) = tokio::io::duplex(1 << 16);
        let engine = async move {
            let mut asked = vec![0; REQUEST.len()];
            far.read_exact(&mut asked).await.unwrap();
            for piece in pieces {
                // Nobody reads on behind a head that is too long.
                if far.write_all(piece.as_bytes()).await.is_err() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            String::from_utf8(asked).unwrap()
        };
        let asking = async {
            let asked = Asked::post(near, "engine", "/wait?a=b", TaskTracker::new().token()).await?;
            let status = asked.status;
            let body = asked.body().await?;
            Ok((status, String::from_utf8(body).unwrap()))
        };
        let (request, answer) = tokio::join!(engine, asking);
        assert_eq!(request, REQUEST);
        answer
    }

    #[tokio::test]
    async fn an_answer_comes_in_any_pieces() {
        for pieces in [
            &["HTTP/1.0 200 OK\r\nA: b\r\n\r\n{\"a\":1}\n"][..],
            &["HTTP/1.0 200 OK\r\nA: b\r", "\n\r\n", "{\"a\"", ":1}\n"],
            &["HTTP/1.1 200 OK\r\n\r\n{", "\"a\":1}\n"],
        ] {
            let (status, body) = answered(pieces).await.unwrap();
            assert_eq!((status, body.as_str()), (200, "{\"a\":1}\n"), "{pieces:?}");
        }
        let (status, body) = answered(&["HTTP/1.0 404 Not Found\r\n\r\n", "{}"]).await.unwrap();
        assert_eq!((status, body.as_str()), (404, "{}"));
    }

    #[tokio::test]
    async fn what_is_no_such_answer_is_an_error() {
        use io::ErrorKind::{InvalidData, UnexpectedEof};
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
        let endless = ["HTTP/1.0 200 OK\r\n", LONG, LONG, "\r\n\r\n"];
        for (pieces, kind) in [
            (&[""][..], UnexpectedEof),
            (&["HTTP/1.0 200 OK\r\n"], UnexpectedEof),
            (&["SSH-2.0 200 x\r\n\r\n"], InvalidData),
            (&["HTTP/1.0 OK\r\n\r\n"], InvalidData),
            (&[chunked], InvalidData),
            (&endless, InvalidData),
        ] {
            let error = answered(pieces).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}: {pieces:?}");
        }
    }
}
