//! A PostgreSQL whose tables lie on a disk that can be filled.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sqlx::{Connection as _, PgConnection};

/// Enough for a cluster and a little more.
const SIZE: &str = "96m";
const START_LIMIT: Duration = Duration::from_mins(1);

/// A cluster on a tmpfs, in a mount namespace of its own, so that all of it is gone with the server. Its log (WAL) lies
/// elsewhere: a server that cannot write that ends, which is another fault.
pub(crate) struct SmallPostgres {
    server: Child,
    dir: tempfile::TempDir,
}

impl SmallPostgres {
    pub(crate) async fn start() -> Self {
        let dir = super::passable_dir();
        let bin = binaries();
        let script = format!(
            r#"set -eu
            cd '{dir}'
            mkdir disk sock wal
            mount -t tmpfs -o size={SIZE} tmpfs disk
            run=
            if [ "$(id -u)" = 0 ]; then
                user=nobody
                ! getent passwd postgres >/dev/null || user=postgres
                chown "$user" disk sock wal
                run="setpriv --reuid $user --regid $(id -g "$user") --clear-groups --"
            fi
            $run '{bin}/initdb' -D disk/data --waldir='{dir}/wal/wal' -U postgres --auth=trust --no-sync --locale=C \
                --encoding=UTF8 >/dev/null
            exec $run '{bin}/postgres' -D disk/data -k '{dir}/sock' -c listen_addresses= -c fsync=off \
                -c autovacuum=off -c max_connections=50"#,
            dir = dir.path().display(),
            bin = bin.display(),
        );
        let mut unshare = Command::new("unshare");
        if !rustix::process::getuid().is_root() {
            unshare.args(["--user", "--map-current-user", "--keep-caps"]);
        }
        let server = unshare
            .args(["--mount", "sh", "-c", &script])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let postgres = Self { server, dir };
        let deadline = Instant::now() + START_LIMIT;
        while let Err(error) = PgConnection::connect(&postgres.url()).await {
            assert!(
                Instant::now() < deadline,
                "the small PostgreSQL does not start: {error}"
            );
            // Nothing else says that it takes connections.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        postgres
    }

    /// For `DATABASE_URL`.
    pub(crate) fn url(&self) -> String {
        let sock = self.dir.path().join("sock");
        format!("postgresql:///postgres?host={}&user=postgres", sock.display())
    }

    /// The disk as this process sees it, which is in another namespace.
    fn filler(&self) -> PathBuf {
        let root = Path::new("/proc").join(self.server.id().to_string()).join("root");
        let disk = self.dir.path().join("disk/filler");
        root.join(disk.strip_prefix("/").unwrap())
    }

    /// Takes all the room there is.
    pub(crate) fn fill(&self) {
        let mut file = std::fs::File::create(self.filler()).unwrap();
        for piece in [1 << 16, 1] {
            while file.write_all(&vec![0; piece]).is_ok() {}
        }
    }

    /// Gives it back.
    pub(crate) fn make_room(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for SmallPostgres {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.server);
        // At once and in order: its shared memory goes too.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        let _ = self.server.wait();
    }
}

fn binaries() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let output = Command::new(root.join("scripts/setup/postgres.sh"))
        .output()
        .unwrap();
    let path = String::from_utf8(output.stdout).unwrap();
    PathBuf::from(path.trim())
}
