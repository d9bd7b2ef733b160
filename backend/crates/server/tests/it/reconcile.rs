//! What a server finds at its start, and what it finds later (CASE 30).

use std::time::{Duration, Instant};

use kandev_domain::InstanceId;
use serde_json::json;

use crate::support::{LIMIT, Stack, docker};

const QUICK: &[(&str, &str)] = &[
    ("KANDEV_RECONCILE_INTERVAL_SECONDS", "1"),
    ("KANDEV_ORPHAN_GRACE_SECONDS", "1"),
    ("KANDEV_STOP_GRACE_SECONDS", "1"),
];

/// A container with the labels of one of kandev's, which sleeps.
fn stray(owner: &str, instance: &str) -> String {
    let (owner, id) = (
        format!("kandev.owner={owner}"),
        format!("kandev.instance_id={instance}"),
    );
    let run = [
        "run",
        "-d",
        "--network=none",
        "-i",
        "--label=kandev.managed=true",
        "--label",
        &owner,
        "--label",
        &id,
    ];
    docker(&[&run[..], &["kandev/mock-agent:latest"]].concat())
        .pop()
        .unwrap()
}

/// A container that no stack takes away at its end.
struct Foreign(String);

impl Drop for Foreign {
    fn drop(&mut self) {
        docker(&["rm", "-f", &self.0]);
    }
}

/// Waits until the deployment has exactly these containers; only the engine knows.
async fn until_containers(stack: &Stack, expected: &[&str]) {
    let deadline = Instant::now() + LIMIT;
    while stack.containers() != expected {
        assert!(Instant::now() < deadline, "there are {:?}", stack.containers());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// It failed because it was lost, every turn of its with it, and its history says so at its end.
async fn assert_lost(stack: &Stack, id: &str, turns: &[&str]) {
    let instance = stack.ended(id).await;
    assert_eq!(
        (&instance["status"], &instance["error"]["code"]),
        (&json!("failed"), &json!("runtime_lost"))
    );
    assert_eq!(instance["turn_state"], "idle");
    assert!(instance["finished_at"].is_string(), "{instance:#}");
    let list = stack.get(&format!("/agents/{id}/turns")).await.expect(200);
    let statuses: Vec<_> = list["turns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["status"].as_str().unwrap())
        .collect();
    assert_eq!(statuses, turns, "{list:#}");
    for turn in list["turns"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|t| t["status"] == "failed")
    {
        assert_eq!(turn["error"]["code"], "runtime_lost", "{turn:#}");
        assert!(turn["finished_at"].is_string(), "{turn:#}");
    }
    let events = stack.events(id).await;
    let last = events.last().unwrap();
    assert_eq!(
        (&last["kind"], &last["data"]["status"]),
        (&json!("status"), &json!("failed")),
        "{last:#}"
    );
}

#[tokio::test]
async fn instances_whose_containers_went_with_the_server_are_lost_truthfully() {
    let mut stack = Stack::start().await;
    let running = stack
        .launch(json!({"task_id": "running", "prompt": "/say one", "wait": "turn"}))
        .await;
    stack.prompt(&running, "/say two\n/hang").await;
    stack.prompt(&running, "/say three").await;
    let path = format!("/agents/{running}/turns");
    stack
        .until(&path, |list| {
            list["turns"][1]["text"] == "two" && list["total"] == 3
        })
        .await;
    let starting = stack
        .launch(
            json!({"task_id": "starting", "env": {"MOCK_INIT": "never"}, "prompt": "/say x", "wait": "none"}),
        )
        .await;
    stack
        .until(&format!("/agents/{starting}/logs"), |l| {
            l["total"].as_i64() >= Some(3)
        })
        .await;
    let stopped = stack.launch(json!({"task_id": "stopped"})).await;
    stack.stop(&stopped).await;
    let history = stack.events(&running).await;

    stack.kill().await;
    let left = stack.containers();
    assert_eq!(left.len(), 2, "agents outlive the server");
    for container in left {
        docker(&["rm", "-f", &container]);
    }
    stack.boot().await;
    assert_lost(&stack, &running, &["completed", "failed", "cancelled"]).await;
    assert_lost(&stack, &starting, &["cancelled"]).await;
    assert_eq!(
        stack.instance(&stopped).await["status"],
        "stopped",
        "what had ended is left alone"
    );
    let events = stack.events(&running).await;
    assert_eq!(&events[..history.len()], &history[..], "history is only added to");
    let text = &stack.get(&path).await.expect(200)["turns"][1]["text"];
    assert_eq!(
        text, "two",
        "what had been stored of the lost turn is still there"
    );
    for task in ["running", "starting"] {
        stack.launch(json!({"task_id": task})).await;
    }
    stack.settle().await;
}

#[tokio::test]
async fn strays_are_reaped_and_those_of_others_are_not() {
    let stack = Stack::with(QUICK).await;
    let id = stack.launch(json!({})).await;
    let own = stack.containers();
    let other = format!("{}-other", stack.owner);
    let foreign = Foreign(stray(&other, &InstanceId::generate().to_string()));
    // Of an instance that is in no row, of one that is no instance, and of one that has ended.
    let ended = stack.launch(json!({})).await;
    stack.stop(&ended).await;
    for instance in [&InstanceId::generate().to_string(), "no-id", &ended] {
        stray(&stack.owner, instance);
    }
    until_containers(&stack, &[&own[0]]).await;
    assert_eq!(stack.turn(&id, "/say still here").await["text"], "still here");
    let others = docker(&[
        "ps",
        "-q",
        "--no-trunc",
        "--filter",
        &format!("label=kandev.owner={other}"),
    ]);
    assert_eq!(
        others,
        [foreign.0.as_str()],
        "another deployment's container still runs"
    );
    stack.settle().await;
}

/// Removed by somebody else while it runs: the instance does not stay `running`.
#[tokio::test]
async fn a_container_that_vanishes_under_a_turn() {
    let stack = Stack::with(QUICK).await;
    let id = stack.launch(json!({"prompt": "/hang"})).await;
    stack
        .until(&format!("/agents/{id}/status"), |s| {
            s["turn_state"] == "prompting"
        })
        .await;
    docker(&["rm", "-f", &stack.containers().pop().unwrap()]);
    let instance = stack.ended(&id).await;
    assert_eq!(instance["status"], "failed", "{instance:#}");
    let turns = stack.get(&format!("/agents/{id}/turns")).await.expect(200);
    assert_eq!(turns["turns"][0]["status"], "failed", "{turns:#}");
    stack.settle().await;
}
