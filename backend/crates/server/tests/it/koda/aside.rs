//! What goes on beside the turns of callers: subagents that work on, and turns that the agent begins by itself.

use serde_json::json;

use super::{post, sent, session, session_until, start, start_with};

#[tokio::test]
async fn who_has_subagents_at_work_is_not_idle() {
    let (mut stack, id) = start_with(json!({"idle_timeout_seconds": 1})).await;
    let script = "/subagent-settings {\"allowParentToContinue\":true}\n/subagent ms=2500 slow";
    stack.turn(&id, script).await;
    // Who takes the instance up knows it too.
    stack.kill().await;
    stack.boot().await;
    let ended = stack.ended(&id).await;
    assert_eq!(ended["status"], "completed", "{ended:#}");
    // It worked on after the turn, for longer than an instance may be idle, and had its end.
    let events = stack.events(&id).await;
    let turn = events.iter().position(|e| e["kind"] == "turn_ended");
    let done = events
        .iter()
        .rposition(|e| e["data"]["update"]["task"]["status"] == "completed");
    assert!(turn.is_some() && turn < done, "{turn:?}, {done:?}");
    let known = session(&stack, &id).await;
    assert_eq!(known["subagents"][0]["task"]["status"], "completed");
    assert_eq!(known["subagent_turn"]["state"], "finished");
    stack.settle().await;
}

#[tokio::test]
async fn a_turn_of_the_agents_own_can_be_cancelled() {
    let (stack, id) = start().await;
    let cancels = || {
        let sent = sent(&stack);
        sent.iter().filter(|f| f["method"] == "session/cancel").count()
    };
    let marker = |state: &str| {
        let update = json!({"sessionUpdate": "subagent_turn", "state": state, "promptId": "own-1"});
        format!("/update {update}")
    };
    stack.turn(&id, &marker("started")).await;
    for _ in 0..3 {
        post(&stack, &id, "cancel", json!({})).await.expect(200);
    }
    // The agent reads in order: once it answers this, it has read those.
    stack.turn(&id, &marker("finished")).await;
    assert_eq!(cancels(), 1);
    post(&stack, &id, "cancel", json!({})).await.expect(200);
    stack.turn(&id, "/say after").await;
    assert_eq!(cancels(), 1, "there is nothing to be cancelled");
    stack.settle().await;
}

#[tokio::test]
async fn what_it_says_of_its_context_is_kept() {
    let (stack, id) = start().await;
    let known = session_until(&stack, &id, |s| s["context_usage"].is_object()).await;
    assert_eq!(known["context_usage"]["maxTokens"], 200_000);
    let update = json!({"sessionUpdate": "context_compaction_update", "status": "failed"});
    stack.turn(&id, &format!("/update {update}")).await;
    let known = session(&stack, &id).await;
    assert_eq!(known["context_compaction"], update);
    stack.settle().await;
}
