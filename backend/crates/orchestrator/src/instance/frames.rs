//! Frames on their way to the agent.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use kandev_acp::writer::TrySendError;
use kandev_domain::LogLevel;
use serde_json::Value;
use tokio::time::Instant;

use super::actor::Actor;
use crate::outbox::Effect;

/// How long a frame may be on its way through an engine.
const JUST_NOW: Duration = Duration::from_secs(2);
/// How many frames are kept so long, and how many bytes beside the last one.
const JUST_WRITTEN: usize = 64;
const JUST_WRITTEN_BYTES: usize = 4 << 20;

/// Agents take answers and notices twice, but no requests.
fn is_request(frame: &[u8]) -> bool {
    let message: Value = serde_json::from_slice(frame).unwrap_or(Value::Null);
    message["method"].is_string() && !message["id"].is_null()
}

impl Actor {
    /// Lets a frame out to the agent, once this step is stored. Until it is known to be written, it is on record.
    pub(super) fn send(&mut self, frame: Bytes) {
        if self.is_taken_up() {
            // There is no way to the agent yet: it goes out with what another process left.
            return self.ambiguous.push(frame);
        }
        self.numbered += 1;
        self.unwritten.push_back((self.numbered, frame.clone()));
        self.outbox.effect(Effect::Write(frame));
    }

    /// The same for an answer that another process can make again: while it is known by its number, it is not on record. None
    /// if it is.
    pub(super) fn send_unrecorded(&mut self, frame: Bytes) -> Option<u64> {
        self.send(frame);
        (!self.is_taken_up()).then_some(self.numbered)
    }

    /// Frames that may not have reached the agent, but for those that can be made again.
    pub(super) fn recorded_frames(&self) -> impl Iterator<Item = &Bytes> {
        let unwritten = self.unwritten.iter();
        let recorded = unwritten.filter(|(number, _)| !self.inside.has_answered(*number));
        recorded.map(|(_, frame)| frame)
    }

    /// Lets a frame out before this step is stored, if every frame before it has been written. For what must reach an agent
    /// also while the database is away, and does no harm if the server dies before it is on record.
    pub(super) fn send_now(&mut self, frame: Bytes) {
        if self.link.is_none() || !self.unwritten.is_empty() {
            return self.send(frame);
        }
        self.numbered += 1;
        self.unwritten.push_back((self.numbered, frame.clone()));
        self.write(frame);
    }

    pub(super) fn were_written(&mut self, count: u64) {
        let count = self.written_before + count;
        while self.unwritten.front().is_some_and(|(number, _)| *number <= count) {
            let Some((number, frame)) = self.unwritten.pop_front() else {
                break;
            };
            if !self.inside.has_answered(number) && is_request(&frame) {
                continue;
            }
            let size = |kept: &VecDeque<(Instant, Bytes)>| kept.iter().map(|(_, f)| f.len()).sum::<usize>();
            while self.just_written.len() == JUST_WRITTEN || size(&self.just_written) > JUST_WRITTEN_BYTES {
                self.just_written.pop_front();
            }
            self.just_written.push_back((Instant::now(), frame));
        }
        self.inside.have_answers(count);
    }

    /// Frames that were written some time ago have arrived.
    pub(super) fn forget_written(&mut self) {
        let now = Instant::now();
        while self
            .just_written
            .front()
            .is_some_and(|(at, _)| *at + JUST_NOW <= now)
        {
            self.just_written.pop_front();
        }
    }

    /// When the next one has.
    pub(super) fn arrived_at(&self) -> Option<Instant> {
        self.just_written.front().map(|(at, _)| *at + JUST_NOW)
    }

    /// Of the frames that went to the old connection it is not known whether they arrived.
    pub(super) fn frames_broke(&mut self) {
        self.forget_written();
        let just = self.just_written.drain(..).map(|(_, frame)| frame);
        self.ambiguous.extend(just);
        let given = self.given;
        let reached = self.unwritten.partition_point(|(number, _)| *number <= given);
        let frames: Vec<Bytes> = self.unwritten.drain(..reached).map(|(_, frame)| frame).collect();
        self.ambiguous.extend(frames);
        self.inside.have_answers(given);
        self.unsent.clear();
    }

    /// There is no agent any more that they were for.
    pub(super) fn forget_frames(&mut self) {
        self.unsent.clear();
        self.unwritten.clear();
        self.just_written.clear();
        self.ambiguous.clear();
        self.resend_at = None;
        self.written_before = self.numbered;
        self.given = self.numbered;
        self.let_out = self.numbered;
    }

    /// The frames that were let out meanwhile go to the new one.
    pub(super) fn frames_go_on(&mut self) {
        self.written_before = self.given;
        let let_out = self.let_out;
        let waiting = self.unwritten.iter().take_while(|(number, _)| *number <= let_out);
        self.unsent = waiting.map(|(_, frame)| frame.clone()).collect();
    }

    /// Writes in order: once one frame waits, the following wait behind it.
    pub(super) fn write(&mut self, frame: Bytes) {
        self.let_out += 1;
        let Some(link) = &self.link else { return };
        if !self.unsent.is_empty() {
            self.unsent.push_back(frame);
            return;
        }
        match link.writer.try_send(frame) {
            Ok(()) => self.given += 1,
            Err(TrySendError::Full(frame)) => self.unsent.push_back(frame),
            // The agent closed its stdin or is gone; its exit, or the turn's time, will tell.
            Err(TrySendError::Closed(_)) => {
                self.log(
                    LogLevel::Warn,
                    "a frame could not be written: the agent's stdin is closed".to_owned(),
                );
            }
        }
    }
}
