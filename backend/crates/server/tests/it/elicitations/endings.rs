//! Those that nobody answers: a cancel, a stop, the end of the turn or of its time, the agent itself.

use serde_json::json;

use super::{accept, all, answer, asked, pending, turn_ended, turn_state};
use crate::protocol::of_kind;
use crate::support::Stack;

#[tokio::test]
async fn a_cancel_answers_all_forms_and_urls() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({"permission_policy": "ask"})).await;
    let script = "/later elicitation/create {\"mode\":\"url\",\"message\":\"m\",\"elicitationId\":\"e\",\"url\":\"https://example.com\"}\n\
                  /later session/request_permission {\"toolCall\":{\"toolCallId\":\"t\"},\"options\":[{\"optionId\":\"y\",\"name\":\"Y\",\"kind\":\"allow_once\"}]}\n\
                  /form times=2";
    let turn = stack.prompt(&id, script).await;
    let open = pending(&stack, &id, 3).await;
    // Both kinds wait: the permission is what is shown.
    stack
        .until(&format!("/agents/{id}/status"), |s| {
            s["turn_state"] == "awaiting_permission"
        })
        .await;
    stack
        .post(&format!("/agents/{id}/cancel"), &json!({"reason": "enough"}))
        .await
        .expect(200);
    let ended = turn_ended(&stack, &id, &turn).await;
    assert_eq!(
        (&ended["status"], &ended["stop_reason"], &ended["text"]),
        (
            &json!("cancelled"),
            &json!("cancelled"),
            &json!("form: cancel\nform: cancel\n")
        )
    );
    for open in &open {
        let body = answer(&stack, open, json!({"action": "decline"}))
            .await
            .refused(409, "conflict");
        assert_eq!(body["details"]["status"], "cancelled");
    }
    for closed in all(&stack, &id).await {
        assert_eq!(
            (&closed["status"], &closed["decided_by"], &closed["outcome"]),
            (
                &json!("cancelled"),
                &json!("cancel"),
                &json!({"action": "cancel"})
            )
        );
    }
    // The next turn asks again.
    let next = stack.prompt(&id, "/form").await;
    answer(&stack, &asked(&stack, &id).await, accept(json!({"name": "x"})))
        .await
        .expect(200);
    assert_eq!(
        turn_ended(&stack, &id, &next).await["text"],
        "form: accept {\"name\":\"x\"}\n"
    );
    stack.settle().await;
}

#[tokio::test]
async fn a_stop_cancels_them_and_an_instance_that_ends_leaves_none() {
    let stack = Stack::start().await;
    let exits = "/later elicitation/create {\"message\":\"m\",\"requestedSchema\":{}}\n/await go\n/exit 3";
    for (message, ending, told) in [
        ("/form", Some(json!({})), true),
        ("/open-url", Some(json!({"force": true})), false),
        (exits, None, false),
    ] {
        let id = stack.launch(json!({})).await;
        let turn = stack.prompt(&id, message).await;
        let open = asked(&stack, &id).await;
        match ending {
            Some(body) => drop(stack.post(&format!("/agents/{id}/stop"), &body).await.expect(200)),
            None => std::fs::write(stack.workspace().join("go"), "").unwrap(),
        }
        let status = stack.ended(&id).await["status"].clone();
        let left = all(&stack, &id).await;
        assert_eq!(
            (&left[0]["status"], &left[0]["decided_by"]),
            (&json!("cancelled"), &json!("instance_end")),
            "{status} {left:#?}"
        );
        let text = turn_ended(&stack, &id, &turn).await["text"].clone();
        // One that is killed may have heard it or not.
        assert!(!told || text == "form: cancel\n", "{message}: {text}");
        // On record before the turn's end.
        let order: Vec<_> = stack
            .events(&id)
            .await
            .iter()
            .map(|e| e["kind"].clone())
            .collect();
        let at = |kind: &str| order.iter().rposition(|k| k == kind).unwrap();
        assert!(at("elicitation_resolved") < at("turn_ended"), "{order:?}");
        answer(&stack, &open, json!({"action": "decline"}))
            .await
            .refused(409, "conflict");
        assert_eq!(turn_state(&stack, &id).await, "idle");
    }
    stack.settle().await;
}

#[tokio::test]
async fn one_that_waits_too_long_gets_the_default() {
    let stack = Stack::with(&[
        ("KANDEV_ELICITATION_TIMEOUT_SECONDS", "1"),
        ("KANDEV_ELICITATION_DEFAULT", "decline"),
    ])
    .await;
    for (with, said) in [
        (json!({}), "decline"),
        (json!({"elicitation_default": "cancel"}), "cancel"),
    ] {
        let id = stack.launch(with).await;
        let turn = stack.turn(&id, "/form times=2\n/open-url").await;
        assert_eq!(
            turn["text"],
            format!("form: {said}\nform: {said}\nopen-url: {said}\n")
        );
        let expired = all(&stack, &id).await;
        for closed in &expired {
            assert_eq!(
                (&closed["status"], &closed["decided_by"]),
                (&json!("expired"), &json!("timeout"))
            );
            let time = |key: &str| {
                let text = closed[key].as_str().unwrap();
                text.parse::<chrono::DateTime<chrono::Utc>>().unwrap()
            };
            assert_eq!(
                time("expires_at") - time("requested_at"),
                chrono::TimeDelta::seconds(1)
            );
            assert!(time("answered_at") >= time("expires_at"), "{closed:#}");
        }
        let body = answer(&stack, &expired[0], json!({"action": "decline"}))
            .await
            .refused(409, "conflict");
        assert_eq!(body["details"]["status"], "expired");
    }
    // A launch may give more time than the server does, and no other default than there is.
    let id = stack.launch(json!({"elicitation_timeout_seconds": 3600})).await;
    let turn = stack.prompt(&id, "/form").await;
    let open = asked(&stack, &id).await;
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    answer(&stack, &open, json!({"action": "decline"}))
        .await
        .expect(200);
    assert_eq!(turn_ended(&stack, &id, &turn).await["text"], "form: decline\n");
    for (field, value) in [
        ("elicitation_timeout_seconds", json!(0)),
        ("elicitation_default", json!("accept")),
    ] {
        let refused = stack.try_launch(json!({field: value})).await;
        let refused = refused.refused(400, "validation_error");
        assert_eq!(refused["details"]["field"], field);
    }
    stack.settle().await;
}

#[tokio::test]
async fn what_the_agent_asked_people_for_it_can_take_back() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let form = r#"{"mode":"form","message":"m","requestedSchema":{}}"#;
    let script = format!(
        "/id \"f\"\n/later elicitation/create {form}\n/await go\n/cancel-request\n/answers\n/say on it goes"
    );
    let turn = stack.prompt(&id, &script).await;
    let open = asked(&stack, &id).await;
    std::fs::write(stack.workspace().join("go"), "").unwrap();
    assert_eq!(
        turn_ended(&stack, &id, &turn).await["text"],
        "answer: error -32800 Request cancelled\non it goes"
    );
    let closed = all(&stack, &id).await.remove(0);
    assert_eq!(
        (&closed["status"], &closed["decided_by"]),
        (&json!("cancelled"), &json!("agent"))
    );
    let events = of_kind(&stack, &id, "elicitation_resolved").await;
    assert_eq!(
        (events.len(), &events[0]["data"]["decided_by"]),
        (1, &json!("agent"))
    );
    answer(&stack, &open, accept(json!({})))
        .await
        .refused(409, "conflict");
    stack.settle().await;
}
