//! Taking up the output of a container again, with neither gap nor repeat.
//!
//! The engine's log has every line since the container's start; the journal says how many of them are stored. What is
//! missing is read from the log, and then the output goes on live. The two meet while the container is paused:
//!
//! ```text
//! log:     1 … n │ n+1 … k │                      (complete lines, all pipes at rest)
//! journal: 1 … n │         │
//! attach:                  │ rest of k+1 ⏎ k+2 …  (from the moment it is unpaused)
//! ```
//!
//! A pause may fall into the middle of a line: the engine's log does not have its beginning yet, and the attachment never
//! will. So the first line that each pipe gives live, whole or not, is taken from the log, where it is whole, and the live
//! output counts from the second. The log tells times, by the engine's clock, so that only what is new has to be read again
//! ([`seen`]).
//!
//! The log is bounded. When it has lost its beginning (its first lines are not the container's), lines cannot be counted
//! from there: the last lines that are stored are looked for in it ([`find`]). It goes on behind them; if they are gone
//! too, a gap is told, and then everything that the log has.
//!
//! An engine that died may have left its log without lines that were seen live. So the last lines that are stored are known
//! by their marks ([`last`]): where the log goes on with another, that is told, and what follows is new.

mod find;
mod last;
mod log;
mod seen;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::BytesMut;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use kandev_runtime::{
    Attachment, Channel, ContainerId, ContainerRuntime, ContainerState, OutputChunk, OutputStream,
    RuntimeError,
};
use kandev_store::journal::LastLines;
use memchr::memchr;
use tokio::io::AsyncWrite;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use super::marks::Head;
use super::shifts::{Shift, Shifts};
use log::{Beginning, Log, hand_on, keep_end};

/// How long the pipes of a paused container must be silent to be at rest. The engine empties them at the speed of memory.
const AT_REST: Duration = Duration::from_millis(60);
/// How long the log may take to show a line that the attachment has shown, and how often it is asked.
const LOG_DELAY: Duration = Duration::from_secs(10);
const LOG_POLL: Duration = Duration::from_millis(20);
/// How many chunks may wait.
const QUEUE: usize = 16;
/// What a line costs in the log beside its bytes.
const LOG_ENVELOPE: usize = 80;

type Result<T> = std::result::Result<T, RuntimeError>;
type Sender = mpsc::Sender<Result<Piece>>;
type Engine<'a> = (&'a dyn ContainerRuntime, &'a ContainerId);

/// What a container's output is taken as.
#[derive(Debug)]
pub(super) enum Piece {
    /// Output, as it came.
    Output(OutputChunk),
    /// Something is missing here.
    Gap(Gap),
    /// Everything up to the moment of taking up has been given.
    CaughtUp,
}

/// In order.
pub(super) type Pieces = BoxStream<'static, Result<Piece>>;

/// What the log could not give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gap {
    /// It has lost more than what is stored.
    Rotated {
        /// When its first line is from.
        log_begins: Option<SystemTime>,
        /// When the last line that is stored was seen.
        stored_until: Option<SystemTime>,
    },
    /// It has less of a pipe than what is stored. So the numbers of what follows go with it.
    Short { channel: Channel, shift: Shift },
    /// It goes on with something else than what is stored.
    Torn { channel: Channel, shift: Shift },
    /// Of the line before, this many characters: it cuts long lines into pieces, and spoils a character that it cuts.
    Characters { channel: Channel, characters: u64 },
}

/// What is on record of a container's output.
pub(super) struct OnRecord {
    pub shifts: Shifts,
    /// The marks of its first lines.
    pub head: Head,
    /// Reads the last lines that are stored.
    pub last: BoxFuture<'static, LastLines>,
    /// The size of one file of its log, in bytes.
    pub log_file_bytes: u64,
}

/// What stopped a reading.
enum Stop {
    /// Nobody listens any more.
    Gone,
    /// The engine.
    Failed(RuntimeError),
}

impl From<RuntimeError> for Stop {
    fn from(error: RuntimeError) -> Self {
        Self::Failed(error)
    }
}

/// A container's stdio.
pub(super) struct Stdio {
    pub stdin: std::pin::Pin<Box<dyn AsyncWrite + Send>>,
    pub output: Pieces,
}

impl From<Attachment> for Stdio {
    /// From the container's start on, nothing has to be caught up with.
    fn from(attachment: Attachment) -> Self {
        let output = attachment.output.map(|chunk| chunk.map(Piece::Output));
        Self {
            stdin: attachment.stdin,
            output: output.boxed(),
        }
    }
}

/// Takes up the output of a running container after the lines that are stored. It is paused for a moment.
pub(super) async fn running(
    runtime: Arc<dyn ContainerRuntime>,
    id: ContainerId,
    stored: OnRecord,
    tracker: &TaskTracker,
) -> Result<Stdio> {
    // The attachment is there from the start, so that the agent can be written to; what it shows of what the log has too
    // is dropped.
    let attachment = runtime.attach(&id).await?;
    let (sender, receiver) = mpsc::channel(QUEUE);
    let mut live = attachment.output;
    tracker.spawn(async move {
        let engine = (runtime.as_ref(), &id);
        let run = async {
            match meet(engine, stored, &mut live, &sender).await? {
                Some(log) => go_live(engine, log, live, &sender).await,
                None => Ok(()),
            }
        };
        if let Err(Stop::Failed(error)) = run.await {
            let _ = sender.send(Err(error)).await;
        }
    });
    Ok(Stdio {
        stdin: attachment.stdin,
        output: stream(receiver),
    })
}

/// Reads the log up to a point from which the attachment goes on; to its end if the container ends meanwhile.
async fn meet(
    engine: Engine<'_>,
    stored: OnRecord,
    live: &mut OutputStream,
    to: &Sender,
) -> std::result::Result<Option<Log>, Stop> {
    let (runtime, id) = engine;
    // Most of it while the agent runs.
    let (mut log, last) = {
        let mut pass = std::pin::pin!(first_pass(engine, &stored.head, stored.last, stored.shifts, to));
        // The attachment has to be read meanwhile, or the agent stands still. And it has to, before its log loses what is
        // still to be read.
        let mut room = (stored.log_file_bytes / 2) as usize;
        loop {
            tokio::select! {
                done = &mut pass => break done?,
                chunk = live.next(), if room > 0 => match chunk {
                    Some(Ok(chunk)) => room = room.saturating_sub(size_in_log(&chunk.bytes)),
                    // The log has the rest.
                    Some(Err(_)) | None => break pass.await?,
                },
            }
        }
    };
    if let Err(error) = runtime.pause(id).await {
        return match runtime.inspect(id).await? {
            ContainerState::Exited(_) => to_the_end(engine, log, last, to).await.map(|()| None),
            _ => Err(error.into()),
        };
    }
    let rest = async {
        if let Some(last) = last {
            behind(engine, &mut log, &last, to).await?;
        }
        loop {
            // At rest: neither the attachment nor the log has anything new.
            while let Ok(Some(chunk)) = tokio::time::timeout(AT_REST, live.next()).await {
                chunk?;
            }
            if !log.pass(engine, to).await? {
                return Ok(());
            }
        }
    };
    let rested: std::result::Result<(), Stop> = rest.await;
    runtime.unpause(id).await?;
    rested?;
    log.caught_up(to).await?;
    Ok(Some(log))
}

/// Reads what the log has now. If it has lost its beginning, nothing is handed on, and what is stored is given back to be
/// looked for.
async fn first_pass(
    engine: Engine<'_>,
    head: &Head,
    stored: BoxFuture<'static, LastLines>,
    shifts: Shifts,
    to: &Sender,
) -> std::result::Result<(Log, Option<(LastLines, Shifts)>), Stop> {
    let stored = tokio::select! {
        stored = stored => stored,
        // The database may be away for long.
        () = to.closed() => return Err(Stop::Gone),
    };
    let mut log = Log::after(&stored, shifts);
    Ok(match log.first_pass(engine, head, to).await? {
        Beginning::Whole => (log, None),
        Beginning::Lost => (log, Some((stored, shifts))),
    })
}

/// Reads the rest of the log of a container that has ended.
async fn to_the_end(
    engine: Engine<'_>,
    mut log: Log,
    last: Option<(LastLines, Shifts)>,
    to: &Sender,
) -> std::result::Result<(), Stop> {
    if let Some(last) = last {
        behind(engine, &mut log, &last, to).await?;
    }
    log.pass(engine, to).await?;
    log.finish(to).await?;
    log.caught_up(to).await
}

/// Looks in a log without its beginning for what is stored, and tells if it has lost more than that.
async fn behind(
    engine: Engine<'_>,
    log: &mut Log,
    (stored, shifts): &(LastLines, Shifts),
    to: &Sender,
) -> std::result::Result<(), Stop> {
    let place = find::find(engine.0, engine.1, stored, *shifts).await?;
    log.behind(&place);
    if place.lost {
        let (log_begins, stored_until) = (place.log_begins, place.stored_until);
        hand_on(
            to,
            Piece::Gap(Gap::Rotated {
                log_begins,
                stored_until,
            }),
        )
        .await?;
    }
    Ok(())
}

/// What output takes in the log, at most but for control characters.
fn size_in_log(bytes: &[u8]) -> usize {
    bytes.len() * 2 + (1 + memchr::memchr_iter(b'\n', bytes).count()) * LOG_ENVELOPE
}

/// Hands on the live output; the first line of each pipe comes from the log.
async fn go_live(
    engine: Engine<'_>,
    mut log: Log,
    mut live: OutputStream,
    to: &Sender,
) -> std::result::Result<(), Stop> {
    let mut joined = [false, false];
    let mut ends = [BytesMut::new(), BytesMut::new()];
    while let Some(chunk) = live.next().await {
        let mut chunk = chunk?;
        let which = usize::from(chunk.channel == Channel::Stderr);
        if !joined[which] {
            // The rest of the line that the pause fell into, or the whole of the one after it.
            let newline = memchr(b'\n', &chunk.bytes);
            let piece = chunk
                .bytes
                .slice(..newline.map_or(chunk.bytes.len(), |end| end + 1));
            keep_end(&mut ends[which], &piece);
            if newline.is_none() {
                continue;
            }
            join(engine, &mut log, chunk.channel, &ends[which], to).await?;
            joined[which] = true;
            chunk.bytes = chunk.bytes.slice(piece.len()..);
        }
        if !chunk.bytes.is_empty() {
            hand_on(to, Piece::Output(chunk)).await?;
        }
    }
    // What ended without a newline before a pipe was joined is in the log alone.
    for channel in [Channel::Stdout, Channel::Stderr] {
        if !joined[usize::from(channel == Channel::Stderr)] {
            for entry in log.tail(engine, channel).await? {
                log.pipe(channel).take(&entry, to).await?;
            }
        }
    }
    log.finish(to).await
}

/// Hands on what the log got of a pipe after the last pass, up to the line that ends like the first live one. The log may
/// be a little behind.
async fn join(
    engine: Engine<'_>,
    log: &mut Log,
    channel: Channel,
    end: &[u8],
    to: &Sender,
) -> std::result::Result<(), Stop> {
    let deadline = tokio::time::Instant::now() + LOG_DELAY;
    let mut given = 0;
    loop {
        for entry in log.tail(engine, channel).await?.into_iter().skip(given) {
            given += 1;
            let pipe = log.pipe(channel);
            if pipe.take(&entry, to).await? && pipe.ended_in(end) {
                return Ok(());
            }
        }
        if tokio::time::Instant::now() > deadline {
            return Err(
                RuntimeError::Broken("the log does not show a line that was seen live".to_owned()).into(),
            );
        }
        tokio::time::sleep(LOG_POLL).await;
    }
}

/// The output of a container that has ended, after the lines that are stored.
pub(super) fn ended(
    runtime: Arc<dyn ContainerRuntime>,
    id: ContainerId,
    stored: OnRecord,
    tracker: &TaskTracker,
) -> Pieces {
    let (sender, receiver) = mpsc::channel(QUEUE);
    tracker.spawn(async move {
        let engine = (runtime.as_ref(), &id);
        let run = async {
            let pass = first_pass(engine, &stored.head, stored.last, stored.shifts, &sender);
            let (log, last) = pass.await?;
            to_the_end(engine, log, last, &sender).await
        };
        if let Err(Stop::Failed(error)) = run.await {
            let _ = sender.send(Err(error)).await;
        }
    });
    stream(receiver)
}

fn stream(mut receiver: mpsc::Receiver<Result<Piece>>) -> Pieces {
    futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx)).boxed()
}

#[cfg(test)]
mod tests;
