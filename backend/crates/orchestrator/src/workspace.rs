//! Which directories an agent may work on.

use std::path::{Path, PathBuf};

use crate::settings::Settings;

/// Directories that belong to the system: neither they nor anything in them is a workspace.
const SYSTEM: [&str; 14] = [
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
    "/var/lib/docker",
    "/var/run",
];

/// Why a path is no workspace. Every message is for the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkspaceError {
    /// Relative, or with a NUL.
    #[error("the workspace must be an absolute path")]
    NotAbsolute,
    /// Not there.
    #[error("the workspace does not exist")]
    Missing,
    /// A file, say.
    #[error("the workspace is not a directory")]
    NotADirectory,
    /// Not readable by kandev.
    #[error("the workspace cannot be looked at: {0}")]
    Unreadable(String),
    /// A system directory, or kandev's own.
    #[error("the workspace is a directory that no agent may see")]
    Forbidden,
    /// Not under a root, once symbolic links are followed.
    #[error("the workspace is not under a configured root")]
    OutsideRoots,
}

/// The directory behind `path`, its links followed, if an agent may work on it. Reads the file system.
pub fn resolve(path: &str, settings: &Settings) -> Result<PathBuf, WorkspaceError> {
    if !path.starts_with('/') || path.contains('\0') {
        return Err(WorkspaceError::NotAbsolute);
    }
    let resolved = match Path::new(path).canonicalize() {
        Ok(resolved) => resolved,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Err(WorkspaceError::Missing),
        Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => return Err(WorkspaceError::NotADirectory),
        Err(e) => return Err(WorkspaceError::Unreadable(e.to_string())),
    };
    if is_forbidden(&resolved, settings) {
        return Err(WorkspaceError::Forbidden);
    }
    if !resolved.is_dir() {
        return Err(WorkspaceError::NotADirectory);
    }
    let inside = settings.workspace_roots.iter().any(|root| {
        let root = root.canonicalize().unwrap_or_else(|_| root.clone());
        resolved.starts_with(root)
    });
    if inside {
        Ok(resolved)
    } else {
        Err(WorkspaceError::OutsideRoots)
    }
}

fn is_forbidden(path: &Path, settings: &Settings) -> bool {
    let data_dir = settings
        .data_dir
        .canonicalize()
        .unwrap_or_else(|_| settings.data_dir.clone());
    let shows_own_data = data_dir.starts_with(path);
    let own = ["postgres", "run", "secret.key"]
        .iter()
        .any(|part| path.starts_with(data_dir.join(part)));
    path == Path::new("/") || SYSTEM.iter().any(|system| path.starts_with(system)) || shows_own_data || own
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn settings(root: &Path) -> Settings {
        Settings {
            workspace_roots: vec![root.join("roots")],
            data_dir: root.join("roots/data"),
            ..Settings::default()
        }
    }

    #[test]
    fn only_directories_under_a_root_pass() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let s = settings(&root);
        for made in [
            "roots/a/b",
            "roots/data/postgres",
            "roots/data/work",
            "roots-not",
            "outside",
        ] {
            std::fs::create_dir_all(root.join(made)).unwrap();
        }
        std::fs::write(root.join("roots/file"), "").unwrap();
        symlink(root.join("outside"), root.join("roots/escape")).unwrap();
        symlink("/etc", root.join("roots/etc")).unwrap();
        let check = |p: &str| resolve(&root.join(p).to_string_lossy(), &s);
        assert_eq!(check("roots/a/b"), Ok(root.join("roots/a/b")));
        assert_eq!(check("roots/a/../a"), Ok(root.join("roots/a")));
        assert_eq!(check("roots/data/work"), Ok(root.join("roots/data/work")));
        assert_eq!(check("roots/missing"), Err(WorkspaceError::Missing));
        assert_eq!(check("roots/file"), Err(WorkspaceError::NotADirectory));
        assert_eq!(check("roots/file/x"), Err(WorkspaceError::NotADirectory));
        assert_eq!(check("roots/escape"), Err(WorkspaceError::OutsideRoots));
        assert_eq!(check("roots/a/../../outside"), Err(WorkspaceError::OutsideRoots));
        assert_eq!(
            check("roots-not"),
            Err(WorkspaceError::OutsideRoots),
            "a shared prefix is not a parent"
        );
        assert_eq!(check("roots/etc"), Err(WorkspaceError::Forbidden));
        assert_eq!(check("roots/data"), Err(WorkspaceError::Forbidden));
        assert_eq!(
            check("roots"),
            Err(WorkspaceError::Forbidden),
            "it would show the data directory"
        );
        assert_eq!(check("roots/data/postgres"), Err(WorkspaceError::Forbidden));
        assert_eq!(resolve("relative", &s), Err(WorkspaceError::NotAbsolute));
        assert_eq!(resolve("/", &s), Err(WorkspaceError::Forbidden));
        assert_eq!(resolve("/etc", &s), Err(WorkspaceError::Forbidden));
        assert_eq!(resolve("/proc/self", &s), Err(WorkspaceError::Forbidden));
    }
}
