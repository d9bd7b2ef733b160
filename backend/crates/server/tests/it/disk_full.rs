//! The disk under the database is full, and has room again.

use std::time::Duration;

use serde_json::json;

use crate::support::{Answer, LIMIT, SmallPostgres, Stack};

/// What `/ready` says once this holds.
async fn ready_when(stack: &Stack, holds: impl Fn(&Answer) -> bool) -> Answer {
    let answered = async {
        loop {
            let ready = stack.get("/ready").await;
            if holds(&ready) {
                return ready;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LIMIT, answered)
        .await
        .expect("/ready stays as it is")
}

async fn is_ready(stack: &Stack) {
    ready_when(stack, |ready| ready.status == 200).await;
}

#[tokio::test]
async fn a_full_disk_holds_everything_up_and_loses_nothing() {
    let postgres = SmallPostgres::start().await;
    let url = postgres.url();
    let settings = [
        ("DATABASE_URL", url.as_str()),
        ("KANDEV_REQUEST_TIMEOUT_SECONDS", "3"),
    ];
    let stack = Stack::with(&settings).await;
    let id = stack.launch(json!({})).await;
    let turn = stack
        .prompt(&id, "/slow 250 20\n/flood 20000 200\n/slow 20 50")
        .await;
    let path = format!("/agents/{id}/turns/{turn}");
    stack
        .until(&path, |t| t["text"].as_str().unwrap().contains("slow 5/"))
        .await;

    postgres.fill();
    let ready = ready_when(&stack, |ready| ready.status != 200).await;
    assert_eq!(ready.status, 503);
    let journal = &ready.body["dependencies"]["journal"];
    assert_eq!(journal["status"], "unavailable", "{:#}", ready.body);
    assert!(journal["waiting_since"].is_string(), "{journal:#}");
    assert!(
        journal["error"].as_str().unwrap().contains("No space left"),
        "{journal:#}"
    );
    // It reads, and it answers: what cannot be stored is refused, not kept waiting for good.
    assert_eq!(stack.get("/health").await.status, 200);
    assert_eq!(stack.instance(&id).await["status"], "running");
    let body = json!({"message": "/say lost?"});
    stack
        .post(&format!("/agents/{id}/prompt"), &body)
        .await
        .refused(503, "internal_error");
    let big = json!({"title": "t", "description": "a description ".repeat(10_000)});
    let mut task = stack.post("/tasks", &big).await;
    // What fits into a page that is there already, the database still takes.
    for _ in 0..50 {
        if task.status == 503 {
            break;
        }
        task = stack.post("/tasks", &big).await;
    }
    task.refused(503, "internal_error");

    postgres.make_room();
    is_ready(&stack).await;
    let ended = stack.until(&path, |t| t["status"] != "running").await;
    assert_eq!(ended["status"], "completed", "{:#}", ended["error"]);
    let events = stack.events(&id).await;
    let texts: Vec<String> = events
        .iter()
        .filter(|e| e["kind"] == "update" && e["turn_id"] == turn.as_str())
        .filter_map(|e| e["data"]["update"]["content"]["text"].as_str().map(str::to_owned))
        .collect();
    let slow = |all: u64| (1..=all).map(move |n| format!("slow {n}/{all} "));
    let flood = (1..=20_000).map(|n| format!("{n:08} "));
    let expected: Vec<String> = slow(250).chain(flood).chain(slow(20)).collect();
    assert_eq!(texts.len(), expected.len());
    for (text, expected) in texts.iter().zip(&expected) {
        assert!(text.starts_with(expected.as_str()), "{text} is not {expected}");
    }
    // The prompt that was given up counts all the same, once.
    let turns = stack
        .until(&format!("/agents/{id}/turns"), |t| {
            t["turns"].as_array().unwrap().len() == 2
        })
        .await;
    assert_eq!(turns["turns"][1]["prompt"][0]["text"], "/say lost?");
    stack.settle().await;
}

/// A database that takes no writes: after a failover to a standby, say.
#[tokio::test]
async fn a_database_that_is_read_only_is_waited_for() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let turn = stack.prompt(&id, "/slow 40 50").await;
    let path = format!("/agents/{id}/turns/{turn}");
    stack
        .until(&path, |t| t["text"].as_str().unwrap().contains("slow 2/"))
        .await;
    stack.database.read_only(true).await;
    let ready = ready_when(&stack, |ready| {
        let parts = &ready.body["dependencies"];
        parts["journal"]["status"] == "unavailable" && parts["postgres"]["status"] == "unavailable"
    })
    .await;
    assert_eq!(ready.status, 503);
    stack
        .post("/tasks", &json!({}))
        .await
        .refused(503, "internal_error");
    stack.database.read_only(false).await;
    is_ready(&stack).await;
    let ended = stack.until(&path, |t| t["status"] != "running").await;
    assert_eq!(ended["status"], "completed");
    stack.settle().await;
}
