//! Checks what the client sends against the official schema (`MOCK_STRICT=1`, which is so in the image).
//!
//! Every line must be a message of JSON-RPC 2.0. The JSON Schemas of params and results are derived from the types of the
//! official schema crate, one per method, when its first frame comes; what is not of the official protocol (the kandev
//! dialect, Koda's methods, `koda/*`, unknown ones) is checked no further.

mod envelope;

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use agent_client_protocol_schema::v1 as acp;
use jsonschema::Validator;
use schemars::{Schema, schema_for};
use serde_json::Value;

use crate::config::Dialect;
use crate::frame::Incoming;
use envelope::Fault;

/// Exit code of an agent whose client sent a frame that is not of the schema.
pub(crate) const EXIT_CODE: i32 = 97;

/// How much is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strictness {
    Off,
    On,
    /// All but a line that ends in the middle of a message: a client that is killed leaves one, and the next one begins
    /// with a newline.
    Torn,
}

/// The schemas in use, and what was asked of the client.
pub(crate) struct Strict {
    dialect: Dialect,
    /// Half a line is no fault.
    torn: bool,
    /// By method and whether it is of the answer to it; `None`: not an official one.
    schemas: Mutex<HashMap<(String, bool), Option<Validator>>>,
    /// Methods of this agent's own requests, by id.
    asked: Mutex<HashMap<String, String>>,
}

impl Strict {
    /// Nothing, where nothing is checked.
    pub(crate) fn new(dialect: Dialect, how: Strictness) -> Option<Self> {
        (how != Strictness::Off).then(|| Self {
            dialect,
            torn: how == Strictness::Torn,
            schemas: Mutex::default(),
            asked: Mutex::default(),
        })
    }

    /// The agent sends a request.
    pub(crate) fn asks(&self, id: &str, method: &str) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.insert(id.to_owned(), method.to_owned());
    }

    /// What is wrong with a line of the client's, which was read as this.
    pub(crate) fn check(&self, line: &[u8], frame: &Incoming) -> Result<(), String> {
        // Stdin ended in the middle of it: what the client had still to write nobody will read.
        let ends = line.ends_with(b"\n");
        if *frame != Incoming::Blank {
            match envelope::check(line.trim_ascii()) {
                Ok(()) => {}
                Err(Fault::Torn) if self.torn || !ends => return Ok(()),
                Err(Fault::Torn) => return Err("half a line".to_owned()),
                Err(Fault::Other(problem)) => return Err(problem),
            }
        }
        match frame {
            Incoming::Call { .. } | Incoming::Answer { .. } if self.dialect == Dialect::Kandev => Ok(()),
            Incoming::Call { id, method, params } => {
                let of_a_notification = matches!(method.as_str(), "session/cancel" | "$/cancel_request");
                if of_a_notification == id.is_some() {
                    return Err(format!("{method}: a request has an id, a notification none"));
                }
                let mut params = params.clone();
                if self.dialect == Dialect::Koda
                    && let Some(params) = params.as_object_mut()
                {
                    params.remove("systemPrompt");
                }
                self.validate(method, false, &params)
            }
            Incoming::Answer { id, answer } => {
                let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
                let method = asked.remove(&id.0);
                drop(asked);
                match (method, answer) {
                    // A second answer, which a client that was killed may give: the first was checked.
                    (None, _) | (_, Err(_)) => Ok(()),
                    (Some(method), Ok(result)) => self.validate(&method, true, result),
                }
            }
            Incoming::Invalid(error) => Err(error.message.clone()),
            Incoming::Blank => Ok(()),
        }
    }

    fn validate(&self, method: &str, is_answer: bool, value: &Value) -> Result<(), String> {
        let mut schemas = self.schemas.lock().unwrap_or_else(PoisonError::into_inner);
        let schema = schemas
            .entry((method.to_owned(), is_answer))
            .or_insert_with(|| validator(method, is_answer));
        let Some(schema) = schema else {
            return Ok(());
        };
        let mut problems = schema
            .iter_errors(value)
            .map(|e| format!("{}: {e}", e.instance_path()));
        match problems.next() {
            None => Ok(()),
            Some(problem) => {
                let what = if is_answer { "the answer to " } else { "" };
                Err(format!("{what}{method}: {problem}"))
            }
        }
    }
}

fn validator(method: &str, is_answer: bool) -> Option<Validator> {
    let schema = if is_answer {
        answer_schema(method)
    } else {
        params_schema(method)
    };
    // A schema that cannot be used is a defect of this agent, which must not pass for a client without defects.
    #[expect(clippy::expect_used, reason = "the schema is a constant of the crate")]
    schema.map(|schema| jsonschema::validator_for(schema.as_value()).expect("a valid schema"))
}

/// Of what the client asks or tells.
fn params_schema(method: &str) -> Option<Schema> {
    Some(match method {
        "initialize" => schema_for!(acp::InitializeRequest),
        "authenticate" => schema_for!(acp::AuthenticateRequest),
        "logout" => schema_for!(acp::LogoutRequest),
        "session/new" => schema_for!(acp::NewSessionRequest),
        "session/load" => schema_for!(acp::LoadSessionRequest),
        "session/resume" => schema_for!(acp::ResumeSessionRequest),
        "session/fork" => schema_for!(acp::ForkSessionRequest),
        "session/list" => schema_for!(acp::ListSessionsRequest),
        "session/close" => schema_for!(acp::CloseSessionRequest),
        "session/delete" => schema_for!(acp::DeleteSessionRequest),
        "session/prompt" => schema_for!(acp::PromptRequest),
        "session/cancel" => schema_for!(acp::CancelNotification),
        "session/set_mode" => schema_for!(acp::SetSessionModeRequest),
        "session/set_config_option" => schema_for!(acp::SetSessionConfigOptionRequest),
        "$/cancel_request" => schema_for!(acp::CancelRequestNotification),
        _ => return None,
    })
}

/// Of what the client answers.
fn answer_schema(method: &str) -> Option<Schema> {
    Some(match method {
        "session/request_permission" => schema_for!(acp::RequestPermissionResponse),
        "fs/read_text_file" => schema_for!(acp::ReadTextFileResponse),
        "fs/write_text_file" => schema_for!(acp::WriteTextFileResponse),
        "terminal/create" => schema_for!(acp::CreateTerminalResponse),
        "terminal/output" => schema_for!(acp::TerminalOutputResponse),
        "terminal/wait_for_exit" => schema_for!(acp::WaitForTerminalExitResponse),
        "terminal/kill" => schema_for!(acp::KillTerminalResponse),
        "terminal/release" => schema_for!(acp::ReleaseTerminalResponse),
        "elicitation/create" => schema_for!(acp::CreateElicitationResponse),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use agent_client_protocol_schema::v1::{AGENT_METHOD_NAMES, CLIENT_METHOD_NAMES};

    use super::*;
    use crate::frame::parse;

    fn strict(how: Strictness) -> Strict {
        Strict::new(Dialect::Acp, how).unwrap()
    }

    fn check(line: &str) -> Result<(), String> {
        strict(Strictness::On).check(line.as_bytes(), &parse(line.as_bytes()))
    }

    #[test]
    fn every_official_method_has_its_schema() {
        let names = serde_json::to_value((AGENT_METHOD_NAMES, CLIENT_METHOD_NAMES)).unwrap();
        let names = |side: usize| {
            let all = names[side].as_object().unwrap().values();
            all.map(|name| name.as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        for method in names(0) {
            assert!(validator(&method, false).is_some(), "{method}");
        }
        // What the agent only tells has no answer.
        for method in names(1) {
            let is_told = matches!(method.as_str(), "session/update" | "elicitation/complete");
            assert_eq!(validator(&method, true).is_none(), is_told, "{method}");
        }
    }

    #[test]
    fn what_is_of_the_schema_passes() {
        for line in [
            r#"{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"/w","mcpServers":[]}}"#,
            r#"{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"koda/custom_models/list","params":[]}"#,
            r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32603,"message":"no"}}"#,
        ] {
            assert_eq!(check(line), Ok(()), "{line}");
        }
    }

    #[test]
    fn what_is_not_is_told() {
        for (line, problem) in [
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":7,"mcpServers":[]}}"#,
                "session/new: /cwd",
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"sessionId":"s","prompt":[{"type":"text"}]}}"#,
                "session/prompt: /prompt/0",
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"session/cancel","params":{"sessionId":"s"}}"#,
                "session/cancel: a request has an id",
            ),
        ] {
            let told = check(line).unwrap_err();
            assert!(told.contains(problem), "{line}: {told}");
        }
        let strict = strict(Strictness::On);
        strict.asks("7", "session/request_permission");
        let answer = br#"{"jsonrpc":"2.0","id":7,"result":{"outcome":"allowed"}}"#;
        let told = strict.check(answer, &parse(answer)).unwrap_err();
        assert!(
            told.starts_with("the answer to session/request_permission: /outcome"),
            "{told}"
        );
    }

    #[test]
    fn half_a_line_is_a_fault_unless_it_may_be() {
        let tried = |how: Strictness, line: &[u8]| strict(how).check(line, &parse(line));
        let half = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"meth\n";
        assert_eq!(tried(Strictness::On, half), Err("half a line".to_owned()));
        assert_eq!(tried(Strictness::Torn, half), Ok(()));
        assert_eq!(tried(Strictness::On, half.trim_ascii()), Ok(()), "stdin ended");
        for how in [Strictness::On, Strictness::Torn] {
            assert!(tried(how, b"{\"jsonrpc\":\"2.0\",\"id\":1,{\"jsonrpc\":\"2.0\"}\n").is_err());
            assert_eq!(tried(how, b"\n"), Ok(()));
        }
        assert!(Strict::new(Dialect::Acp, Strictness::Off).is_none());
    }
}
