//! Directives that only Koda's dialect is about.

use std::time::Duration;

use serde_json::{Value, json};

use super::talk::json_arg;
use super::tools;
use crate::args::{number, required, unescape};
use crate::frame::RpcError;
use crate::koda::subagents::{End, Start};
use crate::koda::{self, settings, subagents};
use crate::turn::{Halt, Run};

/// How often a call is repeated before the detector of loops sees it.
const REPEATS: usize = 3;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Koda {
    Subagent(Start),
    Settings(Value),
    Boundary,
    StopDetail(String),
    Loop,
    ErrorData(RpcError),
}

impl Koda {
    pub(super) fn parse(name: &str, rest: &str) -> Result<Option<Self>, String> {
        Ok(Some(match name {
            "subagent" => Self::Subagent(start(name, rest)?),
            "subagent-settings" => Self::Settings(json_arg(name, rest)?),
            "boundary" => Self::Boundary,
            "stop-detail" => Self::StopDetail(required(name, "a detail", rest.trim())?),
            "loop" => Self::Loop,
            "error-data" => {
                let error = serde_json::from_value(json_arg(name, rest)?);
                Self::ErrorData(error.map_err(|e| format!("/{name}: {e}"))?)
            }
            _ => return Ok(None),
        }))
    }

    pub(super) fn run(self, run: &mut Run<'_>) -> Result<(), Halt> {
        match self {
            Self::Subagent(start) => subagents::call(run, &start),
            Self::Settings(section) => settings::change(run.agent(), &section),
            Self::Boundary => subagents::boundary(run)?,
            Self::StopDetail(detail) => run.meta = Some(json!({koda::STOP_DETAIL: detail})),
            Self::Loop => {
                for _ in 0..REPEATS {
                    tools::call(run, "Read the same file", "read");
                }
                run.say("The same call was made again and again; I stop here.");
                run.meta = Some(json!({koda::STOP_DETAIL: "loop_detected"}));
                return Err(Halt::Stop("end_turn".to_owned()));
            }
            Self::ErrorData(error) => return Err(Halt::Error(error)),
        }
        Ok(())
    }
}

fn start(name: &str, rest: &str) -> Result<Start, String> {
    let mut start = Start::of("");
    let mut rest = rest.trim_start();
    loop {
        let (first, more) = rest.split_once(' ').unwrap_or((rest, ""));
        match first.split_once('=') {
            Some(("role", role)) => start.role = Some(role.to_owned()),
            Some(("steps", n)) => start.steps = number(name, n)?,
            Some(("ms", ms)) => start.pause = Duration::from_millis(number(name, ms)?),
            Some(_) => return Err(format!("/{name}: unknown option '{first}'")),
            None => match first {
                "fail" => start.end = End::Fail,
                "stall" => start.end = End::Stall,
                "backwards" => start.backwards = true,
                _ => break,
            },
        }
        rest = more;
    }
    start.text = unescape(&required(name, "a task", rest)?);
    Ok(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_come_before_the_task() {
        let got = start("subagent", "role=review steps=3 ms=20 stall backwards look at it").unwrap();
        let wanted = Start {
            text: "look at it".to_owned(),
            role: Some("review".to_owned()),
            steps: 3,
            pause: Duration::from_millis(20),
            end: End::Stall,
            backwards: true,
        };
        assert_eq!(got, wanted);
        assert!(start("subagent", "ms=1").is_err() && start("subagent", "x=1 y").is_err());
    }
}
