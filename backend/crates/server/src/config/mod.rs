//! Configuration: a file, the environment and flags, in that rising order over the defaults.
//!
//! Each layer is read into the same struct of `Option`s ([`layers`]), so that merging is one rule and every value
//! remembers where it came from.

pub mod layers;
pub mod secret;
pub mod values;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kandev_domain::elicitation::ElicitationDefault;
use kandev_domain::permission::PermissionDefault;

pub use layers::Flags;
pub use secret::{DatabaseUrl, SecretKey};
pub use values::{ListenAddress, LogFormat};

use layers::Layer;
use values::{Setting, Source, Sourced};

/// The variable that names the configuration file when `--config` does not.
pub const CONFIG_VARIABLE: &str = "KANDEV_CONFIG";

/// `info`, without PostgreSQL's notices of what a migration found in place.
const DEFAULT_LOG: &str = "info,sqlx::postgres::notice=warn";

/// The process's environment, passed in so that a test can bring its own.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The real one. Variables that are not UTF-8 are left out: none of ours can be.
    pub fn of_process() -> Self {
        Self(
            std::env::vars_os()
                .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
                .collect(),
        )
    }

    /// A variable's value. An empty one counts as absent, since compose files pass `${NAME:-}` for what is not set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(iter: I) -> Self {
        Self(iter.into_iter().map(|(k, v)| (k.into(), v.into())).collect())
    }
}

/// A setting that cannot be used. Names its source and, where there is one, the field; never repeats a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// Where it was read.
    pub source_name: String,
    /// Which field.
    pub field: Option<String>,
    /// What is wrong.
    pub problem: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.field {
            Some(field) => write!(
                f,
                "configuration: {field} (from {}) {}",
                self.source_name, self.problem
            ),
            None => write!(f, "configuration: {}: {}", self.source_name, self.problem),
        }
    }
}

/// The effective configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the HTTP API listens.
    pub listen: ListenAddress,
    /// Private PostgreSQL, keys. Absolute.
    pub data_dir: PathBuf,
    /// The operator's catalogue of agent types. Absolute.
    pub agents_dir: Option<PathBuf>,
    /// Workspaces must lie below one of these. Absolute.
    pub workspace_roots: Vec<PathBuf>,
    /// Name of the deployment, which labels its containers.
    pub owner: String,
    /// Name of this server, for people.
    pub server_name: String,
    /// How long another server waits for a sign of life before it takes over.
    pub lease: Duration,
    /// The database; a private cluster when none.
    pub database_url: Option<DatabaseUrl>,
    /// The container engine; its usual socket when none.
    pub docker_host: Option<String>,
    /// How logs look.
    pub log_format: LogFormat,
    /// Which logs are written, in the syntax of `RUST_LOG`.
    pub log: String,
    /// Largest request body, in bytes.
    pub body_limit_bytes: usize,
    /// Largest file that can be uploaded for prompts, in bytes.
    pub upload_limit_bytes: usize,
    /// How much all such files may take, in bytes; no limit when none.
    pub upload_total_bytes: Option<u64>,
    /// How long a request may take, unless its route waits by design.
    pub request_timeout: Duration,
    /// Longest line an agent may print, in bytes.
    pub max_line_bytes: usize,
    /// From container start to session.
    pub handshake_timeout: Duration,
    /// From `session/cancel` to the container's stop.
    pub cancel_grace: Duration,
    /// How long an agent may take to answer what callers ask beside prompts.
    pub call_timeout: Duration,
    /// From SIGTERM to SIGKILL.
    pub stop_grace: Duration,
    /// Longest turn; no limit when none.
    pub turn_timeout: Option<Duration>,
    /// Longest idle time of an instance; no limit when none.
    pub idle_timeout: Option<Duration>,
    /// How long permission requests wait for an answer; no limit when none.
    pub permission_timeout: Option<Duration>,
    /// What is answered then.
    pub permission_default: PermissionDefault,
    /// How long elicitations wait for an answer; no limit when none.
    pub elicitation_timeout: Option<Duration>,
    /// What is answered then.
    pub elicitation_default: ElicitationDefault,
    /// How many instances run at once.
    pub max_instances: usize,
    /// How many prompts may wait for one instance.
    pub max_prompt_queue: usize,
    /// Size of one file of the engine's log of a container, in bytes.
    pub container_log_file_bytes: usize,
    /// How many such files are kept. What an agent says beyond that while no server runs is lost.
    pub container_log_files: usize,
    /// How often the engine's containers are compared with the database.
    pub reconcile_interval: Duration,
    /// How old a container that no instance knows must be before it is removed.
    pub orphan_grace: Duration,
    /// Events older than this are removed; none when none.
    pub retention_age: Option<Duration>,
    /// The oldest events are removed when all take more bytes than this; never when none.
    pub retention_max_bytes: Option<u64>,
    /// How often old events are looked for.
    pub retention_interval: Duration,
    /// Encrypts secrets at rest; from a file in the data directory when none.
    pub secret_key: Option<SecretKey>,
    report: Vec<ReportLine>,
}

/// One line of `kandev config check`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportLine {
    /// The field.
    pub name: &'static str,
    /// Its value, as it may be shown.
    pub value: String,
    /// Where it came from.
    pub source: String,
}

impl Config {
    /// Reads all layers. `config_flag` is `--config`.
    pub fn load(
        flags: &Flags,
        config_flag: Option<&Path>,
        environment: &Environment,
    ) -> Result<Self, ConfigError> {
        let from_flags = Layer::from_flags(flags)?;
        let from_environment = Layer::from_environment(environment)?;
        let file = config_flag
            .map(Path::to_owned)
            .or_else(|| environment.get(CONFIG_VARIABLE).map(PathBuf::from));
        let from_file = match file {
            Some(path) => Layer::from_file(&path)?,
            None => Layer::default(),
        };
        Self::resolve(from_flags.over(from_environment).over(from_file), environment)
    }

    fn resolve(layer: Layer, environment: &Environment) -> Result<Self, ConfigError> {
        let mut report = Report(Vec::new());
        let home = environment.get("HOME").map(PathBuf::from);
        let data_dir = match layer.data_dir {
            Some(given) => given,
            None => Sourced {
                value: default_data_dir(environment, home.as_deref())?,
                source: Source::Default,
            },
        };
        let data_dir = report.absolute("data_dir", Some(data_dir))?.unwrap_or_default();
        let agents_dir = report.absolute("agents_dir", layer.agents_dir)?;
        let roots = layer.workspace_roots.unwrap_or_else(|| {
            let both = home.iter().chain([&data_dir]).cloned().collect();
            Sourced {
                value: values::PathList(both),
                source: Source::Default,
            }
        });
        let workspace_roots = report.value("workspace_roots", roots).0;
        Ok(Self {
            listen: report.or("listen", layer.listen, || ListenAddress::LOOPBACK),
            data_dir,
            agents_dir,
            workspace_roots,
            owner: report
                .or("owner", layer.owner, || values::Owner("kandev".to_owned()))
                .0,
            server_name: report.or("server_name", layer.server_name, default_server_name),
            lease: report.or("lease_seconds", layer.lease_seconds, seconds(5)).0,
            database_url: report.optional("database_url", layer.database_url),
            docker_host: report.optional("docker_host", layer.docker_host),
            log_format: report.or("log_format", layer.log_format, || LogFormat::Text),
            log: report
                .or("log", layer.log, || values::LogFilter(DEFAULT_LOG.to_owned()))
                .0,
            body_limit_bytes: report
                .or("body_limit_bytes", layer.body_limit_bytes, || {
                    values::Bytes(16 << 20)
                })
                .0,
            upload_limit_bytes: report
                .or("upload_limit_bytes", layer.upload_limit_bytes, || {
                    values::Bytes(16 << 20)
                })
                .0,
            upload_total_bytes: report
                .or("upload_total_bytes", layer.upload_total_bytes, || {
                    values::Space(4 << 30)
                })
                .limit(),
            request_timeout: report
                .or(
                    "request_timeout_seconds",
                    layer.request_timeout_seconds,
                    seconds(30),
                )
                .0,
            max_line_bytes: report
                .or("max_line_bytes", layer.max_line_bytes, || values::Bytes(64 << 20))
                .0,
            handshake_timeout: report
                .or(
                    "handshake_timeout_seconds",
                    layer.handshake_timeout_seconds,
                    seconds(60),
                )
                .0,
            cancel_grace: report
                .or("cancel_grace_seconds", layer.cancel_grace_seconds, seconds(10))
                .0,
            call_timeout: report
                .or("call_timeout_seconds", layer.call_timeout_seconds, seconds(120))
                .0,
            stop_grace: report
                .or("stop_grace_seconds", layer.stop_grace_seconds, seconds(10))
                .0,
            turn_timeout: report
                .optional("turn_timeout_seconds", layer.turn_timeout_seconds)
                .map(|s| s.0),
            idle_timeout: report
                .optional("idle_timeout_seconds", layer.idle_timeout_seconds)
                .map(|s| s.0),
            permission_timeout: report
                .optional("permission_timeout_seconds", layer.permission_timeout_seconds)
                .map(|s| s.0),
            permission_default: report
                .or("permission_default", layer.permission_default, Default::default)
                .0,
            elicitation_timeout: report
                .optional("elicitation_timeout_seconds", layer.elicitation_timeout_seconds)
                .map(|s| s.0),
            elicitation_default: report
                .or("elicitation_default", layer.elicitation_default, Default::default)
                .0,
            max_instances: report
                .or("max_instances", layer.max_instances, || values::Count(64))
                .0,
            max_prompt_queue: report
                .or("max_prompt_queue", layer.max_prompt_queue, || values::Count(16))
                .0,
            container_log_file_bytes: report
                .or("container_log_file_bytes", layer.container_log_file_bytes, || {
                    values::Bytes(64 << 20)
                })
                .0,
            container_log_files: report
                .or("container_log_files", layer.container_log_files, || {
                    values::Count(3)
                })
                .0,
            reconcile_interval: report
                .or(
                    "reconcile_interval_seconds",
                    layer.reconcile_interval_seconds,
                    seconds(60),
                )
                .0,
            orphan_grace: report
                .or("orphan_grace_seconds", layer.orphan_grace_seconds, seconds(60))
                .0,
            retention_age: report
                .or("retention_days", layer.retention_days, || values::Days(0))
                .age(),
            retention_max_bytes: report
                .or("retention_max_bytes", layer.retention_max_bytes, || {
                    values::Space(0)
                })
                .limit(),
            retention_interval: report
                .or(
                    "retention_interval_seconds",
                    layer.retention_interval_seconds,
                    seconds(300),
                )
                .0,
            secret_key: report.optional("secret_key", layer.secret_key),
            report: report.0,
        })
    }

    /// Every field with its value and source, secrets redacted.
    pub fn report(&self) -> &[ReportLine] {
        &self.report
    }

    /// The report as text, one field a line: `name = value  # source`.
    pub fn report_text(&self) -> String {
        let mut lines: Vec<_> = self
            .report
            .iter()
            .map(|line| format!("{} = {}  # {}\n", line.name, line.value, line.source))
            .collect();
        lines.sort();
        lines.concat()
    }
}

const fn seconds(n: u64) -> impl FnOnce() -> values::Seconds {
    move || values::Seconds(Duration::from_secs(n))
}

fn default_server_name() -> String {
    let uname = rustix::system::uname();
    let host = uname.nodename().to_string_lossy();
    format!("{host}:{}", std::process::id())
}

fn default_data_dir(environment: &Environment, home: Option<&Path>) -> Result<PathBuf, ConfigError> {
    // The XDG specification has relative paths ignored.
    let xdg = environment
        .get("XDG_DATA_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute());
    xdg.or_else(|| home.map(|home| home.join(".local/share")))
        .map(|base| base.join("kandev"))
        .ok_or_else(|| ConfigError {
            source_name: Source::Default.to_string(),
            field: Some("data_dir".to_owned()),
            problem: "has no default, since neither XDG_DATA_HOME nor HOME is set: set KANDEV_DATA_DIR"
                .to_owned(),
        })
}

/// Collects what `config check` prints while the values are taken.
struct Report(Vec<ReportLine>);

impl Report {
    fn value<T: Setting>(&mut self, name: &'static str, given: Sourced<T>) -> T {
        self.0.push(ReportLine {
            name,
            value: given.value.show(),
            source: given.source.to_string(),
        });
        given.value
    }

    fn or<T: Setting>(
        &mut self,
        name: &'static str,
        given: Option<Sourced<T>>,
        default: impl FnOnce() -> T,
    ) -> T {
        let given = given.unwrap_or_else(|| Sourced {
            value: default(),
            source: Source::Default,
        });
        self.value(name, given)
    }

    fn optional<T: Setting>(&mut self, name: &'static str, given: Option<Sourced<T>>) -> Option<T> {
        if given.is_none() {
            self.0.push(ReportLine {
                name,
                value: "(none)".to_owned(),
                source: Source::Default.to_string(),
            });
        }
        given.map(|given| self.value(name, given))
    }

    fn absolute(
        &mut self,
        name: &'static str,
        given: Option<Sourced<PathBuf>>,
    ) -> Result<Option<PathBuf>, ConfigError> {
        let Some(given) = given else {
            return Ok(self.optional(name, None));
        };
        let value = std::path::absolute(&given.value).map_err(|error| ConfigError {
            source_name: given.source.to_string(),
            field: Some(name.to_owned()),
            problem: format!("cannot be made absolute: {error}"),
        })?;
        Ok(Some(self.value(
            name,
            Sourced {
                value,
                source: given.source,
            },
        )))
    }
}
