//! Requests that are decided by the launch's policy, or by an answer that is remembered.

use serde_json::{Value, json};

use super::{all, answer, asked, launch, turn_ended};
use crate::protocol::of_kind;
use crate::support::Stack;

#[tokio::test]
async fn permissions_are_answered_by_kind() {
    let stack = Stack::start().await;
    for (policy, kinds, selected) in [
        (
            "allow",
            "allow_always,reject_once,allow_once",
            "selected allow-once",
        ),
        (
            "allow",
            "reject_once,reject_always,allow_always",
            "selected allow-always",
        ),
        ("allow", "reject_once,else", "cancelled"),
        (
            "reject",
            "allow_always,allow_once,reject_always,reject_once",
            "selected reject-once",
        ),
        ("reject", "allow_once,reject_always", "selected reject-always"),
        ("reject", "allow_once", "cancelled"),
    ] {
        let id = stack.launch(json!({"permission_policy": policy})).await;
        let turn = stack.turn(&id, &format!("/permission {kinds} keep")).await;
        assert_eq!(
            turn["text"],
            format!("permission: {selected}\n"),
            "{policy} {kinds}"
        );
        let outcome = &of_kind(&stack, &id, "permission_resolved").await[0]["data"]["outcome"];
        assert_eq!(outcome["outcome"], *selected.split(' ').next().unwrap());
        assert_eq!(
            of_kind(&stack, &id, "permission_requested").await[0]["turn_id"],
            turn["id"]
        );
        stack
            .post(&format!("/agents/{id}/stop"), &json!({"force": true}))
            .await
            .expect(200);
    }
    stack.settle().await;
}

/// A request for a permission of a kind of tool; none for a call that was announced before.
fn request(kind: Option<&str>) -> String {
    let mut call = json!({"toolCallId": "t", "title": "T"});
    if let Some(kind) = kind {
        call["kind"] = json!(kind);
    }
    let options = json!([
        {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
        {"optionId": "no", "name": "No", "kind": "reject_once"},
    ]);
    let params = json!({"toolCall": call, "options": options});
    format!("/request session/request_permission {params}")
}

#[tokio::test]
async fn rules_go_by_the_kind_of_tool() {
    let stack = Stack::start().await;
    let policy = json!({"default": "reject", "read": "allow", "execute": "ask", "switch_mode": "allow"});
    let id = stack.launch(json!({"permission_policy": policy})).await;
    assert_eq!(stack.instance(&id).await["permission_policy"], policy);
    let announce = r#"/update {"sessionUpdate":"tool_call","toolCallId":"t","title":"T","kind":"read"}"#;
    let change = r#"/update {"sessionUpdate":"tool_call_update","toolCallId":"t","kind":"edit"}"#;
    let script = [
        &request(Some("read")),
        &request(Some("edit")),
        &request(Some("switch_mode")),
        &request(Some("craft")),
        &request(None),
        announce,
        &request(None),
        change,
        &request(None),
        &request(Some("read")),
    ];
    let script: Vec<&str> = script.iter().map(|line| &**line).collect();
    let turn = stack.turn(&id, &script.join("\n")).await;
    let said: Vec<_> = turn["text"]
        .as_str()
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect();
    let selected = |line: &String| {
        let answer: Value = serde_json::from_str(line.strip_prefix("request: result ")?).ok()?;
        (answer["outcome"]["outcome"] == "selected").then(|| answer["outcome"]["optionId"].clone())
    };
    let chosen: Vec<_> = said.iter().filter_map(selected).collect();
    assert_eq!(
        chosen,
        ["yes", "no", "yes", "no", "no", "yes", "no", "yes"],
        "{turn:#}"
    );
    let kinds: Vec<_> = all(&stack, &id)
        .await
        .iter()
        .map(|p| p["tool_kind"].clone())
        .collect();
    assert_eq!(
        kinds,
        [
            "read",
            "edit",
            "switch_mode",
            "other",
            "other",
            "read",
            "edit",
            "read"
        ]
    );
    // The one that asks.
    let turn = stack.prompt(&id, "/permission").await;
    let permission = asked(&stack, &id).await;
    assert_eq!(permission["tool_kind"], "execute");
    answer(&stack, &permission, json!({"kind": "allow_once"}))
        .await
        .expect(200);
    let turn = turn_ended(&stack, &id, &turn).await;
    assert_eq!(turn["text"], "permission: selected allow-once\n");
    // A resume keeps the rules.
    stack.stop(&id).await;
    let again = stack.resume(&id).await;
    let again = again["id"].as_str().unwrap();
    assert_eq!(stack.instance(again).await["permission_policy"], policy);
    stack.settle().await;
}

#[tokio::test]
async fn who_does_not_say_is_asked() {
    let stack = Stack::start().await;
    let body =
        json!({"agent_type": "mock-agent", "workspace_path": stack.workspace(), "prompt": "/permission"});
    let launched = stack.post("/agents/launch", &body).await.expect(201);
    let id = launched["id"].as_str().unwrap();
    assert_eq!(stack.instance(id).await["permission_policy"], "ask");
    let permission = asked(&stack, id).await;
    assert_eq!(
        (&permission["status"], &permission["expires_at"]),
        (&json!("pending"), &json!(null)),
        "{permission:#}"
    );
    stack.settle().await;
}

#[tokio::test]
async fn an_answer_for_always_counts_in_its_session_and_outlives_restart_and_resume() {
    let mut stack = Stack::start().await;
    let id = launch(&stack, json!({})).await;
    let turn = stack.prompt(&id, "/permission\n/permission").await;
    let first = asked(&stack, &id).await;
    let answered = answer(&stack, &first, json!({"kind": "allow_always"}))
        .await
        .expect(200);
    assert_eq!(answered["decided_by"], "caller");
    let always = "permission: selected allow-always\n";
    assert_eq!(turn_ended(&stack, &id, &turn).await["text"], always.repeat(2));
    let both = all(&stack, &id).await;
    assert_eq!(
        (&both[1]["decided_by"], &both[1]["status"], &both[1]["outcome"]),
        (&json!("remembered"), &json!("selected"), &answered["outcome"])
    );
    let resolved = of_kind(&stack, &id, "permission_resolved").await;
    assert_eq!(resolved.len(), 2, "{resolved:#?}");
    assert_eq!(resolved[1]["data"]["decided_by"], "remembered");

    // Other words were not agreed to.
    let asks = stack.prompt(&id, "/permission allow_always,reject_always").await;
    assert_eq!(
        turn_ended(&stack, &id, &asks).await["text"],
        always,
        "the same option among others"
    );
    let other = r#"/request session/request_permission {"toolCall":{"toolCallId":"t","kind":"execute"},"options":[{"optionId":"allow-always","name":"all commands that start with rm","kind":"allow_always"}]}"#;
    let turn = stack.prompt(&id, other).await;
    let permission = asked(&stack, &id).await;
    answer(&stack, &permission, json!({"outcome": "cancelled"}))
        .await
        .expect(200);
    turn_ended(&stack, &id, &turn).await;

    stack.kill().await;
    stack.boot().await;
    let turn = super::prompt_again(&stack, &id, "/permission").await;
    assert_eq!(turn_ended(&stack, &id, &turn).await["text"], always);
    stack.stop(&id).await;
    let resume = json!({"wait": "ready"});
    let again = stack
        .post(&format!("/agents/{id}/resume"), &resume)
        .await
        .expect(201);
    let again = again["id"].as_str().unwrap();
    assert_eq!(stack.turn(again, "/permission").await["text"], always);

    // Another session has answers of its own.
    let fresh = launch(&stack, json!({})).await;
    stack.prompt(&fresh, "/permission").await;
    asked(&stack, &fresh).await;
    stack.settle().await;
}

#[tokio::test]
async fn policies_that_are_none_are_refused() {
    let stack = Stack::start().await;
    for (policy, field) in [
        (json!("perhaps"), "permission_policy"),
        (json!(7), "permission_policy"),
        (json!(["ask"]), "permission_policy"),
        (json!({"default": "perhaps"}), "permission_policy.default"),
        (json!({"read": 1}), "permission_policy.read"),
        (json!({"reed": "ask"}), "permission_policy.reed"),
    ] {
        let refused = stack.try_launch(json!({"permission_policy": policy})).await;
        let body = refused.refused(400, "validation_error");
        assert_eq!(body["details"]["field"], field, "{body:#}");
    }
    for (field, value) in [
        ("permission_timeout_seconds", json!(0)),
        ("permission_timeout_seconds", json!(1_000_000_000)),
        ("permission_timeout_seconds", json!("soon")),
        ("permission_default", json!("shrug")),
    ] {
        let mut body = json!({});
        body[field] = value;
        let body = stack.try_launch(body).await.refused(400, "validation_error");
        assert_eq!(body["details"]["field"], field, "{body:#}");
    }
    assert!(stack.containers().is_empty());
}
