//! The server dies while a session is being established; and what was chosen in a session is chosen again.

use serde_json::{Value, json};

use crate::support::{LIMIT, Stack};

/// Waits until a file of the agent's has this.
async fn has(stack: &Stack, file: &str, text: &str) {
    let path = stack.workspace().join(file);
    let has = async {
        while !std::fs::read_to_string(&path).unwrap_or_default().contains(text) {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, has).await.expect(text);
}

/// What the agent was sent, and forgets it.
fn requests(stack: &Stack) -> Vec<Value> {
    let path = stack.workspace().join("input");
    let input = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, "").unwrap();
    input
        .lines()
        // What a server begins with after another one that may have left half a line.
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn settings(requests: &[Value]) -> Vec<(String, Value)> {
    let of = |request: &Value| {
        let (method, params) = (request["method"].as_str()?, &request["params"]);
        let value = match method {
            "session/set_mode" => params["modeId"].clone(),
            "session/set_model" => params["modelId"].clone(),
            "session/set_config_option" => json!([params["configId"], params["value"]]),
            _ => return None,
        };
        Some((method.trim_start_matches("session/").to_owned(), value))
    };
    requests.iter().filter_map(of).collect()
}

async fn stop(stack: &Stack, id: &str) {
    stack
        .post(&format!("/agents/{id}/stop"), &json!({"force": true}))
        .await
        .expect(200);
}

async fn running(stack: &Stack, id: &str) -> Value {
    let path = format!("/agents/{id}");
    let settled = |i: &Value| i["status"] != "starting";
    let instance = stack.until(&path, settled).await;
    assert_eq!(instance["status"], "running", "{instance:#}");
    instance
}

async fn own_words(stack: &Stack, id: &str) -> Value {
    let turn = stack.turn(id, "/session").await;
    let text = turn["text"].as_str().unwrap();
    serde_json::from_str(text.trim_start_matches("session: ")).unwrap()
}

async fn of_kind(stack: &Stack, id: &str, kind: &str) -> Vec<Value> {
    let events = stack.events(id).await;
    let wanted = events.iter().filter(|e| e["kind"] == kind);
    wanted.map(|e| e["data"].clone()).collect()
}

async fn launch(stack: &Stack, body: Value) -> String {
    let answer = stack.try_launch(body).await.expect(201);
    answer["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_replay_is_not_stored_when_the_server_dies_in_it() {
    let mut stack = Stack::start().await;
    let first = stack.launch(json!({})).await;
    stack.turn(&first, "/say remember me").await;
    stop(&stack, &first).await;
    let session = stack.instance(&first).await["session_id"].clone();
    let servers = json!([{"name": "tools", "command": "/bin/tools", "args": [], "env": []}]);
    let id = launch(
        &stack,
        json!({
            "session_id": session, "mcp_servers": servers, "wait": "none",
            "env": {
                "MOCK_WITHOUT": "resume", "MOCK_LOAD": "replay:68:60", "MOCK_TURN_COPY": "/workspace/copy",
            },
        }),
    )
    .await;
    // Something that is stored in the middle of it, and so counts the lines so far.
    has(&stack, "copy", "replayed 10\"").await;
    stack.prompt(&id, "/say one more").await;
    has(&stack, "copy", "replayed 20\"").await;
    stack.kill().await;
    stack.boot().await;
    has(&stack, "copy", "replayed 45\"").await;
    stack.kill().await;
    has(&stack, "copy", "replayed 60\"").await;
    stack.boot().await;
    running(&stack, &id).await;
    let told = of_kind(&stack, &id, "session").await;
    assert_eq!(told.len(), 1);
    assert_eq!(
        (&told[0]["how"], &told[0]["replayed_updates"]),
        (&json!("loaded"), &json!(68))
    );
    stack
        .until(&format!("/agents/{id}/turns"), |t| {
            t["turns"][0]["status"] == "completed"
        })
        .await;
    let updates = of_kind(&stack, &id, "update").await;
    let chunks: Vec<_> = updates
        .iter()
        .filter(|u| u["update"]["sessionUpdate"] != "available_commands_update")
        .map(|u| &u["update"]["content"]["text"])
        .collect();
    assert_eq!(chunks, ["one more"]);
    let said = own_words(&stack, &id).await;
    assert_eq!((&said["origin"], &said["mcpServers"]), (&json!("load"), &servers));
    stack.settle().await;
}

#[tokio::test]
async fn what_was_chosen_is_chosen_again() {
    let stack = Stack::start().await;
    let env = json!({"MOCK_INPUT_COPY": "/workspace/input"});
    let first = stack
        .launch(json!({"env": env, "model": "mock-small", "config_options": {"effort": "high"}}))
        .await;
    assert_eq!(
        settings(&requests(&stack)),
        [
            ("set_model".to_owned(), json!("mock-small")),
            ("set_config_option".to_owned(), json!(["effort", "high"]))
        ]
    );
    // The agent changes its mode by itself.
    stack.turn(&first, "/mode code").await;
    let session = stack.instance(&first).await["session_id"]
        .as_str()
        .unwrap()
        .to_owned();
    stop(&stack, &first).await;
    let all = [
        ("set_mode".to_owned(), json!("code")),
        ("set_model".to_owned(), json!("mock-small")),
        ("set_config_option".to_owned(), json!(["effort", "high"])),
    ];
    requests(&stack);

    // Each way to go on with it; only what differs from what the agent says is sent.
    let again = json!({"wait": "ready", "env": env});
    for route in [
        format!("/agents/{first}/resume"),
        format!("/sessions/{session}/resume"),
        "launch".to_owned(),
    ] {
        let answer = if route == "launch" {
            stack.try_launch(json!({"session_id": session, "env": env})).await
        } else {
            stack.post(&route, &again).await
        };
        let id = answer.expect(201)["id"].as_str().unwrap().to_owned();
        assert_eq!(settings(&requests(&stack)), all, "{route}");
        let said = own_words(&stack, &id).await;
        assert_eq!(
            (&said["mode"], &said["model"], &said["config"]["effort"]),
            (&json!("code"), &json!("mock-small"), &json!("high")),
            "{route}"
        );
        let told = stack.get(&format!("/agents/{id}/session")).await.expect(200);
        assert_eq!(
            (&told["current_mode"], &told["current_model"]),
            (&json!("code"), &json!("mock-small"))
        );
        stop(&stack, &id).await;
        requests(&stack);
    }

    // What a launch asks for counts more; what is so already is not sent.
    let id = stack
        .launch(
            json!({"session_id": session, "env": env, "mode": "ask", "config_options": {"effort": "low"}}),
        )
        .await;
    assert_eq!(
        settings(&requests(&stack)),
        [
            ("set_model".to_owned(), json!("mock-small")),
            ("set_config_option".to_owned(), json!(["effort", "low"]))
        ]
    );
    stop(&stack, &id).await;

    // What is not offered any more is not sent; what is refused is not worth the session.
    for (fault, value) in [
        ("MOCK_WITHOUT", "modes,models,configOptions"),
        ("MOCK_SET", "error:-32603"),
    ] {
        requests(&stack);
        let env = json!({"MOCK_INPUT_COPY": "/workspace/input", fault: value});
        let id = stack.launch(json!({"session_id": session, "env": env})).await;
        let sent = settings(&requests(&stack)).len();
        assert_eq!(sent > 0, fault == "MOCK_SET", "{sent}");
        let logs = stack.logs(&id, "system").await;
        let warned = logs
            .iter()
            .filter(|l| l.contains("the session had it before"))
            .count();
        assert_eq!(warned, sent);
        stop(&stack, &id).await;
    }
    stack.settle().await;
}

#[tokio::test]
async fn a_server_that_dies_while_settings_are_made_makes_the_rest() {
    let mut stack = Stack::start().await;
    let id = launch(
        &stack,
        json!({
            "wait": "none", "mode": "code", "model": "mock-small",
            "config_options": {"effort": "high", "verbose": true},
            "env": {"MOCK_INPUT_COPY": "/workspace/input", "MOCK_SET": "slow:1200"},
        }),
    )
    .await;
    for method in ["session/set_mode", "session/set_model", "\"configId\":\"effort\""] {
        has(&stack, "input", method).await;
        stack.kill().await;
        stack.boot().await;
    }
    running(&stack, &id).await;
    let said = own_words(&stack, &id).await;
    assert_eq!(
        (
            &said["mode"],
            &said["model"],
            &said["config"]["effort"],
            &said["config"]["verbose"]
        ),
        (&json!("code"), &json!("mock-small"), &json!("high"), &json!(true))
    );
    assert_eq!(of_kind(&stack, &id, "session").await.len(), 1);
    stack.settle().await;
}

#[tokio::test]
async fn what_is_said_before_the_session_outlives_the_server() {
    let mut stack = Stack::start().await;
    let id = launch(
        &stack,
        json!({"wait": "none", "env": {"MOCK_NEW": "early-updates:4000"}}),
    )
    .await;
    stack
        .until(&format!("/agents/{id}/events?kind=update"), |e| {
            !e["events"].as_array().unwrap().is_empty()
        })
        .await;
    stack.kill().await;
    stack.boot().await;
    running(&stack, &id).await;
    let told = stack.get(&format!("/agents/{id}/session")).await.expect(200);
    assert_eq!(told["commands"][0]["name"], "say", "{told:#}");
    let updates = of_kind(&stack, &id, "update").await;
    assert_eq!(updates.len(), 2, "{updates:#?}");
    stack.settle().await;
}
