//! Who a container runs as, in numbers.
//!
//! The engine could give a new file to the container's user by itself (`copyUIDGID`), but Docker looks the user up in
//! the passwd database of its *host*, and fails when it is not there.
//!
//! Source: `User` of `POST /containers/create` of the Docker Engine API reference, passwd(5), group(5).

/// Whether [`resolve`] needs the container's passwd and group files.
pub(super) fn needs_files(user: &str) -> bool {
    let (user, group) = split(user);
    let user_is_plain = user.is_empty() || is_number(user);
    let group_is_plain = group.map_or(user.is_empty() || user == "0", is_number);
    !(user_is_plain && group_is_plain)
}

/// The user and group ids of `name|uid[:group|gid]`, in the way the engine does it: a number without an entry has group
/// 0. A name without an entry, with which no container starts, counts as root.
pub(super) fn resolve(user: &str, passwd: &str, group: &str) -> (u64, u64) {
    let (user, group_name) = split(user);
    let entry = passwd
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|fields| fields.len() >= 4 && (fields[0] == user || fields[2] == user));
    let of_entry = |field: usize| entry.as_ref().and_then(|fields| fields[field].parse().ok());
    let uid = user.parse().ok().or_else(|| of_entry(2)).unwrap_or(0);
    let gid = match group_name {
        Some(name) => name.parse().ok().or_else(|| group_id(name, group)),
        None => of_entry(3),
    };
    (uid, gid.unwrap_or(0))
}

/// The groups that the user is a member of beside the one of [`resolve`].
pub(super) fn more_groups(user: &str, passwd: &str, group: &str) -> Vec<u64> {
    let (user, _) = split(user);
    let mut entries = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let name = entries.find(|fields| fields.len() >= 3 && (fields[0] == user || fields[2] == user));
    let Some(name) = name.map(|fields| fields[0]) else {
        return Vec::new();
    };
    let groups = group.lines().map(|line| line.split(':').collect::<Vec<_>>());
    groups
        .filter(|fields| fields.len() >= 4 && fields[3].split(',').any(|member| member == name))
        .filter_map(|fields| fields[2].parse().ok())
        .collect()
}

fn split(user: &str) -> (&str, Option<&str>) {
    match user.split_once(':') {
        Some((user, "")) => (user, None),
        Some((user, group)) => (user, Some(group)),
        None => (user, None),
    }
}

fn is_number(text: &str) -> bool {
    text.parse::<u64>().is_ok()
}

fn group_id(name: &str, group: &str) -> Option<u64> {
    group
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|fields| fields.len() >= 3 && fields[0] == name)
        .and_then(|fields| fields[2].parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnode:x:1000:1001::/home/node:/bin/sh\nbroken\n";
    const GROUP: &str = "root:x:0:\nstaff:x:50:node\n";

    #[test]
    fn names_and_numbers() {
        for (user, ids) in [
            ("", (0, 0)),
            ("node", (1000, 1001)),
            ("1000", (1000, 1001)),
            ("node:staff", (1000, 50)),
            ("node:7", (1000, 7)),
            ("1234", (1234, 0)),
            ("1234:5678", (1234, 5678)),
            ("1234:", (1234, 0)),
            ("nobody", (0, 0)),
        ] {
            assert_eq!(resolve(user, PASSWD, GROUP), ids, "{user:?}");
        }
    }

    #[test]
    fn membership_is_by_name() {
        for user in ["node", "1000", "node:7"] {
            assert_eq!(more_groups(user, PASSWD, GROUP), [50], "{user}");
        }
        for user in ["", "root", "1234", "nod"] {
            assert!(more_groups(user, PASSWD, GROUP).is_empty(), "{user}");
        }
    }

    #[test]
    fn plain_numbers_need_no_files() {
        for user in ["", "0", "1234:5678"] {
            assert!(!needs_files(user), "{user:?}");
        }
        for user in ["node", "1000", "1000:staff", "node:5", "0:staff"] {
            assert!(needs_files(user), "{user:?}");
        }
    }
}
