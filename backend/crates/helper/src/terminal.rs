//! One terminal: a process, what it put out, and how it ended.
//!
//! The process is the first of a group of its own. Once it has ended it is not reaped before the terminal is released: until
//! then its number, which is the group's, is nobody else's.

use std::io::{PipeReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command as Process, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kandev_helper::wire::{Command, Exit, Notice, Reason, Reply};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, test_kill_process_group,
    waitid,
};

use crate::failure::{Failure, Result};
use crate::outgoing::Outgoing;
use crate::ring::{Ring, unfinished};
use crate::terminals::{exited, lock};

/// What is read at once.
const CHUNK: usize = 64 << 10;
/// What is kept at least, so that it can be told.
const KEEP: usize = 64 << 10;
/// How much is read of what a process left in its pipe; others may go on writing there.
const LAST_WORDS: usize = 4 << 20;
/// What is told at once.
const TOLD: usize = 32 << 10;
/// What is told without a pause, and what a second adds to that.
const CREDIT: u64 = 256 << 10;
const CREDIT_PER_SECOND: u64 = 16 << 10;
/// Less is not told unless it is all there is.
const WORTH_TELLING: u64 = 4 << 10;
/// How often is looked where the kernel cannot tell of an end.
const LOOK: Duration = Duration::from_millis(20);
const LOOK_SELDOM: Duration = Duration::from_secs(1);
/// How long a killed group is waited for.
const GONE_WITHIN: Duration = Duration::from_secs(2);

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Terminal {
    id: String,
    group: Pid,
    child: Mutex<Option<Child>>,
    state: Mutex<State>,
    released: AtomicBool,
    outgoing: Arc<Outgoing>,
}

#[derive(Debug)]
struct State {
    ring: Ring,
    keep: usize,
    exit: Option<Exit>,
    /// Who waits for it: connection and tag.
    waiting: Vec<(u64, u64)>,
    followed: bool,
    told: u64,
    told_exit: bool,
    credit: u64,
    credited: Instant,
}

impl Terminal {
    pub(crate) fn start(command: &Command, outgoing: Arc<Outgoing>) -> Result<Arc<Self>> {
        let keep = usize::try_from(command.keep).unwrap_or(usize::MAX);
        let (child, output) = spawn(command)?;
        let group = Pid::from_child(&child);
        let terminal = Arc::new(Self {
            id: command.id.clone(),
            group,
            child: Mutex::new(Some(child)),
            state: Mutex::new(State {
                ring: Ring::new(keep.max(KEEP)),
                keep,
                exit: None,
                waiting: Vec::new(),
                followed: true,
                told: 0,
                told_exit: false,
                credit: CREDIT,
                credited: Instant::now(),
            }),
            released: AtomicBool::new(false),
            outgoing,
        });
        let watched = Arc::clone(&terminal);
        let thread = std::thread::Builder::new().name("terminal".to_owned());
        if thread.spawn(move || watched.watch(output)).is_err() {
            terminal.release();
            let message = "the container's limit of processes is reached";
            return Err(Failure::new(Reason::TooMany, message));
        }
        Ok(terminal)
    }

    /// Takes the output until there is no more, and notes the end.
    fn watch(&self, mut output: PipeReader) {
        if rustix::io::ioctl_fionbio(&output, true).is_err() {
            return;
        }
        let process = pidfd_open(self.group, PidfdFlags::empty()).ok();
        let mut buffer = vec![0; CHUNK];
        let (mut open, mut ended) = (true, false);
        while open || !ended {
            let pause = if ended || process.is_some() {
                LOOK_SELDOM
            } else {
                LOOK
            };
            wait_for(
                open.then_some(&output),
                process.as_ref().filter(|_| !ended),
                pause,
            );
            open = open && self.take(&mut output, &mut buffer, CHUNK);
            if !ended && self.has_ended() {
                ended = true;
                open = open && self.take(&mut output, &mut buffer, LAST_WORDS);
                if let Some(exit) = self.exit_status() {
                    self.end(exit);
                }
            }
            if self.released.load(Ordering::Acquire) {
                return;
            }
        }
    }

    /// Takes what the pipe has, about `most` bytes. False once it is closed.
    fn take(&self, output: &mut PipeReader, buffer: &mut [u8], most: usize) -> bool {
        let mut taken = 0;
        while taken < most {
            match output.read(buffer) {
                Ok(0) => return false,
                Ok(count) => {
                    lock(&self.state).ring.push(&buffer[..count]);
                    taken += count;
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    fn has_ended(&self) -> bool {
        // A released one is reaped elsewhere.
        self.released.load(Ordering::Acquire) || self.exit_status().is_some()
    }

    /// How the process ended. It stays unreaped.
    fn exit_status(&self) -> Option<Exit> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let status = waitid(WaitId::Pid(self.group), options).ok()??;
        let code = status.exit_status().map(|code| Exit::Code(code.cast_unsigned()));
        let signal = || {
            status
                .terminating_signal()
                .map(|signal| Exit::Signal(signal.cast_unsigned()))
        };
        code.or_else(signal)
    }

    fn end(&self, exit: Exit) {
        let mut state = lock(&self.state);
        let exit = *state.exit.get_or_insert(exit);
        for (connection, tag) in std::mem::take(&mut state.waiting) {
            self.outgoing.push(connection, exited(tag, exit));
        }
        drop(state);
        self.outgoing.wake();
    }

    pub(crate) fn output(&self) -> Reply {
        let state = lock(&self.state);
        Reply::Output {
            bytes: state.ring.newest(state.keep),
            total: state.ring.total(),
            exit: state.exit,
        }
    }

    pub(crate) fn wait(&self, connection: u64, tag: u64) {
        let mut state = lock(&self.state);
        match state.exit {
            Some(exit) => self.outgoing.push(connection, exited(tag, exit)),
            None => state.waiting.push((connection, tag)),
        }
    }

    pub(crate) fn unwait(&self, connection: u64, tag: u64) -> bool {
        let waiting = &mut lock(&self.state).waiting;
        let before = waiting.len();
        waiting.retain(|who| *who != (connection, tag));
        waiting.len() < before
    }

    pub(crate) fn kill(&self) {
        // While the child is there it is not reaped, and the group is its own.
        if lock(&self.child).is_some() {
            let _ = kill_process_group(self.group, Signal::KILL);
        }
    }

    /// Kills the group, and waits until it is gone.
    pub(crate) fn release(&self) {
        self.kill();
        self.released.store(true, Ordering::Release);
        let Some(mut child) = lock(&self.child).take() else {
            return;
        };
        if let Ok(status) = child.wait() {
            self.end(exit_of(status));
        }
        let until = Instant::now() + GONE_WITHIN;
        while test_kill_process_group(self.group) != Err(Errno::SRCH) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn follow(&self, from: u64) {
        let mut state = lock(&self.state);
        state.followed = true;
        state.told = from.min(state.ring.total());
        state.told_exit = false;
    }

    pub(crate) fn unfollow(&self) {
        lock(&self.state).followed = false;
    }

    /// What is to be told now: no more than a reader would want to see.
    pub(crate) fn notices(&self, now: Instant) -> Vec<Notice> {
        let mut state = lock(&self.state);
        let mut notices = Vec::new();
        if !state.followed || state.told_exit {
            return notices;
        }
        state.earn(now);
        let total = state.ring.total();
        if state.exit.is_some() {
            // The end is always told, after what there is no time for any more.
            state.told = state.told.max(total.saturating_sub(KEEP as u64));
            state.credit = state.credit.max(KEEP as u64);
        }
        while state.told < total {
            let left = total - state.told;
            let most = left.min(state.credit).min(TOLD as u64);
            if most < left.min(WORTH_TELLING) {
                return notices;
            }
            let (from, mut bytes) = state.ring.after(state.told, most as usize);
            let open_end = from + (bytes.len() as u64) < total || state.exit.is_none();
            if open_end {
                bytes.truncate(bytes.len() - unfinished(&bytes));
            }
            if bytes.is_empty() {
                return notices;
            }
            state.told = from + bytes.len() as u64;
            state.credit = state.credit.saturating_sub(bytes.len() as u64);
            notices.push(Notice::Output(self.id.clone(), from, bytes));
            if state.exit.is_none() {
                return notices;
            }
        }
        if let Some(exit) = state.exit {
            state.told_exit = true;
            notices.push(Notice::Exited(self.id.clone(), exit));
        }
        notices
    }
}

impl State {
    fn earn(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.credited).as_millis();
        let earned = u64::try_from(passed)
            .unwrap_or(u64::MAX)
            .saturating_mul(CREDIT_PER_SECOND)
            / 1000;
        if earned > 0 {
            self.credit = self.credit.saturating_add(earned).min(CREDIT);
            self.credited = now;
        }
    }
}

fn wait_for(output: Option<&PipeReader>, process: Option<&OwnedFd>, limit: Duration) {
    let mut awaited = Vec::with_capacity(2);
    awaited.extend(output.map(|output| PollFd::new(output, PollFlags::IN)));
    awaited.extend(process.map(|process| PollFd::new(process, PollFlags::IN)));
    let limit = Timespec::try_from(limit).ok();
    // An interruption, like the limit, only leads to another look.
    let _ = poll(&mut awaited, limit.as_ref());
}

fn exit_of(status: ExitStatus) -> Exit {
    let signal = || status.signal().map(|signal| Exit::Signal(signal.cast_unsigned()));
    let code = status.code().map(|code| Exit::Code(code.cast_unsigned()));
    code.or_else(signal).unwrap_or(Exit::Code(0))
}

fn spawn(command: &Command) -> Result<(Child, PipeReader)> {
    let has_nul = |text: &String| text.contains('\0');
    let env = command.env.iter();
    if has_nul(&command.command)
        || command.args.iter().any(has_nul)
        || env
            .clone()
            .any(|(name, value)| name.is_empty() || name.contains(['\0', '=']) || has_nul(value))
    {
        let message = "the command, an argument or a variable cannot be handed to a process";
        return Err(Failure::new(Reason::CommandNotFound, message));
    }
    if !Path::new(&command.cwd).is_dir() {
        let message = format!("the working directory '{}' is not there", command.cwd);
        return Err(Failure::new(Reason::InvalidCwd, message));
    }
    match run(&command.command, &command.args, command) {
        // Some agents give a line for the shell.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && is_line(command) => {
            let args = ["-c".to_owned(), command.command.clone()];
            run("/bin/sh", &args, command)
        }
        ran => ran,
    }
    .map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::new(
            Reason::CommandNotFound,
            format!("there is no program '{}'", command.command),
        ),
        std::io::ErrorKind::WouldBlock => {
            Failure::new(Reason::TooMany, "the container's limit of processes is reached")
        }
        _ => error.into(),
    })
}

fn is_line(command: &Command) -> bool {
    let plain = |c: char| c.is_alphanumeric() || "/._-+".contains(c);
    command.args.is_empty() && !command.command.chars().all(plain)
}

fn run(program: &str, args: &[String], command: &Command) -> std::io::Result<(Child, PipeReader)> {
    let (output, input) = std::io::pipe()?;
    let env = command.env.iter().map(|(name, value)| (name, value));
    let child = Process::new(program)
        .args(args)
        .envs(env)
        .current_dir(&command.cwd)
        .stdin(Stdio::null())
        .stdout(input.try_clone()?)
        .stderr(input)
        .process_group(0)
        .spawn()?;
    Ok((child, output))
}
