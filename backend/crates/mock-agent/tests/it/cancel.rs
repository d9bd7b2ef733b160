//! Cancelling, and more than one prompt at a time.

use std::io::{BufRead, BufReader, Write};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{Agent, command};

#[test]
fn every_directive_that_waits_can_be_cancelled() {
    let mut agent = Agent::ready(&[]);
    for directive in [
        "/sleep 60000",
        "/slow 1000000 20",
        "/hang",
        "/flood 1000m 10",
        "/endless 100",
        "/endless 0",
        "/request fs/read_text_file",
    ] {
        let id = agent.send_prompt(&format!("/say begun\n{directive}\n/say not reached"));
        agent.wait_for_text("begun");
        let start = Instant::now();
        agent.cancel();
        // What is not JSON here is the endless line.
        let answer = loop {
            let line = agent.try_line().unwrap();
            let Ok(frame) = serde_json::from_slice::<serde_json::Value>(&line) else {
                assert!(directive.starts_with("/endless"), "{directive}");
                continue;
            };
            let said = frame["params"]["update"]["content"]["text"].as_str();
            assert_ne!(said, Some("not reached"));
            if frame["id"] == id {
                break frame;
            }
        };
        assert_eq!(answer["result"]["stopReason"], "cancelled", "{directive}");
        assert!(start.elapsed() < Duration::from_secs(2), "{directive}");
    }
    assert_eq!(agent.prompt("/say on").text(), "on");
    agent.finish();
}

#[test]
fn a_cancelled_permission_hears_its_outcomes() {
    let mut agent = Agent::ready(&[]);
    let id = agent.send_prompt("/permission times=3 unannounced\n/say not reached");
    let requests: Vec<_> = (0..3).map(|_| agent.frame()).collect();
    agent.cancel();
    for request in &requests {
        assert_eq!(request["method"], "session/request_permission");
        let result = json!({"outcome": {"outcome": "cancelled"}});
        agent.write(&json!({"jsonrpc": "2.0", "id": request["id"], "result": result}).to_string());
    }
    let ended = agent.collect(id, |f| panic!("{f}"));
    assert_eq!(ended.text(), "permission: cancelled\n".repeat(3));
    assert_eq!(ended.stop_reason(), "cancelled");

    let id = agent.send_prompt("/permission unannounced");
    agent.frame();
    agent.cancel();
    let ended = agent.collect(id, |f| panic!("{f}"));
    assert_eq!(ended.text(), "permission: unanswered\n");
    assert_eq!(ended.stop_reason(), "cancelled");
    agent.finish();
}

#[test]
fn a_cancelled_request_and_the_demo_end_too() {
    let mut agent = Agent::ready(&[("MOCK_SPEED", "100")]);
    let id = agent.send_prompt("please do something");
    agent.frame();
    agent.cancel();
    let ended = agent.collect(id, |f| panic!("{f}"));
    assert_eq!(ended.stop_reason(), "cancelled");
    let id = agent.send_prompt("/hang");
    agent.notify("$/cancel_request", &json!({"requestId": id}));
    assert_eq!(agent.collect(id, |f| panic!("{f}")).stop_reason(), "cancelled");
    agent.finish();
}

#[test]
fn a_cancel_right_behind_its_prompt_is_seen() {
    let mut agent = Agent::ready(&[]);
    for _ in 0..50 {
        let id = agent.send_prompt("/hang");
        agent.cancel();
        assert_eq!(agent.collect(id, |f| panic!("{f}")).stop_reason(), "cancelled");
    }
    agent.finish();
}

#[test]
fn a_client_that_does_not_read_can_cancel() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = command(dir.path(), &[("MOCK_EXIT_ON_CANCEL", "1")])
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut send = |frame: serde_json::Value| writeln!(stdin, "{frame}").unwrap();
    let new = json!({"cwd": dir.path(), "mcpServers": []});
    send(json!({"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": new}));
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    let opened: serde_json::Value = serde_json::from_str(&line).unwrap();
    let session = &opened["result"]["sessionId"];
    let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": "/flood 1000m 1000"}]});
    send(json!({"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": prompt}));
    // From here on nothing is read. Nothing shows that the flood has stalled, so give it time; too little would only
    // make this test weaker. Then the replies stall as well.
    std::thread::sleep(Duration::from_millis(200));
    for id in 3..10 {
        send(json!({"jsonrpc": "2.0", "id": id, "method": "session/frob"}));
    }
    send(json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}));
    let end = Instant::now() + Duration::from_secs(10);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > end {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(status.code(), Some(0));
}

#[test]
fn cancels_can_be_ignored() {
    let mut agent = Agent::ready(&[]);
    let id = agent.send_prompt("/ignore-cancel\n/say begun\n/sleep 100\n/say still here");
    agent.wait_for_text("begun");
    agent.cancel();
    let ended = agent.collect(id, |f| panic!("{f}"));
    assert_eq!(ended.text(), "still here");
    assert_eq!(ended.stop_reason(), "end_turn");
    let _ = agent.send_prompt("/hang");
    agent.cancel();
    assert!(agent.silent_for(Duration::from_millis(150)));
}

#[test]
fn a_second_prompt_meets_what_was_configured() {
    for (busy, first_stop, second) in [
        ("error", "end_turn", "-32600"),
        ("queue", "end_turn", "end_turn"),
        ("replace", "cancelled", "end_turn"),
        ("silent", "end_turn", "nothing"),
    ] {
        let mut agent = Agent::ready(&[("MOCK_BUSY", busy)]);
        let one = agent.send_prompt("/say begun\n/sleep 200\n/say one");
        agent.wait_for_text("begun");
        let two = agent.send_prompt("/say two");
        let (mut said, mut ends) = (String::new(), Vec::new());
        while ends.len() < if busy == "silent" { 1 } else { 2 } {
            let frame = agent.frame();
            if let Some(text) = frame["params"]["update"]["content"]["text"].as_str() {
                said.push_str(text);
            } else {
                ends.push(frame);
            }
        }
        let end = |id: u64| ends.iter().find(|frame| frame["id"] == id);
        assert_eq!(end(one).unwrap()["result"]["stopReason"], first_stop, "{busy}");
        let got = match end(two) {
            None => "nothing".to_owned(),
            Some(frame) => match frame["result"]["stopReason"].as_str() {
                Some(reason) => reason.to_owned(),
                None => frame["error"]["code"].to_string(),
            },
        };
        assert_eq!(got, second, "{busy}");
        let expected = match busy {
            "queue" => "onetwo",
            "replace" => "two",
            _ => "one",
        };
        assert_eq!(said, expected, "{busy}");
    }
}
