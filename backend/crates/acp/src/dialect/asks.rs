//! What a caller may ask of an agent beside prompts. Source: ACP v1, the agent's methods; Koda's page on its ACP server.

use kandev_domain::McpServer;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Dialect;
use super::handshake::add_missing;

/// Koda's mark of a prompt, in `_meta`, which a fork can name.
pub const ENTRY_MARK: &str = "com.kodadev.desktopEntryId";

/// Something that the agent does and answers, in its session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// `session/set_mode`.
    Mode {
        /// One of the session's modes.
        mode_id: String,
    },
    /// `session/set_model`; Koda and others.
    Model {
        /// One of the session's models.
        model_id: String,
    },
    /// `session/set_config_option`.
    Option {
        /// The option.
        config_id: String,
        /// A string for a choice, else a boolean.
        value: Value,
    },
    /// `session/set_reasoning_effort`; Koda.
    ReasoningEffort {
        /// One that the model has.
        effort: String,
    },
    /// `session/set_plan`; Koda.
    Plan {
        /// All that is to be left of the plan.
        entries: Vec<Value>,
        /// Why.
        explanation: Option<String>,
    },
    /// `session/compact`; Koda.
    Compact,
    /// `session/fork`.
    Fork {
        /// Koda's label of the message before which the branch begins.
        before: Option<String>,
        /// In the place of those that the session was given.
        #[serde(default)]
        mcp_servers: Option<Vec<McpServer>>,
    },
    /// `session/list`.
    List {
        /// Only those of this directory.
        cwd: Option<String>,
        /// Of the page before.
        cursor: Option<String>,
    },
    /// `session/close`, of another session than the instance's.
    Close {
        /// Which.
        session_id: String,
    },
    /// `session/delete`, of another session than the instance's.
    Delete {
        /// Which.
        session_id: String,
    },
    /// `authenticate`.
    Authenticate {
        /// One of the agent's ways.
        method_id: String,
    },
    /// `logout`.
    Logout,
    /// Any other method.
    Rpc {
        /// Its name.
        method: String,
        /// As the caller gave them.
        params: Option<Value>,
    },
}

/// Where the agent works: what a fork has to be told.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The agent's session.
    pub session_id: &'a str,
    /// Its directory.
    pub cwd: &'a str,
    /// The servers that the branch is given.
    pub mcp_servers: &'a [Value],
    /// What else a session is opened with.
    pub additional: &'a Map<String, Value>,
}

impl Ask {
    /// The method.
    pub fn method(&self) -> &str {
        match self {
            Self::Mode { .. } => "session/set_mode",
            Self::Model { .. } => "session/set_model",
            Self::Option { .. } => "session/set_config_option",
            Self::ReasoningEffort { .. } => "session/set_reasoning_effort",
            Self::Plan { .. } => "session/set_plan",
            Self::Compact => "session/compact",
            Self::Fork { .. } => "session/fork",
            Self::List { .. } => "session/list",
            Self::Close { .. } => "session/close",
            Self::Delete { .. } => "session/delete",
            Self::Authenticate { .. } => "authenticate",
            Self::Logout => "logout",
            Self::Rpc { method, .. } => method,
        }
    }

    /// The parameters. None in a dialect that has no such method.
    pub fn params(&self, dialect: Dialect, place: Place<'_>) -> Option<Value> {
        let Place {
            session_id,
            cwd,
            mcp_servers,
            additional,
        } = place;
        let (_, params) = match self {
            Self::Mode { mode_id } => dialect.set_mode(session_id, mode_id)?,
            Self::Model { model_id } => dialect.set_model(session_id, model_id)?,
            Self::Option { config_id, value } => dialect.set_config_option(session_id, config_id, value)?,
            Self::Authenticate { method_id } => dialect.authenticate(method_id)?,
            // Whoever calls a method by its name knows the agent.
            Self::Rpc { params, .. } => return Some(rpc_params(self.method(), params.as_ref(), session_id)),
            _ if dialect != Dialect::Acp => return None,
            Self::ReasoningEffort { effort } => ("", json!({"sessionId": session_id, "effort": effort})),
            Self::Plan { entries, explanation } => {
                let mut params = json!({"sessionId": session_id, "entries": entries});
                if let Some(explanation) = explanation {
                    params["explanation"] = json!(explanation);
                }
                ("", params)
            }
            Self::Compact => ("", json!({"sessionId": session_id})),
            Self::Fork { before, .. } => {
                let mut params = json!({"sessionId": session_id, "cwd": cwd, "mcpServers": mcp_servers});
                add_missing(&mut params, additional);
                if let Some(before) = before {
                    if !params["_meta"].is_object() {
                        params["_meta"] = json!({});
                    }
                    params["_meta"][ENTRY_MARK] = json!(before);
                }
                ("", params)
            }
            Self::List { cwd, cursor } => {
                let mut params = json!({});
                for (name, value) in [("cwd", cwd), ("cursor", cursor)] {
                    if let Some(value) = value {
                        params[name] = json!(value);
                    }
                }
                ("", params)
            }
            Self::Close { session_id } | Self::Delete { session_id } => {
                ("", json!({"sessionId": session_id}))
            }
            Self::Logout => ("", json!({})),
        };
        Some(params)
    }
}

/// A method of the session's gets the session's id, unless the caller named one.
fn rpc_params(method: &str, params: Option<&Value>, session_id: &str) -> Value {
    let mut params = params.cloned().unwrap_or_else(|| json!({}));
    if method.starts_with("session/")
        && let Some(fields) = params.as_object_mut()
    {
        fields.entry("sessionId").or_insert_with(|| json!(session_id));
    }
    params
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place<'static> {
        Place {
            session_id: "s",
            cwd: "/workspace",
            mcp_servers: &[],
            additional: Box::leak(Box::default()),
        }
    }

    fn params(ask: &Ask) -> Value {
        ask.params(Dialect::Acp, place()).unwrap()
    }

    #[test]
    fn a_branch_is_told_what_its_session_was_told() {
        let Value::Object(additional) = json!({"systemPrompt": "be brief", "_meta": {"a": 1}}) else {
            panic!()
        };
        let place = Place {
            additional: &additional,
            ..place()
        };
        let before = Some("turn".to_owned());
        let params = Ask::Fork {
            before,
            mcp_servers: None,
        }
        .params(Dialect::Acp, place)
        .unwrap();
        assert_eq!(params["systemPrompt"], "be brief");
        assert_eq!(params["_meta"], json!({"a": 1, ENTRY_MARK: "turn"}));
    }

    #[test]
    fn asks_are_of_the_form_that_their_sources_give() {
        use agent_client_protocol_schema::v1 as official;
        let mode = Ask::Mode {
            mode_id: "code".to_owned(),
        };
        serde_json::from_value::<official::SetSessionModeRequest>(params(&mode)).unwrap();
        let fork = Ask::Fork {
            before: Some("message-42".to_owned()),
            mcp_servers: None,
        };
        assert_eq!(
            params(&fork),
            json!({"sessionId": "s", "cwd": "/workspace", "mcpServers": [], "_meta": {ENTRY_MARK: "message-42"}})
        );
        assert_eq!(params(&Ask::Compact), json!({"sessionId": "s"}));
        let plan = Ask::Plan {
            entries: vec![json!({"content": "a"})],
            explanation: None,
        };
        assert_eq!(
            params(&plan),
            json!({"sessionId": "s", "entries": [{"content": "a"}]})
        );
        let session_id = || "t".to_owned();
        for ask in [
            Ask::Close {
                session_id: session_id(),
            },
            Ask::Delete {
                session_id: session_id(),
            },
        ] {
            assert_eq!(params(&ask), json!({"sessionId": "t"}));
        }
        let list = Ask::List {
            cwd: Some("/w".to_owned()),
            cursor: None,
        };
        assert_eq!(params(&list), json!({"cwd": "/w"}));
        serde_json::from_value::<official::ListSessionsRequest>(params(&list)).unwrap();
        let effort = Ask::ReasoningEffort {
            effort: "high".to_owned(),
        };
        assert_eq!(params(&effort), json!({"sessionId": "s", "effort": "high"}));
    }

    #[test]
    fn only_a_method_of_the_sessions_gets_its_id() {
        let rpc = |method: &str, params: Option<Value>| {
            let method = method.to_owned();
            Ask::Rpc { method, params }
                .params(Dialect::Kandev, place())
                .unwrap()
        };
        assert_eq!(rpc("session/subagent_list", None), json!({"sessionId": "s"}));
        assert_eq!(
            rpc("session/x", Some(json!({"sessionId": "t"}))),
            json!({"sessionId": "t"})
        );
        assert_eq!(rpc("koda/custom_models/list", None), json!({}));
        assert_eq!(rpc("session/x", Some(json!([1]))), json!([1]));
    }

    #[test]
    fn the_kandev_dialect_has_none_of_them() {
        assert_eq!(Ask::Compact.params(Dialect::Kandev, place()), None);
        assert_eq!(Ask::Logout.params(Dialect::Kandev, place()), None);
    }
}
