//! The main job: launch, follow, prompt, cancel, stop, resume, read back.

use serde_json::json;

use crate::support::Stack;

#[tokio::test]
async fn a_launch_is_starting_and_has_a_container() {
    let stack = Stack::start().await;
    let launched = stack.try_launch(json!({"wait": "none"})).await.expect(201);
    assert_eq!(launched["status"], "starting");
    assert_eq!(stack.containers(), [launched["container_id"].as_str().unwrap()]);
    let id = launched["id"].as_str().unwrap();
    stack
        .until(&format!("/agents/{id}"), |i| i["status"] == "running")
        .await;
    let stopped = stack
        .post(&format!("/agents/{id}/stop"), &json!({"reason": "enough"}))
        .await
        .expect(200);
    assert_eq!(stopped["status"], "stopped");
    assert!(stack.containers().is_empty());
    assert_eq!(stack.instance(id).await["reason"], "enough");
}
