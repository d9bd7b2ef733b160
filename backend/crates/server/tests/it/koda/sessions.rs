//! Sessions and turns, and what may be changed in them.

use serde_json::{Value, json};

use super::{
    assert_typed, last_sent, own_words, post, put, sent, session, session_until, start, start_with,
    stop_and_resume, turn_ended, turn_until, updates,
};
use crate::support::Stack;

fn given() -> Value {
    json!({
        "systemPrompt": "You are a project-specific coding agent.",
        "allowedSkills": ["code-review"],
        "coreTools": ["read_file", "search_file_content", "replace"],
        "excludeTools": ["run_shell_command"],
    })
}

#[tokio::test]
async fn session_new() {
    let server = json!({"name": "tools", "command": "/bin/tools", "args": [], "env": []});
    let (stack, id) = start_with(json!({"session_params": given(), "mcp_servers": [server]})).await;
    let params = last_sent(&stack, "session/new")["params"].clone();
    for (name, value) in given().as_object().unwrap() {
        assert_eq!(params[name], *value, "{params:#}");
    }
    assert_eq!(
        (&params["cwd"], &params["mcpServers"]),
        (&json!("/workspace"), &json!([server]))
    );
    let known = session_until(&stack, &id, |s| !s["commands"].is_null()).await;
    let model = &known["models"]["availableModels"][0];
    assert_eq!(
        (
            &known["models"]["currentModelId"],
            &model["reasoning"]["supportedEfforts"]
        ),
        (&json!("koda-pro"), &json!(["low", "medium", "high"]))
    );
    assert_eq!(known["config_options"][0]["id"], "models");
    assert_eq!(known["mcp_state"]["discoveryState"], "completed");
    assert_eq!(known["mcp_state"]["servers"][0]["name"], "tools");
    assert_eq!(known["subagent_settings"]["settings"]["enabled"], true);
    // The white list only narrows, and both lists hold.
    let turn = stack.turn(&id, "/write a.txt x").await;
    assert_eq!(turn["text"], "tool: write_file is not available\n");
    assert!(!stack.workspace().join("a.txt").exists());
    // They hold for whoever goes on with it.
    let resumed = stop_and_resume(&stack, &id).await;
    assert_eq!(
        last_sent(&stack, "session/load")["params"]["coreTools"],
        given()["coreTools"]
    );
    assert_eq!(own_words(&stack, &resumed).await["given"], given());
    stack.settle().await;
}

#[tokio::test]
async fn session_fork() {
    let (stack, id) = start_with(json!({"session_params": {"systemPrompt": "be brief"}})).await;
    put(
        &stack,
        &id,
        "config_options/access_policy",
        json!({"value": "read_only"}),
    )
    .await
    .expect(200);
    stack.turn(&id, "/say first").await;
    let second = stack.turn(&id, "/say second").await;
    let labels: Vec<Value> = sent(&stack)
        .iter()
        .filter(|frame| frame["method"] == "session/prompt")
        .map(|frame| frame["params"]["_meta"]["com.kodadev.desktopEntryId"].clone())
        .collect();
    assert_eq!(labels[1], second["id"]);
    let forked = post(&stack, &id, "fork", json!({"turn_id": second["id"]}))
        .await
        .expect(201);
    let own = stack.instance(&id).await["session_id"].clone();
    let params = last_sent(&stack, "session/fork")["params"].clone();
    assert_eq!(
        params,
        json!({
            "sessionId": own, "cwd": "/workspace", "mcpServers": [], "systemPrompt": "be brief",
            "_meta": {"com.kodadev.desktopEntryId": second["id"]},
        })
    );
    // The answer is as that of session/new, and the branch begins with the policy of the agent's start.
    let result = &forked["result"];
    assert_eq!(result["models"]["currentModelId"], "koda-pro");
    assert_eq!(result["configOptions"][1]["currentValue"], "default");
    assert_eq!(result["subagents"]["tasks"], json!([]));
    let without = post(&stack, &id, "fork", json!({}))
        .await
        .refused(502, "agent_error");
    assert_eq!(without["details"]["message"], "session fork unavailable");
    assert_typed(&without["details"], -32002, "entry_missing");
    post(&stack, &id, "stop", json!({})).await.expect(200);
    // Who goes on with the branch sets again what its session had.
    let branch = forked["session_id"].as_str().unwrap();
    let resumed = stack
        .post(&format!("/sessions/{branch}/resume"), &json!({"wait": "ready"}))
        .await
        .expect(201);
    let resumed = resumed["id"].as_str().unwrap();
    let said = own_words(&stack, resumed).await;
    assert_eq!(
        (&said["origin"], &said["turns"], &said["config"]["access_policy"]),
        (&json!("load"), &json!(1), &json!("read_only")),
        "{said:#}"
    );
    assert_eq!(said["given"]["systemPrompt"], "be brief");
    // Once: from then on it has its own.
    put(
        &stack,
        resumed,
        "config_options/access_policy",
        json!({"value": "yolo"}),
    )
    .await
    .expect(200);
    let again = stop_and_resume(&stack, resumed).await;
    assert_eq!(own_words(&stack, &again).await["config"]["access_policy"], "yolo");
    stack.settle().await;
}

#[tokio::test]
async fn session_load() {
    let (stack, id) = start().await;
    stack.turn(&id, "/say remember me").await;
    put(&stack, &id, "model", json!({"model_id": "koda-lite"}))
        .await
        .expect(200);
    put(
        &stack,
        &id,
        "config_options/access_policy",
        json!({"value": "auto_edit"}),
    )
    .await
    .expect(200);
    let resumed = stop_and_resume(&stack, &id).await;
    let own = stack.instance(&id).await["session_id"].clone();
    assert_eq!(
        last_sent(&stack, "session/load")["params"],
        json!({"sessionId": own, "cwd": "/workspace", "mcpServers": []})
    );
    // Its answer is null: what the session offered before is what there is, and what was chosen is chosen again.
    let said = own_words(&stack, &resumed).await;
    assert_eq!(
        (&said["origin"], &said["model"], &said["config"]["access_policy"]),
        (&json!("load"), &json!("koda-lite"), &json!("auto_edit")),
        "{said:#}"
    );
    let known = session(&stack, &resumed).await;
    assert_eq!(
        (
            &known["current_model"],
            &known["config_options"][1]["currentValue"]
        ),
        (&json!("koda-lite"), &json!("auto_edit"))
    );
    let history = stack.turn(&resumed, "/history").await;
    assert!(
        history["text"].as_str().unwrap().contains("remember me"),
        "{history:#}"
    );
    assert!(
        !updates(&stack, &resumed, &["available_commands_update"])
            .await
            .is_empty()
    );
    // One that it does not have.
    post(&stack, &resumed, "stop", json!({})).await.expect(200);
    let unknown = json!({"agent_type": "koda", "session_id": "no-such-session"});
    let lost = stack.try_launch(unknown).await.expect(201);
    assert_eq!(lost["error"]["code"], "session_lost", "{lost:#}");
    let details = &lost["error"]["details"];
    assert_eq!(details["message"], "session restore unavailable");
    assert_typed(details, -32001, "not_found");
    stack.settle().await;
}

#[tokio::test]
async fn session_prompt() {
    let (stack, id) = start().await;
    let text = "Объясни, как устроена авторизация в этом проекте";
    let turn = stack.turn(&id, &format!("{text}\n/say so")).await;
    assert_eq!(
        (&turn["stop_reason"], &turn["text"], &turn["stop_detail"]),
        (&json!("end_turn"), &json!("so"), &Value::Null)
    );
    let params = last_sent(&stack, "session/prompt")["params"].clone();
    assert_eq!(
        params["prompt"],
        json!([{"type": "text", "text": format!("{text}\n/say so")}])
    );
    assert_eq!(params["_meta"]["com.kodadev.desktopEntryId"], turn["id"]);
    // A new prompt ends the one before it; here the caller says whether it may.
    let first = stack.prompt(&id, "/say one\n/hang").await;
    turn_until(&stack, &id, &first, |t| t["text"] == "one").await;
    let next = json!({"message": "/say two", "when_busy": "interrupt", "wait": true});
    let second = post(&stack, &id, "prompt", next).await.expect(200);
    assert_eq!(second["turn"]["text"], "two");
    assert_eq!(turn_ended(&stack, &id, &first).await["status"], "cancelled");
    stack.settle().await;
}

#[tokio::test]
async fn why_a_turn_stopped() {
    let (mut stack, id) = start().await;
    let turn = stack.turn(&id, "/loop").await;
    let detail = json!({"com.kodadev.stopDetail": "loop_detected"});
    for _ in 0..2 {
        let path = format!("/agents/{id}/turns/{}", turn["id"].as_str().unwrap());
        let kept = stack.get(&path).await.expect(200);
        assert_eq!(
            (
                &kept["status"],
                &kept["stop_reason"],
                &kept["stop_detail"],
                &kept["meta"]
            ),
            (
                &json!("completed"),
                &json!("end_turn"),
                &json!("loop_detected"),
                &detail
            )
        );
        assert!(kept["text"].as_str().unwrap().contains("again and again"));
        let ends = crate::protocol::of_kind(&stack, &id, "turn_ended").await;
        assert_eq!(
            (&ends[0]["data"]["stop_detail"], &ends[0]["data"]["meta"]),
            (&json!("loop_detected"), &detail)
        );
        let shown = stack
            .get(&format!("/agents/{id}/events?snapshot=true"))
            .await
            .expect(200);
        assert_eq!(shown["turns"][0]["stop_detail"], "loop_detected");
        stack.kill().await;
        stack.boot().await;
    }
    // Too many requests to the model: what was done stays, and the next prompt goes on.
    let body = json!({"message": "/tool Look search\n/stop max_turn_requests", "wait": true});
    let stopped = post_until_taken(&stack, &id, body).await["turn"].clone();
    assert_eq!(
        (
            &stopped["status"],
            &stopped["stop_reason"],
            &stopped["stop_detail"]
        ),
        (&json!("completed"), &json!("max_turn_requests"), &Value::Null)
    );
    let next = stack.turn(&id, "/history").await;
    assert!(
        next["text"].as_str().unwrap().contains("max_turn_requests"),
        "{next:#}"
    );
    stack.settle().await;
}

/// Prompts after a restart: until the instance is taken up, the server says 503.
async fn post_until_taken(stack: &Stack, id: &str, body: Value) -> Value {
    loop {
        let answer = post(stack, id, "prompt", body.clone()).await;
        if answer.status != 503 {
            return answer.expect(200);
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn session_cancel() {
    let (stack, id) = start().await;
    let turn = stack.prompt(&id, "/say one\n/hang").await;
    turn_until(&stack, &id, &turn, |t| t["text"] == "one").await;
    post(&stack, &id, "cancel", json!({})).await.expect(200);
    let ended = turn_ended(&stack, &id, &turn).await;
    assert_eq!(
        (&ended["status"], &ended["stop_reason"]),
        (&json!("cancelled"), &json!("cancelled"))
    );
    let cancel = last_sent(&stack, "session/cancel");
    let own = stack.instance(&id).await["session_id"].clone();
    assert_eq!(
        (&cancel["params"], cancel.get("id")),
        (&json!({"sessionId": own}), None)
    );
    assert_eq!(stack.turn(&id, "/say on").await["text"], "on");
    stack.settle().await;
}

#[tokio::test]
async fn session_compact() {
    let (stack, id) = start().await;
    stack.turn(&id, &format!("/say {}", "x".repeat(4000))).await;
    let turn = stack.prompt(&id, "/say one\n/hang").await;
    turn_until(&stack, &id, &turn, |t| t["text"] == "one").await;
    post(&stack, &id, "compact", json!({}))
        .await
        .refused(409, "conflict");
    post(&stack, &id, "cancel", json!({})).await.expect(200);
    turn_ended(&stack, &id, &turn).await;
    let done = post(&stack, &id, "compact", json!({})).await.expect(200);
    let result = &done["result"];
    assert_eq!(
        (
            &result["compacted"],
            &result["originalTokenCount"],
            &result["newTokenCount"]
        ),
        (&json!(true), &json!(1000), &json!(100)),
        "{done:#}"
    );
    let told = updates(&stack, &id, &["context_compaction_update"]).await;
    let told: Vec<_> = told.iter().map(|u| (&u["status"], &u["newTokenCount"])).collect();
    assert_eq!(
        told,
        [
            (&json!("in_progress"), &Value::Null),
            (&json!("completed"), &json!(100))
        ]
    );
    stack.settle().await;
}

#[tokio::test]
async fn session_set_config_option() {
    let (stack, id) = start().await;
    let done = put(
        &stack,
        &id,
        "config_options/models",
        json!({"value": "koda-lite"}),
    )
    .await
    .expect(200);
    assert_eq!(
        last_sent(&stack, "session/set_config_option")["params"],
        json!({
            "sessionId": stack.instance(&id).await["session_id"], "configId": "models", "value": "koda-lite",
        })
    );
    assert_eq!(done["result"]["configOptions"][0]["currentValue"], "koda-lite");
    assert_eq!(own_words(&stack, &id).await["model"], "koda-lite");
    // The option is the model by another name.
    let known = session(&stack, &id).await;
    assert_eq!(
        (
            &known["current_model"],
            &known["config_options"][0]["currentValue"]
        ),
        (&json!("koda-lite"), &json!("koda-lite"))
    );
    put(&stack, &id, "config_options/models", json!({"value": "none"}))
        .await
        .refused(400, "validation_error");
    put(&stack, &id, "config_options/none", json!({"value": "x"}))
        .await
        .refused(404, "not_found");
    let resumed = stop_and_resume(&stack, &id).await;
    assert_eq!(own_words(&stack, &resumed).await["model"], "koda-lite");
    stack.settle().await;
}

#[tokio::test]
async fn session_set_model() {
    let (stack, id) = start().await;
    let done = put(&stack, &id, "model", json!({"model_id": "koda-lite"}))
        .await
        .expect(200);
    assert_eq!(done["result"], json!({}));
    assert_eq!(own_words(&stack, &id).await["model"], "koda-lite");
    assert_eq!(session(&stack, &id).await["current_model"], "koda-lite");
    put(&stack, &id, "model", json!({"model_id": "none"}))
        .await
        .refused(400, "validation_error");
    // One that is not in the list of session/new, at a launch that asks for it all the same.
    post(&stack, &id, "stop", json!({})).await.expect(200);
    let answer = stack
        .try_launch(json!({"agent_type": "koda", "model": "none"}))
        .await
        .expect(201);
    assert_eq!(answer["error"]["code"], "handshake_failed", "{answer:#}");
    assert_typed(&answer["error"]["details"], -32602, "unknown_model");
    stack.settle().await;
}

#[tokio::test]
async fn session_set_reasoning_effort() {
    let (stack, id) = start().await;
    let done = put(&stack, &id, "reasoning_effort", json!({"effort": "high"}))
        .await
        .expect(200);
    let effort = |models: &Value| models["availableModels"][0]["reasoning"]["currentEffort"].clone();
    assert_eq!(effort(&done["result"]["models"]), "high");
    assert_eq!(effort(&session(&stack, &id).await["models"]), "high");
    // What a model supports differs.
    put(&stack, &id, "model", json!({"model_id": "koda-lite"}))
        .await
        .expect(200);
    let refused = put(&stack, &id, "reasoning_effort", json!({"effort": "high"}))
        .await
        .refused(400, "validation_error");
    assert_eq!(refused["details"]["allowed"], json!(["low", "medium"]));
    // It is the user's: a branch has it too.
    let turn = stack.turn(&id, "/say x").await;
    let forked = post(&stack, &id, "fork", json!({"turn_id": turn["id"]}))
        .await
        .expect(201);
    assert_eq!(effort(&forked["result"]["models"]), "high");
    stack.settle().await;
}

#[tokio::test]
async fn session_set_plan() {
    let (stack, id) = start().await;
    put(&stack, &id, "mode", json!({"mode_id": "plan"}))
        .await
        .expect(200);
    let turn = stack.prompt(&id, "/say one\n/hang").await;
    turn_until(&stack, &id, &turn, |t| t["text"] == "one").await;
    // Also while a turn runs.
    let entries =
        json!([{"content": "Изучить роутер"}, {"content": "Внести правки", "status": "in_progress"}]);
    let body = json!({"entries": entries, "explanation": "Документацию отложили"});
    put(&stack, &id, "plan", body).await.expect(200);
    assert_eq!(
        last_sent(&stack, "session/set_plan")["params"]["explanation"],
        "Документацию отложили"
    );
    let plan = session_until(&stack, &id, |s| s["plan"][1]["status"] == "in_progress").await["plan"].clone();
    assert_eq!(plan[0]["status"], "pending");
    // What cannot be a plan leaves the old one.
    let two = json!([{"content": "a", "status": "in_progress"}, {"content": "b", "status": "in_progress"}]);
    let refused = put(&stack, &id, "plan", json!({"entries": two}))
        .await
        .refused(502, "agent_error");
    assert_typed(&refused["details"], -32602, "invalid_plan");
    put(&stack, &id, "plan", json!({"entries": [{"content": " "}]}))
        .await
        .refused(400, "validation_error");
    assert_eq!(session(&stack, &id).await["plan"], plan);
    // No entries give it up, and the mode stays.
    put(&stack, &id, "plan", json!({"entries": []})).await.expect(200);
    session_until(&stack, &id, |s| s["plan"] == json!([])).await;
    post(&stack, &id, "cancel", json!({})).await.expect(200);
    turn_ended(&stack, &id, &turn).await;
    let said = own_words(&stack, &id).await;
    assert_eq!((&said["mode"], &said["plan"]), (&json!("plan"), &json!([])));
    stack.settle().await;
}

#[tokio::test]
async fn access_policy_without_a_restart() {
    let (stack, id) = start().await;
    let said = session(&stack, &id).await;
    assert_eq!(
        said["agent_capabilities"]["sessionCapabilities"]["accessPolicy"],
        json!({})
    );
    let option = said["config_options"][1].clone();
    let values: Vec<_> = option["options"]
        .as_array()
        .unwrap()
        .iter()
        .map(|o| &o["value"])
        .collect();
    assert_eq!(values, ["read_only", "default", "auto_edit", "yolo"]);
    let set = async |value: &str| {
        put(
            &stack,
            &id,
            "config_options/access_policy",
            json!({"value": value}),
        )
        .await
    };
    let done = set("read_only").await.expect(200);
    assert_eq!(done["result"]["configOptions"][1]["currentValue"], "read_only");
    let turn = stack
        .turn(&id, "/write a.txt x\n/diff b.txt y\n/read input")
        .await;
    let text = turn["text"].as_str().unwrap();
    assert!(
        text.starts_with("tool: write_file is not available\ntool: replace is not available\nread: "),
        "{text}"
    );
    // The mode is another matter.
    put(&stack, &id, "mode", json!({"mode_id": "default"}))
        .await
        .expect(200);
    let turn = stack.turn(&id, "/write a.txt x").await;
    assert_eq!(turn["text"], "tool: write_file is not available\n");
    assert!(!stack.workspace().join("a.txt").exists());
    set("auto_edit").await.expect(200);
    stack.turn(&id, "/write a.txt x").await;
    assert!(stack.workspace().join("a.txt").exists());
    set("none").await.refused(400, "validation_error");
    let bad_mode = put(&stack, &id, "mode", json!({"mode_id": "none"}))
        .await
        .refused(502, "agent_error");
    assert_typed(&bad_mode["details"], -32602, "unknown_mode");
    stack.settle().await;
}
