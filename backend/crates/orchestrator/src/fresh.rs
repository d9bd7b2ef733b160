//! What was just stored, handed over in memory: a reader that keeps up need not ask the database for what this process has
//! written to it a moment ago.
//!
//! It is let out after the commit, like every other effect. It is never the only way: who comes late, lags behind or finds
//! a gap reads from the database.

use kandev_store::record::Record;

/// How many batches wait for the slowest of those who follow an instance.
pub(crate) const BATCHES: usize = 4;
/// A batch with more bytes of lines than this is not handed over: it may be one huge line.
pub(crate) const MAX_BYTES: usize = 5 << 20;

/// Consecutive events that are stored.
#[derive(Debug)]
pub struct Stored {
    /// The number of the first one.
    pub first_seq: i64,
    /// The events; none when the batch is too large to be handed over, or nobody followed when it was made.
    pub records: Vec<Record>,
}
