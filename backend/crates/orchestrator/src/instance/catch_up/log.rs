//! The engine's log, read in several passes, each from where the last one ended.

use std::collections::VecDeque;
use std::time::SystemTime;

use bytes::BytesMut;
use futures_util::StreamExt;
use kandev_runtime::{Channel, LogEntry, OutputChunk};
use kandev_store::journal::LastLines;

use super::super::marks::{Head, mark};
use super::super::shifts::{Shift, Shifts};
use super::find::Place;
use super::last::LastMarks;
use super::seen::{Entry, Seen};
use super::{Engine, Gap, Piece, Sender, Stop};

/// The log cuts longer lines into pieces of this size, in bytes.
const PIECE: usize = 16 * 1024;
/// What the log has for each byte that is not UTF-8, and so for the parts of a character that lies across two pieces.
const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();
/// How much of the log is held back at most until its beginning is known again.
const HELD: usize = 4 << 20;
/// How much of a line's end is kept to know it again, in bytes.
const END: usize = 4096;

/// Which lines of a pipe are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Skip {
    /// The first so many.
    Lines(u64),
    /// Those that the engine had by then.
    Until(SystemTime),
}

/// One pipe as the log tells it.
#[derive(Debug)]
pub(super) struct Pipe {
    channel: Channel,
    skip: Skip,
    /// How far the numbers of its lines are ahead of their places in the log.
    shift: Shift,
    /// The last lines that are stored.
    last: LastMarks,
    /// How many lines have begun.
    begun: u64,
    /// The last of them has not ended.
    open: bool,
    /// The line is not stored.
    wanted: bool,
    /// How many parts of a cut character the last piece ended in.
    cut_at_end: usize,
    /// How many characters of the line were cut.
    cut: u64,
    /// The end of the line, as far as it has come, and whether there was more.
    end: BytesMut,
    had_more: bool,
}

impl Pipe {
    fn new(channel: Channel, skip: Skip, shift: Shift, last: LastMarks) -> Self {
        Self {
            channel,
            skip,
            shift,
            last,
            begun: 0,
            open: false,
            wanted: false,
            cut_at_end: 0,
            cut: 0,
            end: BytesMut::new(),
            had_more: false,
        }
    }

    /// Takes a line, or a piece of a long one, and hands it on unless it is stored. True if it ends the line.
    pub(super) async fn take(&mut self, entry: &LogEntry, to: &Sender) -> Result<bool, Stop> {
        if !self.open {
            self.begun += 1;
            self.wanted = match self.skip {
                Skip::Lines(stored) if self.begun + self.shift.by > stored => true,
                Skip::Lines(_) if self.is_stored(&entry.bytes) => false,
                Skip::Lines(stored) => {
                    let (channel, shift) = (self.channel, self.goes_on_after(stored));
                    hand_on(to, Piece::Gap(Gap::Torn { channel, shift })).await?;
                    true
                }
                Skip::Until(stored) => entry.at > stored,
            };
            self.cut = 0;
            self.cut_at_end = 0;
            self.end.clear();
            self.had_more = false;
        }
        self.look_for_cuts(&entry.bytes);
        self.had_more |= keep_end(&mut self.end, &entry.bytes);
        self.open = !entry.bytes.ends_with(b"\n");
        if self.wanted {
            let (channel, bytes) = (self.channel, entry.bytes.clone());
            hand_on(to, Piece::Output(OutputChunk { channel, bytes })).await?;
        }
        if !self.open {
            self.tell_cuts(to).await?;
        }
        Ok(!self.open)
    }

    /// Whether the line that has just begun is the stored one of its number. What was before the lines that the log lacks is.
    fn is_stored(&self, text: &[u8]) -> bool {
        let number = self.begun + self.shift.by;
        number < self.shift.from || self.last.may_be(number, text)
    }

    /// The line that has just begun is the one after the last one stored.
    const fn goes_on_after(&mut self, stored: u64) -> Shift {
        let by = stored + 1 - self.begun;
        self.shift = Shift { by, from: stored + 1 };
        self.shift
    }

    /// A character that lies across two pieces has one U+FFFD for each of its bytes; a piece that is longer than pieces are
    /// has such.
    fn look_for_cuts(&mut self, piece: &[u8]) {
        let at_start = piece
            .chunks(REPLACEMENT.len())
            .take(3)
            .take_while(|c| *c == REPLACEMENT)
            .count();
        if self.cut_at_end > 0 && at_start > 0 {
            self.cut += 1;
        }
        let replaced = piece.len().saturating_sub(PIECE) / (REPLACEMENT.len() - 1);
        let at_end = piece
            .rchunks(REPLACEMENT.len())
            .take(3)
            .take_while(|c| *c == REPLACEMENT)
            .count();
        self.cut_at_end = at_end.min(replaced);
    }

    async fn tell_cuts(&mut self, to: &Sender) -> Result<(), Stop> {
        let (channel, characters) = (self.channel, std::mem::take(&mut self.cut));
        if !self.wanted || characters == 0 {
            return Ok(());
        }
        hand_on(to, Piece::Gap(Gap::Characters { channel, characters })).await
    }

    /// The line that has come to its end is the one that ended so live.
    pub(super) fn ended_in(&self, live: &[u8]) -> bool {
        same_end(&self.end, self.had_more, live)
    }
}

/// Keeps as much of the end of a line as is needed to know it again. True if something went.
pub(super) fn keep_end(end: &mut BytesMut, piece: &[u8]) -> bool {
    let before = end.len() + piece.len();
    end.extend_from_slice(&piece[piece.len().saturating_sub(END)..]);
    if end.len() > END {
        let _ = end.split_to(end.len() - END);
    }
    end.len() < before
}

/// Whether a line that the log has and one that was seen live have the same end. Of the log's, more may have been there.
fn same_end(mut log: &[u8], had_more: bool, mut live: &[u8]) -> bool {
    while !live.is_empty() {
        if log.is_empty() {
            return had_more;
        }
        if let Some(rest) = log.strip_suffix(REPLACEMENT) {
            let genuine = live.strip_suffix(REPLACEMENT);
            live = genuine.unwrap_or(&live[..live.len() - 1]);
            log = rest;
        } else if log.last() == live.last() {
            log = &log[..log.len() - 1];
            live = &live[..live.len() - 1];
        } else {
            return false;
        }
    }
    true
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Log {
    pipes: [Pipe; 2],
    seen: Seen,
}

/// How the log begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beginning {
    /// With the container's first line.
    Whole,
    /// Later: what was before it is gone.
    Lost,
}

impl Log {
    /// All of it but what is stored of each pipe.
    pub(super) fn after(stored: &LastLines, shifts: Shifts) -> Self {
        let pipe = |channel, known: &[_], lines| {
            let shift = shifts.of(channel);
            let last = LastMarks::new(known, lines, u64::MAX, 0);
            Pipe::new(channel, Skip::Lines(lines), shift, last)
        };
        Self {
            pipes: [
                pipe(Channel::Stdout, &stored.stdout, stored.lines.stdout),
                pipe(Channel::Stderr, &stored.stderr, stored.lines.stderr),
            ],
            seen: Seen::default(),
        }
    }

    /// All of it but what was found.
    pub(super) fn behind(&mut self, place: &Place) {
        let pipe = |channel, skip| Pipe::new(channel, skip, Shift::default(), LastMarks::default());
        let [stdout, stderr] = place.skip;
        *self = Self {
            pipes: [pipe(Channel::Stdout, stdout), pipe(Channel::Stderr, stderr)],
            seen: Seen::default(),
        };
    }

    pub(super) fn pipe(&mut self, channel: Channel) -> &mut Pipe {
        &mut self.pipes[usize::from(channel == Channel::Stderr)]
    }

    /// The first pass. Ends at once, with nothing handed on, if the log does not begin with the container's first lines.
    pub(super) async fn first_pass(
        &mut self,
        (runtime, id): Engine<'_>,
        head: &Head,
        to: &Sender,
    ) -> Result<Beginning, Stop> {
        let mut entries = runtime.log_entries(id, None).await?;
        let mut check = [Channel::Stdout, Channel::Stderr].map(|channel| Check::new(head, channel));
        let mut held = Vec::new();
        let mut bytes = 0;
        while bytes < HELD && check.iter().any(|c| !c.expected.is_empty()) {
            let Some(entry) = entries.next().await.transpose()? else {
                break;
            };
            if check[usize::from(entry.channel == Channel::Stderr)].is_of_later(&entry) {
                return Ok(Beginning::Lost);
            }
            bytes += entry.bytes.len();
            held.push(entry);
        }
        for entry in held {
            self.entry(&entry, to).await?;
        }
        while let Some(entry) = entries.next().await.transpose()? {
            self.entry(&entry, to).await?;
        }
        Ok(Beginning::Whole)
    }

    /// Reads what the log has and had not at the last pass, and hands on the lines. True if there was anything.
    pub(super) async fn pass(&mut self, (runtime, id): Engine<'_>, to: &Sender) -> Result<bool, Stop> {
        let (since, mut known) = self.seen.resume();
        let mut entries = runtime.log_entries(id, since).await?;
        let mut grew = false;
        while let Some(entry) = entries.next().await.transpose()? {
            match known.next(entry.at) {
                Entry::Known => continue,
                Entry::New => {}
                Entry::AfterLoss => {
                    let gap = Gap::Rotated {
                        log_begins: Some(entry.at),
                        stored_until: self.seen.newest(),
                    };
                    hand_on(to, Piece::Gap(gap)).await?;
                }
            }
            grew = true;
            self.entry(&entry, to).await?;
        }
        Ok(grew)
    }

    async fn entry(&mut self, entry: &LogEntry, to: &Sender) -> Result<(), Stop> {
        self.seen.push(entry.at);
        self.pipe(entry.channel).take(entry, to).await?;
        Ok(())
    }

    /// Everything of a pipe that the log got after the last pass.
    pub(super) async fn tail(
        &self,
        (runtime, id): Engine<'_>,
        channel: Channel,
    ) -> Result<Vec<LogEntry>, Stop> {
        let (since, mut known) = self.seen.resume();
        let mut entries = runtime.log_entries(id, since).await?;
        let mut found = Vec::new();
        while let Some(entry) = entries.next().await.transpose()? {
            if known.next(entry.at) != Entry::Known && entry.channel == channel {
                found.push(entry);
            }
        }
        Ok(found)
    }

    /// Everything up to now has been given: if the log had less than what is stored, the rest is new all the same.
    pub(super) async fn caught_up(&mut self, to: &Sender) -> Result<(), Stop> {
        for pipe in &mut self.pipes {
            if let Skip::Lines(stored) = pipe.skip
                && pipe.begun + pipe.shift.by < stored
            {
                let (channel, by) = (pipe.channel, stored - pipe.begun);
                let shift = Shift { by, from: stored + 1 };
                pipe.shift = shift;
                hand_on(to, Piece::Gap(Gap::Short { channel, shift })).await?;
            }
            pipe.skip = Skip::Lines(0);
        }
        hand_on(to, Piece::CaughtUp).await
    }

    /// The log's end ends the lines that are open.
    pub(super) async fn finish(&mut self, to: &Sender) -> Result<(), Stop> {
        for pipe in &mut self.pipes {
            if pipe.open {
                pipe.tell_cuts(to).await?;
            }
        }
        Ok(())
    }
}

/// What a pipe has to begin with.
struct Check {
    expected: VecDeque<u64>,
    begun: bool,
    open: bool,
}

impl Check {
    fn new(head: &Head, channel: Channel) -> Self {
        Self {
            expected: head.of(channel).collect(),
            begun: false,
            open: false,
        }
    }

    /// Whether the log begins with a later line. If only a line after the first is another, the log lacks some in between.
    fn is_of_later(&mut self, entry: &LogEntry) -> bool {
        let begins = !std::mem::replace(&mut self.open, !entry.bytes.ends_with(b"\n"));
        if !begins {
            return false;
        }
        let other = self
            .expected
            .pop_front()
            .is_some_and(|expected| expected != mark(&entry.bytes));
        let first = !std::mem::replace(&mut self.begun, true);
        if other {
            self.expected.clear();
        }
        other && first
    }
}

pub(super) async fn hand_on(to: &Sender, piece: Piece) -> Result<(), Stop> {
    to.send(Ok(piece)).await.map_err(|_| Stop::Gone)
}
