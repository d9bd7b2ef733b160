//! What the agent asks of its client and tells it; models of the user's; errors.

use serde_json::{Value, json};

use super::{
    done, fails, last_sent, post, put, session, session_until, start, start_with, turn_ended, turn_until,
    updates,
};
use crate::support::Stack;

async fn lines(stack: &Stack, id: &str, script: &str) -> Vec<String> {
    let turn = stack.turn(id, script).await;
    let text = turn["text"].as_str().unwrap();
    text.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn koda_custom_models() {
    const SECRET: &str = "sk-canary-7d1c";
    let (stack, id) = start().await;
    let list = json!({"models": []});
    assert_eq!(
        done(&stack, &id, "koda/custom_models/list", json!({})).await,
        list
    );
    assert_eq!(last_sent(&stack, "koda/custom_models/list")["params"], json!({}));
    let upsert = "koda/custom_models/upsert";
    let mut model = json!({"modelId": "mine", "baseUrl": "https://api.example.com/v1"});
    fails(&stack, &id, upsert, model.clone(), -32602, "api_key_missing").await;
    model["apiKey"] = json!(SECRET);
    let own = json!([{"modelId": "mine", "baseUrl": "https://api.example.com/v1"}]);
    assert_eq!(
        done(&stack, &id, upsert, model).await["models"],
        own,
        "without its key"
    );
    // A session that is opened from now on has it; one that was open has not.
    put(&stack, &id, "model", json!({"model_id": "mine"}))
        .await
        .refused(400, "validation_error");
    let turn = stack.turn(&id, "/say x").await;
    let forked = post(&stack, &id, "fork", json!({"turn_id": turn["id"]}))
        .await
        .expect(201);
    assert_eq!(
        forked["result"]["models"]["availableModels"][2]["modelId"],
        "mine"
    );
    // Another name and address; a known model needs no key.
    let renamed = json!({"modelId": "ours", "baseUrl": "https://b.example.com", "previousModelId": "mine"});
    let after = done(&stack, &id, upsert, renamed).await["models"].clone();
    assert_eq!(
        after,
        json!([{"modelId": "ours", "baseUrl": "https://b.example.com"}])
    );
    let delete = "koda/custom_models/delete";
    fails(
        &stack,
        &id,
        delete,
        json!({"modelId": "mine"}),
        -32602,
        "model_not_found",
    )
    .await;
    assert_eq!(
        done(&stack, &id, delete, json!({"modelId": "ours"})).await["models"],
        json!([])
    );
    // Its key is nowhere that callers see.
    let events = json!(stack.events(&id).await).to_string();
    let logs = stack.logs(&id, "stdout,stderr,system").await.join("\n");
    assert!(!events.contains(SECRET) && !logs.contains(SECRET));
    stack.settle().await;
}

#[tokio::test]
async fn file_system() {
    let (stack, id) = start().await;
    std::fs::write(stack.workspace().join("main.ts"), "one\ntwo\nthree\n").unwrap();
    let script =
        "/fs-read main.ts\n/fs-read main.ts 2 1\n/fs-write README.md Новое содержимое файла\n/fs-read none";
    let said = lines(&stack, &id, script).await;
    assert_eq!(
        said[..2],
        [
            r#"fs-read: "one\ntwo\nthree\n""#.to_owned(),
            r#"fs-read: "two\n""#.to_owned()
        ]
    );
    assert!(!said[2].contains("error"), "{said:?}");
    assert!(said[3].starts_with("fs-read: error -32002"), "{said:?}");
    assert_eq!(
        std::fs::read_to_string(stack.workspace().join("README.md")).unwrap(),
        "Новое содержимое файла"
    );
    stack.settle().await;
}

#[tokio::test]
async fn terminals() {
    let (stack, id) = start().await;
    // The image holds nothing else that could run.
    let script = [
        "/term t limit=524288 cwd=/workspace env=CI=1 /mock-agent --frob",
        "/term-wait t",
        "/term-output t",
        "/term-release t",
        "/term u env=MOCK_START=hang /mock-agent --acp",
        "/term-kill u",
        "/term-wait u",
        "/term-release u",
    ];
    let said = lines(&stack, &id, &script.join("\n")).await;
    assert!(said[0].starts_with("term: t \""), "{said:?}");
    assert_eq!(said[1], "term-wait: code 2");
    assert!(
        said[2].starts_with("term-output: truncated=false code 2 ") && said[2].contains("--frob"),
        "{said:?}"
    );
    assert_eq!(said[3], "term-release: {}");
    assert_eq!(
        said[5..],
        [
            "term-kill: {}".to_owned(),
            "term-wait: signal SIGKILL".to_owned(),
            "term-release: {}".to_owned()
        ]
    );
    stack.settle().await;
}

#[tokio::test]
async fn permission_request() {
    let (stack, id) = start_with(json!({"permission_policy": "ask"})).await;
    let path = format!("/agents/{id}/permissions?status=pending");
    for (answer, said) in [
        (
            json!({"option_id": "proceed_once"}),
            "permission: selected proceed_once\n",
        ),
        (json!({"kind": "reject_once"}), "permission: selected cancel\n"),
        (json!({"outcome": "cancelled"}), "permission: cancelled\n"),
    ] {
        let turn = stack
            .prompt(&id, "/permission allow_always,allow_once,reject_once keep")
            .await;
        let page = stack.until(&path, |page| page["total"] == 1).await;
        let asked = &page["permissions"][0];
        let options: Vec<_> = asked["options"]
            .as_array()
            .unwrap()
            .iter()
            .map(|o| (o["optionId"].as_str().unwrap(), o["name"].as_str().unwrap()))
            .collect();
        assert_eq!(
            options,
            [
                ("proceed_always", "Allow All Edits"),
                ("proceed_once", "Allow"),
                ("cancel", "Reject")
            ]
        );
        let permission = format!("permissions/{}", asked["id"].as_str().unwrap());
        post(&stack, &id, &permission, answer).await.expect(200);
        assert_eq!(turn_ended(&stack, &id, &turn).await["text"], said);
    }
    stack.settle().await;
}

#[tokio::test]
async fn session_update() {
    let (stack, id) = start().await;
    // What a session begins with.
    let begun = session_until(&stack, &id, |s| !s["subagent_definitions"].is_null()).await;
    assert!(begun["commands"].is_array() && begun["mcp_state"].is_object());
    let kinds: Vec<Value> = updates(&stack, &id, &[])
        .await
        .iter()
        .map(|u| u["sessionUpdate"].clone())
        .collect();
    assert_eq!(
        kinds[..4],
        [
            "available_commands_update",
            "mcp_state_update",
            "session_info_update",
            "context_usage_update"
        ]
    );
    let turn = stack
        .turn(
            &id,
            "/title Авторизация\n/say Авторизация реализована через JWT...\n/think so\n/unknown-update",
        )
        .await;
    assert_eq!(turn["text"], "Авторизация реализована через JWT...");
    assert_eq!(session(&stack, &id).await["title"], "Авторизация");
    let events = stack.events(&id).await;
    let own = stack.instance(&id).await["session_id"].clone();
    let of_turn: Vec<_> = events
        .iter()
        .filter(|e| e["kind"] == "update" && e["turn_id"] == turn["id"])
        .map(|e| &e["data"])
        .collect();
    assert_eq!(of_turn.len(), 5);
    assert_eq!(
        *of_turn[1],
        json!({
            "sessionId": own,
            "update": {
                "sessionUpdate": "agent_message_chunk",
                "content": {"type": "text", "text": "Авторизация реализована через JWT..."},
            },
        })
    );
    assert_eq!(of_turn[3]["update"]["sessionUpdate"], "mock_unknown_update");
    stack.settle().await;
}

#[tokio::test]
async fn tool_calls() {
    let (stack, id) = start().await;
    let turn = stack
        .prompt(
            &id,
            "/tool Run the tests execute\n/diff main.ts two\n/say done\n/hang",
        )
        .await;
    turn_until(&stack, &id, &turn, |t| t["text"] == "done").await;
    let told = updates(&stack, &id, &["tool_call", "tool_call_update"]).await;
    let told: Vec<_> = told
        .iter()
        .map(|u| (u["toolCallId"].as_str().unwrap(), u["status"].as_str().unwrap()))
        .collect();
    assert_eq!(
        told,
        [
            ("call-1-1", "pending"),
            ("call-1-1", "in_progress"),
            ("call-1-1", "completed"),
            ("call-1-2", "pending"),
            ("call-1-2", "in_progress"),
            ("call-1-2", "completed")
        ]
    );
    let shown = stack
        .get(&format!("/agents/{id}/events?snapshot=true"))
        .await
        .expect(200);
    assert_eq!(shown["open_tool_calls"], json!([]));
    post(&stack, &id, "cancel", json!({})).await.expect(200);
    turn_ended(&stack, &id, &turn).await;
    stack.settle().await;
}

#[tokio::test]
async fn content_types() {
    let (stack, id) = start().await;
    std::fs::write(stack.workspace().join("notes.txt"), "twelve bytes").unwrap();
    let prompt = json!([
        {"type": "text", "text": "/blocks"},
        {"type": "image", "data": "eA==", "mimeType": "image/png"},
        {"type": "audio", "data": "eA==", "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "file:///workspace/a", "text": "x"}},
        {"type": "resource_link", "uri": "file:///workspace/notes.txt", "name": "notes.txt"},
    ]);
    let body = json!({"prompt": prompt, "wait": true});
    let turn = post(&stack, &id, "prompt", body).await.expect(200)["turn"].clone();
    // The link is read through the client, which says what it does.
    assert_eq!(
        turn["text"],
        "file: /workspace/notes.txt: 12 bytes\nblocks: text,image,audio,resource,resource_link\n"
    );
    let read = crate::protocol::of_kind(&stack, &id, "fs").await;
    assert_eq!(
        (&read[0]["data"]["operation"], &read[0]["data"]["path"]),
        (&json!("read"), &json!("/workspace/notes.txt"))
    );
    // What a search finds comes as links.
    let link = json!({"type": "resource_link", "uri": "https://example.com/jwt", "name": "JWT"});
    let found = json!({
        "sessionUpdate": "tool_call_update", "toolCallId": "search", "status": "completed",
        "content": [{"type": "content", "content": link}],
    });
    stack.turn(&id, &format!("/update {found}")).await;
    let told = updates(&stack, &id, &["tool_call_update"]).await;
    assert_eq!(told.last(), Some(&found));
    stack.settle().await;
}

#[tokio::test]
async fn errors() {
    let (mut stack, id) = start().await;
    let error = json!({
        "code": -32603, "message": "Provider failed", "data": {"details": "no quota is left", "reason": "quota"},
    });
    let turn = stack.turn(&id, &format!("/error-data {error}")).await;
    for _ in 0..2 {
        let path = format!("/agents/{id}/turns/{}", turn["id"].as_str().unwrap());
        let kept = stack.get(&path).await.expect(200);
        assert_eq!(kept["status"], "failed");
        assert_eq!(
            kept["error"],
            json!({"code": "agent_error", "message": "Provider failed", "details": error})
        );
        let ends = crate::protocol::of_kind(&stack, &id, "turn_ended").await;
        assert_eq!(ends[0]["data"]["error"]["details"], error);
        stack.kill().await;
        stack.boot().await;
    }
    // The standard codes, and Koda's own, with details and reason.
    // It can be asked once it is taken up.
    stack.turn(&id, "/say here").await;
    fails(&stack, &id, "koda/none", json!({}), -32601, "method_not_found").await;
    let params = json!({"taskId": 7});
    fails(
        &stack,
        &id,
        "session/subagent_details",
        params,
        -32602,
        "invalid_params",
    )
    .await;
    let refused = post(&stack, &id, "fork", json!({}))
        .await
        .refused(502, "agent_error");
    assert_eq!(
        refused["details"],
        json!({
            "code": -32002, "message": "session fork unavailable",
            "data": {"details": "session fork unavailable: entry_missing", "reason": "entry_missing"},
        })
    );
    stack.settle().await;
}
