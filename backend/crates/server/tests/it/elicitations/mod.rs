//! What agents ask people for, forms and URLs: who answers, what comes of it, and what a restart leaves of it.

mod asking;
mod endings;
mod restarts;

use serde_json::{Value, json};

use crate::support::{Answer, Stack};

/// Waits for `count` open ones: oldest first.
async fn pending(stack: &Stack, id: &str, count: usize) -> Vec<Value> {
    let path = format!("/agents/{id}/elicitations?status=pending&limit=500");
    let page = stack.until(&path, |page| page["total"] == count).await;
    let mut open = page["elicitations"].as_array().unwrap().clone();
    open.reverse();
    assert_eq!(open.len(), count, "{page:#}");
    open
}

/// Waits for the one that is open.
async fn asked(stack: &Stack, id: &str) -> Value {
    pending(stack, id, 1).await.remove(0)
}

fn path_of(elicitation: &Value) -> String {
    let text = |key: &str| elicitation[key].as_str().unwrap();
    format!("/agents/{}/elicitations/{}", text("instance_id"), text("id"))
}

async fn answer(stack: &Stack, elicitation: &Value, body: Value) -> Answer {
    stack.post(&path_of(elicitation), &body).await
}

fn accept(content: Value) -> Value {
    json!({"action": "accept", "content": content})
}

/// All of an instance, oldest first.
async fn all(stack: &Stack, id: &str) -> Vec<Value> {
    let path = format!("/agents/{id}/elicitations?limit=500");
    let mut list = stack.get(&path).await.expect(200)["elicitations"]
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
