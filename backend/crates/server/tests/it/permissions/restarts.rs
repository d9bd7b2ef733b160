//! What a server that is killed leaves: requests stay open, and answers that were given reach the agent.

use serde_json::{Value, json};

use super::{all, answer, asked, asking, launch, pending, turn_ended, turn_state};
use crate::missed_output::{contains, has_said};
use crate::protocol::of_kind;
use crate::recovery::{assert_whole, launch_with};
use crate::support::Stack;

/// An agent that asks, and that keeps its own copy of what it writes.
async fn launch_with_copy(stack: &Stack, with: Value) -> String {
    launch_with(stack, asking(with)).await
}

#[tokio::test]
async fn a_request_outlives_the_server_and_the_agent_goes_on() {
    let mut stack = Stack::start().await;
    let id = launch_with_copy(&stack, json!({})).await;
    let script = "/say before\\n\n/id \"\\u00e9-1\"\n/permission keep\n/say after";
    let turn = stack.prompt(&id, script).await;
    let before = asked(&stack, &id).await;
    for _ in 0..2 {
        stack.kill().await;
        stack.boot().await;
        assert_eq!(asked(&stack, &id).await, before);
        assert_eq!(turn_state(&stack, &id).await, "awaiting_permission");
    }
    // At once, whether or not the instance has been taken up yet.
    let answered = answer(&stack, &before, json!({"kind": "allow_once"}))
        .await
        .expect(200);
    assert_eq!(
        (&answered["status"], &answered["id"]),
        (&json!("selected"), &before["id"])
    );
    let ended = turn_ended(&stack, &id, &turn).await;
    assert_eq!(ended["text"], "before\npermission: selected allow-once\nafter");
    assert_eq!(
        (&ended["status"], &ended["stop_reason"]),
        (&json!("completed"), &json!("end_turn"))
    );
    for kind in ["permission_requested", "permission_resolved"] {
        assert_eq!(of_kind(&stack, &id, kind).await.len(), 1, "{kind}");
    }
    answer(&stack, &before, json!({"kind": "allow_once"}))
        .await
        .refused(409, "conflict");
    assert_whole(&stack, &id).await;
    stack.settle().await;
}

#[tokio::test]
async fn what_is_asked_while_the_server_is_away_is_asked_by_the_next() {
    let mut stack = Stack::start().await;
    let rules = json!({"default": "allow", "edit": "ask"});
    let id = launch_with_copy(&stack, json!({"permission_policy": rules})).await;
    // The kind is told before, as some agents do it, and the request comes without.
    let script = [
        r#"/update {"sessionUpdate":"tool_call","toolCallId":"t","title":"T","kind":"edit"}"#,
        "/say ready",
        "/sleep 1500",
        r#"/request session/request_permission {"toolCall":{"toolCallId":"t"},"options":[{"optionId":"y","name":"Y","kind":"allow_once"}]}"#,
    ];
    let turn = stack.prompt(&id, &script.join("\n")).await;
    stack
        .until(&format!("/agents/{id}/turns/{turn}"), |t| t["text"] == "ready")
        .await;
    stack.kill().await;
    has_said(&stack, &id, |copy| contains(copy, "session/request_permission")).await;
    stack.boot().await;
    let permission = asked(&stack, &id).await;
    assert_eq!(
        (&permission["tool_kind"], &permission["turn_id"]),
        (&json!("edit"), &json!(turn))
    );
    answer(&stack, &permission, json!({"option_id": "y"}))
        .await
        .expect(200);
    let ended = turn_ended(&stack, &id, &turn).await;
    assert!(
        ended["text"].as_str().unwrap().contains(r#""optionId":"y""#),
        "{ended:#}"
    );
    assert_whole(&stack, &id).await;
    stack.settle().await;
}

#[tokio::test]
async fn an_answer_that_was_given_reaches_the_agent() {
    let mut stack = Stack::start().await;
    let id = launch_with_copy(&stack, json!({})).await;
    let turn = stack.prompt(&id, &"/permission keep\n".repeat(8)).await;
    for _ in 0..8 {
        let permission = asked(&stack, &id).await;
        answer(&stack, &permission, json!({"kind": "reject_once"}))
            .await
            .expect(200);
        // With the frame on its way, or not yet.
        stack.kill().await;
        stack.boot().await;
    }
    let ended = turn_ended(&stack, &id, &turn).await;
    assert_eq!(ended["text"], "permission: selected reject-once\n".repeat(8));
    assert!(all(&stack, &id).await.iter().all(|p| p["decided_by"] == "caller"));
    assert_whole(&stack, &id).await;
    stack.settle().await;
}

#[tokio::test]
async fn a_cancel_and_a_restart_in_either_order_end_the_turn() {
    let mut stack = Stack::start().await;
    let before = launch_with_copy(&stack, json!({})).await;
    let after = launch_with_copy(&stack, json!({})).await;
    let first = stack.prompt(&before, "/permission times=3").await;
    let second = stack.prompt(&after, "/permission times=3").await;
    let open = [
        pending(&stack, &before, 3).await,
        pending(&stack, &after, 3).await,
    ]
    .concat();
    let cancel = json!({"reason": "enough"});
    stack
        .post(&format!("/agents/{before}/cancel"), &cancel)
        .await
        .expect(200);
    stack.kill().await;
    stack.boot().await;
    // Until the instance is taken up, the server says 503.
    while stack
        .post(&format!("/agents/{after}/cancel"), &cancel)
        .await
        .status
        == 503
    {}
    for (id, turn) in [(&before, &first), (&after, &second)] {
        let ended = turn_ended(&stack, id, turn).await;
        assert_eq!(
            (&ended["status"], &ended["cancel_reason"], &ended["text"]),
            (
                &json!("cancelled"),
                &json!("enough"),
                &json!("permission: cancelled\n".repeat(3))
            ),
            "{ended:#}"
        );
        assert_eq!(stack.instance(id).await["status"], "running");
        assert_whole(&stack, id).await;
    }
    for permission in &open {
        answer(&stack, permission, json!({"kind": "allow_once"}))
            .await
            .refused(409, "conflict");
    }
    stack.settle().await;
}

#[tokio::test]
async fn the_time_of_a_request_goes_on_while_the_server_is_away() {
    let mut stack = Stack::start().await;
    let id = launch_with_copy(&stack, json!({"permission_timeout_seconds": 4})).await;
    let later = launch_with_copy(&stack, json!({"permission_timeout_seconds": 3600})).await;
    let open = stack.prompt(&later, "/permission keep").await;
    let late = asked(&stack, &later).await;
    let turn = stack.prompt(&id, "/permission keep").await;
    let soon = asked(&stack, &id).await;
    stack.kill().await;
    let expires: chrono::DateTime<chrono::Utc> = soon["expires_at"].as_str().unwrap().parse().unwrap();
    let left = expires - kandev_domain::Clock::now(&kandev_domain::SystemClock);
    tokio::time::sleep(left.to_std().unwrap_or_default()).await;
    stack.boot().await;
    let ended = turn_ended(&stack, &id, &turn).await;
    assert_eq!(ended["text"], "permission: selected reject-once\n");
    let expired = all(&stack, &id).await;
    assert_eq!(
        (&expired[0]["status"], &expired[0]["expires_at"]),
        (&json!("expired"), &soon["expires_at"])
    );
    assert_whole(&stack, &id).await;
    assert_eq!(asked(&stack, &later).await, late);
    answer(&stack, &late, json!({"kind": "allow_once"}))
        .await
        .expect(200);
    assert_eq!(
        turn_ended(&stack, &later, &open).await["text"],
        "permission: selected allow-once\n"
    );
    stack.settle().await;
}

#[tokio::test]
async fn an_instance_that_is_lost_leaves_none_open() {
    let mut stack = Stack::start().await;
    let id = launch(&stack, json!({})).await;
    stack.prompt(&id, "/permission").await;
    let permission = asked(&stack, &id).await;
    stack.kill().await;
    // As if what another server needs had been lost.
    let pool = stack.database.pool().await;
    sqlx::query("UPDATE agent_instances SET saved = NULL")
        .execute(&pool)
        .await
        .unwrap();
    pool.close().await;
    stack.boot().await;
    assert_eq!(stack.ended(&id).await["error"]["code"], "runtime_lost");
    let left = all(&stack, &id).await;
    assert_eq!(
        (&left[0]["status"], &left[0]["decided_by"]),
        (&json!("cancelled"), &json!("instance_end"))
    );
    answer(&stack, &permission, json!({"kind": "allow_once"}))
        .await
        .refused(409, "conflict");
    stack.settle().await;
}
