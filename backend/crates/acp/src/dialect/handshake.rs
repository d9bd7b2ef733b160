//! `initialize`: what we ask, and what its answer tells. Source: ACP v1, "Initialization"; the seed, "Initialize
//! Connection".

use std::collections::BTreeMap;

use kandev_domain::McpTransports;
use kandev_domain::agent_type::Protocol;
use kandev_domain::content::PromptCapabilities;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::dialect::Dialect;
use crate::json::{self, Fields, elements};

/// The only version of ACP that is spoken. Agents change what they speak when asked for another.
const ACP_VERSION: u64 = 1;

/// Who we are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientInfo {
    /// For programs.
    pub name: String,
    /// For people.
    pub title: Option<String>,
    /// Our version.
    pub version: String,
}

/// The parameters of `initialize`.
///
/// `extra_client_capabilities` is merged, object by object, into what kandev can do by itself; the kandev dialect has
/// no place for it. With `auto` both dialects find what they look for. A legacy agent is never asked.
pub fn initialize_params(
    protocol: Protocol,
    info: &ClientInfo,
    extra_client_capabilities: &BTreeMap<String, Value>,
) -> Value {
    let streaming = json!({"streaming": true});
    if protocol == Protocol::Kandev {
        return json!({
            "protocolVersion": "1.0",
            "clientInfo": {"name": info.name, "version": info.version},
            "capabilities": streaming,
        });
    }
    let mut capabilities = json!({
        "fs": {"readTextFile": true, "writeTextFile": true},
        "terminal": true,
        "elicitation": {"form": {}, "url": {}},
        "session": {"configOptions": {"boolean": {}}},
    });
    for (key, value) in extra_client_capabilities {
        merge(&mut capabilities[key.as_str()], value);
    }
    leave_out_refused(&mut capabilities, "elicitation");
    if capabilities["session"].is_object() {
        leave_out_refused(&mut capabilities["session"], "configOptions");
    }
    leave_out_refused(&mut capabilities, "session");
    let mut client_info = json!({"name": info.name, "version": info.version});
    if let Some(title) = &info.title {
        client_info["title"] = json!(title);
    }
    let mut params = json!({
        "protocolVersion": ACP_VERSION,
        "clientCapabilities": capabilities,
        "clientInfo": client_info,
    });
    if protocol != Protocol::Acp {
        params["capabilities"] = streaming;
    }
    params
}

/// Where the official form of a capability is an object, `false` can only be said by leaving it out.
fn leave_out_refused(capabilities: &mut Value, name: &str) {
    if let Some(parts) = capabilities[name].as_object_mut() {
        parts.retain(|_, part| *part != Value::Bool(false));
    }
    let is_refused = match &capabilities[name] {
        Value::Bool(offered) => !offered,
        Value::Object(parts) => parts.is_empty(),
        _ => false,
    };
    if is_refused && let Some(capabilities) = capabilities.as_object_mut() {
        capabilities.remove(name);
    }
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

/// What the agent said of itself.
#[derive(Debug, Clone)]
pub struct Negotiated {
    /// How it speaks.
    pub dialect: Dialect,
    /// `agentInfo` or `serverInfo`, unchanged.
    pub agent_info: Option<Box<RawValue>>,
    /// `agentCapabilities` or `capabilities`, unchanged.
    pub capabilities: Option<Box<RawValue>>,
    /// Ways to authenticate.
    pub auth_methods: Vec<AuthMethod>,
    /// Content kinds it takes; the kandev dialect takes text only.
    pub prompt: PromptCapabilities,
    /// Session methods it has beyond `session/new` and `session/prompt`.
    pub session: SessionMethods,
    /// MCP transports it takes beyond stdio.
    pub mcp: McpTransports,
    /// The whole answer, unchanged.
    pub raw: Box<RawValue>,
}

/// Optional session methods. `session/set_mode` and its like are advertised by the session, not by the agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SessionMethods {
    /// `session/load`.
    pub load: bool,
    /// `session/resume`.
    pub resume: bool,
    /// `session/fork`.
    pub fork: bool,
    /// `session/list`.
    pub list: bool,
    /// `session/close`.
    pub close: bool,
    /// `session/delete`.
    pub delete: bool,
    /// `additionalDirectories` of those that open a session.
    pub additional_directories: bool,
}

/// One way to authenticate.
#[derive(Debug, Clone)]
pub struct AuthMethod {
    /// What `authenticate` names.
    pub id: String,
    /// For people; the id where the agent gives none.
    pub name: String,
    /// For people.
    pub description: Option<String>,
    /// All of it, unchanged.
    pub raw: Box<RawValue>,
}

impl AuthMethod {
    /// A method of this form is a program that the user runs: the agent is not to be asked for it.
    pub fn is_program(method: &Value) -> bool {
        method["type"] == "terminal"
    }
}

/// Why an answer to `initialize` cannot be worked with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NegotiationError {
    /// Not even an object.
    #[error("the agent answered initialize with something that is no object: {0}")]
    NotAnObject(String),
    /// It does not say what it speaks.
    #[error("the agent's answer to initialize has no protocolVersion")]
    MissingVersion,
    /// It speaks something else.
    #[error(
        "the agent answered initialize with protocolVersion {answered}, but kandev speaks {spoken} with it"
    )]
    UnsupportedVersion {
        /// Its version, as JSON, shortened.
        answered: String,
        /// What would have been right.
        spoken: &'static str,
    },
    /// Legacy agents do not shake hands.
    #[error("an agent of the legacy protocol has no handshake")]
    NoHandshake,
}

/// Reads the answer to `initialize`. Optional fields that are misshapen count as absent.
pub fn negotiate(protocol: Protocol, result: &RawValue) -> Result<Negotiated, NegotiationError> {
    if !result.get().starts_with('{') {
        return Err(NegotiationError::NotAnObject(shorten(result.get())));
    }
    let fields = Fields::of(result);
    let version = fields
        .get("protocolVersion")
        .ok_or(NegotiationError::MissingVersion)?;
    let spoken = spoken_in(version);
    let (dialect, expected) = match protocol {
        Protocol::Legacy => return Err(NegotiationError::NoHandshake),
        Protocol::Acp => (spoken.filter(|d| *d == Dialect::Acp), "1"),
        Protocol::Kandev => (spoken.filter(|d| *d == Dialect::Kandev), "\"1.0\""),
        Protocol::Auto => (spoken, "1 or \"1.0\""),
    };
    let dialect = dialect.ok_or_else(|| NegotiationError::UnsupportedVersion {
        answered: shorten(version.get()),
        spoken: expected,
    })?;
    Ok(match dialect {
        Dialect::Acp => acp(&fields, result),
        Dialect::Kandev => kandev(&fields, result),
    })
}

/// The integer 1 is ACP; a string of major version 1 is Kandev.
fn spoken_in(version: &RawValue) -> Option<Dialect> {
    if let Some(text) = json::text(version) {
        let minor = text.strip_prefix('1')?;
        let rest = minor.strip_prefix('.').unwrap_or("0");
        let numeric = rest
            .split('.')
            .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
        return ((minor.is_empty() || minor.starts_with('.')) && numeric).then_some(Dialect::Kandev);
    }
    let number: f64 = version.get().parse().ok()?;
    (number.to_bits() == 1f64.to_bits()).then_some(Dialect::Acp)
}

fn acp(fields: &Fields<'_>, result: &RawValue) -> Negotiated {
    let capabilities = fields.object("agentCapabilities");
    let prompt = capabilities.object("promptCapabilities");
    let session = capabilities.object("sessionCapabilities");
    let mcp = capabilities.object("mcpCapabilities");
    let methods = fields.get("authMethods").map(elements).unwrap_or_default();
    Negotiated {
        dialect: Dialect::Acp,
        agent_info: fields.owned("agentInfo").or_else(|| fields.owned("serverInfo")),
        capabilities: fields.owned("agentCapabilities"),
        auth_methods: methods.into_iter().filter_map(auth_method).collect(),
        prompt: PromptCapabilities {
            image: prompt.flag("image"),
            audio: prompt.flag("audio"),
            embedded_context: prompt.flag("embeddedContext"),
        },
        session: SessionMethods {
            load: capabilities.flag("loadSession"),
            resume: session.offers("resume"),
            fork: session.offers("fork"),
            list: session.offers("list"),
            close: session.offers("close"),
            delete: session.offers("delete"),
            additional_directories: session.offers("additionalDirectories"),
        },
        mcp: McpTransports {
            http: mcp.flag("http"),
            sse: mcp.flag("sse"),
        },
        raw: result.to_owned(),
    }
}

fn kandev(fields: &Fields<'_>, result: &RawValue) -> Negotiated {
    Negotiated {
        dialect: Dialect::Kandev,
        agent_info: fields.owned("serverInfo").or_else(|| fields.owned("agentInfo")),
        capabilities: fields.owned("capabilities"),
        auth_methods: Vec::new(),
        prompt: PromptCapabilities::default(),
        session: SessionMethods {
            load: fields.object("capabilities").flag("sessionResumption"),
            ..SessionMethods::default()
        },
        mcp: McpTransports::default(),
        raw: result.to_owned(),
    }
}

fn auth_method(raw: &RawValue) -> Option<AuthMethod> {
    let fields = Fields::of(raw);
    let id = fields.string("id")?;
    Some(AuthMethod {
        name: fields.string("name").unwrap_or_else(|| id.clone()),
        description: fields.string("description"),
        raw: raw.to_owned(),
        id,
    })
}

fn shorten(json: &str) -> String {
    const LONGEST: usize = 200;
    if json.chars().nth(LONGEST).is_none() {
        return json.to_owned();
    }
    json.chars().take(LONGEST).chain(['…']).collect()
}

/// Fields of `additional` that do not stand in `params` yet are added to it.
pub(super) fn add_missing(params: &mut Value, additional: &Map<String, Value>) {
    if let Value::Object(params) = params {
        for (key, value) in additional {
            params.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use agent_client_protocol_schema::v1::InitializeRequest;
    use serde_json::value::to_raw_value;

    use super::*;

    fn info() -> ClientInfo {
        ClientInfo {
            name: "kandev".to_owned(),
            title: Some("Kandev".to_owned()),
            version: "0.1.0".to_owned(),
        }
    }

    fn answer(protocol: Protocol, result: Value) -> Result<Negotiated, NegotiationError> {
        negotiate(protocol, &to_raw_value(&result).unwrap())
    }

    #[test]
    fn kandev_is_asked_exactly_as_the_seed_says() {
        let extra = BTreeMap::from([("subagents".to_owned(), json!(true))]);
        assert_eq!(
            initialize_params(Protocol::Kandev, &info(), &extra),
            json!({
                "protocolVersion": "1.0",
                "clientInfo": {"name": "kandev", "version": "0.1.0"},
                "capabilities": {"streaming": true}
            })
        );
    }

    #[test]
    fn acp_is_asked_in_the_official_form_and_merges_deeply() {
        let extra = BTreeMap::from([
            ("subagents".to_owned(), json!(true)),
            ("_meta".to_owned(), json!({"a": {"b": 1}})),
            ("fs".to_owned(), json!({"writeTextFile": false})),
            ("terminal".to_owned(), json!(false)),
        ]);
        let params = initialize_params(Protocol::Acp, &info(), &extra);
        assert_eq!(params["protocolVersion"], json!(1));
        assert_eq!(
            params["clientCapabilities"]["fs"],
            json!({"readTextFile": true, "writeTextFile": false})
        );
        assert_eq!(params["clientCapabilities"]["subagents"], json!(true));
        assert_eq!(params["clientCapabilities"]["_meta"], json!({"a": {"b": 1}}));
        assert!(params.get("capabilities").is_none());
        let official: InitializeRequest = serde_json::from_value(params).unwrap();
        assert!(official.client_capabilities.fs.read_text_file);
        assert!(!official.client_capabilities.terminal);
        assert_eq!(official.client_info.unwrap().title.as_deref(), Some("Kandev"));
    }

    #[test]
    fn auto_asks_for_both() {
        let params = initialize_params(Protocol::Auto, &info(), &BTreeMap::new());
        assert_eq!(params["protocolVersion"], json!(1));
        assert_eq!(params["capabilities"], json!({"streaming": true}));
        assert_eq!(params["clientCapabilities"]["terminal"], json!(true));
    }

    #[test]
    fn the_version_decides_the_dialect() {
        use Dialect::{Acp, Kandev};
        for (protocol, version, dialect) in [
            (Protocol::Auto, json!(1), Some(Acp)),
            (Protocol::Auto, json!("1.0"), Some(Kandev)),
            (Protocol::Auto, json!("1"), Some(Kandev)),
            (Protocol::Auto, json!("1.2.3"), Some(Kandev)),
            (Protocol::Auto, json!(2), None),
            (Protocol::Auto, json!("2.0"), None),
            (Protocol::Auto, json!("10"), None),
            (Protocol::Auto, json!("1."), None),
            (Protocol::Auto, json!(true), None),
            (Protocol::Acp, json!(1), Some(Acp)),
            (Protocol::Acp, json!("1.0"), None),
            (Protocol::Kandev, json!("1.0"), Some(Kandev)),
            (Protocol::Kandev, json!(1), None),
        ] {
            let got = answer(protocol, json!({"protocolVersion": version})).map(|n| n.dialect);
            assert_eq!(got.ok(), dialect, "{protocol:?} {version}");
        }
    }

    #[test]
    fn bad_answers_say_what_is_wrong() {
        let said = |protocol, result| answer(protocol, result).unwrap_err().to_string();
        assert!(said(Protocol::Acp, json!({"protocolVersion": 7})).contains("protocolVersion 7"));
        assert!(said(Protocol::Acp, json!({})).contains("no protocolVersion"));
        assert!(said(Protocol::Auto, json!({"protocolVersion": null})).contains("no protocolVersion"));
        assert!(said(Protocol::Auto, json!("x".repeat(1000))).len() < 400);
        assert!(said(Protocol::Legacy, json!({"protocolVersion": 1})).contains("legacy"));
    }

    #[test]
    fn capabilities_are_read_and_misshapen_ones_are_absent() {
        let got = answer(
            Protocol::Auto,
            json!({
                "protocolVersion": 1,
                "agentInfo": {"name": "a"},
                "authMethods": [{"id": "x", "name": "X", "description": null, "type": "terminal"}, 5, {"name": "no id"}],
                "agentCapabilities": {
                    "loadSession": true,
                    "promptCapabilities": {"image": true, "audio": "yes"},
                    "mcpCapabilities": [],
                    "sessionCapabilities": {"fork": {}, "list": null, "resume": false, "close": true}
                }
            }),
        )
        .unwrap();
        assert_eq!(got.auth_methods.len(), 1);
        assert_eq!(got.auth_methods[0].id, "x");
        assert!(got.auth_methods[0].raw.get().contains("terminal"));
        assert_eq!(
            got.prompt,
            PromptCapabilities {
                image: true,
                ..Default::default()
            }
        );
        let session = SessionMethods {
            load: true,
            fork: true,
            close: true,
            ..Default::default()
        };
        assert_eq!(got.session, session);
        assert_eq!(got.mcp, McpTransports::default());
        assert_eq!(got.agent_info.unwrap().get(), r#"{"name":"a"}"#);
    }

    #[test]
    fn the_seeds_answer_is_understood() {
        let got = answer(
            Protocol::Kandev,
            json!({
                "protocolVersion": "1.0",
                "serverInfo": {"name": "augment-agent", "version": "1.0.0"},
                "capabilities": {"streaming": true, "sessionResumption": true}
            }),
        )
        .unwrap();
        assert!(got.session.load && !got.session.resume);
        assert!(got.agent_info.unwrap().get().contains("augment-agent"));
        assert_eq!(got.prompt, PromptCapabilities::default());
    }
}
