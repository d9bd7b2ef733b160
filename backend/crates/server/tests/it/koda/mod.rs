//! Koda's page on its ACP server: a test for each of its sections, named after it. The mock agent speaks as Koda, in a container.

mod aside;
mod client;
mod connection;
mod edges;
mod sessions;
mod subagents;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Stack};

/// What the agent is launched as. Its input is there to be read, and its user's folder is in the workspace.
const ENTRY: &str = r#"
id = "koda"
name = "Koda"
image = "IMAGE"
args = ["--acp"]
memory_mb = 256
network = "none"

[env]
MOCK_DIALECT = "koda"
MOCK_INPUT_COPY = "/workspace/input"
KODA_ACP_SESSION_STORE_DIR = "/sessions"
KODA_CLI_HOME = "/workspace/home"

[client_capabilities]
subagents = true

[[mounts]]
source = "{workspace}"
target = "/workspace"

[[mounts]]
source = "{session_store}"
target = "/sessions"
"#;

/// A service with such an agent. The type `silent` is the same, but for what its client declares.
async fn start() -> (Stack, String) {
    start_with(json!({})).await
}

async fn start_with(launch_with: Value) -> (Stack, String) {
    let image = std::env::var("MOCK_IMAGE").unwrap_or_else(|_| "kandev/mock-agent:latest".to_owned());
    let entry = ENTRY.replace("IMAGE", &image);
    let silent = entry
        .replace("\"koda\"\nname", "\"silent\"\nname")
        .replace("subagents = true", "");
    let stack = Stack::with_types(&[], &[("koda", &entry), ("silent", &silent)]).await;
    let id = launch(&stack, launch_with).await;
    (stack, id)
}

async fn launch(stack: &Stack, mut with: Value) -> String {
    with["agent_type"] = json!("koda");
    stack.launch(with).await
}

async fn put(stack: &Stack, id: &str, what: &str, body: Value) -> Answer {
    let path = format!("/agents/{id}/{what}");
    stack.call(Method::PUT, &path, Some(&body)).await
}

async fn post(stack: &Stack, id: &str, what: &str, body: Value) -> Answer {
    stack.post(&format!("/agents/{id}/{what}"), &body).await
}

/// Calls a method of the agent's: its result or its error.
async fn rpc(stack: &Stack, id: &str, method: &str, params: Value) -> Value {
    post(stack, id, "rpc", json!({"method": method, "params": params}))
        .await
        .expect(200)
}

/// The same, and it must work.
async fn done(stack: &Stack, id: &str, method: &str, params: Value) -> Value {
    let answer = rpc(stack, id, method, params).await;
    assert!(answer["error"].is_null(), "{method}: {answer:#}");
    answer["result"].clone()
}

/// The same, and the agent must refuse it for this reason.
async fn fails(stack: &Stack, id: &str, method: &str, params: Value, code: i64, reason: &str) {
    let answer = rpc(stack, id, method, params).await;
    assert_typed(&answer["error"], code, reason);
}

/// An error as Koda has them.
#[track_caller]
fn assert_typed(error: &Value, code: i64, reason: &str) {
    assert_eq!(
        (&error["code"], &error["data"]["reason"]),
        (&json!(code), &json!(reason)),
        "{error:#}"
    );
    assert!(error["data"]["details"].is_string(), "{error:#}");
}

async fn session(stack: &Stack, id: &str) -> Value {
    stack.get(&format!("/agents/{id}/session")).await.expect(200)
}

/// Waits until what is known of the session is so.
async fn session_until(stack: &Stack, id: &str, holds: impl Fn(&Value) -> bool) -> Value {
    stack.until(&format!("/agents/{id}/session"), holds).await
}

/// What the agent itself says of its session.
async fn own_words(stack: &Stack, id: &str) -> Value {
    let turn = stack.turn(id, "/session").await;
    let text = turn["text"].as_str().unwrap();
    serde_json::from_str(text.trim_start_matches("session: ")).unwrap()
}

/// Every frame that agents of this workspace were sent, in order.
fn sent(stack: &Stack) -> Vec<Value> {
    let input = std::fs::read_to_string(stack.workspace().join("input")).unwrap();
    let frame = |line: &str| serde_json::from_str(line).unwrap();
    input.lines().map(frame).collect()
}

/// The last one of this method.
fn last_sent(stack: &Stack, method: &str) -> Value {
    let mut sent = sent(stack).into_iter();
    sent.rfind(|frame| frame["method"] == method)
        .unwrap_or_else(|| panic!("no {method}"))
}

/// The agent's updates of these kinds, in order; an empty list stands for all.
async fn updates(stack: &Stack, id: &str, kinds: &[&str]) -> Vec<Value> {
    let events = stack.events(id).await;
    let updates = events.iter().filter(|e| e["kind"] == "update");
    let updates = updates.map(|e| e["data"]["update"].clone());
    let wanted = |u: &Value| kinds.is_empty() || kinds.iter().any(|kind| u["sessionUpdate"] == *kind);
    updates.filter(wanted).collect()
}

async fn turn_until(stack: &Stack, id: &str, turn: &str, holds: impl Fn(&Value) -> bool) -> Value {
    stack.until(&format!("/agents/{id}/turns/{turn}"), holds).await
}

async fn turn_ended(stack: &Stack, id: &str, turn: &str) -> Value {
    turn_until(stack, id, turn, |t| t["finished_at"].is_string()).await
}

/// Stops the instance and goes on with its session: the new one.
async fn stop_and_resume(stack: &Stack, id: &str) -> String {
    post(stack, id, "stop", json!({})).await.expect(200);
    let resumed = post(stack, id, "resume", json!({"wait": "ready"}))
        .await
        .expect(201);
    assert!(resumed["error"].is_null(), "{resumed:#}");
    resumed["id"].as_str().unwrap().to_owned()
}
