//! Cancels, and a server that dies right after them: cancelled stays cancelled, and the agent is told once.

use serde_json::{Value, json};

use crate::recovery::turn_ended;
use crate::support::Stack;

/// An agent that keeps what it is sent.
async fn launch(stack: &Stack) -> String {
    let env = json!({"MOCK_INPUT_COPY": "/workspace/input", "MOCK_WITHOUT": "load,resume"});
    stack.launch(json!({"env": env})).await
}

fn told_to_cancel(stack: &Stack) -> usize {
    let input = std::fs::read_to_string(stack.workspace().join("input")).unwrap();
    input.matches("\"session/cancel\"").count()
}

/// So many cancels at once, as soon as the server has the instance.
async fn cancels(stack: &Stack, id: &str, count: usize) -> Vec<u16> {
    let path = format!("/agents/{id}/cancel");
    let body = json!({"reason": "enough"});
    while stack.post(&path, &body).await.status == 503 {}
    let all = (0..count).map(|_| stack.post(&path, &body));
    let answers = futures_util::future::join_all(all).await;
    answers.iter().map(|a| a.status.as_u16()).collect()
}

/// The one turn there is was cancelled, ended once, and none came after it.
async fn assert_cancelled_once(stack: &Stack, id: &str, turn: &str) {
    let ended = turn_ended(stack, id, turn).await;
    assert_eq!(
        (&ended["status"], &ended["cancel_reason"]),
        (&json!("cancelled"), &json!("enough"))
    );
    let turns = stack.get(&format!("/agents/{id}/turns")).await.expect(200);
    assert_eq!(turns["turns"].as_array().unwrap().len(), 1, "{turns:#}");
    let events = stack.events(id).await;
    let count = |kind: &str| events.iter().filter(|e| e["kind"] == kind).count();
    assert_eq!((count("turn_started"), count("turn_ended")), (1, 1));
}

#[tokio::test]
async fn ten_cancels_and_a_death_are_one_cancel() {
    let mut stack = Stack::start().await;
    let id = launch(&stack).await;
    let turn = stack.prompt(&id, "/slow 300 100").await;
    stack
        .until(&format!("/agents/{id}/turns/{turn}"), |t| {
            t["text"].as_str().unwrap().contains("slow 2/")
        })
        .await;
    assert_eq!(cancels(&stack, &id, 5).await, [200; 5]);
    stack.kill().await;
    stack.boot().await;
    assert_eq!(cancels(&stack, &id, 5).await, [200; 5]);
    assert_cancelled_once(&stack, &id, &turn).await;
    assert_eq!(told_to_cancel(&stack), 1);
    let instance = stack.instance(&id).await;
    assert_eq!(
        (&instance["status"], &instance["turn_state"]),
        (&json!("running"), &json!("idle"))
    );
    assert_eq!(stack.turn(&id, "/say next").await["text"], "next");
    stack.settle().await;
}

/// The server dies between the cancel and everything that follows from it, again and again.
#[tokio::test]
async fn what_was_cancelled_stays_cancelled_whenever_the_server_dies() {
    let mut stack = Stack::with(&[("KANDEV_CANCEL_GRACE_SECONDS", "120")]).await;
    let id = launch(&stack).await;
    // It takes its time to stop.
    let turn = stack
        .prompt(&id, "/ignore-cancel\n/say begun\n/await go\n/say end")
        .await;
    stack
        .until(&format!("/agents/{id}/turns/{turn}"), |t| t["text"] == "begun")
        .await;
    for _ in 0..3 {
        assert_eq!(cancels(&stack, &id, 3).await, [200; 3]);
        stack.kill().await;
        stack.boot().await;
        let state = stack.get(&format!("/agents/{id}/status")).await.expect(200);
        assert_eq!(state["turn_state"], "cancelling");
    }
    std::fs::write(stack.workspace().join("go"), "").unwrap();
    let ended = turn_ended(&stack, &id, &turn).await;
    // It ended as if nothing had been; it was cancelled all the same.
    assert_eq!(ended["stop_reason"], "end_turn");
    // Of each server it heard once at most, however many asked for it.
    let told = told_to_cancel(&stack);
    assert!((1..=4).contains(&told), "{told}");
    assert_cancelled_once(&stack, &id, &turn).await;
    stack.settle().await;
}

#[tokio::test]
async fn an_agent_that_ignores_a_cancel_is_ended_by_the_next_server() {
    let mut stack = Stack::with(&[("KANDEV_CANCEL_GRACE_SECONDS", "2")]).await;
    let id = launch(&stack).await;
    let turn = stack.prompt(&id, "/ignore-cancel\n/slow 600 100").await;
    stack
        .until(&format!("/agents/{id}/turns/{turn}"), |t| {
            t["text"].as_str().unwrap().contains("slow 2/")
        })
        .await;
    assert_eq!(cancels(&stack, &id, 1).await, [200]);
    stack.kill().await;
    stack.boot().await;
    let instance: Value = stack.ended(&id).await;
    assert_eq!(instance["status"], "stopped", "{instance:#}");
    assert_cancelled_once(&stack, &id, &turn).await;
    stack.settle().await;
}
