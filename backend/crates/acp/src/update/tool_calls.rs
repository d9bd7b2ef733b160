//! Telling the tool calls of the kandev dialect apart.

use serde::{Deserialize, Serialize};

/// How many tool calls may be open at once; beyond it the oldest counts as closed.
const MAX_OPEN_CALLS: usize = 256;

/// Which tool calls are open, since the dialect names tools and not calls. Stored with the instance, it keeps the
/// ids of calls apart across a restart.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct KandevState {
    open: Vec<OpenCall>,
    calls: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct OpenCall {
    tool: String,
    id: String,
    /// Announced, but not yet running.
    pending: bool,
}

impl KandevState {
    /// The id of the call that this is about, and whether it is the first that is heard of it.
    pub(super) fn track(&mut self, tool: &str, given: Option<&str>, status: Status) -> (String, bool) {
        let same = |call: &OpenCall| given.map_or(call.tool == tool, |id| call.id == id);
        // A tool that starts once more is another call, unless the id says otherwise or the first only waited.
        let restarts = |call: &OpenCall| given.is_none() && !call.pending && status.starts();
        let found = self
            .open
            .iter()
            .rposition(same)
            .filter(|at| !restarts(&self.open[*at]));
        if let Some(at) = found {
            if status.ends() {
                return (self.open.remove(at).id, false);
            }
            self.open[at].pending = status == Status::Pending;
            return (self.open[at].id.clone(), false);
        }
        let id = given.map_or_else(
            || {
                self.calls += 1;
                format!("{tool}-{}", self.calls)
            },
            ToOwned::to_owned,
        );
        if !status.ends() {
            if self.open.len() >= MAX_OPEN_CALLS {
                self.open.remove(0);
            }
            self.open.push(OpenCall {
                tool: tool.to_owned(),
                id: id.clone(),
                pending: status == Status::Pending,
            });
        }
        (id, true)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Pending,
    Running,
    Completed,
    Failed,
    /// Something else, in the middle of a call.
    Other,
}

impl Status {
    pub(super) fn of(status: Option<&str>) -> Self {
        match status.unwrap_or("running").to_ascii_lowercase().as_str() {
            "pending" | "queued" => Self::Pending,
            "running" | "started" | "start" | "in_progress" => Self::Running,
            "completed" | "complete" | "success" | "succeeded" | "done" | "finished" => Self::Completed,
            "failed" | "failure" | "error" | "cancelled" | "canceled" | "timeout" => Self::Failed,
            _ => Self::Other,
        }
    }

    const fn starts(self) -> bool {
        matches!(self, Self::Pending | Self::Running)
    }

    const fn ends(self) -> bool {
        matches!(self, Self::Completed | Self::Failed)
    }

    pub(super) const fn in_acp(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running | Self::Other => "in_progress",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_calls_are_bounded() {
        let mut state = KandevState::default();
        for n in 0..MAX_OPEN_CALLS * 2 {
            state.track(&format!("t{n}"), None, Status::Running);
        }
        assert_eq!(state.open.len(), MAX_OPEN_CALLS);
    }

    #[test]
    fn a_stored_state_goes_on_counting() {
        let mut state = KandevState::default();
        assert_eq!(state.track("a", None, Status::Running), ("a-1".to_owned(), true));
        let stored = serde_json::to_string(&state).unwrap();
        let mut state: KandevState = serde_json::from_str(&stored).unwrap();
        assert_eq!(
            state.track("a", None, Status::Completed),
            ("a-1".to_owned(), false)
        );
        assert_eq!(state.track("a", None, Status::Running), ("a-2".to_owned(), true));
    }
}
