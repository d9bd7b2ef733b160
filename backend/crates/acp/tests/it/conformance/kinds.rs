//! Which kinds of things the official schema lets an agent say, and what becomes of each.

use std::collections::BTreeSet;

use agent_client_protocol_schema::v1 as official;
use schemars::{Schema, schema_for};
use serde_json::Value;

use super::Row;

/// What the kinds are of, the member that tells them apart, the schema, and the rows.
pub(super) struct Group {
    pub(super) of: &'static str,
    tag: Option<&'static str>,
    schema: fn() -> Schema,
    pub(super) rows: &'static [Row],
}

const MESSAGES: &str = "every_kind_of_content_is_kept_as_it_came";
const CALLS: &str = "tool_calls_of_every_kind_keep_their_content_locations_and_output";
const ELSE: &str = "what_else_an_update_may_tell_is_kept_as_it_came";
const STATE: &str = "what_an_agent_says_of_its_session_outlives_the_server";
const STOPS: &str = "every_reason_to_stop_is_the_turns_own";
const GROUPS: &str = "options_in_groups_are_kept_and_one_of_them_can_be_chosen";
const AGAIN: &str = "a_boolean_option_is_set_again_after_a_resume_and_after_a_cancel_that_was_ignored";
const PROMPTS: &str = "every_kind_of_content_reaches_the_agent";
const SHOWN: &str = "a_tool_call_shows_the_terminal_that_was_created_for_it";

const TEXT: &str = "stored as it came; its words are the turn's text";
const STORED: &str = "stored as it came";
const NOT_OFFERED: &str =
    "stored as it came; agents may send it only to clients that offer to show it, which kandev does not";
const COMPLETED: &str = "the turn's `stop_reason`; its status is `completed`";

pub(super) const GROUPS_OF_KINDS: &[Group] = &[
    Group {
        of: "update",
        tag: Some("sessionUpdate"),
        schema: || schema_for!(official::SessionUpdate),
        rows: &[
            ("user_message_chunk", STORED, &[MESSAGES]),
            ("agent_message_chunk", TEXT, &[MESSAGES]),
            ("agent_thought_chunk", STORED, &[MESSAGES]),
            (
                "tool_call",
                "stored as it came; its kind is known to permissions",
                &[CALLS],
            ),
            ("tool_call_update", "the same", &[CALLS]),
            (
                "plan",
                "`plan` of the session, and the instance's progress",
                &[STATE, ELSE],
            ),
            (
                "available_commands_update",
                "`commands` of the session",
                &[STATE, ELSE],
            ),
            (
                "current_mode_update",
                "`current_mode` of the session",
                &[STATE, ELSE],
            ),
            (
                "config_option_update",
                "`config_options` of the session",
                &[STATE, GROUPS],
            ),
            (
                "session_info_update",
                "`title` and `updated_at` of the session",
                &[STATE, ELSE],
            ),
            (
                "usage_update",
                "`usage` of the session, and costs",
                &[STATE, ELSE],
            ),
            ("notice", NOT_OFFERED, &[ELSE]),
            ("compaction_update", NOT_OFFERED, &[ELSE]),
            ("compaction_summary_chunk", NOT_OFFERED, &[ELSE]),
        ],
    },
    Group {
        of: "content",
        tag: Some("type"),
        schema: || schema_for!(official::ContentBlock),
        rows: &[
            ("text", TEXT, &[MESSAGES, PROMPTS]),
            ("image", STORED, &[MESSAGES, PROMPTS]),
            ("audio", STORED, &[MESSAGES, PROMPTS]),
            ("resource_link", STORED, &[MESSAGES, PROMPTS]),
            ("resource", STORED, &[MESSAGES, PROMPTS]),
        ],
    },
    Group {
        of: "content of a tool call",
        tag: Some("type"),
        schema: || schema_for!(official::ToolCallContent),
        rows: &[
            ("content", STORED, &[CALLS]),
            ("diff", STORED, &[CALLS]),
            ("terminal", STORED, &[CALLS, SHOWN]),
        ],
    },
    Group {
        of: "kind of a tool",
        tag: None,
        schema: || schema_for!(official::ToolKind),
        rows: &[
            ("read", STORED, &[CALLS]),
            ("edit", STORED, &[CALLS]),
            ("delete", STORED, &[CALLS]),
            ("move", STORED, &[CALLS]),
            ("search", STORED, &[CALLS]),
            ("execute", STORED, &[CALLS]),
            ("think", STORED, &[CALLS]),
            ("fetch", STORED, &[CALLS]),
            ("switch_mode", STORED, &[CALLS]),
            (
                "other",
                "stored as it came; what is not known is this to permissions",
                &[CALLS],
            ),
        ],
    },
    Group {
        of: "status of a tool call",
        tag: None,
        schema: || schema_for!(official::ToolCallStatus),
        rows: &[
            ("pending", STORED, &[CALLS]),
            ("in_progress", STORED, &[CALLS]),
            ("completed", STORED, &[CALLS]),
            ("failed", STORED, &[CALLS]),
        ],
    },
    Group {
        of: "stop reason",
        tag: None,
        schema: || schema_for!(official::StopReason),
        rows: &[
            ("end_turn", COMPLETED, &[STOPS]),
            ("max_tokens", COMPLETED, &[STOPS]),
            ("max_turn_requests", COMPLETED, &[STOPS]),
            ("refusal", COMPLETED, &[STOPS]),
            (
                "cancelled",
                "the turn's status",
                &[STOPS, "a_cancel_ends_the_turn_and_not_the_instance"],
            ),
        ],
    },
    Group {
        of: "option of a session",
        tag: Some("type"),
        schema: || schema_for!(official::SessionConfigKind),
        rows: &[
            ("select", "set by one of its values, in groups or not", &[GROUPS]),
            ("boolean", "set by true or false", &[AGAIN]),
        ],
    },
];

impl Group {
    /// The kinds that the official schema has.
    pub(super) fn official(&self) -> BTreeSet<String> {
        let schema = (self.schema)();
        let mut found = BTreeSet::new();
        collect(schema.as_value(), self.tag, &mut found);
        assert!(!found.is_empty(), "{}: {schema:?}", self.of);
        found
    }
}

/// What a schema of alternatives tells them apart by.
fn collect(schema: &Value, tag: Option<&str>, found: &mut BTreeSet<String>) {
    for list in ["oneOf", "anyOf"] {
        for one in schema[list].as_array().into_iter().flatten() {
            collect(one, tag, found);
        }
    }
    let told = tag.map_or(schema, |tag| &schema["properties"][tag]);
    found.extend(told["const"].as_str().map(str::to_owned));
    let listed = told["enum"].as_array().into_iter().flatten();
    found.extend(listed.filter_map(|one| one.as_str().map(str::to_owned)));
}
