//! The key of secrets at rest, kept in the data directory unless the operator brings one.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};

use crate::config::values::Setting as _;
use crate::config::{Config, SecretKey};

/// The file's name in the data directory.
pub const KEY_FILE: &str = "secret.key";

/// The configured key, else the one in the data directory, which is made at the first start.
pub fn load_or_create(config: &Config) -> Result<SecretKey> {
    match &config.secret_key {
        Some(key) => Ok(key.clone()),
        None => from_data_dir(&config.data_dir),
    }
}

fn from_data_dir(data_dir: &Path) -> Result<SecretKey> {
    fs::create_dir_all(data_dir).with_context(|| format!("cannot make {}", data_dir.display()))?;
    let path = data_dir.join(KEY_FILE);
    if !path.exists() {
        create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    }
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    if fs::metadata(&path)?.permissions().mode() & 0o077 != 0 {
        tracing::warn!(path = %path.display(), "others can read the key file; give it mode 0600");
    }
    SecretKey::parse(text.trim()).map_err(|problem| anyhow!("{} {problem}", path.display()))
}

/// Makes the file whole or not at all: two servers at once both end with the same key.
fn create(path: &Path) -> Result<()> {
    let mut bytes = [0; SecretKey::LEN];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let draft = path.with_extension(format!("{}.new", std::process::id()));
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft)?;
    file.write_all(SecretKey::from_bytes(bytes).to_hex().as_bytes())?;
    file.sync_all()?;
    let linked = fs::hard_link(&draft, path);
    fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_made_once_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().join("deep/data");
        let first = from_data_dir(&data_dir).unwrap();
        assert_eq!(from_data_dir(&data_dir).unwrap(), first);
        assert_ne!(from_data_dir(dir.path()).unwrap(), first);
        let mode = fs::metadata(data_dir.join(KEY_FILE))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(&data_dir).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn a_broken_key_file_is_an_error_and_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(KEY_FILE), "short").unwrap();
        let error = from_data_dir(dir.path()).unwrap_err().to_string();
        assert!(error.contains(KEY_FILE) && error.contains("32 bytes"), "{error}");
        assert_eq!(fs::read_to_string(dir.path().join(KEY_FILE)).unwrap(), "short");
    }
}
