//! The serving process: one connection at a time, the newest.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kandev_helper::VERSION;
use kandev_helper::wire::{self, Message, Notice, Reason, Reply, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::failure::Failure;
use crate::files;
use crate::outgoing::Outgoing;
use crate::terminals::{Terminals, lock};

/// How long it stays without a connection when there is nothing to keep.
const IDLE: Duration = Duration::from_secs(10);
/// How often it looks whether it is needed.
const LOOK: Duration = Duration::from_secs(1);
/// How often the output of terminals is told.
const TELL: Duration = Duration::from_millis(100);
/// How many files are worked on at once; more wait.
const WORKERS: usize = 4;
const JOBS: usize = 1024;

struct Served {
    outgoing: Arc<Outgoing>,
    terminals: Terminals,
    /// Since when nobody is connected.
    alone_since: Mutex<Option<Instant>>,
    jobs: SyncSender<Job>,
    waiting: Arc<Mutex<Receiver<Job>>>,
    workers: Mutex<usize>,
    /// The jobs that wait, by connection and tag: whether they were taken back.
    cancelled: Mutex<BTreeMap<(u64, u64), bool>>,
}

/// A request that may take its time.
struct Job {
    connection: u64,
    tag: u64,
    request: Request,
}

/// Serves until it is not needed any more; terminals are kept for `keep` without a connection.
pub(crate) fn serve(listener: &UnixListener, keep: Duration) -> io::Result<()> {
    let outgoing = Arc::new(Outgoing::default());
    let (jobs, waiting) = sync_channel(JOBS);
    let served = Arc::new(Served {
        terminals: Terminals::new(Arc::clone(&outgoing)),
        outgoing,
        alone_since: Mutex::new(Some(Instant::now())),
        jobs,
        waiting: Arc::new(Mutex::new(waiting)),
        workers: Mutex::new(0),
        cancelled: Mutex::default(),
    });
    let mut last: Option<UnixStream> = None;
    loop {
        if comes_somebody(listener)? {
            let (stream, _) = listener.accept()?;
            if let Some(last) = last.take() {
                // Its reader sees that and ends.
                let _ = last.shutdown(Shutdown::Both);
            }
            last = stream.try_clone().ok();
            served.begin(stream);
        }
        let alone = lock(&served.alone_since).map(|since| since.elapsed());
        let patience = if served.terminals.is_empty() {
            IDLE.min(keep)
        } else {
            keep
        };
        if alone.is_some_and(|alone| alone >= patience) {
            served.terminals.release_all();
            return Ok(());
        }
    }
}

fn comes_somebody(listener: &UnixListener) -> io::Result<bool> {
    let limit = Timespec::try_from(LOOK).ok();
    let mut awaited = [PollFd::new(listener, PollFlags::IN)];
    match poll(&mut awaited, limit.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn cancelled() -> Failure {
    Failure::new(Reason::Cancelled, "it was taken back".to_owned())
}

impl Served {
    fn begin(self: &Arc<Self>, stream: UnixStream) {
        let connection = self.outgoing.begin();
        self.terminals.unfollow();
        *lock(&self.alone_since) = None;
        let (reading, writing) = (Arc::clone(self), Arc::clone(self));
        let out = stream.try_clone();
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let written = out.and_then(|out| thread("writer").spawn(move || writing.write(out, connection)));
        let read = thread("reader").spawn(move || reading.read(stream, connection));
        if written.is_err() || read.is_err() {
            self.end(connection);
        }
    }

    fn end(&self, connection: u64) {
        self.outgoing.end(connection);
        if self.outgoing.is_last(connection) {
            self.terminals.unfollow();
            *lock(&self.alone_since) = Some(Instant::now());
        }
    }

    fn read(self: &Arc<Self>, mut stream: UnixStream, connection: u64) {
        while let Ok(Some(frame)) = wire::read(&mut stream) {
            let Ok((tag, request)) = Request::decode(&frame) else {
                break;
            };
            drop(frame);
            self.take(connection, tag, request);
        }
        let _ = stream.shutdown(Shutdown::Both);
        self.end(connection);
    }

    fn take(self: &Arc<Self>, connection: u64, tag: u64, request: Request) {
        let outcome = match &request {
            Request::Read(_) | Request::Write(_) | Request::Release(_) => {
                return self.queue(Job {
                    connection,
                    tag,
                    request,
                });
            }
            Request::Create(command) => self.terminals.create(command),
            Request::Output(id) => self.terminals.output(id),
            Request::Wait(id) => match self.terminals.wait(id, connection, tag) {
                Ok(()) => return,
                Err(failure) => Err(failure),
            },
            Request::Kill(id) => self.terminals.kill(id),
            Request::Follow(id, from) => self.terminals.follow(id, *from),
            Request::Cancel => return self.cancel(connection, tag),
        };
        self.answer(connection, tag, outcome);
    }

    /// What is not known, or is being done, gets the answer that it gets.
    fn cancel(&self, connection: u64, tag: u64) {
        if self.terminals.unwait(connection, tag) {
            return self.answer(connection, tag, Err(cancelled()));
        }
        if let Some(cancelled) = lock(&self.cancelled).get_mut(&(connection, tag)) {
            *cancelled = true;
        }
    }

    fn answer(&self, connection: u64, tag: u64, outcome: Result<Reply, Failure>) {
        let reply = outcome.unwrap_or_else(Reply::from);
        self.outgoing
            .push(connection, Message::Reply(tag, reply).encode());
    }

    /// Hands a job to a worker, of which there are more the more are needed. Without any it is done here.
    fn queue(self: &Arc<Self>, job: Job) {
        lock(&self.cancelled).insert((job.connection, job.tag), false);
        let mut workers = lock(&self.workers);
        if *workers < WORKERS {
            let served = Arc::clone(self);
            let thread = std::thread::Builder::new().name("worker".to_owned());
            if thread.spawn(move || served.work()).is_ok() {
                *workers += 1;
            }
        }
        let nobody = *workers == 0;
        drop(workers);
        if nobody {
            return self.perform(job);
        }
        // The receiver lives as long as this.
        let _ = self.jobs.send(job);
    }

    fn work(&self) {
        loop {
            let job = lock(&self.waiting).recv();
            match job {
                Ok(job) => self.perform(job),
                Err(_) => return,
            }
        }
    }

    fn perform(&self, job: Job) {
        if lock(&self.cancelled).remove(&(job.connection, job.tag)) == Some(true) {
            return self.answer(job.connection, job.tag, Err(cancelled()));
        }
        let outcome = match &job.request {
            Request::Read(file) => files::read(file),
            Request::Write(file) => files::write(file),
            Request::Release(id) => Ok(self.terminals.release(id)),
            _ => return,
        };
        self.answer(job.connection, job.tag, outcome);
    }

    fn write(&self, mut stream: UnixStream, connection: u64) {
        let hello = Message::Notice(Notice::Hello(VERSION)).encode();
        let mut frames = VecDeque::from([hello]);
        loop {
            for frame in frames {
                if stream.write_all(&frame).is_err() {
                    return self.end(connection);
                }
            }
            for notice in self.terminals.notices(Instant::now()) {
                if stream.write_all(&Message::Notice(notice).encode()).is_err() {
                    return self.end(connection);
                }
            }
            let limit = (!self.terminals.is_empty()).then_some(TELL);
            match self.outgoing.take(connection, limit) {
                Some(taken) => frames = taken,
                None => return,
            }
        }
    }
}
