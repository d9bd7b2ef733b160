//! Every kind of thing that an agent may say in a turn is stored and streamed as it came. `docs/acp.md` shows which there are.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Frame, Stack};

/// Says these updates in a turn that ends with `stop`: the turn. What is stored of them, and what is streamed meanwhile, must
/// be what the agent wrote, in its order.
async fn say_all(stack: &Stack, id: &str, updates: &[Value], stop: &str) -> Value {
    let seen = stack.events(id).await.len();
    let path = format!("/agents/{id}/events?kind=update,turn_ended&after={seen}");
    let mut stream = stack.follow(&path, None).await;
    let mut script: Vec<_> = updates.iter().map(|update| format!("/update {update}")).collect();
    script.push(format!("/stop {stop}"));
    let turn = stack.turn(id, &script.join("\n")).await;
    let session = &turn["session_id"];
    let expected: Vec<_> = updates
        .iter()
        .map(|update| json!({"sessionId": session, "update": update}))
        .collect();
    let streamed = stream.until(|frame: &Frame| frame.event == "turn_ended").await;
    let streamed: Vec<_> = streamed.iter().map(|frame| frame.data.clone()).collect();
    let stored = stack.events(id).await.split_off(seen);
    for (how, events) in [("streamed", streamed), ("stored", stored)] {
        let updates: Vec<_> = events
            .iter()
            .filter(|e| e["kind"] == "update" && e["turn_id"] == turn["id"])
            .map(|e| e["data"].clone())
            .collect();
        assert_eq!(updates, expected, "{how}");
    }
    turn
}

#[tokio::test]
async fn every_kind_of_content_is_kept_as_it_came() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let annotations = json!({"audience": ["user"], "priority": 0.5, "lastModified": "2026-12-01T00:00:00Z"});
    let contents = [
        json!({"type": "text", "text": "a ", "annotations": annotations}),
        json!({"type": "image", "mimeType": "image/png", "data": "aGk=", "uri": "file:///workspace/a.png"}),
        json!({"type": "audio", "mimeType": "audio/wav", "data": "aGk=", "annotations": annotations}),
        json!({"type": "resource_link", "uri": "file:///workspace/b", "name": "b", "size": 7, "title": "B", "_meta": {"c": [1]}}),
        json!({"type": "resource", "resource": {"uri": "file:///c", "mimeType": "text/x-rust", "text": "fn c() {}"}}),
        json!({"type": "resource", "resource": {"uri": "file:///d", "mimeType": "application/pdf", "blob": "aGk="}}),
        json!({"type": "text", "text": "z"}),
    ];
    for (kind, text) in [
        ("agent_message_chunk", "a z"),
        ("agent_thought_chunk", ""),
        ("user_message_chunk", ""),
    ] {
        let updates: Vec<_> = contents
            .iter()
            .map(|content| json!({"sessionUpdate": kind, "content": content, "messageId": "m-1", "_meta": {"kept": null}}))
            .collect();
        let turn = say_all(&stack, &id, &updates, "end_turn").await;
        assert_eq!(
            (&turn["text"], &turn["updates"]),
            (&json!(text), &json!(updates.len())),
            "{kind}: only words are the turn's text"
        );
    }
    stack.settle().await;
}

#[tokio::test]
async fn tool_calls_of_every_kind_keep_their_content_locations_and_output() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let mut updates = Vec::new();
    for (n, kind) in [
        "read",
        "edit",
        "delete",
        "move",
        "search",
        "execute",
        "think",
        "fetch",
        "switch_mode",
        "other",
    ]
    .into_iter()
    .enumerate()
    {
        let call = format!("call-{n}");
        updates.push(json!({
            "sessionUpdate": "tool_call", "toolCallId": call, "title": kind, "kind": kind, "status": "pending",
            "locations": [{"path": "/workspace/a", "line": 7}, {"path": "/workspace/b"}], "rawInput": {"n": n, "deep": [null, 1.50]},
        }));
        updates
            .push(json!({"sessionUpdate": "tool_call_update", "toolCallId": call, "status": "in_progress"}));
        let end = if n % 2 == 0 { "completed" } else { "failed" };
        updates.push(json!({
            "sessionUpdate": "tool_call_update", "toolCallId": call, "status": end, "rawOutput": {"exit": 0, "words": "ö"},
            "content": [
                {"type": "content", "content": {"type": "text", "text": "done"}},
                {"type": "content", "content": {"type": "image", "mimeType": "image/png", "data": "aGk="}},
                {"type": "diff", "path": "/workspace/a", "oldText": "x\n", "newText": "y\n"},
                {"type": "diff", "path": "/workspace/new", "oldText": null, "newText": ""},
                {"type": "terminal", "terminalId": "term-of-the-agent"},
            ],
            "locations": [{"path": "/workspace/a", "line": 8}],
        }));
    }
    let turn = say_all(&stack, &id, &updates, "end_turn").await;
    assert_eq!(
        (&turn["text"], &turn["updates"]),
        (&json!(""), &json!(updates.len()))
    );
    // What the mock agent makes of a real change.
    std::fs::write(stack.workspace().join("a"), "old\n").unwrap();
    let turn = stack.turn(&id, "/diff a new\\n").await;
    let events = stack.events(&id).await;
    let diffs: Vec<_> = events
        .iter()
        .filter(|e| e["turn_id"] == turn["id"])
        .filter_map(|e| e["data"]["update"]["content"][0].as_object())
        .filter(|content| content["type"] == "diff")
        .collect();
    let expected = json!({"type": "diff", "path": "/workspace/a", "oldText": "old\n", "newText": "new\n"});
    assert!(
        !diffs.is_empty() && diffs.iter().all(|diff| json!(diff) == expected),
        "{diffs:#?}"
    );
    stack.settle().await;
}

#[tokio::test]
async fn what_else_an_update_may_tell_is_kept_as_it_came() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let updates = [
        json!({"sessionUpdate": "plan", "entries": [
            {"content": "a", "priority": "high", "status": "completed"},
            {"content": "b", "priority": "medium", "status": "in_progress"},
            {"content": "c", "priority": "low", "status": "pending", "_meta": {"d": 1}},
        ]}),
        json!({"sessionUpdate": "available_commands_update", "availableCommands": [
            {"name": "plain", "description": "p"},
            {"name": "asks", "description": "q", "input": {"hint": "what for"}},
        ]}),
        json!({"sessionUpdate": "current_mode_update", "currentModeId": "code"}),
        json!({"sessionUpdate": "session_info_update", "title": "T", "updatedAt": "2026-12-01T00:00:00Z"}),
        json!({"sessionUpdate": "usage_update", "used": 1, "size": 2, "cost": {"amount": 0.25, "currency": "EUR"}}),
        // These an agent may send only to who offers to show them, which kandev does not.
        json!({"sessionUpdate": "notice", "content": {"type": "text", "text": "n"}}),
        json!({"sessionUpdate": "compaction_update", "compactionId": "c-1", "status": "in_progress"}),
        json!({"sessionUpdate": "compaction_summary_chunk", "compactionId": "c-1", "content": {"type": "text", "text": "s"}}),
    ];
    let turn = say_all(&stack, &id, &updates, "end_turn").await;
    assert_eq!(turn["text"], "");
    let session = stack.get(&format!("/agents/{id}/session")).await.expect(200);
    assert_eq!(
        (&session["plan"], &session["commands"], &session["usage"]),
        (
            &updates[0]["entries"],
            &updates[1]["availableCommands"],
            &updates[4]
        )
    );
    stack.settle().await;
}

#[tokio::test]
async fn every_reason_to_stop_is_the_turns_own() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    for reason in ["end_turn", "max_tokens", "max_turn_requests", "refusal"] {
        let said =
            json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": reason}});
        let turn = say_all(&stack, &id, &[said], reason).await;
        assert_eq!(
            (
                &turn["status"],
                &turn["stop_reason"],
                &turn["text"],
                &turn["error"]
            ),
            (&json!("completed"), &json!(reason), &json!(reason), &Value::Null)
        );
        let ended = stack.events(&id).await.pop().unwrap();
        assert_eq!(
            (&ended["kind"], &ended["data"]["stop_reason"]),
            (&json!("turn_ended"), &json!(reason))
        );
    }
    // Without having been told to.
    let turn = say_all(&stack, &id, &[], "cancelled").await;
    assert_eq!(
        (&turn["status"], &turn["stop_reason"]),
        (&json!("cancelled"), &json!("cancelled"))
    );
    stack.settle().await;
}

#[tokio::test]
async fn options_in_groups_are_kept_and_one_of_them_can_be_chosen() {
    let stack = Stack::start().await;
    let env = json!({"MOCK_INPUT_COPY": "/workspace/input"});
    let id = stack.launch(json!({"env": env})).await;
    let options = json!([{
        "id": "effort", "name": "Effort", "category": "thought_level", "type": "select", "currentValue": "low",
        "options": [
            {"group": "small", "name": "Small", "options": [{"value": "low", "name": "Low"}]},
            {"group": "large", "name": "Large", "options": [
                {"value": "medium", "name": "Medium", "description": "m"}, {"value": "high", "name": "High"},
            ]},
        ],
    }]);
    let update = json!({"sessionUpdate": "config_option_update", "configOptions": options});
    say_all(&stack, &id, &[update], "end_turn").await;
    let session = stack.get(&format!("/agents/{id}/session")).await.expect(200);
    assert_eq!(session["config_options"], options);
    let path = format!("/agents/{id}/config_options/effort");
    let choose = |value: &'static str| {
        let (stack, path) = (&stack, &path);
        async move {
            stack
                .call(Method::PUT, path, Some(&json!({"value": value})))
                .await
        }
    };
    // A group is nothing to choose.
    choose("large").await.refused(400, "validation_error");
    choose("high").await.expect(200);
    assert_eq!(
        stack.sent_to("session/set_config_option"),
        [
            json!({"sessionId": stack.instance(&id).await["session_id"], "configId": "effort", "value": "high"})
        ]
    );
    stack.settle().await;
}
