//! Directives that look around and say what they see.

use std::fs;

use super::tools::resolve;
use crate::sync::lock;
use crate::turn::Run;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Look {
    Env(String),
    Pwd,
    Ls(String),
    Whoami,
    Session,
    Client,
    Blocks,
}

impl Look {
    pub(super) fn parse(name: &str, rest: &str) -> Option<Self> {
        Some(match name {
            "env" => Self::Env(rest.trim().to_owned()),
            "pwd" => Self::Pwd,
            "ls" => Self::Ls(rest.to_owned()),
            "whoami" => Self::Whoami,
            "session" => Self::Session,
            "client" => Self::Client,
            "blocks" => Self::Blocks,
            _ => return None,
        })
    }

    pub(super) fn run(self, run: &mut Run<'_>) {
        match self {
            Self::Env(name) => {
                let said = match std::env::var_os(&name) {
                    Some(value) => format!("{name}={}", value.to_string_lossy()),
                    None => format!("{name} is unset"),
                };
                run.report("env", &said);
            }
            Self::Pwd => {
                let said = match std::env::current_dir() {
                    Ok(path) => path.to_string_lossy().into_owned(),
                    Err(e) => e.to_string(),
                };
                run.report("pwd", &said);
            }
            Self::Ls(path) => {
                let path = resolve(run, &path);
                let said = match fs::read_dir(&path) {
                    Ok(entries) => {
                        let names = entries.flatten().map(|entry| entry.file_name());
                        let mut names: Vec<String> =
                            names.map(|n| n.to_string_lossy().into_owned()).collect();
                        names.sort();
                        names.join(" ")
                    }
                    Err(e) => format!("{}: {e}", path.display()),
                };
                run.report("ls", &said);
            }
            Self::Whoami => run.report("whoami", &whoami()),
            Self::Session => {
                let said = run.turn.session.describe().to_string();
                run.report("session", &said);
            }
            Self::Client => {
                let said = lock(&run.agent().client).to_string();
                run.report("client", &said);
            }
            Self::Blocks => {
                let kinds = run.turn.prompt.iter().map(|block| block["type"].as_str());
                let kinds: Vec<&str> = kinds.map(Option::unwrap_or_default).collect();
                run.report("blocks", &kinds.join(","));
            }
        }
    }
}

/// Who the kernel takes this process for.
fn whoami() -> String {
    let status = match fs::read_to_string("/proc/self/status") {
        Ok(status) => status,
        Err(e) => return e.to_string(),
    };
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let value = line.and_then(|line| line.split_whitespace().next());
        value.unwrap_or("?").to_owned()
    };
    format!(
        "uid={} gid={} CapEff={} NoNewPrivs={}",
        field("Uid:"),
        field("Gid:"),
        field("CapEff:"),
        field("NoNewPrivs:")
    )
}
