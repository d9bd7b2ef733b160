//! Subagents: what is kept of them, and what can be asked of them.

use serde_json::{Value, json};

use super::{
    assert_typed, done, fails, last_sent, post, put, rpc, sent, session, session_until, start, start_with,
    stop_and_resume, turn_ended, updates,
};
use crate::support::{LIMIT, Stack};

/// What is kept of one.
fn task(session: &Value, id: &str) -> Value {
    let list = session["subagents"].as_array().unwrap();
    let found = list.iter().find(|task| task["task_id"] == id);
    found.cloned().unwrap_or_default()
}

async fn task_until(stack: &Stack, id: &str, name: &str, status: &str) -> Value {
    let known = session_until(stack, id, |s| task(s, name)["task"]["status"] == status).await;
    task(&known, name)
}

fn settings_file(stack: &Stack, section: &Value) {
    let home = stack.workspace().join("home");
    std::fs::create_dir_all(&home).unwrap();
    // In one step, as an editor does it.
    std::fs::write(home.join("new"), json!({"subagents": section}).to_string()).unwrap();
    std::fs::rename(home.join("new"), home.join("settings.json")).unwrap();
}

#[tokio::test]
async fn background_subagents() {
    let (stack, id) = start().await;
    let offered = &sent(&stack)[0]["params"]["clientCapabilities"];
    assert_eq!(offered["subagents"], true);
    let said = session(&stack, &id).await;
    assert_eq!(
        said["agent_capabilities"]["sessionCapabilities"]["subagents"],
        json!({
            "maxConcurrentRange": {"min": 1, "max": 8}, "maxSteps": 50, "releaseWait": true, "liveEnable": true,
            "roles": true,
        })
    );
    assert_eq!(said["subagents"], json!([]));
    // The type decides: an agent whose client declares nothing works with its subagents all the same.
    let silent = stack.launch(json!({"agent_type": "silent"})).await;
    let turn = stack.turn(&silent, "/subagent look").await;
    assert_eq!(turn["text"], "subagent task-1: done: look\n");
    let kinds = ["subagent_update", "subagent_turn", "subagent_settings_update"];
    assert_eq!(updates(&stack, &silent, &kinds).await, Vec::<Value>::new());
    // What it answers when it is asked is known from then on.
    let known = session(&stack, &silent).await;
    assert_eq!(known["subagents"], json!([]));
    let list = done(&stack, &silent, "session/subagent_list", json!({})).await;
    let known = task(&session(&stack, &silent).await, "task-1");
    assert_eq!(known["task"], list["tasks"][0], "{list:#}");
    stack.settle().await;
}

#[tokio::test]
async fn subagent_notifications() {
    let (mut stack, id) = start().await;
    let turn = stack.turn(&id, "/subagent steps=3 look at it").await;
    assert_eq!(turn["text"], "subagent task-1: done: look at it\n");
    let calls = updates(&stack, &id, &["tool_call"]).await;
    let known = task(&session(&stack, &id).await, "task-1");
    assert_eq!(
        (
            &known["task"]["status"],
            &known["task"]["deliveryId"],
            &known["task"]["result"]
        ),
        (
            &json!("completed"),
            &json!("delivery-1"),
            &json!("done: look at it")
        )
    );
    assert_eq!(known["task"]["acpToolCallId"], calls[0]["toolCallId"]);
    assert_eq!(
        known["activity"],
        json!({"kind": "tool", "status": "completed", "text": "step 3"})
    );
    assert_eq!(
        known["task"]["contextUsage"],
        json!({"usedTokens": 3000, "maxTokens": 200_000})
    );
    // All that it tells comes backwards: what is newest stays.
    stack.turn(&id, "/subagent steps=5 backwards again").await;
    // Its start, five steps, its end, and that this was delivered, which may come first.
    let all = async {
        let of_second = |u: &&Value| u["task"]["taskId"] == "task-2";
        while updates(&stack, &id, &["subagent_update"])
            .await
            .iter()
            .filter(of_second)
            .count()
            < 8
        {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, all).await.expect("it tells less");
    let known = task(&session(&stack, &id).await, "task-2");
    assert_eq!(known["task"]["status"], "completed");
    assert_eq!(known["task"]["contextUsage"]["usedTokens"], 5000);

    // Snapshots in no order, before and after a restart of the server.
    let tell = |status: &str, at: &str, more: Value| {
        let mut update = json!({
            "sessionUpdate": "subagent_update",
            "task": {"taskId": "t", "status": status, "updatedAt": format!("2026-12-01T10:00:{at}Z")},
        });
        for (key, value) in more.as_object().unwrap() {
            update[key] = value.clone();
        }
        format!("/update {update}")
    };
    let script = [
        tell("completed", "10", json!({"deliveryId": "d"})),
        tell(
            "running",
            "05",
            json!({"activity": {"kind": "model", "text": "old"}}),
        ),
        r#"/update {"sessionUpdate":"subagent_update","task":{"status":"of none"}}"#.to_owned(),
        r#"/update {"sessionUpdate":"subagent_update","task":"nonsense"}"#.to_owned(),
    ];
    stack.turn(&id, &script.join("\n")).await;
    let newest =
        json!({"taskId": "t", "status": "completed", "updatedAt": "2026-12-01T10:00:10Z", "deliveryId": "d"});
    let kept = task(&session(&stack, &id).await, "t");
    assert_eq!((&kept["task"], &kept["activity"]), (&newest, &Value::Null));
    stack.kill().await;
    stack.boot().await;
    let stale = json!({"message": tell("running", "09.999", json!({})), "wait": true});
    let path = format!("/agents/{id}/prompt");
    while stack.post(&path, &stale).await.status == 503 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let shown = stack
        .get(&format!("/agents/{id}/events?snapshot=true"))
        .await
        .expect(200);
    assert_eq!(task(&shown["session"], "t")["task"], newest);
    // It is on record all the same.
    let told = updates(&stack, &id, &["subagent_update"]).await;
    let told: Vec<_> = told
        .iter()
        .filter(|u| u["task"]["taskId"] == "t")
        .map(|u| &u["task"]["status"])
        .collect();
    assert_eq!(told, ["completed", "running", "running"]);
    let next = tell(
        "running",
        "11",
        json!({"activity": {"kind": "model", "text": "new"}}),
    );
    stack.turn(&id, &next).await;
    let kept = task(&session(&stack, &id).await, "t");
    assert_eq!(
        (&kept["task"]["status"], &kept["activity"]["text"]),
        (&json!("running"), &json!("new"))
    );
    assert!(kept["task"]["deliveryId"].is_null());

    // The next instance of the session is told at its start, and what was told before stays.
    let resumed = stop_and_resume(&stack, &id).await;
    session_until(&stack, &resumed, |s| !s["subagent_definitions"].is_null()).await;
    let known = session(&stack, &resumed).await;
    for name in ["task-1", "task-2", "t"] {
        assert!(task(&known, name)["task"].is_object(), "{name}: {known:#}");
    }
    stack.settle().await;
}

#[tokio::test]
async fn waiting_for_subagents() {
    let (stack, id) = start().await;
    let script = "/subagent ms=60000 slow\n/boundary\n/say after";
    let waiting = async |n: usize| {
        let turn = stack.prompt(&id, script).await;
        let name = format!("task-{n}");
        let known = session_until(&stack, &id, |s| {
            s["subagent_turn"]["state"] == "waiting" && s["subagent_turn"]["taskIds"] == json!([name])
        })
        .await;
        assert_eq!(task(&known, &name)["task"]["status"], "running");
        (turn, name)
    };
    let cancel = async |name: &str, then: &str| {
        let answer = done(&stack, &id, "session/subagent_cancel", json!({"taskId": name})).await;
        assert_eq!(answer, json!({"cancelled": true}));
        // The marker before the delivery, or the one after it.
        let known = session_until(&stack, &id, |s| {
            task(s, name)["task"]["deliveryId"].is_string() && s["subagent_turn"]["state"] == then
        })
        .await;
        assert_eq!(task(&known, name)["task"]["status"], "cancelled");
    };
    let release = "session/subagent_release_wait";
    // Released, the turn goes on without, and what comes of it has a turn of its own.
    let (turn, name) = waiting(1).await;
    assert_eq!(
        done(&stack, &id, release, json!({})).await,
        json!({"released": true})
    );
    let ended = turn_ended(&stack, &id, &turn).await;
    assert_eq!(
        (&ended["status"], &ended["text"]),
        (&json!("completed"), &json!("after"))
    );
    cancel(&name, "finished").await;
    let markers = updates(&stack, &id, &["subagent_turn", "agent_message_chunk"]).await;
    let markers: Vec<_> = markers
        .iter()
        .map(|u| {
            u["state"]
                .as_str()
                .unwrap_or_else(|| u["content"]["text"].as_str().unwrap())
        })
        .collect();
    assert_eq!(
        markers,
        [
            "waiting",
            "resumed",
            "after",
            "started",
            "subagent task-1: cancelled\n",
            "finished"
        ]
    );
    // The end of the last one ends the pause.
    let (turn, name) = waiting(2).await;
    cancel(&name, "resumed").await;
    let ended = turn_ended(&stack, &id, &turn).await;
    assert_eq!(ended["text"], "subagent task-2: cancelled\nafter");
    // Who cancels the turn does not end its subagents.
    let (turn, name) = waiting(3).await;
    post(&stack, &id, "cancel", json!({})).await.expect(200);
    assert_eq!(turn_ended(&stack, &id, &turn).await["status"], "cancelled");
    assert_eq!(
        task(&session(&stack, &id).await, &name)["task"]["status"],
        "running"
    );
    cancel(&name, "finished").await;
    // Another process lets the model go on.
    let (turn, name) = waiting(4).await;
    settings_file(&stack, &json!({"allowParentToContinue": true}));
    assert_eq!(turn_ended(&stack, &id, &turn).await["text"], "after");
    // It is told by another thread than the turn's, maybe after that.
    session_until(&stack, &id, |s| {
        s["subagent_settings"]["settings"]["allowParentToContinue"] == true
    })
    .await;
    cancel(&name, "finished").await;
    stack.settle().await;
}

#[tokio::test]
async fn subagent_roles() {
    let (stack, id) = start().await;
    let call = async |what: &str, params: Value| {
        rpc(&stack, &id, &format!("session/subagent_definition{what}"), params).await
    };
    let made =
        call("_create", json!({"name": "Code Review!", "uiLanguage": "ru-RU"})).await["result"].clone();
    let uri = "file:///workspace/.koda/agents/code-review.md";
    assert_eq!(made, json!({"name": "code-review", "sourceUri": uri}));
    // Told before the answer.
    let known = session(&stack, &id).await["subagent_definitions"].clone();
    assert_eq!(known["agents"][0]["name"], "code-review");
    assert_eq!(known["agents"], call("s", json!({})).await["result"]["agents"]);
    let path = stack.workspace().join(".koda/agents/code-review.md");
    let before = std::fs::read_to_string(&path).unwrap();
    assert!(before.contains("Опишите"), "{before}");
    let again = call("_create", json!({"name": "code review"})).await;
    assert_typed(&again["error"], -32602, "role_exists");
    let read = call("_read", json!({"name": "code-review", "sourceUri": uri})).await["result"].clone();
    assert_eq!(
        (&read["model"], &read["tools"], &read["supportedReasoningEfforts"]),
        (&Value::Null, &Value::Null, &json!(["low", "medium", "high"]))
    );
    // A file that the catalogue would refuse stays as it is.
    let mut role = json!({
        "name": "code-review", "sourceUri": uri, "description": "Looks", "prompt": "Be strict.",
        "tools": ["run_shell_command"],
    });
    let refused = call("_write", role.clone()).await;
    assert_typed(&refused["error"], -32602, "role_invalid");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), before);
    role["tools"] = json!(["glob"]);
    assert!(call("_write", role).await["error"].is_null());
    assert!(std::fs::read_to_string(&path).unwrap().contains("tools: [glob]"));
    // Files that others write are seen too, the broken ones as well.
    std::fs::write(path.with_file_name("broken.md"), "no head").unwrap();
    let known = session_until(&stack, &id, |s| {
        s["subagent_definitions"]["errors"][0]["name"] == "broken"
    })
    .await;
    assert_eq!(
        known["subagent_definitions"]["agents"][0]["tools"],
        json!(["glob"])
    );
    // A task has its role's name; a role that is not there, or is switched off, is an error of the call.
    stack.turn(&id, "/subagent role=code-review look").await;
    assert_eq!(
        task(&session(&stack, &id).await, "task-1")["task"]["agentName"],
        "code-review"
    );
    let off = r#"/subagent-settings {"disabledAgentNames":["code-review"]}"#;
    stack
        .turn(
            &id,
            &format!("/subagent role=none look\n{off}\n/subagent role=code-review look"),
        )
        .await;
    let calls = updates(&stack, &id, &["tool_call_update"]).await;
    let ends: Vec<_> = calls
        .iter()
        .map(|u| {
            (
                u["status"].as_str().unwrap(),
                u["content"][0]["content"]["text"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        ends,
        [
            ("completed", "started task-1"),
            ("failed", "there is no role 'none'"),
            ("failed", "role 'code-review' is disabled")
        ]
    );
    // A client starts roles with a prompt, each with the prompt as its task; they have ended before the model is asked.
    stack
        .turn(&id, "/subagent-settings {\"disabledAgentNames\":[]}")
        .await;
    let roles = json!(["code-review", "code-review", "No Name"]);
    let body = json!({
        "message": "/say after", "prompt_meta": {"com.kodadev.subagentRoles": roles}, "wait": true,
    });
    let turn = post(&stack, &id, "prompt", body).await.expect(200)["turn"].clone();
    assert_eq!(
        (&turn["text"], &turn["prompt_meta"]),
        (
            &json!("subagent task-2: done: /say after\nafter"),
            &json!({"com.kodadev.subagentRoles": roles})
        )
    );
    assert_eq!(
        last_sent(&stack, "session/prompt")["params"]["_meta"],
        json!({"com.kodadev.subagentRoles": roles, "com.kodadev.desktopEntryId": turn["id"]})
    );
    let wrong = call(
        "_delete",
        json!({"name": "code-review", "sourceUri": "file:///elsewhere"}),
    )
    .await;
    assert_typed(&wrong["error"], -32602, "role_not_found");
    let deleted = call("_delete", json!({"name": "code-review", "sourceUri": uri})).await;
    assert!(deleted["error"].is_null() && !path.exists());
    assert_eq!(
        session(&stack, &id).await["subagent_definitions"]["agents"],
        json!([])
    );
    stack.settle().await;
}

#[tokio::test]
async fn subagent_tools() {
    let (stack, id) = start().await;
    let known = session_until(&stack, &id, |s| {
        s["subagent_settings"]["availableTools"].is_array()
    })
    .await;
    let available = ["read_file", "search_file_content", "glob", "list_directory"];
    assert_eq!(known["subagent_settings"]["availableTools"], json!(available));
    assert_eq!(known["subagent_settings"]["settings"]["tools"], Value::Null);
    // The setting only narrows; none is a choice too, and null is all.
    for (tools, kept) in [
        (json!(["glob", "run_shell_command"]), json!(["glob"])),
        (json!([]), json!([])),
        (Value::Null, Value::Null),
    ] {
        settings_file(&stack, &json!({"tools": tools}));
        session_until(&stack, &id, |s| {
            s["subagent_settings"]["settings"]["tools"] == kept
        })
        .await;
    }
    // What there is changes with the policy, and with it the next message.
    put(
        &stack,
        &id,
        "config_options/access_policy",
        json!({"value": "yolo"}),
    )
    .await
    .expect(200);
    settings_file(&stack, &json!({"enabled": false}));
    let known = session_until(&stack, &id, |s| {
        s["subagent_settings"]["settings"]["enabled"] == false
    })
    .await;
    assert_eq!(known["subagent_settings"]["availableTools"][4], "web_search");
    stack.turn(&id, "/subagent look").await;
    let calls = updates(&stack, &id, &["tool_call_update"]).await;
    assert_eq!(
        calls[0]["content"][0]["content"]["text"],
        "subagents are disabled"
    );
    stack.settle().await;
}

#[tokio::test]
async fn subagent_management() {
    let (stack, id) = start().await;
    let call = async |what: &str, params: Value| {
        done(&stack, &id, &format!("session/subagent_{what}"), params).await
    };
    stack
        .turn(&id, "/subagent steps=2 stall look\n/subagent fail try")
        .await;
    let list = call("list", json!({})).await;
    let statuses: Vec<_> = list["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| &t["status"])
        .collect();
    assert_eq!(statuses, ["stalled", "failed"]);
    assert_eq!(list["settings"]["maxConcurrent"], 4);
    let own = stack.instance(&id).await["session_id"].clone();
    assert_eq!(
        last_sent(&stack, "session/subagent_list")["params"],
        json!({"sessionId": own})
    );
    // One that stands still goes on; later that is no error.
    let one = json!({"taskId": "task-1"});
    assert_eq!(call("extend", one.clone()).await, json!({"extended": true}));
    task_until(&stack, &id, "task-1", "completed").await;
    assert_eq!(call("extend", one.clone()).await, json!({"extended": false}));
    let details = call("details", one.clone()).await;
    let kinds: Vec<_> = details["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["kind"])
        .collect();
    assert_eq!(kinds, ["user", "tool", "model", "tool", "model"]);
    assert_eq!(details["contextUsage"]["usedTokens"], 3000);
    // Again from its beginning.
    call("restart", json!({"taskId": "task-2"})).await;
    task_until(&stack, &id, "task-2", "completed").await;
    // One that runs, beside the turn.
    stack
        .turn(
            &id,
            "/subagent-settings {\"allowParentToContinue\":true}\n/subagent ms=60000 long",
        )
        .await;
    let third = json!({"taskId": "task-3"});
    for (what, reason) in [
        ("restart", "task_running"),
        ("compress", "task_running"),
        ("prompt", "task_running"),
    ] {
        let method = format!("session/subagent_{what}");
        fails(&stack, &id, &method, third.clone(), -32600, reason).await;
    }
    assert_eq!(call("cancel", third.clone()).await, json!({"cancelled": true}));
    task_until(&stack, &id, "task-3", "cancelled").await;
    assert_eq!(call("cancel", third).await, json!({"cancelled": false}));
    let unknown = json!({"taskId": "none"});
    fails(
        &stack,
        &id,
        "session/subagent_cancel",
        unknown,
        -32602,
        "task_not_found",
    )
    .await;
    fails(
        &stack,
        &id,
        "session/subagent_frob",
        json!({}),
        -32601,
        "method_not_found",
    )
    .await;
    stack.settle().await;
}

#[tokio::test]
async fn conversation_with_a_subagent() {
    let (stack, id) = start_with(json!({"env": {"MOCK_SET": "slow:4000"}})).await;
    stack
        .turn(
            &id,
            "/subagent look\n/boundary\n/subagent-settings {\"enabled\":false}",
        )
        .await;
    let prompt = "session/subagent_prompt";
    let said = json!({"taskId": "task-1", "prompt": "and what of tests?"});
    let first = task(&session(&stack, &id).await, "task-1");
    // Also while the model may start none; its answer is the user's alone.
    done(&stack, &id, prompt, said.clone()).await;
    let known = session_until(&stack, &id, |s| {
        task(s, "task-1")["task"]["result"] == "done: and what of tests?"
    })
    .await;
    let answered = task(&known, "task-1");
    assert!(first["task"]["deliveryId"].is_string() && answered["task"]["deliveryId"].is_null());
    let with = |policy: &str| {
        let mut said = said.clone();
        said["policy"] = json!(policy);
        said
    };
    fails(&stack, &id, prompt, with("ask"), -32602, "unknown_value").await;
    done(&stack, &id, prompt, with("auto_edit")).await;
    session_until(&stack, &id, |s| {
        let task = task(s, "task-1")["task"].clone();
        task["contextUsage"]["usedTokens"] == 3000 && task["status"] == "completed"
    })
    .await;
    let details = done(
        &stack,
        &id,
        "session/subagent_details",
        json!({"taskId": "task-1"}),
    )
    .await;
    let policies: Vec<_> = details["history"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["kind"] == "user")
        .map(|row| &row["policy"])
        .collect();
    assert_eq!(policies, [&Value::Null, &json!("read_only"), &json!("auto_edit")]);
    // While its history is compressed, nothing else is done with it.
    let compressing = async {
        done(
            &stack,
            &id,
            "session/subagent_compress",
            json!({"taskId": "task-1"}),
        )
        .await
    };
    let meanwhile = async {
        let known = session_until(&stack, &id, |s| {
            task(s, "task-1")["activity"]["kind"] == "compression"
        })
        .await;
        assert_eq!(task(&known, "task-1")["activity"]["status"], "in_progress");
        for method in [prompt, "session/subagent_restart"] {
            fails(&stack, &id, method, said.clone(), -32600, "task_compressing").await;
        }
    };
    let (counts, ()) = tokio::join!(compressing, meanwhile);
    assert_eq!(counts, json!({"originalTokenCount": 3000, "newTokenCount": 300}));
    let known = session_until(&stack, &id, |s| {
        task(s, "task-1")["activity"]["status"] == "completed"
    })
    .await;
    assert_eq!(task(&known, "task-1")["activity"]["originalTokenCount"], 3000);
    // The model was told once.
    let said = updates(&stack, &id, &["agent_message_chunk"]).await;
    assert_eq!(said.len(), 1, "{said:#?}");
    stack.settle().await;
}
