//! An agent type: the catalogue entry from which instances are launched.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::mcp::{self, McpServer, McpServerFields};

/// How an agent speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// Decided by its answer to `initialize`.
    #[default]
    Auto,
    /// Agent Client Protocol v1.
    Acp,
    /// Kandev's own protocol 1.0.
    Kandev,
    /// The line format before JSON-RPC.
    Legacy,
}

/// A directory or volume made visible in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MountTemplate {
    /// A path on the engine's host, `{workspace}`, or `{session_store}` (a volume that persists per
    /// agent type and workspace).
    pub source: String,
    /// Absolute path inside.
    pub target: String,
    /// No writing.
    #[serde(default)]
    pub read_only: bool,
}

/// What an agent may do with files through its client (`fs/read_text_file`, `fs/write_text_file`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FileAccess {
    /// Directories in the container, absolute; none stands for the working directory and the mounts.
    pub roots: Vec<String>,
    /// A file that is not there reads as an empty one. Some agents cannot write a new file otherwise.
    pub missing_reads_empty: bool,
    /// The most bytes that are read or written at once.
    pub max_file_bytes: u64,
}

impl Default for FileAccess {
    fn default() -> Self {
        Self {
            roots: Vec::new(),
            missing_reads_empty: false,
            max_file_bytes: 8 << 20,
        }
    }
}

impl FileAccess {
    /// No setting allows more: what is read or written is in memory.
    pub const MOST_BYTES: u64 = 16 << 20;
}

/// A catalogue entry. The field names are those of the TOML file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentType {
    /// Lower-case name, also the file's.
    pub id: String,
    /// For people.
    pub name: String,
    /// For people.
    #[serde(default)]
    pub description: String,
    /// Image reference.
    pub image: String,
    /// Entrypoint in place of the image's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Arguments of the entrypoint.
    #[serde(default)]
    pub args: Vec<String>,
    /// Where the agent works, absolute.
    #[serde(default = "default_working_dir")]
    pub working_dir: String,
    /// How it speaks.
    #[serde(default)]
    pub protocol: Protocol,
    /// Memory limit in MiB.
    #[serde(default = "default_memory_mb")]
    pub memory_mb: u64,
    /// CPU limit in cores.
    #[serde(default = "default_cpu_cores")]
    pub cpu_cores: f64,
    /// Limit of processes and threads.
    #[serde(default = "default_pids_limit")]
    pub pids_limit: u64,
    /// Longest life of an instance, in seconds.
    #[serde(default = "default_timeout_seconds")]
    pub timeout_seconds: u64,
    /// What it can do, for callers to choose by.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// Linux capabilities it keeps; all others are dropped.
    #[serde(default)]
    pub cap_add: Vec<String>,
    /// `bridge`, `none`, or the name of a network.
    #[serde(default = "default_network")]
    pub network: String,
    /// Nothing can be written but to mounts.
    #[serde(default)]
    pub read_only_root: bool,
    /// `uid[:gid]` or a name in the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Set in every instance.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// A launch without these is refused.
    #[serde(default)]
    pub required_env: Vec<String>,
    /// Known and not needed.
    #[serde(default)]
    pub optional_env: Vec<String>,
    /// Never shown.
    #[serde(default)]
    pub secret_env: Vec<String>,
    /// The variable that carries the id of the session to resume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_env: Option<String>,
    /// The key of the task's metadata that gets the session's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_metadata_key: Option<String>,
    /// Merged into the client capabilities of `initialize`.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub client_capabilities: BTreeMap<String, serde_json::Value>,
    /// What its requests for files may reach.
    #[serde(default)]
    pub fs: FileAccess,
    /// MCP servers that it is given in every session, as far as it takes their transports. A launch may add its own, and put
    /// them in the place of these by name.
    #[schema(value_type = Vec<McpServerFields>)]
    #[serde(default)]
    pub mcp_servers: Vec<McpServer>,
    /// Directories in the container that belong to the agent's work beside the working directory, absolute. It is told of them if
    /// it can take that, and its requests for files reach them unless `fs.roots` says otherwise. A launch may add its own.
    #[serde(default)]
    pub additional_directories: Vec<String>,
    /// May be launched.
    #[serde(default = "default_enabled")]
    pub enabled: bool,
    /// What it sees of the outside.
    #[serde(default)]
    pub mounts: Vec<MountTemplate>,
}

fn default_working_dir() -> String {
    "/workspace".to_owned()
}
const fn default_memory_mb() -> u64 {
    2048
}
const fn default_cpu_cores() -> f64 {
    1.0
}
const fn default_pids_limit() -> u64 {
    512
}
const fn default_timeout_seconds() -> u64 {
    3600
}
fn default_network() -> String {
    "bridge".to_owned()
}
const fn default_enabled() -> bool {
    true
}

/// True for an absolute path that is written in one way only, and names something below `/`.
pub fn is_plain_path(path: &str) -> bool {
    const LONGEST: usize = 4096;
    let plain = |part: &str| !matches!(part, "" | "." | "..");
    let parts = path.strip_prefix('/').map(|rest| rest.split('/').all(plain));
    parts.unwrap_or(false) && path.len() <= LONGEST && !path.chars().any(char::is_control)
}

/// A catalogue entry that cannot be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("agent type '{id}': {field}: {problem}")]
pub struct InvalidAgentType {
    /// Which entry.
    pub id: String,
    /// Which field.
    pub field: &'static str,
    /// What is wrong.
    pub problem: String,
}

impl AgentType {
    /// Checks what the types cannot say.
    pub fn validate(&self) -> Result<(), InvalidAgentType> {
        let fail = |field, problem: &str| {
            Err(InvalidAgentType {
                id: self.id.clone(),
                field,
                problem: problem.to_owned(),
            })
        };
        let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
        if self.id.is_empty() || self.id.len() > 64 || !self.id.bytes().all(legal) {
            return fail("id", "must be 1 to 64 characters out of a-z, 0-9, '-' and '_'");
        }
        if self.image.trim().is_empty() {
            return fail("image", "must not be empty");
        }
        if !self.working_dir.starts_with('/') {
            return fail("working_dir", "must be an absolute path");
        }
        if self.memory_mb < 6 {
            return fail("memory_mb", "must be at least 6, the least an engine takes");
        }
        if !(self.cpu_cores.is_finite() && self.cpu_cores >= 0.01) {
            return fail("cpu_cores", "must be at least 0.01");
        }
        if self.pids_limit == 0 {
            return fail("pids_limit", "must be at least 1");
        }
        if self.timeout_seconds == 0 {
            return fail("timeout_seconds", "must be at least 1");
        }
        if self.network == "host" || self.network.starts_with("container:") {
            return fail("network", "must not share another network namespace");
        }
        if self.fs.roots.iter().any(|root| !root.starts_with('/')) {
            return fail("fs.roots", "must be absolute paths");
        }
        if !(1..=FileAccess::MOST_BYTES).contains(&self.fs.max_file_bytes) {
            return fail("fs.max_file_bytes", "must be 1 to 16777216");
        }
        if !self.additional_directories.iter().all(|path| is_plain_path(path)) {
            return fail(
                "additional_directories",
                "must be absolute paths, without '.' and '..', and not '/'",
            );
        }
        if let Err(error) = mcp::check(&self.mcp_servers) {
            return fail("mcp_servers", &error.to_string());
        }
        if self.protocol == Protocol::Legacy && !self.mcp_servers.is_empty() {
            return fail("mcp_servers", "agents of the legacy protocol have none");
        }
        if self.command.as_ref().is_some_and(Vec::is_empty) {
            return fail("command", "must not be an empty list");
        }
        for mount in &self.mounts {
            let placeholder = mount.source == "{workspace}" || mount.source == "{session_store}";
            if !placeholder && !mount.source.starts_with('/') {
                return fail(
                    "mounts",
                    "a source is {workspace}, {session_store} or an absolute path",
                );
            }
            if !mount.target.starts_with('/') {
                return fail("mounts", "a target is an absolute path");
            }
        }
        Ok(())
    }

    /// The directories that its requests for files may reach.
    pub fn file_roots(&self) -> Vec<String> {
        if !self.fs.roots.is_empty() {
            return self.fs.roots.clone();
        }
        let mounts = self.mounts.iter().map(|mount| mount.target.clone());
        let mut roots: Vec<_> = std::iter::once(self.working_dir.clone()).chain(mounts).collect();
        for path in &self.additional_directories {
            if !roots.contains(path) {
                roots.push(path.clone());
            }
        }
        roots
    }

    /// True if this variable's value must never be shown: marked by the type, or named like a secret.
    pub fn is_secret(&self, variable: &str) -> bool {
        const MARKS: [&str; 8] = [
            "SECRET",
            "TOKEN",
            "PASSWORD",
            "PASSWD",
            "CREDENTIAL",
            "API_KEY",
            "PRIVATE_KEY",
            "AUTH",
        ];
        let upper = variable.to_ascii_uppercase();
        self.secret_env.iter().any(|s| s == variable)
            || upper.ends_with("_KEY")
            || MARKS.iter().any(|mark| upper.contains(mark))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minimal() -> AgentType {
        serde_json::from_value(serde_json::json!({"id": "a", "name": "A", "image": "img"})).unwrap()
    }

    #[test]
    fn defaults_are_valid() {
        assert_eq!(minimal().validate(), Ok(()));
        assert_eq!(minimal().working_dir, "/workspace");
    }

    #[test]
    fn nonsense_is_named() {
        let mut t = minimal();
        t.memory_mb = 1;
        assert_eq!(t.validate().unwrap_err().field, "memory_mb");
        let mut t = minimal();
        t.network = "host".to_owned();
        assert_eq!(t.validate().unwrap_err().field, "network");
        let mut t = minimal();
        t.cpu_cores = f64::NAN;
        assert_eq!(t.validate().unwrap_err().field, "cpu_cores");
    }

    #[test]
    fn files_are_those_of_the_working_directory_and_the_mounts_unless_it_says_otherwise() {
        let mut t = minimal();
        let mount = serde_json::json!({"source": "{workspace}", "target": "/w"});
        t.mounts = vec![serde_json::from_value(mount).unwrap()];
        assert_eq!(t.file_roots(), ["/workspace", "/w"]);
        t.fs = serde_json::from_value(serde_json::json!({"roots": ["/r"]})).unwrap();
        assert_eq!((t.file_roots(), t.validate()), (vec!["/r".to_owned()], Ok(())));
        t.additional_directories = vec!["/more".to_owned(), "/w".to_owned()];
        assert_eq!(t.file_roots(), ["/r"], "the operator's word");
        t.fs.roots.clear();
        assert_eq!(t.file_roots(), ["/workspace", "/w", "/more"]);
        t.additional_directories.push("/more/..".to_owned());
        assert_eq!(t.validate().unwrap_err().field, "additional_directories");
        t.additional_directories.clear();
        t.fs.roots.push("relative".to_owned());
        assert_eq!(t.validate().unwrap_err().field, "fs.roots");
        t.fs.roots.pop();
        t.fs.max_file_bytes = FileAccess::MOST_BYTES + 1;
        assert_eq!(t.validate().unwrap_err().field, "fs.max_file_bytes");
    }

    #[test]
    fn plain_paths_are_written_in_one_way() {
        assert!(is_plain_path("/a") && is_plain_path("/a/b..c/ d"));
        for bad in [
            "", "/", "a", "//", "/a/", "/a//b", "/./a", "/a/..", "/a\0", "/a\n",
        ] {
            assert!(!is_plain_path(bad), "{bad:?}");
        }
    }

    #[test]
    fn secrets_are_known_by_mark_or_name() {
        let mut t = minimal();
        t.secret_env = vec!["PLAIN".to_owned()];
        for name in ["PLAIN", "OPENAI_API_KEY", "AUGMENT_SESSION_AUTH", "gh_token"] {
            assert!(t.is_secret(name), "{name}");
        }
        for name in ["TASK_DESCRIPTION", "HOME", "KEYBOARD"] {
            assert!(!t.is_secret(name), "{name}");
        }
    }
}
