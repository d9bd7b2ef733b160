//! Where the cluster, its socket and its log are.

use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use sqlx::postgres::{PgConnectOptions, PgSslMode};

use super::account::Account;
use super::{AtPath as _, PrivatePostgresError, Result, USER};

/// Names the socket; there is no network port.
pub(super) const PORT: u16 = 5432;
/// What `sun_path` holds, without its final NUL.
const MAX_SOCKET_PATH: usize = 107;

/// The directories, made and owned as they must be.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) account: Account,
    /// Parent of all but a short socket directory.
    pub(super) base: PathBuf,
    /// The cluster.
    pub(super) data: PathBuf,
    pub(super) socket_dir: PathBuf,
    pub(super) log: PathBuf,
}

impl Place {
    /// `data_dir` exists and is canonical.
    pub(super) fn prepare(data_dir: &Path, fallback_root: &Path) -> Result<Self> {
        let hash = hash_of(data_dir);
        let usual = data_dir.join("postgres");
        let fallback = fallback_root.join(&hash);
        // A cluster stays where it was first made, whatever has become of the directories above it.
        let made = [&usual, &fallback]
            .into_iter()
            .find(|base| base.join("data/PG_VERSION").exists());
        let owner = made.and_then(|base| fs::metadata(base.join("data")).ok());
        let account = Account::choose(owner.as_ref())?;

        let base = match made {
            Some(base) => base.clone(),
            None if reaches(&account, data_dir)? => usual.clone(),
            None => {
                let why = "the data directory lies below one that only root can enter";
                tracing::info!(cluster = %fallback.display(), data_dir = %data_dir.display(), why, "PostgreSQL is kept apart");
                fallback
            }
        };
        if base == usual && account.is_other() {
            let mode = fs::metadata(data_dir).at(data_dir)?.permissions().mode();
            fs::set_permissions(data_dir, Permissions::from_mode(mode | 0o011)).at(data_dir)?;
        } else if let Some(parent) = base.parent() {
            fs::create_dir_all(parent).at(parent)?;
        }
        private_dir(&base, &account)?;
        let socket_dir = socket_dir(&base, &hash);
        private_dir(&socket_dir, &account)?;
        Ok(Self {
            account,
            data: base.join("data"),
            log: base.join("server.log"),
            socket_dir,
            base,
        })
    }

    /// To the database `postgres`, which every cluster has.
    pub(super) fn connect_options(&self) -> PgConnectOptions {
        // Every field that the PG… variables could set is set here.
        PgConnectOptions::new_without_pgpass()
            .socket(&self.socket_dir)
            .port(PORT)
            .username(USER)
            .password("")
            .database("postgres")
            .ssl_mode(PgSslMode::Disable)
            .application_name("kandev")
    }

    /// The socket's directory, if it is outside of `base`.
    pub(super) fn short_socket_dir(&self) -> Option<PathBuf> {
        (!self.socket_dir.starts_with(&self.base)).then(|| self.socket_dir.clone())
    }
}

/// True if the account can pass every directory above `data_dir`.
fn reaches(account: &Account, data_dir: &Path) -> Result<bool> {
    for above in data_dir.ancestors().skip(1) {
        if !account.may_enter(&fs::metadata(above).at(above)?) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn socket_dir(base: &Path, hash: &str) -> PathBuf {
    let usual = base.join("run");
    let path = usual.join(format!(".s.PGSQL.{PORT}"));
    if path.as_os_str().len() <= MAX_SOCKET_PATH {
        return usual;
    }
    PathBuf::from("/tmp").join(format!("kandev-postgres-{hash}"))
}

/// Makes a directory of mode 0700 that the account owns. An existing one must be its already: in a shared directory,
/// anyone could have put it, or a link, there.
fn private_dir(path: &Path, account: &Account) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => account.give(path),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let found = fs::symlink_metadata(path).at(path)?;
            if found.is_dir() && account.owns(&found) {
                fs::set_permissions(path, Permissions::from_mode(0o700)).at(path)
            } else {
                Err(PrivatePostgresError::ForeignDirectory(path.to_owned()))
            }
        }
        Err(error) => Err(error).at(path),
    }
}

/// FNV-1a: the same in every build, unlike the standard library's.
fn hash_of(path: &Path) -> String {
    let hash = path
        .as_os_str()
        .as_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!(hash_of(Path::new("a")), "af63dc4c8601ec8c");
        assert_eq!(hash_of(Path::new("")), "cbf29ce484222325");
    }

    #[test]
    fn a_socket_path_that_is_too_long_moves() {
        let fits = format!("/{}", "x".repeat(MAX_SOCKET_PATH - "//run/.s.PGSQL.5432".len()));
        assert!(socket_dir(Path::new(&fits), "h").starts_with(&fits));
        assert_eq!(
            socket_dir(Path::new(&format!("{fits}x")), "h"),
            Path::new("/tmp/kandev-postgres-h")
        );
    }

    #[test]
    fn a_link_is_not_taken_for_a_private_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        fs::create_dir(&target).unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let account = Account::choose(None).unwrap();
        let error = private_dir(&link, &account).unwrap_err();
        assert!(
            matches!(error, PrivatePostgresError::ForeignDirectory(_)),
            "{error}"
        );
    }
}
