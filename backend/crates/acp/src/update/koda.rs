//! What Koda says of its subagents and its tools' servers. Source: Koda's page on its ACP server, "Уведомления субагентов".
//!
//! The page's tables are lost, and with them the form of a snapshot: it is taken from `task` or from the update itself, its name
//! from `taskId` or `id`, its time from text or number.

use std::collections::BTreeMap;

use chrono::DateTime;
use serde_json::value::{RawValue, to_raw_value};

use crate::json::{self, Fields, elements};

/// Of the page's statuses, whose table is lost, and ACP's own: those of a task that goes on.
const WORKING: [&str; 4] = ["pending", "queued", "running", "in_progress"];
/// Longest name of a task, in bytes.
const MAX_ID: usize = 256;
/// Longest field of a snapshot that is kept, in bytes of JSON; the names of longer ones are listed in `omitted`.
const MAX_FIELD: usize = 8 << 10;
/// Most fields of a snapshot that are kept.
const MAX_FIELDS: usize = 64;

/// A snapshot of a subagent. Of two, the one that is not older counts.
#[derive(Debug, Clone)]
pub struct Subagent {
    /// The agent's id of it.
    pub task_id: String,
    /// `updatedAt`, in microseconds since 1970; none if the agent does not tell.
    pub changed_at: Option<i64>,
    /// Its fields, `deliveryId` among them where the agent told one.
    pub snapshot: Box<RawValue>,
    /// It has not ended.
    pub works: bool,
    /// What it is doing, if that is the occasion.
    pub activity: Option<Box<RawValue>>,
}

/// The block `subagents` of an answer to `session/new`, or the answer to `session/subagent_list`.
#[derive(Debug, Clone, Default)]
pub struct Subagents {
    /// The tasks.
    pub tasks: Vec<Subagent>,
    /// All else, in the form of the update that tells of it.
    pub settings: Option<Box<RawValue>>,
}

/// The name under which an update is kept as a whole, if it is one of these.
pub(super) fn state(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "subagent_settings_update" => "subagent_settings",
        "subagent_definitions_update" => "subagent_definitions",
        "subagent_turn" => "subagent_turn",
        "mcp_state_update" => "mcp_state",
        "context_usage_update" => "context_usage",
        "context_compaction_update" => "context_compaction",
        _ => return None,
    })
}

/// A `subagent_update`; none if it names no task.
pub(super) fn subagent(update: &RawValue) -> Option<Subagent> {
    let fields = Fields::of(update);
    let mut found = match fields.get("task") {
        Some(task) => read(task, &fields)?,
        None => read(update, &Fields::default())?,
    };
    found.activity = fields.get("activity").and_then(kept);
    Some(found)
}

/// Reads a block of tasks and settings; what is no task is left out.
pub fn subagents(block: &RawValue) -> Subagents {
    let fields = Fields::of(block);
    let listed = fields.get("tasks").map(elements).unwrap_or_default();
    let tasks = listed.into_iter().chain(fields.get("task"));
    Subagents {
        tasks: tasks.filter_map(|task| read(task, &Fields::default())).collect(),
        settings: fields.get("settings").and_then(|_| {
            let rest: BTreeMap<&str, &RawValue> =
                fields.iter().filter(|(name, _)| *name != "tasks").collect();
            to_raw_value(&rest).ok()
        }),
    }
}

fn read(task: &RawValue, around: &Fields<'_>) -> Option<Subagent> {
    let fields = Fields::of(task);
    let get = |name: &str| fields.get(name).or_else(|| around.get(name));
    let task_id = get("taskId")
        .or_else(|| get("id"))
        .and_then(json::text_or_number)?;
    if task_id.is_empty() || task_id.len() > MAX_ID {
        return None;
    }
    let mut all: BTreeMap<&str, &RawValue> = fields.iter().collect();
    all.extend(around.get("deliveryId").map(|id| ("deliveryId", id)));
    for known in ["sessionUpdate", "activity"] {
        all.remove(known);
    }
    let mut omitted = Vec::new();
    let mut count = 0;
    all.retain(|name, value| {
        count += 1;
        let keep = value.get().len() <= MAX_FIELD && count <= MAX_FIELDS;
        if !keep && omitted.len() < MAX_FIELDS {
            omitted.push((*name).chars().take(MAX_ID).collect::<String>());
        }
        keep
    });
    let omitted = to_raw_value(&omitted).ok().filter(|_| !omitted.is_empty());
    all.extend(omitted.as_deref().map(|names| ("omitted", names)));
    Some(Subagent {
        task_id: task_id.into_owned(),
        changed_at: get("updatedAt").and_then(moment),
        snapshot: to_raw_value(&all).ok()?,
        works: get("status")
            .and_then(json::text)
            .is_some_and(|status| WORKING.contains(&&*status)),
        activity: None,
    })
}

fn kept(raw: &RawValue) -> Option<Box<RawValue>> {
    (raw.get().len() <= MAX_FIELD).then(|| raw.to_owned())
}

/// Microseconds since 1970, of a text as in RFC 3339 or of a number of milliseconds.
fn moment(raw: &RawValue) -> Option<i64> {
    let text = json::text_or_number(raw)?;
    if let Ok(millis) = text.parse::<f64>() {
        return millis.is_finite().then_some((millis * 1000.0) as i64);
    }
    let time = DateTime::parse_from_rfc3339(&text).ok()?;
    Some(time.timestamp_micros())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> &RawValue {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_snapshot_is_read_wherever_it_stands() {
        let nested = subagent(raw(
            r#"{"sessionUpdate":"subagent_update","task":{"taskId":"t","status":"running","updatedAt":"2026-12-01T00:00:00.5Z"},
                "activity":{"kind":"tool"},"deliveryId":"d"}"#,
        ));
        let flat = subagent(raw(
            r#"{"sessionUpdate":"subagent_update","id":"t","status":"running","updatedAt":1796083200500,
                "activity":{"kind":"tool"},"deliveryId":"d"}"#,
        ));
        let (nested, flat) = (nested.unwrap(), flat.unwrap());
        assert_eq!((&*nested.task_id, &*flat.task_id), ("t", "t"));
        assert_eq!(nested.changed_at, Some(1_796_083_200_500_000));
        assert_eq!(nested.changed_at, flat.changed_at);
        for (found, id) in [(&nested, "taskId"), (&flat, "id")] {
            assert_eq!(found.activity.as_ref().unwrap().get(), r#"{"kind":"tool"}"#);
            let snapshot: serde_json::Value = serde_json::from_str(found.snapshot.get()).unwrap();
            assert_eq!(
                (&snapshot[id], &snapshot["deliveryId"]),
                (&"t".into(), &"d".into())
            );
            assert!(snapshot["sessionUpdate"].is_null() && snapshot["activity"].is_null());
        }
    }

    #[test]
    fn what_names_no_task_is_none_and_what_is_long_is_left_out() {
        let long = "x".repeat(MAX_FIELD);
        for odd in [
            "{}".to_owned(),
            r#"{"task":7}"#.to_owned(),
            r#"{"task":{"taskId":""}}"#.to_owned(),
            r#"{"task":{"taskId":null}}"#.to_owned(),
            format!(r#"{{"taskId":"{long}"}}"#),
        ] {
            assert!(subagent(raw(&odd)).is_none(), "{odd:.40}");
        }
        let json = format!(
            r#"{{"taskId":1,"updatedAt":"soon","result":"{long}","activity":"{long}","a":"\ud800"}}"#
        );
        let found = subagent(raw(&json)).unwrap();
        assert_eq!((&*found.task_id, found.changed_at), ("1", None));
        assert!(found.activity.is_none());
        assert_eq!(
            found.snapshot.get(),
            r#"{"a":"\ud800","omitted":["result"],"taskId":1,"updatedAt":"soon"}"#
        );
    }

    #[test]
    fn a_block_is_its_tasks_and_its_settings() {
        let found = subagents(raw(
            r#"{"tasks":[{"taskId":"a","updatedAt":1},7],"settings":{"enabled":true},"availableTools":[]}"#,
        ));
        assert_eq!(found.tasks.len(), 1);
        assert_eq!(found.tasks[0].changed_at, Some(1000));
        assert_eq!(
            found.settings.unwrap().get(),
            r#"{"availableTools":[],"settings":{"enabled":true}}"#
        );
        let none = subagents(raw("null"));
        assert!(none.tasks.is_empty() && none.settings.is_none());
    }
}
