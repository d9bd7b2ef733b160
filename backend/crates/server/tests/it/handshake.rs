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
    assert_eq!(stack.sent_to("authenticate"), std::slice::from_ref(&login));
    assert_eq!(stack.sent_to("session/new").len(), 2, "in vain, and then again");

    let post = async |what: &str, body: Value| stack.post(&format!("/agents/{id}/{what}"), &body).await;
    post("logout", json!({})).await.expect(200);
    assert_eq!(stack.sent_to("logout"), [json!({})]);
    let refused = post("fork", json!({})).await.refused(502, "agent_error");
    assert_eq!(refused["details"]["code"], -32000, "{refused:#}");
    // What is open goes on.
    assert_eq!(stack.turn(&id, "/say still here").await["text"], "still here");

    for other in ["other", "mock_program"] {
        post("authenticate", json!({"method_id": other}))
            .await
            .refused(400, "validation_error");
    }
    post("authenticate", json!({"method_id": "mock_login"}))
        .await
        .expect(200);
    assert_eq!(stack.sent_to("authenticate"), [login.clone(), login]);
    post("fork", json!({})).await.expect(201);
    stack.settle().await;
}

#[tokio::test]
async fn a_login_by_name_comes_before_the_session() {
    let stack = Stack::with(&[("KANDEV_CANCEL_GRACE_SECONDS", "1")]).await;
    let env = json!({"MOCK_AUTH": "1", "MOCK_INPUT_COPY": "/workspace/input"});
    // Its answer is what the caller needs to know.
    let failed = stack.try_launch(json!({"env": env})).await.expect(201);
    let offered = &failed["error"]["details"]["auth_methods"][0];
    assert_eq!(
        (&failed["error"]["code"], &offered["id"]),
        (&json!("auth_required"), &json!("mock_login"))
    );
    for wrong in ["other", "mock_program"] {
        let env = json!({"MOCK_AUTH": "env"});
        let failed = stack.try_launch(json!({"env": env, "auth_method": wrong})).await;
        assert_eq!(failed.expect(201)["error"]["code"], "auth_required", "{wrong}");
    }
    stack
        .try_launch(json!({"env": env, "auth_method": ""}))
        .await
        .refused(400, "validation_error");

    let methods = || -> Vec<String> {
        let sent = stack.sent();
        let told = sent.iter().filter_map(|frame| frame["method"].as_str());
        let of_opening = |method: &&str| method.starts_with("session/") || *method == "authenticate";
        told.filter(of_opening).map(ToOwned::to_owned).collect()
    };
    let before = methods().len();
    let id = stack
        .launch(json!({"env": env, "auth_method": "mock_login"}))
        .await;
    assert_eq!(methods()[before..], ["authenticate", "session/new"]);
    // So it does when it is started again, and when it is resumed.
    stack.deaf_turn(&id).await;
    stack.cancel(&id).await;
    assert_eq!(stack.turn(&id, "/say back").await["text"], "back");
    let rest = ["authenticate", "session/resume", "session/prompt"];
    assert_eq!(methods()[methods().len() - 3..], rest);
    stack.stop(&id).await;
    stack.resume(&id).await;
    assert_eq!(
        methods()[methods().len() - 2..],
        ["authenticate", "session/resume"]
    );
    stack.settle().await;
}

/// By a caller, in the place of the launch.
#[tokio::test]
async fn a_later_login_is_remembered() {
    let mut stack = Stack::with(&[("KANDEV_CANCEL_GRACE_SECONDS", "1")]).await;
    let env = json!({"MOCK_AUTH": "env", "MOCK_LOGIN_TOKEN": "t", "MOCK_INPUT_COPY": "/workspace/input"});
    let id = stack.launch(json!({"env": env})).await;
    stack
        .post(
            &format!("/agents/{id}/authenticate"),
            &json!({"method_id": "mock_login"}),
        )
        .await
        .expect(200);
    stack.kill().await;
    stack.boot().await;
    stack.deaf_turn(&id).await;
    stack.cancel(&id).await;
    assert_eq!(stack.turn(&id, "/say back").await["text"], "back");
    // Before the session, which so is asked for once.
    assert_eq!(stack.sent_to("session/resume").len(), 1);
    assert_eq!(stack.sent_to("authenticate").len(), 3);
    stack.settle().await;
}
