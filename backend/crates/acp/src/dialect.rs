//! The two dialects of JSON-RPC agents, and what they have in common.

mod asks;
mod calls;
mod handshake;
mod outcome;

pub use asks::{Ask, ENTRY_MARK, Place};
pub use calls::Call;
pub use handshake::{
    AuthMethod, ClientInfo, Negotiated, NegotiationError, SessionMethods, initialize_params, negotiate,
};
pub use outcome::{
    PromptOutcome, SessionInfo, UNKNOWN_STOP_REASON, prompt_outcome, session_established, stop_detail,
};

/// How an agent speaks, once that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// Agent Client Protocol v1.
    Acp,
    /// Kandev's own protocol 1.0.
    Kandev,
}
