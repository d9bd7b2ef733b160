//! What agents ask of callers, by the name of its list: `permissions` or `elicitations`.

use serde_json::Value;

use crate::support::Stack;

/// Waits for `count` open ones: oldest first.
pub(crate) async fn pending(stack: &Stack, list: &str, id: &str, count: usize) -> Vec<Value> {
    let path = format!("/agents/{id}/{list}?status=pending&limit=500");
    let page = stack.until(&path, |page| page["total"] == count).await;
    let mut open = page[list].as_array().unwrap().clone();
    open.reverse();
    assert_eq!(open.len(), count, "{page:#}");
    open
}

/// All of an instance, oldest first.
pub(crate) async fn all(stack: &Stack, list: &str, id: &str) -> Vec<Value> {
    let page = stack
        .get(&format!("/agents/{id}/{list}?limit=500"))
        .await
        .expect(200);
    let mut all = page[list].as_array().unwrap().clone();
    all.reverse();
    all
}

pub(crate) fn path_of(list: &str, one: &Value) -> String {
    let text = |key: &str| one[key].as_str().unwrap();
    format!("/agents/{}/{list}/{}", text("instance_id"), text("id"))
}

pub(crate) async fn turn_state(stack: &Stack, id: &str) -> Value {
    stack.get(&format!("/agents/{id}/status")).await.expect(200)["turn_state"].clone()
}

/// Waits for the end of a turn that was not waited for.
pub(crate) async fn turn_ended(stack: &Stack, id: &str, turn: &str) -> Value {
    let path = format!("/agents/{id}/turns/{turn}");
    stack.until(&path, |t| t["finished_at"].is_string()).await
}
