//! What agents ask to be allowed: who answers, what comes of it, and what a restart leaves of it.

mod asking;
mod endings;
mod policies;
mod restarts;
mod withdrawn;

use serde_json::{Value, json};

use crate::asked::{self, turn_ended, turn_state};
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
    asked::pending(stack, "permissions", id, count).await
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
    asked::path_of("permissions", permission)
}

/// All requests of an instance, oldest first.
async fn all(stack: &Stack, id: &str) -> Vec<Value> {
    asked::all(stack, "permissions", id).await
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
