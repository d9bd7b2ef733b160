//! How far the log has been read, when it can only be asked for what is not older than some time.
//!
//! Its entries lie in it in the order in which they were written, while their times are of a little before that: where
//! two pipes write at once, an entry may be older than the one before it. So the log is asked for somewhat more than is
//! new, and as many entries as are known to be in that are passed over, by their times.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

/// How far times may be out of order, in entries and as time.
const ENTRIES: usize = 8192;
const TIME: Duration = Duration::from_secs(1);

/// The times of what was read last.
#[derive(Debug, Default)]
pub(super) struct Seen {
    recent: VecDeque<SystemTime>,
    newest: Option<SystemTime>,
    /// The newest of what is not in `recent` any more.
    gone: Option<SystemTime>,
}

impl Seen {
    /// Takes the next entry's time.
    pub(super) fn push(&mut self, at: SystemTime) {
        self.newest = self.newest.max(Some(at));
        self.recent.push_back(at);
        if self.recent.len() > ENTRIES {
            self.gone = self.gone.max(self.recent.pop_front());
        }
    }

    /// The time of the newest.
    pub(super) const fn newest(&self) -> Option<SystemTime> {
        self.newest
    }

    /// From when on the log has to be asked, and what has to be passed over of the answer. All that is known from then on
    /// is in `recent`.
    pub(super) fn resume(&self) -> (Option<SystemTime>, Known) {
        let enough = self.newest.and_then(|newest| newest.checked_sub(TIME));
        let after_gone = self.gone.map(|gone| gone + Duration::from_nanos(1));
        let since = enough.max(after_gone);
        let times = self
            .recent
            .iter()
            .copied()
            .filter(|at| Some(*at) >= since)
            .collect();
        (since, Known(times))
    }
}

/// Entries that are known.
#[derive(Debug)]
pub(super) struct Known(VecDeque<SystemTime>);

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    /// Read before.
    Known,
    /// Not read before.
    New,
    /// Not read before; and something that was is not there any more, so there may be more that is gone.
    AfterLoss,
}

impl Known {
    /// What the next entry is.
    pub(super) fn next(&mut self, at: SystemTime) -> Entry {
        match self.0.front() {
            None => Entry::New,
            Some(known) if *known == at => {
                self.0.pop_front();
                Entry::Known
            }
            // What is left may begin in the middle of what was read.
            Some(_) => {
                self.0.retain({
                    let mut found = false;
                    move |known| {
                        found |= *known == at;
                        found
                    }
                });
                if self.0.pop_front().is_some() {
                    Entry::Known
                } else {
                    Entry::AfterLoss
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn at(micros: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_000_000) + Duration::from_micros(micros)
    }

    fn new_of(seen: &Seen, log: &[SystemTime]) -> Vec<(SystemTime, Entry)> {
        let (since, mut known) = seen.resume();
        let answer = log.iter().filter(|at| Some(**at) >= since);
        let all: Vec<_> = answer.map(|at| (*at, known.next(*at))).collect();
        all.into_iter()
            .filter(|(_, entry)| *entry != Entry::Known)
            .collect()
    }

    #[test]
    fn entries_that_are_out_of_order_are_read_once() {
        let mut seen = Seen::default();
        // The last one is older than the two before it, and so is the next.
        let log = [at(1), at(5), at(6), at(4), at(3), at(7)];
        log[..4].iter().for_each(|at| seen.push(*at));
        assert_eq!(new_of(&seen, &log), [(at(3), Entry::New), (at(7), Entry::New)]);
        assert_eq!(new_of(&seen, &log[..4]), []);
    }

    #[test]
    fn only_what_is_recent_is_asked_for() {
        let mut seen = Seen::default();
        let log: Vec<_> = (0..3 * ENTRIES as u64).map(at).collect();
        log[..log.len() - 1].iter().for_each(|at| seen.push(*at));
        let (since, known) = seen.resume();
        assert_eq!(known.0.front(), Some(&log[log.len() - 1 - ENTRIES]));
        assert!(since > Some(log[log.len() - 2 - ENTRIES]) && since <= known.0.front().copied());
        assert_eq!(new_of(&seen, &log), [(log[log.len() - 1], Entry::New)]);
    }

    #[test]
    fn what_went_between_two_passes_is_noticed() {
        let mut seen = Seen::default();
        let log: Vec<_> = (0..10).map(at).collect();
        log[..6].iter().for_each(|at| seen.push(*at));
        // Only what is known went; then more than that.
        assert_eq!(new_of(&seen, &log[3..]).len(), 4);
        assert_eq!(new_of(&seen, &log[3..])[0], (at(6), Entry::New));
        assert_eq!(
            new_of(&seen, &log[8..]),
            [(at(8), Entry::AfterLoss), (at(9), Entry::New)]
        );
    }
}
