//! `session/update`: what one means for the session, beside being stored as it is.
//!
//! Most updates are pieces of the agent's message. Those are read in one pass that borrows; everything else, and
//! whatever that pass cannot take (repeated keys, odd types), is read field by field. Source: ACP v1, "Prompt Turn".

mod fast;
mod kandev;
pub mod koda;
pub mod legacy;
mod tool_calls;

use std::borrow::Cow;

use kandev_domain::ToolKind;
use serde_json::value::RawValue;

use crate::dialect::Dialect;
use crate::json::{self, Fields, elements};
use crate::permission::tool_kind;

pub use tool_calls::KandevState;

/// An update, read. Borrows from its parameters.
#[derive(Debug)]
pub struct Update<'a> {
    /// The session that it names.
    pub session_id: Option<Cow<'a, str>>,
    /// `sessionUpdate`, or what a kandev type was mapped to. Empty if it has neither.
    pub kind: Cow<'a, str>,
    /// Parameters in the form of ACP, if the agent's were of another that has one there. The agent's own are kept in
    /// `update._meta["kandev.original"]`.
    pub mapped: Option<Box<RawValue>>,
    /// What it changes.
    pub effect: Effect<'a>,
    /// The message that it is a piece of, where the agent tells.
    pub message_id: Option<Cow<'a, str>>,
    /// The agent's own figure, 0 to 100. Only the kandev dialect has one.
    pub progress: Option<u8>,
}

/// What an update changes.
#[derive(Debug)]
pub enum Effect<'a> {
    /// Nothing that kandev keeps.
    None,
    /// More text of the agent's message, white space included.
    AgentText(Cow<'a, str>),
    /// A new plan.
    Plan {
        /// `entries`, unchanged.
        entries: &'a RawValue,
        /// How many are `completed`.
        completed: usize,
        /// How many there are.
        total: usize,
    },
    /// `usage_update`: the whole `update`, unchanged.
    Usage(&'a RawValue),
    /// The session's mode is this now.
    Mode(Cow<'a, str>),
    /// `configOptions`, unchanged.
    ConfigOptions(&'a RawValue),
    /// `availableCommands`, unchanged.
    Commands(&'a RawValue),
    /// A tool call's kind was told: permission requests that come later need not repeat it.
    ToolCall {
        /// `toolCallId`.
        id: Cow<'a, str>,
        /// What it does; [`ToolKind::Other`] if ACP does not know it.
        kind: ToolKind,
    },
    /// What is known of the session: each only where it was told.
    Info {
        /// Its title.
        title: Option<Told<'a>>,
        /// When it was last active, in the agent's words.
        updated_at: Option<Told<'a>>,
    },
    /// A snapshot of a subagent.
    Subagent(Box<koda::Subagent>),
    /// Something else of which only the latest counts.
    State {
        /// What it is kept as.
        name: &'static str,
        /// The whole `update`, unchanged.
        value: &'a RawValue,
    },
    /// The turn has ended, in the kandev dialect.
    TurnEnd(TurnEnd),
}

/// A text that an agent tells, or takes back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told<'a> {
    /// It is this now.
    Text(Cow<'a, str>),
    /// There is none any more.
    Cleared,
}

/// How a turn of the kandev dialect ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnEnd {
    /// Whether it did what it should.
    pub success: bool,
    /// The agent's own, else `end_turn` or `error`.
    pub stop_reason: String,
    /// What was done, in the agent's words.
    pub summary: Option<String>,
    /// What went wrong, in the agent's words.
    pub error: Option<TurnError>,
}

/// What went wrong in a turn of the kandev dialect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnError {
    /// In short.
    pub message: String,
    /// The particulars: text, or JSON as text.
    pub details: Option<String>,
}

/// Reads the parameters of a `session/update`. `state` is the instance's own and sees its updates in order.
///
/// In the kandev dialect `content` becomes an `agent_message_chunk` and `toolCall` a `tool_call` or a
/// `tool_call_update`. `complete` and `error` are the turn's end, and other types are kept as they are. An update of
/// ACP's form is read as such in both.
pub fn read_update<'a>(dialect: Dialect, state: &mut KandevState, params: &'a RawValue) -> Update<'a> {
    if let Some(update) = fast::read(params) {
        return update;
    }
    let fields = Fields::of(params);
    let session_id = fields.get("sessionId").and_then(json::text_or_number);
    if let Some(update) = fields.get("update") {
        return acp(session_id, update);
    }
    let kind = fields.text("type").unwrap_or_default();
    if dialect == Dialect::Kandev {
        return kandev::read(state, session_id, kind, &fields, params);
    }
    Update {
        session_id,
        kind,
        mapped: None,
        effect: Effect::None,
        message_id: None,
        progress: None,
    }
}

fn acp<'a>(session_id: Option<Cow<'a, str>>, update: &'a RawValue) -> Update<'a> {
    let fields = Fields::of(update);
    let kind = fields.text("sessionUpdate").unwrap_or_default();
    let effect = match &*kind {
        "agent_message_chunk" => text_block(&fields.object("content")).map(Effect::AgentText),
        "plan" => fields.get("entries").map(plan),
        "usage_update" => Some(Effect::Usage(update)),
        "tool_call" | "tool_call_update" => told_kind(&fields),
        "current_mode_update" => fields.text("currentModeId").map(Effect::Mode),
        "config_option_update" => fields.get("configOptions").map(Effect::ConfigOptions),
        "available_commands_update" => fields.get("availableCommands").map(Effect::Commands),
        "session_info_update" => {
            let (title, updated_at) = (told(&fields, "title"), told(&fields, "updatedAt"));
            (title.is_some() || updated_at.is_some()).then_some(Effect::Info { title, updated_at })
        }
        "subagent_update" => koda::subagent(update).map(|found| Effect::Subagent(Box::new(found))),
        other => koda::state(other).map(|name| Effect::State { name, value: update }),
    };
    Update {
        session_id,
        kind,
        mapped: None,
        effect: effect.unwrap_or(Effect::None),
        message_id: fields.text("messageId"),
        progress: None,
    }
}

/// A text that was told, or cleared.
fn told<'a>(fields: &Fields<'a>, name: &str) -> Option<Told<'a>> {
    let value = fields.get_even_null(name)?;
    if json::is_null(value) {
        return Some(Told::Cleared);
    }
    json::text(value).map(Told::Text)
}

fn told_kind<'a>(call: &Fields<'a>) -> Option<Effect<'a>> {
    let kind = tool_kind(&call.text("kind")?);
    let id = call.get("toolCallId").and_then(json::text_or_number)?;
    Some(Effect::ToolCall { id, kind })
}

fn text_block<'a>(content: &Fields<'a>) -> Option<Cow<'a, str>> {
    let is_text = content.text("type").is_none_or(|kind| kind == "text");
    content.text("text").filter(|_| is_text)
}

fn plan(entries: &RawValue) -> Effect<'_> {
    let all = elements(entries);
    let done = |entry: &&&RawValue| Fields::of(entry).text("status").is_some_and(|s| s == "completed");
    Effect::Plan {
        entries,
        completed: all.iter().filter(done).count(),
        total: all.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> &RawValue {
        serde_json::from_str(json).unwrap()
    }

    fn read(json: &str) -> Update<'_> {
        read_update(Dialect::Acp, &mut KandevState::default(), raw(json))
    }

    fn text_of(json: &str) -> Option<String> {
        match read(json).effect {
            Effect::AgentText(text) => Some(text.into_owned()),
            _ => None,
        }
    }

    #[test]
    fn text_is_read_whole_and_borrowed() {
        let json = r#"{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":" \n "}}}"#;
        assert_eq!(text_of(json).as_deref(), Some(" \n "));
        let plain = json.replace(r" \n ", "plain");
        let update = read(&plain);
        assert_eq!(update.session_id.as_deref(), Some("s"));
        assert!(matches!(update.effect, Effect::AgentText(Cow::Borrowed("plain"))));
        assert!(update.mapped.is_none());
    }

    #[test]
    fn the_kind_of_a_tool_call_is_kept_where_it_is_told() {
        let told = |call: &str| {
            let json = format!(r#"{{"sessionId":"s","update":{{"sessionUpdate":"tool_call",{call}}}}}"#);
            match read(&json).effect {
                Effect::ToolCall { id, kind } => Some((id.into_owned(), kind)),
                _ => None,
            }
        };
        assert_eq!(
            told(r#""toolCallId":"a","kind":"edit""#),
            Some(("a".to_owned(), ToolKind::Edit))
        );
        assert_eq!(
            told(r#""toolCallId":"a","kind":"craft""#),
            Some(("a".to_owned(), ToolKind::Other))
        );
        assert_eq!(
            told(r#""toolCallId":7,"kind":"edit""#),
            Some(("7".to_owned(), ToolKind::Edit)),
            "an id that is none of ACP's"
        );
        assert_eq!(told(r#""toolCallId":"a","kind":null"#), None);
        assert_eq!(told(r#""kind":"edit""#), None);
    }

    #[test]
    fn odd_chunks_are_read_as_far_as_they_go() {
        let chunk = |content: &str| {
            text_of(&format!(
                r#"{{"update":{{"content":{content},"sessionUpdate":"agent_message_chunk"}},"sessionId":5}}"#
            ))
        };
        assert_eq!(
            chunk(r#"{"type":"text","text":"a\u0000\ud800b"}"#).as_deref(),
            Some("a\0\u{FFFD}b")
        );
        assert_eq!(
            chunk(r#"{"text":"first","type":"text","text":"last"}"#).as_deref(),
            Some("last")
        );
        assert_eq!(chunk(r#"{"text":"no type"}"#).as_deref(), Some("no type"));
        assert_eq!(chunk(r#"{"type":"image","data":"AA==","text":"alt"}"#), None);
        assert_eq!(chunk(r#"{"type":"text","text":5}"#), None);
        for odd in [
            "null",
            "5",
            r#""text""#,
            "[]",
            r#"[{"type":"text","text":"x"}]"#,
            "{}",
        ] {
            assert_eq!(chunk(odd), None, "{odd}");
        }
    }

    #[test]
    fn thoughts_and_tool_calls_are_no_text_of_the_message() {
        for kind in [
            "agent_thought_chunk",
            "user_message_chunk",
            "tool_call",
            "hologram",
        ] {
            let json = format!(
                r#"{{"sessionId":"s","update":{{"sessionUpdate":"{kind}","content":{{"type":"text","text":"x"}}}}}}"#
            );
            let update = read(&json);
            assert_eq!(update.kind, kind);
            assert!(matches!(update.effect, Effect::None), "{kind}");
        }
    }

    #[test]
    fn state_changes_are_read() {
        let effect = |update: &'static str| {
            let json: &'static str =
                Box::leak(format!(r#"{{"sessionId":"s","update":{update}}}"#).into_boxed_str());
            read(json).effect
        };
        let plan = effect(
            r#"{"sessionUpdate":"plan","entries":[{"status":"completed"},{"status":"pending"},7,{"status":"\u0063ompleted"}]}"#,
        );
        assert!(matches!(
            plan,
            Effect::Plan {
                completed: 2,
                total: 4,
                ..
            }
        ));
        let usage = effect(r#"{"sessionUpdate":"usage_update","used":1,"size":2}"#);
        assert!(matches!(usage, Effect::Usage(raw) if raw.get().contains("\"used\":1")));
        let mode = effect(r#"{"sessionUpdate":"current_mode_update","currentModeId":"plan"}"#);
        assert!(matches!(mode, Effect::Mode(m) if m == "plan"));
        let options = effect(r#"{"sessionUpdate":"config_option_update","configOptions":[1]}"#);
        assert!(matches!(options, Effect::ConfigOptions(raw) if raw.get() == "[1]"));
        let commands = effect(r#"{"sessionUpdate":"available_commands_update","availableCommands":[]}"#);
        assert!(matches!(commands, Effect::Commands(raw) if raw.get() == "[]"));
        let title = effect(r#"{"sessionUpdate":"session_info_update","title":"T"}"#);
        assert!(matches!(title, Effect::Info { title: Some(Told::Text(t)), updated_at: None } if t == "T"));
        let cleared = effect(r#"{"sessionUpdate":"session_info_update","title":null}"#);
        assert!(matches!(
            cleared,
            Effect::Info {
                title: Some(Told::Cleared),
                updated_at: None
            }
        ));
        let active = effect(r#"{"sessionUpdate":"session_info_update","updatedAt":"x"}"#);
        assert!(matches!(active, Effect::Info { title: None, updated_at: Some(Told::Text(t)) } if t == "x"));
        for untouched in [
            r#"{"sessionUpdate":"session_info_update"}"#,
            r#"{"sessionUpdate":"session_info_update","title":5}"#,
        ] {
            assert!(matches!(effect(untouched), Effect::None));
        }
    }

    #[test]
    fn no_parameters_are_too_odd() {
        for json in [
            "null",
            "[]",
            "7",
            "{}",
            r#"{"update":null}"#,
            r#"{"update":[]}"#,
            r#"{"update":{}}"#,
        ] {
            let update = read(json);
            assert_eq!(update.kind, "");
            assert!(matches!(update.effect, Effect::None));
        }
        let unmapped = read(r#"{"type":"content","data":{"text":"x"}}"#);
        assert_eq!((&*unmapped.kind, unmapped.mapped.is_none()), ("content", true));
    }
}
