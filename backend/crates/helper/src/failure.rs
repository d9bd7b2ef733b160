//! Why something was not done.

use kandev_helper::wire::{Reason, Reply};
use rustix::io::Errno;

/// For programs, and for people.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) Reason, pub(crate) String);

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self(reason, message.into())
    }
}

impl From<Errno> for Failure {
    fn from(error: Errno) -> Self {
        let reason = match error {
            Errno::NOENT | Errno::NOTDIR => Reason::NotFound,
            Errno::ACCESS | Errno::PERM => Reason::PermissionDenied,
            Errno::ROFS => Reason::ReadOnly,
            Errno::NOSPC | Errno::DQUOT => Reason::NoSpace,
            Errno::LOOP | Errno::NAMETOOLONG | Errno::INVAL => Reason::InvalidPath,
            Errno::ISDIR => Reason::NotAFile,
            _ => Reason::Io,
        };
        Self(reason, words(&std::io::Error::from(error)))
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        match Errno::from_io_error(&error) {
            Some(errno) => errno.into(),
            None => Self(Reason::Io, error.to_string()),
        }
    }
}

impl From<Failure> for Reply {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure.0, failure.1)
    }
}

/// Without the number that Rust adds.
fn words(error: &std::io::Error) -> String {
    let text = error.to_string();
    let end = text.find(" (os error").unwrap_or(text.len());
    text[..end].to_lowercase()
}
