//! What one line of the agent's output is.

use std::borrow::Cow;
use std::ops::Range;

use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::id::Id;
use crate::json::{self, each_field, is_null};
use crate::rpc_error::RpcError;

/// A line, read as far as needed to know where it belongs. Borrows from the line.
#[derive(Debug)]
pub enum Message<'a> {
    /// The agent asks and waits for an answer.
    Request {
        /// To be echoed.
        id: Id,
        /// What it asks for.
        method: Cow<'a, str>,
        /// The particulars.
        params: Option<Params<'a>>,
    },
    /// The agent tells.
    Notification {
        /// What about.
        method: Cow<'a, str>,
        /// The particulars.
        params: Option<Params<'a>>,
    },
    /// The agent answers.
    Response {
        /// Which request; none if it could not tell.
        id: Option<Id>,
        /// Its answer.
        outcome: Result<&'a RawValue, RpcError>,
        /// Whether it says `"jsonrpc":"2.0"`. If not, it is a message only if something waits for it.
        versioned: bool,
    },
    /// Several messages in an array, which ACP does not have.
    Batch,
    /// No message.
    Noise(NoiseReason),
}

/// Parameters, and where in the line they are, so that a caller who holds the line as `Bytes` can slice it.
#[derive(Debug, Clone)]
pub struct Params<'a> {
    /// Their JSON.
    pub raw: &'a RawValue,
    /// Their bytes within the line.
    pub range: Range<usize>,
}

/// Why a line is no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NoiseReason {
    /// Not JSON.
    NotJson,
    /// JSON, but no object.
    NotAnObject,
    /// An object, but no JSON-RPC message.
    NotAMessage,
    /// Not UTF-8.
    NotUtf8,
    /// Nothing but white space.
    Blank,
}

/// Reads a line, its newline gone. Never fails and never recurses.
///
/// Requests and notifications need `"jsonrpc":"2.0"` and a method; a request's id is a number or a string, and with a
/// null id it is a notification. Source: JSON-RPC 2.0, sections 4 and 5.
pub fn parse(line: &[u8]) -> Message<'_> {
    if line.trim_ascii().is_empty() {
        return Message::Noise(NoiseReason::Blank);
    }
    let Ok(text) = std::str::from_utf8(line) else {
        return Message::Noise(NoiseReason::NotUtf8);
    };
    match text.trim_ascii_start().as_bytes()[0] {
        b'{' => parse_object(text),
        b'[' => parse_array(text),
        _ => Message::Noise(match serde_json::from_str::<IgnoredAny>(text) {
            Ok(_) => NoiseReason::NotAnObject,
            Err(_) => NoiseReason::NotJson,
        }),
    }
}

#[derive(Default)]
struct Head<'a> {
    jsonrpc: Option<&'a RawValue>,
    id: Option<&'a RawValue>,
    method: Option<&'a RawValue>,
    params: Option<&'a RawValue>,
    result: Option<&'a RawValue>,
    error: Option<&'a RawValue>,
}

fn parse_object(text: &str) -> Message<'_> {
    let mut head = Head::default();
    let read = each_field(text, |key, value| match key {
        "jsonrpc" => head.jsonrpc = Some(value),
        "id" => head.id = Some(value),
        "method" => head.method = Some(value),
        "params" => head.params = Some(value),
        "result" => head.result = Some(value),
        "error" => head.error = Some(value),
        _ => {}
    });
    if read.is_err() {
        return Message::Noise(NoiseReason::NotJson);
    }
    let versioned = head.jsonrpc.and_then(json::text).is_some_and(|v| v == "2.0");
    let id = head.id.filter(|raw| !is_null(raw));
    if let Some(method) = head.method.filter(|raw| !is_null(raw)) {
        let params = head.params.filter(|raw| !is_null(raw)).map(|raw| Params {
            raw,
            range: range_in(text, raw),
        });
        return match (versioned, json::text(method), id.map(Id::from_raw)) {
            (true, Some(method), None) => Message::Notification { method, params },
            (true, Some(method), Some(Some(id))) => Message::Request { id, method, params },
            _ => Message::Noise(NoiseReason::NotAMessage),
        };
    }
    // Some libraries write both fields, one of them null.
    let error = head.error.filter(|raw| !is_null(raw));
    let outcome = match (error, head.result.or(head.error)) {
        (Some(error), _) => Err(RpcError::from_raw(error)),
        (None, Some(result)) => Ok(result),
        (None, None) => return Message::Noise(NoiseReason::NotAMessage),
    };
    Message::Response {
        id: id.and_then(Id::from_raw),
        outcome,
        versioned,
    }
}

fn parse_array(text: &str) -> Message<'_> {
    let Ok(elements) = serde_json::from_str::<Vec<&RawValue>>(text) else {
        return Message::Noise(NoiseReason::NotJson);
    };
    let speaks = |raw: &RawValue| {
        let mut found = false;
        each_field(raw.get(), |key, _| found |= key == "jsonrpc").is_ok() && found
    };
    if elements.into_iter().any(speaks) {
        Message::Batch
    } else {
        Message::Noise(NoiseReason::NotAnObject)
    }
}

fn range_in(text: &str, raw: &RawValue) -> Range<usize> {
    let start = raw.get().as_ptr() as usize - text.as_ptr() as usize;
    start..start + raw.get().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(line: &str) -> Option<NoiseReason> {
        match parse(line.as_bytes()) {
            Message::Noise(reason) => Some(reason),
            _ => None,
        }
    }

    #[test]
    fn noise_is_told_apart() {
        use NoiseReason::*;
        for (line, reason) in [
            ("", Blank),
            (" \t\r", Blank),
            ("Starting agent…", NotJson),
            ("\u{1b}[32mready\u{1b}[0m", NotJson),
            ("{oops", NotJson),
            (r#"{"jsonrpc":"2.0","method":"x"} trailing"#, NotJson),
            ("42", NotAnObject),
            ("[1]", NotAnObject),
            ("[]", NotAnObject),
            (r#"[{"id":1}]"#, NotAnObject),
            (r#""text""#, NotAnObject),
            ("null", NotAnObject),
            (r#"{"id":3,"level":"info"}"#, NotAMessage),
            (r#"{"jsonrpc":"2.0","id":3}"#, NotAMessage),
            (r#"{"method":"x"}"#, NotAMessage),
            (r#"{"jsonrpc":"1.0","method":"x"}"#, NotAMessage),
            (r#"{"jsonrpc":2.0,"method":"x"}"#, NotAMessage),
            (r#"{"jsonrpc":"2.0","method":7}"#, NotAMessage),
            (r#"{"jsonrpc":"2.0","method":"x","id":{}}"#, NotAMessage),
        ] {
            assert_eq!(noise(line), Some(reason), "{line}");
        }
        assert!(matches!(parse(b"\xff\xfe"), Message::Noise(NotUtf8)));
    }

    #[test]
    fn params_are_found_in_the_line() {
        let line = br#" {"method":"session/update", "params" : {"a":[1, "}"]} ,"jsonrpc":"2.0"}"#;
        let Message::Notification { method, params } = parse(line) else {
            panic!()
        };
        let params = params.unwrap();
        assert!(matches!(method, Cow::Borrowed("session/update")));
        assert_eq!(&line[params.range], br#"{"a":[1, "}"]}"#);
        assert_eq!(params.raw.get(), r#"{"a":[1, "}"]}"#);
    }

    #[test]
    fn odd_strings_in_a_frame_do_not_make_it_noise() {
        for inside in [
            r#""\u0000""#,
            r#""\ud800""#,
            r#""\udfff\ud800""#,
            r#"{"\ud800":1}"#,
            "1e999",
        ] {
            let line = format!(r#"{{"jsonrpc":"2.0","method":"m","params":{{"x":{inside}}},"\ud800":1}}"#);
            assert!(
                matches!(parse(line.as_bytes()), Message::Notification { .. }),
                "{line}"
            );
        }
    }

    #[test]
    fn depth_is_no_danger() {
        for depth in [200, 1_000_000] {
            let (open, close) = ("[".repeat(depth), "]".repeat(depth));
            let line = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"x":{open}{close}}}}}"#);
            assert!(matches!(parse(line.as_bytes()), Message::Request { .. }));
            assert_eq!(noise(&format!("{open}{close}")), Some(NoiseReason::NotAnObject));
            assert_eq!(noise(&open), Some(NoiseReason::NotJson));
            assert_eq!(noise(&r#"{"a":"#.repeat(depth)), Some(NoiseReason::NotJson));
        }
    }

    #[test]
    fn responses_need_a_result_or_an_error() {
        let outcome = |line: &'static str| match parse(line.as_bytes()) {
            Message::Response { outcome, .. } => outcome.map(RawValue::get).map_err(|e| e.code),
            other => panic!("{other:?}"),
        };
        assert_eq!(outcome(r#"{"jsonrpc":"2.0","id":1,"result":null}"#), Ok("null"));
        assert_eq!(
            outcome(r#"{"jsonrpc":"2.0","id":1,"result":1,"error":null}"#),
            Ok("1")
        );
        assert_eq!(
            outcome(r#"{"id":1,"result":null,"error":{"code":5,"message":""}}"#),
            Err(5)
        );
        assert_eq!(
            outcome(r#"{"jsonrpc":"2.0","id":1,"method":null,"result":2}"#),
            Ok("2")
        );
    }

    #[test]
    fn repeated_and_escaped_keys_are_no_trouble() {
        let line = br#"{"jsonrpc":"2.0","id":1,"id":2,"m\u0065thod":"a","method":"b"}"#;
        let Message::Request { id, method, .. } = parse(line) else {
            panic!()
        };
        assert_eq!((id.as_u64(), method.as_ref()), (Some(2), "b"));
    }

    #[test]
    fn a_batch_is_known_by_one_message_in_it() {
        assert!(matches!(parse(br#"[1,{"jsonrpc":"2.0"}]"#), Message::Batch));
    }
}
