//! How instances end: by themselves, by a caller, by a limit, by the server's end.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::{Stack, docker};

/// The parts of an instance that tell its end.
pub(crate) fn end_of(instance: &Value) -> (&str, Option<&str>, Option<i64>, bool) {
    let error = instance["error"]["code"].as_str();
    let oom = instance["oom_killed"].as_bool().unwrap();
    (
        instance["status"].as_str().unwrap(),
        error,
        instance["exit_code"].as_i64(),
        oom,
    )
}

async fn stop(stack: &Stack, id: &str, body: Value) -> Duration {
    let since = Instant::now();
    let answer = stack.post(&format!("/agents/{id}/stop"), &body).await.expect(200);
    assert_eq!(answer["status"], "stopped");
    since.elapsed()
}

pub(crate) async fn first_turn(stack: &Stack, id: &str) -> Value {
    stack.get(&format!("/agents/{id}/turns")).await.expect(200)["turns"][0].clone()
}

#[tokio::test]
async fn agents_that_exit_at_once_are_recorded_whole() {
    let stack = Stack::start().await;
    for _ in 0..5 {
        let launch = || async {
            let env = json!({"MOCK_START": "stderr last words;raw on stdout;exit 7"});
            let answer = stack.try_launch(json!({"env": env})).await.expect(201);
            assert_eq!(answer["error"]["code"], "agent_exited", "{answer:#}");
            answer["id"].as_str().unwrap().to_owned()
        };
        for id in join_all((0..4).map(|_| launch())).await {
            let instance = stack.instance(&id).await;
            assert_eq!(
                end_of(&instance),
                ("failed", Some("agent_exited"), Some(7), false)
            );
            assert_eq!(instance["stderr_tail"], "last words");
            assert_eq!(stack.logs(&id, "stderr").await, ["last words"]);
            assert_eq!(stack.logs(&id, "stdout").await, ["on stdout"]);
        }
    }
    stack.settle().await;
}

#[tokio::test]
async fn an_exit_fails_the_turn_within_a_second() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let container = stack.containers().pop().unwrap();
    let turn = stack
        .turn(&id, "/stderr out of cheese\n/say so far\n/exit 7 300\n/hang")
        .await;
    assert_eq!(
        (&turn["status"], &turn["error"]["code"], &turn["text"]),
        (&json!("failed"), &json!("agent_exited"), &json!("so far"))
    );
    let details = &turn["error"]["details"];
    assert_eq!(
        (&details["exit_code"], &details["stderr_tail"]),
        (&json!(7), &json!("out of cheese"))
    );
    // A negative time ago is ahead: it waits that long for the event.
    let died = docker(&[
        "events",
        "--since",
        "1m",
        "--until=-1s",
        "--filter",
        &format!("container={container}"),
        "--filter",
        "event=die",
        "--format",
        "{{.TimeNano}}",
    ]);
    let died = chrono::DateTime::from_timestamp_nanos(died[0].parse().unwrap());
    let finished: chrono::DateTime<chrono::Utc> = turn["finished_at"].as_str().unwrap().parse().unwrap();
    assert!(
        finished - died < chrono::TimeDelta::seconds(1),
        "{died} {finished}"
    );
    let instance = stack.ended(&id).await;
    assert_eq!(
        end_of(&instance),
        ("failed", Some("agent_exited"), Some(7), false)
    );
    stack
        .post(&format!("/agents/{id}/prompt"), &json!({"message": "late"}))
        .await
        .refused(409, "conflict");
    stack.settle().await;
}

#[tokio::test]
async fn the_exit_code_decides() {
    let stack = Stack::start().await;
    for (script, turn, end) in [
        (
            "/exit-after-turn 0",
            "completed",
            ("completed", None, Some(0), false),
        ),
        (
            "/exit-after-turn 3",
            "completed",
            ("failed", Some("agent_exited"), Some(3), false),
        ),
        (
            "/exit 0",
            "failed",
            ("failed", Some("agent_exited"), Some(0), false),
        ),
        (
            "/abort",
            "failed",
            ("failed", Some("agent_exited"), Some(134), false),
        ),
        (
            "/partial",
            "failed",
            ("failed", Some("agent_exited"), Some(1), false),
        ),
    ] {
        let id = stack.launch(json!({})).await;
        assert_eq!(stack.turn(&id, script).await["status"], turn, "{script}");
        let instance = stack.ended(&id).await;
        assert_eq!(end_of(&instance), end, "{script}");
        assert_eq!(instance["progress"] == 100, end.0 == "completed", "{script}");
    }
    stack.settle().await;
}

#[tokio::test]
async fn a_stop_is_gentle_then_firm() {
    let stack = Stack::with(&[("KANDEV_STOP_GRACE_SECONDS", "1")]).await;
    let id = stack.launch(json!({})).await;
    stack.prompt(&id, "/say here\n/hang").await;
    stack
        .until(&format!("/agents/{id}/turns"), |t| {
            t["turns"][0]["text"] == "here"
        })
        .await;
    stop(&stack, &id, json!({"reason": "enough"})).await;
    let instance = stack.instance(&id).await;
    assert_eq!(
        (end_of(&instance), &instance["reason"]),
        (("stopped", None, Some(143), false), &json!("enough"))
    );
    let turn = first_turn(&stack, &id).await;
    assert_eq!(
        (&turn["status"], &turn["stop_reason"]),
        (&json!("cancelled"), &json!("cancelled"))
    );

    let id = stack.launch(json!({})).await;
    stack.turn(&id, "/ignore-term\n/ignore-eof").await;
    let took = stop(&stack, &id, json!({})).await;
    assert!(
        took > Duration::from_millis(900) && took < Duration::from_secs(9),
        "{took:?}"
    );
    assert_eq!(
        end_of(&stack.instance(&id).await),
        ("stopped", None, Some(137), false)
    );
    // Again changes nothing.
    stop(&stack, &id, json!({"reason": "twice"})).await;
    assert_ne!(stack.instance(&id).await["reason"], "twice");
    stack.settle().await;
}

#[tokio::test]
async fn force_does_not_wait() {
    let graces = [
        ("KANDEV_CANCEL_GRACE_SECONDS", "60"),
        ("KANDEV_STOP_GRACE_SECONDS", "60"),
    ];
    let stack = Stack::with(&graces).await;
    let id = stack.launch(json!({})).await;
    stack
        .prompt(&id, "/ignore-term\n/ignore-cancel\n/say here\n/sleep 60000")
        .await;
    stack
        .until(&format!("/agents/{id}/turns"), |t| {
            t["turns"][0]["text"] == "here"
        })
        .await;
    // Also in the middle of a gentle one, which would take its minutes.
    let (gentle, forced) = tokio::join!(stop(&stack, &id, json!({})), async {
        stack
            .until(&format!("/agents/{id}/status"), |s| {
                s["turn_state"] == "cancelling"
            })
            .await;
        stop(&stack, &id, json!({"force": true})).await
    });
    assert!(
        gentle < Duration::from_secs(40) && forced < Duration::from_secs(30),
        "{gentle:?} {forced:?}"
    );
    assert_eq!(
        end_of(&stack.instance(&id).await),
        ("stopped", None, Some(137), false)
    );
    assert_eq!(first_turn(&stack, &id).await["status"], "cancelled");
    stack.settle().await;
}

#[tokio::test]
async fn a_one_shot_ends_with_its_turn() {
    let stack = Stack::start().await;
    for (prompt, status, end) in [
        ("/say done", "completed", ("completed", None)),
        ("/error -32603 no", "failed", ("failed", Some("agent_exited"))),
        ("/stop cancelled", "cancelled", ("stopped", None)),
    ] {
        let id = stack
            .launch(json!({"lifecycle": "one_shot", "prompt": prompt}))
            .await;
        let instance = stack.ended(&id).await;
        let (found, code, _, _) = end_of(&instance);
        assert_eq!((found, code), end, "{prompt}");
        assert_eq!(first_turn(&stack, &id).await["status"], status, "{prompt}");
        assert_eq!(instance["progress"], if status == "completed" { 100 } else { 0 });
    }
    stack.settle().await;
}

#[tokio::test]
async fn a_one_shot_ends_when_its_prompt_is_cancelled_before_it_began() {
    let stack = Stack::with(&[("KANDEV_MAX_INSTANCES", "1")]).await;
    // While the agent gets ready, and while it waits for a slot.
    let task = json!({
        "lifecycle": "one_shot", "prompt": "/say never", "wait": "none", "env": {"MOCK_INIT": "slow:5000"},
    });
    let first = stack.launch(task.clone()).await;
    let second = stack.launch(task).await;
    for id in [&second, &first] {
        stack
            .post(&format!("/agents/{id}/cancel"), &json!({"reason": "not now"}))
            .await
            .expect(200);
        let instance = stack.ended(id).await;
        assert_eq!(
            (&instance["status"], &instance["reason"], &instance["error"]),
            (&json!("stopped"), &json!("its turn was cancelled"), &Value::Null)
        );
        let turn = first_turn(&stack, id).await;
        assert_eq!(
            (&turn["status"], &turn["cancel_reason"]),
            (&json!("cancelled"), &json!("not now"))
        );
        assert!(stack.containers().len() < 2, "{id} keeps its container");
        stack
            .post(&format!("/agents/{id}/prompt"), &json!({"message": "late"}))
            .await
            .refused(409, "conflict");
    }
    // One that had nothing to do yet waits for it, and so does one that is to stay.
    let idle = stack
        .launch(json!({"lifecycle": "one_shot", "wait": "none", "env": {"MOCK_INIT": "slow:300"}}))
        .await;
    stack.cancel(&idle).await;
    assert_eq!(stack.turn(&idle, "/say now").await["text"], "now");
    assert_eq!(stack.ended(&idle).await["status"], "completed");
    let stays = stack
        .launch(json!({"prompt": "/say never", "wait": "none", "env": {"MOCK_INIT": "slow:2000"}}))
        .await;
    stack.cancel(&stays).await;
    assert_eq!(first_turn(&stack, &stays).await["status"], "cancelled");
    assert_eq!(stack.turn(&stays, "/say now").await["text"], "now");
    assert_eq!(stack.instance(&stays).await["status"], "running");
    stack.settle().await;
}

#[tokio::test]
async fn idleness_and_life_have_limits() {
    let stack = Stack::with(&[("KANDEV_CANCEL_GRACE_SECONDS", "1")]).await;
    let idle = stack.launch(json!({"idle_timeout_seconds": 1})).await;
    let old = stack
        .launch(json!({"timeout_seconds": 2, "wait": "none", "prompt": "/say so far\n/hang"}))
        .await;
    // A turn that runs is no idleness.
    let turn = stack.turn(&idle, "/sleep 1500\n/say awake").await;
    assert_eq!(turn["text"], "awake");
    let instance = stack.ended(&idle).await;
    assert_eq!(
        (end_of(&instance).0, end_of(&instance).1, &instance["reason"]),
        ("completed", None, &json!("idle"))
    );
    let instance = stack.ended(&old).await;
    assert_eq!(
        (end_of(&instance).0, end_of(&instance).1),
        ("failed", Some("timeout"))
    );
    let turn = first_turn(&stack, &old).await;
    assert_eq!(
        (&turn["status"], &turn["error"]["code"], &turn["text"]),
        (&json!("failed"), &json!("timeout"), &json!("so far"))
    );
    stack.settle().await;
}

#[tokio::test]
async fn only_the_agents_own_want_of_memory_is_out_of_memory() {
    let stack = Stack::start().await;
    let small = || json!({"resources": {"memory_mb": 32}});
    let id = stack.launch(small()).await;
    let turn = stack.turn(&id, "/oom").await;
    assert_eq!(
        (&turn["status"], &turn["error"]["code"]),
        (&json!("failed"), &json!("oom_killed"))
    );
    assert_eq!(
        end_of(&stack.ended(&id).await),
        ("failed", Some("oom_killed"), Some(137), true)
    );

    for (last, end) in [
        ("/exit-after-turn 0", ("completed", None, Some(0), false)),
        (
            "/exit-after-turn 3",
            ("failed", Some("agent_exited"), Some(3), false),
        ),
    ] {
        let id = stack.launch(small()).await;
        let turn = stack.turn(&id, &format!("/child-oom\n{last}")).await;
        assert_eq!(turn["text"], "child-oom: signal: 9 (SIGKILL)\n");
        assert_eq!(end_of(&stack.ended(&id).await), end, "{last}");
        let hint = stack
            .get(&format!("/agents/{id}/logs?level=warn&q=memory"))
            .await
            .expect(200);
        assert_eq!(hint["total"], 1, "{last}");
    }
    let id = stack.launch(small()).await;
    stack.turn(&id, "/child-oom").await;
    stop(&stack, &id, json!({"force": true})).await;
    assert_eq!(
        end_of(&stack.instance(&id).await),
        ("stopped", None, Some(137), false)
    );
    stack.settle().await;
}

#[tokio::test]
async fn slots_go_by_priority_then_age() {
    let stack = Stack::with(&[("KANDEV_MAX_INSTANCES", "1")]).await;
    let first = stack.launch(json!({})).await;
    let queue = async |priority: i32| {
        let launch = json!({"wait": "none", "priority": priority, "prompt": "/say at last"});
        let answer = stack.try_launch(launch).await.expect(201);
        assert_eq!(
            (&answer["status"], &answer["container_id"]),
            (&json!("starting"), &Value::Null)
        );
        (
            answer["id"].as_str().unwrap().to_owned(),
            answer["queue_position"].as_i64().unwrap(),
        )
    };
    let (old, urgent, gone) = (queue(0).await, queue(5).await, queue(0).await);
    assert_eq!((old.1, urgent.1, gone.1), (1, 1, 3));
    let position = async |id: &str| {
        stack.get(&format!("/agents/{id}/status")).await.expect(200)["queue_position"].clone()
    };
    assert_eq!(
        (position(&old.0).await, position(&urgent.0).await),
        (json!(2), json!(1))
    );
    assert_eq!(stack.containers().len(), 1);
    // One that waits can be stopped, and cancelled.
    stop(&stack, &gone.0, json!({})).await;
    assert_eq!(first_turn(&stack, &gone.0).await["status"], "cancelled");
    stop(&stack, &first, json!({"force": true})).await;
    stack
        .until(&format!("/agents/{}", urgent.0), |i| i["status"] == "running")
        .await;
    assert_eq!(
        (position(&old.0).await, position(&urgent.0).await),
        (json!(1), Value::Null)
    );
    assert_eq!(stack.containers().len(), 1);
    stop(&stack, &urgent.0, json!({"force": true})).await;
    stack
        .until(&format!("/agents/{}/turns", old.0), |t| {
            t["turns"][0]["text"] == "at last"
        })
        .await;
    stack.settle().await;
}

#[tokio::test]
async fn the_queue_for_slots_outlives_the_server() {
    let mut stack = Stack::with(&[("KANDEV_MAX_INSTANCES", "1")]).await;
    let first = stack.launch(json!({})).await;
    let mut waiting = Vec::new();
    for priority in [0, 5, 0] {
        let launch = json!({"wait": "none", "priority": priority, "prompt": "/say at last"});
        let answer = stack.try_launch(launch).await.expect(201);
        waiting.push(answer["id"].as_str().unwrap().to_owned());
    }
    stack.kill().await;
    stack.boot().await;
    let places = [Some(2), Some(1), Some(3)];
    for (id, place) in waiting.iter().zip(places) {
        stack
            .until(&format!("/agents/{id}/status"), |s| {
                s["queue_position"] == json!(place)
            })
            .await;
    }
    assert_eq!(stack.turn(&first, "/say here").await["text"], "here");
    assert_eq!(stack.containers().len(), 1);
    stop(&stack, &first, json!({"force": true})).await;
    // By priority, then by age.
    for next in [1, 0, 2] {
        let path = format!("/agents/{}/turns", waiting[next]);
        stack.until(&path, |t| t["turns"][0]["text"] == "at last").await;
        assert_eq!(stack.containers().len(), 1);
        stop(&stack, &waiting[next], json!({"force": true})).await;
    }
    stack.settle().await;
}

#[tokio::test]
async fn the_servers_end_ends_its_agents_if_it_is_told_to() {
    let environment = [
        ("KANDEV_STOP_AGENTS", "true"),
        ("KANDEV_MAX_INSTANCES", "2"),
        ("KANDEV_STOP_GRACE_SECONDS", "1"),
    ];
    let mut stack = Stack::with(&environment).await;
    let busy = stack.launch(json!({})).await;
    let deaf = stack.launch(json!({})).await;
    let waiting = stack
        .launch(json!({"wait": "none", "prompt": "/say never"}))
        .await;
    stack.turn(&deaf, "/ignore-term").await;
    stack.prompt(&busy, "/say so far\n/hang").await;
    stack
        .until(&format!("/agents/{busy}/turns"), |t| {
            t["turns"][0]["text"] == "so far"
        })
        .await;
    let mut kandev = stack.kandev.take().unwrap();
    kandev.signal(rustix::process::Signal::TERM);
    let status = kandev.ended().await;
    assert!(status.success(), "{status}");
    let left = stack.containers();
    kandev.read_until("kandev has stopped").await;
    assert!(left.is_empty(), "{left:?} {}", kandev.log.join("\n"));
    stack.boot().await;
    for (id, exit) in [(&busy, Some(143)), (&deaf, Some(137)), (&waiting, None)] {
        let instance = stack.instance(id).await;
        assert_eq!(
            (end_of(&instance), &instance["reason"]),
            (("stopped", None, exit, false), &json!("the server was shut down"))
        );
    }
    let turn = first_turn(&stack, &busy).await;
    assert_eq!(
        (&turn["status"], &turn["text"]),
        (&json!("cancelled"), &json!("so far"))
    );
    assert_eq!(first_turn(&stack, &waiting).await["status"], "cancelled");
    stack.settle().await;
}
