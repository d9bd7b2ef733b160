//! Those that come before there is a session: the handshake waits for whoever is asked.

use serde_json::json;

use super::{accept, answer, asked};
use crate::support::Stack;

const ENV: [(&str, &str); 3] = [
    ("KANDEV_HANDSHAKE_TIMEOUT_SECONDS", "1"),
    ("KANDEV_ELICITATION_TIMEOUT_SECONDS", "2"),
    ("KANDEV_STOP_GRACE_SECONDS", "1"),
];

#[tokio::test]
async fn a_form_before_the_session_has_its_own_time() {
    let stack = Stack::with(&ENV).await;
    let launch = json!({"env": {"MOCK_NEW": "ask"}, "elicitation_default": "decline"});
    let failed = stack.try_launch(launch).await.expect(201);
    // Its time is longer than the handshake's, and its end is what counts.
    assert_eq!(failed["error"]["code"], "handshake_failed", "{failed:#}");
    assert_eq!(failed["error"]["details"]["message"], "nobody said who they are");
    let closed = super::all(&stack, failed["id"].as_str().unwrap()).await;
    assert_eq!(
        (&closed[0]["status"], &closed[0]["session_id"]),
        (&json!("expired"), &json!(null))
    );
    stack.settle().await;
}

#[tokio::test]
async fn a_form_before_the_session_outlives_the_server() {
    let mut stack = Stack::with(&ENV[..1]).await;
    let launch = json!({"env": {"MOCK_NEW": "ask"}, "wait": "none"});
    let launched = stack.try_launch(launch).await.expect(201);
    let id = launched["id"].as_str().unwrap();
    let question = asked(&stack, id).await;
    assert_eq!(question["message"], "Who are you?");
    stack.kill().await;
    stack.boot().await;
    let again = asked(&stack, id).await;
    assert_eq!(again["id"], question["id"]);
    answer(&stack, &again, accept(json!({"name": "x"})))
        .await
        .expect(200);
    stack
        .until(&format!("/agents/{id}/status"), |s| s["status"] == "running")
        .await;
    assert_eq!(stack.turn(id, "/say here").await["text"], "here");
    stack.settle().await;
}
