//! The agent's terminals, as far as they are known here: the helper has the processes.

use kandev_acp::RpcError;
use kandev_acp::client_methods::ExitStatus;
use kandev_runtime::helper::wire::{Exit, Reason, Reply, Request};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::super::actor::Actor;
use super::answer::{self, Good};
use super::op::{KEPT, Op};
use super::told::Told;
use crate::outbox::Effect;

/// Instead of a request's tag: releases are on record. Lines are counted from 1.
pub(super) const RELEASES: u64 = 0;
/// The tags of kandev's own requests are above those of the agent's lines.
const ERRANDS: u64 = 1 << 63;

/// A terminal that was not released by the agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Terminal {
    id: String,
    /// In whose name it was asked for.
    #[serde(default)]
    session: Option<String>,
    /// How much of its output the agent wants, in bytes.
    keep: u64,
    /// The helper has it.
    made: bool,
    /// How much of its output has been told.
    told: u64,
    exit: Option<ExitStatus>,
    /// The helper has it no more, and nobody knows what became of it.
    lost: bool,
    /// It is over as far as the agent is concerned.
    releasing: bool,
    /// The helper was asked for it, perhaps.
    #[serde(skip)]
    asked: bool,
    /// That was over a connection before this one, perhaps.
    #[serde(skip)]
    asked_again: bool,
    /// The helper that is asked again had never heard of it.
    #[serde(skip)]
    anew: bool,
}

impl Terminal {
    pub(super) fn new(id: String, session: Option<&str>, keep: u64) -> Self {
        Self {
            id,
            session: session.map(ToOwned::to_owned),
            keep,
            made: false,
            told: 0,
            exit: None,
            lost: false,
            releasing: false,
            asked: false,
            asked_again: false,
            anew: false,
        }
    }

    /// By another process.
    pub(super) const fn may_have_been_asked_for(&mut self) {
        self.asked = true;
    }

    /// What is said of the end of a lost one: it is certain only that it is not running any more.
    fn end(&self) -> ExitStatus {
        self.exit
            .clone()
            .unwrap_or_else(|| answer::status(Exit::Signal(9)))
    }
}

impl Actor {
    fn terminal(&mut self, id: &str) -> Option<&mut Terminal> {
        self.inside
            .terminals
            .iter_mut()
            .find(|terminal| terminal.id == id)
    }

    pub(super) fn kept_of(&self, id: &str) -> u64 {
        let known = self.inside.terminals.iter().find(|terminal| terminal.id == id);
        known.map_or(KEPT, |terminal| terminal.keep)
    }

    /// The answer for which the helper is not needed: the terminal is not there, or is lost.
    pub(super) fn answer_of_terminals(&self, op: &Op) -> Option<Result<Good, RpcError>> {
        let id = op.terminal().filter(|_| !matches!(op, Op::Create { .. }))?;
        let known = self.inside.terminals.iter().find(|terminal| terminal.id == id);
        let Some(terminal) = known.filter(|terminal| !terminal.releasing) else {
            return Some(Err(answer::unknown_terminal(id)));
        };
        terminal.lost.then(|| {
            Ok(match op {
                Op::Wait { .. } => answer::exited(terminal.end()),
                Op::Output { .. } => answer::output(&[], u64::MAX, Some(terminal.end()), 0),
                _ => Good::result(json!({})),
            })
        })
    }

    /// A request about a terminal was carried out.
    pub(super) fn terminal_replied(&mut self, op: &Op, answer: &Result<Good, RpcError>) {
        match op {
            Op::Create { terminal, .. } if answer.is_ok() => {
                let Some(known) = self.terminal(terminal) else {
                    return;
                };
                known.made = true;
                if known.asked_again {
                    let told = known.told;
                    self.errand(terminal.clone(), Request::Follow(terminal.clone(), told));
                }
            }
            Op::Create { terminal, .. } => self.inside.terminals.retain(|known| known.id != *terminal),
            Op::Release { terminal } if answer.is_ok() => {
                self.inside.terminals.retain(|known| known.id != *terminal);
            }
            _ => {}
        }
    }

    /// Releases every terminal that there is.
    pub(in crate::instance) fn release_terminals(&mut self, by: &'static str) {
        self.release_those(by, |_| true);
    }

    /// Releases those of a session that has ended.
    pub(in crate::instance) fn release_terminals_of(&mut self, session: &str) {
        self.release_those("session_end", |terminal| {
            terminal.session.as_deref() == Some(session)
        });
    }

    fn release_those(&mut self, by: &'static str, is_over: impl Fn(&Terminal) -> bool) {
        let mut released = Vec::new();
        for terminal in self
            .inside
            .terminals
            .iter_mut()
            .filter(|terminal| is_over(terminal))
        {
            if !std::mem::replace(&mut terminal.releasing, true) {
                released.push(terminal.id.clone());
            }
        }
        for id in &released {
            self.terminal_event(&Told {
                operation: "release",
                terminal_id: Some(id),
                by: Some(by),
                ..Told::default()
            });
        }
        self.inside
            .terminals
            .retain(|terminal| !(terminal.lost && terminal.releasing));
        if !released.is_empty() {
            self.outbox.effect(Effect::Inside(RELEASES));
        }
    }

    /// Releases one that nobody has been told of.
    pub(super) fn unmake_terminal(&mut self, id: &str) {
        if let Some(terminal) = self.terminal(id) {
            terminal.releasing = true;
            self.outbox.effect(Effect::Inside(RELEASES));
        }
    }

    /// Asks the helper to release what is to be, under way or not.
    pub(super) fn ask_releases(&mut self) {
        let releasing = self.inside.terminals.iter().filter(|terminal| terminal.releasing);
        let ids: Vec<String> = releasing.map(|terminal| terminal.id.clone()).collect();
        for id in ids {
            self.errand(id.clone(), Request::Release(id));
        }
    }

    pub(super) fn terminal_is_asked_for(&mut self, id: &str) {
        let is_up = self.inside.up.is_some();
        if let Some(terminal) = self.terminal(id) {
            terminal.asked |= is_up;
        }
    }

    /// A terminal was made that another helper may have made before: its command may have run twice.
    pub(super) fn was_retried(&self, op: &Op) -> bool {
        let Op::Create { terminal: id, .. } = op else {
            return false;
        };
        let mut known = self.inside.terminals.iter();
        known.any(|terminal| terminal.id == *id && terminal.anew)
    }

    /// Goes on with the output of those that the helper has.
    pub(super) fn follow_terminals(&mut self) {
        let mut unknown = Vec::new();
        for terminal in &mut self.inside.terminals {
            terminal.asked_again = !terminal.made && terminal.asked;
            if terminal.asked_again && !terminal.releasing {
                unknown.push(terminal.id.clone());
            }
        }
        // Answered before the terminal is asked for again: whether this helper has it.
        for id in unknown {
            self.errand(id.clone(), Request::Output(id));
        }
        let known = self.inside.terminals.iter();
        let followed = known.filter(|terminal| terminal.made && !terminal.lost && !terminal.releasing);
        let from: Vec<_> = followed
            .map(|terminal| (terminal.id.clone(), terminal.told))
            .collect();
        for (id, told) in from {
            self.errand(id.clone(), Request::Follow(id, told));
        }
    }

    fn errand(&mut self, terminal: String, request: Request) {
        if self.inside.up.is_none() {
            return;
        }
        let last = self.inside.errands.last_key_value().map(|(tag, _)| *tag);
        let tag = last.map_or(ERRANDS, |last| last + 1);
        self.inside.errands.insert(tag, terminal);
        self.inside.send(tag, request);
    }

    pub(super) fn errand_done(&mut self, id: &str, reply: &Reply) {
        let Some(terminal) = self.terminal(id) else { return };
        if terminal.releasing {
            self.inside.terminals.retain(|terminal| terminal.id != id);
        } else if matches!(reply, Reply::Failed(Reason::UnknownTerminal, _)) {
            if terminal.made {
                self.lose_terminal(id);
            } else {
                terminal.anew = true;
            }
        }
    }

    pub(super) fn lose_terminal(&mut self, id: &str) {
        let Some(terminal) = self.terminal(id) else { return };
        if std::mem::replace(&mut terminal.lost, true) {
            return;
        }
        self.terminal_event(&Told {
            operation: "lost",
            terminal_id: Some(id),
            ..Told::default()
        });
    }

    /// Nobody can say any more what becomes of them.
    pub(super) fn lose_terminals(&mut self) {
        let made = self.inside.terminals.iter().filter(|terminal| terminal.made);
        let ids: Vec<String> = made.map(|terminal| terminal.id.clone()).collect();
        for id in &ids {
            self.lose_terminal(id);
        }
        self.inside
            .terminals
            .retain(|terminal| terminal.made && !terminal.releasing);
    }

    /// They end with the container.
    pub(super) fn forget_terminals(&mut self) {
        self.release_terminals("instance_end");
        self.inside.terminals.clear();
    }

    pub(super) fn terminal_said(&mut self, id: &str, from: u64, bytes: &[u8]) {
        let Some(terminal) = self.terminal(id).filter(|terminal| !terminal.releasing) else {
            return;
        };
        // What was on its way when it was asked to go on.
        let again = usize::try_from(terminal.told.saturating_sub(from)).unwrap_or(usize::MAX);
        let (from, bytes) = (
            from + again.min(bytes.len()) as u64,
            bytes.get(again..).unwrap_or_default(),
        );
        if bytes.is_empty() {
            return;
        }
        let skipped = from.saturating_sub(terminal.told);
        terminal.told = from + bytes.len() as u64;
        let text = String::from_utf8_lossy(bytes);
        self.terminal_event(&Told {
            operation: "output",
            terminal_id: Some(id),
            offset: Some(from),
            skipped: (skipped > 0).then_some(skipped),
            text: Some(&text),
            ..Told::default()
        });
    }

    pub(super) fn terminal_exited(&mut self, id: &str, exit: Exit) {
        let exit = answer::status(exit);
        let known = self
            .terminal(id)
            .filter(|terminal| !terminal.releasing && terminal.exit.is_none());
        let Some(terminal) = known else { return };
        terminal.exit = Some(exit.clone());
        self.terminal_event(&Told {
            operation: "exit",
            terminal_id: Some(id),
            exit: Some(&exit),
            ..Told::default()
        });
    }
}
