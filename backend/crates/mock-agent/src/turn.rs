//! One prompt, from its admission to its answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::agent::Agent;
use crate::config::Dialect;
use crate::frame::{Id, RpcError};
use crate::out::complain;
use crate::session::Session;
use crate::store::StoredTurn;
use crate::sync::Signal;
use crate::{clock, demo, kandev, koda, script};

/// How many updates of a turn are kept for a replay, and how many bytes of them.
const MAX_UPDATES: usize = 10_000;
const MAX_UPDATE_BYTES: usize = 4 << 20;

/// Why a turn ends before its script does.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Halt {
    Cancelled,
    /// With this stop reason.
    Stop(String),
    /// With this error in place of a result.
    Error(RpcError),
}

/// What the threads share of a turn.
pub(crate) struct Turn {
    pub(crate) agent: Arc<Agent>,
    pub(crate) session: Arc<Session>,
    /// The prompt request's id.
    pub(crate) id: Id,
    /// Content blocks.
    pub(crate) prompt: Vec<Value>,
    /// The client's mark of this prompt (Koda).
    pub(crate) entry: Option<String>,
    /// Roles that the client starts with it (Koda).
    pub(crate) roles: Vec<String>,
    pub(crate) signal: Arc<Signal>,
}

impl Turn {
    /// The text of the prompt.
    pub(crate) fn text(&self) -> String {
        prompt_text(&self.prompt)
    }
}

/// The text blocks of a prompt, a line each.
pub(crate) fn prompt_text(prompt: &[Value]) -> String {
    let texts: Vec<&str> = prompt.iter().filter_map(|block| block["text"].as_str()).collect();
    texts.join("\n")
}

/// What the turn's own thread knows of it.
pub(crate) struct Run<'a> {
    pub(crate) turn: &'a Turn,
    /// What was said in message chunks so far.
    pub(crate) said: String,
    /// Plan entries with their status.
    pub(crate) plan: Vec<(String, &'static str)>,
    /// The id that `/id` chose for the next request to the client.
    pub(crate) next_id: Option<String>,
    /// The client's terminals by the names they have here.
    pub(crate) terminals: HashMap<String, String>,
    /// Requests that will be waited for later.
    pub(crate) unanswered: Vec<String>,
    /// Tokens used.
    pub(crate) usage: Option<u64>,
    /// `_meta` of the prompt's result.
    pub(crate) meta: Option<Value>,
    /// Said this long after the answer.
    pub(crate) late: Vec<(Duration, String)>,
    /// So many chunks are written together with the answer.
    pub(crate) with_end: usize,
    pub(crate) exit_after: Option<i32>,
    updates: Vec<Value>,
    update_bytes: usize,
    calls: usize,
    number: usize,
}

impl<'a> Run<'a> {
    fn new(turn: &'a Turn) -> Self {
        Self {
            turn,
            said: String::new(),
            plan: Vec::new(),
            next_id: None,
            terminals: HashMap::new(),
            unanswered: Vec::new(),
            usage: None,
            meta: None,
            late: Vec::new(),
            with_end: 0,
            exit_after: None,
            updates: Vec::new(),
            update_bytes: 0,
            calls: 0,
            number: turn.session.with(|state| state.history.len()) + 1,
        }
    }

    pub(crate) fn agent(&self) -> &'a Arc<Agent> {
        &self.turn.agent
    }

    /// Sends an update, and keeps it for a replay.
    pub(crate) fn update(&mut self, update: Value) {
        let line = self.agent().update_line(&self.turn.session.id, &update);
        self.agent().out().line(&line);
        self.record(update, line.len());
    }

    /// Keeps an update that was sent otherwise. False once there is no more room.
    pub(crate) fn record(&mut self, update: Value, bytes: usize) -> bool {
        if self.updates.len() >= MAX_UPDATES || self.update_bytes + bytes > MAX_UPDATE_BYTES {
            return false;
        }
        self.update_bytes += bytes;
        self.updates.push(update);
        true
    }

    /// A message chunk.
    pub(crate) fn say(&mut self, text: &str) {
        if self.said.len() + text.len() <= MAX_UPDATE_BYTES {
            self.said.push_str(text);
        }
        self.update(message_chunk(text));
    }

    /// A message chunk of the form that tests look for.
    pub(crate) fn report(&mut self, name: &str, value: &str) {
        self.say(&format!("{name}: {value}\n"));
    }

    /// What Koda calls the prompt in its markers.
    pub(crate) fn prompt_id(&self) -> String {
        format!("prompt-{}", self.number)
    }

    /// A new tool call id, unique in the session.
    pub(crate) fn next_call(&mut self) -> String {
        self.calls += 1;
        format!("call-{}-{}", self.number, self.calls)
    }

    /// Sends the plan as it is.
    pub(crate) fn send_plan(&mut self) {
        let entries: Vec<Value> = self
            .plan
            .iter()
            .map(|(content, status)| json!({"content": content, "priority": "medium", "status": status}))
            .collect();
        self.update(json!({"sessionUpdate": "plan", "entries": entries}));
    }

    /// Completes the current plan entry and starts the next. False if there was nothing left.
    pub(crate) fn step_plan(&mut self) -> bool {
        let Some(current) = self.plan.iter().position(|(_, status)| *status != "completed") else {
            return false;
        };
        self.plan[current].1 = "completed";
        if let Some(next) = self.plan.get_mut(current + 1) {
            next.1 = "in_progress";
        }
        self.send_plan();
        true
    }

    fn into_stored(self, stop: &str) -> StoredTurn {
        StoredTurn {
            prompt: self.turn.prompt.clone(),
            updates: self.updates,
            text: self.said,
            stop: stop.to_owned(),
            entry: self.turn.entry.clone(),
            title: self.turn.session.with(|state| state.title.clone()),
            ended_at: clock::now(),
        }
    }
}

impl StoredTurn {
    /// A turn of which nothing is known but its end.
    pub(crate) fn empty(stop: &str) -> Self {
        Self {
            prompt: Vec::new(),
            updates: Vec::new(),
            text: String::new(),
            stop: stop.to_owned(),
            entry: None,
            title: None,
            ended_at: clock::now(),
        }
    }
}

/// An `agent_message_chunk`.
pub(crate) fn message_chunk(text: &str) -> Value {
    json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}})
}

/// Runs a turn in the calling thread.
pub(crate) fn run(turn: &Arc<Turn>) {
    let agent = &turn.agent;
    if agent.config.dialect == Dialect::Kandev {
        agent.write_answer(turn.id.clone(), &Ok(json!({"accepted": true})));
    }
    let mut run = Run::new(turn);
    let koda = agent.config.dialect == Dialect::Koda;
    let outcome = turn.signal.check().and_then(|()| {
        let text = turn.text();
        if koda {
            koda::before_turn(&mut run)?;
        }
        if script::is_script(&text) {
            script::run(&mut run, &text)?;
        } else {
            demo::run(&mut run, &text)?;
        }
        if koda {
            koda::subagents::boundary(&mut run)?;
        }
        Ok(())
    });
    let ending = outcome.err().unwrap_or_else(|| Halt::Stop("end_turn".to_owned()));
    let stop = match &ending {
        Halt::Cancelled => "cancelled",
        Halt::Stop(reason) => reason,
        Halt::Error(_) => "error",
    };
    if stop == "end_turn" && !run.plan.is_empty() {
        while run.step_plan() {}
    }
    let extra = (run.usage, run.meta.take());
    let with_end = (1..=run.with_end).map(|n| message_chunk(&format!("last {n}/{} ", run.with_end)));
    let with_end: Vec<Value> = with_end.collect();
    for update in &with_end {
        run.record(update.clone(), 0);
    }
    let exit_after = run.exit_after;
    let mut late = std::mem::take(&mut run.late);
    late.sort_by_key(|(after, _)| *after);
    let stored = run.into_stored(stop);
    if let Some(store) = &agent.store
        && let Err(e) = store.append(&turn.session.id, &stored)
    {
        complain(&format!(
            "a turn of session {} is not stored: {e}",
            turn.session.id
        ));
    }
    let summary: String = stored.text.chars().take(200).collect();
    // Free before the answer is out, since the next prompt may come right after it.
    let next = turn.session.finish(stored);
    agent.forget(&turn.signal);
    write_end(turn, &ending, &with_end, extra, &summary);
    if koda {
        // What ended too late for the turn.
        koda::subagents::deliver_if_idle(agent, &turn.session);
    }
    if let Some(next) = next {
        agent.start_turn(next);
    }
    let answered = Instant::now();
    for (after, text) in late {
        std::thread::sleep(after.saturating_sub(answered.elapsed()));
        agent
            .out()
            .line(&agent.update_line(&turn.session.id, &message_chunk(&text)));
    }
    if let Some(code) = exit_after {
        agent.out().exit(code);
    }
}

fn write_end(
    turn: &Turn,
    ending: &Halt,
    before: &[Value],
    (usage, meta): (Option<u64>, Option<Value>),
    summary: &str,
) {
    let agent = &turn.agent;
    let session = &turn.session.id;
    let mut lines = String::new();
    for update in before {
        lines.push_str(&agent.update_line(session, update));
        lines.push('\n');
    }
    if agent.config.dialect == Dialect::Kandev {
        lines.push_str(&kandev::end_line(session, ending, summary));
        agent.out().line(&lines);
        return;
    }
    let reason = match ending {
        Halt::Error(error) => {
            lines.push_str(&agent.answer_line(turn.id.clone(), &Err(error.clone())));
            return agent.out().line(&lines);
        }
        Halt::Cancelled => "cancelled",
        Halt::Stop(reason) => reason,
    };
    let mut result = json!({"stopReason": reason});
    if let Some(used) = usage {
        let output = used / 4;
        result["usage"] = json!({"totalTokens": used, "inputTokens": used - output, "outputTokens": output});
    }
    if let Some(meta) = meta {
        result["_meta"] = meta;
    }
    lines.push_str(&agent.answer_line(turn.id.clone(), &Ok(result)));
    agent.out().line(&lines);
}
