//! The database goes away in the middle of everything, and comes back.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::recovery::{assert_whole, launch, turn_ended};
use crate::support::{Cluster, Stack, docker};

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
    // Nothing shows that the flood has come to a standstill; what is measured too early is only less.
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

/// How long the database stands still: long enough for stops to run out of patience with it.
fn freeze() -> Duration {
    let seconds = std::env::var("KANDEV_TEST_FREEZE_SECONDS").ok();
    Duration::from_secs(seconds.map_or(8, |seconds| seconds.parse().unwrap()))
}

fn container_of(id: &str) -> String {
    let label = format!("label=kandev.instance_id={id}");
    docker(&["ps", "-aq", "--no-trunc", "--filter", &label]).remove(0)
}

/// The container has ended, and is there: what it wrote is not stored yet.
fn has_exited(container: &str) -> bool {
    docker(&["inspect", "-f", "{{.State.Status}}", container]) == ["exited"]
}

#[tokio::test]
async fn a_database_that_freezes_in_a_flood_costs_nothing_and_stops_work() {
    let graces = [
        ("KANDEV_CANCEL_GRACE_SECONDS", "2"),
        ("KANDEV_STOP_GRACE_SECONDS", "2"),
    ];
    let stack = Stack::on(Cluster::start(), &graces).await;
    let kandev = stack.kandev.as_ref().unwrap();
    let idle = launch(&stack).await;
    let flood = launch(&stack).await;
    let stopped_flood = launch(&stack).await;
    let cancelled = launch(&stack).await;
    let before = kandev.memory();
    let flood_turn = stack.prompt(&flood, "/flood 100000 500").await;
    let stopped_turn = stack.prompt(&stopped_flood, "/flood 1000000 500").await;
    let cancelled_turn = stack.prompt(&cancelled, "/slow 600 100").await;
    for (id, turn) in [(&stopped_flood, &stopped_turn), (&cancelled, &cancelled_turn)] {
        stack
            .until(&format!("/agents/{id}/turns/{turn}"), |t| {
                !t["text"].as_str().unwrap().is_empty()
            })
            .await;
    }
    let containers = [&idle, &stopped_flood].map(|id| container_of(id));
    stack.cluster().freeze();
    let frozen = Instant::now();

    // All at once, each bounded.
    let stop = async |id: &str| {
        let answer = stack
            .post(&format!("/agents/{id}/stop"), &json!({"reason": "now"}))
            .await;
        let body = answer.expect(202);
        assert_eq!((&body["success"], &body["id"]), (&json!(true), &json!(id)));
        assert_eq!(body["status"], "running");
    };
    let cancel = async {
        let path = format!("/agents/{cancelled}/cancel");
        let body = stack.post(&path, &json!({"reason": "enough"})).await.expect(202);
        assert_eq!(
            (&body["success"], &body["status"]),
            (&json!(true), &json!("running"))
        );
    };
    let read = async {
        stack
            .get(&format!("/agents/{flood}"))
            .await
            .refused(503, "internal_error");
    };
    let watch = async {
        let mut most = 0;
        while frozen.elapsed() < freeze() || !containers.iter().all(|c| has_exited(c)) {
            assert!(frozen.elapsed() < freeze() + Duration::from_mins(1), "no stop");
            // Memory is looked at now and then; nothing tells when it is most.
            tokio::time::sleep(Duration::from_millis(200)).await;
            most = most.max(kandev.memory());
            let ready = stack.get("/ready").await;
            assert_eq!(ready.status, 503, "{:#}", ready.body);
            assert_eq!(ready.body["dependencies"]["postgres"]["status"], "unavailable");
        }
        most
    };
    let (most, ..) = tokio::join!(watch, stop(&idle), stop(&stopped_flood), cancel, read);
    assert!(
        most < before + (128 << 20),
        "from {before} to {most} bytes while the database stood still"
    );
    stack.cluster().thaw();

    for id in [&idle, &stopped_flood] {
        assert_eq!(stack.ended(id).await["status"], "stopped");
    }
    assert_eq!(
        turn_ended(&stack, &stopped_flood, &stopped_turn).await["status"],
        "cancelled"
    );
    // It was told while nothing could be stored, and is still there.
    assert_eq!(
        turn_ended(&stack, &cancelled, &cancelled_turn).await["status"],
        "cancelled"
    );
    assert_eq!(stack.turn(&cancelled, "/say again").await["text"], "again");
    assert_eq!(
        turn_ended(&stack, &flood, &flood_turn).await["status"],
        "completed"
    );
    for id in [&idle, &flood, &stopped_flood, &cancelled] {
        assert_whole(&stack, id).await;
        let gaps = stack
            .events(id)
            .await
            .iter()
            .filter(|e| e["kind"] == "gap")
            .count();
        assert_eq!(gaps, 0, "{id}");
    }
    stack.settle().await;
}

/// Fast, the connections are cut; immediate and killed, the last commits are lost with the server.
#[tokio::test]
async fn a_database_that_restarts_in_mid_turn_costs_nothing() {
    let stack = Stack::on(Cluster::start(), &[]).await;
    let mut turns = Vec::new();
    for script in [
        "/flood 2000 200\n/sleep 50\n".repeat(60),
        "/slow 120 50".to_owned(),
        "/permission keep\n/sleep 60\n".repeat(60),
    ] {
        let id = launch(&stack).await;
        let turn = stack.prompt(&id, &script).await;
        turns.push((id, turn));
    }
    let slow = turns[1].clone();
    for round in 0..2 {
        for how in ["fast", "immediate", "kill"] {
            // In the middle of what it says: it has gone on since the last time.
            let path = format!("/agents/{}/turns/{}", slow.0, slow.1);
            let length = |turn: &serde_json::Value| turn["text"].as_str().unwrap().len();
            let before = length(&stack.get(&path).await.expect(200));
            stack
                .until(&path, |t| {
                    t["finished_at"].is_string() || length(t) > before + 10 * "slow 1/120 ".len()
                })
                .await;
            match how {
                "kill" => {
                    stack.cluster().kill();
                    stack.cluster().start_again();
                }
                mode => stack.cluster().restart(mode),
            }
            stack.until_ready().await;
            // A turn of its own after each.
            let id = &turns[0].0;
            let again = stack.prompt(id, &format!("/say {how} {round}")).await;
            turns.push((id.clone(), again));
        }
    }
    for (id, turn) in &turns {
        let ended = turn_ended(&stack, id, turn).await;
        assert_eq!(ended["status"], "completed", "{ended:#}");
    }
    for (id, _) in &turns[..3] {
        assert_whole(&stack, id).await;
    }
    stack.settle().await;
}
