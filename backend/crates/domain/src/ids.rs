//! Identifiers. Ours are UUIDv7, so that they sort by age; a task's may be the caller's own.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// A new id, later than every one made before it on this machine.
            #[expect(clippy::disallowed_methods, reason = "the one place that makes ids")]
            pub fn generate() -> Self {
                Self(Uuid::now_v7())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;
            fn from_str(s: &str) -> Result<Self, Self::Err> {
                Uuid::parse_str(s).map(Self)
            }
        }
    };
}

uuid_id! {
    /// One container running one agent type for one task.
    InstanceId
}
uuid_id! {
    /// Our key of a session. The agent's own id (`session_id` in the API) is a string that need
    /// not be unique across agents or even within one.
    SessionKey
}
uuid_id! {
    /// One prompt and everything until its end.
    TurnId
}
uuid_id! {
    /// One command to an instance that another server holds.
    CommandId
}
uuid_id! {
    /// One data directory.
    HomeId
}
uuid_id! {
    /// One permission that an agent asked for. The agent's own id of its request is no key: it may come again.
    PermissionId
}
uuid_id! {
    /// One form or URL that an agent asks people for. The agent's own ids of it are no key.
    ElicitationId
}

uuid_id! {
    /// A file that prompts can name.
    UploadId
}

/// A caller's unit of work. Made by kandev it is a UUIDv7; a caller may bring another name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct TaskId(String);

/// Why a string is no task id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a task id has 1 to 128 characters out of A-Z, a-z, 0-9, '.', '_', ':' and '-'")]
pub struct InvalidTaskId;

impl TaskId {
    /// A new id.
    #[expect(clippy::disallowed_methods, reason = "the one place that makes ids")]
    pub fn generate() -> Self {
        Self(Uuid::now_v7().to_string())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for TaskId {
    type Err = InvalidTaskId;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b':' | b'-');
        if s.is_empty() || s.len() > 128 || !s.bytes().all(legal) {
            return Err(InvalidTaskId);
        }
        Ok(Self(s.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_ids_sort_by_age() {
        let ids: Vec<_> = (0..100).map(|_| InstanceId::generate()).collect();
        let mut sorted = ids.clone();
        sorted.sort();
        assert_eq!(ids, sorted);
    }

    #[test]
    fn task_ids_are_checked() {
        assert!("0198c0de-0000-7000-8000-000000000001".parse::<TaskId>().is_ok());
        assert!("PROJ-12.a_b:c".parse::<TaskId>().is_ok());
        for bad in ["", "a b", "a/b", "é", &"x".repeat(129)] {
            assert_eq!(bad.parse::<TaskId>(), Err(InvalidTaskId), "{bad}");
        }
    }
}
