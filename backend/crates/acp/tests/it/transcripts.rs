//! Recorded conversations of real agents, replayed: every frame of theirs is understood and none is lost.

use std::collections::{BTreeMap, BTreeSet};

use kandev_acp::dialect::{
    Negotiated, NegotiationError, PromptOutcome, SessionMethods, negotiate, prompt_outcome,
    session_established,
};
use kandev_acp::permission::{Choice, PermissionRequest, choose};
use kandev_acp::rpc_error::PARSE_ERROR;
use kandev_acp::{Dialect, Effect, Id, Incoming, KandevState, Line, LineDecoder, Peer, read_update};
use kandev_domain::agent_type::Protocol;
use kandev_domain::status::PermissionPolicy;
use serde_json::Value;

/// What one conversation contained.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    agent_frames: usize,
    updates: usize,
    agent_requests: usize,
    responses: usize,
    /// Answers to the recorder's malformed line.
    parse_errors: usize,
    handshakes: usize,
    /// Answers that speak another version, since the recorder asked for it.
    other_versions: usize,
    sessions: usize,
    turns: usize,
    failed_turns: usize,
    permissions: usize,
    plans: usize,
    usages: usize,
    titles: usize,
    mode_changes: usize,
    text: usize,
    unanswered: usize,
}

/// One process of the agent, and the recorder's side of the conversation with it.
#[derive(Default)]
struct Process {
    peer: Peer<String>,
    stdout: LineDecoder,
    kandev: KandevState,
    /// The agent's requests that were not answered yet.
    asked: BTreeSet<String>,
    negotiated: Option<Negotiated>,
}

impl Process {
    fn client_says(&mut self, frame: &str) {
        let Ok(frame) = serde_json::from_str::<Value>(frame) else {
            assert!(
                frame.contains("777"),
                "only one line is malformed, on purpose: {frame}"
            );
            return;
        };
        match (&frame["method"], &frame["id"]) {
            (Value::String(method), Value::Number(id)) => {
                self.peer.expect_response(id.as_u64().unwrap(), method.clone());
            }
            (Value::String(method), _) => assert_eq!(method, "session/cancel"),
            (_, id) => assert!(
                self.asked.remove(&id.to_string()),
                "an answer to an unseen request {id}"
            ),
        }
    }

    fn agent_says(&mut self, frame: &str, tally: &mut Tally) {
        let bytes = format!("{frame}\n").into_bytes();
        let lines = self.stdout.push(bytes.into());
        let [Line::Complete(line)] = &lines[..] else {
            panic!("{lines:?}")
        };
        tally.agent_frames += 1;
        match self.peer.receive(line) {
            Incoming::Notification { method, params } => {
                assert_eq!(method, "session/update");
                let params = params.unwrap();
                assert_eq!(&line[params.range.clone()], params.raw.get().as_bytes());
                tally.updates += 1;
                let update = read_update(Dialect::Acp, &mut self.kandev, params.raw);
                assert!(update.session_id.is_some() && !update.kind.is_empty() && update.mapped.is_none());
                let official: Value = serde_json::from_str(params.raw.get()).unwrap();
                assert_eq!(official["update"]["sessionUpdate"], *update.kind);
                match update.effect {
                    Effect::AgentText(text) => {
                        assert_eq!(official["update"]["content"]["text"], *text);
                        tally.text += text.len();
                    }
                    Effect::Plan { completed, total, .. } => {
                        assert!(completed <= total && total > 0);
                        tally.plans += 1;
                    }
                    Effect::Usage(_) => tally.usages += 1,
                    Effect::Info { title: Some(_), .. } => tally.titles += 1,
                    Effect::Mode(_) => tally.mode_changes += 1,
                    Effect::Commands(_)
                    | Effect::ConfigOptions(_)
                    | Effect::Info { .. }
                    | Effect::ToolCall { .. }
                    | Effect::None => {}
                    odd @ (Effect::Subagent(_) | Effect::State { .. } | Effect::TurnEnd(_)) => {
                        panic!("{odd:?}")
                    }
                }
            }
            Incoming::Request { id, method, params } => {
                tally.agent_requests += 1;
                assert!(self.asked.insert(same_as_recorded(&id)), "asked twice: {id}");
                if method == "session/request_permission" {
                    let raw = params.unwrap().raw;
                    let request = PermissionRequest::read(raw);
                    assert!(
                        request.call_id.is_some() && request.title.is_some(),
                        "{}",
                        raw.get()
                    );
                    for policy in [PermissionPolicy::Allow, PermissionPolicy::Reject] {
                        assert!(
                            matches!(choose(policy, &request.options), Some(Choice::Selected(_))),
                            "{}",
                            raw.get()
                        );
                    }
                    tally.permissions += 1;
                }
            }
            Incoming::Response { tag, outcome, .. } => {
                tally.responses += 1;
                match (tag.as_str(), outcome) {
                    ("initialize", outcome) => match negotiate(Protocol::Auto, &outcome.unwrap()) {
                        Ok(negotiated) => {
                            assert_eq!(negotiated.dialect, Dialect::Acp);
                            self.negotiated = Some(negotiated);
                            tally.handshakes += 1;
                        }
                        Err(error) => {
                            assert!(
                                matches!(error, NegotiationError::UnsupportedVersion { .. }),
                                "{error}"
                            );
                            tally.other_versions += 1;
                        }
                    },
                    ("session/new", Ok(result)) => {
                        assert!(session_established(Dialect::Acp, &result).session_id.is_some());
                        tally.sessions += 1;
                    }
                    ("session/prompt", outcome) => match prompt_outcome(Dialect::Acp, outcome) {
                        PromptOutcome::Ended { stop_reason, .. } => {
                            assert!(["end_turn", "cancelled", "refusal"].contains(&&*stop_reason));
                            tally.turns += 1;
                        }
                        PromptOutcome::Failed(_) => tally.failed_turns += 1,
                        PromptOutcome::Accepted => panic!("not in this dialect"),
                    },
                    _ => {}
                }
            }
            Incoming::Unmatched { id, error } => {
                assert_eq!((id, error.map(|e| e.code)), (None, Some(PARSE_ERROR)), "{frame}");
                tally.parse_errors += 1;
            }
            Incoming::Batch { .. } => panic!("{frame}"),
            Incoming::Noise(reason) => panic!("{reason:?}: {frame}"),
        }
    }
}

fn same_as_recorded(id: &Id) -> String {
    serde_json::to_string(id).unwrap()
}

fn replay(transcript: &str) -> (Tally, Vec<Negotiated>) {
    let mut tally = Tally::default();
    let mut processes = BTreeMap::<&str, Process>::new();
    for line in transcript.lines() {
        let (head, frame) = line.split_once(' ').unwrap();
        let (number, direction) = head.split_at(head.len() - 1);
        let process = processes.entry(number).or_default();
        match direction {
            ">" => process.client_says(frame),
            "<" => process.agent_says(frame, &mut tally),
            _ => panic!("{head}"),
        }
    }
    let mut negotiated = Vec::new();
    for process in processes.into_values() {
        let mut process = process;
        assert_eq!(process.stdout.finish(), None);
        assert!(process.asked.is_empty(), "the recorder answered all");
        tally.unanswered += process.peer.drain().len();
        negotiated.extend(process.negotiated);
    }
    (tally, negotiated)
}

#[test]
fn codex_zed() {
    let (tally, negotiated) = replay(include_str!("../fixtures/codex-zed.txt"));
    assert_eq!(
        tally,
        Tally {
            agent_frames: 230,
            updates: 186,
            agent_requests: 5,
            responses: 38,
            parse_errors: 1,
            handshakes: 6,
            sessions: 4,
            turns: 17,
            failed_turns: 2,
            permissions: 5,
            plans: 1,
            usages: 22,
            text: 2749,
            unanswered: 1,
            ..Tally::default()
        }
    );
    let SessionMethods {
        load,
        resume,
        list,
        close,
        fork,
        delete,
        additional_directories: _,
    } = negotiated[0].session;
    assert_eq!(
        [load, resume, list, close, fork, delete],
        [true, true, true, true, false, false]
    );
    assert!(negotiated[0].prompt.image && !negotiated[0].prompt.audio && negotiated[0].mcp.http);
    assert!(negotiated[0].auth_methods.iter().any(|m| m.id == "chatgpt"));
}

#[test]
fn fast_agent_passthrough() {
    let (tally, negotiated) = replay(include_str!("../fixtures/fast-agent-passthrough.txt"));
    assert_eq!(
        tally,
        Tally {
            agent_frames: 151,
            updates: 113,
            responses: 38,
            handshakes: 3,
            other_versions: 3,
            sessions: 4,
            turns: 20,
            titles: 4,
            text: 1964,
            ..Tally::default()
        }
    );
    assert!(negotiated[0].session.load && negotiated[0].agent_info.is_some());
}

#[test]
fn kimi_code() {
    let (tally, negotiated) = replay(include_str!("../fixtures/kimi-code.txt"));
    assert_eq!(
        tally,
        Tally {
            agent_frames: 326,
            updates: 230,
            agent_requests: 54,
            responses: 42,
            handshakes: 6,
            sessions: 3,
            turns: 18,
            failed_turns: 2,
            permissions: 4,
            plans: 1,
            usages: 18,
            titles: 2,
            mode_changes: 2,
            text: 1334,
            ..Tally::default()
        }
    );
    assert!(negotiated[0].session.fork && negotiated[0].session.delete && negotiated[0].mcp.sse);
    assert_eq!(negotiated[0].auth_methods[0].id, "login");
}

#[test]
fn py_sdk_example() {
    let (tally, negotiated) = replay(include_str!("../fixtures/py-sdk-example.txt"));
    assert_eq!(
        tally,
        Tally {
            agent_frames: 66,
            updates: 37,
            responses: 29,
            handshakes: 4,
            sessions: 4,
            turns: 18,
            text: 821,
            ..Tally::default()
        }
    );
    assert!(negotiated[0].auth_methods.is_empty() && negotiated[0].agent_info.is_some());
}

#[test]
fn ts_sdk_example() {
    let (tally, negotiated) = replay(include_str!("../fixtures/ts-sdk-example.txt"));
    assert_eq!(
        tally,
        Tally {
            agent_frames: 142,
            updates: 98,
            agent_requests: 14,
            responses: 29,
            parse_errors: 1,
            handshakes: 4,
            sessions: 4,
            turns: 16,
            failed_turns: 2,
            permissions: 14,
            text: 3899,
            ..Tally::default()
        }
    );
    assert!(!negotiated[0].session.load && negotiated[0].agent_info.is_none());
}
