//! The one pass for the common update.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::{Effect, Update};
use crate::json::Text;
use crate::permission::tool_kind;

#[derive(serde::Deserialize)]
struct Params<'a> {
    #[serde(borrow, rename = "sessionId")]
    session_id: Text<'a>,
    #[serde(borrow)]
    update: Body<'a>,
}

#[derive(serde::Deserialize)]
struct Body<'a> {
    #[serde(borrow, rename = "sessionUpdate")]
    kind: Text<'a>,
    #[serde(borrow, default)]
    content: Content<'a>,
    #[serde(borrow, default, rename = "toolCallId")]
    call: Option<Text<'a>>,
    #[serde(borrow, default, rename = "kind")]
    tool: Option<Text<'a>>,
    #[serde(borrow, default, rename = "messageId")]
    message: Option<Text<'a>>,
}

/// The text of a content block; nothing in the place of any other kind of content.
#[derive(Default)]
struct Content<'a> {
    text: Option<Text<'a>>,
    other_type: bool,
}

impl<'de: 'a, 'a> Deserialize<'de> for Content<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ContentVisitor;
        impl<'de> Visitor<'de> for ContentVisitor {
            type Value = Content<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a content block, or several")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut content = Content::default();
                while let Some(Text(key)) = map.next_key()? {
                    match &*key {
                        "type" => content.other_type = map.next_value::<Text<'_>>()?.0 != "text",
                        "text" => content.text = Some(map.next_value()?),
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(content)
            }

            /// A tool call's content.
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Content::default())
            }
        }
        deserializer.deserialize_any(ContentVisitor)
    }
}

/// Reads chunks and tool calls; none for what needs more or is not formed as it should be.
pub(super) fn read(params: &RawValue) -> Option<Update<'_>> {
    let Params { session_id, update } = serde_json::from_str(params.get()).ok()?;
    let effect = match &*update.kind.0 {
        "agent_message_chunk" => match update.content.text {
            Some(Text(text)) if !update.content.other_type => Effect::AgentText(text),
            _ => Effect::None,
        },
        "tool_call" | "tool_call_update" => match (update.call, update.tool) {
            (Some(Text(id)), Some(Text(kind))) => Effect::ToolCall {
                id,
                kind: tool_kind(&kind),
            },
            _ => Effect::None,
        },
        "agent_thought_chunk" | "user_message_chunk" => Effect::None,
        _ => return None,
    };
    Some(Update {
        session_id: Some(session_id.0),
        kind: update.kind.0,
        mapped: None,
        effect,
        message_id: update.message.map(|Text(id)| id),
        progress: None,
    })
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    #[test]
    fn the_common_updates_take_the_fast_pass() {
        for (kind, content) in [
            ("agent_message_chunk", r#"{"type":"text","text":"é\n"}"#),
            (
                "agent_message_chunk",
                r#"{"text":"x","annotations":{"a":[1]},"type":"text"}"#,
            ),
            (
                "tool_call_update",
                r#"[{"type":"diff","path":"/a","oldText":null,"newText":"b"}]"#,
            ),
        ] {
            let json = format!(
                r#"{{"sessionId":"s","update":{{"sessionUpdate":"{kind}","content":{content},"x":1}},"_meta":{{}}}}"#
            );
            let raw: &RawValue = serde_json::from_str(&json).unwrap();
            let update = read(raw).expect(kind);
            assert!(matches!(update.session_id, Some(Cow::Borrowed("s"))));
        }
    }
}
