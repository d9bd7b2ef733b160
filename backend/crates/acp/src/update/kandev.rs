//! Updates of the kandev dialect, and their form in ACP. Source: the seed, "Progress Updates".

use std::borrow::Cow;

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::tool_calls::{KandevState, Status};
use super::{Effect, TurnEnd, TurnError, Update};
use crate::json::{self, Fields};

pub(super) fn read<'a>(
    state: &mut KandevState,
    session_id: Option<Cow<'a, str>>,
    kind: Cow<'a, str>,
    fields: &Fields<'a>,
    params: &'a RawValue,
) -> Update<'a> {
    let data = fields.object("data");
    let session_id = session_id.or_else(|| data.get("sessionId").and_then(json::text_or_number));
    let progress = data
        .get("progress")
        .or_else(|| data.get("percent"))
        .and_then(percentage);
    let mut update = Update {
        session_id,
        kind,
        mapped: None,
        effect: Effect::None,
        message_id: None,
        progress,
    };
    match &*update.kind {
        "content" => {
            let text = data.text("text").or_else(|| fields.text("data"));
            if let Some(text) = text {
                update.map_to("agent_message_chunk", params, |b| {
                    b.content = Some(TextBlock::new(Cow::Borrowed(&text)));
                });
                update.effect = Effect::AgentText(text);
            }
        }
        "toolCall" => tool_call(state, &mut update, &data, params),
        "complete" => update.effect = Effect::TurnEnd(complete(&data)),
        "error" => update.effect = Effect::TurnEnd(error(&data, fields)),
        _ => {}
    }
    update
}

fn tool_call<'a>(state: &mut KandevState, update: &mut Update<'a>, data: &Fields<'a>, params: &'a RawValue) {
    let given = ["toolCallId", "id"]
        .iter()
        .find_map(|key| data.get(key))
        .and_then(json::text_or_number);
    let tool = data.text("toolName").or_else(|| data.text("name"));
    let Some(tool) = tool.or_else(|| given.clone()) else {
        return;
    };
    let status = Status::of(data.text("status").as_deref());
    let (id, first) = state.track(&tool, given.as_deref(), status);
    let kind = if first { "tool_call" } else { "tool_call_update" };
    update.map_to(kind, params, |b| {
        b.tool_call_id = Some(&id);
        b.title = Some(&tool);
        b.status = Some(status.in_acp());
        b.raw_input = data.get("args");
        b.raw_output = data.get("result").or_else(|| data.get("output"));
    });
}

fn complete(data: &Fields<'_>) -> TurnEnd {
    let success = data.get("success").is_none_or(|raw| raw.get() != "false");
    let summary = data.string("summary");
    let message = || {
        let said = ["error", "message"]
            .iter()
            .find_map(|key| data.get(key))
            .map(as_text);
        said.or_else(|| summary.clone())
            .unwrap_or_else(|| "the agent reported no success".to_owned())
    };
    let error = (!success).then(|| TurnError {
        message: message(),
        details: data.get("details").map(as_text),
    });
    TurnEnd {
        success,
        stop_reason: stop_reason(data, success),
        summary,
        error,
    }
}

fn error(data: &Fields<'_>, fields: &Fields<'_>) -> TurnEnd {
    let message = data.get("message").or_else(|| data.get("error"));
    let message = message.map(as_text).or_else(|| fields.string("data"));
    TurnEnd {
        success: false,
        stop_reason: stop_reason(data, false),
        summary: None,
        error: Some(TurnError {
            message: message.unwrap_or_else(|| "the agent reported an error".to_owned()),
            details: data.get("details").map(as_text),
        }),
    }
}

fn stop_reason(data: &Fields<'_>, success: bool) -> String {
    let default = if success { "end_turn" } else { "error" };
    data.string("stopReason").unwrap_or_else(|| default.to_owned())
}

pub(super) fn as_text(raw: &RawValue) -> String {
    json::text(raw).map_or_else(|| raw.get().to_owned(), Cow::into_owned)
}

pub(super) fn percentage(raw: &RawValue) -> Option<u8> {
    let text = json::text_or_number(raw)?;
    let figure: f64 = text.trim().trim_end_matches('%').parse().ok()?;
    figure.is_finite().then(|| figure.clamp(0.0, 100.0) as u8)
}

#[derive(Serialize)]
struct Mapped<'a> {
    #[serde(rename = "sessionId", skip_serializing_if = "Option::is_none")]
    session_id: Option<&'a str>,
    update: Body<'a>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    session_update: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<TextBlock<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw_input: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw_output: Option<&'a RawValue>,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<Meta<'a>>,
}

#[derive(Serialize)]
pub(super) struct TextBlock<'a> {
    r#type: &'static str,
    text: Cow<'a, str>,
}

impl<'a> TextBlock<'a> {
    pub(super) const fn new(text: Cow<'a, str>) -> Self {
        Self { r#type: "text", text }
    }
}

#[derive(Serialize)]
pub(super) struct Meta<'a> {
    #[serde(rename = "kandev.original")]
    pub(super) original: &'a RawValue,
}

impl Update<'_> {
    fn map_to<'b>(&mut self, kind: &'static str, original: &'b RawValue, fill: impl FnOnce(&mut Body<'b>)) {
        let mut update = Body {
            session_update: kind,
            meta: Some(Meta { original }),
            ..Body::default()
        };
        fill(&mut update);
        let session_id = self.session_id.clone();
        let mapped = Mapped {
            session_id: session_id.as_deref(),
            update,
        };
        self.mapped = to_raw_value(&mapped).ok();
        self.kind = Cow::Borrowed(kind);
    }
}

#[cfg(test)]
mod tests {
    use agent_client_protocol_schema::v1::SessionNotification;
    use serde_json::{Value, json};

    use super::*;
    use crate::dialect::Dialect;
    use crate::update::read_update;

    struct Read {
        kind: String,
        mapped: Value,
        end: Option<TurnEnd>,
        text: Option<String>,
        progress: Option<u8>,
    }

    fn read(state: &mut KandevState, params: &Value) -> Read {
        let raw = to_raw_value(params).unwrap();
        let update = read_update(Dialect::Kandev, state, &raw);
        let (mut end, mut text) = (None, None);
        match update.effect {
            Effect::TurnEnd(e) => end = Some(e),
            Effect::AgentText(t) => text = Some(t.into_owned()),
            _ => {}
        }
        let mapped = update.mapped.map(|m| serde_json::from_str(m.get()).unwrap());
        Read {
            kind: update.kind.into_owned(),
            mapped: mapped.unwrap_or_default(),
            end,
            text,
            progress: update.progress,
        }
    }

    fn read_one(kind: &str, data: Value) -> Read {
        read(&mut KandevState::default(), &json!({"type": kind, "data": data}))
    }

    fn tool(state: &mut KandevState, data: Value) -> (String, String, String) {
        let read = read(
            state,
            &json!({"sessionId": "s", "type": "toolCall", "data": data}),
        );
        serde_json::from_value::<SessionNotification>(read.mapped.clone()).expect("of the official form");
        let field = |name: &str| read.mapped["update"][name].as_str().unwrap().to_owned();
        (read.kind, field("toolCallId"), field("status"))
    }

    #[test]
    fn content_becomes_a_chunk_and_keeps_the_original() {
        let params = json!({"type": "content", "data": {"text": " hi "}, "sessionId": "s"});
        let got = read(&mut KandevState::default(), &params);
        assert_eq!(got.kind, "agent_message_chunk");
        assert_eq!(got.text.as_deref(), Some(" hi "));
        let original = got.mapped["update"]["_meta"]["kandev.original"].clone();
        assert_eq!(original, params);
        assert_eq!(
            got.mapped["update"]["content"],
            json!({"type": "text", "text": " hi "})
        );
        serde_json::from_value::<SessionNotification>(got.mapped).expect("of the official form");
    }

    #[test]
    fn calls_of_a_tool_are_told_apart() {
        let mut state = KandevState::default();
        let mut say = |status: &str| {
            tool(
                &mut state,
                json!({"toolName": "edit", "status": status, "args": {}}),
            )
        };
        let call = |kind: &str, id: &str, status: &str| (kind.to_owned(), id.to_owned(), status.to_owned());
        assert_eq!(say("pending"), call("tool_call", "edit-1", "pending"));
        assert_eq!(say("running"), call("tool_call_update", "edit-1", "in_progress"));
        assert_eq!(say("halfway"), call("tool_call_update", "edit-1", "in_progress"));
        assert_eq!(say("completed"), call("tool_call_update", "edit-1", "completed"));
        assert_eq!(say("running"), call("tool_call", "edit-2", "in_progress"));
        assert_eq!(say("running"), call("tool_call", "edit-3", "in_progress"));
        assert_eq!(say("failed"), call("tool_call_update", "edit-3", "failed"));
        assert_eq!(say("completed"), call("tool_call_update", "edit-2", "completed"));
        assert_eq!(say("completed"), call("tool_call", "edit-4", "completed"));
    }

    #[test]
    fn an_id_of_the_agents_own_is_taken() {
        let mut state = KandevState::default();
        let mut say = |id: Value, status: &str| {
            tool(
                &mut state,
                json!({"toolName": "edit", "id": id, "status": status}),
            )
            .0
        };
        assert_eq!(say(json!("a"), "running"), "tool_call");
        assert_eq!(say(json!(7), "running"), "tool_call");
        assert_eq!(say(json!("a"), "running"), "tool_call_update");
        assert_eq!(say(json!("a"), "completed"), "tool_call_update");
        assert_eq!(say(json!(7), "completed"), "tool_call_update");
    }

    #[test]
    fn complete_and_error_end_the_turn() {
        let good = read_one(
            "complete",
            json!({"sessionId": "s", "success": true, "summary": "done"}),
        );
        let end = good.end.unwrap();
        assert!(end.success && end.error.is_none());
        assert_eq!(
            (end.stop_reason.as_str(), end.summary.as_deref()),
            ("end_turn", Some("done"))
        );
        assert!(read_one("complete", Value::Null).end.unwrap().success);
        let bad = read_one("complete", json!({"success": false, "summary": "gave up"}))
            .end
            .unwrap();
        assert_eq!(
            (bad.success, bad.error.unwrap().message.as_str()),
            (false, "gave up")
        );
        let failed = read_one("error", json!({"message": "no", "details": {"line": 45}}))
            .end
            .unwrap();
        assert_eq!(failed.stop_reason, "error");
        let error = failed.error.unwrap();
        assert_eq!(
            (error.message.as_str(), error.details.as_deref()),
            ("no", Some(r#"{"line":45}"#))
        );
    }

    #[test]
    fn unknown_types_stay_as_they_are_and_progress_is_read() {
        let progress = |data| {
            let got = read_one("progress", data);
            assert_eq!((got.kind.as_str(), &got.mapped), ("progress", &Value::Null));
            got.progress
        };
        assert_eq!(progress(json!({"progress": 50})), Some(50));
        assert_eq!(progress(json!({"percent": "33.4%"})), Some(33));
        assert_eq!(progress(json!({"progress": 250})), Some(100));
        assert_eq!(progress(json!({"progress": -1})), Some(0));
        assert_eq!(progress(json!({"progress": "soon"})), None);
        assert_eq!(progress(json!([])), None);
        assert_eq!(read_one("content", json!({})).kind, "content");
        assert_eq!(read_one("toolCall", json!({})).kind, "toolCall");
    }

    #[test]
    fn an_update_of_acps_form_is_read_as_such() {
        let params = json!({"sessionId": "s", "update": {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x"}}});
        let got = read(&mut KandevState::default(), &params);
        assert_eq!((got.text.as_deref(), got.mapped), (Some("x"), Value::Null));
    }
}
