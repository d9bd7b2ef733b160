//! The helper: a small static program that kandev puts into an agent's container to use files and terminals there, as the
//! agent's user. This library is the language that the two speak; the program is `main.rs`.
//!
//! ```text
//! kandev ── exec: helper connect ──► abstract socket ──► helper serve ──► files, terminals
//! ```
//!
//! The serving process outlives connections, so that terminals outlive a server of kandev's. Everything asked of it can be
//! asked again: a server that does not know whether something was done repeats it.

pub mod wire;

/// The command that gives a connection on stdin and stdout.
pub const CONNECT: &str = "connect";
/// The version of the language. Programs of different versions do not meet in one container.
pub const VERSION: u8 = 2;
