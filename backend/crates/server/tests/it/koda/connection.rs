//! Transport, life cycle, and what both sides say of themselves.

use serde_json::{Value, json};

use super::{assert_typed, done, last_sent, launch, post, rpc, sent, session, start, turn_ended, turn_until};

#[tokio::test]
async fn transport() {
    let (stack, id) = start().await;
    let turn = stack
        .prompt(&id, "/stderr a message of its own\n/say one\n/sleep 60000")
        .await;
    turn_until(&stack, &id, &turn, |t| t["text"] == "one").await;
    // Several requests are open at once, and each gets its own answer.
    let (models, tasks, unknown) = tokio::join!(
        done(&stack, &id, "koda/custom_models/list", json!({})),
        done(&stack, &id, "session/subagent_list", json!({})),
        rpc(&stack, &id, "koda/none", json!({})),
    );
    assert_eq!((&models["models"], &tasks["tasks"]), (&json!([]), &json!([])));
    assert_eq!(unknown["error"]["code"], -32601);
    turn_until(&stack, &id, &turn, |t| t["status"] == "running").await;
    post(&stack, &id, "cancel", json!({})).await.expect(200);
    turn_ended(&stack, &id, &turn).await;
    let ids: Vec<Value> = sent(&stack)
        .iter()
        .filter(|frame| frame["method"].is_string() && !frame["id"].is_null())
        .map(|frame| frame["id"].clone())
        .collect();
    assert_eq!(ids, (1..=ids.len() as u64).map(|n| json!(n)).collect::<Vec<_>>());
    let messages = crate::protocol::of_kind(&stack, &id, "message").await;
    for asked in &ids {
        let answers = messages.iter().filter(|e| e["data"]["id"] == *asked);
        assert_eq!(answers.count(), 1, "{asked}");
    }
    let is_own = |log: &Value| log["message"] == "a message of its own";
    let logs = format!("/agents/{id}/logs?stream=stderr");
    stack
        .until(&logs, |page| page["logs"].as_array().unwrap().iter().any(is_own))
        .await;
    stack.settle().await;
}

#[tokio::test]
async fn connection_lifecycle() {
    let (stack, id) = start().await;
    post(&stack, &id, "authenticate", json!({"method_id": "without_auth"}))
        .await
        .expect(200);
    stack.turn(&id, "/say hello").await;
    let turn = stack.prompt(&id, "/say again\n/hang").await;
    turn_until(&stack, &id, &turn, |t| t["text"] == "again").await;
    post(&stack, &id, "cancel", json!({})).await.expect(200);
    turn_ended(&stack, &id, &turn).await;
    let methods: Vec<String> = sent(&stack)
        .iter()
        .filter_map(|frame| frame["method"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(
        methods,
        [
            "initialize",
            "session/new",
            "authenticate",
            "session/prompt",
            "session/prompt",
            "session/cancel"
        ]
    );
    // The end of stdin is the end of the connection; a signal follows, in case that is not enough.
    post(&stack, &id, "stop", json!({})).await.expect(200);
    let ended = stack.get(&format!("/agents/{id}/status")).await.expect(200);
    assert_eq!(ended["status"], "stopped", "{ended:#}");
    assert!(
        [0, 143].map(|code| json!(code)).contains(&ended["exit_code"]),
        "{ended:#}"
    );
    stack.settle().await;
}

#[tokio::test]
async fn initialize() {
    let (stack, id) = start().await;
    let first = sent(&stack).remove(0);
    assert_eq!(
        (
            &first["method"],
            &first["id"],
            &first["params"]["protocolVersion"]
        ),
        (&json!("initialize"), &json!(1), &json!(1))
    );
    assert_eq!(
        first["params"]["clientCapabilities"]["fs"],
        json!({"readTextFile": true, "writeTextFile": true})
    );
    let said = session(&stack, &id).await;
    assert_eq!(said["protocol"], "acp");
    assert_eq!(
        said["auth_methods"],
        json!([
            {"id": "koda_auth", "name": "Koda Auth", "description": "Authenticate via Jarvis API"},
            {"id": "without_auth", "name": "Continue without authentication", "description": null},
        ])
    );
    let capabilities = &said["agent_capabilities"];
    assert_eq!(
        capabilities["mcpCapabilities"],
        json!({"http": true, "sse": true})
    );
    assert_eq!(
        capabilities["promptCapabilities"],
        json!({"audio": true, "embeddedContext": true, "image": true})
    );
    assert_eq!(capabilities["sessionCapabilities"]["fork"], json!({}));
    stack.settle().await;
}

#[tokio::test]
async fn agent_capabilities() {
    let (stack, id) = start().await;
    let loads = async |id: &str| session(&stack, id).await["agent_capabilities"]["loadSession"].clone();
    assert_eq!(loads(&id).await, true);
    // Without its store nothing is kept, and nothing can be gone on with.
    let env = json!({"KODA_ACP_SESSION_STORE_DIR": ""});
    let without = launch(&stack, json!({"env": env})).await;
    assert_eq!(loads(&without).await, false);
    let turn = stack.turn(&without, "/say hello").await;
    let refused = post(&stack, &without, "fork", json!({"turn_id": turn["id"]}))
        .await
        .refused(502, "agent_error");
    assert_typed(&refused["details"], -32002, "store_disabled");
    post(&stack, &without, "stop", json!({})).await.expect(200);
    let lost = post(&stack, &without, "resume", json!({"wait": "ready"}))
        .await
        .expect(201);
    assert_eq!(lost["error"]["code"], "session_lost", "{lost:#}");
    stack.settle().await;
}

#[tokio::test]
async fn authenticate() {
    let (stack, id) = start().await;
    for method in ["koda_auth", "without_auth"] {
        let done = post(&stack, &id, "authenticate", json!({"method_id": method}))
            .await
            .expect(200);
        assert_eq!((&done["success"], &done["result"]), (&json!(true), &Value::Null));
        assert_eq!(
            last_sent(&stack, "authenticate")["params"],
            json!({"methodId": method})
        );
    }
    post(&stack, &id, "authenticate", json!({"method_id": "none"}))
        .await
        .refused(400, "validation_error");
    // An agent that wants an account before it opens a session.
    let wanting = json!({"agent_type": "koda", "env": {"MOCK_AUTH": "1"}});
    let answer = stack.try_launch(wanting).await.expect(201);
    assert_eq!(answer["error"]["code"], "auth_required", "{answer:#}");
    let path = format!("/agents/{}/status", answer["id"].as_str().unwrap());
    let details = stack.get(&path).await.expect(200)["error"]["details"].clone();
    assert_typed(&details, -32000, "auth_required");
    assert_eq!(details["auth_methods"][0]["id"], "koda_auth");
    stack.settle().await;
}
