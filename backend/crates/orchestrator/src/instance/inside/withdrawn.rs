//! What the agent takes back (`$/cancel_request`).
//!
//! What only looks or waits is answered at once, and the helper is told to drop it; a terminal that was to be made is released.
//! What leaves traces is never begun if the helper has not been asked; else the helper says whether it was done, and the agent
//! is told so: an error there would be a lie about what is on the disk.

use kandev_acp::{Id, RpcError};
use kandev_runtime::helper::wire::{Reason, Reply, Request};

use super::super::actor::Actor;
use super::Open;
use super::op::Op;

/// As if the helper had said so.
pub(super) fn failed() -> Reply {
    Reply::Failed(Reason::Cancelled, String::new())
}

impl Actor {
    /// Takes back what was asked under this id; false if it is not open.
    pub(in crate::instance) fn withdraw_inside(&mut self, request: &Id) -> bool {
        let is_it = |open: &Open| open.request == *request && open.answered.is_none();
        let found = self.inside.open.iter().position(is_it);
        // Once the instance ends, it is abandoned like the others.
        let Some(at) = found.filter(|_| !self.inside.closed) else {
            return false;
        };
        let open = &mut self.inside.open[at];
        let (tag, asked) = (open.tag, open.recorded && self.inside.up.is_some());
        if let Op::Create { terminal, .. } = &open.op {
            let terminal = terminal.clone();
            let open = self.inside.open.remove(at);
            self.unmake_terminal(&terminal);
            self.answer_inside(open, Err(RpcError::request_cancelled()));
            return true;
        }
        open.withdrawn = true;
        let left_to_the_helper = asked && open.op.leaves_traces();
        if asked {
            self.inside.send(tag, Request::Cancel);
        }
        if !left_to_the_helper {
            self.replied(tag, failed());
        }
        true
    }
}
