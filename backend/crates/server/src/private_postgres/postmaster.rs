//! One postmaster process: ours, or one we found.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;
use std::{fs, io};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};
use tokio::io::unix::AsyncFd;
use tokio::process::Child;

use super::cluster::late;
use super::place::Place;
use super::{AtPath as _, PrivatePostgresError, Result};

/// From start to the first answer. Generous, since recovery after a crash comes before it.
const READY_LIMIT: Duration = Duration::from_mins(2);
/// Between two attempts to connect. The end of the process, in contrast, is noticed at once.
const RETRY: Duration = Duration::from_millis(50);
/// What each way of stopping gets before the next, harder one.
const STOPPING: [(Signal, Duration); 3] = [
    // Fast shutdown: clients are sent away, then a checkpoint.
    (Signal::INT, Duration::from_secs(30)),
    // Immediate: recovery at the next start.
    (Signal::QUIT, Duration::from_secs(5)),
    (Signal::KILL, Duration::from_secs(5)),
];
/// How much of the log an error quotes.
const TAIL_BYTES: usize = 2000;

#[derive(Debug)]
enum Handle {
    Child(Child),
    /// Readable once the process has ended.
    Adopted(AsyncFd<OwnedFd>),
}

/// A postmaster. Dropping it does not end the process.
#[derive(Debug)]
pub(super) struct Postmaster {
    pid: Pid,
    handle: Handle,
}

impl Postmaster {
    pub(super) fn of_child(child: Child) -> Result<Self> {
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let pid = pid
            .ok_or_else(|| std::io::Error::other("ended at once"))
            .at(Path::new("postgres"))?;
        Ok(Self {
            pid,
            handle: Handle::Child(child),
        })
    }

    /// The one that runs on this cluster, if any.
    pub(super) fn find_running(data: &Path) -> Result<Option<Self>> {
        let path = data.join("postmaster.pid");
        let Ok(text) = fs::read_to_string(&path) else {
            return Ok(None);
        };
        let Some(pid) = text
            .lines()
            .next()
            .and_then(|line| line.trim().parse().ok())
            .and_then(Pid::from_raw)
        else {
            return Ok(None);
        };
        let Ok(process) = pidfd_open(pid, PidfdFlags::NONBLOCK) else {
            return Ok(None);
        };
        // Looked at after the process was got hold of, since its number may have passed on to another.
        if !serves(pid, data) {
            return Ok(None);
        }
        #[expect(
            deprecated,
            reason = "its successor is unsafe, for files that close early; an OwnedFd does not"
        )]
        let process = AsyncFd::try_new(process).map_err(io::Error::from).at(&path)?;
        Ok(Some(Self {
            pid,
            handle: Handle::Adopted(process),
        }))
    }

    pub(super) fn id(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Resolves when it has ended; its status if it was our child.
    pub(super) async fn ended(&mut self) -> Option<ExitStatus> {
        match &mut self.handle {
            Handle::Child(child) => child.wait().await.ok(),
            Handle::Adopted(process) => {
                // An error would mean that the process cannot be watched, which is as good as gone.
                let _ = process.readable().await;
                None
            }
        }
    }

    /// Waits until it answers.
    pub(super) async fn ready(&mut self, place: &Place, connect: &PgConnectOptions) -> Result<()> {
        let answered = async {
            loop {
                match connect.connect().await {
                    Ok(connection) => return connection.close().await,
                    Err(error) if crate::error::is_outage(&error) => tokio::time::sleep(RETRY).await,
                    Err(error) => return Err(error),
                }
            }
        };
        tokio::select! {
            status = self.ended() => Err(PrivatePostgresError::Failed {
                program: "postgres",
                status: status.unwrap_or_else(|| ExitStatus::from_raw(0)),
                output: format!("see {}, which ends in:\n{}", place.log.display(), tail(&place.log)),
            }),
            result = tokio::time::timeout(READY_LIMIT, answered) => {
                Ok(result.map_err(|_| late("the start of PostgreSQL", READY_LIMIT, &place.log))??)
            }
        }
    }

    /// Ends it, more and more firmly.
    pub(super) async fn stop(&mut self) {
        for (signal, limit) in STOPPING {
            // It may have ended by itself, which `ended` will tell.
            let _ = kill_process(self.pid, signal);
            if tokio::time::timeout(limit, self.ended()).await.is_ok() {
                return;
            }
            tracing::warn!(pid = self.id(), ?signal, "PostgreSQL does not stop");
        }
    }
}

/// True if this process is `postgres -D <data>`, as we start it.
fn serves(pid: Pid, data: &Path) -> bool {
    let Ok(line) = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())) else {
        return false;
    };
    let arguments: Vec<_> = line.split(|byte| *byte == 0).collect();
    let is_postgres = arguments
        .first()
        .is_some_and(|program| program.ends_with(b"postgres"));
    is_postgres
        && arguments
            .windows(2)
            .any(|pair| pair[0] == b"-D" && pair[1] == data.as_os_str().as_encoded_bytes())
}

fn tail(log: &Path) -> String {
    let bytes = fs::read(log).unwrap_or_default();
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(TAIL_BYTES)..])
        .trim()
        .to_owned()
}
