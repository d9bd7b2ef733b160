//! Tool calls, and the files they really touch.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::args::{required, unescape, word};
use crate::koda::policy;
use crate::turn::{Halt, Run};

/// How much of a file is read.
const MAX_READ: u64 = 64 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Tool {
    Call { title: String, kind: String },
    Diff { path: String, text: Option<String> },
    Write { path: String, text: String },
    Read { path: String },
}

impl Tool {
    pub(super) fn parse(name: &str, rest: &str) -> Result<Option<Self>, String> {
        let (path, text) = word(rest);
        Ok(Some(match name {
            "tool" => {
                let rest = required(name, "a title", rest.trim())?;
                let (title, kind) = rest.rsplit_once(' ').unwrap_or((rest.as_str(), "other"));
                Self::Call {
                    title: title.to_owned(),
                    kind: kind.to_owned(),
                }
            }
            "diff" => Self::Diff {
                path: required(name, "a path", path)?,
                text: Some(unescape(text)).filter(|text| !text.is_empty()),
            },
            "write" => Self::Write {
                path: required(name, "a path", path)?,
                text: unescape(text),
            },
            "read" => Self::Read {
                path: required(name, "a path", rest)?,
            },
            _ => return Ok(None),
        }))
    }

    /// What Koda calls the tool that does this.
    const fn kodas_name(&self) -> Option<&'static str> {
        match self {
            Self::Call { .. } => None,
            Self::Diff { .. } => Some("replace"),
            Self::Write { .. } => Some("write_file"),
            Self::Read { .. } => Some("read_file"),
        }
    }

    pub(super) fn run(self, run: &mut Run<'_>) -> Result<(), Halt> {
        if let Some(tool) = self.kodas_name()
            && !policy::is_allowed(run.agent(), &run.turn.session, tool)
        {
            run.report("tool", &format!("{tool} is not available"));
            return Ok(());
        }
        match self {
            Self::Call { title, kind } => call(run, &title, &kind),
            Self::Diff { path, text } => {
                let path = resolve(run, &path);
                let text = text.unwrap_or_else(|| {
                    let old = read_text(&path).unwrap_or_default();
                    format!("{old}A line by the mock agent.\n")
                });
                let change = Edit {
                    path: &path,
                    text: &text,
                };
                if let Err(e) = edit(run, &change, |run| run.turn.signal.check())? {
                    run.report("diff", &format!("{}: {e}", path.display()));
                }
            }
            Self::Write { path, text } => {
                let path = resolve(run, &path);
                let said = match write(&path, &text) {
                    Ok(()) => format!("{} bytes", text.len()),
                    Err(e) => e.to_string(),
                };
                run.report("write", &format!("{}: {said}", path.display()));
            }
            Self::Read { path } => {
                let path = resolve(run, &path);
                let said = read_text(&path).unwrap_or_else(|e| format!("{}: {e}", path.display()));
                run.report("read", &said);
            }
        }
        Ok(())
    }
}

/// A path as the session sees it.
pub(super) fn resolve(run: &Run<'_>, path: &str) -> PathBuf {
    Path::new(&run.turn.session.cwd).join(path)
}

/// The beginning of a file as text.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_READ).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, text)
}

pub(super) fn call(run: &mut Run<'_>, title: &str, kind: &str) {
    let id = run.next_call();
    run.update(json!({
        "sessionUpdate": "tool_call", "toolCallId": id, "title": title, "kind": kind,
        "status": "pending", "rawInput": {"title": title},
    }));
    for status in ["in_progress", "completed"] {
        let mut update = json!({
            "sessionUpdate": "tool_call_update", "toolCallId": id, "title": title, "status": status,
        });
        if status == "completed" {
            update["content"] = text_content("done");
        }
        run.update(update);
    }
}

fn text_content(text: &str) -> Value {
    json!([{"type": "content", "content": {"type": "text", "text": text}}])
}

/// A file and what shall stand in it.
pub(crate) struct Edit<'a> {
    pub(crate) path: &'a Path,
    pub(crate) text: &'a str,
}

/// Writes a file as a tool call with a diff; `between` runs before the writing, and may end it all.
pub(crate) fn edit(
    run: &mut Run<'_>,
    change: &Edit<'_>,
    between: impl Fn(&Run<'_>) -> Result<(), Halt>,
) -> Result<io::Result<()>, Halt> {
    let Edit { path, text } = change;
    let id = run.next_call();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let title = format!("Edit {name}");
    let old = read_text(path).ok();
    let diff = json!([{"type": "diff", "path": path, "oldText": old, "newText": text}]);
    run.update(json!({
        "sessionUpdate": "tool_call", "toolCallId": id, "title": title, "kind": "edit",
        "status": "pending", "locations": [{"path": path}], "content": diff, "rawInput": {"path": path},
    }));
    let status = |run: &mut Run<'_>, status: &str, content: Option<Value>| {
        let mut update = json!({
            "sessionUpdate": "tool_call_update", "toolCallId": id, "title": title, "status": status,
        });
        if let Some(content) = content {
            update["content"] = content;
        }
        run.update(update);
    };
    status(run, "in_progress", None);
    if let Err(halt) = between(run) {
        // Nothing was written: a call left open would look as if it still ran.
        status(run, "failed", None);
        return Err(halt);
    }
    let written = write(path, text);
    match &written {
        Ok(()) => status(run, "completed", Some(diff)),
        Err(e) => status(run, "failed", Some(text_content(&e.to_string()))),
    }
    Ok(written)
}
