//! What agents ask to be allowed: who answers, what comes of it, and what a restart leaves of it.

mod asking;
mod endings;
mod policies;
mod restarts;
mod withdrawn;

use serde_json::{Value, json};

use crate::support::{Answer, LIMIT, Stack};

/// Launches the mock agent so that callers are asked.
async fn launch(stack: &Stack, with: Value) -> String {
    stack.launch(asking(with)).await
}

/// A launch whose callers are asked, unless it says otherwise.
fn asking(with: Value) -> Value {
    let mut launch = json!({"permission_policy": "ask"});
    for (key, value) in with.as_object().unwrap() {
        launch[key] = value.clone();
    }
    launch
}

/// Waits for `count` open requests: oldest first.
async fn pending(stack: &Stack, id: &str, count: usize) -> Vec<Value> {
    let path = format!("/agents/{id}/permissions?status=pending&limit=500");
    let page = stack.until(&path, |page| page["total"] == count).await;
    let mut open = page["permissions"].as_array().unwrap().clone();
    open.reverse();
    assert_eq!(open.len(), count, "{page:#}");
    open
}

/// Waits for the one open request.
async fn asked(stack: &Stack, id: &str) -> Value {
    pending(stack, id, 1).await.remove(0)
}

async fn answer(stack: &Stack, permission: &Value, body: Value) -> Answer {
    let path = path_of(permission);
    stack.post(&path, &body).await
}

fn path_of(permission: &Value) -> String {
    let text = |key: &str| permission[key].as_str().unwrap();
    format!("/agents/{}/permissions/{}", text("instance_id"), text("id"))
}

/// All requests of an instance, oldest first.
async fn all(stack: &Stack, id: &str) -> Vec<Value> {
    let path = format!("/agents/{id}/permissions?limit=500");
    let mut list = stack.get(&path).await.expect(200)["permissions"]
        .as_array()
        .unwrap()
        .clone();
    list.reverse();
    list
}

/// Waits for the end of a turn that was not waited for.
async fn turn_ended(stack: &Stack, id: &str, turn: &str) -> Value {
    let path = format!("/agents/{id}/turns/{turn}");
    stack.until(&path, |t| t["finished_at"].is_string()).await
}

async fn turn_state(stack: &Stack, id: &str) -> Value {
    stack.get(&format!("/agents/{id}/status")).await.expect(200)["turn_state"].clone()
}

/// Prompts after a restart: until the instance is taken up, the server says 503.
async fn prompt_again(stack: &Stack, id: &str, message: &str) -> String {
    let deadline = std::time::Instant::now() + LIMIT;
    loop {
        let path = format!("/agents/{id}/prompt");
        let answer = stack.post(&path, &json!({"message": message})).await;
        if answer.status != 503 || std::time::Instant::now() > deadline {
            return answer.expect(202)["turn_id"].as_str().unwrap().to_owned();
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}
