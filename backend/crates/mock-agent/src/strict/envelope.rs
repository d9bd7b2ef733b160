//! Whether a line is a JSON-RPC 2.0 message, whatever its method.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// What is wrong with a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It ends where a message goes on.
    Torn,
    Other(String),
}

/// Members as they came, each as its JSON text: ids may be what no parser of ours reads.
struct Members(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfMap;
        impl<'de> Visitor<'de> for OfMap {
            type Value = Members;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a JSON-RPC message")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(OfMap)
    }
}

/// An error as JSON-RPC and the official schema have it.
#[expect(dead_code, reason = "read to see whether it can be")]
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Error {
    code: i32,
    message: String,
    data: Option<IgnoredAny>,
}

/// Checks a line that is not blank.
pub(super) fn check(line: &[u8]) -> Result<(), Fault> {
    let Members(members) = serde_json::from_slice(line).map_err(|e| {
        if e.is_eof() {
            Fault::Torn
        } else {
            Fault::Other(format!("no JSON-RPC message: {e}"))
        }
    })?;
    check_members(&members).map_err(Fault::Other)
}

fn check_members(members: &[(String, Box<RawValue>)]) -> Result<(), String> {
    for (n, (name, _)) in members.iter().enumerate() {
        if !["jsonrpc", "id", "method", "params", "result", "error"].contains(&name.as_str()) {
            return Err(format!("JSON-RPC has no member '{name}'"));
        }
        if members[..n].iter().any(|(other, _)| other == name) {
            return Err(format!("two members '{name}'"));
        }
    }
    let member = |name: &str| members.iter().find(|(n, _)| n == name).map(|(_, raw)| raw.get());
    if member("jsonrpc") != Some(r#""2.0""#) {
        return Err(format!("jsonrpc is {:?}", member("jsonrpc")));
    }
    let id = member("id");
    let is_id = |id: &str| id.starts_with('"') || id.parse::<f64>().is_ok();
    match (member("method"), member("result"), member("error")) {
        (Some(method), None, None) => {
            if !method.starts_with('"') {
                return Err(format!("the method is {method}"));
            }
            if let Some(params) = member("params").filter(|p| !p.starts_with(['{', '['])) {
                return Err(format!("{method}: the params are {params}"));
            }
            // Null is for who answers what has no id that could be read.
            match id {
                Some(id) if !is_id(id) => Err(format!("{method}: the id is {id}")),
                _ => Ok(()),
            }
        }
        (None, Some(_), None) if member("params").is_none() => match id {
            Some(id) if is_id(id) => Ok(()),
            id => Err(format!("the id of a result is {id:?}")),
        },
        (None, None, Some(error)) if member("params").is_none() => {
            serde_json::from_str::<Error>(error).map_err(|e| format!("the error is {error}: {e}"))?;
            match id {
                Some(id) if is_id(id) || id == "null" => Ok(()),
                id => Err(format!("the id of an error is {id:?}")),
            }
        }
        _ => Err("neither a request, a notification, a result nor an error".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_pass() {
        for line in [
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{}}"#,
            r#"{"jsonrpc":"2.0","id":"\ud800","method":"m"}"#,
            r#"{"jsonrpc":"2.0","method":"m","params":[]}"#,
            r#"{"jsonrpc":"2.0","id":0,"result":null}"#,
            r#"{"jsonrpc":"2.0","id":12345678901234567890123,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no"}}"#,
            r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32603,"message":"no","data":{"a":[1]}}}"#,
        ] {
            assert_eq!(check(line.as_bytes()), Ok(()), "{line}");
        }
    }

    #[test]
    fn what_is_no_message_is_told() {
        for (line, problem) in [
            ("{broken", "no JSON-RPC message"),
            ("[]", "no JSON-RPC message"),
            ("42", "no JSON-RPC message"),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"m"}{}"#,
                "no JSON-RPC message",
            ),
            (r#"{"id":1,"method":"m"}"#, "jsonrpc is None"),
            (r#"{"jsonrpc":2.0,"id":1,"method":"m"}"#, "jsonrpc is"),
            (r#"{"jsonrpc":"2.0","id":1,"id":1,"method":"m"}"#, "two members"),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"m","param":{}}"#,
                "no member 'param'",
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"m","params":null}"#,
                "the params are null",
            ),
            (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, "the method is 7"),
            (r#"{"jsonrpc":"2.0","id":null,"method":"m"}"#, "the id is null"),
            (r#"{"jsonrpc":"2.0","id":[],"result":1}"#, "the id of a result"),
            (r#"{"jsonrpc":"2.0","id":null,"result":1}"#, "the id of a result"),
            (r#"{"jsonrpc":"2.0","result":1}"#, "the id of a result"),
            (
                r#"{"jsonrpc":"2.0","error":{"code":1,"message":""}}"#,
                "the id of an error",
            ),
            (r#"{"jsonrpc":"2.0","id":1,"error":{"code":1}}"#, "the error is"),
            (
                r#"{"jsonrpc":"2.0","id":1,"error":{"code":"1","message":""}}"#,
                "the error is",
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"","x":1}}"#,
                "the error is",
            ),
            (r#"{"jsonrpc":"2.0","id":1,"error":null}"#, "the error is null"),
            (
                r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{"code":1,"message":""}}"#,
                "neither",
            ),
            (r#"{"jsonrpc":"2.0","id":1,"method":"m","result":1}"#, "neither"),
            (r#"{"jsonrpc":"2.0","id":1}"#, "neither"),
        ] {
            let Err(Fault::Other(told)) = check(line.as_bytes()) else {
                panic!("{line}: {:?}", check(line.as_bytes()));
            };
            assert!(told.contains(problem), "{line}: {told}");
        }
        assert_eq!(check(br#"{"jsonrpc":"2.0","id":1,"met"#), Err(Fault::Torn));
    }
}
