//! What a session is opened with, beside its directory: the MCP servers that the agent takes, and additional directories.
//!
//! What it does not take is not handed over, and told: in the log, in the `session` event, and as a facet of the session.
//! Servers are told of by name and transport, since the rest of them may be secret.

use kandev_acp::Dialect;
use kandev_domain::{LogLevel, McpServer, McpTransport};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::actor::Actor;

/// The facet that tells of MCP servers.
pub(super) const MCP_SERVERS: &str = "mcp_servers";

/// The facet that tells of additional directories.
pub(super) const DIRECTORIES: &str = "additional_directories";

/// What became of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct ToldDirectory {
    path: String,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// What became of an MCP server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Told {
    name: String,
    r#type: McpTransport,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

const HANDED: &str = "handed";
const SKIPPED: &str = "skipped";

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Setup {
    /// As ACP has them.
    pub(super) servers: Vec<Value>,
    pub(super) told: Vec<Told>,
    pub(super) directories: Vec<ToldDirectory>,
    /// Further parameters.
    pub(super) additional: Map<String, Value>,
}

impl Actor {
    /// Of the instance's session.
    pub(super) fn setup(&self) -> Setup {
        self.setup_with(&self.spec.mcp_servers)
    }

    /// Of one with other servers.
    pub(super) fn setup_with(&self, servers: &[McpServer]) -> Setup {
        let mut setup = Setup {
            additional: self.spec.options.session_params.clone(),
            ..Setup::default()
        };
        for server in servers {
            let reason = self.untaken(server.transport);
            if reason.is_none() {
                setup.servers.push(server.for_agent());
            }
            setup.told.push(Told {
                name: server.name.clone(),
                r#type: server.transport,
                status: if reason.is_none() { HANDED } else { SKIPPED },
                reason,
            });
        }
        let paths = &self.spec.agent_type.additional_directories;
        let reason = self.takes_no_directories();
        if reason.is_none() && !paths.is_empty() {
            setup
                .additional
                .insert("additionalDirectories".to_owned(), json!(paths));
        }
        setup.directories = paths
            .iter()
            .map(|path| ToldDirectory {
                path: path.clone(),
                status: if reason.is_none() { HANDED } else { SKIPPED },
                reason: reason.clone(),
            })
            .collect();
        setup
    }

    fn takes_no_directories(&self) -> Option<String> {
        let agent = self.agent.as_ref()?;
        let takes = agent.session.additional_directories;
        (!takes).then(|| "the agent does not take additional directories".to_owned())
    }

    fn untaken(&self, transport: McpTransport) -> Option<String> {
        let agent = self.agent.as_ref()?;
        if agent.dialect == Dialect::Kandev {
            return Some("the agent's protocol has no MCP servers".to_owned());
        }
        let takes = agent.mcp.takes(transport);
        (!takes).then(|| format!("the agent does not take {transport} servers"))
    }

    /// Puts what is left out on record.
    pub(super) fn log_skipped(&mut self, setup: &Setup) {
        for told in &setup.told {
            if let Some(reason) = &told.reason {
                let message = format!("MCP server '{}' is not handed to the agent: {reason}", told.name);
                self.log(LogLevel::Warn, message);
            }
        }
        for told in &setup.directories {
            if let Some(reason) = &told.reason {
                let message = format!("the agent is not told of the directory {}: {reason}", told.path);
                self.log(LogLevel::Warn, message);
            }
        }
    }
}
