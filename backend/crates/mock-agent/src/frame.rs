//! JSON-RPC frames, in and out. Ids are kept as their JSON text, so that they are echoed exactly.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// JSON-RPC: the line is not JSON.
pub(crate) const PARSE_ERROR: i64 = -32700;
/// JSON-RPC: JSON, but no request; ACP agents use it for a busy session too.
pub(crate) const INVALID_REQUEST: i64 = -32600;
/// JSON-RPC: no such method.
pub(crate) const METHOD_NOT_FOUND: i64 = -32601;
/// JSON-RPC: wrong parameters.
pub(crate) const INVALID_PARAMS: i64 = -32602;
/// JSON-RPC: anything else.
pub(crate) const INTERNAL_ERROR: i64 = -32603;
/// ACP: authenticate first.
pub(crate) const AUTH_REQUIRED: i64 = -32000;
/// ACP: the request was taken back.
pub(crate) const REQUEST_CANCELLED: i64 = -32800;
/// Koda: the session cannot be restored.
pub(crate) const RESTORE_UNAVAILABLE: i64 = -32001;
/// ACP: resource not found. Koda: the session cannot be forked.
pub(crate) const NOT_FOUND: i64 = -32002;

/// A JSON-RPC error.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct RpcError {
    pub(crate) code: i64,
    pub(crate) message: String,
    #[serde(default)]
    pub(crate) data: Option<Value>,
}

impl RpcError {
    pub(crate) fn new(code: i64, message: impl Into<String>) -> Self {
        let (message, data) = (message.into(), None);
        Self { code, message, data }
    }

    pub(crate) fn with_data(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }
}

/// The JSON text of a request's id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Id(pub(crate) String);

impl Id {
    pub(crate) fn null() -> Self {
        Self("null".to_owned())
    }

    /// The same id as a JSON string.
    pub(crate) fn into_text(self) -> Self {
        if self.0.starts_with('"') {
            return self;
        }
        Self(format!("\"{}\"", self.0))
    }
}

/// What a line of stdin turned out to be.
#[derive(Debug, PartialEq)]
pub(crate) enum Incoming {
    /// A request, or a notification when it has no id.
    Call {
        id: Option<Id>,
        method: String,
        params: Value,
    },
    /// The answer to a request of ours.
    Answer { id: Id, answer: Result<Value, RpcError> },
    /// Nothing, and what to say about it.
    Invalid(RpcError),
    /// A blank line.
    Blank,
}

#[derive(Deserialize)]
struct Envelope {
    id: Option<Box<RawValue>>,
    method: Option<String>,
    #[serde(default)]
    params: Value,
    #[serde(default)]
    result: Value,
    error: Option<RpcError>,
}

/// Parses one line.
pub(crate) fn parse(line: &[u8]) -> Incoming {
    let line = line.trim_ascii();
    if line.is_empty() {
        return Incoming::Blank;
    }
    let envelope: Envelope = match serde_json::from_slice(line) {
        Ok(envelope) => envelope,
        Err(e) if e.is_data() => return Incoming::Invalid(RpcError::new(INVALID_REQUEST, e.to_string())),
        Err(e) => return Incoming::Invalid(RpcError::new(PARSE_ERROR, e.to_string())),
    };
    let id = envelope.id.map(|raw| Id(raw.get().to_owned()));
    match (envelope.method, envelope.error) {
        (Some(method), _) => Incoming::Call {
            id,
            method,
            params: envelope.params,
        },
        (None, Some(error)) => Incoming::Answer {
            id: id.unwrap_or_else(Id::null),
            answer: Err(error),
        },
        (None, None) => match id {
            Some(id) => Incoming::Answer {
                id,
                answer: Ok(envelope.result),
            },
            None => Incoming::Invalid(RpcError::new(INVALID_REQUEST, "neither a method nor an id")),
        },
    }
}

/// The line that answers a request, without its newline.
pub(crate) fn answer(id: &Id, outcome: &Result<Value, RpcError>) -> String {
    let id = &id.0;
    match outcome {
        Ok(result) => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#),
        Err(error) => {
            let mut object = json!({"code": error.code, "message": error.message});
            if let Some(data) = &error.data {
                object["data"] = data.clone();
            }
            format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{object}}}"#)
        }
    }
}

/// A request's line.
pub(crate) fn request(id: &str, method: &str, params: &Value) -> String {
    let method = Value::from(method);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":{method},"params":{params}}}"#)
}

/// A notification's line.
pub(crate) fn notification(method: &str, params: &Value) -> String {
    let method = Value::from(method);
    format!(r#"{{"jsonrpc":"2.0","method":{method},"params":{params}}}"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_keep_their_text() {
        for id in ["0", "\"0\"", "\"\"", "12345678901234567890123", "\"a-1\"", "1e3"] {
            let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#);
            let Incoming::Call { id: Some(got), .. } = parse(line.as_bytes()) else {
                panic!("{line}");
            };
            assert_eq!(got.0, id);
            assert!(answer(&got, &Ok(Value::Null)).contains(&format!("\"id\":{id},")));
        }
        assert_eq!(Id("7".to_owned()).into_text().0, "\"7\"");
        assert_eq!(Id("\"7\"".to_owned()).into_text().0, "\"7\"");
    }

    #[test]
    fn nonsense_is_told_apart() {
        let code = |line: &str| match parse(line.as_bytes()) {
            Incoming::Invalid(error) => error.code,
            other => panic!("{other:?}"),
        };
        assert_eq!(code("{broken"), PARSE_ERROR);
        assert_eq!(code("[]"), INVALID_REQUEST);
        assert_eq!(code("42"), INVALID_REQUEST);
        assert_eq!(code("{}"), INVALID_REQUEST);
        assert_eq!(parse(b" \r\n"), Incoming::Blank);
    }

    #[test]
    fn an_error_without_id_is_an_answer_to_null() {
        let got = parse(br#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no"}}"#);
        let error = RpcError::new(INVALID_REQUEST, "no");
        assert_eq!(
            got,
            Incoming::Answer {
                id: Id::null(),
                answer: Err(error)
            }
        );
    }
}
