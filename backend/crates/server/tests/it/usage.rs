//! What turns and sessions used, as far as agents tell.

use serde_json::{Value, json};

use crate::recovery::turn_ended;
use crate::support::Stack;

/// What the agent tells of its context, and of what the session has cost by now.
fn costs(amount: f64) -> String {
    let cost = json!({"amount": amount, "currency": "USD"});
    let update = json!({"sessionUpdate": "usage_update", "used": 5, "size": 10, "cost": cost});
    format!("/update {update}")
}

fn usd(amount: f64) -> Value {
    json!({"amount": amount, "currency": "USD"})
}

/// The session's sum, which is the same wherever it is told.
async fn total(stack: &Stack, id: &str) -> Value {
    let session = stack.get(&format!("/agents/{id}/session")).await.expect(200);
    let named = session["session_id"].as_str().unwrap();
    let detail = stack.get(&format!("/sessions/{named}")).await.expect(200);
    let snapshot = stack
        .get(&format!("/agents/{id}/events?snapshot=true"))
        .await
        .expect(200);
    assert_eq!(session["total_usage"], detail["total_usage"]);
    assert_eq!(session["total_usage"], snapshot["session"]["total_usage"]);
    session["total_usage"].clone()
}

/// A history that tells again what its beginning had cost is no count that began anew.
#[tokio::test]
async fn what_a_history_tells_again_is_not_counted_again() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    assert_eq!(stack.turn(&id, &costs(1.0)).await["cost"], usd(1.0));
    stack.stop(&id).await;
    let body = json!({"wait": "ready", "env": {"MOCK_WITHOUT": "resume", "MOCK_LOAD": "state"}});
    let resumed = stack
        .post(&format!("/agents/{id}/resume"), &body)
        .await
        .expect(201);
    let next = resumed["id"].as_str().unwrap();
    let told = stack.get(&format!("/agents/{next}/session")).await.expect(200);
    assert_eq!(told["usage"]["cost"], usd(0.25), "{told:#}");
    assert_eq!(stack.turn(next, &costs(1.5)).await["cost"], usd(0.5));
    assert_eq!(total(&stack, next).await["costs"], json!([usd(1.5)]));
    stack.settle().await;
}

#[tokio::test]
async fn tokens_and_costs_are_summed_over_restarts_and_told_again() {
    let mut stack = Stack::with(&[("KANDEV_CANCEL_GRACE_SECONDS", "1")]).await;
    let id = stack.launch(json!({"env": {"MOCK_WITHOUT": "resume"}})).await;
    assert_eq!(total(&stack, &id).await, Value::Null);
    let silent = stack.turn(&id, "/say nothing of it").await;
    assert_eq!((&silent["usage"], &silent["cost"]), (&Value::Null, &Value::Null));

    // The same figure again is nothing new.
    let script = format!("/usage 100\n{}\n{}\n{}", costs(0.1), costs(0.25), costs(0.25));
    let first = stack.turn(&id, &script).await;
    assert_eq!(
        first["usage"],
        json!({"totalTokens": 100, "inputTokens": 75, "outputTokens": 25})
    );
    assert_eq!(first["cost"], usd(0.25));

    // A server that dies in the turn.
    let script = format!("{}\n/await go\n/usage 40\n{}", costs(0.5), costs(0.75));
    let second = stack.prompt(&id, &script).await;
    let path = format!("/agents/{id}/turns/{second}");
    stack.until(&path, |t| t["cost"] == usd(0.25)).await;
    stack.kill().await;
    stack.boot().await;
    std::fs::write(stack.workspace().join("go"), "").unwrap();
    let second = turn_ended(&stack, &id, &second).await;
    assert_eq!(
        (&second["usage"]["totalTokens"], &second["cost"]),
        (&json!(40), &usd(0.5))
    );

    // An agent that is started again counts anew, after it has told its history once more.
    let deaf = stack
        .prompt(&id, &format!("/ignore-cancel\n{}\n/sleep 60000", costs(1.0)))
        .await;
    let path = format!("/agents/{id}/turns/{deaf}");
    stack.until(&path, |t| t["cost"] == usd(0.25)).await;
    stack.cancel(&id).await;
    let third = stack.turn(&id, &format!("{}\n/usage 8", costs(0.125))).await;
    assert_eq!(
        (&third["usage"]["totalTokens"], &third["cost"]),
        (&json!(8), &usd(0.125))
    );

    // Another instance goes on with the session.
    stack.stop(&id).await;
    let body = json!({"wait": "ready"});
    let resumed = stack
        .post(&format!("/agents/{id}/resume"), &body)
        .await
        .expect(201);
    let next = resumed["id"].as_str().unwrap();
    let fourth = stack.turn(next, &format!("{}\n/usage 2", costs(0.25))).await;
    assert_eq!(fourth["cost"], usd(0.125));
    let expected = json!({
        "turns": 4, "total_tokens": 150, "input_tokens": 113, "output_tokens": 37,
        "thought_tokens": null, "cached_read_tokens": null, "cached_write_tokens": null,
        "costs": [usd(1.25)],
    });
    assert_eq!(total(&stack, next).await, expected);
    assert_eq!(total(&stack, &id).await, expected, "they are one session's");
    stack.settle().await;
}
