//! Directives that ask people for something, through the client.

use std::time::Duration;

use serde_json::{Value, json};

use super::ask::send;
use super::talk::json_arg;
use crate::args::{number, word};
use crate::frame;
use crate::turn::{Halt, Run};

/// How long the answers are waited for after a cancel.
const CANCEL_GRACE: Duration = Duration::from_secs(2);
/// Most at once.
const MAX_TIMES: usize = 1000;
const KEY: &str = "login";
const URL: &str = "https://example.com/login";

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Elicit {
    /// So many forms at once.
    Form {
        times: usize,
        schema: Value,
    },
    Url {
        key: String,
        url: String,
    },
    Complete(String),
}

impl Elicit {
    pub(super) fn parse(name: &str, rest: &str) -> Result<Option<Self>, String> {
        let (first, more) = word(rest);
        let or = |text: &str, default: &str| {
            let text = text.trim();
            if text.is_empty() { default } else { text }.to_owned()
        };
        Ok(Some(match name {
            "form" => form(name, rest)?,
            "open-url" => Self::Url {
                key: or(first, KEY),
                url: or(more, URL),
            },
            "url-done" => Self::Complete(or(rest, KEY)),
            _ => return Ok(None),
        }))
    }

    pub(super) fn run(self, run: &mut Run<'_>) -> Result<(), Halt> {
        match self {
            Self::Form { times, schema } => {
                let params = json!({
                    "sessionId": run.turn.session.id, "mode": "form", "message": "Tell me more", "requestedSchema": schema,
                });
                let asked: Vec<_> = (0..times)
                    .map(|_| send(run, "elicitation/create", &params))
                    .collect();
                report(run, "form", asked)
            }
            Self::Url { key, url } => {
                let params = json!({
                    "sessionId": run.turn.session.id, "mode": "url", "message": "Log in there", "elicitationId": key, "url": url,
                });
                let id = send(run, "elicitation/create", &params);
                report(run, "open-url", vec![id])
            }
            Self::Complete(key) => {
                let params = json!({"elicitationId": key});
                run.agent()
                    .out()
                    .line(&frame::notification("elicitation/complete", &params));
                Ok(())
            }
        }
    }
}

/// `[times=N] [SCHEMA]`
fn form(name: &str, rest: &str) -> Result<Elicit, String> {
    let (first, more) = word(rest);
    let (times, schema) = match first.strip_prefix("times=") {
        Some(times) => (number(name, times)?, more),
        None => (1, rest),
    };
    if times > MAX_TIMES {
        return Err(format!("/{name}: at most {MAX_TIMES} times"));
    }
    let schema = if schema.trim().is_empty() {
        json!({
            "type": "object",
            "properties": {
                "name": {"type": "string", "title": "Name", "minLength": 1},
                "size": {"type": "integer", "minimum": 1, "maximum": 10},
                "colour": {"type": "string", "enum": ["red", "green"]},
                "sure": {"type": "boolean", "default": false},
                "parts": {"type": "array", "items": {"type": "string", "enum": ["a", "b", "c"]}},
            },
            "required": ["name"],
        })
    } else {
        json_arg(name, schema)?
    };
    Ok(Elicit::Form { times, schema })
}

fn report(run: &mut Run<'_>, name: &str, asked: Vec<String>) -> Result<(), Halt> {
    for id in asked {
        let said = match run.turn.signal.wait_answer(&id, None, CANCEL_GRACE) {
            Some(Ok(result)) => match (result["action"].as_str(), &result["content"]) {
                (Some(action), Value::Null) => action.to_owned(),
                (Some(action), content) => format!("{action} {content}"),
                (None, _) => format!("malformed {result}"),
            },
            Some(Err(e)) => format!("error {} {}", e.code, e.message),
            None => "unanswered".to_owned(),
        };
        run.report(name, &said);
    }
    run.turn.signal.check()
}
