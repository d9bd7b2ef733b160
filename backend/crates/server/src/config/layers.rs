//! One table of all settings, and from it one reader per layer.

use std::path::Path;

use super::secret::{DatabaseUrl, SecretKey};
use super::values::{
    AnswerDefault, Bytes, Count, Days, InputDefault, ListenAddress, LogFilter, LogFormat, Owner, PathList,
    Seconds, Setting, Source, Sourced, Space,
};
use super::{ConfigError, Environment};

/// Declares the settings once; the flags, the variables and the file's keys follow from it.
macro_rules! settings {
    ($( #[doc = $doc:literal] $name:ident: $ty:ty, $variable:literal, $shape:literal; )+) => {
        /// The settings as command line flags.
        #[derive(Clone, Default, clap::Args)]
        #[command(next_help_heading = "Settings")]
        pub struct Flags {
            $( #[doc = $doc] #[arg(long, value_name = $shape)] pub $name: Option<String>, )+
        }

        /// What one layer says.
        #[derive(Default)]
        pub(super) struct Layer {
            $( pub(super) $name: Option<Sourced<$ty>>, )+
        }

        impl Layer {
            pub(super) fn from_flags(flags: &Flags) -> Result<Self, ConfigError> {
                Ok(Self {
                    $( $name: read(stringify!($name), flags.$name.as_deref(), Source::Flag(stringify!($name)))?, )+
                })
            }

            pub(super) fn from_environment(environment: &Environment) -> Result<Self, ConfigError> {
                Ok(Self {
                    $( $name: read(stringify!($name), environment.get($variable), Source::Environment($variable))?, )+
                })
            }

            fn from_table(mut table: toml::Table, path: &Path) -> Result<Self, ConfigError> {
                let layer = Self {
                    $( $name: read_value(stringify!($name), table.remove(stringify!($name)), path)?, )+
                };
                match table.keys().next() {
                    None => Ok(layer),
                    Some(unknown) => Err(file_error(path, Some(unknown), "is no setting".to_owned())),
                }
            }

            /// This layer, and `below` where this one is silent.
            pub(super) fn over(self, below: Self) -> Self {
                Self { $( $name: self.$name.or(below.$name), )+ }
            }
        }
    };
}

settings! {
    #[doc = "Address and port of the HTTP API [env: KANDEV_LISTEN] [default: 127.0.0.1:8080]"]
    listen: ListenAddress, "KANDEV_LISTEN", "HOST:PORT";
    #[doc = "Private PostgreSQL and keys [env: KANDEV_DATA_DIR] [default: $XDG_DATA_HOME/kandev]"]
    data_dir: std::path::PathBuf, "KANDEV_DATA_DIR", "DIR";
    #[doc = "Your own agent types, one TOML file each [env: KANDEV_AGENTS_DIR]"]
    agents_dir: std::path::PathBuf, "KANDEV_AGENTS_DIR", "DIR";
    #[doc = "Workspaces must lie below one of these [env: KANDEV_WORKSPACE_ROOTS] [default: home and the data directory]"]
    workspace_roots: PathList, "KANDEV_WORKSPACE_ROOTS", "DIR:DIR";
    #[doc = "Name of this deployment, unique per container engine [env: KANDEV_OWNER] [default: kandev]"]
    owner: Owner, "KANDEV_OWNER", "NAME";
    #[doc = "Name of this server, for people [env: KANDEV_SERVER_NAME] [default: host name and process id]"]
    server_name: String, "KANDEV_SERVER_NAME", "NAME";
    #[doc = "Without a sign of life for so long, another server takes over [env: KANDEV_LEASE_SECONDS] [default: 5]"]
    lease_seconds: Seconds, "KANDEV_LEASE_SECONDS", "SECONDS";
    #[doc = "PostgreSQL to use in place of the private one [env: DATABASE_URL]"]
    database_url: DatabaseUrl, "DATABASE_URL", "URL";
    #[doc = "Container engine [env: DOCKER_HOST]"]
    docker_host: String, "DOCKER_HOST", "URL";
    #[doc = "'text' or 'json' [env: KANDEV_LOG_FORMAT] [default: text]"]
    log_format: LogFormat, "KANDEV_LOG_FORMAT", "FORMAT";
    #[doc = "What is logged, such as 'info,kandev=debug' [env: RUST_LOG] [default: info]"]
    log: LogFilter, "RUST_LOG", "FILTER";
    #[doc = "Largest request body [env: KANDEV_BODY_LIMIT_BYTES] [default: 16777216]"]
    body_limit_bytes: Bytes, "KANDEV_BODY_LIMIT_BYTES", "BYTES";
    #[doc = "Largest file that can be uploaded for prompts [env: KANDEV_UPLOAD_LIMIT_BYTES] [default: 16777216]"]
    upload_limit_bytes: Bytes, "KANDEV_UPLOAD_LIMIT_BYTES", "BYTES";
    #[doc = "How much all such files may take; 0: any [env: KANDEV_UPLOAD_TOTAL_BYTES] [default: 4294967296]"]
    upload_total_bytes: Space, "KANDEV_UPLOAD_TOTAL_BYTES", "BYTES";
    #[doc = "How long a request may take [env: KANDEV_REQUEST_TIMEOUT_SECONDS] [default: 30]"]
    request_timeout_seconds: Seconds, "KANDEV_REQUEST_TIMEOUT_SECONDS", "SECONDS";
    #[doc = "Longest line an agent may print [env: KANDEV_MAX_LINE_BYTES] [default: 67108864]"]
    max_line_bytes: Bytes, "KANDEV_MAX_LINE_BYTES", "BYTES";
    #[doc = "From container start to session [env: KANDEV_HANDSHAKE_TIMEOUT_SECONDS] [default: 60]"]
    handshake_timeout_seconds: Seconds, "KANDEV_HANDSHAKE_TIMEOUT_SECONDS", "SECONDS";
    #[doc = "What a cancelled turn gets before its container is stopped [env: KANDEV_CANCEL_GRACE_SECONDS] [default: 10]"]
    cancel_grace_seconds: Seconds, "KANDEV_CANCEL_GRACE_SECONDS", "SECONDS";
    #[doc = "What an agent gets to answer what callers ask beside prompts [env: KANDEV_CALL_TIMEOUT_SECONDS] [default: 120]"]
    call_timeout_seconds: Seconds, "KANDEV_CALL_TIMEOUT_SECONDS", "SECONDS";
    #[doc = "What a stopped container gets before it is killed [env: KANDEV_STOP_GRACE_SECONDS] [default: 10]"]
    stop_grace_seconds: Seconds, "KANDEV_STOP_GRACE_SECONDS", "SECONDS";
    #[doc = "Longest turn [env: KANDEV_TURN_TIMEOUT_SECONDS] [default: none]"]
    turn_timeout_seconds: Seconds, "KANDEV_TURN_TIMEOUT_SECONDS", "SECONDS";
    #[doc = "Longest idle time of an instance [env: KANDEV_IDLE_TIMEOUT_SECONDS] [default: none]"]
    idle_timeout_seconds: Seconds, "KANDEV_IDLE_TIMEOUT_SECONDS", "SECONDS";
    #[doc = "How long permission requests wait for an answer [env: KANDEV_PERMISSION_TIMEOUT_SECONDS] [default: none]"]
    permission_timeout_seconds: Seconds, "KANDEV_PERMISSION_TIMEOUT_SECONDS", "SECONDS";
    #[doc = "What is answered then: 'reject', 'cancelled' or 'allow' [env: KANDEV_PERMISSION_DEFAULT] [default: reject]"]
    permission_default: AnswerDefault, "KANDEV_PERMISSION_DEFAULT", "ANSWER";
    #[doc = "How long forms and URLs of agents wait for an answer [env: KANDEV_ELICITATION_TIMEOUT_SECONDS] [default: none]"]
    elicitation_timeout_seconds: Seconds, "KANDEV_ELICITATION_TIMEOUT_SECONDS", "SECONDS";
    #[doc = "What is answered then: 'cancel' or 'decline' [env: KANDEV_ELICITATION_DEFAULT] [default: cancel]"]
    elicitation_default: InputDefault, "KANDEV_ELICITATION_DEFAULT", "ANSWER";
    #[doc = "How many instances run at once [env: KANDEV_MAX_INSTANCES] [default: 64]"]
    max_instances: Count, "KANDEV_MAX_INSTANCES", "N";
    #[doc = "How many prompts may wait for one instance [env: KANDEV_MAX_PROMPT_QUEUE] [default: 16]"]
    max_prompt_queue: Count, "KANDEV_MAX_PROMPT_QUEUE", "N";
    #[doc = "Size of one file of the engine's log of a container [env: KANDEV_CONTAINER_LOG_FILE_BYTES] [default: 67108864]"]
    container_log_file_bytes: Bytes, "KANDEV_CONTAINER_LOG_FILE_BYTES", "BYTES";
    #[doc = "How many such files are kept [env: KANDEV_CONTAINER_LOG_FILES] [default: 3]"]
    container_log_files: Count, "KANDEV_CONTAINER_LOG_FILES", "N";
    #[doc = "How often the engine's containers are compared with the database [env: KANDEV_RECONCILE_INTERVAL_SECONDS] [default: 60]"]
    reconcile_interval_seconds: Seconds, "KANDEV_RECONCILE_INTERVAL_SECONDS", "SECONDS";
    #[doc = "Age at which a container that no instance knows is removed [env: KANDEV_ORPHAN_GRACE_SECONDS] [default: 60]"]
    orphan_grace_seconds: Seconds, "KANDEV_ORPHAN_GRACE_SECONDS", "SECONDS";
    #[doc = "Events older than this are removed; 0: none [env: KANDEV_RETENTION_DAYS] [default: 0]"]
    retention_days: Days, "KANDEV_RETENTION_DAYS", "DAYS";
    #[doc = "The oldest events are removed when all take more than this; 0: never [env: KANDEV_RETENTION_MAX_BYTES] [default: 0]"]
    retention_max_bytes: Space, "KANDEV_RETENTION_MAX_BYTES", "BYTES";
    #[doc = "How often old events are looked for [env: KANDEV_RETENTION_INTERVAL_SECONDS] [default: 300]"]
    retention_interval_seconds: Seconds, "KANDEV_RETENTION_INTERVAL_SECONDS", "SECONDS";
    #[doc = "32 bytes in hex or base64 that encrypt secrets at rest [env: KANDEV_SECRET_KEY] [default: a file in the data directory]"]
    secret_key: SecretKey, "KANDEV_SECRET_KEY", "KEY";
}

impl Layer {
    pub(super) fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| file_error(path, None, format!("cannot be read: {error}")))?;
        let table = text.parse::<toml::Table>().map_err(|error| {
            // The error's own text quotes the line, which may hold a secret.
            let at = error.span().map_or(0, |span| span.start.min(text.len()));
            let line = text.get(..at).unwrap_or_default().matches('\n').count() + 1;
            file_error(
                path,
                None,
                format!("is no TOML at line {line}: {}", error.message()),
            )
        })?;
        Self::from_table(table, path)
    }
}

fn file_error(path: &Path, field: Option<&str>, problem: String) -> ConfigError {
    ConfigError {
        source_name: Source::File(path.to_owned()).to_string(),
        field: field.map(str::to_owned),
        problem,
    }
}

fn sourced<T>(
    field: &str,
    result: Result<T, String>,
    source: Source,
) -> Result<Option<Sourced<T>>, ConfigError> {
    match result {
        Ok(value) => Ok(Some(Sourced { value, source })),
        Err(problem) => Err(ConfigError {
            source_name: source.to_string(),
            field: Some(field.to_owned()),
            problem,
        }),
    }
}

fn read<T: Setting>(
    field: &str,
    text: Option<&str>,
    source: Source,
) -> Result<Option<Sourced<T>>, ConfigError> {
    text.map_or(Ok(None), |text| sourced(field, T::parse(text), source))
}

fn read_value<T: Setting>(
    field: &str,
    value: Option<toml::Value>,
    path: &Path,
) -> Result<Option<Sourced<T>>, ConfigError> {
    let result = match value {
        None => return Ok(None),
        Some(toml::Value::String(text)) => T::parse(&text),
        Some(toml::Value::Integer(number)) => T::parse(&number.to_string()),
        Some(toml::Value::Array(items)) => items
            .into_iter()
            .map(|item| match item {
                toml::Value::String(text) => Ok(text),
                other => Err(format!(
                    "holds a value of type {}, but must hold texts",
                    other.type_str()
                )),
            })
            .collect::<Result<Vec<_>, _>>()
            .and_then(T::parse_list),
        Some(other) => Err(format!("cannot be a value of type {}", other.type_str())),
    };
    sourced(field, result, Source::File(path.to_owned()))
}
