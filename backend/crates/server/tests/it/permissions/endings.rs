//! Requests that nobody answers: a cancel, a stop, the end of the turn or of its time.

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{all, answer, asked, launch, pending, turn_ended, turn_state};
use crate::protocol::of_kind;
use crate::support::Stack;

/// Asks for a permission as soon as it has a session, in no turn at all, and repeats on stderr whatever it is sent. A prompt is
/// answered at once, and asks for another permission before.
const NAGGER: &str = r#"
id = "nagger"
name = "Nagger"
image = "kandev/shell-agent:latest"
network = "none"
command = ["/bin/bash", "-c", '''
ask() {
  echo '{"jsonrpc":"2.0","id":"'$1'","method":"session/request_permission","params":{"sessionId":"s","toolCall":{"toolCallId":"t","title":"T"},"options":[{"optionId":"y","name":"Y","kind":"allow_once"}]}}'
}
while read -r line; do
  echo "got $line" >&2
  case $line in
    *'"initialize"'*) echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"agentCapabilities":{}}}' ;;
    *'"session/new"'*) echo '{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s"}}'; ask early ;;
    *'"session/prompt"'*) [[ $line =~ \"id\":([0-9]+) ]]
      ask late
      echo '{"jsonrpc":"2.0","id":'${BASH_REMATCH[1]}',"result":{"stopReason":"end_turn"}}' ;;
  esac
done
''']
"#;

async fn cancel(stack: &Stack, id: &str) -> Value {
    let path = format!("/agents/{id}/cancel");
    stack.post(&path, &json!({"reason": "enough"})).await.expect(200)["message"].clone()
}

#[tokio::test]
async fn a_cancel_answers_all_of_them() {
    let stack = Stack::start().await;
    let id = launch(&stack, json!({})).await;
    let turn = stack.prompt(&id, "/permission times=3").await;
    let open = pending(&stack, &id, 3).await;
    let said = join_all((0..10).map(|_| cancel(&stack, &id))).await;
    assert_eq!(
        said.iter()
            .filter(|said| **said == "the turn is being cancelled")
            .count(),
        1,
        "{said:?}"
    );
    let turn = turn_ended(&stack, &id, &turn).await;
    assert_eq!(
        (&turn["status"], &turn["stop_reason"], &turn["text"]),
        (
            &json!("cancelled"),
            &json!("cancelled"),
            &json!("permission: cancelled\n".repeat(3))
        )
    );
    for permission in &open {
        let body = answer(&stack, permission, json!({"kind": "allow_once"}))
            .await
            .refused(409, "conflict");
        assert_eq!(body["details"]["status"], "cancelled");
    }
    for permission in all(&stack, &id).await {
        assert_eq!(
            (
                &permission["status"],
                &permission["decided_by"],
                &permission["outcome"]
            ),
            (
                &json!("cancelled"),
                &json!("cancel"),
                &json!({"outcome": "cancelled"})
            )
        );
    }
    // No phantom turn, and the next one asks again.
    assert_eq!(
        stack.get(&format!("/agents/{id}/turns")).await.expect(200)["total"],
        1
    );
    let next = stack.prompt(&id, "/permission").await;
    let permission = asked(&stack, &id).await;
    answer(&stack, &permission, json!({"kind": "allow_once"}))
        .await
        .expect(200);
    assert_eq!(
        turn_ended(&stack, &id, &next).await["text"],
        "permission: selected allow-once\n"
    );
    stack.settle().await;
}

#[tokio::test]
async fn a_stop_answers_them_and_an_instance_that_ends_leaves_none() {
    let stack = Stack::start().await;
    for (message, ending, told) in [
        ("/permission", Some(json!({})), true),
        ("/permission", Some(json!({"force": true})), false),
        ("/exit 3 2000\n/permission", None, false),
    ] {
        let id = launch(&stack, json!({})).await;
        let turn = stack.prompt(&id, message).await;
        let permission = asked(&stack, &id).await;
        if let Some(body) = ending {
            stack.post(&format!("/agents/{id}/stop"), &body).await.expect(200);
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
        assert!(!told || text == "permission: cancelled\n", "{message}: {text}");
        // On record before the turn's end.
        let order: Vec<_> = stack
            .events(&id)
            .await
            .iter()
            .map(|e| e["kind"].clone())
            .collect();
        let at = |kind: &str| order.iter().rposition(|k| k == kind).unwrap();
        assert!(at("permission_resolved") < at("turn_ended"), "{order:?}");
        answer(&stack, &permission, json!({"kind": "allow_once"}))
            .await
            .refused(409, "conflict");
        assert_eq!(turn_state(&stack, &id).await, "idle");
    }
    stack.settle().await;
}

#[tokio::test]
async fn a_request_outside_of_a_turn_waits_and_one_left_by_its_turn_does_not() {
    let stack = Stack::with_types(&[], &[("nagger", NAGGER)]).await;
    let id = launch(&stack, json!({"agent_type": "nagger", "idle_timeout_seconds": 1})).await;
    let early = asked(&stack, &id).await;
    assert_eq!(
        (&early["turn_id"], &early["session_id"]),
        (&json!(null), &json!("s"))
    );
    let turn = stack.turn(&id, "x").await;
    assert_eq!(turn["stop_reason"], "end_turn");
    let both = all(&stack, &id).await;
    assert_eq!(
        (&both[1]["status"], &both[1]["decided_by"], &both[1]["turn_id"]),
        (&json!("cancelled"), &json!("turn_end"), &turn["id"])
    );
    let heard = async |id: &str, what: &str| {
        let path = format!("/agents/{id}/logs?stream=stderr&q={what}");
        stack.until(&path, |page| page["total"] == 1).await;
    };
    heard(&id, r#""id":"late","result":{"outcome":{"outcome":"cancelled"}}"#).await;
    // Longer than an idle instance may live: one that waits for an answer is not idle.
    tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
    assert_eq!(asked(&stack, &id).await, early);
    answer(&stack, &early, json!({"option_id": "y"}))
        .await
        .expect(200);
    heard(
        &id,
        r#""id":"early","result":{"outcome":{"outcome":"selected","optionId":"y"}}"#,
    )
    .await;
    assert_eq!(stack.ended(&id).await["reason"], "idle");

    let id = launch(&stack, json!({"agent_type": "nagger"})).await;
    let early = asked(&stack, &id).await;
    assert_eq!(cancel(&stack, &id).await, "the turn is being cancelled");
    heard(
        &id,
        r#""id":"early","result":{"outcome":{"outcome":"cancelled"}}"#,
    )
    .await;
    answer(&stack, &early, json!({"option_id": "y"}))
        .await
        .refused(409, "conflict");
    assert_eq!(stack.instance(&id).await["status"], "running");
    stack.settle().await;
}

#[tokio::test]
async fn what_waits_too_long_gets_the_default() {
    let stack = Stack::with(&[
        ("KANDEV_PERMISSION_TIMEOUT_SECONDS", "1"),
        ("KANDEV_PERMISSION_DEFAULT", "cancelled"),
    ])
    .await;
    for (with, said) in [
        (json!({}), "cancelled"),
        (json!({"permission_default": "reject"}), "selected reject-once"),
        (json!({"permission_default": "allow"}), "selected allow-once"),
    ] {
        let id = launch(&stack, with).await;
        let turn = stack.turn(&id, "/permission keep times=2").await;
        assert_eq!(turn["text"], format!("permission: {said}\n").repeat(2));
        let expired = all(&stack, &id).await;
        for permission in &expired {
            assert_eq!(
                (&permission["status"], &permission["decided_by"]),
                (&json!("expired"), &json!("timeout"))
            );
            let time = |key: &str| {
                permission[key]
                    .as_str()
                    .unwrap()
                    .parse::<chrono::DateTime<chrono::Utc>>()
                    .unwrap()
            };
            assert_eq!(
                time("expires_at") - time("requested_at"),
                chrono::TimeDelta::seconds(1)
            );
            assert!(time("answered_at") >= time("expires_at"), "{permission:#}");
        }
        let body = answer(&stack, &expired[0], json!({"kind": "allow_once"}))
            .await
            .refused(409, "conflict");
        assert_eq!(body["details"]["status"], "expired");
        let resolved = of_kind(&stack, &id, "permission_resolved").await;
        assert!(
            resolved.iter().all(|e| e["data"]["status"] == "expired"),
            "{resolved:#?}"
        );
    }
    // A launch may give more time than the server does.
    let id = launch(&stack, json!({"permission_timeout_seconds": 3600})).await;
    let turn = stack.prompt(&id, "/permission").await;
    let permission = asked(&stack, &id).await;
    // Longer than the server's own time.
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    answer(&stack, &permission, json!({"kind": "allow_once"}))
        .await
        .expect(200);
    assert_eq!(
        turn_ended(&stack, &id, &turn).await["text"],
        "permission: selected allow-once\n"
    );
    stack.settle().await;
}

#[tokio::test]
async fn the_time_of_a_turn_goes_on_while_it_waits() {
    let stack = Stack::with(&[("KANDEV_TURN_TIMEOUT_SECONDS", "2")]).await;
    let id = launch(&stack, json!({})).await;
    let turn = stack.turn(&id, "/permission").await;
    assert_eq!(
        (&turn["status"], &turn["cancel_reason"], &turn["text"]),
        (
            &json!("cancelled"),
            &json!("the turn's time is up"),
            &json!("permission: cancelled\n")
        )
    );
    stack.settle().await;
}
