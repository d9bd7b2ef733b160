//! Which directories an agent may work on.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

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

/// Why a file of a workspace cannot be used. Completes the sentence "the file …".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileProblem {
    /// Not there, or not in it once links are followed: nobody is told which.
    #[error("is not in the workspace")]
    Missing,
    /// A directory, a pipe.
    #[error("is no file")]
    NotAFile,
    /// Over the limit.
    #[error("has more than {limit} bytes")]
    TooLarge {
        /// In bytes.
        limit: u64,
    },
    /// Not readable by kandev.
    #[error("cannot be read: {0}")]
    Unreadable(String),
}

/// A file of a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// Within the workspace, links followed.
    pub(crate) path: PathBuf,
    /// In bytes.
    pub(crate) size: u64,
    /// What is in it, if that was asked for.
    pub(crate) bytes: Option<Vec<u8>>,
}

/// Looks at a file of a resolved workspace, and reads it where it is to be at most so large. Reads the file system.
pub(crate) fn read(workspace: &Path, path: &str, limit: Option<u64>) -> Result<Found, FileProblem> {
    let unreadable = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => FileProblem::Missing,
        _ => FileProblem::Unreadable(e.kind().to_string()),
    };
    let real = workspace.join(path).canonicalize().map_err(unreadable)?;
    if !real.starts_with(workspace) {
        return Err(FileProblem::Missing);
    }
    // A pipe would be waited for.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(&real, flags, Mode::empty()).map_err(|e| unreadable(e.into()))?;
    let file = File::from(file);
    // What was opened is what counts, whatever has become of the path meanwhile.
    let opened = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(unreadable)?;
    let Ok(inside) = opened.strip_prefix(workspace) else {
        return Err(FileProblem::Missing);
    };
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(FileProblem::NotAFile);
    }
    let mut found = Found {
        path: inside.to_owned(),
        size: metadata.len(),
        bytes: None,
    };
    if let Some(limit) = limit {
        let mut bytes = Vec::new();
        file.take(limit + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > limit {
            return Err(FileProblem::TooLarge { limit });
        }
        found.size = bytes.len() as u64;
        found.bytes = Some(bytes);
    }
    Ok(found)
}

/// A path as part of a URI (RFC 3986, "path").
pub(crate) fn uri_path(path: &str) -> String {
    use std::fmt::Write as _;
    let mut uri = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(uri, "%{byte:02X}");
        }
    }
    uri
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

    #[test]
    fn only_files_in_the_workspace_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let workspace = root.join("w");
        std::fs::create_dir_all(workspace.join("sub")).unwrap();
        std::fs::create_dir(root.join("w-not")).unwrap();
        for (name, text) in [("w/sub/a b", "ab"), ("secret", "s"), ("w-not/x", "x")] {
            std::fs::write(root.join(name), text).unwrap();
        }
        symlink("sub/a b", workspace.join("link")).unwrap();
        symlink(root.join("secret"), workspace.join("escape")).unwrap();
        symlink(&root, workspace.join("up")).unwrap();
        symlink("loop", workspace.join("loop")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            workspace.join("pipe"),
            rustix::fs::FileType::Fifo,
            Mode::RUSR,
            0,
        )
        .unwrap();
        let found = |path: &str, limit| read(&workspace, path, limit);
        let expected = Found {
            path: "sub/a b".into(),
            size: 2,
            bytes: Some(b"ab".to_vec()),
        };
        for path in ["sub/a b", "link", "./sub/../link", "sub//a b"] {
            assert_eq!(found(path, Some(2)), Ok(expected.clone()), "{path}");
        }
        assert_eq!(found("link", None).unwrap().bytes, None);
        assert_eq!(found("link", Some(1)), Err(FileProblem::TooLarge { limit: 1 }));
        for path in [
            "escape",
            "up/secret",
            "../secret",
            "../w-not/x",
            "missing",
            "sub/a b/x",
        ] {
            assert_eq!(found(path, None), Err(FileProblem::Missing), "{path}");
        }
        let absolute = root.join("secret");
        assert_eq!(found(absolute.to_str().unwrap(), None), Err(FileProblem::Missing));
        for path in ["sub", "pipe", "."] {
            assert_eq!(found(path, Some(9)), Err(FileProblem::NotAFile), "{path}");
        }
        assert!(matches!(found("loop", None), Err(FileProblem::Unreadable(_))));
        assert_eq!(uri_path("/a b/ä?#%"), "/a%20b/%C3%A4%3F%23%25");
    }
}
