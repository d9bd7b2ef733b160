//! Finding what is stored in a log that has lost its beginning.
//!
//! Each pipe's last stored lines are looked for by their marks. They are found in a row anywhere in the log, or at its
//! beginning, where the first ones of them may be gone and the first line may be the rest of one.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use kandev_runtime::{Channel, ContainerId, ContainerRuntime, LogEntry};
use kandev_store::journal::{LastLines, StoredLine};

use super::super::marks::mark;
use super::super::shifts::Shifts;
use super::Stop;
use super::last::LastMarks;
use super::log::Skip;

/// How many lines in a row are looked for.
const WINDOW: u64 = 256;
/// So many of them, cut short by the log's beginning, are believed whatever the time.
const BELIEVED: usize = 8;
/// How much the clocks of engine and server may differ.
const SKEW: Duration = Duration::from_secs(5);

/// Where the log goes on behind what is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) skip: [Skip; 2],
    /// Nothing of what is stored was found.
    pub(super) lost: bool,
    /// The time of the log's first entry.
    pub(super) log_begins: Option<SystemTime>,
    /// When the last line that is stored was seen.
    pub(super) stored_until: Option<SystemTime>,
}

/// Reads the whole log for it.
pub(super) async fn find(
    runtime: &dyn ContainerRuntime,
    id: &ContainerId,
    stored: &LastLines,
    shifts: Shifts,
) -> Result<Place, Stop> {
    // Of what was before lines that the log lacks, nothing stands in a row with what came after.
    let from = |channel| shifts.of(channel).from;
    let mut finders = [
        Finder::new(&stored.stdout, stored.lines.stdout, from(Channel::Stdout)),
        Finder::new(&stored.stderr, stored.lines.stderr, from(Channel::Stderr)),
    ];
    let mut log_begins = None;
    let mut entries = runtime.log_entries(id, None).await?;
    while let Some(entry) = entries.next().await.transpose()? {
        log_begins.get_or_insert(entry.at);
        finders[usize::from(entry.channel == Channel::Stderr)].see(&entry);
    }
    let [stdout, stderr] = &finders;
    let skip = match (&stdout.found, &stderr.found) {
        (None, None) => [Skip::Lines(0); 2],
        (Some(a), Some(b)) => [Skip::Lines(a.lines), Skip::Lines(b.lines)],
        (Some(found), None) => [Skip::Lines(found.lines), stderr.beside(found)],
        (None, Some(found)) => [stdout.beside(found), Skip::Lines(found.lines)],
    };
    Ok(Place {
        skip,
        lost: finders.iter().all(|f| f.found.is_none()),
        log_begins,
        stored_until: stdout.stored_until.max(stderr.stored_until),
    })
}

/// One pipe's search.
struct Finder {
    /// How many lines are stored.
    stored: u64,
    /// The marks of consecutive lines up to the last of them, as far as they are known.
    marks: Vec<Option<u64>>,
    stored_until: Option<SystemTime>,
    /// The marks of the last lines that were read, at most as many.
    read: VecDeque<u64>,
    lines: u64,
    open: bool,
    found: Option<Found>,
}

/// A place where the marks fit.
#[derive(Debug, Clone, Copy)]
struct Found {
    /// The last stored line is this one of the log's.
    lines: u64,
    at: SystemTime,
    /// All of them, not only those that the log has still.
    all: bool,
    /// The engine had the line before it was stored.
    in_time: bool,
}

impl Finder {
    fn new(known: &[StoredLine], stored: u64, from: u64) -> Self {
        Self {
            stored,
            marks: LastMarks::new(known, stored, WINDOW, from).marks,
            stored_until: known.last().map(|line| line.at.into()),
            read: VecDeque::new(),
            lines: 0,
            open: false,
            found: None,
        }
    }

    fn see(&mut self, entry: &LogEntry) {
        if std::mem::replace(&mut self.open, !entry.bytes.ends_with(b"\n")) {
            return;
        }
        self.lines += 1;
        if self.marks.is_empty() {
            return;
        }
        if self.read.len() == self.marks.len() {
            self.read.pop_front();
        }
        self.read.push_back(mark(&entry.bytes));
        let Some(fitting) = self.fitting() else { return };
        let until = self.stored_until.unwrap_or(entry.at);
        let found = Found {
            lines: self.lines,
            at: entry.at,
            all: self.read.len() == self.marks.len(),
            in_time: entry.at <= until,
        };
        let believed = found.all || entry.at <= until + SKEW || fitting >= BELIEVED;
        if believed && self.found.is_none_or(|best| found.is_better_than(best)) {
            self.found = Some(found);
        }
    }

    /// How many marks say that the last line read is the last one stored; none if one says that it is not.
    fn fitting(&self) -> Option<usize> {
        let at_beginning = self.lines == self.read.len() as u64;
        let mut fitting = 0;
        for (n, (mark, read)) in self.marks.iter().rev().zip(self.read.iter().rev()).enumerate() {
            match mark {
                Some(mark) if mark == read => fitting += 1,
                // The log's first line may be the rest of one.
                Some(_) if at_beginning && n + 1 == self.read.len() => {}
                Some(_) => return None,
                None => {}
            }
        }
        (fitting > 0).then_some(fitting)
    }

    /// What is stored of this pipe, of which nothing was found, while the other's last line was.
    const fn beside(&self, other: &Found) -> Skip {
        if self.marks.is_empty() && self.stored > 0 {
            // What it looked like is not known; but what the engine had before the other's is stored as well.
            Skip::Until(other.at)
        } else {
            // The log has none of it any more.
            Skip::Lines(0)
        }
    }
}

impl Found {
    /// Of places that fit equally well, the last one that the engine had in time is the true one; failing that, the first
    /// one, after which nothing is lost.
    fn is_better_than(self, other: Self) -> bool {
        let rank = |found: Self| (found.all, found.in_time);
        rank(self) > rank(other) || rank(self) == rank(other) && self.in_time
    }
}
