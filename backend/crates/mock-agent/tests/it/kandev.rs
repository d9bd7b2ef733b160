//! The kandev dialect, as the seed documents it.

use std::io::Write;

use serde_json::{Value, json};

use crate::support::{Agent, command};

const KANDEV: (&str, &str) = ("MOCK_DIALECT", "kandev");

/// Sends a prompt and collects the params of its updates up to the end.
fn prompt(agent: &mut Agent, message: &str) -> Vec<Value> {
    let id = agent.send("session/prompt", &json!({"message": message}));
    let accepted = agent.frame();
    assert_eq!(
        (&accepted["id"], &accepted["result"]),
        (&json!(id), &json!({"accepted": true}))
    );
    updates(agent)
}

fn updates(agent: &mut Agent) -> Vec<Value> {
    let mut updates = Vec::new();
    loop {
        let frame = agent.frame();
        assert_eq!(frame["method"], "session/update");
        let params = frame["params"].clone();
        let end = params["type"] == "complete" || params["type"] == "error";
        updates.push(params);
        if end {
            return updates;
        }
    }
}

fn start(dir: &tempfile::TempDir, env: &[(&str, &str)]) -> Agent {
    let env: Vec<(&str, &str)> = env.iter().copied().chain([KANDEV]).collect();
    let mut agent = Agent::spawn(dir.path(), &env);
    let params = json!({"protocolVersion": "1.0", "clientInfo": {"name": "t", "version": "0"}});
    let init = agent.call("initialize", &params);
    assert_eq!(init["result"]["protocolVersion"], "1.0");
    assert_eq!(init["result"]["capabilities"]["sessionResumption"], true);
    agent
}

#[test]
fn the_whole_flow() {
    let dir = tempfile::tempdir().unwrap();
    let mut agent = start(&dir, &[]);
    let early = agent.call("session/prompt", &json!({"message": "x"}));
    assert_eq!(early["error"]["code"], -32600);
    let new = agent.call("session/new", &json!({}));
    let session = new["result"]["sessionId"].clone();

    let demo = prompt(&mut agent, "Fix the null pointer bug");
    let kinds: Vec<&str> = demo.iter().map(|p| p["type"].as_str().unwrap()).collect();
    assert!(kinds.contains(&"content") && kinds.contains(&"toolCall") && kinds.contains(&"plan"));
    let running = demo.iter().find(|p| p["data"]["status"] == "running").unwrap();
    assert!(running["data"]["toolName"].is_string() && running["data"]["args"].is_object());
    let complete = &demo.last().unwrap()["data"];
    assert_eq!(complete["sessionId"], session);
    assert_eq!(complete["success"], true);
    assert!(complete["summary"].as_str().unwrap().contains("null pointer"));

    let failed = prompt(&mut agent, "/error -32603 no luck");
    assert_eq!(
        failed,
        [json!({"type": "error", "data": {"message": "no luck", "details": "code -32603"}})]
    );
    let stopped = prompt(&mut agent, "/stop refusal");
    assert_eq!(stopped[0]["data"]["success"], false);
    let bad = agent.call("session/prompt", &json!({}));
    assert_eq!(bad["error"]["data"], "Missing required parameter: message");
    agent.finish();

    let mut agent = start(&dir, &[]);
    let loaded = agent.call("session/load", &json!({"sessionId": session}));
    assert_eq!(loaded["result"], json!({"sessionId": session, "loaded": true}));
    let history = prompt(&mut agent, "/history");
    let text = history[0]["data"]["text"].as_str().unwrap();
    assert!(
        text.starts_with("history: [\"Fix the null pointer bug\""),
        "{text}"
    );
    let lost = agent.call("session/load", &json!({"sessionId": "frob"}));
    assert_eq!(lost["error"]["code"], -32002);
    agent.finish();
}

#[test]
fn cancel_completes_or_exits() {
    let dir = tempfile::tempdir().unwrap();
    let mut agent = start(&dir, &[]);
    agent.call("session/new", &json!({}));
    let id = agent.send("session/prompt", &json!({"message": "/hang"}));
    agent.answer(id);
    agent.notify(
        "session/cancel",
        &json!({"reason": "User requested cancellation"}),
    );
    let ended = updates(&mut agent);
    assert_eq!(ended[0]["type"], "complete");
    assert_eq!(ended[0]["data"]["success"], false);

    let mut agent = start(&dir, &[("MOCK_EXIT_ON_CANCEL", "1")]);
    agent.call("session/new", &json!({}));
    agent.send("session/prompt", &json!({"message": "/hang"}));
    agent.notify("session/cancel", &json!({"reason": "x"}));
    assert_eq!(agent.exit().code(), Some(0));
}

#[test]
fn the_seeds_pipeline_gets_its_order() {
    let dir = tempfile::tempdir().unwrap();
    let env = [KANDEV, ("MOCK_UNASKED_INIT", "1"), ("MOCK_TEXT_IDS", "1")];
    let mut child = command(dir.path(), &env).arg("--acp").spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let lines = [
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"1.0"}}"#,
        r#"{"jsonrpc":"2.0","id":2,"method":"session/new","params":{}}"#,
        r#"{"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"message":"/say test"}}"#,
    ];
    stdin.write_all(lines.join("\n").as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let frames: Vec<Value> = output
        .stdout
        .split(|b| *b == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    let ids: Vec<&Value> = frames
        .iter()
        .map(|f| &f["id"])
        .filter(|id| !id.is_null())
        .collect();
    assert_eq!(ids, ["1", "2", "3"]);
    assert_eq!(
        frames[3]["params"],
        json!({"type": "content", "data": {"text": "test"}})
    );
    assert_eq!(frames[4]["params"]["type"], "complete");
    assert_eq!(frames.len(), 5);
}
