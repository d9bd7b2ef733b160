//! Directives that use files and terminals through the client.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::ask::send;
use super::tools::resolve;
use crate::args::{number, required, size, size_or, unescape, word};
use crate::sync::{Answer, lock};
use crate::turn::{Halt, Run};

/// How long answers are waited for after a cancel.
const CANCEL_GRACE: Duration = Duration::from_secs(2);
/// Of a longer output only the length is said.
const MAX_SHOWN: usize = 4096;
/// Most requests at once.
const MAX_TIMES: usize = 1000;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Client {
    Read {
        path: String,
        line: Option<u64>,
        limit: Option<u64>,
    },
    Write {
        path: String,
        text: String,
    },
    /// So many bytes, other ones for each path.
    Fill {
        path: String,
        bytes: usize,
    },
    /// So many of them at once.
    FillMany {
        path: String,
        bytes: usize,
        times: usize,
    },
    /// So many reads at once, of one file or of one each (`{}`).
    ReadMany {
        path: String,
        times: usize,
    },
    Create {
        name: String,
        params: Value,
    },
    /// And how much of the end of what is too long.
    Output(String, usize),
    /// And whether the script goes on meanwhile.
    Wait(String, bool),
    Kill(String),
    Release(String),
    /// A tool call that shows it.
    Show(String),
    /// Waits for what was left.
    Answers,
}

impl Client {
    pub(super) fn parse(name: &str, rest: &str) -> Result<Option<Self>, String> {
        let (first, more) = word(rest);
        let target = || required(name, "a terminal", first);
        let path = || required(name, "a path", first);
        Ok(Some(match name {
            "fs-read" => {
                let mut numbers = more.split_whitespace().map(|text| number(name, text));
                Self::Read {
                    path: path()?,
                    line: numbers.next().transpose()?,
                    limit: numbers.next().transpose()?,
                }
            }
            "fs-write" => Self::Write {
                path: path()?,
                text: unescape(more),
            },
            "fs-fill" => Self::Fill {
                path: path()?,
                bytes: size(name, more)?,
            },
            "fs-fill-many" => {
                let (bytes, times) = word(more);
                let times: usize = number(name, times)?;
                if times > MAX_TIMES {
                    return Err(format!("/{name}: at most {MAX_TIMES} times"));
                }
                Self::FillMany {
                    path: path()?,
                    bytes: size(name, bytes)?,
                    times,
                }
            }
            "fs-read-many" => {
                let times: usize = number(name, more)?;
                if times > MAX_TIMES {
                    return Err(format!("/{name}: at most {MAX_TIMES} times"));
                }
                Self::ReadMany { path: path()?, times }
            }
            "term" => create(name, rest)?,
            "term-output" => Self::Output(target()?, size_or(name, more, 0)?),
            "term-wait" => Self::Wait(target()?, more.trim() == "later"),
            "term-kill" => Self::Kill(target()?),
            "term-release" => Self::Release(target()?),
            "term-show" => Self::Show(target()?),
            "answers" => Self::Answers,
            _ => return Ok(None),
        }))
    }

    pub(super) fn run(self, run: &mut Run<'_>) -> Result<(), Halt> {
        match self {
            Self::Read { path, line, limit } => {
                let mut params = json!({"path": resolve(run, &path)});
                for (name, value) in [("line", line), ("limit", limit)] {
                    if let Some(value) = value {
                        params[name] = json!(value);
                    }
                }
                ask(run, "fs-read", "fs/read_text_file", params, |result| {
                    result["content"].to_string()
                })
            }
            Self::Write { path, text } => write(run, "fs-write", &path, &text),
            Self::Fill { path, bytes } => write(run, "fs-fill", &path, &filling(&path, bytes)),
            Self::FillMany { path, bytes, times } => fill_many(run, &path, bytes, times),
            Self::ReadMany { path, times } => read_many(run, &path, times),
            Self::Create { name, mut params } => {
                params["sessionId"] = json!(run.turn.session.id);
                let id = send(run, "terminal/create", &params);
                let answer = wait(run, &id);
                let said = said(answer.as_ref(), |result| result["terminalId"].to_string());
                if let Some(Ok(result)) = &answer
                    && let Some(id) = result["terminalId"].as_str()
                {
                    run.terminals.insert(name.clone(), id.to_owned());
                }
                run.report("term", &format!("{name} {said}"));
                run.turn.signal.check()
            }
            Self::Output(name, tail) => ask_of(run, "term-output", "terminal/output", &name, |result| {
                let exit = &result["exitStatus"];
                let exit = if exit.is_null() {
                    "running".to_owned()
                } else {
                    end(exit)
                };
                let text = result["output"].as_str().unwrap_or_default();
                let text = if text.len() > MAX_SHOWN {
                    let end = text.len().saturating_sub(tail);
                    let end = (end..=text.len()).find(|end| text.is_char_boundary(*end));
                    let end = end.map_or("", |end| &text[end..]);
                    let end = if tail > 0 {
                        format!(" … {}", json!(end))
                    } else {
                        String::new()
                    };
                    format!("{} bytes{end}", text.len())
                } else {
                    json!(text).to_string()
                };
                format!("truncated={} {exit} {text}", result["truncated"])
            }),
            Self::Wait(name, true) => {
                let params = params_of(run, &name);
                let id = send(run, "terminal/wait_for_exit", &params);
                run.unanswered.push(id);
                Ok(())
            }
            Self::Wait(name, false) => ask_of(run, "term-wait", "terminal/wait_for_exit", &name, end),
            Self::Kill(name) => ask_of(run, "term-kill", "terminal/kill", &name, Value::to_string),
            Self::Release(name) => ask_of(run, "term-release", "terminal/release", &name, Value::to_string),
            Self::Show(name) => {
                let call = run.next_call();
                let terminal = id_of(run, &name);
                run.update(json!({
                    "sessionUpdate": "tool_call", "toolCallId": call, "title": "Run", "kind": "execute",
                    "status": "in_progress", "content": [{"type": "terminal", "terminalId": terminal}],
                }));
                Ok(())
            }
            Self::Answers => {
                for id in std::mem::take(&mut run.unanswered) {
                    let answer = wait(run, &id);
                    let good = |result: &Value| {
                        if result.get("exitCode").is_some() {
                            end(result)
                        } else {
                            result.to_string()
                        }
                    };
                    run.report("answer", &said(answer.as_ref(), good));
                }
                run.turn.signal.check()
            }
        }
    }
}

/// `NAME [limit=N] [cwd=PATH] [env=NAME=VALUE] COMMAND [ARG …]`; after `--` the rest is one command line.
fn create(name: &str, rest: &str) -> Result<Client, String> {
    let (terminal, mut rest) = word(rest);
    let mut params = json!({"env": []});
    let push = |list: &mut Value, item: Value| {
        if let Some(list) = list.as_array_mut() {
            list.push(item);
        }
    };
    loop {
        let (option, more) = word(rest);
        match option.split_once('=') {
            Some(("limit", bytes)) => params["outputByteLimit"] = json!(size(name, bytes)?),
            Some(("cwd", path)) => params["cwd"] = json!(path),
            Some(("env", variable)) => {
                let (variable, value) = variable.split_once('=').unwrap_or((variable, ""));
                push(&mut params["env"], json!({"name": variable, "value": value}));
            }
            _ => break,
        }
        rest = more;
    }
    match word(rest) {
        ("--", line) => params["command"] = json!(required(name, "a command", line)?),
        (command, args) => {
            params["command"] = json!(required(name, "a command", command)?);
            params["args"] = args.split_whitespace().map(unescape).collect();
        }
    }
    Ok(Client::Create {
        name: required(name, "a name", terminal)?,
        params,
    })
}

fn id_of(run: &Run<'_>, name: &str) -> String {
    // One that was never created goes out as it is.
    run.terminals
        .get(name)
        .cloned()
        .unwrap_or_else(|| name.to_owned())
}

fn params_of(run: &Run<'_>, name: &str) -> Value {
    json!({"sessionId": run.turn.session.id, "terminalId": id_of(run, name)})
}

fn wait(run: &Run<'_>, id: &str) -> Option<Answer> {
    run.turn.signal.wait_answer(id, None, CANCEL_GRACE)
}

fn said(answer: Option<&Answer>, good: impl Fn(&Value) -> String) -> String {
    match answer {
        Some(Ok(result)) => good(result),
        Some(Err(e)) => format!("error {} {}", e.code, e.message),
        None => "unanswered".to_owned(),
    }
}

fn ask(
    run: &mut Run<'_>,
    name: &str,
    method: &str,
    mut params: Value,
    good: impl Fn(&Value) -> String,
) -> Result<(), Halt> {
    params["sessionId"] = json!(run.turn.session.id);
    let id = send(run, method, &params);
    let answer = wait(run, &id);
    run.report(name, &said(answer.as_ref(), good));
    run.turn.signal.check()
}

fn ask_of(
    run: &mut Run<'_>,
    name: &str,
    method: &str,
    terminal: &str,
    good: impl Fn(&Value) -> String,
) -> Result<(), Halt> {
    let params = params_of(run, terminal);
    ask(run, name, method, params, good)
}

/// A file that a prompt links to: through the client, if that reads files, else the agent's own.
pub(crate) fn file(run: &mut Run<'_>, path: &str) -> Result<String, String> {
    let reads = lock(&run.agent().client)["clientCapabilities"]["fs"]["readTextFile"] == true;
    if !reads {
        return super::tools::read_text(Path::new(path)).map_err(|e| e.to_string());
    }
    let params = json!({"sessionId": run.turn.session.id, "path": path, "line": null, "limit": null});
    let id = send(run, "fs/read_text_file", &params);
    match wait(run, &id) {
        Some(Ok(result)) => Ok(result["content"].as_str().unwrap_or_default().to_owned()),
        Some(Err(e)) => Err(e.message),
        None => Err("unanswered".to_owned()),
    }
}

fn write(run: &mut Run<'_>, name: &str, path: &str, text: &str) -> Result<(), Halt> {
    let params = json!({"path": resolve(run, path), "content": text});
    ask(run, name, "fs/write_text_file", params, Value::to_string)
}

/// Numbered lines that tell of which file they are.
fn filling(path: &str, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + path.len() + 16);
    let mut line = 0;
    while text.len() < bytes {
        line += 1;
        // A String takes everything.
        let _ = writeln!(text, "{path} {line:08}");
    }
    let end = (0..=bytes).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or_default());
    text.extend(std::iter::repeat_n('.', bytes - text.len()));
    text
}

fn fill_many(run: &mut Run<'_>, path: &str, bytes: usize, times: usize) -> Result<(), Halt> {
    let asked: Vec<String> = (1..=times)
        .map(|n| {
            let path = path.replace("{}", &n.to_string());
            let mut params = json!({"path": resolve(run, &path), "content": filling(&path, bytes)});
            params["sessionId"] = json!(run.turn.session.id);
            send(run, "fs/write_text_file", &params)
        })
        .collect();
    let (mut good, mut error) = (0, String::new());
    for id in asked {
        match wait(run, &id) {
            Some(Ok(_)) => good += 1,
            answer => error = format!(", {}", said(answer.as_ref(), Value::to_string)),
        }
    }
    run.report("fs-fill-many", &format!("{good} of {times}{error}"));
    run.turn.signal.check()
}

/// What comes must be what the agent itself finds there.
fn read_many(run: &mut Run<'_>, path: &str, times: usize) -> Result<(), Halt> {
    let asked: Vec<(PathBuf, String)> = (1..=times)
        .map(|n| {
            let path = resolve(run, &path.replace("{}", &n.to_string()));
            let params = json!({"path": path, "sessionId": run.turn.session.id});
            (path, send(run, "fs/read_text_file", &params))
        })
        .collect();
    let (mut good, mut others) = (0, 0);
    let mut last = None;
    for (path, id) in asked {
        if let Some(Ok(result)) = wait(run, &id) {
            if last.as_ref().is_none_or(|(of, _)| *of != path) {
                last = std::fs::read(&path).ok().map(|bytes| (path, bytes));
            }
            let there = last.as_ref().map(|(_, bytes)| bytes.as_slice());
            match result["content"].as_str().map(str::as_bytes) {
                content if content.is_some() && content == there => good += 1,
                _ => others += 1,
            }
        }
    }
    let mut said = format!("{good} of {times}");
    if others > 0 {
        let _ = write!(said, ", and {others} that are not what is there");
    }
    run.report("fs-read-many", &said);
    run.turn.signal.check()
}

/// How a process ended.
fn end(exit: &Value) -> String {
    match (exit["exitCode"].as_u64(), exit["signal"].as_str()) {
        (Some(code), None) => format!("code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        _ => format!("malformed {exit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_described_by_words_or_by_a_line() {
        let parse = |rest| Client::parse("term", rest).unwrap().unwrap();
        let expected = json!({
            "env": [{"name": "A", "value": "1=1"}], "outputByteLimit": 1024, "cwd": "/w", "command": "sh", "args": ["-c", "x"],
        });
        assert_eq!(
            parse("b limit=1k cwd=/w env=A=1=1 sh -c x"),
            Client::Create {
                name: "b".to_owned(),
                params: expected
            }
        );
        let line = json!({"env": [], "command": "echo a | cat"});
        assert_eq!(
            parse("b -- echo a | cat"),
            Client::Create {
                name: "b".to_owned(),
                params: line
            }
        );
        assert!(Client::parse("term", "b").is_err());
        assert_eq!(Client::parse("say", "x"), Ok(None));
        let read = Client::parse("fs-read", "a 2 3").unwrap().unwrap();
        let (line, limit) = (Some(2), Some(3));
        assert_eq!(
            read,
            Client::Read {
                path: "a".to_owned(),
                line,
                limit
            }
        );
    }

    #[test]
    fn each_file_is_filled_with_its_own() {
        assert_eq!(filling("a", 23), "a 00000001\na 00000002\na");
        assert_eq!(filling("é", 1), ".");
        assert_eq!(filling("b", 0), "");
        assert_eq!(filling("src/é", 300).len(), 300);
    }
}
