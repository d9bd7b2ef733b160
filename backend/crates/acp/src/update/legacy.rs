//! Lines of the protocol before JSON-RPC, read only. Source: the seed, "Legacy Message Format".
//!
//! A message is an object with one of six types. Nothing else in it is needed: an agent that leaves a field out is
//! understood as far as it goes. What its line means is given in the form of an ACP update.

use std::borrow::Cow;

use kandev_domain::LogLevel;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::kandev::{Meta, TextBlock, as_text, percentage};
use super::{TurnEnd, TurnError};
use crate::json::Fields;

/// What a line is.
#[derive(Debug)]
pub enum Reading {
    /// A message of one of the six types.
    Message {
        /// In the form of `session/update` parameters; the agent's own are kept in `update._meta["kandev.original"]`.
        update: Box<RawValue>,
        /// What it says.
        said: Said,
    },
    /// A message of another type.
    Unknown,
    /// No message: a line of log.
    Noise,
}

/// What a message says.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    /// How far it is, 0 to 100; none if it gave no figure.
    Progress(Option<u8>),
    /// A line of log.
    Log {
        /// Its level, guessed if the agent names none that there is.
        level: LogLevel,
        /// What it says.
        message: String,
    },
    /// The task is over.
    Result(TurnEnd),
    /// Something is wrong; the task goes on until it has a result.
    Error(TurnError),
    /// `started`, `running`, `paused`, `stopped`, or another word.
    Status,
    /// It is alive.
    Heartbeat,
}

/// Reads a line, its newline gone.
pub fn read(line: &[u8]) -> Reading {
    let object = std::str::from_utf8(line).ok().map(str::trim);
    let raw = object
        .filter(|text| text.starts_with('{'))
        .and_then(|text| serde_json::from_str::<&RawValue>(text).ok());
    let Some(raw) = raw else { return Reading::Noise };
    let fields = Fields::of(raw);
    let Some(kind) = fields.text("type") else {
        return Reading::Noise;
    };
    let data = Data {
        fields: fields.object("data"),
        text: fields.text("data"),
    };
    let mut body = Body::new(raw);
    let said = match &*kind {
        "progress" => progress(&data, &mut body),
        "log" => log(&data, &mut body),
        "result" => result(&data, &mut body),
        "error" => error(&data, &mut body),
        "status" => {
            body.kind = "status";
            body.status = data.first(&["status", "state"]);
            body.message = data.first(&["message"]);
            Said::Status
        }
        "heartbeat" => {
            body.kind = "heartbeat";
            Said::Heartbeat
        }
        _ => return Reading::Unknown,
    };
    match to_raw_value(&Params { update: body }) {
        Ok(update) => Reading::Message { update, said },
        Err(_) => Reading::Noise,
    }
}

/// `data`, which is an object; some agents write a text.
struct Data<'a> {
    fields: Fields<'a>,
    text: Option<Cow<'a, str>>,
}

impl<'a> Data<'a> {
    /// The first of these fields that is there, or the text.
    fn first(&self, names: &[&str]) -> Option<Cow<'a, str>> {
        let field = names.iter().find_map(|name| self.fields.get(name));
        field.map(as_text).map(Cow::Owned).or_else(|| self.text.clone())
    }
}

fn progress<'a>(data: &Data<'a>, body: &mut Body<'a>) -> Said {
    let figure = ["progress", "percentage", "percent"]
        .iter()
        .find_map(|name| data.fields.get(name));
    body.kind = "progress";
    body.progress = figure.and_then(percentage);
    body.current_file = ["current_file", "currentFile", "file"]
        .iter()
        .find_map(|name| data.fields.text(name));
    body.message = data.first(&["message"]);
    Said::Progress(body.progress)
}

fn log<'a>(data: &Data<'a>, body: &mut Body<'a>) -> Said {
    let message = data.first(&["message", "msg", "text"]).unwrap_or_default();
    let level = match data.fields.text("level").as_deref() {
        Some("warning") => LogLevel::Warn,
        Some(level) => level.parse().unwrap_or_else(|_| LogLevel::guess(level)),
        None => LogLevel::guess(&message),
    };
    body.kind = "log";
    body.level = Some(level);
    body.message = Some(message.clone());
    Said::Log {
        level,
        message: message.into_owned(),
    }
}

/// What was done becomes the agent's message, so that a turn's text has it.
fn result<'a>(data: &Data<'a>, body: &mut Body<'a>) -> Said {
    let status = data.fields.text("status").or_else(|| data.fields.text("result"));
    let summary = data.first(&["summary", "message", "output"]);
    let wrong = data.fields.get("error");
    let (success, stop_reason) = match status.as_deref() {
        Some("cancelled" | "canceled") => (true, "cancelled"),
        Some("failed" | "failure" | "error") => (false, "error"),
        None if wrong.is_some() || is_false(data.fields.get("success")) => (false, "error"),
        _ => (true, "end_turn"),
    };
    body.kind = "result";
    body.status = status;
    if let Some(summary) = &summary {
        body.kind = "agent_message_chunk";
        body.content = Some(TextBlock::new(summary.clone()));
    }
    let summary = summary.map(Cow::into_owned);
    let error = (!success).then(|| TurnError {
        message: wrong
            .map(as_text)
            .or_else(|| summary.clone())
            .unwrap_or_else(|| "the agent reported no success".to_owned()),
        details: data.fields.get("details").map(as_text),
    });
    Said::Result(TurnEnd {
        success,
        stop_reason: stop_reason.to_owned(),
        summary,
        error,
    })
}

fn is_false(raw: Option<&RawValue>) -> bool {
    raw.is_some_and(|raw| raw.get() == "false")
}

fn error<'a>(data: &Data<'a>, body: &mut Body<'a>) -> Said {
    let message = data.first(&["message", "error"]);
    let message = message.unwrap_or(Cow::Borrowed("the agent reported an error"));
    body.kind = "error";
    body.message = Some(message.clone());
    Said::Error(TurnError {
        message: message.into_owned(),
        details: data.fields.get("details").map(as_text),
    })
}

#[derive(Serialize)]
struct Params<'a> {
    update: Body<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    #[serde(rename = "sessionUpdate")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<TextBlock<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_file: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<LogLevel>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Cow<'a, str>>,
    #[serde(rename = "_meta")]
    meta: Meta<'a>,
}

impl<'a> Body<'a> {
    const fn new(original: &'a RawValue) -> Self {
        Self {
            kind: "",
            content: None,
            progress: None,
            current_file: None,
            status: None,
            level: None,
            message: None,
            meta: Meta { original },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read_one(kind: &str, data: &Value) -> (Value, Said) {
        let line = json!({"type": kind, "agent_id": "a", "task_id": "t",
            "timestamp": "2026-01-10T12:00:00Z", "data": data});
        match read(format!(" {line}\r").as_bytes()) {
            Reading::Message { update, said } => {
                let mut update: Value = serde_json::from_str(update.get()).unwrap();
                assert_eq!(update["update"]["_meta"], json!({"kandev.original": line}));
                update["update"].as_object_mut().unwrap().remove("_meta");
                (update["update"].take(), said)
            }
            other => panic!("{other:?}"),
        }
    }

    fn end(data: &Value) -> TurnEnd {
        match read_one("result", data).1 {
            Said::Result(end) => end,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_six_types_are_understood() {
        let data = json!({"progress": 50, "current_file": "auth/login.go"});
        assert_eq!(
            read_one("progress", &data),
            (
                json!({"sessionUpdate": "progress", "progress": 50, "currentFile": "auth/login.go"}),
                Said::Progress(Some(50))
            )
        );
        assert_eq!(
            read_one("log", &json!({"level": "warn", "message": "slow"})),
            (
                json!({"sessionUpdate": "log", "level": "warn", "message": "slow"}),
                Said::Log {
                    level: LogLevel::Warn,
                    message: "slow".to_owned()
                }
            )
        );
        let (update, _) = read_one("result", &json!({"status": "completed", "summary": "done"}));
        let content = json!({"type": "text", "text": "done"});
        assert_eq!(
            update,
            json!({"sessionUpdate": "agent_message_chunk", "status": "completed", "content": content})
        );
        assert_eq!(
            read_one("error", &json!({"message": "no", "details": {"line": 45}})).1,
            Said::Error(TurnError {
                message: "no".to_owned(),
                details: Some(r#"{"line":45}"#.to_owned())
            })
        );
        let (update, said) = read_one("status", &json!({"status": "paused"}));
        assert_eq!(
            (update, said),
            (
                json!({"sessionUpdate": "status", "status": "paused"}),
                Said::Status
            )
        );
        assert_eq!(
            read_one("heartbeat", &json!({})),
            (json!({"sessionUpdate": "heartbeat"}), Said::Heartbeat)
        );
    }

    #[test]
    fn a_result_ends_the_turn_in_one_of_three_ways() {
        let good = end(&json!({"status": "completed", "summary": "s"}));
        assert_eq!(
            (good.success, good.stop_reason.as_str(), good.summary.as_deref()),
            (true, "end_turn", Some("s"))
        );
        let bad = end(&json!({"status": "failed", "error": "no disk", "summary": "s"}));
        assert_eq!((bad.success, bad.stop_reason.as_str()), (false, "error"));
        assert_eq!(bad.error.unwrap().message, "no disk");
        assert_eq!(end(&json!({"status": "cancelled"})).stop_reason, "cancelled");
        assert!(end(&json!({})).success && end(&json!("all done")).success);
        assert_eq!(end(&json!("all done")).summary.as_deref(), Some("all done"));
        assert!(!end(&json!({"error": {"code": 1}})).success && !end(&json!({"success": false})).success);
    }

    #[test]
    fn what_is_missing_or_odd_is_done_without() {
        for data in [json!({}), Value::Null, json!([1]), json!({"progress": "soon"})] {
            assert_eq!(read_one("progress", &data).1, Said::Progress(None), "{data}");
        }
        assert_eq!(
            read_one("progress", &json!({"percent": "250%"})).1,
            Said::Progress(Some(100))
        );
        let logged = |data: &Value| match read_one("log", data).1 {
            Said::Log { level, message } => (level, message),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            logged(&json!("ERROR: bad")),
            (LogLevel::Error, "ERROR: bad".to_owned())
        );
        assert_eq!(
            logged(&json!({"level": "loud", "message": 7})),
            (LogLevel::Info, "7".to_owned())
        );
        assert!(matches!(
            read(br#"{"type":"heartbeat"}"#),
            Reading::Message { .. }
        ));
        let lone = br#"{"type":"log","data":{"message":"a\ud800b"}}"#;
        assert!(
            matches!(read(lone), Reading::Message { said: Said::Log { message, .. }, .. } if message == "a\u{FFFD}b")
        );
    }

    #[test]
    fn other_lines_are_told_apart() {
        for line in [
            "",
            "42",
            "[1]",
            "{oops",
            "plain",
            "{\"type\":7}",
            "{\"jsonrpc\":\"2.0\"}",
        ] {
            assert!(matches!(read(line.as_bytes()), Reading::Noise), "{line}");
        }
        assert!(matches!(read(b"{\"type\":\"\xff\"}"), Reading::Noise));
        assert!(matches!(read(br#"{"type":"novel","data":{}}"#), Reading::Unknown));
    }
}
