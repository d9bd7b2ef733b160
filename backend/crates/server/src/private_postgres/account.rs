//! As whom PostgreSQL runs.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use tokio::process::Command;

use super::{AtPath as _, PrivatePostgresError, Result};

/// A user. `change` is false if that is who we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Account {
    uid: u32,
    gid: u32,
    change: bool,
}

impl Account {
    /// Ourselves; as root, the owner of the existing cluster, else `postgres`, else `nobody`.
    pub(super) fn choose(existing: Option<&Metadata>) -> Result<Self> {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        if !uid.is_root() {
            return Ok(Self {
                uid: uid.as_raw(),
                gid: gid.as_raw(),
                change: false,
            });
        }
        if let Some(owner) = existing.filter(|owner| owner.uid() != 0) {
            return Ok(Self {
                uid: owner.uid(),
                gid: owner.gid(),
                change: true,
            });
        }
        let path = Path::new("/etc/passwd");
        Self::of_passwd(&std::fs::read_to_string(path).at(path)?).ok_or(PrivatePostgresError::NoAccount)
    }

    fn of_passwd(passwd: &str) -> Option<Self> {
        ["postgres", "nobody"].iter().find_map(|name| {
            passwd.lines().find_map(|line| {
                let mut fields = line.split(':');
                (fields.next()? == *name).then_some(())?;
                let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
                (uid != 0).then_some(Self {
                    uid,
                    gid,
                    change: true,
                })
            })
        })
    }

    /// True if it is not who we are.
    pub(super) fn is_other(&self) -> bool {
        self.change
    }

    /// Runs the command as this user, without our supplementary groups.
    pub(super) fn apply(&self, command: &mut Command) {
        if self.change {
            command.uid(self.uid).gid(self.gid);
        }
    }

    /// Gives it a file or directory.
    pub(super) fn give(&self, path: &Path) -> Result<()> {
        if self.change {
            std::os::unix::fs::chown(path, Some(self.uid), Some(self.gid)).at(path)
        } else {
            Ok(())
        }
    }

    /// True if it owns this.
    pub(super) fn owns(&self, metadata: &Metadata) -> bool {
        metadata.uid() == self.uid
    }

    /// True if it may pass through a directory of this kind.
    pub(super) fn may_enter(&self, directory: &Metadata) -> bool {
        let needed = if directory.uid() == self.uid {
            0o100
        } else if directory.gid() == self.gid {
            0o010
        } else {
            0o001
        };
        directory.mode() & needed != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postgres_is_preferred_to_nobody_and_root_is_never_taken() {
        let both = "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65533:n:/:/x\npostgres:x:105:110:P:/v:/x\n";
        let of = |uid, gid| {
            Some(Account {
                uid,
                gid,
                change: true,
            })
        };
        assert_eq!(Account::of_passwd(both), of(105, 110));
        assert_eq!(
            Account::of_passwd("nobody:x:65534:65533:n:/:/x"),
            of(65534, 65533)
        );
        for none in [
            "",
            "root:x:0:0::/root:/bin/sh",
            "postgres:x:0:0:::",
            "postgres:x",
            "postgresql:x:1:1:::",
        ] {
            assert_eq!(Account::of_passwd(none), None, "{none}");
        }
    }
}
