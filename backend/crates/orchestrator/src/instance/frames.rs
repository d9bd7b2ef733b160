//! Frames on their way to the agent.

use bytes::Bytes;
use kandev_acp::writer::TrySendError;
use kandev_domain::LogLevel;

use super::actor::Actor;
use crate::outbox::Effect;

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
        while self.unwritten.front().is_some_and(|(number, _)| *number <= count) {
            self.unwritten.pop_front();
        }
    }

    /// Writes in order: once one frame waits, the following wait behind it.
    pub(super) fn write(&mut self, frame: Bytes) {
        let Some(link) = &self.link else { return };
        if !self.unsent.is_empty() {
            self.unsent.push_back(frame);
            return;
        }
        match link.writer.try_send(frame) {
            Ok(()) => {}
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
