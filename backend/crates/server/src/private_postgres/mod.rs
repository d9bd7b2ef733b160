//! A PostgreSQL of our own, for when no `DATABASE_URL` is given.
//!
//! ```text
//!          lock the data directory
//!                    │
//!   postmaster of an earlier kandev alive? ── yes ─► adopt it ─┐
//!                    │ no                                      │
//!        no cluster? initdb beside, then rename                │
//!                    │                                         │
//!             start `postgres` ◄──── backoff ◄──── it ended    │
//!                    │                                │        │
//!             connect until ready ◄───────────────────┼────────┘
//!                    │                                │
//!                supervise ───────────────────────────┘
//!                    │ stop
//!           SIGINT, SIGQUIT, SIGKILL
//! ```
//! It listens on a Unix socket only, in a directory that only its user can enter; that is why the socket trusts whoever
//! connects. It lives in its own process group, so that neither ctrl-C nor our own death takes it down: the next kandev
//! adopts it. As root, it runs as another user, since PostgreSQL refuses root.

mod account;
mod binaries;
mod cluster;
mod place;
mod postmaster;
mod supervise;

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use sqlx::postgres::PgConnectOptions;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Its only superuser.
pub const USER: &str = "kandev";
/// Its database.
pub const DATABASE: &str = "kandev";

const LOCK_FILE: &str = "private-postgres.lock";

/// Where a private PostgreSQL lives.
#[derive(Debug, Clone)]
pub struct Options {
    /// kandev's data directory.
    pub data_dir: PathBuf,
    /// Where clusters go whose data directory PostgreSQL's user cannot reach, such as one below `/root`.
    pub fallback_root: PathBuf,
}

impl Options {
    /// The usual.
    pub fn new(data_dir: &Path) -> Self {
        Self {
            data_dir: data_dir.to_owned(),
            fallback_root: PathBuf::from("/var/lib/kandev"),
        }
    }
}

/// Why there is no private PostgreSQL.
#[derive(Debug, thiserror::Error)]
pub enum PrivatePostgresError {
    /// Not installed.
    #[error(
        "no PostgreSQL server binaries (initdb, postgres) on the PATH, by 'pg_config --bindir' or in \
         /usr/lib/postgresql/*/bin: install them ('apt-get install postgresql', 'dnf install postgresql-server'), or set \
         DATABASE_URL"
    )]
    NoBinaries,
    /// Installed in other versions than the cluster's.
    #[error(
        "the database in {} was made by PostgreSQL {wanted}, but installed are only: {found}. Install PostgreSQL {wanted}, \
         or move the data with pg_upgrade",
        data.display()
    )]
    WrongVersion {
        /// The cluster.
        data: PathBuf,
        /// Its major version.
        wanted: u32,
        /// The major versions found.
        found: String,
    },
    /// Root, and nobody to run it as.
    #[error("PostgreSQL refuses to run as root, and there is no user 'postgres' or 'nobody' to run it as")]
    NoAccount,
    /// Another kandev has it.
    #[error("another kandev uses the data directory {}: give each its own KANDEV_DATA_DIR", .0.display())]
    Locked(PathBuf),
    /// A directory for the socket that someone else made.
    #[error("{} belongs to someone else, so the database's socket cannot go there", .0.display())]
    ForeignDirectory(PathBuf),
    /// A file operation.
    #[error("{}: {error}", path.display())]
    Io {
        /// On what.
        path: PathBuf,
        /// What the system said.
        #[source]
        error: io::Error,
    },
    /// A program of PostgreSQL failed.
    #[error("{program} failed ({status}): {output}")]
    Failed {
        /// Which.
        program: &'static str,
        /// How.
        status: ExitStatus,
        /// Its last words.
        output: String,
    },
    /// A program of PostgreSQL, or its start, took too long.
    #[error("{what} took longer than {seconds} s; see {}", log.display())]
    Late {
        /// What.
        what: &'static str,
        /// The limit.
        seconds: u64,
        /// Where to look.
        log: PathBuf,
    },
    /// It runs, but refuses.
    #[error("the private PostgreSQL refused: {0}")]
    Sql(#[from] sqlx::Error),
}

type Result<T> = std::result::Result<T, PrivatePostgresError>;

trait AtPath<T> {
    /// Names the path in the error.
    fn at(self, path: &Path) -> Result<T>;
}

impl<T> AtPath<T> for io::Result<T> {
    fn at(self, path: &Path) -> Result<T> {
        self.map_err(|error| PrivatePostgresError::Io {
            path: path.to_owned(),
            error,
        })
    }
}

/// A running, supervised PostgreSQL. Dropped without [`stop`](Self::stop) it runs on, for the next kandev to adopt.
#[derive(Debug)]
pub struct PrivatePostgres {
    connect: PgConnectOptions,
    postmaster_id: i32,
    adopted: bool,
    stopping: CancellationToken,
    supervisor: TaskTracker,
    socket_dir_to_remove: Option<PathBuf>,
    _lock: File,
}

impl PrivatePostgres {
    /// Starts or adopts it, and returns once it answers.
    pub async fn start(options: &Options) -> Result<Self> {
        std::fs::create_dir_all(&options.data_dir).at(&options.data_dir)?;
        let data_dir = options.data_dir.canonicalize().at(&options.data_dir)?;
        let lock = lock(&data_dir)?;
        let place = place::Place::prepare(&data_dir, &options.fallback_root)?;
        tracing::debug!(cluster = %place.data.display(), socket = %place.socket_dir.display(), "private PostgreSQL");
        let connect = place.connect_options();

        let (mut postmaster, binaries, adopted) = cluster::adopt_or_start(&place, &connect).await?;
        let postmaster_id = postmaster.id();
        postmaster.ready(&place, &connect).await?;
        cluster::ensure_database(&connect).await?;

        let stopping = CancellationToken::new();
        let supervisor = TaskTracker::new();
        let socket_dir_to_remove = place.short_socket_dir();
        supervisor.spawn(supervise::supervise(
            place,
            binaries,
            postmaster,
            stopping.clone(),
        ));
        supervisor.close();
        let connect = connect.database(DATABASE);
        Ok(Self {
            connect,
            postmaster_id,
            adopted,
            stopping,
            supervisor,
            socket_dir_to_remove,
            _lock: lock,
        })
    }

    /// How to connect to its database.
    pub fn connect_options(&self) -> &PgConnectOptions {
        &self.connect
    }

    /// The process id of the postmaster that answered first.
    pub fn postmaster_id(&self) -> i32 {
        self.postmaster_id
    }

    /// True if it was left running by an earlier kandev.
    pub fn was_adopted(&self) -> bool {
        self.adopted
    }

    /// Shuts it down: in order if it can within its time, harder if not.
    pub async fn stop(self) {
        self.stopping.cancel();
        self.supervisor.wait().await;
        if let Some(dir) = &self.socket_dir_to_remove {
            // PostgreSQL has removed its socket from it; if not, it stays, and does no harm.
            let _ = std::fs::remove_dir(dir);
        }
    }
}

fn lock(data_dir: &Path) -> Result<File> {
    let path = data_dir.join(LOCK_FILE);
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .at(&path)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(PrivatePostgresError::Locked(data_dir.to_owned())),
        Err(TryLockError::Error(error)) => Err(error).at(&path),
    }
}
