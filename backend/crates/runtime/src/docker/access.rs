//! Whether a container's user may enter the directory of the host that the container begins in. The kernel says so only at the
//! agent's first access, which may be hours after its launch.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::client::Client;
use super::files::{self, Account};
use super::lifecycle::{self, Inspected};
use crate::error::{Result, RuntimeError};
use crate::types::ContainerId;

/// To look at what is in a directory and to enter it: both are needed.
const ENTER: u32 = 0o5;

/// Refuses a container whose user may not enter its working directory. What cannot be known is let pass: directories that are
/// not there for kandev, those with access control lists, and engines whose containers' user ids are not the host's.
pub(super) async fn check(client: &Client, id: &ContainerId) -> Result<()> {
    let inspected = lifecycle::inspect(client, id).await?;
    let Some(source) = working_directory(&inspected) else {
        return Ok(());
    };
    let account = files::account(client, id, &inspected.user).await?;
    if account.uid == 0 {
        return Ok(());
    }
    let path = source.to_owned();
    let looked = tokio::task::spawn_blocking(move || refusal(Path::new(&path), &account)).await;
    let Ok(Some(message)) = looked else {
        return Ok(());
    };
    if lifecycle::maps_users(client).await? {
        return Ok(());
    }
    Err(RuntimeError::NoAccess(message))
}

/// The host's directory that the working directory is.
fn working_directory(inspected: &Inspected) -> Option<&str> {
    let found = inspected
        .binds
        .iter()
        .find(|(_, to)| *to == inspected.working_dir);
    found.map(|(source, _)| source.as_str())
}

/// Why the account may not enter.
fn refusal(path: &Path, account: &Account) -> Option<String> {
    let found = path.metadata().ok()?;
    let mode = found.mode();
    let class = if u64::from(found.uid()) == account.uid {
        mode >> 6
    } else if account.gids.contains(&u64::from(found.gid())) {
        mode >> 3
    } else {
        mode
    };
    if class & ENTER == ENTER || has_acl(path) {
        return None;
    }
    Some(format!(
        "{} belongs to user {} and group {} with mode {:04o}, and the agent's user {} may not enter it",
        path.display(),
        found.uid(),
        found.gid(),
        mode & 0o7777,
        account.uid
    ))
}

fn has_acl(path: &Path) -> bool {
    rustix::fs::getxattr(path, "system.posix_acl_access", &mut [0_u8; 0][..]).is_ok_and(|size| size > 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_class_that_the_account_is_of_decides() {
        let dir = tempfile::tempdir().unwrap();
        let owner = dir.path().metadata().unwrap();
        let (uid, gid) = (u64::from(owner.uid()), u64::from(owner.gid()));
        let of = |uid, gid| Account { uid, gids: vec![gid] };
        let (its, groups, others) = (of(uid, 77), of(uid + 1, gid), of(uid + 1, gid + 1));
        for (mode, may) in [
            (0o700, [true, false, false]),
            (0o750, [true, true, false]),
            (0o755, [true, true, true]),
            (0o075, [false, true, true]),
            (0o711, [true, false, false]),
        ] {
            std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            let found = [&its, &groups, &others].map(|account| refusal(dir.path(), account).is_none());
            assert_eq!(found, may, "{mode:o}");
        }
        assert_eq!(refusal(&dir.path().join("missing"), &others), None);
    }
}
