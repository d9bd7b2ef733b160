//! From a caller's wish to a container's specification: what is checked, what is stored, and what the engine is told.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kandev_domain::content::Prompt;
use kandev_domain::elicitation::ElicitationDefault;
use kandev_domain::permission::{PermissionDefault, PermissionRules, Remembered};
use kandev_domain::status::{InstanceLifecycle, PermissionPolicy};
use kandev_domain::usage::Cost;
use kandev_domain::{AgentType, FailureCode, InstanceId, McpServer, SessionKey, TaskId, mcp};
use kandev_runtime::{ContainerSpec, Labels, Mount, MountSource, Network};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::instance::{Choices, Offered};
use crate::settings::Settings;
use crate::workspace::WorkspaceError;

pub(crate) mod directories;
pub(crate) mod legacy;

/// The variable that holds a first prompt.
pub(crate) const TASK_DESCRIPTION: &str = "TASK_DESCRIPTION";

/// Longest environment value, in bytes: the kernel's limit for one string of `execve`.
const MAX_ENV_VALUE: usize = 128 * 1024;
const MAX_ENV_VARS: usize = 512;
/// Most that is told with a session beside the protocol's own, in bytes of JSON.
const MAX_SESSION_PARAMS: usize = 1 << 20;
/// Parameters of `session/new` and its like that follow from the rest of the launch.
const OWN_PARAMS: [&str; 4] = ["sessionId", "cwd", "mcpServers", "additionalDirectories"];

/// What a caller wants launched.
#[derive(Debug, Clone)]
pub struct LaunchRequest {
    /// Which entry of the catalogue.
    pub agent_type: String,
    /// A directory of the engine's host.
    pub workspace_path: String,
    /// Made if absent or unknown.
    pub task_id: Option<TaskId>,
    /// Added to the type's environment.
    pub env: BTreeMap<String, String>,
    /// Higher first.
    pub priority: i32,
    /// The caller's own.
    pub metadata: Map<String, Value>,
    /// The first turn.
    pub prompt: Option<Prompt>,
    /// The session to go on with.
    pub session_id: Option<String>,
    /// For the agent, beside its type's. They may hold secrets.
    pub mcp_servers: Vec<McpServer>,
    /// How permission requests are answered.
    pub permission_policy: PermissionPolicy,
    /// How long it stays.
    pub lifecycle: InstanceLifecycle,
    /// All else.
    pub options: LaunchOptions,
    /// The instance whose session it goes on with.
    pub resumed_from: Option<InstanceId>,
}

/// How a session is gone on with; what is not said is as its last instance was launched.
#[derive(Debug, Clone, Default)]
pub struct ResumeRequest {
    /// Another session than the instance's own, in the agent's words.
    pub session: Option<String>,
    /// The new instance's; made if unknown.
    pub task_id: Option<TaskId>,
    /// Added to the environment.
    pub env: BTreeMap<String, String>,
    /// In the place of those of the launch.
    pub mcp_servers: Option<Vec<McpServer>>,
    /// The first turn.
    pub prompt: Option<Prompt>,
}

/// The part of a launch that is stored as it is, for a resume to repeat.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LaunchOptions {
    /// The agent's id of the way to log in to it before its session.
    #[serde(default)]
    pub auth_method: Option<String>,
    /// Set before the first turn.
    pub mode: Option<String>,
    /// Set before the first turn.
    pub model: Option<String>,
    /// Set before the first turn.
    #[serde(default)]
    pub config_options: BTreeMap<String, Value>,
    /// Told with `session/new` and its like, beside the protocol's own.
    #[serde(default)]
    pub session_params: Map<String, Value>,
    /// In place of the type's limits.
    #[serde(default)]
    pub resources: Resources,
    /// In place of the type's.
    pub timeout_seconds: Option<u64>,
    /// In place of the server's.
    pub idle_timeout_seconds: Option<u64>,
    /// By kind of tool, in place of the policy.
    #[serde(default)]
    pub permission_rules: PermissionRules,
    /// In place of the server's.
    pub permission_timeout_seconds: Option<u64>,
    /// In place of the server's.
    pub permission_default: Option<PermissionDefault>,
    /// In place of the server's.
    pub elicitation_timeout_seconds: Option<u64>,
    /// In place of the server's.
    pub elicitation_default: Option<ElicitationDefault>,
    /// What to do when the session cannot be resumed.
    #[serde(default)]
    pub on_lost: OnLost,
    /// Beside the working directory and the type's.
    #[serde(default)]
    pub additional_directories: Vec<AdditionalDirectory>,
}

/// A directory that belongs to an agent's work.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdditionalDirectory {
    /// In the container.
    pub path: String,
    /// The directory of the engine's host that is mounted there; none if it is there already.
    pub source: Option<String>,
    /// No writing.
    #[serde(default)]
    pub read_only: bool,
}

/// Limits of the container; each in place of the type's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Resources {
    /// In MiB.
    pub memory_mb: Option<u64>,
    /// In cores.
    pub cpu_cores: Option<f64>,
    /// Processes and threads.
    pub pids_limit: Option<u64>,
}

/// What to do when the session cannot be resumed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLost {
    /// Fail with `session_lost`.
    #[default]
    Fail,
    /// Start a fresh session.
    New,
}

/// Why a launch did not happen.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// No such entry.
    #[error("there is no agent type '{0}'")]
    UnknownType(String),
    /// Not to be launched.
    #[error("agent type '{0}' is disabled")]
    DisabledType(String),
    /// Environment that the type requires.
    #[error("agent type '{agent_type}' requires these variables in env: {}", .missing.join(", "))]
    MissingEnv {
        /// The type.
        agent_type: String,
        /// Their names.
        missing: Vec<String>,
    },
    /// The directory.
    #[error("{0}")]
    Workspace(#[from] WorkspaceError),
    /// Any other field.
    #[error("{field}: {problem}")]
    Invalid {
        /// Which.
        field: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// Something that agents of this type have no way to be told.
    #[error("{field}: agents of the legacy protocol have no {what}")]
    Unsupported {
        /// Which field.
        field: &'static str,
        /// What they lack.
        what: &'static str,
    },
    /// The task has an active instance.
    #[error("task '{task_id}' has an active instance{}", .instance.map(|id| format!(", '{id}'")).unwrap_or_default())]
    TaskBusy {
        /// The task.
        task_id: String,
        /// The instance, unless it has ended meanwhile.
        instance: Option<InstanceId>,
    },
    /// Another instance works in the session, or is about to.
    #[error("instance '{0}' works in this session")]
    SessionBusy(InstanceId),
    /// The instance was recorded, and failed before it had a container.
    #[error("{message}")]
    Failed {
        /// Its id.
        id: InstanceId,
        /// Why.
        code: FailureCode,
        /// Why, for people.
        message: String,
        /// The engine may be there again later.
        transient: bool,
    },
    /// The instance to resume is not there.
    #[error("there is no such instance")]
    NoSuchInstance,
    /// The instance to resume has not ended.
    #[error("instance '{0}' has not ended")]
    StillActive(InstanceId),
    /// It never had a session, or has none any more.
    #[error("{0}")]
    NotResumable(String),
    /// The server is ending.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// It goes on, and is not on record yet.
    #[error("the database does not answer; the launch goes on")]
    Unanswered {
        /// The instance.
        id: InstanceId,
    },
    /// The database.
    #[error(transparent)]
    Store(#[from] kandev_store::StoreError),
    /// A defect of ours.
    #[error("{0}")]
    Internal(String),
}

impl LaunchError {
    pub(crate) fn invalid(field: &'static str, problem: impl Into<String>) -> Self {
        Self::Invalid {
            field,
            problem: problem.into(),
        }
    }
}

/// The session that an instance goes on with.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ResumeFrom {
    /// The agent's id.
    pub session_id: String,
    /// Our key, if kandev has its history.
    pub key: Option<SessionKey>,
    /// What was chosen in it at last.
    #[serde(default)]
    pub chosen: Choices,
    /// What it had cost then, as far as is known.
    #[serde(default)]
    pub cost: Option<Cost>,
    /// What there was to choose from.
    #[serde(default)]
    pub offered: Offered,
    /// Some of it is of the session that it was branched off.
    #[serde(default)]
    pub inherits: bool,
    /// The agent could not go on with it, and a fresh one is started.
    #[serde(default)]
    pub lost: bool,
    /// It is the same instance's, whose agent was started again: what was chosen in it since counts more than what the launch
    /// asked for.
    #[serde(default)]
    pub restarted: bool,
}

/// Everything an instance's task needs to know of its launch. Not `Debug`: it holds secrets.
#[derive(Clone)]
pub struct InstanceSpec {
    /// Its id.
    pub id: InstanceId,
    /// Its task.
    pub task_id: TaskId,
    /// Its catalogue entry, as it was at the launch.
    pub agent_type: AgentType,
    /// The directory it works on, resolved.
    pub workspace: PathBuf,
    /// The launch's environment.
    pub env: BTreeMap<String, String>,
    /// The type's and the launch's.
    pub mcp_servers: Vec<McpServer>,
    /// Higher first.
    pub priority: i32,
    /// How permission requests are answered.
    pub permission_policy: PermissionPolicy,
    /// How long it stays.
    pub lifecycle: InstanceLifecycle,
    /// All else.
    pub options: LaunchOptions,
    /// The session it goes on with.
    pub resume: Option<ResumeFrom>,
    /// What callers answered for always in that session, oldest first.
    pub remembered: Vec<Remembered>,
    /// The first turn.
    pub first_prompt: Option<Prompt>,
}

/// What a check of a request found.
#[derive(Debug)]
pub struct Checked {
    /// The directory to work on, resolved.
    pub workspace: PathBuf,
    /// The same for what is mounted beside it.
    pub directories: Vec<AdditionalDirectory>,
}

/// Checks the parts of a request that need no database, and resolves its directories.
pub fn check(
    request: &LaunchRequest,
    agent_type: &AgentType,
    settings: &Settings,
) -> Result<Checked, LaunchError> {
    if !agent_type.enabled {
        return Err(LaunchError::DisabledType(agent_type.id.clone()));
    }
    check_env(&request.env)?;
    let missing: Vec<String> = agent_type
        .required_env
        .iter()
        .filter(|name| {
            request
                .env
                .get(*name)
                .or_else(|| agent_type.env.get(*name))
                .is_none_or(String::is_empty)
        })
        .cloned()
        .collect();
    if !missing.is_empty() {
        return Err(LaunchError::MissingEnv {
            agent_type: agent_type.id.clone(),
            missing,
        });
    }
    check_resources(&request.options)?;
    check_session_params(&request.options)?;
    let login = request.options.auth_method.as_deref();
    if login.is_some_and(|id| id.is_empty() || id.len() > 1024 || id.contains('\0')) {
        return Err(LaunchError::invalid(
            "auth_method",
            "must have 1 to 1024 characters",
        ));
    }
    if request
        .session_id
        .as_deref()
        .is_some_and(|id| id.is_empty() || id.len() > 1024 || id.contains('\0'))
    {
        return Err(LaunchError::invalid(
            "session_id",
            "must have 1 to 1024 characters",
        ));
    }
    mcp::check(&request.mcp_servers).map_err(|e| LaunchError::invalid("mcp_servers", e.to_string()))?;
    Ok(Checked {
        workspace: crate::workspace::resolve(&request.workspace_path, settings)?,
        directories: directories::resolve(&request.options.additional_directories, agent_type, settings)?,
    })
}

fn check_env(env: &BTreeMap<String, String>) -> Result<(), LaunchError> {
    if env.len() > MAX_ENV_VARS {
        return Err(LaunchError::invalid(
            "env",
            format!("at most {MAX_ENV_VARS} variables"),
        ));
    }
    for (name, value) in env {
        let mut bytes = name.bytes();
        let starts = bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
        if !starts || name.len() > 256 || !bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return Err(LaunchError::invalid(
                "env",
                format!("'{}' is no variable name", name.escape_debug()),
            ));
        }
        if value.contains('\0') || value.len() > MAX_ENV_VALUE {
            let problem = format!("the value of '{name}' has a NUL or is longer than {MAX_ENV_VALUE} bytes");
            return Err(LaunchError::invalid("env", problem));
        }
    }
    Ok(())
}

fn check_session_params(options: &LaunchOptions) -> Result<(), LaunchError> {
    const FIELD: &str = "session_params";
    let own = options
        .session_params
        .keys()
        .find(|name| OWN_PARAMS.contains(&name.as_str()));
    if let Some(name) = own {
        return Err(LaunchError::invalid(
            FIELD,
            format!("'{name}' is kandev's to say"),
        ));
    }
    let bytes = serde_json::to_string(&options.session_params).map_or(usize::MAX, |json| json.len());
    if bytes > MAX_SESSION_PARAMS {
        let problem = format!("must have at most {MAX_SESSION_PARAMS} bytes");
        return Err(LaunchError::invalid(FIELD, problem));
    }
    Ok(())
}

fn check_resources(options: &LaunchOptions) -> Result<(), LaunchError> {
    let r = options.resources;
    if r.memory_mb.is_some_and(|mb| !(6..=1 << 24).contains(&mb)) {
        return Err(LaunchError::invalid(
            "resources.memory_mb",
            "must be 6 to 16777216",
        ));
    }
    if r.cpu_cores.is_some_and(|cores| !(0.01..=4096.0).contains(&cores)) {
        return Err(LaunchError::invalid(
            "resources.cpu_cores",
            "must be 0.01 to 4096",
        ));
    }
    if r.pids_limit.is_some_and(|n| !(1..=1 << 22).contains(&n)) {
        return Err(LaunchError::invalid(
            "resources.pids_limit",
            "must be 1 to 4194304",
        ));
    }
    let year = 366 * 24 * 3600;
    for (field, value) in [
        ("timeout_seconds", options.timeout_seconds),
        ("idle_timeout_seconds", options.idle_timeout_seconds),
        ("permission_timeout_seconds", options.permission_timeout_seconds),
        ("elicitation_timeout_seconds", options.elicitation_timeout_seconds),
    ] {
        if value.is_some_and(|s| s == 0 || s > year) {
            return Err(LaunchError::invalid(field, "must be 1 second to a year"));
        }
    }
    Ok(())
}

/// The name of the volume that keeps an agent type's sessions for one workspace.
pub fn session_volume(owner: &str, agent_type: &str, workspace: &Path) -> String {
    // FNV-1a: stable across versions of everything, and no secret hangs on it.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in owner
        .bytes()
        .chain([0])
        .chain(workspace.as_os_str().as_encoded_bytes().iter().copied())
    {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("kandev-sessions-{agent_type}-{hash:016x}")
}

/// The labels of everything that belongs to an instance.
pub fn labels(spec: &InstanceSpec, owner: &str) -> Labels {
    Labels::from([
        (kandev_runtime::LABEL_MANAGED.to_owned(), "true".to_owned()),
        (kandev_runtime::LABEL_OWNER.to_owned(), owner.to_owned()),
        (kandev_runtime::LABEL_INSTANCE.to_owned(), spec.id.to_string()),
        (kandev_runtime::LABEL_TASK.to_owned(), spec.task_id.to_string()),
        (
            kandev_runtime::LABEL_AGENT_TYPE.to_owned(),
            spec.agent_type.id.clone(),
        ),
    ])
}

/// What the engine is told to make.
pub fn container_spec(spec: &InstanceSpec, settings: &Settings) -> ContainerSpec {
    let owner = &settings.owner;
    let entry = &spec.agent_type;
    let resources = spec.options.resources;
    let mut env = entry.env.clone();
    env.extend(spec.env.clone());
    env.insert("KANDEV_INSTANCE_ID".to_owned(), spec.id.to_string());
    env.insert("KANDEV_TASK_ID".to_owned(), spec.task_id.to_string());
    let mounts = entry
        .mounts
        .iter()
        .map(|mount| Mount {
            source: match mount.source.as_str() {
                "{workspace}" => MountSource::Host(spec.workspace.to_string_lossy().into_owned()),
                "{session_store}" => MountSource::Volume(session_volume(owner, &entry.id, &spec.workspace)),
                path => MountSource::Host(path.to_owned()),
            },
            target: mount.target.clone(),
            read_only: mount.read_only,
        })
        .collect();
    ContainerSpec {
        name: format!("kandev-agent-{}", spec.id),
        image: entry.image.clone(),
        entrypoint: entry.command.clone(),
        args: entry.args.clone(),
        env,
        labels: labels(spec, owner),
        working_dir: entry.working_dir.clone(),
        mounts,
        memory_bytes: resources.memory_mb.unwrap_or(entry.memory_mb) << 20,
        cpu_cores: resources.cpu_cores.unwrap_or(entry.cpu_cores),
        pids_limit: resources.pids_limit.unwrap_or(entry.pids_limit),
        network: match entry.network.as_str() {
            "bridge" => Network::Bridge,
            "none" => Network::None,
            name => Network::Named(name.to_owned()),
        },
        user: entry.user.clone(),
        cap_add: entry.cap_add.clone(),
        read_only_root: entry.read_only_root,
        log_max_bytes: settings.log_file_bytes,
        log_max_files: settings.log_files,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_volumes_differ_by_type_workspace_and_deployment() {
        let name = |owner, kind, path| session_volume(owner, kind, Path::new(path));
        assert_eq!(name("a", "t", "/w"), name("a", "t", "/w"));
        assert_ne!(name("a", "t", "/w"), name("b", "t", "/w"));
        assert_ne!(name("a", "t", "/w"), name("a", "u", "/w"));
        assert_ne!(name("a", "t", "/w"), name("a", "t", "/w2"));
        assert_ne!(name("ab", "t", "/c"), name("a", "t", "b/c"));
    }

    #[test]
    fn environment_names_and_values_are_checked() {
        let env = |k: &str, v: &str| check_env(&BTreeMap::from([(k.to_owned(), v.to_owned())]));
        assert!(env("A_1", "x=y\n").is_ok());
        for bad in ["", "1A", "A-B", "A=B", "Ä"] {
            assert!(
                matches!(env(bad, ""), Err(LaunchError::Invalid { field: "env", .. })),
                "{bad}"
            );
        }
        assert!(env("A", "a\0b").is_err());
        assert!(env("A", &"x".repeat(MAX_ENV_VALUE + 1)).is_err());
    }
}
