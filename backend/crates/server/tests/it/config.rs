//! Precedence, errors and redaction of the configuration.

use std::path::Path;

use kandev::config::{Config, ConfigError, Environment, Flags, LogFormat};

use crate::support::Kandev;

fn load(file: &str, environment: &[(&str, &str)], flags: &Flags) -> Result<Config, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kandev.toml");
    std::fs::write(&path, file).unwrap();
    let environment: Environment = environment
        .iter()
        .copied()
        .chain([("HOME", "/home/me")])
        .collect();
    Config::load(flags, Some(&path), &environment)
}

fn source(config: &Config, name: &str) -> String {
    let line = config.report().iter().find(|line| line.name == name).unwrap();
    line.source.rsplit('/').next().unwrap().to_owned()
}

#[test]
fn a_flag_beats_a_variable_beats_the_file_beats_the_default() {
    let file = "owner = 'file'\nmax_instances = 3\nlog_format = 'json'\nworkspace_roots = ['/a', '/b']";
    let flags = Flags {
        owner: Some("flag".to_owned()),
        ..Flags::default()
    };
    let config = load(
        file,
        &[("KANDEV_OWNER", "env"), ("KANDEV_MAX_INSTANCES", "5")],
        &flags,
    )
    .unwrap();
    assert_eq!((config.owner.as_str(), config.max_instances), ("flag", 5));
    assert_eq!(
        (config.log_format, config.max_prompt_queue),
        (LogFormat::Json, 16)
    );
    assert_eq!(config.workspace_roots, [Path::new("/a"), Path::new("/b")]);
    assert_eq!(source(&config, "owner"), "flag --owner");
    assert_eq!(
        source(&config, "max_instances"),
        "environment KANDEV_MAX_INSTANCES"
    );
    assert_eq!(source(&config, "log_format"), "kandev.toml");
    assert_eq!(source(&config, "max_prompt_queue"), "default");
}

#[test]
fn the_defaults_are_those_of_the_contract() {
    let config = load("", &[], &Flags::default()).unwrap();
    assert_eq!(config.listen.as_str(), "127.0.0.1:8080");
    assert_eq!(config.data_dir, Path::new("/home/me/.local/share/kandev"));
    assert_eq!(
        config.workspace_roots,
        [Path::new("/home/me"), Path::new("/home/me/.local/share/kandev")]
    );
    assert_eq!(config.body_limit_bytes, 16 * 1024 * 1024);
    assert_eq!(config.max_line_bytes, 64 * 1024 * 1024);
    assert!(config.database_url.is_none() && config.turn_timeout.is_none());
    let config = load(
        "",
        &[("XDG_DATA_HOME", "/xdg"), ("KANDEV_OWNER", "")],
        &Flags::default(),
    )
    .unwrap();
    assert_eq!(config.data_dir, Path::new("/xdg/kandev"));
    assert_eq!(config.owner, "kandev", "an empty variable is none");
}

#[test]
fn errors_name_source_and_field() {
    /// The file, the environment, and what the error must name.
    type Case = (
        &'static str,
        &'static [(&'static str, &'static str)],
        &'static [&'static str],
    );
    let cases: [Case; 8] = [
        ("lisen = 'x'", &[], &["lisen", "kandev.toml", "no setting"]),
        ("[listen]\nport = 1", &[], &["listen", "kandev.toml", "table"]),
        (
            "max_instances = 0",
            &[],
            &["max_instances", "kandev.toml", "from 1"],
        ),
        (
            "workspace_roots = ['a']",
            &[],
            &["workspace_roots", "'a'", "absolute"],
        ),
        ("owner = ['a']", &[], &["owner", "not a list"]),
        ("\n\nowner =", &[], &["kandev.toml", "line 3"]),
        (
            "",
            &[("KANDEV_STOP_GRACE_SECONDS", "soon")],
            &["stop_grace_seconds", "KANDEV_STOP_GRACE_SECONDS", "soon"],
        ),
        ("", &[("RUST_LOG", "kandev=loud")], &["log", "RUST_LOG", "loud"]),
    ];
    for (file, environment, parts) in cases {
        let error = load(file, environment, &Flags::default())
            .unwrap_err()
            .to_string();
        for part in parts {
            assert!(error.contains(part), "'{part}' is not in: {error}");
        }
    }
    let missing = Config::load(
        &Flags::default(),
        Some(Path::new("/nonexistent/k.toml")),
        &Environment::default(),
    );
    assert!(missing.unwrap_err().to_string().contains("/nonexistent/k.toml"));
    let homeless = Config::load(&Flags::default(), None, &Environment::default()).unwrap_err();
    assert!(homeless.to_string().contains("KANDEV_DATA_DIR"), "{homeless}");
}

#[test]
fn a_secret_is_in_no_error() {
    for file in [
        "database_url = 'postgres://me:hunter2@db:port/x'",
        "database_url = 'postgres://me:hunter2@db/x",
        "database_url = 'hunter2'",
        "database_url = ['hunter2']",
        "secret_key = 'hunter2'",
    ] {
        let error = load(file, &[], &Flags::default()).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
}

#[tokio::test]
async fn config_check_prints_sources_and_no_secrets() {
    let key = "ab".repeat(32);
    let environment = [
        ("DATABASE_URL", "postgres://me:hunter2@db/x"),
        ("KANDEV_SECRET_KEY", key.as_str()),
    ];
    let mut command = Kandev::command(&environment);
    let output = command
        .args(["config", "check", "--max-instances", "9"])
        .output()
        .await
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        "database_url = postgres://me:***@db:5432/x  # environment DATABASE_URL",
        "secret_key = ***  # environment KANDEV_SECRET_KEY",
        "max_instances = 9  # flag --max-instances",
        "listen = 127.0.0.1:8080  # default",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("hunter2") && !text.contains(&key));

    let output = Kandev::command(&[("KANDEV_LISTEN", "x")])
        .args(["config", "check"])
        .output()
        .await
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(
        words.contains("listen") && words.contains("KANDEV_LISTEN"),
        "{words}"
    );
}
