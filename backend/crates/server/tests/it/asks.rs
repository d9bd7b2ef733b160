//! What callers ask of an agent beside prompts: settings, plan, fork, any method; who is told what, and what a slow agent costs.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Stack};

async fn put(stack: &Stack, id: &str, what: &str, body: Value) -> Answer {
    let path = format!("/agents/{id}/{what}");
    stack.call(Method::PUT, &path, Some(&body)).await
}

async fn post(stack: &Stack, id: &str, what: &str, body: Value) -> Answer {
    stack.post(&format!("/agents/{id}/{what}"), &body).await
}

async fn session(stack: &Stack, id: &str) -> Value {
    stack.get(&format!("/agents/{id}/session")).await.expect(200)
}

/// What the agent itself says of its session.
async fn own_words(stack: &Stack, id: &str) -> Value {
    let turn = stack.turn(id, "/session").await;
    let text = turn["text"].as_str().unwrap();
    serde_json::from_str(text.trim_start_matches("session: ")).unwrap()
}

/// The agent that Koda's page describes.
async fn koda(stack: &Stack) -> String {
    let env = json!({"MOCK_DIALECT": "koda", "KODA_ACP_SESSION_STORE_DIR": "/sessions"});
    stack.launch(json!({"env": env})).await
}

fn names(answer: &Value, field: &str) {
    assert_eq!(answer["details"]["field"], field, "{answer:#}");
}

#[tokio::test]
async fn mode_model_and_options_are_set_and_kept() {
    let mut stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let done = put(&stack, &id, "mode", json!({"mode_id": "code"}))
        .await
        .expect(200);
    assert_eq!((&done["success"], &done["result"]), (&json!(true), &json!({})));
    put(&stack, &id, "model", json!({"model_id": "mock-small"}))
        .await
        .expect(200);
    // No method of its own: the option of that category.
    let done = put(&stack, &id, "reasoning_effort", json!({"effort": "high"}))
        .await
        .expect(200);
    assert_eq!(done["result"]["configOptions"][1]["currentValue"], "high");
    put(&stack, &id, "config_options/verbose", json!({"value": true}))
        .await
        .expect(200);
    for _ in 0..2 {
        let said = own_words(&stack, &id).await;
        assert_eq!(
            (
                &said["mode"],
                &said["model"],
                &said["config"]["effort"],
                &said["config"]["verbose"]
            ),
            (&json!("code"), &json!("mock-small"), &json!("high"), &json!(true)),
            "{said:#}"
        );
        let kept = session(&stack, &id).await;
        assert_eq!(
            (&kept["current_mode"], &kept["current_model"]),
            (&json!("code"), &json!("mock-small"))
        );
        assert_eq!(kept["config_options"][2]["currentValue"], true);
        // Another server goes on with it.
        stack.kill().await;
        stack.boot().await;
    }
    for (what, body, field) in [
        ("mode", json!({"mode_id": "none"}), "mode_id"),
        ("model", json!({"model_id": "none"}), "model_id"),
        ("config_options/effort", json!({"value": "none"}), "value"),
        ("config_options/effort", json!({"value": true}), "value"),
        ("config_options/verbose", json!({"value": "yes"}), "value"),
        ("reasoning_effort", json!({"effort": "none"}), "effort"),
    ] {
        let refused = put(&stack, &id, what, body)
            .await
            .refused(400, "validation_error");
        names(&refused, field);
    }
    put(&stack, &id, "config_options/none", json!({"value": 1}))
        .await
        .refused(404, "not_found");
    put(&stack, &id, "mode", json!({}))
        .await
        .refused(400, "validation_error");
    let said = own_words(&stack, &id).await;
    assert_eq!(said["mode"], "code", "a refusal changes nothing");
    stack.settle().await;
}

#[tokio::test]
async fn what_the_agent_did_not_advertise_is_said_so() {
    let stack = Stack::start().await;
    let env = json!({"MOCK_WITHOUT": "modes,models,configOptions,fork,logout"});
    let id = stack.launch(json!({"env": env})).await;
    for (what, body) in [
        ("mode", json!({"mode_id": "code"})),
        ("model", json!({"model_id": "mock-small"})),
        ("config_options/effort", json!({"value": "high"})),
        ("reasoning_effort", json!({"effort": "high"})),
        ("plan", json!({"entries": []})),
    ] {
        put(&stack, &id, what, body)
            .await
            .refused(501, "unsupported_capability");
    }
    for (what, body) in [
        ("compact", json!({})),
        ("fork", json!({})),
        ("authenticate", json!({"method_id": "x"})),
        ("logout", json!({})),
    ] {
        post(&stack, &id, what, body)
            .await
            .refused(501, "unsupported_capability");
    }
    let kandev = stack.launch(json!({"env": {"MOCK_DIALECT": "kandev"}})).await;
    put(&stack, &kandev, "mode", json!({"mode_id": "code"}))
        .await
        .refused(501, "unsupported_capability");
    // Before its session, and after its end, there is nobody to ask.
    let slow = stack
        .try_launch(json!({"wait": "none", "env": {"MOCK_NEW": "never"}}))
        .await
        .expect(201);
    let slow = slow["id"].as_str().unwrap();
    put(&stack, slow, "mode", json!({"mode_id": "code"}))
        .await
        .refused(409, "conflict");
    post(&stack, &id, "stop", json!({})).await.expect(200);
    post(&stack, &id, "rpc", json!({"method": "x"}))
        .await
        .refused(409, "conflict");
    post(&stack, "none", "rpc", json!({"method": "x"}))
        .await
        .refused(404, "not_found");
    stack.settle().await;
}

#[tokio::test]
async fn koda_is_asked_in_its_own_words() {
    let stack = Stack::start().await;
    let id = koda(&stack).await;
    let done = put(&stack, &id, "reasoning_effort", json!({"effort": "low"}))
        .await
        .expect(200);
    let effort = |models: &Value| models["availableModels"][0]["reasoning"]["currentEffort"].clone();
    assert_eq!(effort(&done["result"]["models"]), "low");
    assert_eq!(effort(&session(&stack, &id).await["models"]), "low");
    put(&stack, &id, "model", json!({"model_id": "koda-lite"}))
        .await
        .expect(200);
    put(
        &stack,
        &id,
        "config_options/access_policy",
        json!({"value": "read_only"}),
    )
    .await
    .expect(200);
    let options = session(&stack, &id).await["config_options"].clone();
    assert_eq!(options[1]["currentValue"], "read_only");

    // The plan comes back as an update, also while a turn runs.
    let turn = stack.prompt(&id, "/say one\n/sleep 20000").await;
    let entries = json!([{"content": "read"}, {"content": "write", "status": "in_progress"}]);
    put(
        &stack,
        &id,
        "plan",
        json!({"entries": entries, "explanation": "why not"}),
    )
    .await
    .expect(200);
    let path = format!("/agents/{id}/session");
    let kept = stack
        .until(&path, |s| s["plan"][1]["status"] == "in_progress")
        .await;
    assert_eq!(kept["plan"][0]["status"], "pending");
    put(&stack, &id, "plan", json!({"entries": [{"status": "pending"}]}))
        .await
        .refused(400, "validation_error");
    // What the agent itself refuses is its error.
    let two = json!([{"content": "a", "status": "in_progress"}, {"content": "b", "status": "in_progress"}]);
    let refused = put(&stack, &id, "plan", json!({"entries": two}))
        .await
        .refused(502, "agent_error");
    assert_eq!(refused["details"]["code"], -32602);
    post(&stack, &id, "compact", json!({}))
        .await
        .refused(409, "conflict");
    post(&stack, &id, "cancel", json!({})).await.expect(200);
    stack
        .until(&format!("/agents/{id}/turns/{turn}"), |t| {
            t["status"] == "cancelled"
        })
        .await;
    let done = post(&stack, &id, "compact", json!({})).await.expect(200);
    assert_eq!(done["result"]["compacted"], true);
    stack.settle().await;
}

#[tokio::test]
async fn a_session_is_forked_before_a_turn_and_the_branch_goes_on() {
    let stack = Stack::start().await;
    let id = koda(&stack).await;
    stack.turn(&id, "/say first").await;
    let second = stack.turn(&id, "/say second").await;
    let forked = post(&stack, &id, "fork", json!({"turn_id": second["id"]}))
        .await
        .expect(201);
    let own = stack.instance(&id).await["session_id"].clone();
    assert_eq!(forked["forked_from"], own);
    let branch = forked["session_id"].as_str().unwrap().to_owned();
    let told = stack.events(&id).await;
    let told = told
        .iter()
        .find(|e| e["kind"] == "session" && e["data"]["how"] == "forked")
        .unwrap();
    assert_eq!(
        (&told["data"]["session_id"], &told["data"]["forked_from"]),
        (&json!(branch), &own)
    );
    // The instance keeps its own.
    let history = stack.turn(&id, "/history").await;
    assert!(
        history["text"].as_str().unwrap().contains("second"),
        "{history:#}"
    );
    for (body, code, error) in [
        (json!({"turn_id": "none"}), 404, "not_found"),
        (
            json!({"turn_id": kandev_domain::TurnId::generate()}),
            404,
            "not_found",
        ),
        // Koda must be told where.
        (json!({}), 502, "agent_error"),
    ] {
        let refused = post(&stack, &id, "fork", body).await.refused(code, error);
        if code == 502 {
            assert_eq!(refused["details"]["data"]["reason"], "entry_missing");
        }
    }
    // The branch is another session: that the instance runs is not in its way. A task has one instance, though.
    let path = format!("/sessions/{branch}/resume");
    let task = stack.instance(&id).await["task_id"].clone();
    let busy = stack
        .post(&path, &json!({"task_id": task}))
        .await
        .refused(409, "conflict");
    assert_eq!(busy["details"], json!({"task_id": task, "instance_id": id}));
    let resumed = stack.post(&path, &json!({"wait": "ready"})).await.expect(201);
    assert_ne!(resumed["task_id"], task);
    let resumed = resumed["id"].as_str().unwrap().to_owned();
    let knows = async |id: &str, second: bool| {
        let history = stack.turn(id, "/history").await;
        let text = history["text"].as_str().unwrap();
        assert!(
            text.contains("first") && text.contains("second") == second,
            "{text}"
        );
    };
    knows(&resumed, false).await;
    knows(&id, true).await;
    for (path, in_the_way) in [
        (&path, &resumed),
        (&format!("/agents/{resumed}/resume"), &resumed),
        (&format!("/agents/{id}/resume"), &id),
    ] {
        let refused = stack.post(path, &json!({})).await.refused(409, "conflict");
        assert_eq!(refused["details"]["instance_id"], in_the_way.as_str(), "{path}");
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains(in_the_way.as_str()), "{message}");
    }
    post(&stack, &id, "stop", json!({})).await.expect(200);
    post(&stack, &resumed, "stop", json!({})).await.expect(200);
    let again = stack
        .post(&path, &json!({"wait": "ready", "task_id": "of-my-own"}))
        .await
        .expect(201);
    assert_eq!(again["task_id"], "of-my-own");
    knows(again["id"].as_str().unwrap(), false).await;
    stack.settle().await;
}

#[tokio::test]
async fn any_other_method_is_called_and_answered_as_it_is() {
    let stack = Stack::start().await;
    let id = stack
        .launch(json!({"env": {"MOCK_INPUT_COPY": "/workspace/input"}}))
        .await;
    let rpc = async |body: Value| post(&stack, &id, "rpc", body).await;
    let own = stack.instance(&id).await["session_id"].clone();
    let echoed = rpc(json!({"method": "_mock/echo", "params": {"a": [1, "ü"]}}))
        .await
        .expect(200);
    assert_eq!(echoed, json!({"result": {"a": [1, "ü"]}}));
    rpc(json!({"method": "session/of_a_vendor", "params": {}}))
        .await
        .expect(200);
    let unknown = rpc(json!({"method": "_vendor/thing", "params": {"n": 1}}))
        .await
        .expect(200);
    assert_eq!(unknown["error"]["code"], -32601);
    assert!(unknown["result"].is_null());
    let sent = std::fs::read_to_string(stack.workspace().join("input")).unwrap();
    let sent: Vec<Value> = sent
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |method: &str| sent.iter().find(|frame| frame["method"] == method).unwrap();
    assert_eq!(of("_vendor/thing")["params"], json!({"n": 1}));
    assert_eq!(of("session/of_a_vendor")["params"]["sessionId"], own);
    for (body, field) in [
        (json!({"method": "session/prompt", "params": {}}), "method"),
        (json!({"method": "initialize"}), "method"),
        (json!({"method": "$/cancel_request"}), "method"),
        (json!({"method": ""}), "method"),
        (json!({"method": "x", "params": "text"}), "params"),
    ] {
        let refused = rpc(body).await.refused(400, "validation_error");
        names(&refused, field);
    }
    stack.settle().await;
}

#[tokio::test]
async fn an_agent_that_is_slow_to_answer_is_told_that_nobody_waits() {
    let stack = Stack::with(&[("KANDEV_CALL_TIMEOUT_SECONDS", "1")]).await;
    let env = json!({"MOCK_SET": "slow:3000", "MOCK_INPUT_COPY": "/workspace/input"});
    let id = stack.launch(json!({"env": env})).await;
    let (slow, beside) = tokio::join!(
        put(&stack, &id, "mode", json!({"mode_id": "code"})),
        // Nothing else waits for it.
        stack.turn(&id, "/say beside"),
    );
    assert_eq!(beside["text"], "beside");
    slow.refused(502, "agent_error");
    // What it does all the same is known.
    let path = format!("/agents/{id}/session");
    stack.until(&path, |s| s["current_mode"] == "code").await;
    let sent = std::fs::read_to_string(stack.workspace().join("input")).unwrap();
    let sent: Vec<Value> = sent
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let asked = sent
        .iter()
        .find(|frame| frame["method"] == "session/set_mode")
        .unwrap();
    let told = sent
        .iter()
        .find(|frame| frame["method"] == "$/cancel_request")
        .unwrap();
    assert_eq!(told["params"]["requestId"], asked["id"]);
    stack.settle().await;
}
