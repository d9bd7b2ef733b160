//! What a turn's updates add up to.

use kandev_acp::{Dialect, Effect, KandevState, read_update};
use kandev_domain::{Event, EventKind};
use kandev_store::journal::{self, EventQuery};
use kandev_store::turns::Turn;
use kandev_store::{PgPool, StoreError};

/// A text longer than this, in bytes, is cut.
pub const MAX_TEXT: usize = 1 << 20;
/// Between two messages of a turn, which only their ids tell apart.
const PARTED: &str = "\n\n";
/// How many events are read at once, and how many bytes.
const EVENTS_AT_ONCE: usize = 2000;
const BYTES_AT_ONCE: usize = 4 << 20;

/// The agent's message of one turn.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TurnText {
    /// Its pieces, joined. Between messages of different ids there is an empty line.
    pub text: String,
    /// It was longer than [`MAX_TEXT`].
    pub truncated: bool,
    /// Its beginning, or all of it, is not kept any more.
    pub removed: bool,
}

/// Joins the message of a turn from the journal, so that it is right at any time, also in the middle of the turn.
pub async fn turn_text(pool: &PgPool, turn: &Turn) -> Result<TurnText, StoreError> {
    let mut joined = TurnText::default();
    let Some(first) = turn.first_seq else {
        return Ok(joined);
    };
    let mut query = EventQuery {
        after: first,
        until: turn.last_seq,
        kinds: vec![EventKind::Update],
        limit: EVENTS_AT_ONCE,
        max_bytes: BYTES_AT_ONCE,
    };
    let mut state = KandevState::default();
    let mut last: Option<String> = None;
    loop {
        let page = journal::events(pool, turn.instance_id, &query).await?;
        joined.removed |= page.oldest.is_some();
        for event in page.events.iter().filter(|e| is_of(turn, e)) {
            // What other dialects say was mapped to this one before it was stored.
            let update = read_update(Dialect::Acp, &mut state, &event.data);
            if let Effect::AgentText(text) = update.effect {
                let id = update.message_id.as_deref();
                let is_next = id.is_some() && last.is_some() && id != last.as_deref();
                if (is_next && !joined.part()) || !joined.add(&text) {
                    return Ok(joined);
                }
                last = id.map(ToOwned::to_owned).or(last);
            }
        }
        match page.next_after {
            Some(next) => query.after = next,
            None => return Ok(joined),
        }
    }
}

/// Whether an event belongs to what a turn said. A subagent speaks in a session of its own.
fn is_of(turn: &Turn, event: &Event) -> bool {
    let own = match (&turn.session_id, &event.session_id) {
        (Some(own), Some(named)) => own == named,
        _ => true,
    };
    own && event.turn_id == Some(turn.id)
}

impl TurnText {
    /// Another message begins. False once nothing more fits.
    fn part(&mut self) -> bool {
        self.text.is_empty() || self.add(PARTED)
    }

    /// False once nothing more fits.
    fn add(&mut self, piece: &str) -> bool {
        let mut end = piece.len().min(MAX_TEXT - self.text.len());
        while !piece.is_char_boundary(end) {
            end -= 1;
        }
        self.text.push_str(&piece[..end]);
        self.truncated = end < piece.len();
        !self.truncated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_at_a_character() {
        let mut text = TurnText::default();
        assert!(text.add(&"a".repeat(MAX_TEXT - 1)));
        assert!(!text.add("é"));
        assert_eq!((text.text.len(), text.truncated), (MAX_TEXT - 1, true));
    }
}
