//! JSON-RPC errors.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::json::{self, Fields};

/// The line was no JSON.
pub const PARSE_ERROR: i64 = -32700;
/// The JSON was no request.
pub const INVALID_REQUEST: i64 = -32600;
/// There is no such method.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// The parameters do not fit the method.
pub const INVALID_PARAMS: i64 = -32602;
/// Something broke inside.
pub const INTERNAL_ERROR: i64 = -32603;
/// ACP: authenticate first.
pub const AUTH_REQUIRED: i64 = -32000;
/// ACP: the one who asked wanted it no more.
pub const REQUEST_CANCELLED: i64 = -32800;
/// ACP: the session, file or other thing is not there.
pub const RESOURCE_NOT_FOUND: i64 = -32002;

/// An error as one side tells it to the other.
#[derive(Debug, Clone, Serialize, thiserror::Error)]
#[error("{message} ({code})")]
pub struct RpcError {
    /// What kind; the constants of this module, or the other side's own.
    pub code: i64,
    /// For people.
    pub message: String,
    /// Particulars, unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Box<RawValue>>,
}

impl RpcError {
    /// Without data.
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            data: None,
        }
    }

    /// With data. Data that cannot be JSON is left out.
    #[must_use]
    pub fn with_data(mut self, data: &impl Serialize) -> Self {
        self.data = serde_json::value::to_raw_value(data).ok();
        self
    }

    /// The answer to a method that nobody handles.
    pub fn method_not_found(method: &str) -> Self {
        Self::new(METHOD_NOT_FOUND, "Method not found").with_data(&serde_json::json!({ "method": method }))
    }

    /// The answer to a request that was taken back.
    pub fn request_cancelled() -> Self {
        Self::new(REQUEST_CANCELLED, "Request cancelled")
    }

    /// True if the agent wants to be authenticated first.
    pub const fn is_auth_required(&self) -> bool {
        self.code == AUTH_REQUIRED
    }

    /// Reads an `error` field. One that is no error object becomes an internal error that holds it as data.
    pub fn from_raw(raw: &RawValue) -> Self {
        let fields = Fields::of(raw);
        let code = fields.get("code").and_then(integer);
        let message = fields
            .string("message")
            .or_else(|| json::text(raw).map(Into::into));
        let data = match code {
            Some(_) => fields.owned("data"),
            None => Some(raw.to_owned()),
        };
        Self {
            code: code.unwrap_or(INTERNAL_ERROR),
            message: message.unwrap_or_else(|| "the agent gave no message".to_owned()),
            data,
        }
    }
}

fn integer(raw: &RawValue) -> Option<i64> {
    let text = json::text_or_number(raw)?;
    text.parse().ok().or_else(|| {
        text.parse::<f64>()
            .ok()
            .filter(|n| n.fract() == 0.0)
            .map(|n| n as i64)
    })
}

impl PartialEq for RpcError {
    fn eq(&self, other: &Self) -> bool {
        let data = |e: &Self| e.data.as_ref().map(|d| d.get().to_owned());
        self.code == other.code && self.message == other.message && data(self) == data(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> RpcError {
        RpcError::from_raw(serde_json::from_str(json).unwrap())
    }

    #[test]
    fn errors_keep_their_data() {
        let e = read(r#"{"code":-32000,"message":"no","data":{"details":"d","reason":"r"}}"#);
        assert!(e.is_auth_required());
        assert_eq!(e.data.as_ref().unwrap().get(), r#"{"details":"d","reason":"r"}"#);
        assert_eq!(
            serde_json::to_string(&e).unwrap(),
            r#"{"code":-32000,"message":"no","data":{"details":"d","reason":"r"}}"#
        );
    }

    #[test]
    fn misshapen_errors_are_errors_all_the_same() {
        assert_eq!(read(r#""boom""#).message, "boom");
        assert_eq!(read(r#"["odd"]"#).data.unwrap().get(), r#"["odd"]"#);
        assert_eq!(read("{}").code, INTERNAL_ERROR);
        assert_eq!(read(r#"{"code":"x","message":"m"}"#).message, "m");
        assert_eq!(read(r#"{"code":-32601.0,"message":"m"}"#).code, METHOD_NOT_FOUND);
        assert_eq!(read(r#"{"code":1,"message":"\ud800"}"#).message, "\u{FFFD}");
    }
}
