//! What an instance admits in which state: one pure function, asked before anything is done.

use crate::status::{InstanceStatus, TurnState};

/// What a caller, or a clock, wants of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// A prompt.
    Prompt {
        /// What to do when a turn runs already.
        when_busy: WhenBusy,
    },
    /// End the turn.
    Cancel,
    /// End the instance.
    Stop,
    /// Bring an ended instance's session back in a fresh one.
    Resume,
}

/// What a prompt does when a turn runs already.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize, utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum WhenBusy {
    /// Wait for it.
    #[default]
    Queue,
    /// Cancel it, and everything queued.
    Interrupt,
    /// Give up.
    Reject,
}

/// The facts that decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// Of the instance.
    pub status: InstanceStatus,
    /// Of its turn.
    pub turn: TurnState,
    /// Prompts that wait.
    pub queued: usize,
    /// How many may.
    pub queue_limit: usize,
    /// Requests of the agent's that wait for an answer, in a turn or outside of one, and turns that it began by itself.
    pub asking: usize,
    /// It was told to end.
    pub stopping: bool,
}

/// What to do about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Do it now.
    Proceed,
    /// Put the prompt behind what runs.
    Enqueue,
    /// Cancel what runs, then do it.
    CancelThenProceed,
    /// It is done, or on its way: answer as if it had just been done.
    AlreadySo,
    /// No.
    Refuse(Refusal),
}

/// Why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
pub enum Refusal {
    /// It has ended.
    #[error("the instance has ended")]
    Ended,
    /// It is about to end.
    #[error("the instance is being stopped")]
    Stopping,
    /// A turn runs, and the caller would not wait.
    #[error("a turn is running")]
    Busy,
    /// Too many wait.
    #[error("too many prompts are waiting")]
    QueueFull,
    /// It has not ended.
    #[error("the instance has not ended")]
    StillActive,
}

/// Decides. Total: every state answers every request.
pub const fn admit(state: State, request: Request) -> Decision {
    let ended = state.status.is_final();
    match request {
        Request::Prompt { .. } if ended => Decision::Refuse(Refusal::Ended),
        Request::Prompt { .. } if state.stopping => Decision::Refuse(Refusal::Stopping),
        Request::Prompt { when_busy } => admit_prompt(state, when_busy),
        Request::Cancel => match state.turn {
            TurnState::Prompting | TurnState::AwaitingPermission | TurnState::AwaitingInput if !ended => {
                Decision::Proceed
            }
            _ if !ended && (state.queued > 0 || state.asking > 0) => Decision::Proceed,
            _ => Decision::AlreadySo,
        },
        Request::Stop if ended || state.stopping => Decision::AlreadySo,
        Request::Stop => Decision::Proceed,
        Request::Resume if ended => Decision::Proceed,
        Request::Resume => Decision::Refuse(Refusal::StillActive),
    }
}

const fn admit_prompt(state: State, when_busy: WhenBusy) -> Decision {
    let ready = matches!(state.status, InstanceStatus::Running);
    let idle = matches!(state.turn, TurnState::Idle) && state.queued == 0;
    if ready && idle {
        return Decision::Proceed;
    }
    match when_busy {
        WhenBusy::Reject => Decision::Refuse(Refusal::Busy),
        // A starting instance has nothing to interrupt: the prompt waits for the session.
        WhenBusy::Interrupt if ready => Decision::CancelThenProceed,
        WhenBusy::Interrupt | WhenBusy::Queue if state.queued >= state.queue_limit => {
            Decision::Refuse(Refusal::QueueFull)
        }
        WhenBusy::Interrupt | WhenBusy::Queue => Decision::Enqueue,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_state() -> impl Strategy<Value = State> {
        (
            prop::sample::select(InstanceStatus::ALL),
            prop::sample::select(TurnState::ALL),
            0usize..5,
            1usize..5,
            0usize..3,
            any::<bool>(),
        )
            .prop_map(|(status, turn, queued, queue_limit, asking, stopping)| State {
                status,
                turn,
                queued,
                queue_limit,
                asking,
                stopping,
            })
    }

    fn any_when_busy() -> impl Strategy<Value = WhenBusy> {
        prop::sample::select(&[WhenBusy::Queue, WhenBusy::Interrupt, WhenBusy::Reject][..])
    }

    proptest! {
        #[test]
        fn an_ended_instance_takes_no_prompt(state in any_state(), when_busy in any_when_busy()) {
            if state.status.is_final() {
                prop_assert_eq!(admit(state, Request::Prompt { when_busy }), Decision::Refuse(Refusal::Ended));
            }
        }

        #[test]
        fn a_prompt_runs_at_once_only_when_nothing_else_does(state in any_state(), when_busy in any_when_busy()) {
            if admit(state, Request::Prompt { when_busy }) == Decision::Proceed {
                prop_assert_eq!(state.status, InstanceStatus::Running);
                prop_assert_eq!(state.turn, TurnState::Idle);
                prop_assert_eq!(state.queued, 0);
                prop_assert!(!state.stopping);
            }
        }

        #[test]
        fn the_queue_never_grows_past_its_limit(state in any_state(), when_busy in any_when_busy()) {
            if admit(state, Request::Prompt { when_busy }) == Decision::Enqueue {
                prop_assert!(state.queued < state.queue_limit);
            }
        }

        #[test]
        fn cancel_and_stop_are_never_refused(state in any_state()) {
            for request in [Request::Cancel, Request::Stop] {
                prop_assert!(!matches!(admit(state, request), Decision::Refuse(_)));
            }
        }

        #[test]
        fn stop_acts_once(state in any_state()) {
            if admit(state, Request::Stop) == Decision::Proceed {
                let stopping = State { stopping: true, ..state };
                prop_assert_eq!(admit(stopping, Request::Stop), Decision::AlreadySo);
            }
        }

        #[test]
        fn resume_and_prompt_never_both_proceed(state in any_state(), when_busy in any_when_busy()) {
            let both = admit(state, Request::Resume) == Decision::Proceed
                && admit(state, Request::Prompt { when_busy }) == Decision::Proceed;
            prop_assert!(!both);
        }
    }
}
