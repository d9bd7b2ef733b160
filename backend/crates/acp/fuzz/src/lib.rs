//! What must hold whatever bytes an agent writes. The fuzz target and the tests of the crate share it.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use kandev_acp::client_methods::{ClientCall, cancelled_request};
use kandev_acp::dialect::{negotiate, prompt_outcome, session_established, stop_detail};
use kandev_acp::elicitation::{self, ElicitationRequest, Mode};
use kandev_acp::frame::OVERSIZED_PREFIX;
use kandev_acp::permission::{PermissionRequest, choose};
use kandev_acp::rpc_error::INVALID_PARAMS;
use kandev_acp::update::koda;
use kandev_acp::update::legacy::{self, Reading};
use kandev_acp::{
    Dialect, Effect, Id, Incoming, KandevState, Line, LineDecoder, Params, Peer, outgoing, read_update, usage,
};
use kandev_domain::agent_type::Protocol;
use kandev_domain::status::PermissionPolicy;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio_util::codec::Decoder;

/// A frame that surrounds what is tried: it must be understood before and after.
const FRAME: &[u8] = br#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{}}}"#;
/// Sizes of chunks, in bytes.
const CHUNKS: [usize; 4] = [1, 7, 64, usize::MAX];
/// Limits of a line, in bytes: one that is met all the time, one beyond what is kept of a long line, one out of reach.
const LIMITS: [usize; 3] = [24, OVERSIZED_PREFIX + 100, usize::MAX];
/// Requests of ours that are open meanwhile.
const OPEN: u64 = 3;
/// What an agent may ask to be done in its container.
const CLIENT_CALLS: [&str; 7] = [
    "fs/read_text_file",
    "fs/write_text_file",
    "terminal/create",
    "terminal/output",
    "terminal/wait_for_exit",
    "terminal/kill",
    "terminal/release",
];
/// Longest name of a currency that is kept, in bytes.
const MAX_CURRENCY: usize = 16;
/// Longest name of a subagent that is kept, in bytes.
const MAX_TASK: usize = 256;

/// Takes `output` for an agent's stdout. Panics where something does not hold.
pub fn agent_bytes(output: &[u8]) {
    for limit in LIMITS {
        let lines = split(output, limit);
        for size in CHUNKS {
            let chunks = || output.chunks(size);
            let pushed = pushed(chunks(), limit);
            assert!(same(&pushed, &lines, limit), "pushed by {size}, at most {limit}");
            let decoded = decoded(chunks(), limit);
            assert!(
                same(&decoded, &lines, limit),
                "decoded by {size}, at most {limit}"
            );
        }
    }
    let lines = split(output, usize::MAX);
    let lines: Vec<&[u8]> = lines
        .iter()
        .map(|line| {
            let (Line::Complete(line) | Line::Oversized { prefix: line }) = line;
            &line[..]
        })
        .collect();
    for lenient in [false, true] {
        conversation(&lines, lenient);
    }
    for line in lines {
        before_json_rpc(line);
    }
}

/// The lines, found without regard to chunks.
fn split(output: &[u8], limit: usize) -> Vec<Line> {
    let mut pieces: Vec<&[u8]> = output.split(|b| *b == b'\n').collect();
    if pieces.last().is_some_and(|last| last.is_empty()) {
        pieces.pop();
    }
    let line = |piece: &[u8]| {
        let line = Bytes::copy_from_slice(piece);
        if piece.len() <= limit {
            Line::Complete(line)
        } else {
            Line::Oversized { prefix: line }
        }
    };
    pieces.into_iter().map(line).collect()
}

fn pushed<'a>(chunks: impl Iterator<Item = &'a [u8]>, limit: usize) -> Vec<Line> {
    let mut decoder = LineDecoder::new(limit);
    let mut lines: Vec<Line> = chunks
        .flat_map(|chunk| decoder.push(Bytes::copy_from_slice(chunk)))
        .collect();
    lines.extend(decoder.finish());
    lines
}

fn decoded<'a>(chunks: impl Iterator<Item = &'a [u8]>, limit: usize) -> Vec<Line> {
    let mut decoder = LineDecoder::new(limit);
    let mut buffer = BytesMut::new();
    let mut lines = Vec::new();
    for chunk in chunks {
        buffer.extend_from_slice(chunk);
        while let Ok(Some(line)) = decoder.decode(&mut buffer) {
            lines.push(line);
        }
    }
    while let Ok(Some(line)) = decoder.decode_eof(&mut buffer) {
        lines.push(line);
    }
    lines
}

/// Of a line beyond the limit, a beginning is kept: what was there when it was found too long, or a fixed share of it.
fn same(got: &[Line], all: &[Line], limit: usize) -> bool {
    let beginning = |got: &Bytes, all: &Bytes| {
        let least = limit.saturating_add(1).min(OVERSIZED_PREFIX);
        all.starts_with(got) && (least..=OVERSIZED_PREFIX).contains(&got.len())
    };
    got.len() == all.len()
        && got.iter().zip(all).all(|pair| match pair {
            (Line::Oversized { prefix: got }, Line::Oversized { prefix: all }) => beginning(got, all),
            (got, all) => got == all,
        })
}

/// What a line is beyond doubt, as a plain JSON parser sees it.
#[derive(Debug, PartialEq)]
enum Plain {
    Answer(u64),
    Asks(String),
    Tells(String),
}

fn plain(line: &[u8]) -> Option<Plain> {
    let Value::Object(line) = serde_json::from_slice(line).ok()? else {
        return None;
    };
    if line.get("jsonrpc")? != "2.0" {
        return None;
    }
    let id = line.get("id").filter(|id| !id.is_null());
    match (line.get("method").filter(|m| !m.is_null()), id) {
        (Some(Value::String(method)), None) => Some(Plain::Tells(method.clone())),
        (Some(Value::String(method)), Some(Value::String(_) | Value::Number(_))) => {
            Some(Plain::Asks(method.clone()))
        }
        (None, Some(id)) if line.contains_key("result") => Some(Plain::Answer(id.as_u64()?)),
        _ => None,
    }
}

/// The lines between two frames, while requests of ours are open.
fn conversation(lines: &[&[u8]], lenient: bool) {
    let mut peer = Peer::new();
    peer.set_lenient_ids(lenient);
    let mut open = BTreeMap::new();
    for id in 1..=OPEN {
        peer.expect_response(id, id * 10);
        open.insert(id, id * 10);
    }
    let mut states = [KandevState::default(), KandevState::default()];
    assert!(is_update(&mut peer), "before");
    for line in lines {
        let told = plain(line);
        match peer.receive(line) {
            Incoming::Response { id, tag, outcome } => {
                assert_eq!(open.remove(&id), Some(tag), "settled twice, or not ours");
                for dialect in [Dialect::Acp, Dialect::Kandev] {
                    let _ = prompt_outcome(dialect, outcome.clone());
                }
                if let Ok(result) = &outcome {
                    read_result(result);
                }
                if let Some(Plain::Answer(named)) = told {
                    assert_eq!(named, id);
                }
            }
            Incoming::Request { id, method, params } => {
                if let Some(told) = told {
                    assert_eq!(told, Plain::Asks(method.clone().into_owned()));
                }
                echoed(&id, &method);
                if let Some(params) = &params {
                    read_params(params, line, &mut states);
                }
            }
            Incoming::Notification { method, params } => {
                if let Some(told) = told {
                    assert_eq!(told, Plain::Tells(method.into_owned()));
                }
                if let Some(params) = &params {
                    read_params(params, line, &mut states);
                }
            }
            Incoming::Unmatched { .. } => {
                assert!(
                    !matches!(told, Some(Plain::Answer(id)) if open.contains_key(&id)),
                    "an answer was lost"
                );
            }
            Incoming::Batch { reply } => one_line(&reply),
            Incoming::Noise(_) => assert_eq!(told, None, "a frame was lost"),
        }
    }
    assert!(is_update(&mut peer), "after");
    assert_eq!(peer.drain().into_iter().collect::<BTreeMap<_, _>>(), open);
}

fn is_update(peer: &mut Peer<u64>) -> bool {
    matches!(peer.receive(FRAME), Incoming::Notification { method, .. } if method == "session/update")
}

/// An answer carries the id byte for byte, and names nothing else.
fn echoed(id: &Id, method: &str) {
    for frame in [
        outgoing::respond(id, &Value::Null),
        outgoing::method_not_found(id, method),
    ] {
        one_line(&frame);
        let head = format!("{{\"jsonrpc\":\"2.0\",\"id\":{},", id.as_raw().get());
        assert!(frame.starts_with(head.as_bytes()));
    }
}

fn one_line(frame: &[u8]) {
    assert_eq!(frame.iter().position(|b| *b == b'\n'), Some(frame.len() - 1));
}

fn read_params(params: &Params<'_>, line: &[u8], states: &mut [KandevState; 2]) {
    assert_eq!(&line[params.range.clone()], params.raw.get().as_bytes());
    for (dialect, state) in [Dialect::Acp, Dialect::Kandev].into_iter().zip(states) {
        let update = read_update(dialect, state, params.raw);
        if let Some(mapped) = update.mapped {
            assert!(mapped.get().contains("kandev.original"));
        }
        assert!(update.progress.is_none_or(|percent| percent <= 100));
        match update.effect {
            Effect::Usage(told) => read_usage(told),
            Effect::Subagent(found) => subagent(&found),
            _ => {}
        }
    }
    let request = PermissionRequest::read(params.raw);
    for policy in [PermissionPolicy::Allow, PermissionPolicy::Reject] {
        let _ = choose(policy, &request.options);
    }
    read_calls(params.raw);
    read_elicitation(params.raw);
    if let Some(id) = cancelled_request(params.raw) {
        assert!(params.raw.get().contains(id.as_raw().get()), "as it was written");
    }
    // Whatever has the form of what these are in.
    read_usage(params.raw);
    read_subagents(params.raw);
    let _ = stop_detail(params.raw);
}

/// Files and terminals: what cannot be done is refused in JSON-RPC's words, and nothing else is.
fn read_calls(params: &RawValue) {
    let plain: Value = serde_json::from_str(params.get()).unwrap_or_default();
    for method in CLIENT_CALLS {
        let call = match ClientCall::read(method, params).expect("it is one of them") {
            Ok((_, call)) => call,
            Err(error) => {
                assert_eq!(error.code, INVALID_PARAMS);
                continue;
            }
        };
        // Where a plain parser can tell.
        let is = |name: &str, read: &str| match &plain[name] {
            Value::String(text) => assert_eq!(text, read, "{method}"),
            other => assert!(other.is_null(), "{method}: {name} is no text"),
        };
        match call {
            ClientCall::Read { path, .. } => is("path", &path),
            ClientCall::Write { path, content } => {
                is("path", &path);
                is("content", &content);
            }
            ClientCall::Create(create) => is("command", &create.command),
            ClientCall::Output(id)
            | ClientCall::Wait(id)
            | ClientCall::Kill(id)
            | ClientCall::Release(id) => {
                is("terminalId", &id);
            }
        }
    }
    assert!(ClientCall::read("fs/remove", params).is_none());
}

/// What people are asked: only what can be shown, and only links of the web.
fn read_elicitation(params: &RawValue) {
    let _ = elicitation::completed(params);
    let request = match ElicitationRequest::read(params) {
        Ok(request) => request,
        Err(error) => {
            assert_eq!(error.code, INVALID_PARAMS);
            return;
        }
    };
    match request.mode {
        Mode::Url { url, .. } => {
            let url = url.to_ascii_lowercase();
            assert!(url.starts_with("http://") || url.starts_with("https://"));
            assert!(!url.contains(char::is_whitespace));
        }
        Mode::Form { schema } => {
            // An agent's schema and a caller's answer: neither is trusted.
            for content in [schema.get(), params.get(), "{}"] {
                if let Ok(Value::Object(content)) = serde_json::from_str(content) {
                    let _ = elicitation::check(schema, &content);
                }
            }
        }
    }
}

fn read_usage(told: &RawValue) {
    let _ = usage::tokens(told);
    if let Some(cost) = usage::cost(told) {
        assert!(cost.amount.is_finite() && cost.amount >= 0.0);
        assert!((1..=MAX_CURRENCY).contains(&cost.currency.len()));
    }
}

fn read_subagents(block: &RawValue) {
    let read = koda::subagents(block);
    read.tasks.iter().for_each(subagent);
    if let Some(settings) = read.settings {
        assert!(serde_json::from_str::<BTreeMap<String, Box<RawValue>>>(settings.get()).is_ok());
    }
}

/// It becomes a row: its name is bounded, and its snapshot an object.
fn subagent(found: &koda::Subagent) {
    assert!((1..=MAX_TASK).contains(&found.task_id.len()));
    assert!(found.snapshot.get().starts_with('{'));
}

fn read_result(result: &RawValue) {
    for protocol in [Protocol::Auto, Protocol::Acp, Protocol::Kandev, Protocol::Legacy] {
        let _ = negotiate(protocol, result);
    }
    for dialect in [Dialect::Acp, Dialect::Kandev] {
        if let Some(block) = session_established(dialect, result).subagents {
            read_subagents(&block);
        }
    }
    read_usage(result);
    read_subagents(result);
    let _ = stop_detail(result);
}

/// The same line from an agent of the legacy protocol.
fn before_json_rpc(line: &[u8]) {
    let kind = match serde_json::from_slice::<Value>(line) {
        Ok(Value::Object(line)) => line.get("type").and_then(Value::as_str).map(str::to_owned),
        _ => None,
    };
    let known = ["progress", "log", "result", "error", "status", "heartbeat"];
    match legacy::read(line) {
        Reading::Message { update, .. } => assert!(update.get().contains("kandev.original")),
        Reading::Unknown => assert!(!kind.is_some_and(|kind| known.contains(&kind.as_str()))),
        Reading::Noise => assert_eq!(kind, None, "a message was lost"),
    }
}
