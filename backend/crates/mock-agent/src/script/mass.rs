//! Directives about time and mass.

use std::time::Duration;

use super::tools::resolve;
use crate::args::{number, required, size, unescape, word};
use crate::clock;
use crate::fault::numbered;
use crate::turn::{Halt, Run, message_chunk};

/// How much of a flood is written at once, in bytes.
const PIECE: usize = 64 << 10;
/// How often is looked for a file.
const LOOK: Duration = Duration::from_millis(10);
/// Stands for the text of a flood's update in its template.
const MARK: &str = "FLOODTEXT";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Mass {
    Sleep(Duration),
    /// Until this file is there.
    Await(String),
    Slow {
        count: u64,
        pause: Duration,
    },
    Flood {
        count: usize,
        bytes: usize,
        prose: bool,
    },
    Clock {
        count: u64,
        pause: Duration,
    },
    Hang,
    Late {
        after: Duration,
        text: String,
    },
    /// So many chunks in the same write as the turn's answer.
    WithEnd(usize),
    Line(usize),
    Halves {
        bytes: usize,
        pause: Duration,
    },
    Endless(usize),
}

impl Mass {
    pub(super) fn parse(name: &str, rest: &str) -> Result<Option<Self>, String> {
        let (first, second) = word(rest);
        let millis = |text: &str| number(name, text).map(Duration::from_millis);
        Ok(Some(match name {
            "sleep" => Self::Sleep(millis(rest)?),
            "await" => Self::Await(required(name, "a path", rest)?),
            "slow" => Self::Slow {
                count: number(name, first)?,
                pause: millis(second)?,
            },
            "flood" => {
                let (bytes, manner) = word(second);
                Self::Flood {
                    count: size(name, first)?,
                    bytes: size(name, bytes)?,
                    prose: match manner.trim() {
                        "" => false,
                        "prose" => true,
                        other => return Err(format!("/flood: '{other}' is not known")),
                    },
                }
            }
            "clock" => Self::Clock {
                count: number(name, first)?,
                pause: millis(second)?,
            },
            "hang" => Self::Hang,
            "late" => Self::Late {
                after: millis(first)?,
                text: unescape(second),
            },
            "with-end" => Self::WithEnd(number(name, rest)?),
            "line" => Self::Line(size(name, rest)?),
            "halves" => Self::Halves {
                bytes: size(name, first)?,
                pause: millis(second)?,
            },
            "endless" => Self::Endless(size(name, rest)?),
            _ => return Ok(None),
        }))
    }

    pub(super) fn run(self, run: &mut Run<'_>) -> Result<(), Halt> {
        match self {
            Self::Sleep(time) => run.turn.signal.sleep(time),
            Self::Await(path) => {
                let path = resolve(run, &path);
                while !path.exists() {
                    run.turn.signal.sleep(LOOK)?;
                }
                Ok(())
            }
            Self::Slow { count, pause } => {
                for n in 1..=count {
                    run.turn.signal.sleep(pause)?;
                    run.say(&format!("slow {n}/{count} "));
                }
                Ok(())
            }
            Self::Flood { count, bytes, prose } => flood(run, count, bytes, prose),
            Self::Clock { count, pause } => {
                for n in 1..=count {
                    run.turn.signal.sleep(pause)?;
                    run.say(&format!("{n:08} {} ", clock::since_epoch().as_nanos()));
                }
                Ok(())
            }
            Self::Hang => Err(run.turn.signal.hang()),
            Self::Late { after, text } => {
                run.late.push((after, text));
                Ok(())
            }
            Self::WithEnd(count) => {
                run.with_end = count;
                Ok(())
            }
            Self::Line(bytes) => {
                let empty = run.agent().update_line(&run.turn.session.id, &message_chunk(""));
                let text = numbered(1, bytes.saturating_sub(empty.len()));
                run.say(&text);
                Ok(())
            }
            Self::Halves { bytes, pause } => halves(run, bytes, pause),
            Self::Endless(bytes) => Err(endless(run, bytes)),
        }
    }
}

/// Fills a template instead of building each frame, so that the agent is faster than its reader.
fn flood(run: &mut Run<'_>, count: usize, bytes: usize, prose: bool) -> Result<(), Halt> {
    let mut words = prose.then(Prose::default);
    let template = run
        .agent()
        .update_line(&run.turn.session.id, &message_chunk(MARK));
    let (before, after) = template.split_once(MARK).unwrap_or_default();
    let mut room = true;
    let mut piece = String::new();
    for n in 1..=count {
        let text = match &mut words {
            Some(words) => words.numbered(n, bytes),
            None => numbered(n, bytes),
        };
        piece.push_str(before);
        piece.push_str(&text);
        piece.push_str(after);
        piece.push('\n');
        room = room && run.record(message_chunk(&text), template.len() + bytes);
        if piece.len() >= PIECE {
            run.agent().out().bytes(piece.as_bytes());
            piece.clear();
            run.turn.signal.check()?;
        }
    }
    run.agent().out().bytes(piece.as_bytes());
    Ok(())
}

/// Text that packs like an agent's words, and is the same each time.
struct Prose(u32);

impl Default for Prose {
    fn default() -> Self {
        Self(1)
    }
}

impl Prose {
    const SYLLABLES: [&str; 32] = [
        "the", "re", "ing", "to", "a", "con", "ver", "in", "ti", "on", "pro", "com", "er", "or", "al",
        "file", "is", "test", "and", "de", "run", "st", "ly", "ment", "ed", "of", "it", "ex", "pa", "se",
        "no", "un",
    ];

    /// A text of so many bytes that begins with its number.
    fn numbered(&mut self, n: usize, bytes: usize) -> String {
        let mut text = numbered(n, 0);
        text.reserve(bytes);
        while text.len() < bytes {
            // Numerical Recipes' generator: its upper bits are as good as is needed here.
            self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            text.push_str(Self::SYLLABLES[(self.0 >> 27) as usize]);
            if self.0 >> 16 & 1 == 0 {
                text.push(' ');
            }
        }
        text.truncate(bytes.max(9));
        text
    }
}

/// Nothing else may be said in the pause, or it would lie within the line.
fn halves(run: &mut Run<'_>, bytes: usize, pause: Duration) -> Result<(), Halt> {
    let empty = run.agent().update_line(&run.turn.session.id, &message_chunk(""));
    let update = message_chunk(&numbered(1, bytes.saturating_sub(empty.len())));
    let mut line = run.agent().update_line(&run.turn.session.id, &update);
    line.push('\n');
    let (first, second) = line.as_bytes().split_at(line.len() / 2);
    run.agent().out().bytes(first);
    let slept = run.turn.signal.sleep(pause);
    run.agent().out().bytes(second);
    run.record(update, line.len());
    slept
}

/// The newline comes with the cancel, so that the answer after it can be read.
fn endless(run: &Run<'_>, bytes: usize) -> Halt {
    let piece = vec![b'e'; PIECE];
    let mut left = if bytes == 0 { usize::MAX } else { bytes };
    while left > 0 {
        let now = left.min(PIECE);
        run.agent().out().bytes(&piece[..now]);
        left -= now;
        if run.turn.signal.check().is_err() {
            break;
        }
    }
    let halt = run.turn.signal.hang();
    run.agent().out().bytes(b"\n");
    halt
}
