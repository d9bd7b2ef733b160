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
//! output counts from the second. The log tells times, by the engine's clock: what it had at the pause is before what it
//! gets after, so only that much has to be read again.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use kandev_runtime::{
    Attachment, Channel, ContainerId, ContainerRuntime, LogEntry, OutputChunk, OutputStream, RuntimeError,
};
use kandev_store::journal::PipeLines;
use memchr::memchr;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

/// How long the pipes of a paused container must be silent to be at rest. The engine empties them at the speed of memory.
const AT_REST: Duration = Duration::from_millis(60);
/// How long the log may take to show a line that the attachment has shown, and how often it is asked.
const LOG_DELAY: Duration = Duration::from_secs(10);
const LOG_POLL: Duration = Duration::from_millis(20);
/// How many chunks may wait.
const QUEUE: usize = 16;

type Result<T> = std::result::Result<T, RuntimeError>;
type Sender = mpsc::Sender<Result<OutputChunk>>;

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

/// One pipe as the log tells it.
#[derive(Debug, Default)]
struct Pipe {
    /// How many lines are stored.
    skip: u64,
    /// How many complete lines the log had so far.
    seen: u64,
    /// The pieces of the line that is not complete yet.
    partial: BytesMut,
}

/// The log, read in several passes, each from where the last one ended.
#[derive(Debug)]
struct Log {
    pipes: [Pipe; 2],
    /// The time of the last entry, and how many entries have it.
    last: Option<(SystemTime, usize)>,
}

impl Log {
    fn after(lines: PipeLines) -> Self {
        let pipe = |skip| Pipe {
            skip,
            ..Pipe::default()
        };
        Self {
            pipes: [pipe(lines.stdout), pipe(lines.stderr)],
            last: None,
        }
    }

    fn pipe(&mut self, channel: Channel) -> &mut Pipe {
        &mut self.pipes[usize::from(channel == Channel::Stderr)]
    }

    /// Takes an entry: a line, or a piece of a long one. Gives the line that it completes, unless that is stored.
    fn take(&mut self, entry: LogEntry) -> Option<OutputChunk> {
        self.last = match self.last {
            Some((at, count)) if at == entry.at => Some((at, count + 1)),
            _ => Some((entry.at, 1)),
        };
        let pipe = self.pipe(entry.channel);
        if !entry.bytes.ends_with(b"\n") {
            pipe.partial.extend_from_slice(&entry.bytes);
            return None;
        }
        pipe.seen += 1;
        let bytes = if pipe.partial.is_empty() {
            entry.bytes
        } else {
            let mut whole = std::mem::take(&mut pipe.partial);
            whole.extend_from_slice(&entry.bytes);
            whole.freeze()
        };
        (pipe.seen > pipe.skip).then_some(OutputChunk {
            channel: entry.channel,
            bytes,
        })
    }

    /// Reads what the log has and had not at the last pass, and hands on the lines.
    async fn pass(
        &mut self,
        runtime: &dyn ContainerRuntime,
        id: &ContainerId,
        to: &Sender,
    ) -> std::result::Result<bool, Stop> {
        let mut entries = runtime.log_entries(id, self.last.map(|(at, _)| at)).await?;
        // The log is asked for entries of that time too, of which the first ones are known.
        let (known_at, mut known) = self.last.map_or((None, 0), |(at, count)| (Some(at), count));
        let mut grew = false;
        while let Some(entry) = entries.next().await {
            let entry = entry?;
            if known > 0 && Some(entry.at) == known_at {
                known -= 1;
                continue;
            }
            grew = true;
            if let Some(line) = self.take(entry) {
                to.send(Ok(line)).await.map_err(|_| Stop::Gone)?;
            }
        }
        Ok(grew)
    }

    /// The log has fewer lines than are stored: it was rotated away.
    fn is_short(&self) -> bool {
        self.pipes.iter().any(|p| p.seen < p.skip)
    }
}

/// How the output is taken up.
pub(super) struct TakenUp {
    pub attachment: Attachment,
    /// Told once the log has been read: whether it had less than is stored.
    pub gap: tokio::sync::oneshot::Receiver<bool>,
}

/// Takes up the output of a running container after the lines that are stored. It is paused for a moment.
pub(super) async fn running(
    runtime: Arc<dyn ContainerRuntime>,
    id: ContainerId,
    stored: PipeLines,
    tracker: &TaskTracker,
) -> Result<TakenUp> {
    // The attachment is there from the start, so that the agent can be written to; what it shows of what the log has too
    // is dropped.
    let attachment = runtime.attach(&id).await?;
    let (sender, receiver) = mpsc::channel(QUEUE);
    let (tell, gap) = tokio::sync::oneshot::channel();
    let mut live = attachment.output;
    tracker.spawn(async move {
        let mut log = Log::after(stored);
        let run = async {
            let met = meet(runtime.as_ref(), &id, &mut log, &mut live, &sender).await;
            // Nobody waits for it when the instance has ended.
            let _ = tell.send(log.is_short());
            met?;
            go_live(runtime.as_ref(), &id, log, live, &sender).await
        };
        if let Err(Stop::Failed(error)) = run.await {
            let _ = sender.send(Err(error)).await;
        }
    });
    Ok(TakenUp {
        attachment: Attachment {
            stdin: attachment.stdin,
            output: stream(receiver),
        },
        gap,
    })
}

/// Reads the log up to a point from which the attachment goes on.
async fn meet(
    runtime: &dyn ContainerRuntime,
    id: &ContainerId,
    log: &mut Log,
    live: &mut OutputStream,
    to: &Sender,
) -> std::result::Result<(), Stop> {
    // Most of it while the agent runs. The attachment has to be read meanwhile, or the agent stands still.
    {
        let pass = log.pass(runtime, id, to);
        let mut pass = std::pin::pin!(pass);
        loop {
            tokio::select! {
                done = &mut pass => { done?; break; }
                chunk = live.next() => if chunk.is_none() { break },
            }
        }
    }
    runtime.pause(id).await?;
    let rest = async {
        loop {
            // At rest: neither the attachment nor the log has anything new.
            while let Ok(Some(chunk)) = tokio::time::timeout(AT_REST, live.next()).await {
                chunk?;
            }
            if !log.pass(runtime, id, to).await? {
                return Ok(());
            }
        }
    };
    let rested: std::result::Result<(), Stop> = rest.await;
    runtime.unpause(id).await?;
    rested
}

/// Hands on the live output; the first line of each pipe comes from the log.
async fn go_live(
    runtime: &dyn ContainerRuntime,
    id: &ContainerId,
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
            join(runtime, id, &mut log, chunk.channel, &ends[which], to).await?;
            joined[which] = true;
            chunk.bytes = chunk.bytes.slice(piece.len()..);
        }
        if !chunk.bytes.is_empty() {
            to.send(Ok(chunk)).await.map_err(|_| Stop::Gone)?;
        }
    }
    // What ended without a newline before a pipe was joined is in the log alone.
    for channel in [Channel::Stdout, Channel::Stderr] {
        if !joined[usize::from(channel == Channel::Stderr)] {
            for chunk in tail(runtime, id, &log, channel).await? {
                to.send(Ok(chunk)).await.map_err(|_| Stop::Gone)?;
            }
        }
    }
    Ok(())
}

/// Everything of a pipe that the log got after the last pass.
async fn tail(
    runtime: &dyn ContainerRuntime,
    id: &ContainerId,
    log: &Log,
    channel: Channel,
) -> Result<Vec<OutputChunk>> {
    let (known_at, mut known) = log.last.map_or((None, 0), |(at, count)| (Some(at), count));
    let mut entries = runtime.log_entries(id, known_at).await?;
    let mut found = Vec::new();
    while let Some(entry) = entries.next().await {
        let entry = entry?;
        if known > 0 && Some(entry.at) == known_at {
            known -= 1;
        } else if entry.channel == channel {
            found.push(OutputChunk {
                channel,
                bytes: entry.bytes,
            });
        }
    }
    Ok(found)
}

/// Keeps as much of the end of a line as is needed to know it again.
fn keep_end(end: &mut BytesMut, piece: &[u8]) {
    const ENOUGH: usize = 4096;
    end.extend_from_slice(&piece[piece.len().saturating_sub(ENOUGH)..]);
    if end.len() > ENOUGH {
        let _ = end.split_to(end.len() - ENOUGH);
    }
}

/// Hands on what the log got of a pipe after the last pass, up to the line that ends like the first live one. The log may
/// be a little behind.
async fn join(
    runtime: &dyn ContainerRuntime,
    id: &ContainerId,
    log: &mut Log,
    channel: Channel,
    end: &[u8],
    to: &Sender,
) -> std::result::Result<(), Stop> {
    let deadline = tokio::time::Instant::now() + LOG_DELAY;
    let mut given = 0;
    loop {
        let mut line = log.pipe(channel).partial.clone();
        let mut lines = 0;
        for piece in tail(runtime, id, log, channel).await? {
            line.extend_from_slice(&piece.bytes);
            if !piece.bytes.ends_with(b"\n") {
                continue;
            }
            let whole = std::mem::take(&mut line).freeze();
            lines += 1;
            if lines <= given {
                continue;
            }
            given = lines;
            let found = whole.ends_with(end);
            to.send(Ok(OutputChunk {
                channel,
                bytes: whole,
            }))
            .await
            .map_err(|_| Stop::Gone)?;
            if found {
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
    stored: PipeLines,
    tracker: &TaskTracker,
) -> (OutputStream, tokio::sync::oneshot::Receiver<bool>) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let (tell, gap) = tokio::sync::oneshot::channel();
    tracker.spawn(async move {
        let mut log = Log::after(stored);
        if let Err(Stop::Failed(error)) = log.pass(runtime.as_ref(), &id, &sender).await {
            let _ = sender.send(Err(error)).await;
            return;
        }
        for channel in [Channel::Stdout, Channel::Stderr] {
            let pipe = log.pipe(channel);
            let bytes: Bytes = std::mem::take(&mut pipe.partial).freeze();
            if bytes.is_empty() {
                continue;
            }
            // The end of the output ends its last line.
            pipe.seen += 1;
            if pipe.seen > pipe.skip {
                let _ = sender.send(Ok(OutputChunk { channel, bytes })).await;
            }
        }
        let _ = tell.send(log.is_short());
    });
    (stream(receiver), gap)
}

fn stream(mut receiver: mpsc::Receiver<Result<OutputChunk>>) -> OutputStream {
    futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx)).boxed()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kandev_domain::InstanceId;
    use kandev_runtime::docker::DockerRuntime;
    use kandev_runtime::{ContainerSpec, LABEL_MANAGED, LABEL_OWNER, Labels, Network};

    use super::*;

    /// Takes its container away also when the test fails.
    struct Gone(String);

    impl Drop for Gone {
        fn drop(&mut self) {
            let _ = std::process::Command::new("docker")
                .args(["rm", "-f", &self.0])
                .output();
        }
    }

    async fn read_until(output: &mut OutputStream, end: &[u8]) -> Vec<u8> {
        let mut read = Vec::new();
        while !read.ends_with(end) {
            read.extend_from_slice(&output.next().await.expect("the output ended").unwrap().bytes);
        }
        read
    }

    /// The pause falls into the middle of a line: the log has not its beginning yet, and the attachment never will.
    #[tokio::test]
    async fn a_line_that_is_half_written_is_taken_up_whole() {
        let runtime: Arc<dyn ContainerRuntime> =
            Arc::new(DockerRuntime::connect(std::env::var("DOCKER_HOST").ok().as_deref()).unwrap());
        let name = format!("kandev-test-{}", InstanceId::generate());
        let script = "printf 'first\\nsecond\\nhal'; sleep 3; printf 'f\\nlast\\n'; sleep 60";
        let spec = ContainerSpec {
            name: name.clone(),
            image: "kandev/shell-agent:latest".to_owned(),
            entrypoint: Some(vec!["/bin/bash".to_owned(), "-c".to_owned(), script.to_owned()]),
            args: Vec::new(),
            env: BTreeMap::new(),
            labels: Labels::from([
                (LABEL_MANAGED.to_owned(), "true".to_owned()),
                (LABEL_OWNER.to_owned(), name.clone()),
            ]),
            working_dir: "/".to_owned(),
            mounts: Vec::new(),
            memory_bytes: 64 << 20,
            cpu_cores: 1.0,
            pids_limit: 32,
            network: Network::None,
            user: None,
            cap_add: Vec::new(),
            log_max_bytes: 1 << 20,
            log_max_files: 2,
        };
        let id = runtime.create(&spec).await.unwrap();
        let _gone = Gone(name);
        let mut before = runtime.attach(&id).await.unwrap();
        runtime.start(&id).await.unwrap();
        read_until(&mut before.output, b"hal").await;
        drop(before);

        let tracker = TaskTracker::new();
        let stored = PipeLines { stdout: 1, stderr: 0 };
        let mut taken = running(Arc::clone(&runtime), id, stored, &tracker).await.unwrap();
        let read = read_until(&mut taken.attachment.output, b"last\n").await;
        assert_eq!(String::from_utf8(read).unwrap(), "second\nhalf\nlast\n");
        assert!(!taken.gap.await.unwrap());
    }
}
