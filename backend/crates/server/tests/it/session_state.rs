//! What is known of a session (modes, models, options, commands, plan, usage, title) is what its agent last said, whatever
//! becomes of the server, and is put back where the agent does not keep it.

use serde_json::{Value, json};

use crate::support::{LIMIT, Stack};

async fn session(stack: &Stack, id: &str) -> Value {
    stack.get(&format!("/agents/{id}/session")).await.expect(200)
}

async fn session_id(stack: &Stack, id: &str) -> String {
    let instance = stack.instance(id).await;
    instance["session_id"].as_str().unwrap().to_owned()
}

async fn update(stack: &Stack, id: &str, update: &Value) {
    let turn = stack.turn(id, &format!("/update {update}")).await;
    assert_eq!(turn["status"], "completed", "{turn:#}");
}

async fn copied(stack: &Stack, text: &str) {
    let path = stack.workspace().join("copy");
    let has = async {
        while !std::fs::read_to_string(&path).unwrap_or_default().contains(text) {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, has).await.expect(text);
}

#[tokio::test]
async fn what_an_agent_says_of_its_session_outlives_the_server() {
    let mut stack = Stack::start().await;
    let id = stack
        .launch(json!({"env": {"MOCK_TURN_COPY": "/workspace/copy"}}))
        .await;
    let options = json!([
        {"id": "model", "name": "M", "category": "model", "type": "select", "currentValue": "mock-small", "options": []},
        {"id": "verbose", "name": "V", "type": "boolean", "currentValue": true},
    ]);
    let commands = json!([{"name": "only", "description": "one"}]);
    let plan = json!([{"content": "a", "priority": "high", "status": "completed"}, {"content": "b", "status": "pending"}]);
    let usage = json!({"sessionUpdate": "usage_update", "used": 7, "size": 100, "cost": {"amount": 0.5, "currency": "USD"}});
    for said in [
        json!({"sessionUpdate": "current_mode_update", "currentModeId": "code"}),
        json!({"sessionUpdate": "config_option_update", "configOptions": options}),
        json!({"sessionUpdate": "available_commands_update", "availableCommands": commands}),
        json!({"sessionUpdate": "plan", "entries": plan}),
        usage.clone(),
        json!({"sessionUpdate": "session_info_update", "title": "T", "updatedAt": "2026-12-01T00:00:00Z"}),
        // Nothing is said by this.
        json!({"sessionUpdate": "session_info_update", "_meta": {}}),
    ] {
        update(&stack, &id, &said).await;
    }
    // Of another session: none of this one's.
    let theirs = r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"other","update":{"sessionUpdate":"plan","entries":[]}}}"#;
    stack.turn(&id, &format!("/raw {theirs}")).await;
    let known = session(&stack, &id).await;
    for (what, value) in [
        ("current_mode", &json!("code")),
        ("current_model", &json!("mock-small")),
        ("config_options", &options),
        ("commands", &commands),
        ("plan", &plan),
        ("usage", &usage),
        ("title", &json!("T")),
        ("updated_at", &json!("2026-12-01T00:00:00Z")),
    ] {
        assert_eq!(known[what], *value, "{what}");
    }
    assert_eq!(known["modes"]["availableModes"][1]["id"], "code");
    assert_eq!(stack.instance(&id).await["progress"], 50);

    // More is said while no server runs.
    let later = json!({"sessionUpdate": "session_info_update", "title": "later"});
    let cleared = json!({"sessionUpdate": "session_info_update", "updatedAt": null});
    let mode = json!({"sessionUpdate": "current_mode_update", "currentModeId": "ask"});
    let turn = stack
        .prompt(
            &id,
            &format!("/say begun\n/await go\n/update {later}\n/update {cleared}\n/update {mode}\n/say end"),
        )
        .await;
    // What was accepted need not have reached the agent yet.
    copied(&stack, "begun").await;
    stack.kill().await;
    std::fs::write(stack.workspace().join("go"), "").unwrap();
    copied(&stack, "\"end\"").await;
    stack.boot().await;
    let path = format!("/agents/{id}/turns/{turn}");
    stack.until(&path, |t| t["status"] == "completed").await;
    let mut expected = known.clone();
    expected["title"] = json!("later");
    expected["updated_at"] = Value::Null;
    expected["current_mode"] = json!("ask");
    assert_eq!(session(&stack, &id).await, expected);
    let whole = stack
        .get(&format!("/agents/{id}/events?snapshot=true"))
        .await
        .expect(200);
    assert_eq!(
        (&whole["session"]["title"], &whole["plan"]),
        (&json!("later"), &plan)
    );
    let of_all = stack
        .get(&format!("/sessions/{}", session_id(&stack, &id).await))
        .await
        .expect(200);
    assert_eq!((&of_all["title"], &of_all["usage"]), (&json!("later"), &usage));
    // And what is said next is taken as before.
    update(
        &stack,
        &id,
        &json!({"sessionUpdate": "session_info_update", "title": null}),
    )
    .await;
    assert_eq!(session(&stack, &id).await["title"], Value::Null);
    stack.settle().await;
}

#[tokio::test]
async fn a_replay_that_is_not_stored_tells_what_the_session_is_now() {
    let stack = Stack::start().await;
    let first = stack.launch(json!({})).await;
    stack.turn(&first, "/title Old\n/plan a;b\n/say remember").await;
    stack.stop(&first).await;
    let body = json!({"wait": "ready", "env": {"MOCK_WITHOUT": "resume", "MOCK_LOAD": "state"}});
    let resumed = stack
        .post(&format!("/agents/{first}/resume"), &body)
        .await
        .expect(201);
    let id = resumed["id"].as_str().unwrap();
    let known = session(&stack, id).await;
    assert_eq!(
        (
            &known["title"],
            &known["commands"][0]["name"],
            &known["usage"]["used"]
        ),
        (&json!("Restored"), &json!("restored"), &json!(5)),
        "{known:#}"
    );
    // The history itself is none of the new instance's.
    let updates = stack
        .get(&format!("/agents/{id}/events?kind=update"))
        .await
        .expect(200);
    assert!(!updates.to_string().contains("remember") && !updates.to_string().contains("Restored"));
    assert_eq!(stack.instance(id).await["progress"], 0);
    stack.settle().await;
}

#[tokio::test]
async fn what_was_chosen_is_put_back_where_the_agent_says_nothing() {
    let stack = Stack::start().await;
    let env = json!({"MOCK_DIALECT": "koda", "KODA_ACP_SESSION_STORE_DIR": "/sessions"});
    let first = stack.launch(json!({"env": env, "model": "koda-lite"})).await;
    let policy = json!({"value": "read_only"});
    let path = format!("/agents/{first}/config_options/access_policy");
    stack
        .call(reqwest::Method::PUT, &path, Some(&policy))
        .await
        .expect(200);
    stack.turn(&first, "/say remember").await;
    stack.stop(&first).await;
    // A load is answered `null`, and the policy is nowhere but in our record.
    let resumed = stack.resume(&first).await;
    let id = resumed["id"].as_str().unwrap();
    let said = stack.turn(id, "/session").await;
    let said: Value =
        serde_json::from_str(said["text"].as_str().unwrap().trim_start_matches("session: ")).unwrap();
    assert_eq!(
        (&said["origin"], &said["model"], &said["config"]["access_policy"]),
        (&json!("load"), &json!("koda-lite"), &json!("read_only"))
    );
    let known = session(&stack, id).await;
    assert_eq!(known["current_model"], "koda-lite");
    assert_eq!(known["config_options"][1]["currentValue"], "read_only");
    stack.settle().await;
}

#[tokio::test]
async fn of_a_branch_is_known_what_the_agent_says_of_it() {
    let mut stack = Stack::start().await;
    let id = stack.launch(json!({"mode": "code"})).await;
    stack.turn(&id, "/title Trunk\n/say one").await;
    let branch = stack
        .post(&format!("/agents/{id}/fork"), &json!({}))
        .await
        .expect(201);
    let branch = branch["session_id"].as_str().unwrap().to_owned();
    let path = format!("/sessions/{branch}");
    let known = stack.until(&path, |s| s["commands"].is_array()).await;
    let own = session(&stack, &id).await;
    for what in [
        "agent_info",
        "agent_capabilities",
        "protocol",
        "models",
        "commands",
    ] {
        assert_eq!(known[what], own[what], "{what}");
    }
    // It begins with what its agent says, and not with what this session has.
    assert_eq!(
        (&known["current_mode"], &own["current_mode"]),
        (&json!("ask"), &json!("code"))
    );
    stack.kill().await;
    stack.boot().await;
    let line = json!({"jsonrpc": "2.0", "method": "session/update", "params": {
        "sessionId": branch, "update": {"sessionUpdate": "session_info_update", "title": "Branch"}}});
    stack.turn(&id, &format!("/raw {line}")).await;
    assert_eq!(stack.get(&path).await.expect(200)["title"], "Branch");
    assert_eq!(session(&stack, &id).await["title"], "Trunk");
    stack.settle().await;
}

#[tokio::test]
async fn a_model_that_is_an_option_is_the_sessions_model() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    assert_eq!(session(&stack, &id).await["current_model"], "mock-large");
    let path = format!("/agents/{id}/config_options/model");
    let body = json!({"value": "mock-small"});
    stack
        .call(reqwest::Method::PUT, &path, Some(&body))
        .await
        .expect(200);
    assert_eq!(session(&stack, &id).await["current_model"], "mock-small");
    stack.settle().await;
}

#[tokio::test]
async fn messages_of_a_turn_are_told_apart_by_their_ids() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let piece = |message: serde_json::Value, text: &str| {
        let content = json!({"type": "text", "text": text});
        let update =
            json!({"sessionUpdate": "agent_message_chunk", "messageId": message, "content": content});
        format!("/update {update}")
    };
    let script = [
        piece(json!("a"), "one "),
        piece(json!("a"), "message"),
        piece(json!(null), ", still"),
        piece(json!("b"), "another"),
        // As it was, where the agent does not tell them apart.
        "/say .".to_owned(),
    ];
    let turn = stack.turn(&id, &script.join("\n")).await;
    assert_eq!(turn["text"], "one message, still\n\nanother.");
    stack.settle().await;
}

#[tokio::test]
async fn what_is_said_at_too_great_length_is_an_event_and_no_state() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let commands = |bytes: usize| {
        let command = json!({"name": "long", "description": "x".repeat(bytes)});
        let update = json!({"sessionUpdate": "available_commands_update", "availableCommands": [command]});
        format!("/update {update}")
    };
    let kept = async || {
        let known = stack.get(&format!("/agents/{id}/session")).await.expect(200);
        let description = known["commands"][0]["description"].as_str().unwrap();
        description.len()
    };
    stack.turn(&id, &commands(560 << 10)).await;
    assert_eq!(kept().await, 560 << 10, "as real agents have them");
    stack.turn(&id, &commands(5 << 20)).await;
    assert_eq!(kept().await, 560 << 10);
    let logs = stack
        .get(&format!("/agents/{id}/logs?stream=system&q=commands"))
        .await
        .expect(200);
    assert_eq!(logs["total"], 1, "{logs:#}");
    stack.settle().await;
}
