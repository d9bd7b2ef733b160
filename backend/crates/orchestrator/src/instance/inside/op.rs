//! A request of the agent's as something to be done.

use kandev_acp::client_methods::ClientCall;
use kandev_acp::{Incoming, Peer};
use kandev_domain::{AgentType, EventKind};
use kandev_runtime::helper::wire;
use serde::{Deserialize, Serialize};

use super::terminals::Terminal;

/// How much of a terminal's output is kept where the agent does not say, and at most.
pub(super) const KEPT: u64 = 1 << 20;
const MOST_KEPT: u64 = 8 << 20;

/// What is to be done. What it takes to do it again is saved.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Op {
    Read {
        path: String,
        line: Option<u64>,
        limit: Option<u64>,
    },
    Write {
        path: String,
        /// The event whose line has the content.
        seq: i64,
        #[serde(skip)]
        content: Option<String>,
        bytes: usize,
    },
    Create {
        terminal: String,
        command: String,
        args: Vec<String>,
        env: Vec<(String, String)>,
        cwd: String,
        keep: u64,
    },
    Output {
        terminal: String,
    },
    Wait {
        terminal: String,
    },
    Kill {
        terminal: String,
    },
    Release {
        terminal: String,
    },
}

impl Op {
    /// A terminal is named after the number of the line that asks for it: read again, the line makes no second one.
    pub(super) fn of(call: ClientCall, tag: u64, seq: i64, entry: &AgentType) -> Self {
        match call {
            ClientCall::Read { path, line, limit } => Self::Read { path, line, limit },
            ClientCall::Write { path, content } => Self::Write {
                path,
                seq,
                bytes: content.len(),
                content: Some(content),
            },
            ClientCall::Create(create) => Self::Create {
                terminal: format!("term-{tag}"),
                command: create.command,
                args: create.args,
                env: create.env,
                cwd: create.cwd.unwrap_or_else(|| entry.working_dir.clone()),
                keep: create.limit.unwrap_or(KEPT).min(MOST_KEPT),
            },
            ClientCall::Output(terminal) => Self::Output { terminal },
            ClientCall::Wait(terminal) => Self::Wait { terminal },
            ClientCall::Kill(terminal) => Self::Kill { terminal },
            ClientCall::Release(terminal) => Self::Release { terminal },
        }
    }

    /// What the helper is asked; none if what it takes is lost.
    pub(super) fn request(&self, entry: &AgentType) -> Option<wire::Request> {
        Some(match self {
            Self::Read { path, line, limit } => wire::Request::Read(wire::ReadFile {
                path: path.clone(),
                roots: entry.file_roots(),
                line: line.unwrap_or(1),
                limit: *limit,
                max_bytes: entry.fs.max_file_bytes,
            }),
            Self::Write { path, content, .. } => wire::Request::Write(wire::WriteFile {
                path: path.clone(),
                roots: entry.file_roots(),
                content: content.as_ref()?.as_bytes().to_vec(),
            }),
            Self::Create {
                terminal,
                command,
                args,
                env,
                cwd,
                keep,
            } => wire::Request::Create(wire::Command {
                id: terminal.clone(),
                command: command.clone(),
                args: args.clone(),
                env: env.clone(),
                cwd: cwd.clone(),
                keep: *keep,
            }),
            Self::Output { terminal } => wire::Request::Output(terminal.clone()),
            Self::Wait { terminal } => wire::Request::Wait(terminal.clone()),
            Self::Kill { terminal } => wire::Request::Kill(terminal.clone()),
            Self::Release { terminal } => wire::Request::Release(terminal.clone()),
        })
    }

    /// A terminal is known from the moment in which it is asked for.
    pub(super) fn begin(&self, session: Option<&str>, terminals: &mut Vec<Terminal>) {
        if let Self::Create { terminal, keep, .. } = self {
            terminals.push(Terminal::new(terminal.clone(), session, *keep));
        }
    }

    /// A place to work in that could be anywhere.
    pub(super) fn relative_cwd(&self) -> Option<&str> {
        match self {
            Self::Create { cwd, .. } if !cwd.starts_with('/') => Some(cwd),
            _ => None,
        }
    }

    /// The terminal that it is about.
    pub(super) fn terminal(&self) -> Option<&str> {
        match self {
            Self::Read { .. } | Self::Write { .. } => None,
            Self::Create { terminal, .. }
            | Self::Output { terminal }
            | Self::Wait { terminal }
            | Self::Kill { terminal }
            | Self::Release { terminal } => Some(terminal),
        }
    }

    /// Its event's kind.
    pub(super) const fn event_kind(&self) -> EventKind {
        match self {
            Self::Read { .. } | Self::Write { .. } => EventKind::Fs,
            _ => EventKind::Terminal,
        }
    }

    /// What it brings, in bytes.
    pub(super) const fn bytes(&self) -> usize {
        match self {
            Self::Write { bytes, .. } => *bytes,
            _ => 0,
        }
    }

    /// What it takes to keep it, in bytes.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Read { path, .. } => path.len(),
            Self::Write { path, bytes, .. } => path.len() + bytes,
            Self::Create {
                command,
                args,
                env,
                cwd,
                ..
            } => {
                let args: usize = args.iter().map(String::len).sum();
                let env: usize = env.iter().map(|(name, value)| name.len() + value.len()).sum();
                command.len() + args + env + cwd.len()
            }
            Self::Output { terminal }
            | Self::Wait { terminal }
            | Self::Kill { terminal }
            | Self::Release { terminal } => terminal.len(),
        }
    }

    /// Its answer is too large to be kept, and can be made again.
    pub(super) const fn has_contents(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Output { .. })
    }

    /// What was done of it cannot be taken back.
    pub(super) const fn leaves_traces(&self) -> bool {
        matches!(
            self,
            Self::Write { .. } | Self::Kill { .. } | Self::Release { .. }
        )
    }

    /// The event whose line is needed to do it again.
    pub(super) const fn line(&self) -> Option<i64> {
        match self {
            Self::Write {
                seq, content: None, ..
            } => Some(*seq),
            _ => None,
        }
    }

    /// Takes the content out of the line that brought it.
    pub(super) fn bring(&mut self, line: &[u8]) {
        let Self::Write { content, .. } = self else { return };
        let Incoming::Request { method, params, .. } = Peer::<()>::new().receive(line) else {
            return;
        };
        let call = params.and_then(|params| ClientCall::read(&method, params.raw));
        if let Some(Ok((_, ClientCall::Write { content: written, .. }))) = call {
            *content = Some(written);
        }
    }
}
