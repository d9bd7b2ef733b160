//! What a line of output means.

use std::time::SystemTime;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use kandev_acp::client_methods::cancelled_request;
use kandev_acp::{Dialect, Effect as Said, Id, Incoming, KandevState, Line, RpcError, outgoing, read_update};
use kandev_domain::{EventKind, LogLevel, LogStream};
use kandev_runtime::{Channel, RuntimeError};
use kandev_store::record::{Data, Record, Source};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::actor::{Actor, Phase};
use super::catch_up::Gap;
use super::handshake::{Call, HISTORY};
use super::state;

impl Actor {
    /// The next line of the agent's.
    pub(super) fn line(&mut self, channel: Channel, line: Line) {
        let source = self.outbox.count(channel);
        let (Line::Complete(text) | Line::Oversized { prefix: text }) = &line;
        self.head.see(channel, text);
        match (channel, line) {
            (Channel::Stderr, Line::Complete(line) | Line::Oversized { prefix: line }) => {
                let text = String::from_utf8_lossy(&line);
                let level = LogLevel::guess(&text);
                self.stderr_tail.push(text.trim_end_matches('\r'));
                self.log_line(source, LogStream::Stderr, level, line);
            }
            (Channel::Stdout, Line::Oversized { prefix }) => {
                let limit = self.shared.settings.max_line_bytes;
                let message =
                    format!("a line of stdout is longer than {limit} bytes; only its beginning is kept");
                tracing::warn!("{message}");
                let data = json!({"code": "protocol_error", "message": message, "limit": limit});
                self.record(source, EventKind::Error, prefix, data_of(&data));
            }
            (Channel::Stdout, Line::Complete(line)) => self.stdout_line(source, line),
        }
    }

    fn stdout_line(&mut self, source: Source, line: Bytes) {
        if self.is_legacy() {
            return self.legacy_line(source, line);
        }
        // The line is borrowed from a handle of its own, so that it can be stored by the same step.
        let text = line.clone();
        match self.peer.receive(&text) {
            Incoming::Notification { method, params } if method == "session/update" => match params {
                Some(params) => self.update(source, line, params.raw, params.range),
                None => self.message(source, line),
            },
            Incoming::Notification { method, params } if method == "$/cancel_request" => {
                self.message(source, line);
                if let Some(request) = params.and_then(|params| cancelled_request(params.raw)) {
                    self.withdraw(&request);
                }
            }
            Incoming::Notification { method, params } if method == "elicitation/complete" => {
                self.elicitation_completed(source, line, params.as_ref().map(|params| params.raw));
            }
            Incoming::Notification { .. } | Incoming::Unmatched { .. } => self.message(source, line),
            Incoming::Response { id, tag, outcome } => {
                self.message(source, line);
                self.answered(id, tag, outcome);
            }
            Incoming::Request { id, method, params } => {
                let params = params.as_ref().map(|p| (p.raw, p.range.clone()));
                self.request(source, line, &id, &method, params);
            }
            Incoming::Batch { reply } => {
                self.message(source, line);
                self.send(reply);
            }
            Incoming::Noise(_) => self.noise(source, line),
        }
    }

    /// A line that is no message.
    pub(super) fn noise(&mut self, source: Source, line: Bytes) {
        let level = LogLevel::guess(&String::from_utf8_lossy(&line[..line.len().min(256)]));
        self.log_line(source, LogStream::Stdout, level, line);
    }

    pub(super) fn record(&mut self, source: Source, kind: EventKind, line: Bytes, data: Data) {
        let context = self.context();
        self.outbox.record(Record {
            at: self.shared.clock.now(),
            kind,
            session_id: context.session_id,
            turn_id: context.turn_id,
            source: Some(source),
            line,
            data,
        });
    }

    /// A frame that has no kind of its own.
    pub(super) fn message(&mut self, source: Source, line: Bytes) {
        let whole = trimmed(&line);
        self.record(source, EventKind::Message, line, Data::Slice(whole));
    }

    fn log_line(&mut self, source: Source, stream: LogStream, level: LogLevel, line: Bytes) {
        let line = if line.ends_with(b"\r") {
            line.slice(..line.len() - 1)
        } else {
            line
        };
        self.record(source, EventKind::Log, line, Data::Log { stream, level });
    }

    /// Whether an update is of a history that is in the database already. What a load brings is, whatever its kind.
    fn is_replayed(&mut self, kind: Option<&str>) -> bool {
        let handshaking = matches!(self.phase, Phase::Handshaking);
        let Some(replay) = self.replay.as_mut().filter(|_| handshaking) else {
            return false;
        };
        let is = kind.map_or(!replay.silent, |kind| HISTORY.contains(&kind));
        replay.updates += u64::from(is);
        is
    }

    fn update(&mut self, source: Source, line: Bytes, params: &RawValue, range: std::ops::Range<usize>) {
        if self.is_replayed(None) {
            // The history is in the database already. What the session is now need not be.
            return self.replayed(params);
        }
        let dialect = self.agent.as_ref().map_or(Dialect::Acp, |a| a.dialect);
        let update = read_update(dialect, &mut self.kandev, params);
        if self.is_replayed(Some(&update.kind)) {
            return;
        }
        let data = match &update.mapped {
            Some(mapped) => Data::Json(mapped.clone()),
            None => Data::Slice(range),
        };
        let mut context = self.context();
        if let Some(session) = &update.session_id {
            context.session_id = Some(session.as_ref().to_owned());
        }
        // The end of a turn is not something that it said.
        if let Some(running) = &mut self.turns.running
            && !matches!(update.effect, Said::TurnEnd(_))
        {
            running.updates += 1;
        }
        self.outbox.record(Record {
            at: self.shared.clock.now(),
            kind: EventKind::Update,
            session_id: context.session_id,
            turn_id: context.turn_id,
            source: Some(source),
            line,
            data,
        });
        if let Some(percent) = update.progress {
            self.outbox.patch(|p| p.progress = Some(percent));
        }
        // What an agent says of another session, a subagent's say, is stored, but does not change what is known of this one.
        let own = self.session.as_ref().map(|s| s.id.as_str());
        let foreign = own.is_some_and(|own| update.session_id.as_deref().is_some_and(|named| named != own));
        if !foreign || matches!(update.effect, Said::TurnEnd(_)) {
            return self.keep(update.effect);
        }
        // But of its own branches it is known which they are.
        let branch = update.session_id.as_deref().and_then(|id| self.branches.get(id));
        if let Some(key) = branch.copied() {
            for (facet, value) in state::facets_of(&update.effect) {
                self.facet_of(key, facet, &value);
            }
        }
    }

    fn keep(&mut self, said: Said<'_>) {
        for (facet, value) in state::facets_of(&said) {
            self.facet(facet, &value);
        }
        match said {
            Said::Plan { completed, total, .. } => {
                if let Some(percent) = (completed * 100).checked_div(total) {
                    self.outbox.patch(|p| p.progress = Some(percent.min(100) as u8));
                }
            }
            Said::Usage(usage) => self.was_used(usage),
            Said::Mode(mode) => self.chosen.mode = Some(mode.to_string()),
            Said::ConfigOptions(options) => self.chosen.see_options(options),
            Said::ToolCall { id, kind } => self.permissions.note_kind(&id, kind),
            Said::Subagent(subagent) => self.keep_subagent(*subagent),
            Said::TurnEnd(end) => self.turn_ended_by_update(end),
            Said::State {
                name: "subagent_turn",
                value,
            } => self.see_own_turn(value),
            Said::None | Said::AgentText(_) | Said::Commands(_) | Said::Info { .. } | Said::State { .. } => {}
        }
    }

    /// An update of a history that is sent again: only what the session is now counts, and not what a turn did in it.
    fn replayed(&mut self, params: &RawValue) {
        let update = read_update(Dialect::Acp, &mut KandevState::default(), params);
        if let said @ (Said::Mode(_)
        | Said::ConfigOptions(_)
        | Said::Commands(_)
        | Said::Usage(_)
        | Said::Subagent(_)
        | Said::State { .. }
        | Said::Info { .. }) = update.effect
        {
            self.keep(said);
        }
    }

    pub(super) fn facet_value(&mut self, facet: &'static str, value: &Value) {
        if let Ok(raw) = serde_json::value::to_raw_value(value) {
            self.facet(facet, &raw);
        }
    }

    /// Every request gets an answer.
    fn request(
        &mut self,
        source: Source,
        line: Bytes,
        id: &Id,
        method: &str,
        params: Option<(&RawValue, std::ops::Range<usize>)>,
    ) {
        match (method, params) {
            ("session/request_permission", Some((params, _))) => {
                self.permission_asked(source, line, id, params);
            }
            ("elicitation/create", Some((params, _))) => {
                self.elicitation_asked(source, line, id, params);
            }
            ("session/request_permission" | "elicitation/create", None) => {
                self.message(source, line);
                let error = RpcError::new(kandev_acp::rpc_error::INVALID_PARAMS, "params are missing");
                self.send(outgoing::respond_error(Some(id), &error));
            }
            (_, params) => {
                if !self.asked_inside(source, &line, id, method, params.map(|(params, _)| params)) {
                    self.message(source, line);
                    self.send(outgoing::method_not_found(id, method));
                }
            }
        }
    }

    /// The agent wants nothing more of what it asked. What has its answer, or was never asked, is left as it is.
    fn withdraw(&mut self, request: &Id) {
        let was_open = self.withdraw_permission(request)
            || self.withdraw_elicitation(request)
            || self.withdraw_inside(request);
        if !was_open {
            tracing::debug!(%request, "the agent takes back what is not open");
        }
    }

    /// The engine's log could not give everything.
    pub(super) fn output_is_missing(&mut self, gap: Gap) {
        let time = |at: Option<SystemTime>| at.map(DateTime::<Utc>::from);
        let stored = self.outbox.lines();
        let (reason, mut data) = match gap {
            Gap::Rotated {
                log_begins,
                stored_until,
            } => (
                "the engine's log has lost lines that are not stored: it was rotated away",
                json!({
                    "stored_lines": {"stdout": stored.stdout, "stderr": stored.stderr},
                    "stored_until": time(stored_until), "log_begins_at": time(log_begins),
                }),
            ),
            Gap::Short { .. } => (
                "the engine's log has less than is stored: lines may be missing here",
                json!({"stored_lines": {"stdout": stored.stdout, "stderr": stored.stderr}}),
            ),
            Gap::Torn { .. } => (
                "the engine ended before it could log all output: lines are missing here",
                json!({"stored_lines": {"stdout": stored.stdout, "stderr": stored.stderr}}),
            ),
            Gap::Characters { channel, characters } => (
                "the engine's log has spoilt characters of a long line",
                json!({
                    "stream": match channel { Channel::Stdout => LogStream::Stdout, Channel::Stderr => LogStream::Stderr },
                    "line": match channel { Channel::Stdout => stored.stdout, Channel::Stderr => stored.stderr },
                    "characters": characters,
                }),
            ),
        };
        if let Gap::Short { channel, shift } | Gap::Torn { channel, shift } = gap {
            self.shifts.set(channel, shift);
            self.breaks.was_told();
        }
        self.log(LogLevel::Error, reason.to_owned());
        data["reason"] = json!(reason);
        self.event(EventKind::Gap, &data);
    }

    /// The pipes closed, or the connection to the engine broke.
    pub(super) fn output_ended(&mut self, error: Option<RuntimeError>, rest: Vec<(Channel, Line)>) {
        let mut from_log = false;
        if let Some(link) = &mut self.link {
            link.ended = true;
            link.rest = rest;
            from_log = link.from_log;
        }
        if let Some(error) = &error {
            self.log(
                LogLevel::Warn,
                format!("the container's output broke off: {error}"),
            );
        }
        if !matches!(self.phase, Phase::Draining { .. }) {
            return self.expect_exit_or_break(error.is_some());
        }
        if let Some(error) = error {
            if (from_log || self.exit_status.is_some()) && error.is_transient() {
                return self.read_rest_later();
            }
            let error = error.to_string();
            self.event(
                EventKind::Gap,
                &json!({"reason": "the connection to the container broke", "error": error}),
            );
        }
        self.take_half_lines();
        self.conclude();
    }

    /// What stood at the end without a newline is a line, now that it is known that nothing follows.
    pub(super) fn take_half_lines(&mut self) {
        let rest = self.link.as_mut().map(|link| std::mem::take(&mut link.rest));
        for (channel, line) in rest.unwrap_or_default() {
            self.line(channel, line);
        }
    }

    /// Fails what the agent will not answer any more.
    pub(super) fn forget_calls(&mut self) {
        self.refuse_asks();
        let pending: Vec<(u64, Call)> = self.peer.drain();
        if !pending.is_empty() {
            tracing::debug!(count = pending.len(), "requests without an answer");
        }
    }
}

fn data_of(value: &Value) -> Data {
    Data::Json(super::raw(value))
}

/// The part of a line that is JSON.
fn trimmed(line: &[u8]) -> std::ops::Range<usize> {
    let start = line.iter().position(|b| !b.is_ascii_whitespace()).unwrap_or(0);
    let end = line
        .iter()
        .rposition(|b| !b.is_ascii_whitespace())
        .map_or(start, |last| last + 1);
    start..end
}
