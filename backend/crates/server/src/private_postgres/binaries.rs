//! Finds PostgreSQL's server programs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Command;

use super::{PrivatePostgresError, Result};

/// What one `--version` may take.
const LIMIT: Duration = Duration::from_secs(10);

/// A directory with `initdb` and `postgres`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Binaries {
    dir: PathBuf,
    major: u32,
}

impl Binaries {
    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The first of the candidates, or the first of the wanted major version.
    pub(super) async fn find(cluster: &Path, wanted: Option<u32>) -> Result<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
        dirs.extend(output("pg_config".as_ref(), "--bindir").await.map(PathBuf::from));
        dirs.extend(versioned(Path::new("/usr/lib/postgresql")));
        Self::pick(&dirs, cluster, wanted).await
    }

    async fn pick(dirs: &[PathBuf], cluster: &Path, wanted: Option<u32>) -> Result<Self> {
        let mut found = Vec::new();
        for dir in dirs
            .iter()
            .filter(|dir| dir.join("initdb").is_file() && dir.join("postgres").is_file())
        {
            let version = output(&dir.join("postgres"), "--version").await;
            let Some(major) = version.as_deref().and_then(major) else {
                continue;
            };
            if wanted.is_none_or(|wanted| wanted == major) {
                return Ok(Self {
                    dir: dir.clone(),
                    major,
                });
            }
            found.push(major.to_string());
        }
        found.dedup();
        Err(match wanted {
            Some(wanted) if !found.is_empty() => PrivatePostgresError::WrongVersion {
                data: cluster.to_owned(),
                wanted,
                found: found.join(", "),
            },
            _ => PrivatePostgresError::NoBinaries,
        })
    }
}

/// `<root>/<version>/bin`, newest first.
fn versioned(root: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    let mut versions: Vec<(u32, PathBuf)> = entries
        .filter_map(|entry| {
            Some((
                entry.file_name().to_str()?.parse().ok()?,
                entry.path().join("bin"),
            ))
        })
        .collect();
    versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    versions.into_iter().map(|(_, dir)| dir).collect()
}

async fn output(program: &Path, argument: &str) -> Option<String> {
    let run = Command::new(program).arg(argument).kill_on_drop(true).output();
    let output = tokio::time::timeout(LIMIT, run).await.ok()?.ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// 15 of `postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)`.
fn major(version: &str) -> Option<u32> {
    let number = version.split_once("(PostgreSQL) ")?.1;
    number.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn install(root: &Path, version: &str) -> PathBuf {
        let bin = root.join(version).join("bin");
        std::fs::create_dir_all(&bin).unwrap();
        for program in ["initdb", "postgres"] {
            let script = format!("#!/bin/sh\necho 'postgres (PostgreSQL) {version}.3 (Debian)'\n");
            std::fs::write(bin.join(program), script).unwrap();
            std::fs::set_permissions(bin.join(program), PermissionsExt::from_mode(0o755)).unwrap();
        }
        bin
    }

    #[tokio::test]
    async fn the_newest_is_taken_or_the_one_that_fits_the_cluster() {
        let root = tempfile::tempdir().unwrap();
        for version in ["9", "17", "15"] {
            install(root.path(), version);
        }
        std::fs::create_dir_all(root.path().join("18/bin")).unwrap();
        std::fs::create_dir_all(root.path().join("common/bin")).unwrap();
        let dirs = versioned(root.path());
        let pick = async |wanted| Binaries::pick(&dirs, Path::new("/c"), wanted).await;
        assert_eq!(pick(None).await.unwrap().major, 17);
        assert_eq!(pick(Some(15)).await.unwrap().dir, root.path().join("15/bin"));
        let error = pick(Some(14)).await.unwrap_err().to_string();
        assert!(
            error.contains("PostgreSQL 14") && error.contains("17, 15, 9"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn without_any_the_error_says_what_to_install() {
        let empty = tempfile::tempdir().unwrap();
        let error = Binaries::pick(&[empty.path().to_owned()], Path::new("/c"), None)
            .await
            .unwrap_err();
        assert!(
            error.to_string().contains("apt-get install postgresql"),
            "{error}"
        );
    }
}
