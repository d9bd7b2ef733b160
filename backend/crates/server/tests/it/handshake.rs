//! Handshakes that do not lead to a session.

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::endings::{end_of, first_turn};
use crate::support::Stack;

#[tokio::test]
async fn a_handshake_has_its_time() {
    let stack = Stack::with(&[
        ("KANDEV_HANDSHAKE_TIMEOUT_SECONDS", "2"),
        ("KANDEV_STOP_GRACE_SECONDS", "1"),
    ])
    .await;
    let tries = [
        json!({"MOCK_INIT": "slow:3000"}),
        json!({"MOCK_INIT": "never"}),
        json!({"MOCK_NEW": "never"}),
    ];
    let server = &stack;
    let ended = join_all(tries.map(|env| async move {
        let answer = server
            .try_launch(json!({"env": env, "prompt": "/say never"}))
            .await
            .expect(201);
        server.ended(answer["id"].as_str().unwrap()).await
    }))
    .await;
    for instance in &ended {
        assert_eq!(
            (end_of(instance).0, end_of(instance).1),
            ("failed", Some("handshake_timeout"))
        );
        assert_eq!(
            first_turn(&stack, instance["id"].as_str().unwrap()).await["status"],
            "cancelled"
        );
    }
    assert!(stack.containers().is_empty());
    // A retry for the same task is clean.
    let id = stack.launch(json!({"task_id": ended[0]["task_id"]})).await;
    assert_eq!(stack.turn(&id, "/say clean").await["text"], "clean");
    stack.settle().await;
}

#[tokio::test]
async fn an_agent_that_wants_a_login_says_how() {
    let stack = Stack::start().await;
    let env = json!({"MOCK_NEW": "error:-32000", "MOCK_AUTH": "1"});
    let answer = stack.try_launch(json!({"env": env})).await.expect(201);
    assert_eq!(
        (&answer["status"], &answer["error"]["code"]),
        (&json!("failed"), &json!("auth_required"))
    );
    let status = stack
        .get(&format!("/agents/{}/status", answer["id"].as_str().unwrap()))
        .await
        .expect(200);
    let details = &status["error"]["details"];
    assert_eq!(details["code"], -32000);
    let method = json!({"id": "mock_login", "name": "Mock login", "description": "Always succeeds"});
    assert_eq!(details["auth_methods"], json!([method]));
    let refused = stack
        .try_launch(json!({"env": {"MOCK_NEW": "error:-32603"}}))
        .await
        .expect(201);
    assert_eq!(refused["error"]["code"], "handshake_failed");
    stack.settle().await;
}

#[tokio::test]
async fn a_login_by_environment_lasts_until_the_logout() {
    let stack = Stack::start().await;
    let env = json!({"MOCK_AUTH": "env", "MOCK_LOGIN_TOKEN": "t", "MOCK_INPUT_COPY": "/workspace/input"});
    let id = stack.launch(json!({"env": env})).await;
    let login = json!({"methodId": "mock_login"});
    assert_eq!(stack.sent_to("authenticate"), [login.clone()]);
    assert_eq!(stack.sent_to("session/new").len(), 2, "in vain, and then again");

    let post = async |what: &str, body: Value| stack.post(&format!("/agents/{id}/{what}"), &body).await;
    post("logout", json!({})).await.expect(200);
    assert_eq!(stack.sent_to("logout"), [json!({})]);
    let refused = post("fork", json!({})).await.refused(502, "agent_error");
    assert_eq!(refused["details"]["code"], -32000, "{refused:#}");
    // What is open goes on.
    assert_eq!(stack.turn(&id, "/say still here").await["text"], "still here");

    post("authenticate", json!({"method_id": "other"}))
        .await
        .refused(400, "validation_error");
    post("authenticate", json!({"method_id": "mock_login"}))
        .await
        .expect(200);
    assert_eq!(stack.sent_to("authenticate"), [login.clone(), login]);
    post("fork", json!({})).await.expect(201);
    stack.settle().await;
}
