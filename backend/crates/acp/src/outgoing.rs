//! Frames for the agent: one line of JSON each, its newline included.

use bytes::Bytes;
use serde::Serialize;

use crate::id::Id;
use crate::peer::MAX_PENDING;
use crate::rpc_error::{self, RpcError};

/// Why a frame could not be made.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// Too many of our requests have no answer yet.
    #[error("{MAX_PENDING} requests to the agent are still unanswered")]
    TooManyPending,
    /// The parameters are no JSON.
    #[error("the parameters of '{method}' are no JSON: {source}")]
    Params {
        /// Of which method.
        method: String,
        /// What `serde_json` says.
        source: serde_json::Error,
    },
}

#[derive(Serialize)]
struct Call<'a, P> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    method: &'a str,
    params: &'a P,
}

#[derive(Serialize)]
struct Success<'a, R> {
    jsonrpc: &'static str,
    id: &'a Id,
    result: &'a R,
}

#[derive(Serialize)]
struct Failure<'a> {
    jsonrpc: &'static str,
    id: Option<&'a Id>,
    error: &'a RpcError,
}

pub(crate) fn call(id: Option<u64>, method: &str, params: &impl Serialize) -> Result<Bytes, FrameError> {
    let call = Call {
        jsonrpc: "2.0",
        id,
        method,
        params,
    };
    frame(&call).map_err(|source| FrameError::Params {
        method: method.to_owned(),
        source,
    })
}

/// The frame of a notification.
pub fn notification(method: &str, params: &impl Serialize) -> Result<Bytes, FrameError> {
    call(None, method, params)
}

/// The frame that answers the agent's request `id`. A result that is no JSON becomes an internal error, since the
/// agent waits for an answer all the same.
pub fn respond(id: &Id, result: &impl Serialize) -> Bytes {
    let success = Success {
        jsonrpc: "2.0",
        id,
        result,
    };
    frame(&success)
        .unwrap_or_else(|e| respond_error(Some(id), &RpcError::new(rpc_error::INTERNAL_ERROR, e.to_string())))
}

/// The frame that refuses the agent's request `id`; null when there is none to name.
pub fn respond_error(id: Option<&Id>, error: &RpcError) -> Bytes {
    let failure = Failure {
        jsonrpc: "2.0",
        id,
        error,
    };
    frame(&failure).unwrap_or_else(|_| {
        Bytes::from_static(
            b"{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32603,\"message\":\"Internal error\"}}\n",
        )
    })
}

/// The frame for a method that nobody handles.
pub fn method_not_found(id: &Id, method: &str) -> Bytes {
    respond_error(Some(id), &RpcError::method_not_found(method))
}

fn frame(message: &impl Serialize) -> Result<Bytes, serde_json::Error> {
    let mut bytes = serde_json::to_vec(message)?;
    // Raw JSON of a caller may be spread over lines. Strings escape theirs, so any line break here is white space.
    let mut from = 0;
    while let Some(at) = memchr::memchr2(b'\n', b'\r', &bytes[from..]) {
        bytes[from + at] = b' ';
        from += at + 1;
    }
    bytes.push(b'\n');
    Ok(Bytes::from(bytes))
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn raw_json_over_several_lines_stays_one_frame() {
        let raw = RawValue::from_string("{\n  \"a\": \"x\\ny\",\r\n  \"b\": 1\n}".to_owned()).unwrap();
        let frame = notification("m", &raw).unwrap();
        assert_eq!(memchr::memchr(b'\n', &frame), Some(frame.len() - 1));
        let value: Value = serde_json::from_slice(&frame).unwrap();
        assert_eq!(value["params"], json!({"a": "x\ny", "b": 1}));
    }

    #[test]
    fn a_result_that_is_no_json_is_answered_all_the_same() {
        let no_json = std::collections::BTreeMap::from([(vec![1], 2)]);
        let answer: Value = serde_json::from_slice(&respond(&Id::from(7), &no_json)).unwrap();
        assert_eq!(
            (&answer["id"], &answer["error"]["code"]),
            (&json!(7), &json!(-32603))
        );
        assert!(matches!(
            notification("m", &no_json),
            Err(FrameError::Params { .. })
        ));
    }
}
