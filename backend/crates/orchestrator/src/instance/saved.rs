//! What must outlive the process beside rows and events, so that another one can take an instance up.
//!
//! It is one small JSON document in the instance's row, written in the same transaction as the events that it goes with,
//! whenever it has changed. Deadlines are not in it: they begin anew, but for the instance's life, which counts from its
//! launch.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

use kandev_acp::KandevState;
use kandev_acp::peer::Snapshot;
use kandev_domain::{AgentType, SessionKey, TurnId, TurnStatus};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::actor::{Actor, Phase, SessionRef};
use super::choices::{Choices, Step};
use super::costs::Costs;
use super::ending::Cause;
use super::handshake::Call;
use super::inside::SavedInside;
use super::login::Login;
use super::marks::Head;
use super::shifts::Shifts;
use super::subagents::Aside;
use super::verdict::Verdict;
use crate::launch::ResumeFrom;

/// See the module's text.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Saved<'a> {
    /// The catalogue's entry, as it was at the launch.
    pub(crate) entry: Cow<'a, AgentType>,
    pub(super) container: Option<String>,
    pub(super) phase: SavedPhase,
    pub(super) ending: Option<Cause>,
    /// What it is to be called, once nothing more can come.
    #[serde(default)]
    pub(super) verdict: Option<Verdict>,
    pub(super) peer: Snapshot<Call>,
    /// The answer to `initialize`.
    pub(super) agent: Option<Box<RawValue>>,
    pub(super) session: Option<SessionRef>,
    /// Sessions that were branched off it.
    #[serde(default)]
    pub(super) branches: BTreeMap<String, SessionKey>,
    /// A history is sent again that is on record; so much of it has come.
    pub(super) replaying: Option<u64>,
    #[serde(default)]
    pub(super) replaying_silently: bool,
    #[serde(default)]
    pub(super) login: Login,
    pub(super) configure: VecDeque<Step>,
    /// What the agent says is chosen.
    #[serde(default)]
    pub(super) chosen: Choices,
    /// What it told of its costs.
    #[serde(default)]
    pub(super) costs: Costs,
    /// What it said before its session was established.
    #[serde(default)]
    pub(super) early_facets: BTreeMap<String, Box<RawValue>>,
    pub(crate) resume: Option<ResumeFrom>,
    pub(super) kandev: KandevState,
    pub(super) running: Option<SavedTurn>,
    pub(super) last_turn: Option<TurnId>,
    pub(super) turn_count: i32,
    pub(super) ended_turns: u32,
    /// The agent says when it begins with a prompt.
    #[serde(default)]
    pub(super) accepts: bool,
    /// What the agent does beside its turns.
    #[serde(default)]
    pub(super) aside: Aside,
    /// How the last turn ended.
    #[serde(default)]
    pub(super) last_status: Option<TurnStatus>,
    /// Frames that may not have reached the agent, in order.
    pub(super) unwritten: Vec<String>,
    /// What the container's output began with.
    #[serde(default)]
    pub(super) head: Head,
    /// How the numbers of lines go with the engine's log.
    #[serde(default)]
    pub(super) shifts: Shifts,
    /// Of the engine's run that the container was last seen in.
    #[serde(default)]
    pub(super) sign: Option<String>,
    /// What was asked to be done in the container.
    #[serde(default)]
    pub(crate) inside: SavedInside,
}

/// How far the instance had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SavedPhase {
    /// It waits for a slot.
    Queued,
    /// There may be a container, or not yet.
    Creating,
    /// There is one; it may run.
    Connecting,
    /// It runs, and the session is being established.
    Handshaking,
    /// The session is ready.
    Ready,
    /// It has ended, or is about to be removed.
    Over,
}

/// The turn with the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedTurn {
    pub(super) id: TurnId,
    pub(super) cancelled: bool,
    pub(super) reason: Option<String>,
}

impl Actor {
    /// What another process would need now.
    pub(super) fn saved(&self) -> Saved<'_> {
        Saved {
            entry: Cow::Borrowed(&self.spec.agent_type),
            container: self.container.as_ref().map(|c| c.0.clone()),
            phase: match self.phase {
                Phase::Queued(_) => SavedPhase::Queued,
                Phase::Creating => SavedPhase::Creating,
                Phase::Connecting => SavedPhase::Connecting,
                Phase::Reconnecting(phase) => phase,
                Phase::Handshaking => SavedPhase::Handshaking,
                Phase::Ready => SavedPhase::Ready,
                Phase::Draining { .. } | Phase::Settled { .. } | Phase::Removing | Phase::Ended => {
                    SavedPhase::Over
                }
            },
            ending: self
                .ending
                .as_ref()
                .map(|e| e.cause.clone())
                .or_else(|| self.taken_cause.clone()),
            verdict: self.verdict.clone(),
            peer: self.peer.snapshot(),
            agent: self.agent.as_ref().map(|a| a.raw.clone()),
            session: self.session.clone(),
            branches: self.branches.clone(),
            replaying: self.replay.as_ref().map(|replay| replay.stored),
            replaying_silently: self.replay.as_ref().is_some_and(|replay| replay.silent),
            login: self.login.clone(),
            configure: self.configure.clone(),
            chosen: self.chosen.clone(),
            costs: self.costs.clone(),
            early_facets: self.early_facets.clone(),
            resume: self.spec.resume.clone(),
            kandev: self.kandev.clone(),
            running: self.turns.running.as_ref().map(|r| SavedTurn {
                id: r.id,
                cancelled: r.cancel.is_some(),
                reason: r.cancel.as_ref().and_then(|c| c.reason.clone()),
            }),
            last_turn: self.turns.last,
            turn_count: self.turns.count,
            ended_turns: self.turns.ended,
            accepts: self.turns.accepts,
            aside: self.turns.aside.clone(),
            last_status: self.turns.last_status,
            unwritten: self
                .ambiguous
                .iter()
                .chain(self.recorded_frames())
                .map(|frame| String::from_utf8_lossy(frame).into_owned())
                .collect(),
            head: self.head.clone(),
            shifts: self.shifts,
            sign: self.breaks.sign.as_ref().map(|sign| sign.0.clone()),
            inside: self.inside.saved(),
        }
    }
}
