//! Whole conversations with small agents on the other end of a pipe.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use kandev_acp::NoiseReason::{Blank, NotAMessage, NotAnObject, NotJson};
use kandev_acp::dialect::{
    ClientInfo, PromptOutcome, initialize_params, negotiate, prompt_outcome, session_established,
};
use kandev_acp::{
    Dialect, Effect, FrameWriter, Incoming, KandevState, Line, LineDecoder, Peer, outgoing, read_update,
};
use kandev_domain::agent_type::Protocol;
use kandev_domain::content::Prompt;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, duplex};
use tokio_util::task::TaskTracker;

fn info() -> ClientInfo {
    ClientInfo {
        name: "kandev".to_owned(),
        title: None,
        version: "0.1.0".to_owned(),
    }
}

fn lines(output: &str) -> Vec<Bytes> {
    let mut decoder = LineDecoder::default();
    let lines = decoder.push(Bytes::copy_from_slice(output.as_bytes()));
    lines
        .into_iter()
        .map(|line| match line {
            Line::Complete(line) => line,
            Line::Oversized { .. } => panic!("oversized"),
        })
        .collect()
}

#[test]
fn a_handshake_survives_the_noise_before_it() {
    let mut peer = Peer::new();
    let params = initialize_params(Protocol::Auto, &info(), &BTreeMap::new());
    peer.request((), "initialize", &params).unwrap();
    let output = "Agent 1.0 starting\r\n\n   \n\u{1b}[33mwarning\u{1b}[0m {\n[1]\n42\n{\"id\":1,\"level\":\"info\"}\n{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"protocolVersion\":1}}\r\n";
    let mut noise = Vec::new();
    let mut dialect = None;
    for line in lines(output) {
        match peer.receive(&line) {
            Incoming::Noise(reason) => noise.push(reason),
            Incoming::Response { id: 1, outcome, .. } => {
                dialect = Some(negotiate(Protocol::Auto, &outcome.unwrap()).unwrap().dialect);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(
        noise,
        [
            NotJson,
            Blank,
            Blank,
            NotJson,
            NotAnObject,
            NotAnObject,
            NotAMessage
        ]
    );
    assert_eq!(dialect, Some(Dialect::Acp));
}

fn chunk(text: &str) -> String {
    let update = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}});
    json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}})
        .to_string()
        + "\n"
}

#[test]
fn updates_around_an_answer_in_one_read_keep_their_order() {
    let mut peer = Peer::new();
    let (new, _) = peer.request("new", "session/new", &json!({})).unwrap();
    let (prompt, _) = peer.request("prompt", "session/prompt", &json!({})).unwrap();
    let texts: Vec<String> = (0..100)
        .map(|n| if n == 50 { " \n".to_owned() } else { n.to_string() })
        .collect();
    let answer = |id, result| format!("{}\n", json!({"jsonrpc": "2.0", "id": id, "result": result}));
    let mut output = vec![chunk("early"), answer(new, json!({"sessionId": "s"}))];
    output.extend(texts.iter().map(|text| chunk(text)));
    output.extend([answer(prompt, json!({"stopReason": "end_turn"})), chunk("late")]);

    let mut seen = Vec::new();
    for line in lines(&output.concat()) {
        match peer.receive(&line) {
            Incoming::Notification { params, .. } => {
                let params = params.unwrap();
                assert_eq!(line.slice(params.range.clone()), params.raw.get());
                let update = read_update(Dialect::Acp, &mut KandevState::default(), params.raw);
                assert_eq!(update.session_id.as_deref(), Some("s"));
                let Effect::AgentText(text) = update.effect else {
                    panic!()
                };
                seen.push(text.into_owned());
            }
            Incoming::Response { tag, .. } => seen.push(format!("<{tag}>")),
            other => panic!("{other:?}"),
        }
    }
    let mut expected = vec!["early".to_owned(), "<new>".to_owned()];
    expected.extend(texts);
    expected.extend(["<prompt>".to_owned(), "late".to_owned()]);
    assert_eq!(seen, expected);
}

#[test]
fn odd_strings_cost_no_update_its_text() {
    let line = br#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"a\u0000b\ud83dc"}}}}"#;
    let Incoming::Notification { params, .. } = Peer::<()>::new().receive(line) else {
        panic!()
    };
    let params = params.unwrap();
    assert!(params.raw.get().contains(r"a\u0000b\ud83dc"), "kept as it was");
    let update = read_update(Dialect::Acp, &mut KandevState::default(), params.raw);
    assert!(matches!(update.effect, Effect::AgentText(t) if t == "a\0b\u{FFFD}c"));
}

#[test]
fn depth_in_an_update_is_no_danger() {
    let (open, close) = ("[".repeat(100_000), "]".repeat(100_000));
    for place in ["content", "entries", "x"] {
        let line = format!(
            r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"s","update":{{"sessionUpdate":"plan","{place}":{open}{close}}},"type":{open}{close}}}}}"#
        );
        let mut peer = Peer::<()>::new();
        let Incoming::Notification { params, .. } = peer.receive(line.as_bytes()) else {
            panic!()
        };
        for dialect in [Dialect::Acp, Dialect::Kandev] {
            let update = read_update(dialect, &mut KandevState::default(), params.as_ref().unwrap().raw);
            assert_eq!(update.kind, "plan");
        }
    }
}

/// Speaks as the seed's sample does: answers `initialize` before it is asked, echoes ids as text, accepts a prompt and
/// ends the turn by an update, exits on cancel.
async fn sample_agent(stdio: DuplexStream) -> Vec<Value> {
    let (stdin, mut stdout) = tokio::io::split(stdio);
    let mut requests = Vec::new();
    let hello = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"1.0","serverInfo":{"name":"your-agent","version":"1.0.0"},"capabilities":{"streaming":true}}}"#;
    stdout.write_all(format!("{hello}\n").as_bytes()).await.unwrap();
    let mut lines = BufReader::new(stdin).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        let request: Value = serde_json::from_str(&line).unwrap();
        let id = &request["id"];
        let answer = match request["method"].as_str().unwrap() {
            "session/new" => format!("{{\"jsonrpc\":\"2.0\",\"id\":\"{id}\",\"result\":{{\"sessionId\":\"abc\"}}}}\n"),
            "session/prompt" => [
                &format!("{{\"jsonrpc\":\"2.0\",\"id\":\"{id}\",\"result\":{{\"accepted\":true}}}}"),
                r#"{"jsonrpc":"2.0","method":"session/update","params":{"type":"content","data":{"text":"Processing"}}}"#,
                r#"{"jsonrpc":"2.0","method":"session/update","params":{"type":"complete","data":{"sessionId":"abc","success":true}}}"#,
                "",
            ]
            .join("\n"),
            _ => String::new(),
        };
        let cancelled = request["method"] == "session/cancel";
        requests.push(request);
        if cancelled {
            break;
        }
        stdout.write_all(answer.as_bytes()).await.unwrap();
    }
    requests
}

#[tokio::test]
async fn the_seeds_sample_agent_is_understood_from_start_to_end() {
    let tracker = TaskTracker::new();
    let (ours, theirs) = duplex(1024);
    let agent = tracker.spawn(sample_agent(theirs));
    let (mut stdout, stdin) = tokio::io::split(ours);
    let writer = FrameWriter::spawn(stdin, &tracker);

    let mut peer = Peer::new();
    peer.set_lenient_ids(true);
    let params = initialize_params(Protocol::Auto, &info(), &BTreeMap::new());
    let (id, hello) = peer.request("initialize", "initialize", &params).unwrap();
    assert_eq!(id, 1);
    let mut hello = Some(hello);
    let mut dialect = Dialect::Acp;
    let mut kandev = KandevState::default();
    let mut story = Vec::new();
    let mut decoder = LineDecoder::default();
    let talk = async {
        let mut buffer = [0; 256];
        loop {
            let read = stdout.read(&mut buffer).await.unwrap();
            if read == 0 {
                return;
            }
            for line in decoder.push(Bytes::copy_from_slice(&buffer[..read])) {
                let Line::Complete(line) = line else { panic!() };
                match peer.receive(&line) {
                    Incoming::Response {
                        tag: "initialize",
                        outcome,
                        ..
                    } => {
                        // The answer is here before the question went out.
                        writer.send(hello.take().unwrap()).await.unwrap();
                        dialect = negotiate(Protocol::Auto, &outcome.unwrap()).unwrap().dialect;
                        let (method, params) = dialect.session_new("/workspace", &[], &Map::new());
                        let (_, frame) = peer.request("new", method, &params).unwrap();
                        writer.send(frame).await.unwrap();
                    }
                    Incoming::Response {
                        tag: "new", outcome, ..
                    } => {
                        let session = session_established(dialect, &outcome.unwrap())
                            .session_id
                            .unwrap();
                        let (method, params) = dialect.prompt(&session, &Prompt::text("Fix it").unwrap());
                        let (_, frame) = peer.request("prompt", method, &params).unwrap();
                        writer.send(frame).await.unwrap();
                        story.push(session);
                    }
                    Incoming::Response { outcome, .. } => {
                        let outcome = prompt_outcome(dialect, outcome);
                        assert!(matches!(outcome, PromptOutcome::Accepted));
                        story.push("accepted".to_owned());
                    }
                    Incoming::Notification { params, .. } => {
                        let update = read_update(dialect, &mut kandev, params.unwrap().raw);
                        match update.effect {
                            Effect::AgentText(text) => story.push(text.into_owned()),
                            Effect::TurnEnd(end) => {
                                story.push(end.stop_reason);
                                let (method, params) = dialect.cancel("abc", None);
                                writer
                                    .send(outgoing::notification(method, &params).unwrap())
                                    .await
                                    .unwrap();
                            }
                            other => panic!("{other:?}"),
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), talk)
        .await
        .expect("hangs");
    assert_eq!(dialect, Dialect::Kandev);
    assert_eq!(story, ["abc", "accepted", "Processing", "end_turn"]);
    let requests = agent.await.unwrap();
    let methods: Vec<_> = requests.iter().map(|r| r["method"].as_str().unwrap()).collect();
    assert_eq!(
        methods,
        ["initialize", "session/new", "session/prompt", "session/cancel"]
    );
    assert_eq!(requests[2]["params"], json!({"message": "Fix it"}));
}
