//! The plan that a client may replace, and the mode.

use serde_json::{Value, json};

use crate::acp::{Changed, session_of, text};
use crate::agent::{Agent, Reply};
use crate::frame::{INVALID_PARAMS, RpcError};
use crate::koda::refusal;
use crate::session::Settings;

const MODES: [&str; 2] = ["default", "plan"];

pub(crate) fn set_mode(_: &Agent, settings: &mut Settings, params: &Value) -> Changed {
    let mode = text(params, "modeId")?;
    if !MODES.contains(&mode) {
        return Err(refusal(
            INVALID_PARAMS,
            "unknown_mode",
            format!("unknown mode '{mode}'"),
        ));
    }
    mode.clone_into(&mut settings.mode);
    let update = json!({"sessionUpdate": "current_mode_update", "currentModeId": mode});
    Ok((json!({}), vec![update]))
}

/// Does not wait for the turn; the mode stays as it is.
pub(crate) fn set_plan(agent: &Agent, params: &Value) -> Result<Reply, RpcError> {
    let session = session_of(agent, params)?;
    let entries = entries(params)?;
    let update = json!({"sessionUpdate": "plan", "entries": entries});
    session.with(|state| state.plan = entries);
    let mut reply = Reply::from(Ok(json!({})));
    reply.after.push(agent.update_line(&session.id, &update));
    Ok(reply)
}

/// The entries with their defaults; fails where no plan can be made of them.
fn entries(params: &Value) -> Result<Vec<Value>, RpcError> {
    let invalid = |details: &str| refusal(INVALID_PARAMS, "invalid_plan", details);
    let mut entries = params["entries"].clone();
    let list = entries.as_array_mut();
    let list = list.ok_or_else(|| invalid("params.entries must be an array"))?;
    let mut running = 0;
    for entry in list.iter_mut() {
        let content = entry["content"].as_str();
        if content.is_none_or(|text| text.trim().is_empty()) {
            return Err(invalid("every entry needs content"));
        }
        if entry["status"].is_null() {
            entry["status"] = json!("pending");
        }
        if entry["priority"].is_null() {
            entry["priority"] = json!("medium");
        }
        let known = ["pending", "in_progress", "completed"];
        if !known.iter().any(|status| entry["status"] == *status) {
            return Err(invalid("an entry has a status that is not known"));
        }
        running += usize::from(entry["status"] == "in_progress");
    }
    if running > 1 {
        return Err(invalid("more than one entry is in_progress"));
    }
    Ok(std::mem::take(list))
}
