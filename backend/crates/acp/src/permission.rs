//! `session/request_permission`: reading a request, choosing an option, answering. Source: ACP v1, "Tool Calls",
//! "Requesting Permission".

use std::borrow::Cow;

use kandev_domain::ToolKind;
use kandev_domain::status::PermissionPolicy;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::json::{self, Fields, elements};

/// What an agent asks. Borrows from the parameters.
#[derive(Debug)]
pub struct PermissionRequest<'a> {
    /// The session that it names.
    pub session_id: Option<Cow<'a, str>>,
    /// `toolCall`, unchanged.
    pub tool_call: Option<&'a RawValue>,
    /// `toolCall.toolCallId`. The call may never have been announced.
    pub call_id: Option<Cow<'a, str>>,
    /// `toolCall.kind`; one that ACP does not know is [`ToolKind::Other`]. Agents leave it out where they announced the call.
    pub tool_kind: Option<ToolKind>,
    /// `toolCall.title`.
    pub title: Option<Cow<'a, str>>,
    /// `options`, unchanged, if it is an array.
    pub raw_options: Option<&'a RawValue>,
    /// Those that can be chosen.
    pub options: Vec<PermissionOption>,
}

/// One answer that an agent offers.
#[derive(Debug, Clone)]
pub struct PermissionOption {
    /// `optionId` as text.
    pub id: String,
    /// `kind`, known or not; empty if it has none.
    pub kind: String,
    /// `name`, for people; empty if it has none.
    pub name: String,
    /// `optionId` as the agent wrote it, which is what it gets back.
    raw_id: Box<RawValue>,
}

impl PartialEq for PermissionOption {
    fn eq(&self, other: &Self) -> bool {
        self.raw_id.get() == other.raw_id.get()
    }
}

impl PermissionOption {
    /// The agent is not to ask again.
    pub fn is_for_always(&self) -> bool {
        matches!(self.kind.as_str(), "allow_always" | "reject_always")
    }
}

impl<'a> PermissionRequest<'a> {
    /// Reads the parameters, as far as they can be read.
    pub fn read(params: &'a RawValue) -> Self {
        let fields = Fields::of(params);
        let tool_call = fields.get("toolCall");
        let call = tool_call.map(Fields::of).unwrap_or_default();
        let raw_options = fields.get("options").filter(|raw| raw.get().starts_with('['));
        Self {
            session_id: fields.get("sessionId").and_then(json::text_or_number),
            tool_call,
            call_id: call.get("toolCallId").and_then(json::text_or_number),
            tool_kind: call.text("kind").map(|kind| tool_kind(&kind)),
            title: call.text("title"),
            options: raw_options.map(read_options).unwrap_or_default(),
            raw_options,
        }
    }
}

/// What ACP calls a tool's kind.
pub fn tool_kind(kind: &str) -> ToolKind {
    kind.parse().unwrap_or_default()
}

/// The options in an array that can be chosen: objects with an id.
pub fn read_options(raw: &RawValue) -> Vec<PermissionOption> {
    let read = |raw: &RawValue| {
        let fields = Fields::of(raw);
        let raw_id = fields.get("optionId")?;
        Some(PermissionOption {
            id: json::text_or_number(raw_id)?.into_owned(),
            kind: fields.string("kind").unwrap_or_default(),
            name: fields.string("name").unwrap_or_default(),
            raw_id: raw_id.to_owned(),
        })
    };
    elements(raw).into_iter().filter_map(read).collect()
}

/// What the agent is told.
#[derive(Debug, Clone, PartialEq)]
pub enum Choice {
    /// One of its options.
    Selected(PermissionOption),
    /// None of them.
    Cancelled,
}

#[derive(Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
enum Outcome<'a> {
    #[serde(rename_all = "camelCase")]
    Selected {
        option_id: &'a RawValue,
    },
    Cancelled,
}

impl Choice {
    /// The outcome as ACP has it.
    pub fn outcome(&self) -> Box<RawValue> {
        let outcome = match self {
            Self::Selected(option) => Outcome::Selected {
                option_id: &option.raw_id,
            },
            Self::Cancelled => Outcome::Cancelled,
        };
        to_raw_value(&outcome).unwrap_or_else(|_| RawValue::NULL.to_owned())
    }
}

/// What a policy answers to a request with these options; none if the policy is to ask.
///
/// Options are chosen by kind, the narrowest first, and never by position: an agent may list `allow_always` first. If
/// there is no option of a fitting kind, the answer is that the request was cancelled.
pub fn choose(policy: PermissionPolicy, options: &[PermissionOption]) -> Option<Choice> {
    let kinds = match policy {
        PermissionPolicy::Ask => return None,
        PermissionPolicy::Allow => ["allow_once", "allow_always"],
        PermissionPolicy::Reject => ["reject_once", "reject_always"],
    };
    let found = kinds
        .iter()
        .find_map(|kind| options.iter().find(|option| option.kind == *kind));
    Some(found.map_or(Choice::Cancelled, |option| Choice::Selected(option.clone())))
}

/// The result that tells the agent.
#[derive(Debug, Serialize)]
pub struct PermissionResponse<'a> {
    /// Of [`Choice::outcome`].
    pub outcome: &'a RawValue,
}

#[cfg(test)]
mod tests {
    use agent_client_protocol_schema::v1::RequestPermissionResponse;
    use serde_json::{Value, json};

    use super::*;

    fn raw(json: &str) -> &RawValue {
        serde_json::from_str(json).unwrap()
    }

    fn options(value: &Value) -> Vec<PermissionOption> {
        read_options(&to_raw_value(value).unwrap())
    }

    /// The chosen id; none for cancelled.
    fn chosen(policy: PermissionPolicy, of: &Value) -> Option<String> {
        match choose(policy, &options(of)).unwrap() {
            Choice::Selected(option) => Some(option.id),
            Choice::Cancelled => None,
        }
    }

    #[test]
    fn the_kind_decides_and_the_narrowest_wins() {
        let all = json!([
            {"optionId": "1", "kind": "allow_always", "name": "a"},
            {"optionId": "2", "kind": "reject_always", "name": "b"},
            {"optionId": "3", "kind": "reject_once", "name": "c"},
            {"optionId": "4", "kind": "allow_once", "name": "d"},
            {"optionId": "5", "kind": "allow_once", "name": "e"},
        ]);
        assert_eq!(chosen(PermissionPolicy::Allow, &all).as_deref(), Some("4"));
        assert_eq!(chosen(PermissionPolicy::Reject, &all).as_deref(), Some("3"));
        assert_eq!(choose(PermissionPolicy::Ask, &options(&all)), None);
    }

    #[test]
    fn the_wider_kind_serves_and_nothing_fitting_cancels() {
        let some = json!([{"optionId": "w", "kind": "allow_always"}, {"kind": "allow_once"}, 7]);
        assert_eq!(chosen(PermissionPolicy::Allow, &some).as_deref(), Some("w"));
        assert_eq!(chosen(PermissionPolicy::Reject, &some), None);
        assert_eq!(chosen(PermissionPolicy::Reject, &json!("none")), None);
    }

    #[test]
    fn a_request_is_read_as_far_as_it_goes() {
        let params = r#"{"sessionId":"s","toolCall":{"toolCallId":"t","kind":"craft","title":"T"},
            "options":[{"optionId":"a","kind":"allow_once","name":"Yes"},{"optionId":null},{"optionId":7}]}"#;
        let request = PermissionRequest::read(raw(params));
        assert_eq!(
            (
                request.session_id.as_deref(),
                request.call_id.as_deref(),
                request.title.as_deref()
            ),
            (Some("s"), Some("t"), Some("T"))
        );
        assert_eq!(
            request.tool_kind,
            Some(ToolKind::Other),
            "one that ACP does not know"
        );
        let ids: Vec<_> = request.options.iter().map(|o| o.id.as_str()).collect();
        assert_eq!(ids, ["a", "7"]);
        for params in ["{}", "[]", "7", r#"{"toolCall":[],"options":{"optionId":"a"}}"#] {
            let request = PermissionRequest::read(raw(params));
            assert!(
                request.options.is_empty() && request.tool_kind.is_none(),
                "{params}"
            );
        }
    }

    #[test]
    fn answers_are_of_the_official_form_and_ids_are_those_of_the_agent() {
        let options = options(&json!([{"optionId": "x", "kind": "allow_always"}]));
        assert!(options[0].is_for_always());
        for choice in [Choice::Cancelled, Choice::Selected(options[0].clone())] {
            let ours = serde_json::to_value(PermissionResponse {
                outcome: &choice.outcome(),
            });
            let ours = ours.unwrap();
            let official: RequestPermissionResponse = serde_json::from_value(ours.clone()).unwrap();
            assert_eq!(serde_json::to_value(official).unwrap(), ours);
        }
        for id in [r#""\ud800\u0000""#, r#""\u0061""#, "7.50"] {
            let options = read_options(raw(&format!(r#"[{{"optionId":{id}}}]"#)));
            let outcome = Choice::Selected(options[0].clone()).outcome();
            assert_eq!(
                outcome.get(),
                format!(r#"{{"outcome":"selected","optionId":{id}}}"#)
            );
        }
    }
}
