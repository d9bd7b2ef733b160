//! The one writer of an agent's stdin: whole frames, in order, through a bounded queue.
//!
//! A stuck agent, whose pipe is full, holds back only those who send.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How many frames may wait.
pub const MAX_QUEUED_FRAMES: usize = 256;

/// How many bytes may wait. A larger frame is let through when it is alone.
pub const MAX_QUEUED_BYTES: usize = 128 * 1024 * 1024;

/// How many frames are written before a flush, at most.
const FLUSH_AFTER: usize = 64;

/// How writing ended.
#[derive(Debug, Clone, thiserror::Error)]
pub enum WriterEnd {
    /// All was written and stdin was shut down.
    #[error("the agent's stdin is closed")]
    Closed,
    /// All was written and every handle is gone; stdin was left open.
    #[error("nobody writes to the agent any more")]
    Released,
    /// What was queued was dropped.
    #[error("writing to the agent was aborted")]
    Aborted,
    /// The agent's stdin broke.
    #[error("writing to the agent failed: {0}")]
    Failed(Arc<io::Error>),
}

/// The frame was not queued, since nothing is written any more.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the frame was not sent: {}", .0.as_ref().map_or("stdin is being closed".into(), ToString::to_string))]
pub struct WriterClosed(
    /// How writing ended; none while the queue is still being written out.
    pub Option<WriterEnd>,
);

/// Why a frame could not be queued at once.
#[derive(Debug, thiserror::Error)]
pub enum TrySendError {
    /// The queue is full. The frame is given back.
    #[error("the queue to the agent is full")]
    Full(Bytes),
    /// Nothing is written any more.
    #[error(transparent)]
    Closed(#[from] WriterClosed),
}

struct Queued {
    frame: Bytes,
    /// Given back when the frame is written or dropped.
    _bytes: OwnedSemaphorePermit,
}

/// The handle; clones share the writer. When the last one is dropped, what is queued is still written, and stdin is
/// left open, so that an agent outlives a backend that goes away.
#[derive(Debug, Clone)]
pub struct FrameWriter {
    queue: mpsc::Sender<Queued>,
    bytes: Arc<Semaphore>,
    max_bytes: usize,
    close: CancellationToken,
    abort: CancellationToken,
    end: watch::Receiver<Option<WriterEnd>>,
    written: watch::Receiver<u64>,
}

impl FrameWriter {
    /// Starts the writer with the default bounds.
    pub fn spawn(stdin: impl AsyncWrite + Send + Unpin + 'static, tracker: &TaskTracker) -> Self {
        Self::with_bounds(stdin, tracker, MAX_QUEUED_FRAMES, MAX_QUEUED_BYTES)
    }

    /// The same after a writer of another process, which may have left half a line: the first frame begins on a new one. An
    /// agent then reads a line that is no JSON, or a blank one.
    pub fn spawn_after_another(
        stdin: impl AsyncWrite + Send + Unpin + 'static,
        tracker: &TaskTracker,
    ) -> Self {
        Self::start(stdin, tracker, (MAX_QUEUED_FRAMES, MAX_QUEUED_BYTES), b"\n")
    }

    /// Starts the writer with bounds in frames and bytes, each at least 1.
    pub fn with_bounds(
        stdin: impl AsyncWrite + Send + Unpin + 'static,
        tracker: &TaskTracker,
        max_frames: usize,
        max_bytes: usize,
    ) -> Self {
        Self::start(stdin, tracker, (max_frames, max_bytes), b"")
    }

    fn start(
        stdin: impl AsyncWrite + Send + Unpin + 'static,
        tracker: &TaskTracker,
        (max_frames, max_bytes): (usize, usize),
        before: &'static [u8],
    ) -> Self {
        let max_bytes = max_bytes.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        let (queue, frames) = mpsc::channel(max_frames.max(1));
        let (ended, end) = watch::channel(None);
        let (count, written) = watch::channel(0);
        let handle = Self {
            queue,
            bytes: Arc::new(Semaphore::new(max_bytes)),
            max_bytes,
            close: CancellationToken::new(),
            abort: CancellationToken::new(),
            end,
            written,
        };
        let (close, abort) = (handle.close.clone(), handle.abort.clone());
        tracker.spawn(async move {
            let end = tokio::select! {
                biased;
                () = abort.cancelled() => WriterEnd::Aborted,
                end = write_all(stdin, frames, &close, &count, before) => end,
            };
            ended.send_replace(Some(end));
        });
        handle
    }

    /// Queues a frame, waiting for room. Frames of one sender keep their order. Cancel safe: a frame is queued whole
    /// or not at all.
    pub async fn send(&self, frame: Bytes) -> Result<(), WriterClosed> {
        let cost = self.cost(&frame);
        if let Ok(bytes) = Arc::clone(&self.bytes).acquire_many_owned(cost).await
            && !self.close.is_cancelled()
            && self.queue.send(Queued { frame, _bytes: bytes }).await.is_ok()
        {
            return Ok(());
        }
        if self.close.is_cancelled() {
            return Err(self.closed_now());
        }
        // The queue goes a moment before its reason is known.
        Err(WriterClosed(Some(self.ended().await)))
    }

    /// Queues a frame if there is room.
    pub fn try_send(&self, frame: Bytes) -> Result<(), TrySendError> {
        if self.close.is_cancelled() {
            return Err(self.closed_now().into());
        }
        let cost = self.cost(&frame);
        let Ok(bytes) = Arc::clone(&self.bytes).try_acquire_many_owned(cost) else {
            return Err(TrySendError::Full(frame));
        };
        let queued = Queued { frame, _bytes: bytes };
        self.queue.try_send(queued).map_err(|e| match e {
            mpsc::error::TrySendError::Full(queued) => TrySendError::Full(queued.frame),
            mpsc::error::TrySendError::Closed(_) => self.closed_now().into(),
        })
    }

    /// Takes no more frames, finishes what is queued, then shuts stdin down. [`ended`](Self::ended) tells when.
    pub fn close(&self) {
        self.close.cancel();
    }

    /// Drops what is queued, even half written, and stdin without shutting it down.
    pub fn abort(&self) {
        self.abort.cancel();
    }

    /// How many frames have been written, and told anew whenever there are more.
    pub fn written(&self) -> watch::Receiver<u64> {
        self.written.clone()
    }

    /// Waits until writing has ended. Resolves at once with [`WriterEnd::Failed`] when the agent's stdin breaks.
    pub async fn ended(&self) -> WriterEnd {
        let mut end = self.end.clone();
        match end.wait_for(Option::is_some).await {
            Ok(end) => end.clone().unwrap_or(WriterEnd::Aborted),
            // The task was dropped with its runtime.
            Err(_) => WriterEnd::Aborted,
        }
    }

    fn cost(&self, frame: &Bytes) -> u32 {
        frame.len().min(self.max_bytes) as u32
    }

    fn closed_now(&self) -> WriterClosed {
        WriterClosed(self.end.borrow().clone())
    }
}

async fn write_all(
    mut stdin: impl AsyncWrite + Unpin,
    mut frames: mpsc::Receiver<Queued>,
    close: &CancellationToken,
    written: &watch::Sender<u64>,
    mut before: &'static [u8],
) -> WriterEnd {
    let result = async {
        while let Some(first) = next(&mut frames, close).await {
            stdin.write_all(std::mem::take(&mut before)).await?;
            stdin.write_all(&first.frame).await?;
            drop(first);
            let mut batch = 1;
            while batch < FLUSH_AFTER {
                let Ok(more) = frames.try_recv() else { break };
                stdin.write_all(&more.frame).await?;
                batch += 1;
            }
            stdin.flush().await?;
            written.send_modify(|count| *count += batch as u64);
        }
        if !close.is_cancelled() {
            return Ok(WriterEnd::Released);
        }
        stdin.shutdown().await?;
        Ok(WriterEnd::Closed)
    };
    result
        .await
        .unwrap_or_else(|e: io::Error| WriterEnd::Failed(Arc::new(e)))
}

/// The next frame; none when there will be no more.
async fn next(frames: &mut mpsc::Receiver<Queued>, close: &CancellationToken) -> Option<Queued> {
    tokio::select! {
        biased;
        frame = frames.recv() => frame,
        () = close.cancelled() => {
            frames.close();
            frames.recv().await
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::Mutex;
    use std::task::{Context, Poll};
    use std::time::Duration;

    use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, duplex};

    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    fn frame(fill: u8, len: usize) -> Bytes {
        let mut bytes = vec![fill; len];
        bytes.push(b'\n');
        bytes.into()
    }

    async fn within<F: Future>(future: F) -> F::Output {
        tokio::time::timeout(LONG, future).await.expect("hangs")
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn fifty_senders_at_once_write_whole_lines() {
        let tracker = TaskTracker::new();
        let (agent, stdin) = duplex(64 * 1024);
        let writer = FrameWriter::spawn(stdin, &tracker);
        let senders: Vec<_> = (0..50u8)
            .map(|n| {
                let writer = writer.clone();
                tracker.spawn(async move { writer.send(frame(b'0' + n, 256 * 1024)).await })
            })
            .collect();
        let mut lines = BufReader::new(agent).lines();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..50 {
            let line = within(lines.next_line()).await.unwrap().unwrap();
            assert_eq!(line.len(), 256 * 1024);
            assert!(line.bytes().all(|b| b == line.as_bytes()[0]), "torn");
            seen.insert(line.as_bytes()[0]);
        }
        assert_eq!(seen.len(), 50);
        for sender in senders {
            sender.await.unwrap().unwrap();
        }
        writer.close();
        assert!(matches!(within(writer.ended()).await, WriterEnd::Closed));
        assert!(within(lines.next_line()).await.unwrap().is_none());
        tracker.close();
        within(tracker.wait()).await;
    }

    #[tokio::test]
    async fn frames_of_one_sender_keep_their_order_and_close_finishes_them() {
        let tracker = TaskTracker::new();
        let (mut agent, stdin) = duplex(16);
        let writer = FrameWriter::spawn(stdin, &tracker);
        let mut expected = String::new();
        for n in 0..200 {
            let line = format!("{n}\n");
            expected.push_str(&line);
            writer.send(line.into()).await.unwrap();
        }
        writer.close();
        let refused = writer.send(Bytes::from_static(b"late\n")).await;
        assert!(refused.is_err());
        let mut got = String::new();
        within(agent.read_to_string(&mut got)).await.unwrap();
        assert_eq!(got, expected);
    }

    #[tokio::test]
    async fn a_stuck_agent_holds_back_senders_only_and_abort_frees_them() {
        let tracker = TaskTracker::new();
        let (_agent, stdin) = duplex(1);
        let writer = FrameWriter::with_bounds(stdin, &tracker, 4, 1000);
        writer.try_send(frame(b'a', 5000)).unwrap();
        let full = writer.try_send(frame(b'b', 10));
        assert!(matches!(full, Err(TrySendError::Full(f)) if f.len() == 11));
        let waiting = tracker.spawn({
            let writer = writer.clone();
            async move { writer.send(frame(b'c', 10)).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        writer.abort();
        let refused = within(waiting).await.unwrap().unwrap_err();
        assert!(
            matches!(refused, WriterClosed(Some(WriterEnd::Aborted))),
            "{refused}"
        );
        tracker.close();
        within(tracker.wait()).await;
    }

    #[tokio::test]
    async fn the_queue_is_bounded_in_frames() {
        let tracker = TaskTracker::new();
        let (_agent, stdin) = duplex(1);
        let writer = FrameWriter::with_bounds(stdin, &tracker, 2, 1000);
        let taken = (0..10)
            .take_while(|_| writer.try_send(frame(b'a', 1)).is_ok())
            .count();
        assert_eq!(taken, 2);
        writer.abort();
    }

    #[tokio::test]
    async fn a_broken_stdin_is_told_to_all() {
        let tracker = TaskTracker::new();
        let (agent, stdin) = duplex(1);
        let writer = FrameWriter::spawn(stdin, &tracker);
        drop(agent);
        writer.send(frame(b'a', 10)).await.unwrap();
        assert!(matches!(within(writer.ended()).await, WriterEnd::Failed(_)));
        let refused = writer.send(frame(b'b', 10)).await.unwrap_err();
        assert!(matches!(refused.0, Some(WriterEnd::Failed(_))), "{refused}");
        assert!(matches!(
            writer.try_send(frame(b'b', 10)),
            Err(TrySendError::Closed(_))
        ));
    }

    /// Keeps what was flushed, and whether it was shut down.
    #[derive(Clone, Default)]
    struct Recorder(Arc<Mutex<Recorded>>);

    #[derive(Default)]
    struct Recorded {
        buffered: Vec<u8>,
        flushed: Vec<u8>,
        shut_down: bool,
    }

    impl AsyncWrite for Recorder {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            self.0.lock().unwrap().buffered.extend_from_slice(buf);
            Poll::Ready(Ok(buf.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            let mut recorded = self.0.lock().unwrap();
            let buffered = std::mem::take(&mut recorded.buffered);
            recorded.flushed.extend(buffered);
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.0.lock().unwrap().shut_down = true;
            Poll::Ready(Ok(()))
        }
    }

    async fn recorded(end: impl FnOnce(FrameWriter)) -> (Vec<u8>, bool) {
        let tracker = TaskTracker::new();
        let stdin = Recorder::default();
        let writer = FrameWriter::spawn(stdin.clone(), &tracker);
        writer.try_send(frame(b'a', 3)).unwrap();
        end(writer);
        tracker.close();
        within(tracker.wait()).await;
        let recorded = stdin.0.lock().unwrap();
        (recorded.flushed.clone(), recorded.shut_down)
    }

    #[tokio::test]
    async fn closing_shuts_stdin_down_and_dropping_the_handles_leaves_it_open() {
        assert_eq!(recorded(|writer| writer.close()).await, (b"aaa\n".to_vec(), true));
        assert_eq!(recorded(drop).await, (b"aaa\n".to_vec(), false));
        assert_eq!(recorded(|writer| writer.abort()).await, (Vec::new(), false));
    }
}
