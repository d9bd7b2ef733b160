//! The binary as a process.

use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

/// Generous: the first start makes a cluster, on a machine that does other work.
const LIMIT: Duration = Duration::from_mins(1);

/// How many lines of its log may wait to be looked at.
const MAX_LOG: usize = 100_000;

/// A `kandev serve` of one test. Killed when dropped.
pub(crate) struct Kandev {
    child: Child,
    lines: mpsc::Receiver<String>,
    /// What it logged until it was ready, and later what was read of it.
    pub(crate) log: Vec<String>,
    /// `http://…`.
    pub(crate) url: String,
}

impl Kandev {
    /// The binary with an environment of `PATH`, `HOME` and the given only.
    pub(crate) fn command(environment: &[(&str, &str)]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kandev"));
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", "/nonexistent");
        command.envs(environment.iter().copied()).kill_on_drop(true);
        command
    }

    /// Starts it on a free port.
    pub(crate) fn start(data_dir: &Path, environment: &[(&str, &str)]) -> Self {
        let mut command = Self::command(environment);
        command
            .arg("serve")
            .env("KANDEV_DATA_DIR", data_dir)
            .env("KANDEV_LISTEN", "127.0.0.1:0");
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap()).lines();
        // Read all the time: a log that nobody takes would hold the server up once the pipe is full.
        let (sender, lines) = mpsc::channel(MAX_LOG);
        TaskTracker::new().spawn(async move {
            while let Ok(Some(line)) = stderr.next_line().await {
                if sender.send(line).await.is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            lines,
            log: Vec::new(),
            url: String::new(),
        }
    }

    /// Starts it and waits until it says that it is ready.
    pub(crate) async fn serve(data_dir: &Path, environment: &[(&str, &str)]) -> Self {
        let mut kandev = Self::start(data_dir, environment);
        let line = kandev.read_until("kandev is ready at ").await;
        let url = line.split("kandev is ready at ").nth(1).unwrap();
        kandev.url = url.chars().take_while(|c| !matches!(c, '"' | ' ')).collect();
        kandev
    }

    /// Reads the log up to a line that holds `text`.
    pub(crate) async fn read_until(&mut self, text: &str) -> String {
        let read = async {
            while let Some(line) = self.lines.recv().await {
                self.log.push(line);
                if self.log.last().unwrap().contains(text) {
                    return;
                }
            }
            panic!("the log ended without '{text}':\n{}", self.log.join("\n"));
        };
        let found = tokio::time::timeout(LIMIT, read).await;
        assert!(
            found.is_ok(),
            "no '{text}' within {LIMIT:?}:\n{}",
            self.log.join("\n")
        );
        self.log.last().unwrap().clone()
    }

    /// Resident memory in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let pid = self.child.id().unwrap();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        let kilobytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kilobytes << 10
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().unwrap().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    pub(crate) async fn ended(&mut self) -> ExitStatus {
        tokio::time::timeout(LIMIT, self.child.wait())
            .await
            .expect("it does not end")
            .unwrap()
    }

    pub(crate) async fn terminate(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.ended().await
    }
}
