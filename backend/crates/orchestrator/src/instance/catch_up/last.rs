//! The last lines of one pipe that are stored, by their marks.

use kandev_store::journal::StoredLine;

use super::super::marks::mark;

/// Marks of consecutive lines, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct LastMarks {
    /// The first one's number.
    pub(super) first: u64,
    pub(super) marks: Vec<Option<u64>>,
}

impl LastMarks {
    /// Of the last `most` lines up to number `stored`, but none before number `from`.
    pub(super) fn new(known: &[StoredLine], stored: u64, most: u64, from: u64) -> Self {
        let oldest = known.first().map_or(stored + 1, |line| line.number);
        let first = oldest.max((stored + 1).saturating_sub(most)).max(from);
        let mut marks = vec![None; (stored + 1).saturating_sub(first) as usize];
        for line in known {
            let index = line.number.checked_sub(first);
            if let Some(place) = index.and_then(|n| marks.get_mut(n as usize)) {
                *place = Some(line.mark);
            }
        }
        if marks.iter().all(Option::is_none) {
            marks.clear();
        }
        Self { first, marks }
    }

    /// Whether this, or what begins with it, may be the line of that number. One that is not known may be anything.
    pub(super) fn may_be(&self, number: u64, line: &[u8]) -> bool {
        let index = number.checked_sub(self.first);
        let known = index.and_then(|n| self.marks.get(n as usize)).copied().flatten();
        known.is_none_or(|known| known == mark(line))
    }
}

#[cfg(test)]
mod tests {
    use kandev_domain::{Clock as _, SystemClock};

    use super::*;

    #[test]
    fn a_line_is_known_by_its_number_and_text() {
        let at = SystemClock.now();
        let known = [(3, "c"), (6, "f"), (7, "g\r")].map(|(number, text)| StoredLine {
            number,
            at,
            mark: mark(text.as_bytes()),
        });
        let last = LastMarks::new(&known, 7, 5, 0);
        assert_eq!(last.first, 3);
        assert!(last.may_be(3, b"c\n") && !last.may_be(3, b"x"));
        assert!(last.may_be(4, b"anything") && last.may_be(2, b"anything") && last.may_be(8, b"anything"));
        assert!(last.may_be(7, b"g") && !last.may_be(7, b"f"));
        let last = LastMarks::new(&known, 7, 2, 0);
        assert!(last.may_be(3, b"x") && !last.may_be(6, b"x"));
        let last = LastMarks::new(&known, 7, 5, 7);
        assert!(last.may_be(6, b"x") && !last.may_be(7, b"x"));
    }
}
