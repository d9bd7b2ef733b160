//! Directives that ask the client.

use std::time::Duration;

use serde_json::{Value, json};

use super::talk::json_arg;
use crate::args::{number, required, word};
use crate::config::Dialect;
use crate::frame;
use crate::sync::NULL_ID;
use crate::turn::{Halt, Run, message_chunk};

/// How long the outcomes of open requests are waited for after a cancel.
const CANCEL_GRACE: Duration = Duration::from_secs(2);
/// How long the answer to a batch is waited for.
const BATCH_WAIT: Duration = Duration::from_secs(1);
const KINDS: &str = "allow_once,allow_always,reject_once,reject_always";
/// Most permission requests at once.
const MAX_TIMES: usize = 1000;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Ask {
    Permission {
        kinds: Vec<String>,
        announced: bool,
        keep: bool,
        times: usize,
    },
    Request {
        method: String,
        params: Value,
    },
    /// A request that is waited for later.
    Later {
        method: String,
        params: Value,
    },
    Notify {
        method: String,
        params: Value,
    },
    /// Takes a request back; none: the last one that is waited for later.
    CancelRequest(Option<String>),
    Id(String),
    Batch,
}

impl Ask {
    pub(super) fn parse(name: &str, rest: &str) -> Result<Option<Self>, String> {
        let (method, params) = word(rest);
        let params = || {
            if params.is_empty() {
                Ok(json!({}))
            } else {
                json_arg(name, params)
            }
        };
        Ok(Some(match name {
            "permission" => permission(name, rest)?,
            "request" => Self::Request {
                method: required(name, "a method", method)?,
                params: params()?,
            },
            "later" => Self::Later {
                method: required(name, "a method", method)?,
                params: params()?,
            },
            "cancel-request" => Self::CancelRequest(if rest.trim().is_empty() {
                None
            } else {
                json_arg(name, rest)?;
                Some(rest.trim().to_owned())
            }),
            "notify" => Self::Notify {
                method: required(name, "a method", method)?,
                params: params()?,
            },
            "id" => {
                json_arg(name, rest)?;
                Self::Id(rest.trim().to_owned())
            }
            "batch" => Self::Batch,
            _ => return Ok(None),
        }))
    }

    pub(super) fn run(self, run: &mut Run<'_>) -> Result<(), Halt> {
        match self {
            Self::Permission {
                kinds,
                announced,
                keep,
                times,
            } => ask_permission(run, &kinds, announced, keep, times),
            Self::Later { method, params } => {
                let params = with_session(run, params);
                let id = send(run, &method, &params);
                run.unanswered.push(id);
                Ok(())
            }
            Self::CancelRequest(id) => {
                let id = id.or_else(|| run.unanswered.last().cloned());
                let id = id.unwrap_or_else(|| NULL_ID.to_owned());
                // As written: ids need not be what a parser makes of them.
                let line = format!(
                    r#"{{"jsonrpc":"2.0","method":"$/cancel_request","params":{{"requestId":{id}}}}}"#
                );
                run.agent().out().line(&line);
                Ok(())
            }
            Self::Request { method, params } => {
                let params = with_session(run, params);
                let id = send(run, &method, &params);
                let answer = run.turn.signal.wait_answer(&id, None, Duration::ZERO);
                run.turn.signal.check()?;
                let said = match answer {
                    Some(Ok(result)) => format!("result {result}"),
                    Some(Err(e)) => format!("error {} {}", e.code, e.message),
                    None => "unanswered".to_owned(),
                };
                run.report("request", &said);
                Ok(())
            }
            Self::Notify { method, params } => {
                run.agent().out().line(&frame::notification(&method, &params));
                Ok(())
            }
            Self::Id(id) => {
                run.next_id = Some(id);
                Ok(())
            }
            Self::Batch => {
                batch(run);
                Ok(())
            }
        }
    }
}

fn permission(name: &str, rest: &str) -> Result<Ask, String> {
    let (mut kinds, mut announced, mut keep, mut times) = (KINDS, true, false, 1);
    for word in rest.split_whitespace() {
        match word.split_once('=') {
            Some(("times", n)) => times = number(name, n)?,
            Some(_) => return Err(format!("/{name}: unknown option '{word}'")),
            None if word == "unannounced" => announced = false,
            None if word == "keep" => keep = true,
            None => kinds = word,
        }
    }
    if times > MAX_TIMES {
        return Err(format!("/{name}: at most {MAX_TIMES} times"));
    }
    let kinds = kinds.split(',').map(str::to_owned).collect();
    Ok(Ask::Permission {
        kinds,
        announced,
        keep,
        times,
    })
}

fn with_session(run: &Run<'_>, mut params: Value) -> Value {
    if let Some(object) = params.as_object_mut() {
        let session = json!(run.turn.session.id);
        object.entry("sessionId").or_insert(session);
    }
    params
}

pub(super) fn send(run: &mut Run<'_>, method: &str, params: &Value) -> String {
    let id = run.next_id.take();
    run.agent().request(id, method, params, &run.turn.signal)
}

/// Koda's own ids and names.
fn kodas_option(kind: &str) -> Option<(&'static str, &'static str)> {
    Some(match kind {
        "allow_always" => ("proceed_always", "Allow All Edits"),
        "allow_once" => ("proceed_once", "Allow"),
        "reject_once" => ("cancel", "Reject"),
        _ => return None,
    })
}

fn options(kinds: &[String], koda: bool) -> Vec<Value> {
    let option = |(n, kind): (usize, &String)| {
        if let Some((id, name)) = kodas_option(kind).filter(|_| koda) {
            return json!({"optionId": id, "name": name, "kind": kind});
        }
        let before = kinds[..n].iter().filter(|other| *other == kind).count();
        let mut id = kind.replace('_', "-");
        if before > 0 {
            id = format!("{id}-{}", before + 1);
        }
        let name = kind.replace('_', " ");
        json!({"optionId": id, "name": name, "kind": kind})
    };
    kinds.iter().enumerate().map(option).collect()
}

fn ask_permission(
    run: &mut Run<'_>,
    kinds: &[String],
    announced: bool,
    keep: bool,
    times: usize,
) -> Result<(), Halt> {
    let options = options(kinds, run.agent().config.dialect == Dialect::Koda);
    let mut asked = Vec::new();
    for _ in 0..times {
        let call = run.next_call();
        let mut tool_call = json!({
            "toolCallId": call, "title": "Run a dangerous command", "kind": "execute",
            "status": "pending", "rawInput": {"command": "rm -rf build"},
        });
        let params = json!({
            "sessionId": run.turn.session.id,
            "toolCall": tool_call,
            "options": options,
        });
        if announced {
            tool_call["sessionUpdate"] = json!("tool_call");
            run.update(tool_call);
        }
        let id = send(run, "session/request_permission", &params);
        asked.push((id, call));
    }
    let mut cancelled = false;
    for (id, call) in asked {
        let (said, status) = match run.turn.signal.wait_answer(&id, None, CANCEL_GRACE) {
            Some(Ok(result)) => {
                let outcome = &result["outcome"];
                match (outcome["outcome"].as_str(), outcome["optionId"].as_str()) {
                    (Some("selected"), Some(option)) => {
                        let allows = option.starts_with("allow") || option.starts_with("proceed");
                        let status = if allows { "completed" } else { "failed" };
                        (format!("selected {option}"), status)
                    }
                    (Some("cancelled"), _) => {
                        cancelled = true;
                        ("cancelled".to_owned(), "failed")
                    }
                    _ => (format!("malformed {result}"), "failed"),
                }
            }
            Some(Err(e)) => (format!("error {} {}", e.code, e.message), "failed"),
            None => ("unanswered".to_owned(), "failed"),
        };
        run.report("permission", &said);
        if announced {
            run.update(json!({
                "sessionUpdate": "tool_call_update", "toolCallId": call,
                "title": "Run a dangerous command", "status": status,
            }));
        }
    }
    if cancelled && !keep {
        return Err(Halt::Cancelled);
    }
    if keep { Ok(()) } else { run.turn.signal.check() }
}

/// A batch, which ACP does not know: the answer should be one error without an id.
fn batch(run: &mut Run<'_>) {
    let session = &run.turn.session.id;
    let update = run.agent().update_line(session, &message_chunk("batched"));
    let request = frame::request("\"batch\"", "mock/batched", &json!({"sessionId": session}));
    run.agent().out().line(&format!("[{update},{request}]"));
    let signal = &run.turn.signal;
    let answer = signal.wait_answer(NULL_ID, Some(BATCH_WAIT), Duration::ZERO);
    let said = match answer {
        Some(Err(e)) => format!("error {}", e.code),
        Some(Ok(result)) => format!("result {result}"),
        None => "unanswered".to_owned(),
    };
    run.report("batch", &said);
}
