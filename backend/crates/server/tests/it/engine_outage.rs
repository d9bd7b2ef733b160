//! The container engine goes away in mid-turn and comes back, with its containers (live-restore) or without them.

use std::time::Duration;

use serde_json::{Value, json};

use crate::recovery::{assert_whole, is_whole, launch, turn_ended};
use crate::support::{Engine, Stack};

async fn says(stack: &Stack, id: &str, turn: &str, text: &str) {
    stack
        .until(&format!("/agents/{id}/turns/{turn}"), |t| {
            t["text"].as_str().unwrap().contains(text)
        })
        .await;
}

/// Once this instance has been taken up, and is paused no more.
async fn taken_up(stack: &Stack, id: &str, times: usize) {
    stack
        .until(&format!("/agents/{id}/logs?stream=system&tail=100"), |page| {
            let lines = page["logs"].as_array().unwrap();
            let taken_up = lines
                .iter()
                .filter(|l| l["message"] == "the output is read up to now");
            taken_up.count() >= times
        })
        .await;
}

async fn gaps(stack: &Stack, id: &str) -> Vec<Value> {
    let events = stack.events(id).await;
    events.into_iter().filter(|e| e["kind"] == "gap").collect()
}

#[tokio::test]
async fn containers_that_outlive_their_engine_are_found_again() {
    let mut stack = Stack::on_engine(Engine::start(true)).await;
    let slow = launch(&stack).await;
    let asking = launch(&stack).await;
    let flood = launch(&stack).await;
    let idle = launch(&stack).await;
    let turns = [
        (&slow, stack.prompt(&slow, "/slow 120 100").await),
        (
            &asking,
            stack
                .prompt(&asking, &"/permission keep\n/sleep 150\n".repeat(40))
                .await,
        ),
        (
            &flood,
            stack
                .prompt(&flood, &"/flood 3000 200\n/sleep 100\n".repeat(40))
                .await,
        ),
    ];
    // Until the idle one has been silent for some time.
    says(&stack, &slow, &turns[0].1, "slow 20/").await;
    let containers = stack.containers();
    for (round, how) in ["stop", "kill"].into_iter().enumerate() {
        let engine = stack.engine.as_mut().unwrap();
        match how {
            "stop" => engine.stop(),
            _ => engine.kill(),
        }
        let ready = stack.get("/ready").await;
        assert_eq!(ready.status, 503);
        assert_eq!(ready.body["dependencies"]["docker"]["status"], "unavailable");
        // The agents write on, into their pipes.
        tokio::time::sleep(Duration::from_secs(1)).await;
        stack.engine.as_mut().unwrap().start_again();
        stack.until_ready().await;
        // An engine that dies while it pauses a container forgets that it did, and no request to it ends the pause.
        for id in [&slow, &asking, &flood, &idle] {
            taken_up(&stack, id, round + 1).await;
        }
    }
    for (id, turn) in &turns {
        let ended = turn_ended(&stack, id, turn).await;
        let log = stack.logs(id, "system").await;
        assert_eq!(ended["status"], "completed", "{ended:#}\n{}", log.join("\n"));
    }
    assert_eq!(stack.containers(), containers, "the same containers");
    for id in [&slow, &asking, &idle] {
        assert_whole(&stack, id).await;
    }
    assert!(gaps(&stack, &idle).await.is_empty(), "nothing was on its way");
    // What an engine holds of a flood dies with it, which is said.
    if !is_whole(&stack, &flood).await {
        assert!(!gaps(&stack, &flood).await.is_empty());
    }
    for id in [&slow, &asking, &flood, &idle] {
        assert_eq!(stack.turn(id, "/say again").await["text"], "again");
    }
    stack.settle().await;
}

#[tokio::test]
async fn containers_that_end_with_their_engine_have_their_true_end() {
    let mut stack = Stack::on_engine(Engine::start(false)).await;
    for (how, code) in [("stop", 143), ("kill", 143)] {
        let id = launch(&stack).await;
        let turn = stack.prompt(&id, "/slow 600 100").await;
        let other = launch(&stack).await;
        says(&stack, &id, &turn, "slow 3/").await;
        let engine = stack.engine.as_mut().unwrap();
        match how {
            "stop" => engine.stop(),
            _ => engine.kill(),
        }
        assert_eq!(stack.get("/ready").await.status, 503, "it is seen to be gone");
        stack.engine.as_mut().unwrap().start_again();
        for id in [&id, &other] {
            let instance = stack.ended(id).await;
            assert_eq!(
                (&instance["status"], &instance["exit_code"]),
                (&json!("failed"), &json!(code)),
                "{how}: {instance:#}"
            );
            assert_eq!(instance["error"]["code"], "agent_exited", "{how}");
            assert_whole(&stack, id).await;
        }
        let ended = turn_ended(&stack, &id, &turn).await;
        assert_eq!(
            (&ended["status"], &ended["error"]["code"]),
            (&json!("failed"), &json!("agent_exited"))
        );
        stack.until_ready().await;
    }
    let next = launch(&stack).await;
    assert_eq!(stack.turn(&next, "/say later").await["text"], "later");
    stack.settle().await;
}
