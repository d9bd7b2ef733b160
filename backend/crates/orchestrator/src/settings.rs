//! What the operator decides about every instance.

use std::path::PathBuf;
use std::time::Duration;

use kandev_domain::elicitation::ElicitationDefault;
use kandev_domain::permission::PermissionDefault;

use crate::retention::Retention;

/// Limits and places, all given by the server's configuration.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The deployment's name, which marks its containers.
    pub owner: String,
    /// What this server is called, for people.
    pub server_name: String,
    /// How long another server waits for a sign of life before it takes over.
    pub lease: Duration,
    /// Where workspaces may lie.
    pub workspace_roots: Vec<PathBuf>,
    /// kandev's own directory, which no workspace may show to an agent.
    pub data_dir: PathBuf,
    /// Longest line of stdout, in bytes.
    pub max_line_bytes: usize,
    /// Largest file that is taken for prompts, in bytes.
    pub upload_limit_bytes: u64,
    /// How many bytes all of them may have.
    pub upload_total_bytes: u64,
    /// From the container's start until its session is ready.
    pub handshake_timeout: Duration,
    /// From a cancel until the container is ended.
    pub cancel_grace: Duration,
    /// How long an agent may take to answer what callers ask beside prompts.
    pub call_timeout: Duration,
    /// From SIGTERM until SIGKILL.
    pub stop_grace: Duration,
    /// Longest turn, where limited.
    pub turn_timeout: Option<Duration>,
    /// Longest idleness of an instance whose launch does not say, where limited.
    pub idle_timeout: Option<Duration>,
    /// How long a permission request waits for an answer, where its launch does not say and this is limited.
    pub permission_timeout: Option<Duration>,
    /// What is answered then, where its launch does not say.
    pub permission_default: PermissionDefault,
    /// How long an elicitation waits for an answer, where its launch does not say and this is limited.
    pub elicitation_timeout: Option<Duration>,
    /// What is answered then, where its launch does not say.
    pub elicitation_default: ElicitationDefault,
    /// How many instances have a container at once.
    pub max_instances: usize,
    /// How many prompts may wait for a turn's end.
    pub max_prompt_queue: usize,
    /// Size of one file of the engine's log of a container, in bytes, and how many there are: well above what an agent says
    /// while no server runs.
    pub log_file_bytes: u64,
    /// See above.
    pub log_files: u32,
    /// How often the reconciler looks.
    pub reconcile_interval: Duration,
    /// How old a container without an active instance must be before it is removed.
    pub orphan_grace: Duration,
    /// How much of what happened is kept.
    pub retention: Retention,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            owner: "kandev".to_owned(),
            server_name: "kandev".to_owned(),
            lease: Duration::from_secs(5),
            workspace_roots: Vec::new(),
            data_dir: PathBuf::from("/var/lib/kandev"),
            max_line_bytes: kandev_acp::frame::DEFAULT_LINE_LIMIT,
            upload_limit_bytes: 16 << 20,
            upload_total_bytes: 4 << 30,
            handshake_timeout: Duration::from_mins(1),
            cancel_grace: Duration::from_secs(10),
            call_timeout: Duration::from_mins(2),
            stop_grace: Duration::from_secs(10),
            turn_timeout: None,
            idle_timeout: None,
            permission_timeout: None,
            permission_default: PermissionDefault::default(),
            elicitation_timeout: None,
            elicitation_default: ElicitationDefault::default(),
            max_instances: 64,
            max_prompt_queue: 16,
            log_file_bytes: 64 << 20,
            log_files: 3,
            reconcile_interval: Duration::from_mins(1),
            orphan_grace: Duration::from_mins(1),
            retention: Retention::default(),
        }
    }
}
