//! What is asked of an agent, per dialect. Source: ACP v1, the agent's methods; the seed, "Message Specifications".

use kandev_domain::content::Prompt;
use serde_json::{Map, Value, json};

use super::Dialect;
use super::asks::ENTRY_MARK;
use super::handshake::add_missing;

/// A method and its parameters.
pub type Call = (&'static str, Value);

/// The reason that the seed gives, for callers who give none.
const DEFAULT_CANCEL_REASON: &str = "User requested cancellation";

/// The methods that a dialect does not have are `None`.
impl Dialect {
    /// Starts a session. `additional` adds fields that are not of the protocol (Koda's `systemPrompt`, `_meta`).
    pub fn session_new(self, cwd: &str, mcp_servers: &[Value], additional: &Map<String, Value>) -> Call {
        let params = match self {
            Self::Acp => with(json!({"cwd": cwd, "mcpServers": mcp_servers}), additional),
            Self::Kandev => json!({}),
        };
        ("session/new", params)
    }

    /// Takes up an old session; an ACP agent replays it first.
    pub fn session_load(
        self,
        session_id: &str,
        cwd: &str,
        mcp_servers: &[Value],
        additional: &Map<String, Value>,
    ) -> Call {
        let params = match self {
            Self::Acp => old_session(session_id, cwd, mcp_servers, additional),
            Self::Kandev => json!({"sessionId": session_id}),
        };
        ("session/load", params)
    }

    /// Takes up an old session without a replay.
    pub fn session_resume(
        self,
        session_id: &str,
        cwd: &str,
        mcp_servers: &[Value],
        additional: &Map<String, Value>,
    ) -> Option<Call> {
        self.acp_only("session/resume", || {
            old_session(session_id, cwd, mcp_servers, additional)
        })
    }

    /// A turn.
    pub fn prompt(self, session_id: &str, prompt: &Prompt) -> Call {
        let params = match self {
            Self::Acp => json!({"sessionId": session_id, "prompt": prompt}),
            Self::Kandev => json!({"message": prompt.to_text()}),
        };
        ("session/prompt", params)
    }

    /// The same with what is told beside it, and with a label that a fork can name later. The kandev dialect has no place
    /// for either.
    pub fn prompt_with(
        self,
        session_id: &str,
        prompt: &Prompt,
        meta: &Map<String, Value>,
        label: Option<&str>,
    ) -> Call {
        let (method, mut params) = self.prompt(session_id, prompt);
        let mut meta = meta.clone();
        if let Some(label) = label {
            meta.insert(ENTRY_MARK.to_owned(), json!(label));
        }
        if self == Self::Acp && !meta.is_empty() {
            params["_meta"] = Value::Object(meta);
        }
        (method, params)
    }

    /// Ends the turn in flight; a notification. ACP has no place for the reason.
    pub fn cancel(self, session_id: &str, reason: Option<&str>) -> Call {
        let params = match self {
            Self::Acp => json!({"sessionId": session_id}),
            Self::Kandev => json!({"reason": reason.unwrap_or(DEFAULT_CANCEL_REASON)}),
        };
        ("session/cancel", params)
    }

    /// Authenticates in one of the ways that the agent offered.
    pub fn authenticate(self, method_id: &str) -> Option<Call> {
        self.acp_only("authenticate", || json!({"methodId": method_id}))
    }

    /// Changes the session's mode.
    pub fn set_mode(self, session_id: &str, mode_id: &str) -> Option<Call> {
        self.acp_only(
            "session/set_mode",
            || json!({"sessionId": session_id, "modeId": mode_id}),
        )
    }

    /// Changes the session's model. Source: Koda and other agents; the stable schema has a config option for it.
    pub fn set_model(self, session_id: &str, model_id: &str) -> Option<Call> {
        self.acp_only(
            "session/set_model",
            || json!({"sessionId": session_id, "modelId": model_id}),
        )
    }

    /// Changes an option of the session.
    pub fn set_config_option(self, session_id: &str, config_id: &str, value: &Value) -> Option<Call> {
        self.acp_only("session/set_config_option", || {
            let mut params = json!({"sessionId": session_id, "configId": config_id, "value": value});
            // The schema tells booleans apart by a type; strings have none.
            if value.is_boolean() {
                params["type"] = json!("boolean");
            }
            params
        })
    }

    fn acp_only(self, method: &'static str, params: impl FnOnce() -> Value) -> Option<Call> {
        (self == Self::Acp).then(|| (method, params()))
    }
}

fn old_session(session_id: &str, cwd: &str, mcp_servers: &[Value], additional: &Map<String, Value>) -> Value {
    with(
        json!({"sessionId": session_id, "cwd": cwd, "mcpServers": mcp_servers}),
        additional,
    )
}

fn with(mut params: Value, additional: &Map<String, Value>) -> Value {
    add_missing(&mut params, additional);
    params
}

#[cfg(test)]
mod tests {
    use agent_client_protocol_schema::v1 as official;
    use serde::{Serialize, de::DeserializeOwned};

    use super::*;

    /// Reads our parameters as the official type, and checks that it found all of them.
    fn official<T: DeserializeOwned + Serialize>(call: Call, method: &str) -> T {
        assert_eq!(call.0, method);
        let read: T = serde_json::from_value(call.1.clone()).unwrap();
        let Value::Object(written) = serde_json::to_value(&read).unwrap() else {
            panic!()
        };
        for (key, value) in call.1.as_object().unwrap() {
            assert_eq!(written.get(key), Some(value), "{method}: {key}");
        }
        read
    }

    #[test]
    fn acp_calls_are_of_the_official_form() {
        let acp = Dialect::Acp;
        let mcp = [json!({"name": "m", "command": "/bin/m", "args": ["-x"], "env": []})];
        let none = Map::new();
        let new: official::NewSessionRequest =
            official(acp.session_new("/workspace", &mcp, &none), "session/new");
        assert_eq!(new.mcp_servers.len(), 1);
        let load: official::LoadSessionRequest =
            official(acp.session_load("s", "/workspace", &mcp, &none), "session/load");
        assert_eq!(load.mcp_servers.len(), 1);
        let resume = acp.session_resume("s", "/workspace", &mcp, &none).unwrap();
        official::<official::ResumeSessionRequest>(resume, "session/resume");
        let prompt = Prompt::text("hello").unwrap();
        let prompt: official::PromptRequest = official(acp.prompt("s", &prompt), "session/prompt");
        assert!(matches!(&prompt.prompt[0], official::ContentBlock::Text(t) if t.text == "hello"));
        official::<official::CancelNotification>(acp.cancel("s", Some("why")), "session/cancel");
        official::<official::AuthenticateRequest>(acp.authenticate("key").unwrap(), "authenticate");
        official::<official::SetSessionModeRequest>(acp.set_mode("s", "plan").unwrap(), "session/set_mode");
        for value in [json!("gpt"), json!(true)] {
            let call = acp.set_config_option("s", "c", &value).unwrap();
            official::<official::SetSessionConfigOptionRequest>(call, "session/set_config_option");
        }
    }

    #[test]
    fn additional_fields_are_added_and_replace_nothing() {
        let Value::Object(additional) = json!({"systemPrompt": "be brief", "cwd": "/"}) else {
            panic!()
        };
        let (_, params) = Dialect::Acp.session_new("/workspace", &[], &additional);
        assert_eq!(
            params,
            json!({"cwd": "/workspace", "mcpServers": [], "systemPrompt": "be brief"})
        );
    }

    #[test]
    fn kandev_calls_are_exactly_the_seeds() {
        let kandev = Dialect::Kandev;
        let none = Map::new();
        assert_eq!(
            kandev.session_new("/workspace", &[json!({})], &none),
            ("session/new", json!({}))
        );
        let load = kandev.session_load("abc", "/workspace", &[], &none);
        assert_eq!(load, ("session/load", json!({"sessionId": "abc"})));
        let prompt = Prompt::text("Fix the bug").unwrap();
        assert_eq!(
            kandev.prompt("abc", &prompt),
            ("session/prompt", json!({"message": "Fix the bug"}))
        );
        let cancel = kandev.cancel("abc", None);
        assert_eq!(
            cancel,
            ("session/cancel", json!({"reason": "User requested cancellation"}))
        );
        assert_eq!(kandev.cancel("abc", Some("x")).1, json!({"reason": "x"}));
        assert_eq!(kandev.session_resume("abc", "/", &[], &none), None);
        assert_eq!(kandev.set_mode("abc", "plan"), None);
    }
}
