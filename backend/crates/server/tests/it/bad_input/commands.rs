//! Prompts and other commands that cannot be, or not now.

use reqwest::Method;
use serde_json::json;

use super::{counts, names};
use crate::support::Stack;

#[tokio::test]
async fn are_refused_by_field_or_state() {
    let stack = Stack::start().await;
    let task = json!({"task_id": "one-at-a-time", "env": {"MOCK_WITHOUT": "image,audio,embeddedContext"}});
    let id = stack.launch(task.clone()).await;
    let before = counts(&stack).await;

    stack.try_launch(task).await.refused(409, "conflict");
    let prompt = format!("/agents/{id}/prompt");
    let cases = [
        ("message", json!({})),
        ("message", json!({"message": 7})),
        ("prompt", json!({"message": ""})),
        ("prompt", json!({"message": " \n"})),
        ("prompt", json!({"prompt": []})),
        ("prompt", json!({"prompt": [{"type": "text", "text": ""}]})),
        ("prompt", json!({"message": "x", "prompt": "y"})),
        ("prompt", json!({"prompt": [{"type": "hologram"}]})),
        (
            "prompt",
            json!({"prompt": [{"type": "image", "data": "eA==", "mimeType": "image/png"}]}),
        ),
        (
            "prompt",
            json!({"prompt": [{"type": "audio", "data": "eA==", "mimeType": "audio/wav"}]}),
        ),
        (
            "prompt",
            json!({"prompt": [{"type": "resource", "resource": {"uri": "file:///x", "text": "x"}}]}),
        ),
        (
            "prompt",
            json!({"prompt": [{"type": "image", "data": "?", "mimeType": "image/png"}]}),
        ),
        (
            "prompt",
            json!({"prompt": [{"type": "image", "data": "not-base64", "mimeType": "image/png"}]}),
        ),
        (
            "prompt",
            json!({"prompt": [{"type": "image", "data": "eA==", "mimeType": "text/plain"}]}),
        ),
        (
            "prompt",
            json!({"prompt": [{"type": "resource", "resource": {"uri": "file:///x"}}]}),
        ),
        (
            "prompt",
            json!({"prompt": [{"type": "resource_link", "uri": "file:///x"}]}),
        ),
        ("prompt", json!({"prompt": [{"type": "image", "upload_id": "x"}]})),
        (
            "prompt",
            json!({"prompt": [{"type": "image", "upload_id": "x", "path": "y"}]}),
        ),
        ("prompt", json!({"prompt": [{"type": "file", "path": ""}]})),
        ("when_busy", json!({"message": "x", "when_busy": "shout"})),
        ("when_busy", json!({"message": "x", "when_busy": {}})),
        ("when_busy", json!({"message": "x", "when_busy": 5})),
        ("prompt_meta", json!({"message": "x", "prompt_meta": "y"})),
        (
            "prompt_meta",
            json!({"message": "x", "prompt_meta": {"com.kodadev.desktopEntryId": "y"}}),
        ),
        ("wait", json!({"message": "x", "wait": "long"})),
        ("wait", json!({"message": "x", "wait": {}})),
    ];
    for (field, case) in cases {
        names(stack.post(&prompt, &case).await, field, &case);
    }
    names(
        stack
            .post(&format!("/agents/{id}/cancel"), &json!({"reason": 7}))
            .await,
        "reason",
        &json!(7),
    );
    names(
        stack
            .post(&format!("/agents/{id}/stop"), &json!({"force": "y"}))
            .await,
        "force",
        &json!("y"),
    );
    names(
        stack
            .call(Method::DELETE, &format!("/agents/{id}?force=y"), None)
            .await,
        "force",
        &json!("y"),
    );
    stack
        .post(&format!("/agents/{id}/resume"), &json!({}))
        .await
        .refused(409, "conflict");
    stack
        .call(Method::DELETE, "/tasks/one-at-a-time", None)
        .await
        .refused(409, "conflict");
    stack
        .post("/tasks", &json!({"id": "one-at-a-time"}))
        .await
        .refused(409, "conflict");
    let tasks = [
        ("id", json!({"id": "a b"})),
        ("id", json!({"id": ""})),
        ("state", json!({"state": " "})),
        ("state", json!({"state": "x".repeat(65)})),
        ("state", json!({"state": null})),
        ("metadata", json!({"metadata": null})),
        ("title", json!({"title": 7})),
        ("metadata", json!({"metadata": {"a": "\u{0}"}})),
        ("metadata", json!({"metadata": "x"})),
    ];
    for (field, case) in tasks {
        names(stack.post("/tasks", &case).await, field, &case);
        names(
            stack
                .call(Method::PATCH, "/tasks/one-at-a-time", Some(&case))
                .await,
            field,
            &case,
        );
    }
    // A null takes away what need not be there.
    let task = async |body: serde_json::Value| {
        let answer = stack.call(Method::PATCH, "/tasks/one-at-a-time", Some(&body));
        let task = answer.await.expect(200);
        (task["title"].clone(), task["description"].clone())
    };
    assert_eq!(
        task(json!({"title": "T", "description": "D"})).await,
        (json!("T"), json!("D"))
    );
    assert_eq!(task(json!({"title": null})).await, (json!(null), json!("D")));
    assert_eq!(
        task(json!({"description": null})).await,
        (json!(null), json!(null))
    );
    let other = json!({"id": "another"});
    names(
        stack
            .call(Method::PATCH, "/tasks/one-at-a-time", Some(&other))
            .await,
        "id",
        &other,
    );
    assert_eq!(counts(&stack).await, before);
    assert_eq!(stack.instance(&id).await["status"], "running");

    stack.stop(&id).await;
    let before = counts(&stack).await;
    stack
        .post(&prompt, &json!({"message": "too late"}))
        .await
        .refused(409, "conflict");
    let never_ready = stack
        .launch(json!({"env": {"MOCK_INIT": "exit:1"}, "wait": "none"}))
        .await;
    stack.ended(&never_ready).await;
    stack
        .post(&format!("/agents/{never_ready}/resume"), &json!({}))
        .await
        .refused(409, "conflict");
    let (mut after, containers) = counts(&stack).await;
    after[0] -= 1;
    after[1] -= 1;
    assert_eq!((after, containers), before, "only the launch that was meant");
    stack.settle().await;
}
