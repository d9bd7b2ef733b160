//! `elicitation/create` and `elicitation/complete`: reading what an agent asks people for, and answering. Source: ACP v1,
//! "Elicitation".

mod form;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use crate::json::{self, Fields};
use crate::rpc_error::{INVALID_PARAMS, RpcError};

pub use form::{Misfit, check};

/// What an agent asks. Borrows from the parameters.
#[derive(Debug)]
pub struct ElicitationRequest<'a> {
    /// The session that it names. One that is about another request names none.
    pub session_id: Option<Cow<'a, str>>,
    /// The tool call that it is about.
    pub tool_call_id: Option<Cow<'a, str>>,
    /// For people.
    pub message: Cow<'a, str>,
    /// How.
    pub mode: Mode<'a>,
}

/// How it asks.
#[derive(Debug)]
pub enum Mode<'a> {
    /// A form.
    Form {
        /// `requestedSchema`, unchanged: an object.
        schema: &'a RawValue,
    },
    /// A URL to go to.
    Url {
        /// Where: an `http` or `https` URL, since callers make links of it.
        url: Cow<'a, str>,
        /// `elicitationId`, which `elicitation/complete` names.
        key: Cow<'a, str>,
    },
}

impl<'a> ElicitationRequest<'a> {
    /// Reads the parameters. What cannot be shown to anybody is refused.
    pub fn read(params: &'a RawValue) -> Result<Self, RpcError> {
        let fields = Fields::of(params);
        let refuse = |problem: &str| RpcError::new(INVALID_PARAMS, problem);
        let message = fields
            .text("message")
            .ok_or_else(|| refuse("params.message must be a string"))?;
        let mode = match fields.text("mode").as_deref() {
            // As it was before there were others.
            Some("form") | None => {
                let schema = fields
                    .get("requestedSchema")
                    .filter(|raw| raw.get().starts_with('{'));
                Mode::Form {
                    schema: schema.ok_or_else(|| refuse("params.requestedSchema must be an object"))?,
                }
            }
            Some("url") => {
                let url = fields.text("url").filter(|url| is_web(url));
                let key = fields.get("elicitationId").and_then(json::text_or_number);
                Mode::Url {
                    url: url.ok_or_else(|| refuse("params.url must be an http or https URL"))?,
                    key: key.ok_or_else(|| refuse("params.elicitationId must be a string"))?,
                }
            }
            Some(other) => return Err(refuse(&format!("there is no elicitation mode '{other}' here"))),
        };
        Ok(Self {
            session_id: fields.get("sessionId").and_then(json::text_or_number),
            tool_call_id: fields.get("toolCallId").and_then(json::text_or_number),
            message,
            mode,
        })
    }
}

/// Anything else in a link could run in the page that shows it.
fn is_web(url: &str) -> bool {
    let rest = ["https://", "http://"].iter().find_map(|scheme| {
        let head = url.get(..scheme.len())?;
        head.eq_ignore_ascii_case(scheme).then(|| &url[scheme.len()..])
    });
    rest.is_some_and(|rest| !rest.is_empty() && !url.chars().any(|c| c.is_whitespace() || c.is_control()))
}

/// What `elicitation/complete` says is done.
pub fn completed(params: &RawValue) -> Option<Cow<'_, str>> {
    Fields::of(params)
        .get("elicitationId")
        .and_then(json::text_or_number)
}

/// What the agent is told. Made and read as ACP has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum Action {
    /// Yes.
    Accept {
        /// Of a form.
        #[serde(skip_serializing_if = "Option::is_none")]
        content: Option<Map<String, Value>>,
    },
    /// No.
    Decline,
    /// Nobody decided.
    Cancel,
}

impl Action {
    /// The result as ACP has it.
    pub fn outcome(&self) -> Box<RawValue> {
        to_raw_value(self).unwrap_or_else(|_| RawValue::NULL.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use agent_client_protocol_schema::v1::CreateElicitationResponse;
    use serde_json::json;

    use super::*;

    fn raw(json: &str) -> &RawValue {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_form_and_a_url_are_read() {
        let request = ElicitationRequest::read(raw(
            r#"{"sessionId":"s","toolCallId":"t","mode":"form","message":"M","requestedSchema":{"x":1}}"#,
        ))
        .unwrap();
        assert_eq!(
            (
                request.session_id.as_deref(),
                request.tool_call_id.as_deref(),
                &*request.message
            ),
            (Some("s"), Some("t"), "M")
        );
        assert!(matches!(request.mode, Mode::Form { schema } if schema.get() == r#"{"x":1}"#));
        let request = ElicitationRequest::read(raw(
            r#"{"requestId":3,"mode":"url","message":"M","url":"HTTPS://e.org/a?b","elicitationId":7}"#,
        ))
        .unwrap();
        assert!(request.session_id.is_none());
        assert!(matches!(request.mode, Mode::Url { url, key } if url == "HTTPS://e.org/a?b" && key == "7"));
    }

    #[test]
    fn what_cannot_be_shown_is_refused() {
        for params in [
            "{}",
            "[]",
            r#"{"message":"m"}"#,
            r#"{"message":"m","requestedSchema":[]}"#,
            r#"{"message":7,"requestedSchema":{}}"#,
            r#"{"message":"m","mode":"url","url":"https://e.org"}"#,
            r#"{"message":"m","mode":"url","url":"javascript:alert(1)","elicitationId":"e"}"#,
            r#"{"message":"m","mode":"url","url":"https://","elicitationId":"e"}"#,
            r#"{"message":"m","mode":"url","url":"https://e.org/a b","elicitationId":"e"}"#,
            r#"{"message":"m","mode":"_own","requestedSchema":{}}"#,
        ] {
            let refused = ElicitationRequest::read(raw(params)).unwrap_err();
            assert_eq!(refused.code, INVALID_PARAMS, "{params}");
        }
    }

    #[test]
    fn answers_are_of_the_official_form() {
        let content = json!({"a": "x", "b": 1, "c": 1.5, "d": true, "e": ["y"]});
        let content = content.as_object().cloned();
        for action in [
            Action::Accept { content },
            Action::Accept { content: None },
            Action::Decline,
            Action::Cancel,
        ] {
            let ours: Value = serde_json::from_str(action.outcome().get()).unwrap();
            let official: CreateElicitationResponse = serde_json::from_value(ours.clone()).unwrap();
            assert_eq!(serde_json::to_value(official).unwrap(), ours);
            assert_eq!(serde_json::from_value::<Action>(ours).unwrap(), action);
        }
    }
}
