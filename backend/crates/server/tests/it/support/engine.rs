//! A container engine of one test, which may do anything to it: restart or kill it, with live-restore or without.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Generous, on a machine that does other work.
const LIMIT: Duration = Duration::from_mins(1);

/// A `dockerd` with directories, socket and containerd of its own. Ended with all its containers, and deleted, when dropped.
pub(crate) struct Engine {
    dir: tempfile::TempDir,
    daemon: Option<Child>,
    live_restore: bool,
}

impl Engine {
    /// With the mock agent's image. It must be possible: these tests run as root, with Docker's daemon installed.
    pub(crate) fn start(live_restore: bool) -> Self {
        let dir = super::passable_dir();
        let mut engine = Self {
            dir,
            daemon: None,
            live_restore,
        };
        engine.start_again();
        let saved = Command::new("docker")
            .args(["save", "kandev/mock-agent:latest"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&saved.stderr);
        assert!(saved.status.success(), "the mock agent's image: {text}");
        let mut load = engine
            .docker()
            .arg("load")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        load.stdin.take().unwrap().write_all(&saved.stdout).unwrap();
        assert!(load.wait().unwrap().success());
        engine
    }

    /// For `DOCKER_HOST`.
    pub(crate) fn host(&self) -> String {
        format!("unix://{}", self.path("socket").display())
    }

    /// Its own client.
    pub(crate) fn docker(&self) -> Command {
        let mut command = Command::new("docker");
        command.env("DOCKER_HOST", self.host());
        command
    }

    /// Whether containers outlive it from the next start on.
    #[cfg(feature = "soak")]
    pub(crate) fn set_live_restore(&mut self, live_restore: bool) {
        self.live_restore = live_restore;
    }

    /// SIGTERM, and what it does then: without live-restore, it stops its containers first.
    pub(crate) fn stop(&mut self) {
        self.end(Signal::TERM);
    }

    /// `kill -9`. Its containers run on, at least until it starts again.
    pub(crate) fn kill(&mut self) {
        self.end(Signal::KILL);
    }

    pub(crate) fn start_again(&mut self) {
        // Named after a process that may be in use by anyone by now.
        for file in ["pid", "exec/containerd/containerd.pid"] {
            let _ = std::fs::remove_file(self.path(file));
        }
        std::fs::write(self.path("daemon.json"), "{}").unwrap();
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.path("log"))
            .unwrap();
        // A network of its own: without a bridge to keep, it takes the one of the engine beside it away.
        let mut command = Command::new("unshare");
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .env("PATH", format!("{path}:/usr/sbin:/sbin"))
            .args(["--net", "dockerd"])
            .args(["--bridge=none", "--iptables=false", "--ip-masq=false"])
            .arg(format!("--live-restore={}", self.live_restore));
        for (flag, file) in [
            ("--config-file", "daemon.json"),
            ("--data-root", "data"),
            ("--exec-root", "exec"),
            ("--pidfile", "pid"),
        ] {
            command.arg(flag).arg(self.path(file));
        }
        command
            .arg("--host")
            .arg(self.host())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .process_group(0);
        let daemon = command.spawn();
        self.daemon = Some(daemon.expect("these tests need dockerd (scripts/setup/engine.sh installs it)"));
        let deadline = Instant::now() + LIMIT;
        while !self.answers() {
            let ended = self.daemon.as_mut().unwrap().try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "dockerd cannot be started here, which these tests need (as root): {}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn answers(&self) -> bool {
        let answer = self.docker().args(["version", "--format", "x"]).output().unwrap();
        answer.status.success()
    }

    fn end(&mut self, signal: Signal) {
        let Some(mut daemon) = self.daemon.take() else {
            return;
        };
        // containerd is its child, and dies with it.
        let pid = Pid::from_raw(daemon.id().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
        daemon.wait().unwrap();
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    fn log(&self) -> String {
        let log = std::fs::read_to_string(self.path("log")).unwrap_or_default();
        let lines: Vec<_> = log.lines().rev().take(10).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.daemon.is_none() {
            self.start_again();
        }
        let listed = self.docker().args(["ps", "-aq"]).output();
        if let Ok(listed) = listed {
            for id in String::from_utf8_lossy(&listed.stdout).lines() {
                let _ = self.docker().args(["rm", "-f", "-v", id]).output();
            }
        }
        self.stop();
        // What a killed one had mounted.
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let root = self.dir.path().to_string_lossy().into_owned();
        for mount in mounts.lines().filter_map(|line| line.split(' ').nth(1)) {
            if mount.starts_with(&root) {
                let _ = Command::new("umount").args(["-l", mount]).output();
            }
        }
    }
}
