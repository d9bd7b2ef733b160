//! The database goes away in the middle of everything, and comes back.

use std::time::Duration;

use serde_json::json;

use crate::recovery::{assert_whole, launch, turn_ended};
use crate::support::Stack;

#[tokio::test]
async fn a_database_that_goes_away_in_a_flood_costs_nothing() {
    let stack = Stack::start().await;
    let flood = launch(&stack).await;
    let slow = launch(&stack).await;
    let turns = [
        (&flood, stack.prompt(&flood, "/flood 60000 500").await),
        (&slow, stack.prompt(&slow, "/slow 60 100\n/permission").await),
    ];
    stack
        .until(&format!("/agents/{slow}/turns/{}", turns[1].1), |t| {
            t["text"].as_str().unwrap().contains("slow 2/")
        })
        .await;
    let before = stack.kandev.as_ref().unwrap().memory();
    stack.database.go_away().await;
    let mut away = stack.get("/ready").await;
    let mut most = 0;
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        most = most.max(stack.kandev.as_ref().unwrap().memory());
        away = stack.get("/ready").await;
    }
    assert_eq!(away.status, 503, "{:#}", away.body);
    assert_eq!(away.body["dependencies"]["postgres"]["status"], "unavailable");
    assert_eq!(stack.get("/health").await.status, 200);
    stack
        .get(&format!("/agents/{slow}"))
        .await
        .refused(503, "internal_error");
    stack
        .post("/tasks", &json!({}))
        .await
        .refused(503, "internal_error");
    assert!(
        most < before + (64 << 20),
        "from {before} to {most} bytes while the database was away"
    );
    stack.database.come_back().await;
    for (id, turn) in &turns {
        assert_eq!(turn_ended(&stack, id, turn).await["status"], "completed");
        assert_whole(&stack, id).await;
    }
    stack.settle().await;
}
