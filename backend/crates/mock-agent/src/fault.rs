//! What goes wrong with a process, whatever protocol it speaks: noise, crashes, memory, signals, children.

use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::args::{number, number_or, size, size_or, word};
use crate::out::{Out, complain};

/// Exit code after SIGTERM: 128 + 15, as a shell would say.
const TERMINATED: i32 = 143;
/// How much `/oom` takes at a time.
const OOM_STEP: usize = 16 << 20;
/// Most grandchildren of one `/spawn-orphans`.
const MAX_ORPHANS: usize = 10_000;

/// The process: its stdout, and which of its ends it ignores.
pub(crate) struct Process {
    pub(crate) out: Out,
    sigterm_ends: Arc<AtomicBool>,
    ignore_eof: AtomicBool,
    /// Until when stdin is not read.
    deaf_until: Mutex<Option<Instant>>,
}

impl Process {
    /// Takes over SIGTERM, which PID 1 of a container would ignore otherwise.
    pub(crate) fn new(out: Out) -> io::Result<Self> {
        let sigterm_ends = Arc::new(AtomicBool::new(true));
        let sigterm = signal_hook::consts::SIGTERM;
        signal_hook::flag::register_conditional_shutdown(sigterm, TERMINATED, Arc::clone(&sigterm_ends))?;
        let ignore_eof = AtomicBool::new(false);
        Ok(Self {
            out,
            sigterm_ends,
            ignore_eof,
            deaf_until: Mutex::default(),
        })
    }

    /// Waits as long as stdin is not to be read.
    pub(crate) fn hear(&self) {
        let until = *self.deaf_until.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left) = until.and_then(|until| until.checked_duration_since(Instant::now())) {
            std::thread::sleep(left);
        }
    }

    pub(crate) fn ignores_eof(&self) -> bool {
        self.ignore_eof.load(Ordering::SeqCst)
    }
}

/// A directive that needs no session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    Noise(usize),
    Stderr(String),
    StderrFlood { lines: usize, bytes: usize },
    Raw(String),
    Partial,
    Crash(i32),
    Exit { code: i32, after: Duration },
    Abort,
    Oom,
    ChildOom,
    IgnoreTerm,
    IgnoreEof,
    Deaf(Duration),
    SpawnOrphans { count: usize, millis: u64 },
}

impl Fault {
    /// None if this is no directive of this kind.
    pub(crate) fn parse(name: &str, rest: &str) -> Result<Option<Self>, String> {
        let (first, second) = word(rest);
        Ok(Some(match name {
            "noise" => Self::Noise(size_or(name, rest, 1)?),
            "stderr" => Self::Stderr(crate::args::unescape(rest)),
            "stderr-flood" => Self::StderrFlood {
                lines: size(name, first)?,
                bytes: size(name, second)?,
            },
            "raw" => Self::Raw(rest.to_owned()),
            "partial" => Self::Partial,
            "crash" => Self::Crash(number_or(name, rest, 1)?),
            "exit" => Self::Exit {
                code: number(name, first)?,
                after: Duration::from_millis(number_or(name, second, 0)?),
            },
            "abort" => Self::Abort,
            "oom" => Self::Oom,
            "child-oom" => Self::ChildOom,
            "ignore-term" => Self::IgnoreTerm,
            "ignore-eof" => Self::IgnoreEof,
            "deaf" => Self::Deaf(Duration::from_millis(number(name, first)?)),
            "spawn-orphans" => Self::SpawnOrphans {
                count: size(name, first)?,
                millis: number_or(name, second, 60_000)?,
            },
            _ => return Ok(None),
        }))
    }

    /// Does it. What there is to report is returned as name and value.
    pub(crate) fn run(self, process: &Arc<Process>) -> Option<(&'static str, String)> {
        match self {
            Self::Noise(times) => (0..times).for_each(|_| noise(&process.out)),
            Self::Stderr(text) => complain(&text),
            Self::StderrFlood { lines, bytes } => stderr_flood(lines, bytes),
            Self::Raw(line) => process.out.line(&line),
            Self::Partial => {
                process
                    .out
                    .bytes(br#"{"jsonrpc":"2.0","method":"session/update","params":{"sess"#);
                std::process::exit(1);
            }
            Self::Crash(code) => std::process::exit(code),
            Self::Exit { code, after } if after.is_zero() => process.out.exit(code),
            Self::Exit { code, after } => {
                let process = Arc::clone(process);
                // Untracked on purpose: its end is the end of the process.
                let timer = move || {
                    std::thread::sleep(after);
                    process.out.exit(code);
                };
                if let Err(e) = std::thread::Builder::new().spawn(timer) {
                    return Some(("exit", e.to_string()));
                }
            }
            Self::Abort => std::process::abort(),
            Self::Oom => eat_memory(),
            Self::ChildOom => return Some(("child-oom", child_oom())),
            Self::IgnoreTerm => process.sigterm_ends.store(false, Ordering::SeqCst),
            Self::Deaf(time) => {
                let mut until = process.deaf_until.lock().unwrap_or_else(PoisonError::into_inner);
                *until = Some(Instant::now() + time);
            }
            Self::IgnoreEof => process.ignore_eof.store(true, Ordering::SeqCst),
            Self::SpawnOrphans { count, millis } => {
                let said = match spawn_orphans(count, millis) {
                    Ok(count) => count.to_string(),
                    Err(e) => format!("error {e}"),
                };
                return Some(("spawn-orphans", said));
            }
        }
        None
    }
}

fn noise(out: &Out) {
    let lines: [&[u8]; 9] = [
        b"** Mock Agent 1.0 ** loading plugins... done",
        b"",
        b"\x1b[32mready\x1b[0m \x1b[2Kin 12 ms",
        b"42",
        b"[1]",
        b"\"text\"",
        br#"{"id":3,"level":"info"}"#,
        b"invalid \xff\xfe\x80 UTF-8",
        b"{broken",
    ];
    let mut bytes = lines.join(&b'\n');
    bytes.push(b'\n');
    out.bytes(&bytes);
}

fn stderr_flood(lines: usize, bytes: usize) {
    let mut stderr = io::BufWriter::new(io::stderr().lock());
    for n in 1..=lines {
        let mut line = numbered(n, bytes);
        line.push('\n');
        if stderr.write_all(line.as_bytes()).is_err() {
            return;
        }
    }
    let _ = stderr.flush();
}

/// A text of this length that begins with its number.
pub(crate) fn numbered(n: usize, bytes: usize) -> String {
    let mut text = format!("{n:08} ");
    let fill = bytes.saturating_sub(text.len());
    text.extend(std::iter::repeat_n('x', fill));
    text
}

/// Takes memory, every page of it, until something ends the process.
pub(crate) fn eat_memory() -> ! {
    let mut held = Vec::new();
    loop {
        held.push(vec![0xa5_u8; OOM_STEP]);
        std::hint::black_box(&held);
    }
}

/// This program again, in another role, without our stdio.
fn myself(args: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(args);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn child_oom() -> String {
    match myself(&["--child-oom"]).status() {
        Ok(status) => status.to_string(),
        Err(e) => format!("error {e}"),
    }
}

/// The child makes the grandchildren and exits, so that they are orphans.
fn spawn_orphans(count: usize, millis: u64) -> io::Result<usize> {
    let count = count.min(MAX_ORPHANS);
    let args = ["--child-orphans", &count.to_string(), &millis.to_string()];
    let status = myself(&args).status()?;
    if !status.success() {
        return Err(io::Error::other(format!("the child failed: {status}")));
    }
    Ok(count)
}

/// The hidden roles that the directives above start. None if the arguments name none.
pub(crate) fn child(args: &[String]) -> Option<i32> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["--child-oom"] => eat_memory(),
        ["--child-sleep", millis] => {
            std::thread::sleep(Duration::from_millis(millis.parse().ok()?));
            Some(0)
        }
        ["--child-orphans", count, millis] => {
            let count: usize = count.parse().ok()?;
            let all = (0..count).all(|_| myself(&["--child-sleep", millis]).spawn().is_ok());
            Some(i32::from(!all))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_lines_have_their_length() {
        assert_eq!(numbered(7, 12), "00000007 xxx");
        assert_eq!(numbered(7, 0), "00000007 ");
    }

    #[test]
    fn faults_are_parsed() {
        let exit = Fault::Exit {
            code: 7,
            after: Duration::from_millis(300),
        };
        assert_eq!(Fault::parse("exit", "7 300"), Ok(Some(exit)));
        assert_eq!(Fault::parse("crash", ""), Ok(Some(Fault::Crash(1))));
        assert_eq!(Fault::parse("say", "x"), Ok(None));
        assert!(Fault::parse("exit", "").is_err());
    }
}
