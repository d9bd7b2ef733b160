//! Where a path leads, and whether that is in one of the roots.
//!
//! The kernel follows what there is to follow, for the agent's user, and is then asked where it came to (`/proc/self/fd`): so
//! no symlink, no `..` and no race can lead to another file than the one that was looked at. Everything after that goes by the
//! open directory, and not by the path.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use kandev_helper::wire::Reason;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, mkdirat, openat, readlinkat, statat};
use rustix::io::Errno;

use crate::failure::{Failure, Result};

/// As many as the kernel follows.
const MAX_LINKS: usize = 40;

/// A name in an open directory. It is no symlink.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) dir: OwnedFd,
    pub(crate) name: OsString,
    /// What is there.
    pub(crate) stat: Option<Stat>,
}

/// Where `path` leads; to be written, the directories on the way are made.
pub(crate) fn locate(path: &str, roots: &[String], make_parents: bool) -> Result<Place> {
    if !path.starts_with('/') {
        return Err(Failure::new(Reason::InvalidPath, "the path must be absolute"));
    }
    if path.contains('\0') {
        return Err(Failure::new(Reason::InvalidPath, "the path has a NUL"));
    }
    let roots: Vec<PathBuf> = roots
        .iter()
        .filter_map(|root| Path::new(root).canonicalize().ok())
        .collect();
    let mut path = PathBuf::from(path);
    for _ in 0..MAX_LINKS {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Failure::new(Reason::NotAFile, "is a directory"));
        };
        let dir = match open_dir(parent) {
            Err(Errno::NOENT) if make_parents => make(parent, &roots)?,
            opened => opened?,
        };
        let real = real_path(&dir)?;
        let stat = match statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(error.into()),
        };
        if stat.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink) {
            let target = readlinkat(&dir, name, Vec::new())?;
            path = real.join(OsString::from_vec(target.into_bytes()));
            continue;
        }
        check_inside(&real.join(name), &roots)?;
        let name = name.to_owned();
        return Ok(Place { dir, name, stat });
    }
    Err(Errno::LOOP.into())
}

fn check_inside(path: &Path, roots: &[PathBuf]) -> Result<()> {
    if roots.iter().any(|root| path.starts_with(root)) {
        return Ok(());
    }
    let message = "is outside of the directories that the agent may use through its client";
    Err(Failure::new(Reason::OutsideRoots, message))
}

fn open_dir(path: &Path) -> std::result::Result<OwnedFd, Errno> {
    openat(
        CWD,
        path,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

/// Where an open file or directory is.
fn real_path(fd: impl AsFd) -> Result<PathBuf> {
    let target = readlinkat(CWD, by_descriptor(fd), Vec::new())?;
    Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
}

/// A path to an open file.
pub(crate) fn by_descriptor(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// Makes the directories that are missing, below one that is in a root.
fn make(path: &Path, roots: &[PathBuf]) -> Result<OwnedFd> {
    let mut missing: Vec<&OsStr> = Vec::new();
    let mut above = path;
    let mut dir = loop {
        match (above.components().next_back(), above.parent()) {
            (Some(Component::Normal(name)), Some(parent)) => {
                missing.push(name);
                above = parent;
            }
            // Where `..` of something missing leads nobody knows.
            _ => return Err(Errno::NOENT.into()),
        }
        match open_dir(above) {
            Err(Errno::NOENT) => {}
            opened => break opened?,
        }
    };
    check_inside(&real_path(&dir)?, roots)?;
    for name in missing.into_iter().rev() {
        match mkdirat(&dir, name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        dir = openat(&dir, name, flags, Mode::empty())?;
    }
    Ok(dir)
}
