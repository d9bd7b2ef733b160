//! The client side of the Agent Client Protocol over a container's stdin and stdout, without any I/O at its core.
//!
//! # One line in
//!
//! 1. Bytes of stdout go into [`frame::LineDecoder`], which cuts [`frame::Line`]s; one beyond the limit comes out as
//!    its beginning, and its rest is dropped.
//! 2. [`peer::Peer::receive`] reads a line by [`message::parse`], as far as needed to know where it belongs, and says
//!    what it is: the answer to a request of ours together with the caller's tag, a request, a notification, or
//!    noise, which is a line of log. Nothing that an agent writes makes it fail.
//! 3. The caller takes it on: [`dialect::negotiate`], [`dialect::session_established`] and
//!    [`dialect::prompt_outcome`] read answers, [`update::read_update`] reads a `session/update`,
//!    [`permission::PermissionRequest`] reads a permission request, [`elicitation::ElicitationRequest`] what people are asked. They keep as raw JSON what they do not need to know.
//!
//! An agent of the legacy protocol has no peer: [`update::legacy::read`] reads each of its lines.
//!
//! # One frame out
//!
//! 1. A method of [`dialect::Dialect`], say [`prompt`](dialect::Dialect::prompt), gives method and parameters in the
//!    agent's dialect.
//! 2. [`peer::Peer::request`] numbers it, remembers the caller's tag under that number, and gives the frame: one line
//!    with its newline. [`outgoing::respond`] and its like make the frames of answers.
//! 3. [`writer::FrameWriter::send`] queues the frame for the one task that writes to stdin.
//!
//! What must outlive the process is small: [`peer::Peer::snapshot`] and the caller's tags.

pub mod client_methods;
pub mod dialect;
pub mod elicitation;
pub mod frame;
pub mod id;
mod json;
pub mod message;
pub mod outgoing;
pub mod peer;
pub mod permission;
pub mod rpc_error;
pub mod update;
pub mod usage;
pub mod writer;

pub use dialect::Dialect;
pub use frame::{Line, LineDecoder};
pub use id::Id;
pub use message::{NoiseReason, Params};
pub use peer::{Incoming, Peer};
pub use rpc_error::RpcError;
pub use update::{Effect, KandevState, Update, read_update};
pub use writer::FrameWriter;
