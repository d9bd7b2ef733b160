//! The user's settings of subagents: one set for all sessions.

use serde_json::{Value, json};

use crate::agent::Agent;
use crate::koda::models::EFFORTS;
use crate::session::Session;

/// How many subagents may be allowed to run at once.
pub(crate) const CONCURRENT: (u64, u64) = (1, 8);
/// Tools that only look. A role may name any of them.
pub(crate) const RESEARCH: [&str; 5] = [
    "read_file",
    "search_file_content",
    "glob",
    "list_directory",
    "web_search",
];

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SubagentSettings {
    pub(crate) enabled: bool,
    pub(crate) max_concurrent: u64,
    /// The model goes on while its subagents work.
    pub(crate) allow_parent_to_continue: bool,
    reasoning_effort: Option<String>,
    /// None stands for all that are available.
    tools: Option<Vec<String>>,
    pub(crate) disabled_roles: Vec<String>,
}

impl Default for SubagentSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            max_concurrent: 4,
            allow_parent_to_continue: false,
            reasoning_effort: None,
            tools: None,
            disabled_roles: Vec::new(),
        }
    }
}

fn texts(value: &Value) -> Option<Vec<String>> {
    let list = value.as_array()?.iter();
    Some(list.filter_map(|item| item.as_str().map(str::to_owned)).collect())
}

impl SubagentSettings {
    /// Takes the keys that are there. What cannot be is made something that can.
    pub(crate) fn merge(&mut self, section: &Value) {
        let flag = |name: &str, old: bool| section[name].as_bool().unwrap_or(old);
        self.enabled = flag("enabled", self.enabled);
        self.allow_parent_to_continue = flag("allowParentToContinue", self.allow_parent_to_continue);
        if let Some(most) = section["maxConcurrent"].as_u64() {
            self.max_concurrent = most.clamp(CONCURRENT.0, CONCURRENT.1);
        }
        if let Some(effort) = section.get("reasoningEffort") {
            let known = effort.as_str().filter(|effort| EFFORTS.contains(effort));
            self.reasoning_effort = known.map(str::to_owned);
        }
        if let Some(tools) = section.get("tools") {
            self.tools = texts(tools);
        }
        if let Some(names) = texts(&section["disabledAgentNames"]) {
            self.disabled_roles = names;
        }
    }

    fn describe(&self, available: &[&str]) -> Value {
        let tools = self.tools.as_ref().map(|tools| {
            let there = tools.iter().filter(|tool| available.contains(&tool.as_str()));
            there.collect::<Vec<_>>()
        });
        json!({
            "enabled": self.enabled,
            "maxConcurrent": self.max_concurrent,
            "allowParentToContinue": self.allow_parent_to_continue,
            "reasoningEffort": self.reasoning_effort,
            "tools": tools,
            "disabledAgentNames": self.disabled_roles,
        })
    }
}

/// The settings, and what this session could give a subagent now.
pub(crate) fn describe(agent: &Agent, session: &Session) -> (Value, Value) {
    // What reaches out is confirmed by nobody, unless nothing is.
    let yolo = session.settings().access_policy == "yolo";
    let available: Vec<&str> = RESEARCH
        .iter()
        .copied()
        .filter(|tool| yolo || *tool != "web_search")
        .collect();
    let settings = agent.koda.with(|shared| shared.subagents.describe(&available));
    (settings, json!(available))
}

pub(crate) fn update(agent: &Agent, session: &Session) -> Value {
    let (settings, available) = describe(agent, session);
    json!({"sessionUpdate": "subagent_settings_update", "settings": settings, "availableTools": available})
}

/// Changes them as another process would, and tells every session's client.
pub(crate) fn change(agent: &Agent, section: &Value) {
    agent.koda.with(|shared| shared.subagents.merge(section));
    for session in agent.sessions() {
        super::subagents::tell(agent, &session, &update(agent, &session));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_made_something_that_can() {
        let mut settings = SubagentSettings::default();
        settings.merge(&json!({
            "maxConcurrent": 99, "reasoningEffort": "huge", "tools": ["glob", "rm"], "enabled": "perhaps",
        }));
        let said = settings.describe(&["glob"]);
        assert_eq!(
            (&said["maxConcurrent"], &said["reasoningEffort"], &said["tools"]),
            (&json!(8), &Value::Null, &json!(["glob"]))
        );
        settings.merge(&json!({"tools": []}));
        assert_eq!(settings.describe(&["glob"])["tools"], json!([]));
        settings.merge(&json!({"tools": null}));
        assert_eq!(settings.describe(&["glob"])["tools"], Value::Null);
        assert!(settings.enabled);
    }
}
