//! What the helper's replies are to the agent.

use kandev_acp::client_methods::{self, ExitStatus};
use kandev_acp::{RpcError, rpc_error};
use kandev_domain::agent_type::FileAccess;
use kandev_runtime::helper::wire::{Exit, Reason, Reply};
use serde_json::{Value, json};

use super::op::Op;

/// A result, and what is told of it.
#[derive(Debug, Default)]
pub(super) struct Good {
    pub(super) result: Value,
    /// What was read or given.
    pub(super) bytes: Option<u64>,
    /// A file that was not there before.
    pub(super) created: Option<bool>,
    /// It was replaced in one step.
    pub(super) atomic: Option<bool>,
    /// A file that is not there, read as an empty one.
    pub(super) missing: bool,
    pub(super) truncated: Option<bool>,
    pub(super) exit: Option<ExitStatus>,
}

impl Good {
    pub(super) fn result(result: Value) -> Self {
        Self {
            result,
            ..Self::default()
        }
    }
}

/// The answer that a reply makes; of a terminal's output no more than `limit` bytes.
pub(super) fn of(op: &Op, reply: Reply, files: &FileAccess, limit: u64) -> Result<Good, RpcError> {
    match (op, reply) {
        (Op::Read { .. }, Reply::Content(bytes)) => {
            let count = bytes.len() as u64;
            let text = String::from_utf8_lossy(&bytes);
            Ok(Good {
                bytes: Some(count),
                ..Good::result(client_methods::content(&text))
            })
        }
        (Op::Read { .. }, Reply::Failed(Reason::NotFound, _)) if files.missing_reads_empty => Ok(Good {
            bytes: Some(0),
            missing: true,
            ..Good::result(client_methods::content(""))
        }),
        (Op::Write { .. }, Reply::Written { created, atomic }) => Ok(Good {
            created: Some(created),
            atomic: Some(atomic),
            ..Good::result(json!({}))
        }),
        (Op::Create { terminal, .. }, Reply::Done) => Ok(Good::result(client_methods::created(terminal))),
        (Op::Kill { .. } | Op::Release { .. }, Reply::Done) => Ok(Good::result(json!({}))),
        (Op::Wait { .. }, Reply::Exited(exit)) => Ok(exited(status(exit))),
        (Op::Output { .. }, Reply::Output { bytes, total, exit }) => {
            Ok(output(&bytes, total, exit.map(status), limit))
        }
        (op, Reply::Failed(reason, message)) => Err(refused(op, reason, &message)),
        (_, reply) => {
            tracing::warn!(?reply, "the helper answered something else");
            let message = "the helper's answer is not understood";
            Err(RpcError::new(rpc_error::INTERNAL_ERROR, message).with_data(&json!({"reason": "io"})))
        }
    }
}

/// The answer to who waits for an end.
pub(super) fn exited(exit: ExitStatus) -> Good {
    Good {
        exit: Some(exit.clone()),
        ..Good::result(json!(exit))
    }
}

/// What there is of a terminal's output, of which there have been `total` bytes.
pub(super) fn output(bytes: &[u8], total: u64, exit: Option<ExitStatus>, limit: u64) -> Good {
    let cut = (bytes.len() as u64) < total;
    let (text, shortened) = text_of(bytes, cut, exit.is_some(), limit);
    let truncated = cut || shortened;
    Good {
        bytes: Some(text.len() as u64),
        truncated: Some(truncated),
        exit: exit.clone(),
        ..Good::result(client_methods::output(&text, truncated, exit.as_ref()))
    }
}

/// As text of no more than `limit` bytes. What is cut begins with a whole character, and a character that is still to come is
/// left out. True if it had to be cut further, since what is no text takes more room as such.
fn text_of(bytes: &[u8], cut: bool, ended: bool, limit: u64) -> (String, bool) {
    let continued = |byte: &&u8| **byte & 0xC0 == 0x80;
    let begins = if cut {
        bytes.iter().take(3).take_while(continued).count()
    } else {
        0
    };
    let mut bytes = &bytes[begins..];
    if !ended
        && let Some(last) = bytes.utf8_chunks().last()
        && let Err(error) = std::str::from_utf8(last.invalid())
        && error.error_len().is_none()
    {
        bytes = &bytes[..bytes.len() - last.invalid().len()];
    }
    let text = String::from_utf8_lossy(bytes);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    if text.len() <= limit {
        return (text.into_owned(), false);
    }
    let mut from = text.len() - limit;
    while !text.is_char_boundary(from) {
        from += 1;
    }
    (text[from..].to_owned(), true)
}

/// How a process ended, as ACP has it.
pub(super) fn status(exit: Exit) -> ExitStatus {
    match exit {
        Exit::Code(code) => ExitStatus {
            exit_code: Some(code),
            signal: None,
        },
        Exit::Signal(signal) => ExitStatus {
            exit_code: None,
            signal: Some(signal_name(signal)),
        },
    }
}

fn signal_name(number: u32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
        "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
        "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    let name = (number as usize).checked_sub(1).and_then(|at| NAMES.get(at));
    name.map_or_else(|| format!("SIG{number}"), |name| format!("SIG{name}"))
}

/// Why it was not done. What the agent could know better are its parameters; what is not there is not found, and so, to a
/// reader, is what lies outside: agents look for their files in every directory above.
fn refused(op: &Op, reason: Reason, message: &str) -> RpcError {
    let reading = matches!(op, Op::Read { .. });
    let code = match reason {
        Reason::NotFound | Reason::UnknownTerminal | Reason::CommandNotFound => rpc_error::RESOURCE_NOT_FOUND,
        Reason::OutsideRoots if reading => rpc_error::RESOURCE_NOT_FOUND,
        Reason::OutsideRoots
        | Reason::InvalidPath
        | Reason::NotAFile
        | Reason::NotText
        | Reason::TooLarge
        | Reason::InvalidCwd => rpc_error::INVALID_PARAMS,
        Reason::Cancelled => return RpcError::request_cancelled(),
        Reason::PermissionDenied | Reason::ReadOnly | Reason::NoSpace | Reason::TooMany | Reason::Io => {
            rpc_error::INTERNAL_ERROR
        }
    };
    let message = match op {
        Op::Read { path, .. } | Op::Write { path, .. } => format!("{path}: {message}"),
        _ => message.to_owned(),
    };
    RpcError::new(code, message).with_data(&json!({"reason": reason.as_str()}))
}

/// The answer to a request about a terminal that was never there, or is not any more.
pub(super) fn unknown_terminal(id: &str) -> RpcError {
    let data = json!({"reason": Reason::UnknownTerminal.as_str()});
    RpcError::new(
        rpc_error::RESOURCE_NOT_FOUND,
        format!("there is no terminal '{id}'"),
    )
    .with_data(&data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_output_begins_and_ends_with_whole_characters() {
        let text = "né語🦀".as_bytes();
        let of = |bytes: &[u8], cut, ended| text_of(bytes, cut, ended, 100).0;
        assert_eq!(of(text, false, false), "né語🦀");
        assert_eq!(of(&text[2..], true, false), "語🦀");
        assert_eq!(of(&text[7..], true, false), "");
        assert_eq!(of(&text[..8], false, false), "né語", "the rest may come");
        assert_eq!(of(&text[..5], false, true), "né\u{FFFD}", "it will not");
    }

    #[test]
    fn what_is_no_text_keeps_to_the_limit() {
        let (text, shortened) = text_of(b"ab\xff\xff\xff", false, true, 5);
        assert_eq!((text.as_str(), shortened), ("\u{FFFD}", true));
        let (text, shortened) = text_of(b"\xffabcdef", false, true, 7);
        assert_eq!((text.as_str(), shortened), ("abcdef", true));
        let (text, shortened) = text_of(b"\xffabcdef", false, true, 9);
        assert_eq!((text.as_str(), shortened), ("\u{FFFD}abcdef", false));
        let output = output(b"abc", 9, None, 3);
        assert_eq!(
            output.result,
            json!({"output": "abc", "truncated": true, "exitStatus": null})
        );
    }

    #[test]
    fn ends_have_their_names() {
        let signal = |number| status(Exit::Signal(number)).signal.unwrap();
        assert_eq!(
            [signal(9), signal(15), signal(31), signal(40)],
            ["SIGKILL", "SIGTERM", "SIGSYS", "SIG40"]
        );
        assert_eq!(status(Exit::Code(3)).exit_code, Some(3));
    }

    #[test]
    fn a_reader_outside_finds_nothing_and_a_writer_is_told() {
        let path = || "/x".to_owned();
        let read = Op::Read {
            path: path(),
            line: None,
            limit: None,
        };
        let write = Op::Write {
            path: path(),
            seq: 1,
            content: None,
            bytes: 0,
        };
        let code = |op, reason| refused(op, reason, "no").code;
        assert_eq!(code(&read, Reason::OutsideRoots), rpc_error::RESOURCE_NOT_FOUND);
        assert_eq!(code(&write, Reason::OutsideRoots), rpc_error::INVALID_PARAMS);
        assert_eq!(refused(&write, Reason::NoSpace, "no").message, "/x: no");
        let mut files = FileAccess::default();
        let missing =
            |files: &FileAccess| of(&read, Reply::Failed(Reason::NotFound, String::new()), files, 0);
        assert!(missing(&files).is_err());
        files.missing_reads_empty = true;
        assert_eq!(missing(&files).unwrap().result, json!({"content": ""}));
    }
}
