//! Start-up faults: `MOCK_START`, `MOCK_INIT`, `MOCK_AUTH`, `MOCK_NEW`, `MOCK_LOAD`, `MOCK_WITHOUT`, `MOCK_TURN_COPY`.

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Agent, command};

fn spawn(env: &[(&str, &str)]) -> (tempfile::TempDir, Agent) {
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::spawn(dir.path(), env);
    (dir, agent)
}

#[test]
fn start_directives_run_before_stdin_is_read() {
    let start = "noise; stderr starting;sleep 20;/raw first;ignore-term";
    let (_dir, mut agent) = spawn(&[("MOCK_START", start)]);
    let lines: Vec<Vec<u8>> = (0..10).map(|_| agent.try_line().unwrap()).collect();
    assert_eq!(lines[9], b"first");
    assert_eq!(agent.handshake()["result"]["protocolVersion"], 1);
    agent.stdin = None;
    assert_eq!(agent.exit().code(), Some(0));
    assert_eq!(agent.stderr(), "starting\n");

    let (_dir, mut agent) = spawn(&[("MOCK_START", "stderr bye;exit 7")]);
    assert_eq!(agent.exit().code(), Some(7));
    assert_eq!(agent.stderr(), "bye\n");
    let (_dir, mut agent) = spawn(&[("MOCK_START", "say hi")]);
    assert_eq!(agent.exit().code(), Some(2));
    assert!(agent.stderr().contains("MOCK_START"));
}

#[test]
fn initialize_goes_wrong_as_told() {
    let (_dir, mut agent) = spawn(&[("MOCK_INIT", "slow:120")]);
    let start = Instant::now();
    agent.handshake();
    assert!(start.elapsed() >= Duration::from_millis(120));
    let (_dir, mut agent) = spawn(&[("MOCK_INIT", "error:-32603")]);
    assert_eq!(agent.handshake()["error"]["code"], -32603);
    let (_dir, mut agent) = spawn(&[("MOCK_INIT", "garbage")]);
    assert_eq!(agent.handshake()["result"], "garbage");
    let (_dir, mut agent) = spawn(&[("MOCK_INIT", "version:99")]);
    assert_eq!(agent.handshake()["result"]["protocolVersion"], 99);
    let (_dir, mut agent) = spawn(&[("MOCK_INIT", "exit:5")]);
    agent.send("initialize", &json!({"protocolVersion": 1}));
    assert_eq!(agent.exit().code(), Some(5));
    let (_dir, mut agent) = spawn(&[("MOCK_INIT", "never")]);
    agent.send("initialize", &json!({"protocolVersion": 1}));
    assert!(agent.silent_for(Duration::from_millis(100)));
    let (_dir, mut agent) = spawn(&[("MOCK_INIT", "early")]);
    assert_eq!(agent.answer(1)["result"]["protocolVersion"], 1);
    agent.send("initialize", &json!({"protocolVersion": 1}));
    // The next answer is the next request's: initialize is not answered again.
    let id = agent.send("session/new", &json!({"cwd": "/", "mcpServers": []}));
    assert_eq!(agent.frame()["id"], id);
}

#[test]
fn authentication_is_asked_for() {
    let (_dir, mut agent) = spawn(&[("MOCK_AUTH", "1")]);
    let init = agent.handshake();
    assert_eq!(init["result"]["authMethods"][0]["id"], "mock_login");
    assert_eq!(agent.open()["error"]["code"], -32000);
    let wrong = agent.call("authenticate", &json!({"methodId": "frob"}));
    assert_eq!(wrong["error"]["code"], -32602);
    let right = agent.call("authenticate", &json!({"methodId": "mock_login"}));
    assert!(right["error"].is_null());
    agent.open();
    assert_eq!(agent.prompt("/say in").text(), "in");
    agent.finish();
}

#[test]
fn session_new_goes_wrong_as_told() {
    let (_dir, mut agent) = spawn(&[("MOCK_NEW", "error:-32000")]);
    assert_eq!(agent.open()["error"]["code"], -32000);
    let (_dir, mut agent) = spawn(&[("MOCK_NEW", "slow:120")]);
    let start = Instant::now();
    assert!(agent.open()["result"].is_object());
    assert!(start.elapsed() >= Duration::from_millis(120));
    let (_dir, mut agent) = spawn(&[("MOCK_NEW", "never")]);
    agent.send("session/new", &json!({"cwd": "/", "mcpServers": []}));
    assert!(agent.silent_for(Duration::from_millis(100)));
    let (_dir, mut agent) = spawn(&[("MOCK_NEW", "early-updates")]);
    let id = agent.send("session/new", &json!({"cwd": "/", "mcpServers": []}));
    let early: Vec<Value> = (0..2).map(|_| agent.frame()).collect();
    let answer = agent.frame();
    assert_eq!(answer["id"], id);
    for update in early {
        assert_eq!(update["params"]["sessionId"], answer["result"]["sessionId"]);
    }
}

#[test]
fn session_load_goes_wrong_as_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut agent = Agent::spawn(dir.path(), &[]);
    agent.open();
    agent.prompt("/say one");
    let params = json!({"sessionId": agent.session, "cwd": agent.cwd, "mcpServers": []});
    agent.finish();

    let mut agent = Agent::spawn(dir.path(), &[("MOCK_LOAD", "replay:68")]);
    let id = agent.send("session/load", &params);
    let loaded = agent.collect(id, |f| panic!("{f}"));
    assert_eq!(loaded.updates.len(), 68);
    assert!(loaded.answer["result"].is_object());
    for method in ["session/load", "session/resume"] {
        let mut agent = Agent::spawn(dir.path(), &[("MOCK_LOAD", "error:-32603")]);
        assert_eq!(agent.call(method, &params)["error"]["code"], -32603);
        let mut agent = Agent::spawn(dir.path(), &[("MOCK_LOAD", "never")]);
        agent.send(method, &params);
        assert!(agent.silent_for(Duration::from_millis(100)));
        let mut agent = Agent::spawn(dir.path(), &[("MOCK_LOAD", "unsupported")]);
        let capabilities = agent.handshake()["result"]["agentCapabilities"].clone();
        assert_eq!(capabilities["loadSession"], false);
        assert!(capabilities["sessionCapabilities"]["resume"].is_null());
        assert_eq!(agent.call(method, &params)["error"]["code"], -32601);
    }
}

#[test]
fn a_replay_and_first_updates_can_take_their_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut agent = Agent::spawn(dir.path(), &[("MOCK_NEW", "early-updates:90")]);
    agent.handshake();
    let before = Instant::now();
    agent.open();
    assert!(before.elapsed() >= Duration::from_millis(90));
    agent.prompt("/say one");
    let params = json!({"sessionId": agent.session, "cwd": agent.cwd, "mcpServers": []});
    agent.finish();

    let mut agent = Agent::spawn(dir.path(), &[("MOCK_LOAD", "replay:5:20")]);
    let before = Instant::now();
    let id = agent.send("session/load", &params);
    let loaded = agent.collect(id, |f| panic!("{f}"));
    assert_eq!(loaded.updates.len(), 5);
    assert!(before.elapsed() >= Duration::from_millis(100));
}

#[test]
fn settings_go_wrong_as_told_and_the_input_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("input");
    let env = [
        ("MOCK_SET", "error:-32603"),
        ("MOCK_INPUT_COPY", copy.to_str().unwrap()),
    ];
    let mut agent = Agent::spawn(dir.path(), &env);
    agent.handshake();
    agent.open();
    let params = json!({"sessionId": agent.session, "modeId": "code"});
    assert_eq!(agent.call("session/set_mode", &params)["error"]["code"], -32603);
    agent.finish();
    let input = std::fs::read_to_string(copy).unwrap();
    let methods: Vec<Value> = input
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["method"].clone())
        .collect();
    assert_eq!(methods, ["initialize", "session/new", "session/set_mode"]);
}

#[test]
fn capabilities_can_be_missing() {
    let without = "image,audio,embeddedContext,http,sse,list,close,delete,additionalDirectories,fork,modes,models,configOptions";
    let (_dir, mut agent) = spawn(&[("MOCK_WITHOUT", without)]);
    let capabilities = agent.handshake()["result"]["agentCapabilities"].clone();
    assert_eq!(capabilities["sessionCapabilities"], json!({"resume": {}}));
    assert_eq!(capabilities["promptCapabilities"]["image"], false);
    assert_eq!(capabilities["mcpCapabilities"]["sse"], false);
    let new = agent.open();
    assert_eq!(new["result"].as_object().unwrap().len(), 1);
    for method in [
        "session/list",
        "session/close",
        "session/delete",
        "session/fork",
        "session/set_mode",
    ] {
        let params = json!({"sessionId": agent.session});
        assert_eq!(agent.call(method, &params)["error"]["code"], -32601, "{method}");
    }
}

#[test]
fn the_copy_is_what_was_said() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy");
    let env = [("MOCK_TURN_COPY", copy.to_str().unwrap())];
    let mut child = command(dir.path(), &env).spawn().unwrap();
    let new = json!({"cwd": dir.path(), "mcpServers": []});
    let mut stdin = child.stdin.take().unwrap();
    writeln!(
        stdin,
        "{}",
        json!({"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": new})
    )
    .unwrap();
    writeln!(stdin, "{{broken").unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(output.stdout.split(|b| *b == b'\n').count(), 4);
    assert_eq!(std::fs::read(&copy).unwrap(), output.stdout);
}

#[test]
fn sessions_stay_in_memory_where_there_is_no_directory() {
    let (_dir, mut agent) = spawn(&[("MOCK_SESSION_DIR", "/proc/nope")]);
    agent.open();
    assert_eq!(agent.prompt("/say one").text(), "one");
    let params = json!({"sessionId": agent.session, "cwd": "/", "mcpServers": []});
    let id = agent.send("session/load", &params);
    assert_eq!(agent.collect(id, |f| panic!("{f}")).text(), "one");
    agent.finish();
}

#[test]
fn a_senseless_environment_is_named() {
    let (_dir, mut agent) = spawn(&[("MOCK_INIT", "frob")]);
    assert_eq!(agent.exit().code(), Some(2));
    assert!(agent.stderr().contains("MOCK_INIT"));
}
