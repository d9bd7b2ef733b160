//! The peer under any answers: each request is settled once, and ids come back as they were written.

use kandev_acp::{Id, Incoming, Peer, outgoing};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::json;

/// Ids as agents may write them, beyond what a float or 64 bits hold.
fn id() -> impl Strategy<Value = String> {
    let spelled = prop_oneof![
        Just("9007199254740993".to_owned()),
        Just("-9007199254740993".to_owned()),
        Just("18446744073709551616".to_owned()),
        Just("1e400".to_owned()),
        Just("-0".to_owned()),
        Just("1.0".to_owned()),
        Just(r#""""#.to_owned()),
        Just(r#""\ud800""#.to_owned()),
        Just(r#""\u0000\/""#.to_owned()),
    ];
    let number = any::<i128>().prop_map(|n| n.to_string());
    let small = (-5i64..5).prop_map(|n| n.to_string());
    let digits = "[1-9][0-9]{0,60}(\\.[0-9]{1,30})?([eE][+-]?[0-9]{1,4})?";
    let text = any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap());
    prop_oneof![spelled, number, small, digits, text]
}

fn asks(peer: &mut Peer<()>, id: &str) -> Id {
    let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"fs/read_text_file","params":{{}}}}"#);
    match peer.receive(line.as_bytes()) {
        Incoming::Request { id, .. } => id,
        other => panic!("{other:?}"),
    }
}

/// How an answer names the request that it belongs to.
#[derive(Debug, Clone)]
enum Naming {
    Number,
    Float,
    Text,
    Null,
    Other(u64),
}

fn naming() -> impl Strategy<Value = Naming> {
    prop_oneof![
        6 => Just(Naming::Number),
        1 => Just(Naming::Float),
        1 => Just(Naming::Text),
        1 => Just(Naming::Null),
        1 => any::<u64>().prop_map(Naming::Other),
    ]
}

#[derive(Debug, Clone)]
enum Step {
    Ask,
    /// An answer to one of those that were asked, settled or not.
    Answer(Index, Naming, bool),
    Forget(Index),
    /// The process ends and another one goes on.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Ask),
        6 => (any::<Index>(), naming(), any::<bool>()).prop_map(|(i, n, e)| Step::Answer(i, n, e)),
        1 => any::<Index>().prop_map(Step::Forget),
        1 => Just(Step::Restart),
    ]
}

/// The line, and the id that it names in numbers.
fn answer(id: u64, naming: &Naming, error: bool) -> (String, Option<u64>) {
    let (written, named) = match naming {
        Naming::Number => (id.to_string(), Some(id)),
        Naming::Float => (format!("{id}.0"), Some(id)),
        Naming::Text => (format!("\"{id}\""), None),
        Naming::Null => ("null".to_owned(), None),
        Naming::Other(other) => (other.to_string(), Some(*other)),
    };
    let outcome = if error {
        r#""error":{"code":-32000,"message":"no"}"#
    } else {
        r#""result":{}"#
    };
    (format!(r#"{{"jsonrpc":"2.0",{outcome},"id":{written}}}"#), named)
}

proptest! {
    #[test]
    fn ids_are_echoed_as_they_were_written(id in id()) {
        let mut peer = Peer::<()>::new();
        let read = asks(&mut peer, &id);
        let head = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},");
        for frame in [
            outgoing::respond(&read, &json!({"content": ""})),
            outgoing::method_not_found(&read, "x"),
        ] {
            prop_assert!(frame.starts_with(head.as_bytes()), "{frame:?}");
        }
        // As it is stored for an answer that is given after a restart.
        let stored = serde_json::to_string(&read).unwrap();
        prop_assert_eq!(&stored, &id);
        let restored: Id = serde_json::from_str(&stored).unwrap();
        prop_assert_eq!(&restored, &read);
        prop_assert_eq!(outgoing::respond(&restored, &json!(1)), outgoing::respond(&read, &json!(1)));
    }

    #[test]
    fn different_integers_are_different_ids(a in any::<i128>(), b in any::<i128>()) {
        let mut peer = Peer::<()>::new();
        let read = |peer: &mut Peer<()>, n: i128| asks(peer, &n.to_string());
        prop_assert_eq!(read(&mut peer, a) == read(&mut peer, b), a == b);
        prop_assert_ne!(read(&mut peer, a), read(&mut peer, a ^ 1));
        prop_assert_ne!(read(&mut peer, a), asks(&mut peer, &format!("\"{a}\"")));
    }

    #[test]
    fn a_request_is_settled_once_whatever_comes_and_in_whatever_order(
        steps in prop::collection::vec(step(), 0..80),
        lenient in any::<bool>(),
    ) {
        let mut peer: Peer<String> = Peer::new();
        peer.set_lenient_ids(lenient);
        let mut asked: Vec<u64> = Vec::new();
        let mut open: Vec<u64> = Vec::new();
        for step in steps {
            match step {
                Step::Ask => {
                    let tag = format!("tag {}", asked.len() + 1);
                    let (id, frame) = peer.request(tag, "m", &json!({})).unwrap();
                    let head = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\"");
                    prop_assert!(frame.starts_with(head.as_bytes()));
                    prop_assert!(!asked.contains(&id), "an id was used twice");
                    asked.push(id);
                    open.push(id);
                }
                Step::Answer(index, naming, error) if !asked.is_empty() => {
                    let id = asked[index.index(asked.len())];
                    let (line, named) = answer(id, &naming, error);
                    let expected = match naming {
                        Naming::Text if lenient => Some(id),
                        _ => named,
                    };
                    let expected = expected.filter(|id| open.contains(id));
                    match (peer.receive(line.as_bytes()), expected) {
                        (Incoming::Response { id, tag, outcome }, Some(expected)) => {
                            prop_assert_eq!(id, expected);
                            prop_assert_eq!(tag, format!("tag {id}"));
                            prop_assert_eq!(outcome.is_err(), error);
                            open.retain(|open| *open != id);
                        }
                        (Incoming::Unmatched { id, error: found }, None) => {
                            prop_assert_eq!(id.is_none(), matches!(naming, Naming::Null));
                            prop_assert_eq!(found.is_some(), error);
                        }
                        (got, expected) => prop_assert!(false, "{got:?}, not {expected:?}"),
                    }
                }
                Step::Forget(index) if !asked.is_empty() => {
                    let id = asked[index.index(asked.len())];
                    prop_assert_eq!(peer.forget(id).is_some(), open.contains(&id));
                    open.retain(|open| *open != id);
                }
                Step::Restart => {
                    let stored = serde_json::to_string(&peer.snapshot()).unwrap();
                    let snapshot: kandev_acp::peer::Snapshot<String> = serde_json::from_str(&stored).unwrap();
                    peer = Peer::restore(snapshot.next_id, snapshot.pending);
                    peer.set_lenient_ids(lenient);
                }
                Step::Answer(..) | Step::Forget(_) => {}
            }
            prop_assert_eq!(peer.pending_len(), open.len());
            prop_assert!(open.iter().all(|id| peer.is_pending(*id)));
        }
        let left: Vec<u64> = peer.drain().into_iter().map(|(id, _)| id).collect();
        prop_assert_eq!(left, open);
    }
}
