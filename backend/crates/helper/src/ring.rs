//! The newest bytes of an output.

use std::collections::VecDeque;

/// Keeps the newest bytes of all that was put in.
#[derive(Debug)]
pub(crate) struct Ring {
    bytes: VecDeque<u8>,
    keep: usize,
    total: u64,
}

impl Ring {
    pub(crate) fn new(keep: usize) -> Self {
        Self {
            bytes: VecDeque::new(),
            keep,
            total: 0,
        }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let bytes = &bytes[bytes.len().saturating_sub(self.keep)..];
        let too_many = (self.bytes.len() + bytes.len()).saturating_sub(self.keep);
        self.bytes.drain(..too_many);
        self.bytes.extend(bytes);
    }

    /// How many bytes there have been.
    pub(crate) const fn total(&self) -> u64 {
        self.total
    }

    /// The newest bytes, at most so many.
    pub(crate) fn newest(&self, most: usize) -> Vec<u8> {
        let skip = self.bytes.len().saturating_sub(most);
        self.bytes.iter().skip(skip).copied().collect()
    }

    /// What comes after the offset `from`, at most so many bytes, or after what of it is gone: with its offset.
    pub(crate) fn after(&self, from: u64, most: usize) -> (u64, Vec<u8>) {
        let oldest = self.total - self.bytes.len() as u64;
        let from = from.clamp(oldest, self.total);
        let skip = (from - oldest) as usize;
        (from, self.bytes.iter().skip(skip).take(most).copied().collect())
    }
}

/// How many bytes at the end may be the beginning of a character that is still to come.
pub(crate) fn unfinished(bytes: &[u8]) -> usize {
    let end = &bytes[bytes.len().saturating_sub(4)..];
    match end.utf8_chunks().last() {
        // An invalid piece at the very end that the next byte could still make a character of.
        Some(last) if !last.invalid().is_empty() => match std::str::from_utf8(last.invalid()) {
            Err(error) if error.error_len().is_none() => last.invalid().len(),
            _ => 0,
        },
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_bytes_are_kept_and_counted() {
        let mut ring = Ring::new(4);
        for piece in ["a", "bc", "", "def", "0123456789"] {
            ring.push(piece.as_bytes());
        }
        assert_eq!((ring.newest(9), ring.total()), (b"6789".to_vec(), 16));
        assert_eq!(ring.newest(2), b"89");
        assert_eq!(ring.after(0, 9), (12, b"6789".to_vec()));
        assert_eq!(ring.after(13, 2), (13, b"78".to_vec()));
        assert_eq!(ring.after(99, 2), (16, vec![]));
        let mut none = Ring::new(0);
        none.push(b"abc");
        assert_eq!((none.newest(9), none.total()), (vec![], 3));
    }

    #[test]
    fn a_character_that_is_still_to_come_is_known() {
        let text = "aé語🦀".as_bytes();
        for (end, unfinished_bytes) in [
            (1, 0),
            (2, 1),
            (3, 0),
            (4, 1),
            (5, 2),
            (6, 0),
            (8, 2),
            (9, 3),
            (10, 0),
        ] {
            assert_eq!(unfinished(&text[..end]), unfinished_bytes, "{end}");
        }
        assert_eq!(unfinished(b"a\xff"), 0);
        assert_eq!(unfinished(b""), 0);
    }
}
