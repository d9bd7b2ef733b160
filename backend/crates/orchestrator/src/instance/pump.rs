//! Reads a container's output, cuts it into lines, and hands them over no faster than they are taken.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use kandev_acp::{Line, LineDecoder};
use kandev_runtime::{Channel, RuntimeError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::catch_up::{Gap, Piece, Pieces};

/// A line of stderr longer than this is cut into pieces.
const STDERR_LINE: usize = 1 << 20;
/// How many chunks may wait.
const QUEUE: usize = 64;
/// How many bytes may wait beside the longest line.
const SLACK: usize = 8 << 20;

/// A piece of output.
pub(super) enum Output {
    /// Lines, in order.
    Lines {
        lines: Vec<(Channel, Line)>,
        /// Held until the lines are taken.
        _bytes: OwnedSemaphorePermit,
    },
    /// Something is missing here.
    Gap(Gap),
    /// Everything up to the moment of taking up has come.
    CaughtUp,
    /// There is no more: the container's pipes closed, or the connection broke.
    End {
        error: Option<RuntimeError>,
        /// What stood at the end without a newline, unless the connection broke.
        rest: Vec<(Channel, Line)>,
    },
}

/// The reading end of a pump.
pub(super) struct Pump {
    pub output: mpsc::Receiver<Output>,
    /// Stops reading, which closes the connection to the engine.
    pub abort: CancellationToken,
}

/// Starts to read.
pub(super) fn start(stream: Pieces, max_line: usize, tracker: &TaskTracker) -> Pump {
    let (sender, output) = mpsc::channel(QUEUE);
    let abort = CancellationToken::new();
    let stop = abort.clone();
    tracker.spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = pump(stream, max_line, sender) => {}
        }
    });
    Pump { output, abort }
}

async fn pump(mut stream: Pieces, max_line: usize, sender: mpsc::Sender<Output>) {
    let room = Arc::new(Semaphore::new((max_line + SLACK).min(Semaphore::MAX_PERMITS)));
    let limit = max_line + SLACK;
    let mut stdout = LineDecoder::new(max_line);
    let mut stderr = LineDecoder::new(STDERR_LINE);
    let mut error = None;
    while let Some(piece) = stream.next().await {
        let chunk = match piece {
            Ok(Piece::Output(chunk)) => chunk,
            Ok(Piece::Gap(gap)) => match sender.send(Output::Gap(gap)).await {
                Ok(()) => continue,
                Err(_) => return,
            },
            Ok(Piece::CaughtUp) => match sender.send(Output::CaughtUp).await {
                Ok(()) => continue,
                Err(_) => return,
            },
            Err(e) => {
                error = Some(e);
                break;
            }
        };
        let decoder = if chunk.channel == Channel::Stdout {
            &mut stdout
        } else {
            &mut stderr
        };
        let lines: Vec<_> = decoder
            .push(chunk.bytes)
            .into_iter()
            .map(|line| (chunk.channel, line))
            .collect();
        if !lines.is_empty() && hand_over(&sender, &room, limit, lines).await.is_err() {
            return;
        }
    }
    // Where the connection broke, half a line is no line: whoever reads on reads it whole.
    let rest = if error.is_some() {
        [(Channel::Stdout, None), (Channel::Stderr, None)]
    } else {
        [
            (Channel::Stdout, stdout.finish()),
            (Channel::Stderr, stderr.finish()),
        ]
    };
    let rest: Vec<_> = rest
        .into_iter()
        .filter_map(|(channel, line)| line.map(|line| (channel, line)))
        .collect();
    // Nobody listens any more: then nobody needs to know.
    let _ = sender.send(Output::End { error, rest }).await;
}

struct Gone;

async fn hand_over(
    sender: &mpsc::Sender<Output>,
    room: &Arc<Semaphore>,
    limit: usize,
    lines: Vec<(Channel, Line)>,
) -> Result<(), Gone> {
    let size: usize = lines.iter().map(|(_, line)| size_of_line(line)).sum();
    let permits = u32::try_from(size.clamp(1, limit)).unwrap_or(u32::MAX);
    let bytes = Arc::clone(room)
        .acquire_many_owned(permits)
        .await
        .map_err(|_| Gone)?;
    sender
        .send(Output::Lines { lines, _bytes: bytes })
        .await
        .map_err(|_| Gone)
}

fn size_of_line(line: &Line) -> usize {
    match line {
        Line::Complete(bytes) | Line::Oversized { prefix: bytes } => bytes.len(),
    }
}

/// How long output may stay silent after the container's end before it is given up.
pub(crate) const DRAIN_SILENCE: Duration = Duration::from_secs(2);
/// The same of the engine's log, which is silent while lines are passed over that are stored.
pub(crate) const LOG_SILENCE: Duration = Duration::from_mins(1);
