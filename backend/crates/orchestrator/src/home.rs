//! Which runs of servers with the same data directory still live.
//!
//! A run holds a lock of the kernel's on a file of its own there, from before it can be found until its process ends, by
//! whatever means. So another server with the same directory (its successor after `kill -9`, mostly) need not wait for
//! the lease to run out: who gets the lock knows. What cannot be known this way is left to the lease.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use kandev_domain::HomeId;
use kandev_store::Fence;

/// The directory of the locks.
const FOLDER: &str = "servers";
/// The file with the directory's own id.
const ID_FILE: &str = "id";

/// A data directory.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    folder: PathBuf,
    /// Tells directories of the same path apart.
    pub(crate) id: HomeId,
}

/// Held as long as the run lives.
#[derive(Debug)]
pub(crate) struct Alive {
    path: PathBuf,
    _lock: File,
}

impl Home {
    /// Opens a data directory, and gives it its id at the first time.
    pub(crate) fn open(data_dir: &Path) -> io::Result<Self> {
        let folder = data_dir.join(FOLDER);
        fs::create_dir_all(&folder)?;
        let path = folder.join(ID_FILE);
        let id = match read_id(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Whole or not at all: two servers at once both end with the same.
                let draft = folder.join(format!("{}.new", HomeId::generate()));
                let mut file = File::create(&draft)?;
                file.write_all(HomeId::generate().to_string().as_bytes())?;
                file.sync_all()?;
                let linked = fs::hard_link(&draft, &path);
                fs::remove_file(&draft)?;
                match linked {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                    _ => read_id(&path)?,
                }
            }
            read => read?,
        };
        Ok(Self { folder, id })
    }

    fn path(&self, fence: Fence) -> PathBuf {
        self.folder.join(format!("{fence}.lock"))
    }

    /// Shows that a run lives.
    pub(crate) fn show(&self, fence: Fence) -> io::Result<Alive> {
        // Locked before it has its name: who finds it finds it locked.
        let draft = self.folder.join(format!("{}.new", HomeId::generate()));
        let lock = File::create(&draft)?;
        lock.lock()?;
        let path = self.path(fence);
        fs::rename(&draft, &path)?;
        Ok(Alive { path, _lock: lock })
    }

    /// True if a run is known to have ended.
    pub(crate) fn has_ended(&self, fence: Fence) -> bool {
        let path = self.path(fence);
        let Ok(file) = OpenOptions::new().read(true).write(true).open(&path) else {
            return false;
        };
        match file.try_lock() {
            Ok(()) => {
                // It says no more than the database will in a moment.
                let _ = fs::remove_file(&path);
                true
            }
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => false,
        }
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn read_id(path: &Path) -> io::Result<HomeId> {
    let text = fs::read_to_string(path)?;
    text.trim().parse().map_err(|error| {
        let message = format!("{}: {error}", path.display());
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_lives_until_its_lock_goes() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::open(dir.path()).unwrap();
        assert_eq!(Home::open(dir.path()).unwrap().id, home.id);
        let alive = home.show(Fence(3)).unwrap();
        assert!(!home.has_ended(Fence(3)) && !home.has_ended(Fence(4)));
        // As the kernel does it for a process that was killed: the lock goes, the file stays.
        let path = alive.path.clone();
        let copy = dir.path().join("copy");
        fs::hard_link(&path, &copy).unwrap();
        drop(alive);
        fs::rename(&copy, &path).unwrap();
        assert!(home.has_ended(Fence(3)));
        assert!(!home.has_ended(Fence(3)), "it is told once");
    }

    #[test]
    fn directories_differ() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let ids = dirs.each_ref().map(|dir| Home::open(dir.path()).unwrap().id);
        assert_ne!(ids[0], ids[1]);
    }
}
