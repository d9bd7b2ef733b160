//! What is common to requests that wait for a caller: permissions and elicitations.

use kandev_acp::{Id, RpcError, outgoing};
use kandev_domain::{DecidedBy, LogLevel, TurnId};
use serde::Serialize;
use tokio::time::Instant;

use super::actor::{Actor, Phase};

impl Actor {
    /// How many wait.
    pub(super) const fn asking(&self) -> usize {
        self.permissions.open_count() + self.elicitations.open_count()
    }

    /// Whether a request under this id waits already; then there will be one answer to both.
    pub(super) fn asks_again(&mut self, request: &Id) -> bool {
        let again = self.permissions.is_open(request) || self.elicitations.is_open(request);
        if again {
            let text = format!(
                "the agent asks again under the id {request} of an open request; there will be one answer"
            );
            self.log(LogLevel::Warn, text);
        }
        again
    }

    /// Lets the answer to such a request out, if the agent can still hear it.
    pub(super) fn answer_request(&mut self, request: &Id, by: DecidedBy, result: &impl Serialize) {
        let hears = match self.phase {
            Phase::Handshaking | Phase::Ready => self.link.as_ref().is_some_and(|link| !link.ended),
            Phase::Reconnecting(_) => true,
            _ => false,
        };
        if hears {
            self.send(if by == DecidedBy::Agent {
                outgoing::respond_error(Some(request), &RpcError::request_cancelled())
            } else {
                outgoing::respond(request, result)
            });
        }
        if self.asking() > 0 {
            return;
        }
        if self.idle_since.is_some() {
            self.idle_since = Some(Instant::now());
        }
        if self.handshake_until.is_some() {
            self.handshake_until = Some(Instant::now() + self.shared.settings.handshake_timeout);
        }
    }

    /// Nobody will answer them any more.
    pub(super) fn cancel_requests(&mut self, by: DecidedBy) {
        self.cancel_permissions(None, by);
        self.cancel_elicitations(None, by);
    }

    /// Those that a turn left open.
    pub(super) fn cancel_requests_of(&mut self, turn: TurnId) {
        self.cancel_permissions(Some(turn), DecidedBy::TurnEnd);
        self.cancel_elicitations(Some(turn), DecidedBy::TurnEnd);
    }
}
