//! A connection to the helper in a container, made again whenever it breaks.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::StreamExt;
use kandev_helper::wire::{self, Message, Notice, Request};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::PROGRAM;
use crate::ContainerRuntime;
use crate::error::{Result, RuntimeError};
use crate::types::{Channel, ContainerId, Exec, ExecSpec, OutputStream};

/// How many requests may wait to be written.
const REQUESTS: usize = 1024;
/// How many events may wait to be taken. Beyond, nothing more is read.
const EVENTS: usize = 2;
/// How long the helper has for its first words.
const HELLO: Duration = Duration::from_secs(10);
/// How often it is tried again, and how long in all: an engine that is away comes back, a program that does not run will not.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_mins(1);
const LITTLE_PATIENCE: Duration = Duration::from_secs(3);
/// A connection that did not last so long did not work.
const LASTING: Duration = Duration::from_secs(5);
/// How much of what it says on stderr is kept.
const WORDS: usize = 1024;

/// What happens on a link.
#[derive(Debug)]
pub enum LinkEvent {
    /// The helper listens: requests with their tags go here. What was asked over an earlier connection may be lost.
    Up(mpsc::Sender<(u64, Request)>),
    /// It says something.
    Message(Message),
    /// It cannot be reached, and that is not tried any more.
    Down(RuntimeError),
}

/// A link to the helper of a container. Dropped, it is closed; the helper and its terminals stay for a while.
#[derive(Debug)]
pub struct Link {
    /// What happens, in order. Nothing comes after [`LinkEvent::Down`].
    pub events: mpsc::Receiver<LinkEvent>,
    _stop: DropGuard,
}

/// Begins to connect. The container must be running.
pub fn connect(runtime: Arc<dyn ContainerRuntime>, id: ContainerId, tracker: &TaskTracker) -> Link {
    let (sender, events) = mpsc::channel(EVENTS);
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    tracker.spawn(async move {
        tokio::select! {
            () = stopped.cancelled() => {}
            () = keep_up(runtime.as_ref(), &id, &sender) => {}
        }
    });
    Link {
        events,
        _stop: stop.drop_guard(),
    }
}

async fn keep_up(runtime: &dyn ContainerRuntime, id: &ContainerId, events: &mpsc::Sender<LinkEvent>) {
    let mut pause = FIRST_PAUSE;
    let mut since = Instant::now();
    loop {
        let error = match open(runtime, id).await {
            Ok(connection) => {
                let begun = Instant::now();
                let outcome = connection.run(events).await;
                if begun.elapsed() >= LASTING {
                    pause = FIRST_PAUSE;
                    since = Instant::now();
                }
                match outcome {
                    Ok(()) => return,
                    Err(error) => error,
                }
            }
            Err(error) => error,
        };
        let hopeful = error.is_transient();
        let patience = if hopeful { PATIENCE } else { LITTLE_PATIENCE };
        if matches!(error, RuntimeError::ContainerNotFound(_)) || since.elapsed() >= patience {
            // Nobody listens any more: then nobody needs to know.
            let _ = events.send(LinkEvent::Down(error)).await;
            return;
        }
        tracing::debug!(%error, "the helper cannot be reached yet");
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

struct Connection {
    stdin: std::pin::Pin<Box<dyn AsyncWrite + Send>>,
    output: OutputStream,
    read: BytesMut,
    words: String,
}

async fn open(runtime: &dyn ContainerRuntime, id: &ContainerId) -> Result<Connection> {
    let path = super::path();
    runtime.install(id, &path, Bytes::from_static(PROGRAM)).await?;
    let spec = ExecSpec {
        command: vec![path, kandev_helper::CONNECT.to_owned()],
        stdin: true,
        ..ExecSpec::default()
    };
    let Exec { stdin, output, exit } = runtime.exec(id, &spec).await?;
    let mut connection = Connection {
        stdin: stdin.ok_or_else(|| RuntimeError::Broken("the helper has no stdin".to_owned()))?,
        output,
        read: BytesMut::new(),
        words: String::new(),
    };
    match timeout(HELLO, connection.next()).await {
        Ok(Ok(Some(Message::Notice(Notice::Hello(kandev_helper::VERSION))))) => Ok(connection),
        Ok(Ok(Some(_))) => Err(refused("it speaks another language".to_owned())),
        Ok(Err(error)) => Err(error),
        Ok(Ok(None)) => {
            let code = timeout(HELLO, exit).await;
            let code = code.ok().and_then(Result::ok);
            let code = code.map_or_else(|| "?".to_owned(), |code| code.to_string());
            Err(refused(format!(
                "it ended with exit code {code}: {}",
                connection.words.trim()
            )))
        }
        Err(_) => Err(RuntimeError::Timeout {
            operation: "helper",
            limit: HELLO,
        }),
    }
}

fn refused(message: String) -> RuntimeError {
    RuntimeError::Refused {
        operation: "helper",
        status: None,
        message,
    }
}

impl Connection {
    /// Passes on in both directions. Returns well when nobody listens any more.
    async fn run(mut self, events: &mpsc::Sender<LinkEvent>) -> Result<()> {
        let (sender, mut requests) = mpsc::channel::<(u64, Request)>(REQUESTS);
        if events.send(LinkEvent::Up(sender)).await.is_err() {
            return Ok(());
        }
        let stdin = std::mem::replace(&mut self.stdin, Box::pin(tokio::io::sink()));
        let write = async move {
            let mut stdin = stdin;
            while let Some((tag, request)) = requests.recv().await {
                let frame = request.encode(tag);
                drop(request);
                let written = stdin.write_all(&frame).await;
                let written = match written {
                    Ok(()) => stdin.flush().await,
                    error => error,
                };
                written.map_err(|error| RuntimeError::Broken(error.to_string()))?;
            }
            // Its user has another one now, or is gone; what is on its way is still read.
            std::future::pending().await
        };
        let read = async {
            while let Some(message) = self.next().await? {
                if events.send(LinkEvent::Message(message)).await.is_err() {
                    return Ok(());
                }
            }
            Err(RuntimeError::Broken("the helper is gone".to_owned()))
        };
        tokio::select! {
            written = write => written,
            read = read => read,
        }
    }

    /// The next message; none at the end.
    async fn next(&mut self) -> Result<Option<Message>> {
        loop {
            if let Some(message) = take_message(&mut self.read)? {
                return Ok(Some(message));
            }
            let Some(chunk) = self.output.next().await else {
                return Ok(None);
            };
            let chunk = chunk?;
            match chunk.channel {
                Channel::Stdout => self.read.extend_from_slice(&chunk.bytes),
                Channel::Stderr if self.words.len() < WORDS => {
                    self.words.push_str(&String::from_utf8_lossy(&chunk.bytes));
                }
                Channel::Stderr => {}
            }
        }
    }
}

fn take_message(read: &mut BytesMut) -> Result<Option<Message>> {
    let malformed = |_| RuntimeError::Broken("the helper speaks nonsense".to_owned());
    let Some(head) = read.first_chunk::<4>() else {
        return Ok(None);
    };
    let length = wire::length(*head).map_err(malformed)?;
    if read.len() < 4 + length {
        read.reserve(4 + length - read.len());
        return Ok(None);
    }
    read.advance(4);
    let frame = read.split_to(length);
    if read.is_empty() {
        // A long frame's room is not kept.
        *read = BytesMut::new();
    }
    Message::decode(&frame).map(Some).map_err(malformed)
}

#[cfg(test)]
mod tests {
    use kandev_helper::wire::Reply;

    use super::*;

    #[test]
    fn messages_are_taken_whole_however_they_come() {
        let messages: Vec<_> = (1..4)
            .map(|tag| Message::Reply(tag, Reply::Content(vec![7; 100])))
            .collect();
        let bytes: Vec<u8> = messages.iter().flat_map(Message::encode).collect();
        let mut read = BytesMut::new();
        let mut taken = Vec::new();
        for piece in bytes.chunks(7) {
            read.extend_from_slice(piece);
            while let Some(message) = take_message(&mut read).unwrap() {
                taken.push(message);
            }
        }
        assert_eq!(taken, messages);
        for nonsense in [&[255; 4][..], &[0, 0, 0, 1, 9]] {
            assert!(take_message(&mut BytesMut::from(nonsense)).is_err());
        }
    }
}
