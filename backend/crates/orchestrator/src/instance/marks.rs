//! What lines of output are known again by, in the engine's log and in the journal.

use kandev_runtime::Channel;
use serde::{Deserialize, Serialize};

/// How many bytes of a line make its mark. All of them are in the first piece that the engine's log cuts of a line, and in
/// what is kept of a line that is too long.
const ENOUGH: usize = 1024;
/// How many lines tell one beginning from another: the answers to the first requests are among them.
const HEAD: usize = 8;

/// A line's mark: the same whether it was seen live or read from the engine's log, which has U+FFFD for each byte that is
/// not UTF-8. FNV-1a, stable across versions of everything; who prints two lines with one mark only misleads about itself.
pub(super) fn mark(line: &[u8]) -> u64 {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut taken = 0;
    let valid = line.utf8_chunks().flat_map(|chunk| chunk.valid().chars());
    for character in valid.filter(|c| *c != char::REPLACEMENT_CHARACTER) {
        for byte in character.encode_utf8(&mut [0; 4]).bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        taken += character.len_utf8();
        if taken >= ENOUGH {
            break;
        }
    }
    hash
}

/// The marks of a container's first lines, of both pipes, in the order in which they came.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Head(Vec<(Pipe, u64)>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Pipe {
    Stdout,
    Stderr,
}

impl From<Channel> for Pipe {
    fn from(channel: Channel) -> Self {
        match channel {
            Channel::Stdout => Self::Stdout,
            Channel::Stderr => Self::Stderr,
        }
    }
}

impl Head {
    /// Takes the next line.
    pub(super) fn see(&mut self, channel: Channel, line: &[u8]) {
        if self.0.len() < HEAD {
            self.0.push((channel.into(), mark(line)));
        }
    }

    /// The beginning of a container that says only this.
    #[cfg(test)]
    pub(super) fn starting_with(line: &str) -> Self {
        let mut head = Self::default();
        head.see(Channel::Stdout, line.as_bytes());
        head
    }

    /// The marks of one pipe.
    pub(super) fn of(&self, channel: Channel) -> impl Iterator<Item = u64> {
        let pipe = Pipe::from(channel);
        self.0
            .iter()
            .filter(move |(p, _)| *p == pipe)
            .map(|(_, mark)| *mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_outlasts_what_the_log_does_to_a_line() {
        let log = |live: &[u8]| String::from_utf8_lossy(live).into_owned().into_bytes();
        for live in [
            &b"{\"id\":1}"[..],
            b"a\xffb\xc3",
            b"",
            b"\xef\xbf\xbd!",
            "né".as_bytes(),
        ] {
            assert_eq!(mark(live), mark(&log(live)), "{live:?}");
            assert_eq!(mark(live), mark(&[live, b"\r\n"].concat()), "{live:?}");
        }
        assert_ne!(mark(b"a"), mark(b"b"));
        let long = "é".repeat(20_000);
        assert_eq!(mark(long.as_bytes()), mark(&long.as_bytes()[..4095]));
    }
}
