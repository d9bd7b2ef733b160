//! Locks without poisoning, worker threads that can be waited for, and the signal a turn waits on.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::frame::RpcError;
use crate::turn::Halt;

/// Locks, and takes the value of a thread that panicked as it is.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the client answered to a request of ours.
pub(crate) type Answer = Result<Value, RpcError>;

/// The key under which an error answer without an id is filed.
pub(crate) const NULL_ID: &str = "null";

#[derive(Default)]
struct State {
    cancelled: bool,
    stdin_ended: bool,
    answers: HashMap<String, Answer>,
}

/// All that can wake a turn: its cancellation, an answer of the client, the end of stdin.
#[derive(Default)]
pub(crate) struct Signal {
    state: Mutex<State>,
    changed: Condvar,
}

impl Signal {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut lock(&self.state));
        self.changed.notify_all();
    }

    pub(crate) fn cancel(&self) {
        self.change(|s| s.cancelled = true);
    }

    /// From now on nothing more can come from the client.
    pub(crate) fn end_stdin(&self) {
        self.change(|s| s.stdin_ended = true);
    }

    pub(crate) fn answer(&self, id: &str, answer: Answer) {
        self.change(|s| {
            s.answers.insert(id.to_owned(), answer);
        });
    }

    /// Nothing of the turn's is worth waiting for.
    pub(crate) fn is_over(&self) -> bool {
        let state = lock(&self.state);
        state.cancelled || state.stdin_ended
    }

    pub(crate) fn check(&self) -> Result<(), Halt> {
        if lock(&self.state).cancelled {
            return Err(Halt::Cancelled);
        }
        Ok(())
    }

    /// Waits this long, or fails as soon as the turn is cancelled.
    pub(crate) fn sleep(&self, time: Duration) -> Result<(), Halt> {
        let guard = lock(&self.state);
        let waited = self.changed.wait_timeout_while(guard, time, |s| !s.cancelled);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.cancelled {
            Err(Halt::Cancelled)
        } else {
            Ok(())
        }
    }

    /// Waits until the turn is cancelled, which the end of stdin counts as.
    pub(crate) fn hang(&self) -> Halt {
        let guard = lock(&self.state);
        let waited = self.changed.wait_while(guard, |s| !s.cancelled && !s.stdin_ended);
        drop(waited);
        Halt::Cancelled
    }

    /// Takes the answer to a request. None if `limit` passed, if stdin ended, or if no answer came within `grace`
    /// of a cancellation.
    pub(crate) fn wait_answer(&self, id: &str, limit: Option<Duration>, grace: Duration) -> Option<Answer> {
        let mut deadline = limit.map(|l| Instant::now() + l);
        let mut cancel_seen = false;
        let mut state = lock(&self.state);
        loop {
            if let Some(answer) = state.answers.remove(id) {
                return Some(answer);
            }
            if state.stdin_ended {
                return None;
            }
            if state.cancelled && !cancel_seen {
                cancel_seen = true;
                deadline = Some(Instant::now() + grace);
            }
            state = match deadline {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(end) => {
                    let left = end.checked_duration_since(Instant::now())?;
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// Counts the threads at work, so that the end can wait for them.
#[derive(Default)]
pub(crate) struct Workers {
    running: Arc<(Mutex<usize>, Condvar)>,
}

struct Working(Arc<(Mutex<usize>, Condvar)>);

impl Drop for Working {
    fn drop(&mut self) {
        *lock(&self.0.0) -= 1;
        self.0.1.notify_all();
    }
}

impl Workers {
    /// Runs `work` in a thread of its own. Fails where the pids limit is reached.
    pub(crate) fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        *lock(&self.running.0) += 1;
        let working = Working(Arc::clone(&self.running));
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _working = working;
            work();
        })?;
        Ok(())
    }

    /// Waits until no worker is left, for at most `limit`.
    pub(crate) fn wait(&self, limit: Duration) {
        let guard = lock(&self.running.0);
        let waited = self.running.1.wait_timeout_while(guard, limit, |n| *n > 0);
        drop(waited);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_wins_over_a_cancel_within_the_grace() {
        let signal = Arc::new(Signal::default());
        signal.cancel();
        let other = Arc::clone(&signal);
        let answering = std::thread::spawn(move || other.answer("1", Ok(Value::Null)));
        let answer = signal.wait_answer("1", None, Duration::from_secs(5));
        answering.join().unwrap();
        assert!(matches!(answer, Some(Ok(Value::Null))));
        assert!(signal.wait_answer("1", None, Duration::from_millis(5)).is_none());
    }

    #[test]
    fn workers_are_waited_for_even_if_they_panic() {
        let workers = Workers::default();
        workers.spawn("test", || panic!("on purpose")).unwrap();
        workers.wait(Duration::from_secs(5));
        assert_eq!(*lock(&workers.running.0), 0);
    }
}
