//! The sessions that an agent keeps: listed, closed and deleted, and what our record tells of that.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Stack};

async fn copied(stack: &Stack, env: Value) -> String {
    let mut env = env;
    env["MOCK_INPUT_COPY"] = json!("/workspace/input");
    stack.launch(json!({"env": env})).await
}

async fn session_of(stack: &Stack, id: &str) -> String {
    let instance = stack.instance(id).await;
    instance["session_id"].as_str().unwrap().to_owned()
}

async fn delete(stack: &Stack, id: &str, session: &str) -> Answer {
    let path = format!("/agents/{id}/sessions/{session}");
    stack.call(Method::DELETE, &path, None).await
}

async fn close(stack: &Stack, id: &str, session: &str) -> Answer {
    let path = format!("/agents/{id}/sessions/{session}/close");
    stack.post(&path, &json!({})).await
}

/// What the last `session` event says.
async fn told(stack: &Stack, id: &str) -> Value {
    let events = stack.events(id).await;
    events.iter().rfind(|e| e["kind"] == "session").unwrap()["data"].clone()
}

#[tokio::test]
async fn the_agents_sessions_are_listed_with_what_kandev_knows_of_them() {
    let stack = Stack::start().await;
    let first = copied(&stack, json!({})).await;
    stack.turn(&first, "/title The first\n/say x").await;
    let old = session_of(&stack, &first).await;
    stack.stop(&first).await;
    let id = copied(&stack, json!({})).await;
    let own = session_of(&stack, &id).await;
    let list = stack
        .get(&format!("/agents/{id}/sessions?cwd=/workspace"))
        .await
        .expect(200);
    let sessions = list["sessions"].as_array().unwrap();
    let of = |session: &str| sessions.iter().find(|s| s["session_id"] == session).unwrap();
    assert_eq!(
        (
            &of(&old)["title"],
            &of(&old)["own"],
            &of(&own)["own"],
            &of(&old)["cwd"]
        ),
        (
            &json!("The first"),
            &json!(false),
            &json!(true),
            &json!("/workspace")
        )
    );
    let known = stack.get(&format!("/sessions/{old}")).await.expect(200);
    assert_eq!(of(&old)["id"], known["id"]);
    assert_eq!(stack.sent_to("session/list"), [json!({"cwd": "/workspace"})]);
    let none = stack
        .get(&format!("/agents/{id}/sessions?cwd=/else"))
        .await
        .expect(200);
    assert_eq!(none, json!({"sessions": [], "next_cursor": null}));
    stack
        .get(&format!("/agents/{id}/sessions?cursor=c"))
        .await
        .expect(200);
    assert_eq!(stack.sent_to("session/list")[2], json!({"cursor": "c"}));
    for query in ["cwd=relative", "cwd="] {
        let refused = stack.get(&format!("/agents/{id}/sessions?{query}")).await;
        refused.refused(400, "validation_error");
    }
    stack.settle().await;
}

#[tokio::test]
async fn a_deleted_session_is_gone_at_the_agent_and_told_in_our_record() {
    let mut stack = Stack::start().await;
    let first = copied(&stack, json!({})).await;
    stack.turn(&first, "/say remember").await;
    let old = session_of(&stack, &first).await;
    let id = copied(&stack, json!({})).await;
    let own = session_of(&stack, &id).await;
    // Not while an instance works in it.
    delete(&stack, &id, &old).await.refused(409, "conflict");
    delete(&stack, &id, &own).await.refused(409, "conflict");
    close(&stack, &id, &own).await.refused(409, "conflict");
    stack.stop(&first).await;
    assert_eq!(stack.sent_to("session/delete"), [] as [Value; 0]);
    let before = stack.get(&format!("/sessions/{old}")).await.expect(200);
    assert_eq!(before["deleted_at"], Value::Null);

    let key = before["id"].as_str().unwrap();
    delete(&stack, &id, key).await.expect(200);
    assert_eq!(stack.sent_to("session/delete"), [json!({"sessionId": old})]);
    assert_eq!(
        told(&stack, &id).await,
        json!({"session_id": old, "how": "deleted"})
    );
    let list = stack.get(&format!("/agents/{id}/sessions")).await.expect(200);
    assert!(!list.to_string().contains(&old), "{list:#}");
    stack.kill().await;
    stack.boot().await;
    let session = stack.get(&format!("/sessions/{old}")).await.expect(200);
    assert!(session["deleted_at"].is_string(), "{session:#}");
    // What happened in it stays; nothing goes on with it.
    let events = stack.get(&format!("/sessions/{old}/events")).await.expect(200);
    assert!(events.to_string().contains("remember"));
    for path in [
        format!("/sessions/{old}/resume"),
        format!("/agents/{first}/resume"),
    ] {
        stack.post(&path, &json!({})).await.refused(409, "conflict");
    }
    stack
        .try_launch(json!({"session_id": old}))
        .await
        .refused(409, "conflict");
    let fresh = stack.launch(json!({"session_id": old, "on_lost": "new"})).await;
    assert_eq!(told(&stack, &fresh).await["how"], "new");
    // The agent's own refusal: it can be asked once it is taken up.
    stack.turn(&id, "/say here").await;
    let refused = delete(&stack, &id, &old).await.refused(502, "agent_error");
    assert_eq!(refused["details"]["code"], -32002);
    stack.settle().await;
}

#[tokio::test]
async fn a_branch_is_closed_and_can_still_be_resumed() {
    let stack = Stack::start().await;
    let id = copied(&stack, json!({})).await;
    stack.turn(&id, "/say one").await;
    let branch = stack
        .post(&format!("/agents/{id}/fork"), &json!({}))
        .await
        .expect(201);
    let branch = branch["session_id"].as_str().unwrap();
    close(&stack, &id, branch).await.expect(200);
    assert_eq!(stack.sent_to("session/close"), [json!({"sessionId": branch})]);
    assert_eq!(
        told(&stack, &id).await,
        json!({"session_id": branch, "how": "closed"})
    );
    close(&stack, &id, branch).await.refused(502, "agent_error");
    stack.stop(&id).await;
    let resumed = stack
        .post(&format!("/sessions/{branch}/resume"), &json!({"wait": "ready"}))
        .await
        .expect(201);
    let history = stack.turn(resumed["id"].as_str().unwrap(), "/history").await;
    assert!(history["text"].as_str().unwrap().contains("one"), "{history:#}");
    stack.settle().await;
}

#[tokio::test]
async fn what_the_agent_cannot_do_with_its_sessions_is_not_asked() {
    let stack = Stack::start().await;
    let plain = copied(&stack, json!({"MOCK_WITHOUT": "list,close,delete"})).await;
    let kandev = copied(&stack, json!({"MOCK_DIALECT": "kandev"})).await;
    let before = stack.sent().len();
    for id in [&plain, &kandev] {
        let listed = stack.get(&format!("/agents/{id}/sessions")).await;
        listed.refused(501, "unsupported_capability");
        close(&stack, id, "x")
            .await
            .refused(501, "unsupported_capability");
        delete(&stack, id, "x")
            .await
            .refused(501, "unsupported_capability");
    }
    assert_eq!(stack.sent().len(), before);
    stack.stop(&plain).await;
    let able = copied(&stack, json!({})).await;
    for method in ["session/list", "session/close", "session/delete"] {
        let body = json!({"method": method, "params": {"sessionId": "x"}});
        let refused = stack.post(&format!("/agents/{able}/rpc"), &body).await;
        assert_eq!(
            refused.refused(400, "validation_error")["details"]["field"],
            "method"
        );
    }
    stack.settle().await;
}
