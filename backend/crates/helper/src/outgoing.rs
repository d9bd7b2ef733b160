//! Frames on their way to the one connection that there is.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::terminals::lock;

/// Frames for the connection of this number. There are as many as requests that wait, which kandev bounds.
#[derive(Debug, Default)]
struct State {
    connection: u64,
    open: bool,
    frames: VecDeque<Vec<u8>>,
    woken: bool,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    state: Mutex<State>,
    changed: Condvar,
}

impl Outgoing {
    /// A new connection: its number. What was for the one before is dropped.
    pub(crate) fn begin(&self) -> u64 {
        let mut state = lock(&self.state);
        state.connection += 1;
        state.open = true;
        state.frames.clear();
        self.changed.notify_all();
        state.connection
    }

    pub(crate) fn end(&self, connection: u64) {
        let mut state = lock(&self.state);
        if state.connection == connection {
            state.open = false;
            state.frames.clear();
        }
        self.changed.notify_all();
    }

    /// No other connection has begun since.
    pub(crate) fn is_last(&self, connection: u64) -> bool {
        lock(&self.state).connection == connection
    }

    pub(crate) fn push(&self, connection: u64, frame: Vec<u8>) {
        let mut state = lock(&self.state);
        if state.connection == connection && state.open {
            state.frames.push_back(frame);
            self.changed.notify_all();
        }
    }

    /// There is something to be told.
    pub(crate) fn wake(&self) {
        let mut state = lock(&self.state);
        if !state.woken {
            state.woken = true;
            self.changed.notify_all();
        }
    }

    /// Waits for frames, at most for `limit`. None once the connection is over.
    pub(crate) fn take(&self, connection: u64, limit: Option<Duration>) -> Option<VecDeque<Vec<u8>>> {
        let guard = lock(&self.state);
        let idle = |state: &mut State| {
            state.connection == connection && state.open && state.frames.is_empty() && !state.woken
        };
        let mut state = match limit {
            None => self
                .changed
                .wait_while(guard, idle)
                .unwrap_or_else(PoisonError::into_inner),
            Some(limit) => {
                let waited = self.changed.wait_timeout_while(guard, limit, idle);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        if state.connection != connection || !state.open {
            return None;
        }
        state.woken = false;
        Some(std::mem::take(&mut state.frames))
    }
}
