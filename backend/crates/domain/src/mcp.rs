//! MCP servers for agents. Source: ACP v1, "MCP Servers".
//!
//! What they are given (environment, headers, arguments, what a URL carries) may be secret, so none of it is ever shown: a
//! server is told of by its name and its transport.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, OneOfBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// How many servers a list may have.
pub const MAX_SERVERS: usize = 64;
/// The most bytes of one text in a server.
const MAX_TEXT: usize = 64 << 10;
/// The most arguments, variables or headers of one server.
const MAX_ITEMS: usize = 256;
/// Longest name, in bytes.
const MAX_NAME: usize = 128;

/// How an agent reaches a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum McpTransport {
    /// A process that the agent starts; every agent takes these.
    Stdio,
    /// Streamable HTTP.
    Http,
    /// Server-sent events.
    Sse,
}

/// The transports that an agent takes beyond stdio.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct McpTransports {
    /// Streamable HTTP.
    pub http: bool,
    /// Server-sent events.
    pub sse: bool,
}

impl McpTransports {
    /// True if it takes servers of this one.
    pub const fn takes(self, transport: McpTransport) -> bool {
        match transport {
            McpTransport::Stdio => true,
            McpTransport::Http => self.http,
            McpTransport::Sse => self.sse,
        }
    }
}

impl fmt::Display for McpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stdio => "stdio",
            Self::Http => "http",
            Self::Sse => "sse",
        })
    }
}

/// A server as callers and catalogue files give it. Unlike in ACP, `args`, `env` and `headers` may be left out, and the latter
/// two may be an object of values by name.
#[derive(Deserialize, ToSchema)]
#[schema(as = McpServer)]
pub struct McpServerFields {
    /// For people, and to tell servers apart: one of a launch takes the place of the type's of the same name.
    name: String,
    /// `stdio` where it is left out.
    r#type: Option<McpTransport>,
    /// Of stdio: the program, in the agent's container.
    command: Option<String>,
    /// Of stdio.
    #[serde(default)]
    args: Vec<String>,
    /// Of stdio: `[{name, value}]`, or an object. Never shown.
    #[schema(value_type = Option<Pairs>)]
    #[serde(default)]
    env: Pairs,
    /// Of http and sse.
    url: Option<String>,
    /// Of http and sse: `[{name, value}]`, or an object. Never shown.
    #[schema(value_type = Option<Pairs>)]
    #[serde(default)]
    headers: Pairs,
    /// Handed over as it is.
    #[serde(rename = "_meta")]
    #[schema(value_type = Option<Object>)]
    meta: Option<Map<String, Value>>,
}

/// A server that can be handed to an agent. `Debug` shows its name and transport only.
#[derive(Clone, PartialEq, Deserialize)]
#[serde(try_from = "McpServerFields")]
pub struct McpServer {
    /// For people, and to tell servers apart.
    pub name: String,
    /// How it is reached.
    pub transport: McpTransport,
    /// A command or a URL.
    target: String,
    args: Vec<String>,
    /// Environment or headers.
    pairs: Vec<Pair>,
    meta: Option<Map<String, Value>>,
}

/// A variable or a header.
#[derive(Clone, PartialEq, Deserialize, ToSchema)]
struct Pair {
    name: String,
    value: String,
}

/// Names and values, as a list or as an object.
#[derive(Clone, Default, PartialEq)]
struct Pairs(Vec<Pair>);

impl PartialSchema for Pairs {
    fn schema() -> RefOr<Schema> {
        let values = ObjectBuilder::new().schema_type(Type::String);
        OneOfBuilder::new()
            .description(Some(
                "A list of names and values, or an object of values by name.",
            ))
            .item(ArrayBuilder::new().items(Pair::schema()))
            .item(ObjectBuilder::new().additional_properties(Some(RefOr::T(Schema::from(values)))))
            .into()
    }
}

impl ToSchema for Pairs {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("NamesAndValues")
    }
}

impl fmt::Debug for McpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "McpServer({} over {})", self.name, self.transport)
    }
}

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsVisitor;
        impl<'de> Visitor<'de> for PairsVisitor {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of objects with 'name' and 'value', or an object of texts")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = seq.next_element()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some((name, value)) = map.next_entry()? {
                    pairs.push(Pair { name, value });
                }
                Ok(Pairs(pairs))
            }

            fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
                Ok(Pairs::default())
            }
        }
        deserializer.deserialize_any(PairsVisitor)
    }
}

/// What is wrong with a server. Never repeats a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidMcpServer(String);

impl TryFrom<McpServerFields> for McpServer {
    type Error = InvalidMcpServer;

    fn try_from(given: McpServerFields) -> Result<Self, InvalidMcpServer> {
        let fail = |problem: &str| Err(InvalidMcpServer(problem.to_owned()));
        let name = given.name.trim();
        if name.is_empty() || given.name.len() > MAX_NAME || given.name.chars().any(char::is_control) {
            return fail("'name' must have 1 to 128 characters, none of them a control character");
        }
        let transport = given.r#type.unwrap_or(McpTransport::Stdio);
        let (target, pairs) = if transport == McpTransport::Stdio {
            if given.url.is_some() || !given.headers.0.is_empty() {
                return fail("a stdio server has a 'command' and 'env', no 'url' and no 'headers'");
            }
            (given.command, given.env.0)
        } else {
            if given.command.is_some() || !given.args.is_empty() || !given.env.0.is_empty() {
                return fail(
                    "an http or sse server has a 'url' and 'headers', no 'command', 'args' or 'env'",
                );
            }
            (given.url, given.headers.0)
        };
        let target = match target {
            Some(target) if !target.trim().is_empty() => target,
            _ if transport == McpTransport::Stdio => return fail("a stdio server needs a 'command'"),
            _ => return fail("an http or sse server needs a 'url'"),
        };
        if transport != McpTransport::Stdio && !is_http_url(&target) {
            return fail("'url' must begin with http:// or https:// and name a host");
        }
        if given.args.len() > MAX_ITEMS || pairs.len() > MAX_ITEMS {
            return fail("has more than 256 arguments, variables or headers");
        }
        let bad = |text: &str| text.contains('\0') || text.len() > MAX_TEXT;
        if bad(&target) || given.args.iter().any(|arg| bad(arg)) {
            return fail("a text has a NUL or is longer than 65536 bytes");
        }
        for Pair { name, value } in &pairs {
            let legal = match transport {
                McpTransport::Stdio => !name.is_empty() && !name.contains('=') && !bad(name) && !bad(value),
                _ => is_token(name) && !bad(value) && !value.contains(['\r', '\n']),
            };
            if !legal {
                return fail("a variable or header has a name or a value that cannot be");
            }
        }
        Ok(Self {
            name: given.name,
            transport,
            target,
            args: given.args,
            pairs,
            meta: given.meta,
        })
    }
}

fn is_http_url(url: &str) -> bool {
    let lower = url.get(..8).unwrap_or(url).to_ascii_lowercase();
    let rest = lower.strip_prefix("https://").map(|_| 8);
    let rest = rest.or_else(|| lower.starts_with("http://").then_some(7));
    let host = rest.and_then(|at| url.get(at..)).unwrap_or_default();
    let clean = !url.chars().any(|c| c.is_control() || c.is_whitespace());
    clean && !host.is_empty() && !host.starts_with(['/', '?', '#'])
}

/// RFC 9110, "token".
fn is_token(name: &str) -> bool {
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !name.is_empty() && name.len() <= MAX_NAME && name.bytes().all(legal)
}

/// In ACP's form, with everything that an agent needs.
impl Serialize for McpServer {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.for_agent().serialize(serializer)
    }
}

impl McpServer {
    /// In ACP's form.
    pub fn for_agent(&self) -> Value {
        let pairs: Vec<Value> = self
            .pairs
            .iter()
            .map(|pair| json!({"name": pair.name, "value": pair.value}))
            .collect();
        let mut server = match self.transport {
            McpTransport::Stdio => {
                json!({"name": self.name, "command": self.target, "args": self.args, "env": pairs})
            }
            transport => json!({"type": transport, "name": self.name, "url": self.target, "headers": pairs}),
        };
        if let Some(meta) = &self.meta {
            server["_meta"] = json!(meta);
        }
        server
    }

    /// The same without anything that may be secret.
    #[must_use]
    pub fn shown(&self) -> Self {
        const HIDDEN: &str = "(secret)";
        let mut shown = self.clone();
        shown.args = vec![HIDDEN.to_owned(); self.args.len()];
        for pair in &mut shown.pairs {
            HIDDEN.clone_into(&mut pair.value);
        }
        if self.transport != McpTransport::Stdio {
            shown.target = without_secrets(&self.target);
        }
        shown.meta = None;
        shown
    }
}

/// A URL without its user, its query and its fragment.
fn without_secrets(url: &str) -> String {
    let plain = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = plain.split_once("://") else {
        return String::new();
    };
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

/// Fails on what no list may be: too long, or with two servers of one name.
pub fn check(servers: &[McpServer]) -> Result<(), InvalidMcpServer> {
    if servers.len() > MAX_SERVERS {
        return Err(InvalidMcpServer(format!("at most {MAX_SERVERS} servers")));
    }
    for (index, server) in servers.iter().enumerate() {
        if servers[..index].iter().any(|other| other.name == server.name) {
            let problem = format!("the server at {index} has the name of another one");
            return Err(InvalidMcpServer(problem));
        }
    }
    Ok(())
}

/// A type's servers, and a launch's in place of those of the same name.
pub fn merge(of_type: &[McpServer], of_launch: &[McpServer]) -> Vec<McpServer> {
    let named = |name: &str| of_launch.iter().any(|server| server.name == name);
    let rest = of_type.iter().filter(|server| !named(&server.name));
    rest.chain(of_launch).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(server: Value) -> Result<McpServer, String> {
        serde_json::from_value(server).map_err(|error| error.to_string())
    }

    #[test]
    fn servers_are_handed_over_in_acps_form() {
        let stdio =
            json!({"name": "a", "command": "npx", "args": ["-y"], "env": [{"name": "K", "value": "v"}]});
        assert_eq!(read(stdio.clone()).unwrap().for_agent(), stdio);
        let short =
            json!({"name": "a", "type": "stdio", "command": "npx", "env": {"K": "v"}, "args": ["-y"]});
        assert_eq!(read(short).unwrap().for_agent(), stdio);
        let http = json!({
            "type": "http", "name": "b", "url": "https://h/mcp", "headers": [{"name": "X-Key", "value": "s"}], "_meta": {"a": 1},
        });
        let server = read(http.clone()).unwrap();
        assert_eq!(server.for_agent(), http);
        // What is stored is read back.
        assert_eq!(
            serde_json::from_str::<McpServer>(&json!(server).to_string()).unwrap(),
            server
        );
        let bare = read(json!({"type": "sse", "name": "c", "url": "http://h", "headers": null})).unwrap();
        assert_eq!(bare.for_agent()["headers"], json!([]));
    }

    #[test]
    fn what_cannot_be_is_refused_without_its_values() {
        for bad in [
            json!({"name": "s"}),
            json!({"name": "s", "command": ""}),
            json!({"name": " ", "command": "canary"}),
            json!({"name": "s\n", "command": "canary"}),
            json!({"name": "s", "type": "acp", "serverId": "canary"}),
            json!({"name": "s", "command": "canary", "url": "http://canary"}),
            json!({"name": "s", "command": "canary", "headers": {"A": "canary"}}),
            json!({"name": "s", "command": "a", "env": {"A=": "canary"}}),
            json!({"name": "s", "command": "a", "env": {"": "canary"}}),
            json!({"name": "s", "command": "a", "env": {"A": "canary\u{0}"}}),
            json!({"name": "s", "command": "a", "args": ["canary\u{0}"]}),
            json!({"name": "s", "type": "http"}),
            json!({"name": "s", "type": "http", "command": "canary"}),
            json!({"name": "s", "type": "http", "url": "ftp://canary"}),
            json!({"name": "s", "type": "http", "url": "https://"}),
            json!({"name": "s", "type": "http", "url": "https:///canary"}),
            json!({"name": "s", "type": "http", "url": "http://can ary"}),
            json!({"name": "s", "type": "http", "url": "http://h", "headers": {"A B": "canary"}}),
            json!({"name": "s", "type": "http", "url": "http://h", "headers": {"A": "canary\r\nB: c"}}),
            json!({"name": "s", "type": "sse", "url": "http://h", "env": {"A": "canary"}}),
        ] {
            let problem = read(bad.clone()).expect_err(&bad.to_string());
            assert!(!problem.contains("canary"), "{problem}");
        }
        let two = [
            json!({"name": "s", "command": "a"}),
            json!({"name": "s", "command": "b"}),
        ];
        let two: Vec<McpServer> = two.into_iter().map(|server| read(server).unwrap()).collect();
        assert!(check(&two).is_err() && check(&two[..1]).is_ok());
    }

    #[test]
    fn nothing_that_may_be_secret_is_shown() {
        for server in [
            json!({"name": "a", "command": "npx", "args": ["--key=canary"], "env": {"K": "canary"}, "_meta": {"k": "canary"}}),
            json!({"name": "b", "type": "http", "url": "https://u:canary@h:1/mcp?key=canary#canary", "headers": {"K": "canary"}}),
        ] {
            let server = read(server).unwrap();
            let shown = server.shown();
            assert!(!json!(shown).to_string().contains("canary"), "{}", json!(shown));
            assert!(!format!("{server:?}").contains("canary"));
            assert!(json!(server).to_string().contains("canary"));
        }
        assert_eq!(without_secrets("https://u:p@h:1/mcp?k=v#f"), "https://h:1/mcp");
        assert_eq!(without_secrets("http://h?k=v"), "http://h");
    }

    #[test]
    fn a_launchs_servers_come_before_the_types_of_the_same_name() {
        let server = |name: &str, command: &str| read(json!({"name": name, "command": command})).unwrap();
        let merged = merge(
            &[server("a", "1"), server("b", "1")],
            &[server("b", "2"), server("c", "2")],
        );
        let said: Vec<_> = merged
            .iter()
            .map(|s| (s.name.as_str(), s.target.as_str()))
            .collect();
        assert_eq!(said, [("a", "1"), ("b", "2"), ("c", "2")]);
    }
}
