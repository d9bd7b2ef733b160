//! A PostgreSQL server of one test, which may do anything to it: freeze, restart or kill it.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid, kill_process};

/// Generous, on a machine that does other work.
const LIMIT: Duration = Duration::from_mins(1);

/// A cluster and its postmaster. Stopped and deleted when dropped.
pub(crate) struct Cluster {
    dir: tempfile::TempDir,
    bin: PathBuf,
    /// Whom the server runs as, where that is not us: it refuses root.
    account: Option<(u32, u32)>,
}

impl Cluster {
    /// Durable towards processes that die, not towards a machine that does.
    pub(crate) fn start() -> Self {
        let dir = super::passable_dir();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../scripts/setup/postgres.sh");
        let bin = String::from_utf8(Command::new(script).output().unwrap().stdout).unwrap();
        let account = geteuid().is_root().then(account);
        if let Some((uid, gid)) = account {
            std::os::unix::fs::chown(dir.path(), Some(uid), Some(gid)).unwrap();
            std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let cluster = Self {
            dir,
            bin: bin.trim().into(),
            account,
        };
        let init = [
            "-U",
            "postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        ];
        cluster.run("initdb", &init);
        let socket = cluster.dir.path().display();
        let settings = format!(
            "listen_addresses = ''\nunix_socket_directories = '{socket}'\nfsync = off\nfull_page_writes = off\n"
        );
        let conf = cluster.data().join("postgresql.conf");
        let old = std::fs::read_to_string(&conf).unwrap();
        std::fs::write(&conf, old + &settings).unwrap();
        cluster.start_again();
        cluster
    }

    pub(crate) fn url(&self) -> String {
        format!(
            "postgresql:///postgres?host={}&user=postgres",
            self.dir.path().display()
        )
    }

    /// Starts it after a [`kill`](Self::kill).
    pub(crate) fn start_again(&self) {
        let log = self.dir.path().join("log").display().to_string();
        self.run("pg_ctl", &["-l", &log, "-w", "-t", "60", "start"]);
    }

    /// `pg_ctl restart` in a mode: `fast` cuts connections, `immediate` is a crash with recovery.
    pub(crate) fn restart(&self, mode: &str) {
        let log = self.dir.path().join("log").display().to_string();
        self.run("pg_ctl", &["-l", &log, "-m", mode, "-w", "-t", "60", "restart"]);
    }

    /// `kill -9` of all its processes.
    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
        let deadline = Instant::now() + LIMIT;
        while self.processes().iter().any(|pid| !is_zombie(*pid)) {
            assert!(Instant::now() < deadline, "PostgreSQL does not die");
            std::thread::sleep(Duration::from_millis(10));
        }
        // They name a process that may still be in the table, where nobody waits for it.
        let locks = [
            self.data().join("postmaster.pid"),
            self.dir.path().join(".s.PGSQL.5432.lock"),
        ];
        for lock in locks {
            let _ = std::fs::remove_file(lock);
        }
    }

    /// No process of it does anything any more; its connections stay, and so does its socket.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// The postmaster first, so that it starts no more.
    fn signal(&self, signal: Signal) {
        for pid in self.processes() {
            // One that has ended meanwhile.
            let _ = kill_process(Pid::from_raw(pid).unwrap(), signal);
        }
        for pid in self.processes() {
            let _ = kill_process(Pid::from_raw(pid).unwrap(), signal);
        }
    }

    fn processes(&self) -> Vec<i32> {
        let Ok(file) = std::fs::read_to_string(self.data().join("postmaster.pid")) else {
            return Vec::new();
        };
        let postmaster: i32 = file.lines().next().unwrap().trim().parse().unwrap();
        let children = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            (stat(pid)?.1 == postmaster).then_some(pid)
        });
        std::iter::once(postmaster)
            .filter(|pid| stat(*pid).is_some())
            .chain(children)
            .collect()
    }

    fn run(&self, program: &str, args: &[&str]) {
        let mut command = Command::new(self.bin.join(program));
        command
            .arg("-D")
            .arg(self.data())
            .args(args)
            .current_dir("/")
            .stdin(std::process::Stdio::null());
        if let Some((uid, gid)) = self.account {
            command.uid(uid).gid(gid);
        }
        // The postmaster keeps what it is given: a pipe would not end with pg_ctl.
        let output = self.dir.path().join("output");
        let file = std::fs::File::create(&output).unwrap();
        command.stdout(file.try_clone().unwrap()).stderr(file);
        let status = command.status().unwrap();
        assert!(
            status.success(),
            "{program} {args:?}: {}{}",
            std::fs::read_to_string(&output).unwrap_or_default(),
            std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
        );
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// State and parent of a process, if it is there.
fn stat(pid: i32) -> Option<(char, i32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn is_zombie(pid: i32) -> bool {
    stat(pid).is_none_or(|(state, _)| state == 'Z')
}

/// The user that PostgreSQL runs as under root: `postgres`, else `nobody`.
fn account() -> (u32, u32) {
    let passwd = std::fs::read_to_string(Path::new("/etc/passwd")).unwrap();
    ["postgres", "nobody"]
        .iter()
        .find_map(|name| {
            let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
            let mut fields = line.split(':').skip(2);
            Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
        })
        .expect("no user to run PostgreSQL as")
}
