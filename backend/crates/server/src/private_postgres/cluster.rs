//! Makes the cluster and gets its postmaster going.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};
use tokio::process::Command;

use super::binaries::Binaries;
use super::place::{PORT, Place};
use super::postmaster::Postmaster;
use super::{AtPath as _, DATABASE, PrivatePostgresError, Result, USER};

/// What `initdb` may take; some seconds are usual.
const INITDB_LIMIT: Duration = Duration::from_mins(2);
/// A server log above this size is set aside at the next start; one older log is kept.
const MAX_LOG_BYTES: u64 = 10 << 20;

/// The postmaster that runs already, or a new one; and the programs to start it again.
pub(super) async fn adopt_or_start(
    place: &Place,
    connect: &PgConnectOptions,
) -> Result<(Postmaster, Binaries, bool)> {
    let wanted = made_by(&place.data)?;
    let binaries = Binaries::find(&place.data, wanted).await?;
    if let Some(mut postmaster) = Postmaster::find_running(&place.data)? {
        match postmaster.ready(place, connect).await {
            Ok(()) => {
                tracing::info!(
                    pid = postmaster.id(),
                    "adopted the PostgreSQL of an earlier kandev"
                );
                return Ok((postmaster, binaries, true));
            }
            // It was on its way down when we found it.
            Err(PrivatePostgresError::Failed { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    if wanted.is_none() {
        initdb(place, &binaries).await?;
    }
    Ok((start(place, &binaries)?, binaries, false))
}

/// Major version of the cluster, if there is one.
fn made_by(data: &Path) -> Result<Option<u32>> {
    let path = data.join("PG_VERSION");
    match fs::read_to_string(&path) {
        Ok(text) => Ok(text.trim().split('.').next().and_then(|major| major.parse().ok())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).at(&path),
    }
}

/// A program of PostgreSQL as its user, with none of our environment: it may hold secrets, and `PG…` would change
/// what the program does.
fn command(place: &Place, binaries: &Binaries, program: &str) -> Command {
    let mut command = Command::new(binaries.program(program));
    command
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("LC_ALL", "C")
        .env("TZ", "UTC");
    command.current_dir(&place.base).stdin(Stdio::null());
    place.account.apply(&mut command);
    command
}

/// Makes the cluster beside its final place, so that one that was cut short is never taken for whole.
async fn initdb(place: &Place, binaries: &Binaries) -> Result<()> {
    tracing::info!(cluster = %place.data.display(), "making a private PostgreSQL cluster");
    let draft = place.base.join("data.new");
    let mut result = run_initdb(place, binaries, &draft, "C.UTF-8").await;
    if matches!(result, Err(PrivatePostgresError::Failed { .. })) {
        // Not every system has that locale.
        result = run_initdb(place, binaries, &draft, "C").await;
    }
    result?;
    fs::rename(&draft, &place.data).at(&place.data)
}

async fn run_initdb(place: &Place, binaries: &Binaries, draft: &Path, locale: &str) -> Result<()> {
    if draft.exists() {
        fs::remove_dir_all(draft).at(draft)?;
    }
    let mut command = command(place, binaries, "initdb");
    command
        .arg("--pgdata")
        .arg(draft)
        .args(["--username", USER, "--encoding", "UTF8", "--locale", locale]);
    command
        .args(["--auth-local", "trust", "--auth-host", "reject"])
        .kill_on_drop(true);
    let program = binaries.program("initdb");
    let output = tokio::time::timeout(INITDB_LIMIT, command.output()).await;
    let output = output
        .map_err(|_| late("initdb", INITDB_LIMIT, draft))?
        .at(&program)?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(PrivatePostgresError::Failed {
        program: "initdb",
        status: output.status,
        output: words,
    })
}

pub(super) fn late(what: &'static str, limit: Duration, log: &Path) -> PrivatePostgresError {
    PrivatePostgresError::Late {
        what,
        seconds: limit.as_secs(),
        log: log.to_owned(),
    }
}

/// Starts a postmaster. It deals with a stale `postmaster.pid` itself.
pub(super) fn start(place: &Place, binaries: &Binaries) -> Result<Postmaster> {
    let log = open_log(&place.log)?;
    let socket_dir = place.socket_dir.display().to_string().replace('"', "\"\"");
    let mut command = command(place, binaries, "postgres");
    command.arg("-D").arg(&place.data);
    for setting in [
        "listen_addresses=",
        &format!("port={PORT}"),
        // A list of directories, so one with a comma in its name needs the quotes.
        &format!("unix_socket_directories=\"{socket_dir}\""),
        "unix_socket_permissions=0700",
        "logging_collector=off",
        "log_destination=stderr",
        "log_line_prefix=%m [%p] ",
        "cluster_name=kandev",
    ] {
        command.arg("-c").arg(setting);
    }
    command
        .stdout(log.try_clone().at(&place.log)?)
        .stderr(log)
        .process_group(0);
    let program = binaries.program("postgres");
    Postmaster::of_child(command.spawn().at(&program)?)
}

fn open_log(path: &Path) -> Result<File> {
    if fs::metadata(path).is_ok_and(|log| log.len() > MAX_LOG_BYTES) {
        fs::rename(path, path.with_extension("log.1")).at(path)?;
    }
    File::options().create(true).append(true).open(path).at(path)
}

/// Makes our database, if this is the first start.
pub(super) async fn ensure_database(connect: &PgConnectOptions) -> Result<()> {
    let mut connection = connect.connect().await?;
    let exists = sqlx::query("SELECT 1 FROM pg_database WHERE datname = $1")
        .bind(DATABASE)
        .fetch_optional(&mut connection)
        .await?
        .is_some();
    if !exists {
        sqlx::query("CREATE DATABASE kandev")
            .execute(&mut connection)
            .await?;
    }
    connection.close().await?;
    Ok(())
}
