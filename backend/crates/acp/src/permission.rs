//! Answers to `session/request_permission`. Source: ACP v1, "Tool Calls", "Requesting Permission".

use kandev_domain::status::PermissionPolicy;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::json::{Fields, elements};

/// What the agent is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// One of its options.
    Selected {
        /// Which, by the agent's own id.
        option_id: String,
    },
    /// None of them.
    Cancelled,
}

/// What a policy answers to a request with these parameters; none if the policy is to ask.
///
/// Options are chosen by kind, the narrowest first, and never by position: an agent may list `allow_always` first. If
/// there is no option of a fitting kind, the answer is that the request was cancelled.
pub fn choose(policy: PermissionPolicy, params: &RawValue) -> Option<Choice> {
    let kinds = match policy {
        PermissionPolicy::Ask => return None,
        PermissionPolicy::Allow => ["allow_once", "allow_always"],
        PermissionPolicy::Reject => ["reject_once", "reject_always"],
    };
    let options = Fields::of(params)
        .get("options")
        .map(elements)
        .unwrap_or_default();
    let options: Vec<_> = options.into_iter().map(Fields::of).collect();
    let found = kinds.iter().find_map(|kind| {
        options
            .iter()
            .filter(|option| option.text("kind").is_some_and(|k| k == *kind))
            .find_map(|option| option.string("optionId"))
    });
    Some(found.map_or(Choice::Cancelled, |option_id| Choice::Selected { option_id }))
}

/// The result that tells the agent.
pub fn permission_response(choice: &Choice) -> Value {
    match choice {
        Choice::Selected { option_id } => {
            json!({"outcome": {"outcome": "selected", "optionId": option_id}})
        }
        Choice::Cancelled => json!({"outcome": {"outcome": "cancelled"}}),
    }
}

#[cfg(test)]
mod tests {
    use agent_client_protocol_schema::v1::RequestPermissionResponse;
    use serde_json::value::to_raw_value;

    use super::*;

    fn choose_of(policy: PermissionPolicy, options: Value) -> Option<Choice> {
        choose(
            policy,
            &to_raw_value(&json!({"sessionId": "s", "options": options})).unwrap(),
        )
    }

    fn selected(id: &str) -> Choice {
        Choice::Selected {
            option_id: id.to_owned(),
        }
    }

    #[test]
    fn the_kind_decides_and_the_narrowest_wins() {
        let options = json!([
            {"optionId": "1", "kind": "allow_always", "name": "a"},
            {"optionId": "2", "kind": "reject_always", "name": "b"},
            {"optionId": "3", "kind": "reject_once", "name": "c"},
            {"optionId": "4", "kind": "allow_once", "name": "d"},
            {"optionId": "5", "kind": "allow_once", "name": "e"},
        ]);
        assert_eq!(
            choose_of(PermissionPolicy::Allow, options.clone()),
            Some(selected("4"))
        );
        assert_eq!(
            choose_of(PermissionPolicy::Reject, options.clone()),
            Some(selected("3"))
        );
        assert_eq!(choose_of(PermissionPolicy::Ask, options), None);
    }

    #[test]
    fn the_wider_kind_serves_and_nothing_fitting_cancels() {
        let options = json!([{"optionId": "w", "kind": "allow_always"}, {"kind": "allow_once"}, 7]);
        assert_eq!(
            choose_of(PermissionPolicy::Allow, options.clone()),
            Some(selected("w"))
        );
        assert_eq!(
            choose_of(PermissionPolicy::Reject, options),
            Some(Choice::Cancelled)
        );
        assert_eq!(
            choose_of(PermissionPolicy::Allow, json!("none")),
            Some(Choice::Cancelled)
        );
    }

    #[test]
    fn answers_are_of_the_official_form() {
        for choice in [Choice::Cancelled, selected("x")] {
            let ours = permission_response(&choice);
            let official: RequestPermissionResponse = serde_json::from_value(ours.clone()).unwrap();
            assert_eq!(serde_json::to_value(official).unwrap(), ours);
        }
    }
}
