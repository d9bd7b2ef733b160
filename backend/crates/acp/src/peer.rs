//! The JSON-RPC peer: which ids are open, what a line settles, how a frame is written.
//!
//! It does no I/O and keeps no tasks. The caller feeds it every line in order and writes the frames that it makes.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::id::Id;
use crate::message::{self, Message, NoiseReason, Params};
use crate::outgoing::{FrameError, call, respond_error};
use crate::rpc_error::{self, RpcError};

/// How many of our requests may be open at once.
pub const MAX_PENDING: usize = 1024;

/// What a line turned out to be. Borrows from the line where that saves a copy.
#[derive(Debug)]
pub enum Incoming<'a, T> {
    /// An answer to one of our requests, which is settled by it.
    Response {
        /// The request's id.
        id: u64,
        /// What the caller gave with it.
        tag: T,
        /// The agent's answer.
        outcome: Result<Box<RawValue>, RpcError>,
    },
    /// The agent asks; every one of these gets an answer.
    Request {
        /// To be echoed.
        id: Id,
        /// What for.
        method: Cow<'a, str>,
        /// The particulars.
        params: Option<Params<'a>>,
    },
    /// The agent tells.
    Notification {
        /// What about.
        method: Cow<'a, str>,
        /// The particulars.
        params: Option<Params<'a>>,
    },
    /// An answer that nothing waits for: late, repeated, or to no request at all.
    Unmatched {
        /// Its id, unless null.
        id: Option<Id>,
        /// Its error, if it is one.
        error: Option<RpcError>,
    },
    /// An array of messages; `reply` refuses it.
    Batch {
        /// The frame to send.
        reply: Bytes,
    },
    /// No message: a line of log.
    Noise(NoiseReason),
}

/// What must outlive the process, so that an answer still finds its request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot<T> {
    /// The id of the next request.
    pub next_id: u64,
    /// Open requests by id, ascending.
    pub pending: Vec<(u64, T)>,
}

/// One side of a conversation. `T` is what the caller wants back with an answer.
#[derive(Debug)]
pub struct Peer<T> {
    next_id: u64,
    pending: BTreeMap<u64, T>,
    lenient_ids: bool,
}

impl<T> Default for Peer<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Peer<T> {
    /// A fresh conversation. Its first request has id 1, since the seed's sample agent answers id 1 unasked.
    pub const fn new() -> Self {
        Self {
            next_id: 1,
            pending: BTreeMap::new(),
            lenient_ids: false,
        }
    }

    /// A conversation picked up again. Ids are never used twice, whatever `next_id` says.
    pub fn restore(next_id: u64, pending: impl IntoIterator<Item = (u64, T)>) -> Self {
        let mut peer = Self::new();
        peer.next_id = next_id.max(1);
        for (id, tag) in pending {
            peer.expect_response(id, tag);
        }
        peer
    }

    /// What [`restore`](Self::restore) needs.
    pub fn snapshot(&self) -> Snapshot<T>
    where
        T: Clone,
    {
        Snapshot {
            next_id: self.next_id,
            pending: self.pending.iter().map(|(id, tag)| (*id, tag.clone())).collect(),
        }
    }

    /// Whether an answer to `"2"` settles request 2. Shell agents echo ids as text, so this is on in the kandev
    /// dialect and before the dialect is known.
    pub const fn set_lenient_ids(&mut self, lenient: bool) {
        self.lenient_ids = lenient;
    }

    /// Makes a request and waits for its answer from now on, which may come before the frame is written.
    pub fn request(
        &mut self,
        tag: T,
        method: &str,
        params: &impl Serialize,
    ) -> Result<(u64, Bytes), FrameError> {
        if self.pending.len() >= MAX_PENDING {
            return Err(FrameError::TooManyPending);
        }
        let id = self.next_id;
        let frame = call(Some(id), method, params)?;
        self.expect_response(id, tag);
        Ok((id, frame))
    }

    /// Waits for the answer to a request that was made elsewhere, before a restart for one.
    pub fn expect_response(&mut self, id: u64, tag: T) {
        self.pending.insert(id, tag);
        self.next_id = self.next_id.max(id.saturating_add(1));
    }

    /// True while request `id` has no answer.
    pub fn is_pending(&self, id: u64) -> bool {
        self.pending.contains_key(&id)
    }

    /// What the requests are that have no answer, oldest first.
    pub fn pending(&self) -> impl Iterator<Item = &T> {
        self.pending.values()
    }

    /// How many requests have no answer.
    pub fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// Waits no longer for the answer to `id`; a late one is unmatched.
    pub fn forget(&mut self, id: u64) -> Option<T> {
        self.pending.remove(&id)
    }

    /// Takes everything pending, oldest first, to fail it when the agent is gone.
    pub fn drain(&mut self) -> Vec<(u64, T)> {
        std::mem::take(&mut self.pending).into_iter().collect()
    }

    /// Reads the next line, without its newline.
    pub fn receive<'a>(&mut self, line: &'a [u8]) -> Incoming<'a, T> {
        match message::parse(line) {
            Message::Request { id, method, params } => Incoming::Request { id, method, params },
            Message::Notification { method, params } => Incoming::Notification { method, params },
            Message::Response {
                id,
                outcome,
                versioned,
            } => self.settle(id, outcome, versioned),
            Message::Batch => Incoming::Batch {
                reply: respond_error(
                    None,
                    &RpcError::new(rpc_error::INVALID_REQUEST, "Batches are not supported"),
                ),
            },
            Message::Noise(reason) => Incoming::Noise(reason),
        }
    }

    fn settle<'a>(
        &mut self,
        id: Option<Id>,
        outcome: Result<&'a RawValue, RpcError>,
        versioned: bool,
    ) -> Incoming<'a, T> {
        let ours = id.as_ref().and_then(|id| self.our_id(id));
        if let Some((id, tag)) = ours.and_then(|id| self.pending.remove_entry(&id)) {
            return Incoming::Response {
                id,
                tag,
                outcome: outcome.map(ToOwned::to_owned),
            };
        }
        if !versioned {
            return Incoming::Noise(NoiseReason::NotAMessage);
        }
        Incoming::Unmatched {
            id,
            error: outcome.err(),
        }
    }

    fn our_id(&self, id: &Id) -> Option<u64> {
        let echoed = || id.as_str().filter(|_| self.lenient_ids)?.trim().parse().ok();
        id.as_u64().or_else(echoed)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::outgoing::{method_not_found, respond};

    fn ask(peer: &mut Peer<&'static str>, tag: &'static str) -> u64 {
        peer.request(tag, "m", &json!({})).unwrap().0
    }

    #[test]
    fn requests_are_numbered_from_one_and_are_one_line() {
        let mut peer = Peer::new();
        let (id, frame) = peer.request("a", "initialize", &json!({"x": "a\nb"})).unwrap();
        assert_eq!(id, 1);
        assert_eq!(
            frame,
            &b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{\"x\":\"a\\nb\"}}\n"[..]
        );
        assert_eq!(ask(&mut peer, "b"), 2);
    }

    #[test]
    fn only_the_true_answer_settles_a_request() {
        let mut peer = Peer::new();
        for tag in ["one", "two", "three"] {
            ask(&mut peer, tag);
        }
        for line in [
            "42",
            "[1]",
            r#"{"id":3,"level":"info"}"#,
            r#"{"jsonrpc":"2.0","id":null,"result":{}}"#,
            r#"{"jsonrpc":"2.0","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":"3","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":4,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":-3,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":[3],"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":3,"method":"fs/read_text_file"}"#,
        ] {
            assert!(
                !matches!(peer.receive(line.as_bytes()), Incoming::Response { .. }),
                "{line}"
            );
            assert!(peer.is_pending(3), "{line}");
        }
        let answer = br#"{"jsonrpc":"2.0","id":3,"result":{"ok":true}}"#;
        let Incoming::Response { id, tag, outcome } = peer.receive(answer) else {
            panic!()
        };
        assert_eq!((id, tag, outcome.unwrap().get()), (3, "three", r#"{"ok":true}"#));
        assert!(!peer.is_pending(3));
        assert!(matches!(
            peer.receive(answer),
            Incoming::Unmatched {
                id: Some(_),
                error: None
            }
        ));
    }

    #[test]
    fn an_answer_without_a_version_counts_only_if_awaited() {
        let mut peer = Peer::new();
        let line = br#"{"id":1,"result":{}}"#;
        assert!(matches!(
            peer.receive(line),
            Incoming::Noise(NoiseReason::NotAMessage)
        ));
        ask(&mut peer, "a");
        assert!(matches!(peer.receive(line), Incoming::Response { tag: "a", .. }));
    }

    #[test]
    fn ids_as_text_match_only_where_that_is_allowed() {
        let mut peer = Peer::new();
        ask(&mut peer, "a");
        let line = br#"{"jsonrpc":"2.0","id":"1","result":{}}"#;
        assert!(matches!(peer.receive(line), Incoming::Unmatched { .. }));
        peer.set_lenient_ids(true);
        assert!(matches!(peer.receive(line), Incoming::Response { tag: "a", .. }));
    }

    #[test]
    fn agent_ids_are_echoed_unchanged() {
        for id in [
            "0",
            r#""0""#,
            r#""""#,
            r#""a-1""#,
            "9007199254740993",
            "1.0",
            "18446744073709551617",
        ] {
            let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"x"}}"#);
            let mut peer = Peer::<()>::new();
            let Incoming::Request { id: read, method, .. } = peer.receive(line.as_bytes()) else {
                panic!()
            };
            let head = format!(r#"{{"jsonrpc":"2.0","id":{id},"#);
            for frame in [respond(&read, &json!({})), method_not_found(&read, &method)] {
                assert!(frame.starts_with(head.as_bytes()), "{frame:?}");
            }
        }
        let line = br#"{"jsonrpc":"2.0","id":null,"method":"x"}"#;
        assert!(matches!(
            Peer::<()>::new().receive(line),
            Incoming::Notification { .. }
        ));
    }

    #[test]
    fn errors_and_batches_are_answered_in_form() {
        let mut peer = Peer::<()>::new();
        let Incoming::Batch { reply } = peer.receive(br#"[{"jsonrpc":"2.0","id":1,"method":"x"}]"#) else {
            panic!()
        };
        let reply: Value = serde_json::from_slice(&reply).unwrap();
        assert_eq!(
            (&reply["id"], &reply["error"]["code"]),
            (&Value::Null, &json!(-32600))
        );
        let parse_error = br#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}"#;
        let Incoming::Unmatched { id: None, error } = peer.receive(parse_error) else {
            panic!()
        };
        assert_eq!(error.unwrap().code, rpc_error::PARSE_ERROR);
    }

    #[test]
    fn a_restored_peer_goes_on_where_the_old_one_was() {
        let mut peer = Peer::new();
        ask(&mut peer, "a");
        ask(&mut peer, "b");
        let Snapshot { next_id, pending } = peer.snapshot();
        let mut peer = Peer::restore(next_id, pending);
        let line = br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"auth"}}"#;
        let Incoming::Response {
            tag: "a", outcome, ..
        } = peer.receive(line)
        else {
            panic!()
        };
        assert!(outcome.unwrap_err().is_auth_required());
        assert_eq!(ask(&mut peer, "c"), 3);
        assert_eq!(peer.forget(3), Some("c"));
        assert_eq!(peer.drain(), [(2, "b")]);
        assert_eq!(ask(&mut Peer::restore(0, [(8, "old")]), "new"), 9);
    }

    #[test]
    fn pending_requests_are_bounded() {
        let mut peer = Peer::new();
        for _ in 0..MAX_PENDING {
            ask(&mut peer, "x");
        }
        assert!(matches!(
            peer.request("y", "m", &json!({})),
            Err(FrameError::TooManyPending)
        ));
        peer.forget(1);
        assert_eq!(ask(&mut peer, "z"), MAX_PENDING as u64 + 1);
    }
}
