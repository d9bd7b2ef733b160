//! Text files: read by lines, and replaced in one step.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use kandev_helper::wire::{ReadFile, Reason, Reply, WriteFile};
use rustix::fs::{
    Access, AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Uid, accessat, fchmod, fchown, fstat, openat,
    renameat, unlinkat,
};
use rustix::io::Errno;

use crate::failure::{Failure, Result};
use crate::paths::{self, Place};

/// What of a mode is not the kind of file.
const PERMISSIONS: u32 = 0o7777;

pub(crate) fn read(wanted: &ReadFile) -> Result<Reply> {
    let place = paths::locate(&wanted.path, &wanted.roots, false)?;
    let (file, stat) = open(&place, OFlags::RDONLY)?;
    let whole = wanted.line <= 1 && wanted.limit.is_none();
    let too_large = || {
        let message = format!(
            "has more than the {} bytes that can be given at once",
            wanted.max_bytes
        );
        Failure::new(Reason::TooLarge, message)
    };
    if whole && u64::try_from(stat.st_size).is_ok_and(|size| size > wanted.max_bytes) {
        return Err(too_large());
    }
    let mut lines = BufReader::with_capacity(64 << 10, file);
    for _ in 1..wanted.line {
        if lines.skip_until(b'\n')? == 0 {
            break;
        }
    }
    // One more, to know that there is more.
    let mut lines = lines.take(wanted.max_bytes.saturating_add(1));
    let mut content = Vec::new();
    match wanted.limit {
        None => drop(lines.read_to_end(&mut content)?),
        Some(limit) => {
            for _ in 0..limit {
                if lines.read_until(b'\n', &mut content)? == 0 {
                    break;
                }
            }
        }
    }
    if content.len() as u64 > wanted.max_bytes {
        return Err(too_large());
    }
    if std::str::from_utf8(&content).is_err() {
        return Err(Failure::new(Reason::NotText, "is not UTF-8 text"));
    }
    Ok(Reply::Content(content))
}

/// Opens what is there, if it is a regular file. Nothing else is even opened: a pipe or a device could do anything then.
fn open(place: &Place, flags: OFlags) -> Result<(File, Stat)> {
    let seen = openat(
        &place.dir,
        &place.name,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let stat = fstat(&seen)?;
    check_regular(&stat)?;
    let file = openat(
        CWD,
        paths::by_descriptor(&seen),
        flags | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    Ok((File::from(file), stat))
}

fn check_regular(stat: &Stat) -> Result<()> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(Failure::new(Reason::NotAFile, "is a directory")),
        _ => Err(Failure::new(Reason::NotAFile, "is not a regular file")),
    }
}

pub(crate) fn write(wanted: &WriteFile) -> Result<Reply> {
    let place = paths::locate(&wanted.path, &wanted.roots, true)?;
    let Some(old) = &place.stat else {
        replace(&place, &wanted.content, None)?;
        return Ok(Reply::Written {
            created: true,
            atomic: true,
        });
    };
    check_regular(old)?;
    // A file that may not be written could still be replaced.
    accessat(&place.dir, &place.name, Access::WRITE_OK, AtFlags::empty())?;
    let atomic = match replace(&place, &wanted.content, Some(old)) {
        Ok(()) => true,
        // Somebody else's file or directory, or one file that is mounted: what the agent could do itself is still possible.
        Err(Errno::PERM | Errno::ACCESS | Errno::BUSY) => {
            overwrite(&place, &wanted.content)?;
            false
        }
        Err(error) => return Err(error.into()),
    };
    Ok(Reply::Written {
        created: false,
        atomic,
    })
}

/// Writes beside the file, and puts that in its place.
fn replace(place: &Place, content: &[u8], old: Option<&Stat>) -> std::result::Result<(), Errno> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = format!(
        ".kandev-{:x}-{:x}.tmp",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    );
    let mode = Mode::from_raw_mode(if old.is_some() { 0o600 } else { 0o666 });
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let new = openat(&place.dir, &name, flags, mode)?;
    let made = fill(new, content, old).and_then(|()| renameat(&place.dir, &name, &place.dir, &place.name));
    if made.is_err() {
        // What cannot be removed either stays; the first error is the one to tell.
        let _ = unlinkat(&place.dir, &name, AtFlags::empty());
    }
    made
}

fn fill(new: OwnedFd, content: &[u8], old: Option<&Stat>) -> std::result::Result<(), Errno> {
    let mut file = File::from(new);
    file.write_all(content)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let Some(old) = old else { return Ok(()) };
    let mode = Mode::from_raw_mode(old.st_mode & PERMISSIONS);
    // While it is still ours.
    fchmod(&file, mode)?;
    let made = fstat(&file)?;
    if (made.st_uid, made.st_gid) != (old.st_uid, old.st_gid) {
        let (user, group) = (Uid::from_raw(old.st_uid), Gid::from_raw(old.st_gid));
        fchown(&file, Some(user), Some(group))?;
        // A new owner may cost bits.
        if fstat(&file)?.st_mode & PERMISSIONS != old.st_mode & PERMISSIONS {
            fchmod(&file, mode)?;
        }
    }
    Ok(())
}

fn overwrite(place: &Place, content: &[u8]) -> Result<()> {
    let (mut file, _) = open(place, OFlags::WRONLY)?;
    file.write_all(content)?;
    file.set_len(content.len() as u64)?;
    Ok(())
}

#[cfg(test)]
mod tests;
