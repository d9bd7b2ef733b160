//! Permission requests of agents: what they can be about, who decides them, and how they end.
//!
//! ```text
//! pending ──► selected    an option was chosen: by a caller, a rule, or an answer that is remembered
//!    ├──────► cancelled   none was: the turn or the instance ended, the agent took it back, or a caller would not choose
//!    └──────► expired     the time was up, and the default was answered
//! ```
//! Source of kinds: ACP v1, "Tool Calls".

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::status::{PermissionPolicy, named};

/// Where a permission request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PermissionStatus {
    /// The agent waits for the answer.
    Pending,
    /// One of its options was chosen.
    Selected,
    /// None was.
    Cancelled,
    /// Nobody answered in time.
    Expired,
}
named!(PermissionStatus {
    Pending => "pending",
    Selected => "selected",
    Cancelled => "cancelled",
    Expired => "expired",
});

/// What a tool call does.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ToolKind {
    /// Reads files or data.
    Read,
    /// Changes files or content.
    Edit,
    /// Removes files or data.
    Delete,
    /// Moves or renames files.
    Move,
    /// Looks for something.
    Search,
    /// Runs commands or code.
    Execute,
    /// Thinks or plans.
    Think,
    /// Fetches something from elsewhere.
    Fetch,
    /// Changes the session's mode.
    SwitchMode,
    /// Anything else, also what ACP has no word for.
    #[default]
    Other,
}
named!(ToolKind {
    Read => "read",
    Edit => "edit",
    Delete => "delete",
    Move => "move",
    Search => "search",
    Execute => "execute",
    Think => "think",
    Fetch => "fetch",
    SwitchMode => "switch_mode",
    Other => "other",
});

/// Who decided a permission request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DecidedBy {
    /// A caller.
    Caller,
    /// The launch's policy.
    Policy,
    /// An `…_always` answer that a caller gave before in this session.
    Remembered,
    /// The clock: its time was up.
    Timeout,
    /// The turn was cancelled.
    Cancel,
    /// The turn ended before there was an answer.
    TurnEnd,
    /// The instance ended.
    InstanceEnd,
    /// The agent: it took its request back.
    Agent,
    /// kandev: the request had nothing to choose from, or too many are open.
    Limit,
}
named!(DecidedBy {
    Caller => "caller",
    Policy => "policy",
    Remembered => "remembered",
    Timeout => "timeout",
    Cancel => "cancel",
    TurnEnd => "turn_end",
    InstanceEnd => "instance_end",
    Agent => "agent",
    Limit => "limit",
});

/// What is answered when nobody did in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PermissionDefault {
    /// The narrowest option that rejects, else that the request was cancelled.
    #[default]
    Reject,
    /// That the request was cancelled.
    Cancelled,
    /// The narrowest option that allows, else that the request was cancelled.
    Allow,
}
named!(PermissionDefault { Reject => "reject", Cancelled => "cancelled", Allow => "allow" });

/// Policies by kind of tool, in place of the launch's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PermissionRules(pub BTreeMap<ToolKind, PermissionPolicy>);

impl PermissionRules {
    /// What holds for a kind, where `default` holds for those without a rule.
    pub fn policy(&self, kind: ToolKind, default: PermissionPolicy) -> PermissionPolicy {
        self.0.get(&kind).copied().unwrap_or(default)
    }
}

/// An `…_always` answer of a caller's. It counts for later requests of the same session that are about the same kind of tool
/// and offer the very same option, by id, kind and name: the caller has then said yes (or no) to these words. For tools of no
/// particular kind their title has to be the same too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    /// What the request was about.
    pub tool_kind: ToolKind,
    /// Only of [`ToolKind::Other`].
    pub title: Option<String>,
    /// The option's.
    pub option_id: String,
    /// The option's.
    pub option_kind: String,
    /// The option's.
    pub option_name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_asked_before_the_policy() {
        let rules: PermissionRules =
            serde_json::from_str(r#"{"read":"allow","switch_mode":"reject"}"#).unwrap();
        let policy = |kind| rules.policy(kind, PermissionPolicy::Ask);
        assert_eq!(policy(ToolKind::Read), PermissionPolicy::Allow);
        assert_eq!(policy(ToolKind::SwitchMode), PermissionPolicy::Reject);
        assert_eq!(policy(ToolKind::Other), PermissionPolicy::Ask);
    }

    #[test]
    fn names_are_those_of_the_api() {
        for kind in ToolKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
            assert_eq!(kind.as_str().parse(), Ok(*kind));
        }
        for by in DecidedBy::ALL {
            assert_eq!(serde_json::to_value(by).unwrap(), by.as_str());
        }
        for default in PermissionDefault::ALL {
            assert_eq!(serde_json::to_value(default).unwrap(), default.as_str());
        }
    }
}
