//! The official SDK's agent side as counterpart, over a pipe: what we write, it reads as the types of its schema, and
//! what it writes, we understand.
//!
//! The client is this crate: framing, peer, dialect, writer. When what is said is the orchestrator's affair, as are the
//! durable permissions and everything that is done for `fs/*` and `terminal/*`; here a script answers those.

mod agent;
mod sessions;

use std::collections::BTreeMap;
use std::time::Duration;

use agent_client_protocol::v1::schema as official;
use bytes::Bytes;
use kandev_acp::dialect::{
    ClientInfo, Negotiated, PromptOutcome, initialize_params, negotiate, prompt_outcome, session_established,
};
use kandev_acp::permission::{PermissionRequest, PermissionResponse, choose};
use kandev_acp::{
    Dialect, Effect, FrameWriter, Id, Incoming, KandevState, Line, LineDecoder, Peer, RpcError, outgoing,
    read_update,
};
use kandev_domain::agent_type::Protocol;
use kandev_domain::content::Prompt;
use kandev_domain::status::PermissionPolicy;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt, DuplexStream, ReadHalf, duplex};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

const LONG: Duration = Duration::from_secs(20);

/// What came from the agent until it answered.
#[derive(Debug, Default, PartialEq)]
struct Heard {
    texts: Vec<String>,
    /// Other updates' kinds.
    kinds: Vec<String>,
    /// Methods of its requests.
    asked: Vec<String>,
}

impl Heard {
    fn texts(texts: &[&str]) -> Self {
        Self {
            texts: texts.iter().map(|text| (*text).to_owned()).collect(),
            ..Self::default()
        }
    }
}

struct Client {
    peer: Peer<()>,
    writer: FrameWriter,
    stdout: ReadHalf<DuplexStream>,
    decoder: LineDecoder,
    lines: std::collections::VecDeque<Bytes>,
    /// What permission requests meet.
    policy: PermissionPolicy,
    /// Cancel as soon as the agent says something.
    cancel: bool,
    tracker: TaskTracker,
    agent: JoinHandle<Result<(), agent_client_protocol::Error>>,
}

type Outcome = Result<Box<RawValue>, RpcError>;

impl Client {
    fn start() -> Self {
        Self::with(agent::serve)
    }

    fn with<F>(serve: fn(DuplexStream) -> F) -> Self
    where
        F: Future<Output = Result<(), agent_client_protocol::Error>> + Send + 'static,
    {
        let tracker = TaskTracker::new();
        // Small, so that frames are cut at many places.
        let (ours, theirs) = duplex(61);
        let agent = tracker.spawn(serve(theirs));
        let (stdout, stdin) = tokio::io::split(ours);
        let writer = FrameWriter::spawn(stdin, &tracker);
        Self {
            peer: Peer::new(),
            writer,
            stdout,
            decoder: LineDecoder::default(),
            lines: std::collections::VecDeque::new(),
            policy: PermissionPolicy::Allow,
            cancel: false,
            tracker,
            agent,
        }
    }

    async fn established() -> Self {
        let mut client = Self::start();
        client.initialize().await;
        let (outcome, heard) = client.new_session("/workspace").await;
        let info = session_established(Dialect::Acp, &outcome.unwrap());
        assert_eq!(info.session_id.as_deref(), Some("s-1"));
        assert_eq!(heard, Heard::texts(&["early"]));
        client
    }

    async fn initialize(&mut self) -> Negotiated {
        let info = ClientInfo {
            name: "kandev".to_owned(),
            title: None,
            version: "0.1.0".to_owned(),
        };
        let params = initialize_params(Protocol::Auto, &info, &BTreeMap::new());
        let (outcome, heard) = self.ask("initialize", &params).await;
        assert_eq!(heard, Heard::default());
        negotiate(Protocol::Auto, &outcome.unwrap()).unwrap()
    }

    async fn new_session(&mut self, cwd: &str) -> (Outcome, Heard) {
        let mcp = [json!({"name": "m", "command": "/bin/m", "args": [], "env": []})];
        let (method, params) = Dialect::Acp.session_new(cwd, &mcp, &Map::new());
        self.ask(method, &params).await
    }

    async fn prompt(&mut self, text: &str) -> (PromptOutcome, Heard) {
        let (method, params) = Dialect::Acp.prompt("s-1", &Prompt::text(text).unwrap());
        let (outcome, heard) = self.ask(method, &params).await;
        (prompt_outcome(Dialect::Acp, outcome), heard)
    }

    /// Asks, and takes what comes until it is answered.
    async fn ask(&mut self, method: &str, params: &Value) -> (Outcome, Heard) {
        let (asked, frame) = self.peer.request((), method, params).unwrap();
        self.writer.send(frame).await.unwrap();
        let mut heard = Heard::default();
        loop {
            let line = self.line().await;
            match self.peer.receive(&line) {
                Incoming::Response { id, outcome, .. } => {
                    assert_eq!(id, asked);
                    assert_eq!(self.peer.pending_len(), 0);
                    return (outcome, heard);
                }
                Incoming::Notification { method, params } => {
                    assert_eq!(method, "session/update");
                    note(&mut heard, params.unwrap().raw);
                    if std::mem::take(&mut self.cancel) {
                        let (method, params) = Dialect::Acp.cancel("s-1", Some("enough"));
                        let frame = outgoing::notification(method, &params).unwrap();
                        self.writer.send(frame).await.unwrap();
                    }
                }
                Incoming::Request { id, method, params } => {
                    let frame = answer(self.policy, &id, &method, params.unwrap().raw);
                    heard.asked.push(method.into_owned());
                    self.writer.send(frame).await.unwrap();
                }
                other => panic!("{other:?}"),
            }
        }
    }

    async fn line(&mut self) -> Bytes {
        let mut buffer = [0; 47];
        loop {
            if let Some(line) = self.lines.pop_front() {
                return line;
            }
            let read = tokio::time::timeout(LONG, self.stdout.read(&mut buffer));
            let read = read.await.expect("the agent says nothing").unwrap();
            assert_ne!(read, 0, "the agent is gone");
            for line in self.decoder.push(Bytes::copy_from_slice(&buffer[..read])) {
                let Line::Complete(line) = line else { panic!() };
                self.lines.push_back(line);
            }
        }
    }

    /// Closes its stdin; it is to end by that, and well.
    async fn end(self) {
        self.writer.close();
        let ended = tokio::time::timeout(LONG, self.agent).await.expect("it goes on");
        ended.unwrap().unwrap();
        drop((self.writer, self.stdout));
        self.tracker.close();
        tokio::time::timeout(LONG, self.tracker.wait()).await.unwrap();
    }
}

fn note(heard: &mut Heard, params: &RawValue) {
    let update = read_update(Dialect::Acp, &mut KandevState::default(), params);
    assert_eq!(update.session_id.as_deref(), Some("s-1"));
    match update.effect {
        Effect::AgentText(text) => heard.texts.push(text.into_owned()),
        Effect::Plan { completed, total, .. } => heard.kinds.push(format!("plan {completed}/{total}")),
        Effect::ToolCall { id, kind } => heard.kinds.push(format!("{} {id} {kind:?}", update.kind)),
        _ => heard.kinds.push(update.kind.into_owned()),
    }
}

fn answer(policy: PermissionPolicy, id: &Id, method: &str, params: &RawValue) -> Bytes {
    let said: Value = serde_json::from_str(params.get()).unwrap();
    match method {
        "session/request_permission" => {
            let request = PermissionRequest::read(params);
            assert_eq!(request.title.as_deref(), Some("rm -rf build"));
            let outcome = choose(policy, &request.options).unwrap().outcome();
            outgoing::respond(id, &PermissionResponse { outcome: &outcome })
        }
        "fs/write_text_file" => {
            assert_eq!(said["content"], "α\r\n\u{2028}β");
            outgoing::respond(id, &json!({}))
        }
        "fs/read_text_file" if said["path"] == "/workspace/ä.txt" => {
            assert_eq!((&said["line"], &said["limit"]), (&json!(1), &json!(2)));
            outgoing::respond(id, &json!({"content": "α\r\n\u{2028}β"}))
        }
        "fs/read_text_file" => {
            let error = RpcError::new(kandev_acp::rpc_error::RESOURCE_NOT_FOUND, "no such file");
            outgoing::respond_error(Some(id), &error.with_data(&json!({"path": said["path"]})))
        }
        "terminal/create" => {
            assert_eq!(
                (&said["command"], &said["args"][0], &said["outputByteLimit"]),
                (&json!("make"), &json!("test"), &json!(1024))
            );
            outgoing::respond(id, &json!({"terminalId": "t-1"}))
        }
        "terminal/output" => outgoing::respond(id, &json!({"output": "ok…", "truncated": true})),
        "terminal/wait_for_exit" => outgoing::respond(id, &json!({"exitCode": null, "signal": "SIGKILL"})),
        "terminal/kill" | "terminal/release" => outgoing::respond(id, &json!({})),
        "elicitation/create" => sessions::elicitation(id, params),
        _ => outgoing::method_not_found(id, method),
    }
}

fn stop_reason(outcome: PromptOutcome) -> String {
    match outcome {
        PromptOutcome::Ended { stop_reason, .. } => stop_reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_handshake_finds_what_the_sdk_advertises() {
    let mut client = Client::start();
    let negotiated = client.initialize().await;
    assert_eq!(negotiated.dialect, Dialect::Acp);
    assert!(negotiated.session.load && !negotiated.session.resume);
    assert!(negotiated.prompt.image && negotiated.prompt.embedded_context && !negotiated.prompt.audio);
    let info = negotiated.agent_info.unwrap();
    let info: official::Implementation = serde_json::from_str(info.get()).unwrap();
    assert_eq!(
        (info.name.as_str(), info.version.as_str()),
        ("sdk-agent", "1.2.3")
    );
    let (outcome, _) = client.new_session("/elsewhere").await;
    assert_eq!(outcome.unwrap_err().code, kandev_acp::rpc_error::INVALID_PARAMS);
    client.end().await;
}

#[tokio::test]
async fn a_turn_of_updates_is_read_in_order() {
    let mut client = Client::established().await;
    let (outcome, heard) = client.prompt("updates").await;
    assert_eq!(stop_reason(outcome), "end_turn");
    assert_eq!(heard.texts, [" one\n", "two"]);
    assert_eq!(heard.kinds, ["tool_call call-1 Edit", "plan 1/2"]);
    let image = json!([
        {"type": "text", "text": "image"},
        {"type": "image", "mimeType": "image/png", "data": "aGk="},
    ]);
    let prompt: Prompt = serde_json::from_value(image).unwrap();
    let (method, params) = Dialect::Acp.prompt("s-1", &prompt);
    let (outcome, heard) = client.ask(method, &params).await;
    assert!(outcome.is_ok());
    assert_eq!(heard, Heard::texts(&["1 more"]));
    client.end().await;
}

#[tokio::test]
async fn a_permission_request_is_answered_in_its_types() {
    let mut client = Client::established().await;
    for (policy, said) in [
        (PermissionPolicy::Allow, "selected once"),
        (PermissionPolicy::Reject, "selected never"),
    ] {
        client.policy = policy;
        let (outcome, heard) = client.prompt("permission").await;
        assert_eq!(stop_reason(outcome), "end_turn");
        assert_eq!(heard.asked, ["session/request_permission"]);
        assert_eq!(heard.texts, [said]);
    }
    client.end().await;
}

#[tokio::test]
async fn files_and_terminals_are_asked_for_and_answered() {
    let mut client = Client::established().await;
    let (outcome, heard) = client.prompt("files").await;
    assert_eq!(stop_reason(outcome), "end_turn");
    assert_eq!(
        heard.asked,
        ["fs/write_text_file", "fs/read_text_file", "fs/read_text_file"]
    );
    assert_eq!(heard.texts, ["α\r\n\u{2028}β", "-32002 no such file"]);
    let (outcome, heard) = client.prompt("terminal").await;
    assert_eq!(stop_reason(outcome), "end_turn");
    assert_eq!(
        heard.asked,
        [
            "terminal/create",
            "terminal/output",
            "terminal/kill",
            "terminal/wait_for_exit",
            "terminal/release"
        ]
    );
    assert_eq!(heard.texts, [r#"ok… true Some("SIGKILL")"#]);
    client.end().await;
}

#[tokio::test]
async fn what_neither_side_has_is_refused_and_nothing_else_suffers() {
    let mut client = Client::established().await;
    let (outcome, heard) = client.ask("_vendor/nothing", &json!({})).await;
    assert_eq!(outcome.unwrap_err().code, kandev_acp::rpc_error::METHOD_NOT_FOUND);
    assert_eq!(heard, Heard::default());
    let (outcome, heard) = client.prompt("stranger").await;
    assert_eq!(stop_reason(outcome), "end_turn");
    assert_eq!(heard.asked, ["_vendor/weather"]);
    assert_eq!(heard.texts, ["Some(-32601)"]);
    let (outcome, _) = client.prompt("fail").await;
    let PromptOutcome::Failed(error) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(error.is_auth_required());
    assert_eq!(error.data.unwrap().get(), r#"{"hint":"log in"}"#);
    client.end().await;
}

#[tokio::test]
async fn a_cancel_ends_the_turn_as_cancelled() {
    let mut client = Client::established().await;
    client.cancel = true;
    let (outcome, heard) = client.prompt("wait").await;
    assert_eq!(stop_reason(outcome), "cancelled");
    assert_eq!(heard, Heard::texts(&["waiting"]));
    let (outcome, _) = client.prompt("updates").await;
    assert_eq!(stop_reason(outcome), "end_turn", "the session goes on");
    client.end().await;
}

#[tokio::test]
async fn a_session_is_loaded_with_its_replay_and_an_unknown_one_is_not() {
    let mut client = Client::start();
    client.initialize().await;
    let (method, params) = Dialect::Acp.session_load("gone", "/workspace", &[], &Map::new());
    let (outcome, _) = client.ask(method, &params).await;
    assert_eq!(
        outcome.unwrap_err().code,
        kandev_acp::rpc_error::RESOURCE_NOT_FOUND
    );
    let (method, params) = Dialect::Acp.session_load("s-1", "/workspace", &[], &Map::new());
    let (outcome, heard) = client.ask(method, &params).await;
    assert!(outcome.is_ok());
    assert_eq!(heard.kinds, ["user_message_chunk"]);
    assert_eq!(heard.texts, ["answered before"]);
    client.end().await;
}
