//! A reader of a server's event stream that costs little, since its work counts in what is measured.

use std::ops::ControlFlow;

use anyhow::{Result, ensure};
use bytes::Bytes;
use memchr::memmem::Finder;

/// What a reader checks and counts.
#[derive(Debug)]
pub(crate) struct Reader {
    response: reqwest::Response,
    rest: Vec<u8>,
    /// The last event's number.
    pub(crate) seq: i64,
    /// How many updates came.
    pub(crate) updates: u64,
}

/// What a reader is told of.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Seen<'a> {
    /// An update.
    Update(Update<'a>),
    /// A turn's end.
    TurnEnded,
}

/// An update of the agent's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Update<'a> {
    /// The text of its chunk, escapes as they are.
    pub(crate) text: &'a [u8],
    /// Which of the agent's updates it says to be.
    pub(crate) number: u64,
}

impl Reader {
    /// Follows the events after `seq`; `updates` came before.
    pub(crate) async fn open(
        http: &reqwest::Client,
        base: &str,
        id: &str,
        seq: i64,
        updates: u64,
    ) -> Result<Self> {
        let request = http
            .get(format!("{base}/api/v1/agents/{id}/events"))
            .header("accept", "text/event-stream")
            .header("last-event-id", seq);
        let response = request.send().await?.error_for_status()?;
        Ok(Self {
            response,
            rest: Vec::new(),
            seq,
            updates,
        })
    }

    /// Reads until `each` breaks. Every event must be the next one, and every update too, or it is an error. True if
    /// `each` broke; false at the stream's end.
    pub(crate) async fn read(&mut self, mut each: impl FnMut(Seen<'_>) -> ControlFlow<()>) -> Result<bool> {
        let end = Finder::new(b"\n\n");
        let text = Finder::new(br#""text":""#);
        // What was read beyond the break of the time before comes first.
        let mut chunk = Bytes::new();
        loop {
            let mut joined = std::mem::take(&mut self.rest);
            let mut left: &[u8] = if joined.is_empty() {
                &chunk
            } else {
                joined.extend_from_slice(&chunk);
                &joined
            };
            while let Some(at) = end.find(left) {
                let (block, after) = left.split_at(at);
                left = &after[2..];
                let Some(event) = self.event(block)? else { continue };
                let seen = match event {
                    b"update" => {
                        let Some(update) = read_update(&text, block) else {
                            continue;
                        };
                        self.updates += 1;
                        let expected = self.updates;
                        ensure!(
                            update.number == expected,
                            "{} came in the place of {expected}",
                            update.number
                        );
                        Seen::Update(update)
                    }
                    b"turn_ended" => Seen::TurnEnded,
                    _ => continue,
                };
                if each(seen).is_break() {
                    self.rest = left.to_vec();
                    return Ok(true);
                }
            }
            self.rest = left.to_vec();
            let Some(next) = self.response.chunk().await? else {
                return Ok(false);
            };
            chunk = next;
        }
    }

    /// Reads past the end of the turn, so that the next one can begin.
    pub(crate) async fn until_turn_end(&mut self) -> Result<()> {
        let ended = self.read(|seen| match seen {
            Seen::TurnEnded => ControlFlow::Break(()),
            Seen::Update(_) => ControlFlow::Continue(()),
        });
        ensure!(ended.await?, "the stream ended before the turn");
        self.updates = 0;
        Ok(())
    }

    /// Checks the number of a block, and gives its kind; none for one that is no event.
    fn event<'a>(&mut self, block: &'a [u8]) -> Result<Option<&'a [u8]>> {
        let mut lines = block.splitn(3, |byte| *byte == b'\n');
        let (Some(id), Some(event)) = (
            lines.next().and_then(|line| line.strip_prefix(b"id: ")),
            lines.next().and_then(|line| line.strip_prefix(b"event: ")),
        ) else {
            return Ok(None);
        };
        let seq = digits(id) as i64;
        ensure!(seq == self.seq + 1, "event {seq} came after {}", self.seq);
        ensure!(
            event != b"reset" && event != b"gap",
            "something is missing at {seq}"
        );
        self.seq = seq;
        Ok(Some(event))
    }
}

/// None for an update without a text, of which the agent has a few of its own.
fn read_update<'a>(text: &Finder<'_>, block: &'a [u8]) -> Option<Update<'a>> {
    let at = text.find(block)?;
    let text = &block[at + text.needle().len()..];
    Some(Update {
        text,
        number: digits(text),
    })
}

/// The number that the bytes begin with; 0 when they begin with none.
pub(crate) fn digits(bytes: &[u8]) -> u64 {
    let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number: u64, digit| {
        number.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'))
    })
}

/// The nanoseconds since 1970 at which an update of `/clock` was written: the second word of its text.
pub(crate) fn stamp(text: &[u8]) -> u64 {
    text.get(9..).map_or(0, digits)
}
