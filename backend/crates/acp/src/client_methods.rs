//! Files and terminals: what an agent asks its client to do, and what it is answered; and how it takes that back. Source: ACP v1,
//! "File System", "Terminals" and "Cancellation".

use kandev_domain::agent_type::Protocol;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::id::Id;
use crate::json::{self, Fields, elements};
use crate::rpc_error::{INVALID_PARAMS, RpcError};

/// A request of an agent's about files or terminals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientCall {
    /// `fs/read_text_file`.
    Read {
        /// The file.
        path: String,
        /// The first line, from 1.
        line: Option<u64>,
        /// How many.
        limit: Option<u64>,
    },
    /// `fs/write_text_file`.
    Write {
        /// The file.
        path: String,
        /// All that shall be in it.
        content: String,
    },
    /// `terminal/create`.
    Create(Box<Create>),
    /// `terminal/output` of this terminal.
    Output(String),
    /// `terminal/wait_for_exit`.
    Wait(String),
    /// `terminal/kill`.
    Kill(String),
    /// `terminal/release`.
    Release(String),
}

/// A process to be run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Create {
    /// What.
    pub command: String,
    /// With what.
    pub args: Vec<String>,
    /// In what environment, beside the agent's.
    pub env: Vec<(String, String)>,
    /// Where.
    pub cwd: Option<String>,
    /// How much of its output is to be kept, in bytes.
    pub limit: Option<u64>,
}

impl ClientCall {
    /// Reads a request; none if the method is of another kind.
    pub fn read(method: &str, params: &RawValue) -> Option<Result<(Option<String>, Self), RpcError>> {
        let fields = Fields::of(params);
        let call = match method {
            "fs/read_text_file" => read_file(&fields),
            "fs/write_text_file" => write_file(&fields),
            "terminal/create" => create(&fields),
            "terminal/output" => terminal(&fields).map(Self::Output),
            "terminal/wait_for_exit" => terminal(&fields).map(Self::Wait),
            "terminal/kill" => terminal(&fields).map(Self::Kill),
            "terminal/release" => terminal(&fields).map(Self::Release),
            _ => return None,
        };
        let session = fields.get("sessionId").and_then(json::text_or_number);
        Some(call.map(|call| (session.map(Into::into), call)))
    }
}

fn required(fields: &Fields<'_>, name: &str) -> Result<String, RpcError> {
    let text = fields.string(name);
    text.ok_or_else(|| RpcError::new(INVALID_PARAMS, format!("params.{name} must be a string")))
}

fn terminal(fields: &Fields<'_>) -> Result<String, RpcError> {
    required(fields, "terminalId")
}

/// As the schema has it, anything else is as if it were not there.
fn number(fields: &Fields<'_>, name: &str) -> Option<u64> {
    fields.get(name)?.get().parse().ok()
}

fn read_file(fields: &Fields<'_>) -> Result<ClientCall, RpcError> {
    Ok(ClientCall::Read {
        path: required(fields, "path")?,
        line: number(fields, "line"),
        limit: number(fields, "limit"),
    })
}

fn write_file(fields: &Fields<'_>) -> Result<ClientCall, RpcError> {
    Ok(ClientCall::Write {
        path: required(fields, "path")?,
        content: required(fields, "content")?,
    })
}

fn create(fields: &Fields<'_>) -> Result<ClientCall, RpcError> {
    let list = |name| fields.get(name).map(elements).unwrap_or_default();
    let variable = |raw: &RawValue| {
        let variable = Fields::of(raw);
        Some((variable.string("name")?, variable.string("value")?))
    };
    Ok(ClientCall::Create(Box::new(Create {
        command: required(fields, "command")?,
        args: list("args")
            .into_iter()
            .filter_map(json::text)
            .map(Into::into)
            .collect(),
        env: list("env").into_iter().filter_map(variable).collect(),
        cwd: fields.string("cwd"),
        limit: number(fields, "outputByteLimit"),
    })))
}

/// What `$/cancel_request` takes back; none if it names nothing.
pub fn cancelled_request(params: &RawValue) -> Option<Id> {
    Id::from_raw(Fields::of(params).get("requestId")?)
}

/// What a client of this type says that it can do. The merged capabilities decide what is handled, too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offered {
    /// `fs/read_text_file`.
    pub read: bool,
    /// `fs/write_text_file`.
    pub write: bool,
    /// All of `terminal/*`.
    pub terminal: bool,
    /// `elicitation/create` of forms.
    pub form: bool,
    /// And of URLs.
    pub url: bool,
}

impl Offered {
    /// What is in the parameters of `initialize`; the kandev dialect has no place for it.
    pub fn of(protocol: Protocol, initialize: &Value) -> Self {
        if protocol == Protocol::Kandev {
            return Self::default();
        }
        let capabilities = &initialize["clientCapabilities"];
        // Advertised by an object.
        let elicits = |mode: &str| capabilities["elicitation"][mode].is_object();
        Self {
            read: capabilities["fs"]["readTextFile"] == true,
            write: capabilities["fs"]["writeTextFile"] == true,
            terminal: capabilities["terminal"] == true,
            form: elicits("form"),
            url: elicits("url"),
        }
    }

    /// Whether this call was offered.
    pub const fn allows(self, call: &ClientCall) -> bool {
        match call {
            ClientCall::Read { .. } => self.read,
            ClientCall::Write { .. } => self.write,
            _ => self.terminal,
        }
    }
}

/// How a terminal's process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExitStatus {
    /// None if a signal ended it.
    pub exit_code: Option<u32>,
    /// Its name.
    pub signal: Option<String>,
}

/// The result of `fs/read_text_file`.
pub fn content(text: &str) -> Value {
    json!({ "content": text })
}

/// The result of `terminal/create`.
pub fn created(terminal: &str) -> Value {
    json!({ "terminalId": terminal })
}

/// The result of `terminal/output`.
pub fn output(text: &str, truncated: bool, exit: Option<&ExitStatus>) -> Value {
    json!({ "output": text, "truncated": truncated, "exitStatus": exit })
}

#[cfg(test)]
mod tests {
    use agent_client_protocol_schema::v1::{
        CreateTerminalResponse, ReadTextFileResponse, TerminalOutputResponse, WaitForTerminalExitResponse,
    };

    use super::*;

    fn read(method: &str, params: &str) -> Result<ClientCall, RpcError> {
        let params = serde_json::from_str(params).unwrap();
        ClientCall::read(method, params).unwrap().map(|(_, call)| call)
    }

    #[test]
    fn requests_are_read_and_what_does_not_fit_is_as_if_it_were_not_there() {
        let call = read(
            "fs/read_text_file",
            r#"{"path":"/a","line":"x","limit":-1,"other":1}"#,
        );
        let (line, limit) = (None, None);
        assert_eq!(
            call.unwrap(),
            ClientCall::Read {
                path: "/a".to_owned(),
                line,
                limit
            }
        );
        let call = read(
            "terminal/create",
            r#"{"command":"c","args":["a",7,"b"],"env":[{"name":"N","value":"v"},{"name":1}],"cwd":null,"outputByteLimit":9}"#,
        );
        let expected = Create {
            command: "c".to_owned(),
            args: vec!["a".to_owned(), "b".to_owned()],
            env: vec![("N".to_owned(), "v".to_owned())],
            cwd: None,
            limit: Some(9),
        };
        assert_eq!(call.unwrap(), ClientCall::Create(Box::new(expected)));
        for (method, params) in [
            ("fs/read_text_file", "{}"),
            ("fs/write_text_file", r#"{"path":"/a"}"#),
            ("terminal/create", "[]"),
            ("terminal/kill", r#"{"terminalId":7}"#),
        ] {
            assert_eq!(read(method, params).unwrap_err().code, INVALID_PARAMS, "{method}");
        }
        assert!(ClientCall::read("fs/other", RawValue::NULL).is_none());
    }

    #[test]
    fn results_are_of_the_official_form() {
        fn check<T: serde::de::DeserializeOwned + Serialize>(ours: Value) {
            let official: T = serde_json::from_value(ours.clone()).unwrap();
            let mut official = serde_json::to_value(official).unwrap();
            // A null that is left out says the same.
            for (key, value) in ours.as_object().unwrap() {
                if value.is_null() {
                    official[key] = Value::Null;
                }
            }
            assert_eq!(official, ours);
        }
        check::<ReadTextFileResponse>(content("a\0é"));
        check::<CreateTerminalResponse>(created("t"));
        check::<TerminalOutputResponse>(output("x", true, None));
        // A null passes under any name, so each field has a value once.
        for exit in [(None, Some("SIGKILL".to_owned())), (Some(3), None)] {
            let (exit_code, signal) = exit.clone();
            let ours = ExitStatus { exit_code, signal };
            check::<WaitForTerminalExitResponse>(json!(ours));
            let with_exit = output("x", false, Some(&ours));
            let official: TerminalOutputResponse = serde_json::from_value(with_exit).unwrap();
            let official = official.exit_status.unwrap();
            assert_eq!((official.exit_code, official.signal), exit);
        }
    }

    #[test]
    fn what_is_offered_is_what_initialize_says() {
        let offered =
            |protocol, capabilities| Offered::of(protocol, &json!({"clientCapabilities": capabilities}));
        let all = json!({
            "fs": {"readTextFile": true, "writeTextFile": true}, "terminal": true, "elicitation": {"form": {}, "url": false},
        });
        let terminal = Offered {
            terminal: true,
            ..Offered::default()
        };
        assert_eq!(
            offered(Protocol::Acp, json!({"terminal": true, "fs": null})),
            terminal
        );
        assert_eq!(offered(Protocol::Kandev, all.clone()), Offered::default());
        let some = offered(Protocol::Auto, all);
        assert!(some.read && some.form && !some.url);
        assert!(terminal.allows(&ClientCall::Kill(String::new())));
        let write = ClientCall::Write {
            path: String::new(),
            content: String::new(),
        };
        assert!(!terminal.allows(&write));
    }
}
