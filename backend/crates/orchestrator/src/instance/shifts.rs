//! How the numbers of lines and the engine's log go together.
//!
//! An engine that dies takes with it what it had read from a container and not yet logged, while the container may live on
//! (live-restore) and be logged again by the next one. Then the log lacks lines, some of which the attachment may have
//! given, and the numbers are ahead of the log's from there on.
//!
//! An instance that was started again has another container, whose log begins anew, while its numbers go on. Whoever reads a
//! log counts within its container; the lines of those before it are taken off first.

use kandev_runtime::Channel;
use kandev_store::journal::{LastLines, PipeLines, StoredLine};
use serde::{Deserialize, Serialize};

/// Of one pipe.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shift {
    /// How many lines the log lacks.
    pub(super) by: u64,
    /// The number of the first line after them.
    pub(super) from: u64,
}

/// Of both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shifts {
    stdout: Shift,
    stderr: Shift,
    /// How many lines the containers before this one had, of stdout and of stderr.
    #[serde(default)]
    before: (u64, u64),
}

impl Shifts {
    /// Of a container that begins when so many lines have been counted.
    pub(super) fn behind(lines: PipeLines) -> Self {
        Self {
            before: (lines.stdout, lines.stderr),
            ..Self::default()
        }
    }

    /// What is stored of this container alone, by its own numbers.
    pub(super) fn own(self, stored: LastLines) -> LastLines {
        let (stdout, stderr) = self.before;
        let own = |lines: Vec<StoredLine>, before: u64| {
            let own = lines.into_iter().filter(|line| line.number > before);
            let numbered = own.map(|line| StoredLine {
                number: line.number - before,
                ..line
            });
            numbered.collect()
        };
        LastLines {
            lines: PipeLines {
                stdout: stored.lines.stdout.saturating_sub(stdout),
                stderr: stored.lines.stderr.saturating_sub(stderr),
            },
            stdout: own(stored.stdout, stdout),
            stderr: own(stored.stderr, stderr),
        }
    }

    pub(super) const fn set(&mut self, channel: Channel, shift: Shift) {
        match channel {
            Channel::Stdout => self.stdout = shift,
            Channel::Stderr => self.stderr = shift,
        }
    }

    pub(super) const fn of(self, channel: Channel) -> Shift {
        match channel {
            Channel::Stdout => self.stdout,
            Channel::Stderr => self.stderr,
        }
    }
}

#[cfg(test)]
mod tests {
    use kandev_domain::{Clock as _, SystemClock};

    use super::*;

    #[test]
    fn lines_of_containers_before_are_no_lines_of_this_one() {
        let at = SystemClock.now();
        let line = |number| StoredLine {
            number,
            at,
            mark: number,
        };
        let stored = LastLines {
            lines: PipeLines { stdout: 7, stderr: 3 },
            stdout: [4, 5, 6, 7].map(line).into(),
            stderr: [2, 3].map(line).into(),
        };
        let shifts = Shifts::behind(PipeLines { stdout: 5, stderr: 3 });
        let own = shifts.own(stored.clone());
        assert_eq!(own.lines, PipeLines { stdout: 2, stderr: 0 });
        let stdout: Vec<_> = own.stdout.iter().map(|l| (l.number, l.mark)).collect();
        assert_eq!((stdout, own.stderr.len()), (vec![(1, 6), (2, 7)], 0));
        let first = Shifts::default().own(stored);
        assert_eq!((first.lines.stdout, first.stdout[0].number), (7, 4));
    }
}
