//! The command line and the environment. See `docs/mock-agent.md`.

use std::path::PathBuf;

use crate::strict::Strictness;

/// Which protocol is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Acp,
    Kandev,
    Koda,
    Legacy,
}

/// How `initialize` is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Init {
    Normal,
    Slow(u64),
    Never,
    Error(i64),
    Garbage,
    Version(i64),
    Early,
    Exit(i32),
}

/// How `session/new` is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum New {
    Normal,
    Slow(u64),
    Never,
    /// After the answer to an elicitation.
    Ask,
    Error(i64),
    /// The first updates come before the answer, so many milliseconds.
    EarlyUpdates(u64),
}

/// How `session/load` and `session/resume` are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    Normal,
    Slow(u64),
    Never,
    Error(i64),
    /// So many updates, so many milliseconds after each.
    Replay(u64, u64),
    /// After the history it is told what the session is now, before the answer.
    State,
}

/// What a session may not be opened without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Auth {
    None,
    Login,
    /// A login whose secret the client has put into the environment.
    EnvVar,
}

/// How a request to set mode, model or an option is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Set {
    Normal,
    Slow(u64),
    /// Slow, and not done where the client takes it back meanwhile.
    Yields(u64),
    Error(i64),
}

/// What a second prompt in a busy session meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Busy {
    Error,
    Queue,
    Replace,
    Silent,
}

/// A capability that can be left out.
const CAPABILITIES: [&str; 21] = [
    "load",
    "resume",
    "list",
    "close",
    "delete",
    "additionalDirectories",
    "fork",
    "logout",
    "image",
    "audio",
    "embeddedContext",
    "http",
    "sse",
    "modes",
    "models",
    "configOptions",
    "accessPolicy",
    "compact",
    "plan",
    "customModels",
    "subagents",
];

/// Everything that is settled before the first byte.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) dialect: Dialect,
    /// Factor of the demo's pauses.
    pub(crate) speed: f64,
    /// Where sessions are kept.
    pub(crate) session_dir: Option<PathBuf>,
    pub(crate) start: String,
    pub(crate) init: Init,
    pub(crate) auth: Auth,
    pub(crate) new: New,
    pub(crate) load: Load,
    pub(crate) set: Set,
    without: Vec<String>,
    pub(crate) busy: Busy,
    pub(crate) copy: Option<PathBuf>,
    pub(crate) input_copy: Option<PathBuf>,
    pub(crate) exit_on_cancel: bool,
    pub(crate) text_ids: bool,
    pub(crate) strict: Strictness,
    /// Koda's access policy that sessions begin with.
    pub(crate) approval_mode: String,
    /// The folder of Koda's user.
    pub(crate) koda_home: Option<PathBuf>,
}

/// Splits `name:argument`.
fn split(value: &str) -> (&str, &str) {
    value.split_once(':').unwrap_or((value, ""))
}

fn number<T: std::str::FromStr>(variable: &str, text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("{variable}: '{text}' is not a number"))
}

fn unknown<T>(variable: &str, value: &str) -> Result<T, String> {
    Err(format!("{variable}: unknown value '{value}'"))
}

impl Config {
    /// Reads the arguments (without the program's name) and the environment.
    pub(crate) fn read(args: &[String], env: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        let flag = |name: &str| env(name).is_some_and(|value| value != "0");
        let (name, approval_mode) = arguments(args)?;
        let dialect = dialect(name.or_else(|| env("MOCK_DIALECT")))?;
        let load = env("MOCK_LOAD").unwrap_or_default();
        let mut without: Vec<String> = env("MOCK_WITHOUT")
            .unwrap_or_default()
            .split(',')
            .map(|name| name.trim().to_owned())
            .filter(|name| !name.is_empty())
            .collect();
        if let Some(bad) = without.iter().find(|name| !CAPABILITIES.contains(&name.as_str())) {
            return unknown("MOCK_WITHOUT", bad);
        }
        if load == "unsupported" {
            without.extend(["load".to_owned(), "resume".to_owned()]);
        }
        let session_dir = match dialect {
            Dialect::Koda => env("KODA_ACP_SESSION_STORE_DIR"),
            _ => Some(env("MOCK_SESSION_DIR").unwrap_or_else(|| "/sessions".to_owned())),
        };
        let init = match env("MOCK_INIT") {
            None if flag("MOCK_UNASKED_INIT") => Init::Early,
            value => init(&value.unwrap_or_default())?,
        };
        let speed = env("MOCK_SPEED").map_or(Ok(1.0), |text| number("MOCK_SPEED", &text))?;
        if !(0.0..=1000.0).contains(&speed) {
            return unknown("MOCK_SPEED", &speed.to_string());
        }
        Ok(Self {
            dialect,
            speed,
            session_dir: session_dir.map(PathBuf::from),
            start: env("MOCK_START").unwrap_or_default(),
            init,
            auth: auth(&env("MOCK_AUTH").unwrap_or_default())?,
            new: new(&env("MOCK_NEW").unwrap_or_default())?,
            load: self::load(&load)?,
            set: set(&env("MOCK_SET").unwrap_or_default())?,
            without,
            busy: busy(env("MOCK_BUSY").as_deref(), dialect)?,
            copy: env("MOCK_TURN_COPY").map(PathBuf::from),
            input_copy: env("MOCK_INPUT_COPY").map(PathBuf::from),
            exit_on_cancel: flag("MOCK_EXIT_ON_CANCEL"),
            text_ids: flag("MOCK_TEXT_IDS"),
            strict: strict(&env("MOCK_STRICT").unwrap_or_default())?,
            approval_mode,
            koda_home: env("KODA_CLI_HOME").map(PathBuf::from),
        })
    }

    /// False if `MOCK_WITHOUT` names this capability.
    pub(crate) fn has(&self, capability: &str) -> bool {
        !self.without.iter().any(|name| name == capability)
    }
}

/// The dialect's name, if one is given, and the access policy.
fn arguments(args: &[String]) -> Result<(Option<String>, String), String> {
    let (mut dialect, mut policy) = (None, "default".to_owned());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let (name, given) = match arg.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (arg.as_str(), None),
        };
        let mut value = || match given {
            Some(value) => Ok(value.to_owned()),
            None => args.next().cloned().ok_or(format!("{name} needs a value")),
        };
        match name {
            "--acp" => {}
            "--dialect" => dialect = Some(value()?),
            "--approval-mode" => policy = value()?,
            other => return Err(format!("unknown argument '{other}'")),
        }
    }
    if !crate::koda::policy::POLICIES.iter().any(|(id, _)| *id == policy) {
        return unknown("--approval-mode", &policy);
    }
    Ok((dialect, policy))
}

fn dialect(name: Option<String>) -> Result<Dialect, String> {
    match name.as_deref().unwrap_or("acp") {
        "acp" => Ok(Dialect::Acp),
        "kandev" => Ok(Dialect::Kandev),
        "koda" => Ok(Dialect::Koda),
        "legacy" => Ok(Dialect::Legacy),
        other => Err(format!("unknown dialect '{other}'")),
    }
}

fn init(value: &str) -> Result<Init, String> {
    const VARIABLE: &str = "MOCK_INIT";
    Ok(match split(value) {
        ("" | "normal", "") => Init::Normal,
        ("slow", ms) => Init::Slow(number(VARIABLE, ms)?),
        ("never", "") => Init::Never,
        ("error", code) => Init::Error(number(VARIABLE, code)?),
        ("garbage", "") => Init::Garbage,
        ("version", n) => Init::Version(number(VARIABLE, n)?),
        ("early", "") => Init::Early,
        ("exit", code) => Init::Exit(number(VARIABLE, code)?),
        _ => return unknown(VARIABLE, value),
    })
}

fn auth(value: &str) -> Result<Auth, String> {
    Ok(match value {
        "" | "0" => Auth::None,
        "1" => Auth::Login,
        "env" => Auth::EnvVar,
        _ => return unknown("MOCK_AUTH", value),
    })
}

fn new(value: &str) -> Result<New, String> {
    const VARIABLE: &str = "MOCK_NEW";
    Ok(match split(value) {
        ("" | "normal", "") => New::Normal,
        ("slow", ms) => New::Slow(number(VARIABLE, ms)?),
        ("never", "") => New::Never,
        ("ask", "") => New::Ask,
        ("error", code) => New::Error(number(VARIABLE, code)?),
        ("early-updates", "") => New::EarlyUpdates(0),
        ("early-updates", ms) => New::EarlyUpdates(number(VARIABLE, ms)?),
        _ => return unknown(VARIABLE, value),
    })
}

fn load(value: &str) -> Result<Load, String> {
    const VARIABLE: &str = "MOCK_LOAD";
    Ok(match split(value) {
        ("" | "normal" | "unsupported", "") => Load::Normal,
        ("slow", ms) => Load::Slow(number(VARIABLE, ms)?),
        ("never", "") => Load::Never,
        ("error", code) => Load::Error(number(VARIABLE, code)?),
        ("state", "") => Load::State,
        ("replay", rest) => {
            let (count, pause) = split(rest);
            let pause = if pause.is_empty() { "0" } else { pause };
            Load::Replay(number(VARIABLE, count)?, number(VARIABLE, pause)?)
        }
        _ => return unknown(VARIABLE, value),
    })
}

fn set(value: &str) -> Result<Set, String> {
    const VARIABLE: &str = "MOCK_SET";
    Ok(match split(value) {
        ("" | "normal", "") => Set::Normal,
        ("slow", ms) => Set::Slow(number(VARIABLE, ms)?),
        ("yields", ms) => Set::Yields(number(VARIABLE, ms)?),
        ("error", code) => Set::Error(number(VARIABLE, code)?),
        _ => return unknown(VARIABLE, value),
    })
}

fn strict(value: &str) -> Result<Strictness, String> {
    Ok(match value {
        "" | "0" => Strictness::Off,
        "1" => Strictness::On,
        "torn" => Strictness::Torn,
        other => return unknown("MOCK_STRICT", other),
    })
}

fn busy(value: Option<&str>, dialect: Dialect) -> Result<Busy, String> {
    Ok(match value {
        None if dialect == Dialect::Koda => Busy::Replace,
        None | Some("error") => Busy::Error,
        Some("queue") => Busy::Queue,
        Some("replace") => Busy::Replace,
        Some("silent") => Busy::Silent,
        Some(other) => return unknown("MOCK_BUSY", other),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(args: &[&str], env: &[(&str, &str)]) -> Result<Config, String> {
        let args: Vec<String> = args.iter().map(|&a| a.to_owned()).collect();
        Config::read(&args, |name| {
            let found = env.iter().find(|(n, _)| *n == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn arguments_win_over_the_environment() {
        assert_eq!(read(&[], &[]).unwrap().dialect, Dialect::Acp);
        let config = read(
            &["--acp", "--dialect", "kandev"],
            &[("MOCK_DIALECT", "koda"), ("MOCK_UNASKED_INIT", "1")],
        );
        let config = config.unwrap();
        assert_eq!(config.dialect, Dialect::Kandev);
        assert_eq!(config.init, Init::Early);
    }

    #[test]
    fn faults_are_read() {
        let config = read(
            &[],
            &[
                ("MOCK_INIT", "version:7"),
                ("MOCK_NEW", "error:-32000"),
                ("MOCK_LOAD", "unsupported"),
                ("MOCK_SET", "slow:5"),
            ],
        );
        let config = config.unwrap();
        assert_eq!(config.set, Set::Slow(5));
        assert_eq!(config.init, Init::Version(7));
        assert_eq!(config.new, New::Error(-32000));
        assert!(!config.has("load") && !config.has("resume") && config.has("fork"));
        let load = |value| read(&[], &[("MOCK_LOAD", value)]).unwrap().load;
        assert_eq!(
            (load("replay:68"), load("replay:68:20")),
            (Load::Replay(68, 0), Load::Replay(68, 20))
        );
    }

    #[test]
    fn mistakes_are_named() {
        for (name, value) in [
            ("MOCK_INIT", "slow:x"),
            ("MOCK_NEW", "quick"),
            ("MOCK_LOAD", "never:1"),
            ("MOCK_LOAD", "replay:1:x"),
            ("MOCK_SET", "never"),
            ("MOCK_BUSY", "no"),
            ("MOCK_STRICT", "yes"),
            ("MOCK_WITHOUT", "lode"),
            ("MOCK_SPEED", "-1"),
            ("MOCK_DIALECT", "tcp"),
        ] {
            assert!(read(&[], &[(name, value)]).is_err(), "{name}={value}");
        }
        assert!(read(&["--frob"], &[]).is_err());
        assert!(read(&["--dialect"], &[]).is_err());
    }
}
