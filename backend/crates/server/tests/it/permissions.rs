//! Permission requests and their answers.

use serde_json::json;

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
