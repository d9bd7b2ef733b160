//! Directives that say something.

use serde_json::{Value, json};

use crate::args::{number, required, size_or, unescape};
use crate::turn::{Run, prompt_text};

/// Characters of four, three and two bytes, and one of one.
const MIXED: &str = "🦀語éx";

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Talk {
    Say(String),
    Think(String),
    Plan(Vec<String>),
    PlanStep,
    Mode(String),
    Title(String),
    Usage(u64),
    Update(Value),
    UnknownUpdate,
    LargeChunkUtf8(usize),
    Again,
    History,
}

/// A JSON argument.
pub(super) fn json_arg(name: &str, text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|e| format!("/{name}: not JSON: {e}"))
}

impl Talk {
    pub(super) fn parse(name: &str, rest: &str) -> Result<Option<Self>, String> {
        Ok(Some(match name {
            "say" => Self::Say(unescape(rest)),
            "think" => Self::Think(unescape(rest)),
            "plan" => Self::Plan(rest.split(';').map(|entry| entry.trim().to_owned()).collect()),
            "plan-step" => Self::PlanStep,
            "mode" => Self::Mode(required(name, "a mode", rest)?),
            "title" => Self::Title(unescape(rest)),
            "usage" => Self::Usage(number(name, rest)?),
            "update" => Self::Update(json_arg(name, rest)?),
            "unknown-update" => Self::UnknownUpdate,
            "large-chunk-utf8" => Self::LargeChunkUtf8(size_or(name, rest, 1 << 20)?),
            "again" => Self::Again,
            "history" => Self::History,
            _ => return Ok(None),
        }))
    }

    pub(super) fn run(self, run: &mut Run<'_>) {
        match self {
            Self::Say(text) => run.say(&text),
            Self::Think(text) => run.update(json!({
                "sessionUpdate": "agent_thought_chunk",
                "content": {"type": "text", "text": text},
            })),
            Self::Plan(entries) => {
                run.plan = entries.into_iter().map(|entry| (entry, "pending")).collect();
                run.plan[0].1 = "in_progress";
                run.send_plan();
            }
            Self::PlanStep => {
                if !run.step_plan() {
                    run.report("plan-step", "nothing left");
                }
            }
            Self::Mode(mode) => {
                run.turn
                    .session
                    .with(|state| mode.clone_into(&mut state.settings.mode));
                run.update(json!({"sessionUpdate": "current_mode_update", "currentModeId": mode}));
            }
            Self::Title(title) => {
                run.turn.session.with(|state| state.title = Some(title.clone()));
                run.update(json!({"sessionUpdate": "session_info_update", "title": title}));
            }
            Self::Usage(used) => {
                run.update(json!({"sessionUpdate": "usage_update", "used": used, "size": 200_000}));
                run.usage = Some(used);
            }
            Self::Update(update) => run.update(update),
            Self::UnknownUpdate => {
                run.update(json!({
                    "sessionUpdate": "mock_unknown_update",
                    "nested": {"list": [1, "two", null], "text": "kept"},
                }));
                run.update(json!({"withoutKind": true}));
            }
            Self::LargeChunkUtf8(bytes) => {
                let mut text = MIXED.repeat(bytes / MIXED.len());
                text.extend(std::iter::repeat_n('.', bytes - text.len()));
                run.say(&text);
            }
            Self::Again => {
                let last = |turns: &[crate::store::StoredTurn]| turns.last().map(|turn| turn.text.clone());
                let text = run.turn.session.with(|state| last(&state.history));
                match text {
                    Some(text) => run.say(&text),
                    None => run.report("again", "there was no turn before"),
                }
            }
            Self::History => {
                let prompts: Vec<String> = run.turn.session.with(|state| {
                    let turns = state.history.iter();
                    turns.map(|turn| prompt_text(&turn.prompt)).collect()
                });
                run.report("history", &json!(prompts).to_string());
            }
        }
    }
}
