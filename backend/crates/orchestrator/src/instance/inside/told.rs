//! The data of events of kind `fs` and `terminal`. Never what is in a file, nor the value of a variable.

use kandev_acp::client_methods::ExitStatus;
use kandev_acp::{Id, RpcError, rpc_error};
use serde::Serialize;

use super::answer::Good;
use super::op::Op;

/// See the module's text. What is not there is left out.
#[derive(Debug, Default, Serialize)]
pub(super) struct Told<'a> {
    pub(super) operation: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) request_id: Option<&'a Id>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) line: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) terminal_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) command: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) args: Option<&'a [String]>,
    /// Names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) env: Option<Vec<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cwd: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) outcome: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) created: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) atomic: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) missing: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) truncated: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) skipped: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exit: Option<&'a ExitStatus>,
    /// It has had an outcome before, which may not have reached the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) again: Option<bool>,
    /// It may have been begun before, by a helper that is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retried: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) by: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<&'a RpcError>,
}

impl<'a> Told<'a> {
    /// What an operation is about.
    pub(super) fn of(op: &'a Op) -> Self {
        let terminal = |operation| Self {
            operation,
            terminal_id: op.terminal(),
            ..Self::default()
        };
        match op {
            Op::Read { path, line, limit } => Self {
                operation: "read",
                path: Some(path),
                line: *line,
                limit: *limit,
                ..Self::default()
            },
            Op::Write { path, bytes, .. } => Self {
                operation: "write",
                path: Some(path),
                bytes: Some(*bytes as u64),
                ..Self::default()
            },
            Op::Create {
                command,
                args,
                env,
                cwd,
                ..
            } => Self {
                command: Some(command),
                args: Some(args),
                env: Some(env.iter().map(|(name, _)| name.as_str()).collect()),
                cwd: Some(cwd),
                ..terminal("create")
            },
            Op::Output { .. } => terminal("output_asked"),
            Op::Wait { .. } => terminal("wait"),
            Op::Kill { .. } => terminal("kill"),
            Op::Release { .. } => terminal("release"),
        }
    }

    /// What came of it.
    pub(super) fn take_answer(&mut self, answer: &'a Result<Good, RpcError>) {
        match answer {
            Ok(good) => {
                self.outcome = Some("ok");
                self.bytes = good.bytes.or(self.bytes);
                self.created = good.created;
                self.atomic = good.atomic;
                self.missing = good.missing.then_some(true);
                self.truncated = good.truncated;
                self.exit = good.exit.as_ref();
            }
            Err(error) if error.code == rpc_error::REQUEST_CANCELLED => self.outcome = Some("cancelled"),
            Err(error) => {
                self.outcome = Some("error");
                self.error = Some(error);
            }
        }
    }
}
