//! Directives about the end of the turn.

use std::sync::atomic::Ordering;

use crate::args::{number, required, word};
use crate::frame::RpcError;
use crate::turn::{Halt, Run};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    Stop(String),
    Error { code: i64, message: String },
    ExitAfterTurn(i32),
    IgnoreCancel,
}

impl End {
    pub(super) fn parse(name: &str, rest: &str) -> Result<Option<Self>, String> {
        let (first, second) = word(rest);
        Ok(Some(match name {
            "stop" => Self::Stop(required(name, "a reason", rest)?),
            "error" => Self::Error {
                code: number(name, first)?,
                message: second.to_owned(),
            },
            "exit-after-turn" => Self::ExitAfterTurn(number(name, rest)?),
            "ignore-cancel" => Self::IgnoreCancel,
            _ => return Ok(None),
        }))
    }

    pub(super) fn run(self, run: &mut Run<'_>) -> Result<(), Halt> {
        match self {
            Self::Stop(reason) => Err(Halt::Stop(reason)),
            Self::Error { code, message } => Err(Halt::Error(RpcError::new(code, message))),
            Self::ExitAfterTurn(code) => {
                run.exit_after = Some(code);
                Ok(())
            }
            Self::IgnoreCancel => {
                run.turn.session.ignore_cancel.store(true, Ordering::SeqCst);
                Ok(())
            }
        }
    }
}
