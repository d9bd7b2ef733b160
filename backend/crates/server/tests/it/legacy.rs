//! Agents of the protocol before JSON-RPC: launched, read, and never written to.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::endings::{end_of, first_turn};
use crate::missed_output::has_said;
use crate::recovery::{assert_whole, stored_stdout};
use crate::support::{LIMIT, Stack};

const TYPE: &str = "id = 'old'\nname = 'Old'\nimage = 'kandev/mock-agent:latest'\nprotocol = 'legacy'\nnetwork = 'none'\n\
    resume_env = 'AUGGIE_SESSION_ID'\n[env]\nMOCK_DIALECT = 'legacy'\nMOCK_SPEED = '0'\n\
    [[mounts]]\nsource = '{workspace}'\ntarget = '/workspace'\n";

async fn start() -> Stack {
    Stack::with_types(&[("KANDEV_STOP_GRACE_SECONDS", "1")], &[("old", TYPE)]).await
}

async fn launch(stack: &Stack, task: &str, with: Value) -> String {
    let mut body = json!({"agent_type": "old", "prompt": task, "wait": "none"});
    for (key, value) in with.as_object().unwrap() {
        body[key] = value.clone();
    }
    stack.launch(body).await
}

/// The `update` of each such event, without the original, which must be there.
async fn updates(stack: &Stack, id: &str) -> Vec<Value> {
    let events = stack.events(id).await;
    let updates = events.iter().filter(|e| e["kind"] == "update");
    updates
        .map(|event| {
            let mut update = event["data"]["update"].clone();
            let original = update["_meta"]["kandev.original"].take();
            assert!(original["type"].is_string(), "{event:#}");
            assert!(
                event["turn_id"].is_string() && event["session_id"].is_null(),
                "{event:#}"
            );
            update.as_object_mut().unwrap().remove("_meta");
            update
        })
        .collect()
}

#[tokio::test]
async fn a_task_of_the_environment_is_read_to_its_result() {
    let stack = start().await;
    let task = "/progress 40 auth/login.go\n/log warn careful\n/status paused\n/heartbeat\n\
                /stderr aside\n/sleep 300\n/result completed all done\n/exit 0";
    let with = json!({"wait": "turn", "env": {"MOCK_INPUT_COPY": "/workspace/input"}});
    let id = launch(&stack, task, with).await;
    let instance = stack.ended(&id).await;
    assert_eq!(end_of(&instance), ("completed", None, Some(0), false));
    assert_eq!(
        (&instance["progress"], &instance["session_id"]),
        (&json!(100), &Value::Null)
    );
    let turn = first_turn(&stack, &id).await;
    assert_eq!(
        (&turn["status"], &turn["stop_reason"], &turn["text"]),
        (&json!("completed"), &json!("end_turn"), &json!("all done"))
    );
    assert_eq!(
        updates(&stack, &id).await,
        [
            json!({"sessionUpdate": "status", "status": "started"}),
            json!({"sessionUpdate": "status", "status": "running"}),
            json!({"sessionUpdate": "progress", "progress": 40, "currentFile": "auth/login.go"}),
            json!({"sessionUpdate": "log", "level": "warn", "message": "careful"}),
            json!({"sessionUpdate": "status", "status": "paused"}),
            json!({"sessionUpdate": "heartbeat"}),
            json!({"sessionUpdate": "agent_message_chunk", "status": "completed",
                "content": {"type": "text", "text": "all done"}}),
        ]
    );
    assert_eq!(stack.logs(&id, "stdout").await, ["careful"]);
    let warned = stack
        .get(&format!("/agents/{id}/logs?level=warn&stream=stdout"))
        .await;
    assert_eq!(warned.expect(200)["total"], 1);
    assert_eq!(stack.logs(&id, "stderr").await, ["aside"]);
    let session = stack.get(&format!("/agents/{id}/session")).await.expect(200);
    assert!(session["session_id"].is_null(), "{session:#}");
    let written = std::fs::read(stack.workspace().join("input")).unwrap();
    assert!(written.is_empty(), "{}", String::from_utf8_lossy(&written));
    stack.settle().await;
}

#[tokio::test]
async fn progress_is_the_agents_own_while_it_works() {
    let stack = start().await;
    let id = launch(&stack, "/progress 40 a.rs\n/hang", json!({"wait": "ready"})).await;
    let path = format!("/agents/{id}/status");
    let status = stack.until(&path, |status| status["progress"] == 40).await;
    assert_eq!(
        (&status["status"], &status["turn_state"]),
        (&json!("running"), &json!("prompting"))
    );
    stack.settle().await;
    assert_eq!(stack.get(&path).await.expect(200)["progress"], 40);
}

#[tokio::test]
async fn lines_that_are_wrong_cost_nothing_else() {
    let stack = start().await;
    let task = "/of-type novel idea\n/bare log\n/bare progress\n/noise 1\n/raw {\"type\":7}\n\
                /raw {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"fs/read_text_file\",\"params\":{}}\n\
                /raw {\"type\":\"status\"\n/huge 3m\n/result completed x\n/exit 0";
    let id = launch(&stack, task, json!({})).await;
    let instance = stack.ended(&id).await;
    assert_eq!(end_of(&instance), ("completed", None, Some(0), false));
    let events = stack.events(&id).await;
    let strange: Vec<&Value> = events
        .iter()
        .filter(|e| e["kind"] == "message")
        .map(|e| &e["data"])
        .collect();
    assert_eq!(strange.len(), 1, "{strange:#?}");
    assert_eq!(
        (&strange[0]["type"], &strange[0]["data"]["said"]),
        (&json!("novel"), &json!("idea"))
    );
    let said = updates(&stack, &id).await;
    let kinds: Vec<&str> = said
        .iter()
        .map(|update| update["sessionUpdate"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        [
            "status",
            "status",
            "log",
            "progress",
            "log",
            "agent_message_chunk"
        ]
    );
    assert_eq!(said[4]["message"].as_str().unwrap().len(), 3 << 20);
    let logs = stack.logs(&id, "stdout").await;
    for line in ["{\"type\":7}", "{\"type\":\"status\""] {
        assert!(logs.iter().any(|log| log == line), "{line}");
    }
    assert!(logs.iter().any(|log| log.contains("fs/read_text_file")));
    assert!(!events.iter().any(|e| e["kind"] == "error"));
    stack.settle().await;
}

async fn refuses_all_but_a_stop(stack: &Stack, id: &str) {
    for body in [
        json!({"message": "more"}),
        json!({"message": "more", "when_busy": "interrupt"}),
    ] {
        let answer = stack.post(&format!("/agents/{id}/prompt"), &body).await;
        let body = answer.refused(501, "unsupported_capability");
        assert!(body["message"].as_str().unwrap().contains("legacy"), "{body:#}");
    }
    let cancel = stack.post(&format!("/agents/{id}/cancel"), &json!({})).await;
    cancel.refused(501, "unsupported_capability");
}

#[tokio::test]
async fn prompts_and_cancels_are_refused_and_a_stop_is_not() {
    let mut stack = start().await;
    let with = json!({"wait": "ready", "env": {"MOCK_INPUT_COPY": "/workspace/input"}});
    let id = launch(&stack, "/hang", with).await;
    // By the server that holds it, and by way of another.
    refuses_all_but_a_stop(&stack, &id).await;
    let other = stack.another("other").await;
    let holder = stack.kandev.replace(other);
    refuses_all_but_a_stop(&stack, &id).await;
    stack.kandev = holder;
    assert_eq!(stack.instance(&id).await["status"], "running");
    let since = Instant::now();
    let stopped = stack
        .post(&format!("/agents/{id}/stop"), &json!({"reason": "enough"}))
        .await;
    assert_eq!(stopped.expect(200)["status"], "stopped");
    // Nothing could be told to the agent, so nothing was waited for but its own end.
    assert!(since.elapsed() < Duration::from_secs(4), "{:?}", since.elapsed());
    let turn = first_turn(&stack, &id).await;
    assert_eq!(
        (&turn["status"], turn["session_id"].is_null()),
        (&json!("cancelled"), true)
    );
    let written = std::fs::read(stack.workspace().join("input")).unwrap();
    assert!(written.is_empty(), "{}", String::from_utf8_lossy(&written));
    let late = stack
        .post(&format!("/agents/{id}/prompt"), &json!({"message": "x"}))
        .await;
    late.refused(409, "conflict");
    let resume = stack.post(&format!("/agents/{id}/resume"), &json!({})).await;
    resume.refused(409, "conflict");
    stack.settle().await;
}

#[tokio::test]
async fn launches_that_it_cannot_serve_are_refused_by_the_field() {
    let stack = start().await;
    let refused = async |with: Value, status: u16, code: &str| {
        let mut body = json!({"agent_type": "old"});
        for (key, value) in with.as_object().unwrap() {
            body[key] = value.clone();
        }
        let field = stack.try_launch(body).await.refused(status, code)["details"]["field"].clone();
        field.as_str().unwrap().to_owned()
    };
    for (field, with) in [
        ("session_id", json!({"session_id": "s"})),
        ("mode", json!({"mode": "m"})),
        ("model", json!({"model": "m"})),
        ("config_options", json!({"config_options": {"a": "b"}})),
        (
            "mcp_servers",
            json!({"mcp_servers": [{"name": "m", "command": "/m"}]}),
        ),
    ] {
        assert_eq!(refused(with, 501, "unsupported_capability").await, field);
    }
    let image = json!([{"type": "image", "mimeType": "image/png", "data": "AA=="}]);
    let two = json!({"prompt": "one thing", "env": {"TASK_DESCRIPTION": "another"}});
    assert_eq!(
        refused(json!({"prompt": image}), 400, "validation_error").await,
        "prompt"
    );
    assert_eq!(refused(two, 400, "validation_error").await, "prompt");
    let listed = stack.get("/agents").await.expect(200);
    assert_eq!(listed["total"], 0, "{listed:#}");
    // What the agent makes of a session's id is its own affair.
    let env = json!({"AUGGIE_SESSION_ID": "s-1", "TASK_DESCRIPTION": "/result completed\n/exit 0"});
    let id = stack
        .launch(json!({"agent_type": "old", "env": env, "wait": "turn"}))
        .await;
    assert_eq!(stack.ended(&id).await["status"], "completed");
    stack.settle().await;
}

#[tokio::test]
async fn the_exit_code_decides_and_the_result_is_the_turns() {
    let stack = start().await;
    let ends = [
        (
            "/result failed no luck\n/exit 0",
            ("completed", None, 0),
            ("failed", Some("error")),
        ),
        (
            "/result cancelled\n/exit 0",
            ("completed", None, 0),
            ("cancelled", Some("cancelled")),
        ),
        (
            "/say hi\n/exit 0",
            ("completed", None, 0),
            ("completed", Some("end_turn")),
        ),
        ("/exit 3", ("failed", Some("agent_exited"), 3), ("failed", None)),
        (
            "/result completed x\n/exit 4",
            ("failed", Some("agent_exited"), 4),
            ("completed", Some("end_turn")),
        ),
        (
            "/error 7 no luck",
            ("failed", Some("agent_exited"), 1),
            ("failed", Some("error")),
        ),
    ];
    for (task, (status, code, exit), (turn_status, stop_reason)) in ends {
        let id = launch(&stack, task, json!({})).await;
        let instance = stack.ended(&id).await;
        assert_eq!(end_of(&instance), (status, code, Some(exit), false), "{task}");
        let turn = first_turn(&stack, &id).await;
        assert_eq!(
            (turn["status"].as_str(), turn["stop_reason"].as_str()),
            (Some(turn_status), stop_reason),
            "{task}: {turn:#}"
        );
        if turn_status == "failed" && stop_reason.is_some() {
            assert_eq!(turn["error"]["message"], "no luck", "{task}: {turn:#}");
        }
    }
    stack.settle().await;
}

#[tokio::test]
async fn one_that_stays_after_its_task_is_ended_if_it_was_to_be_one_shot() {
    let stack = start().await;
    for (result, status, code) in [
        ("completed", "completed", None),
        ("failed", "failed", Some("agent_exited")),
    ] {
        let task = format!("/result {result}\n/hang");
        let id = launch(&stack, &task, json!({"lifecycle": "one_shot"})).await;
        let instance = stack.ended(&id).await;
        assert_eq!((end_of(&instance).0, end_of(&instance).1), (status, code));
    }
    let task = "/result completed\n/sleep 2500\n/say still here\n/hang";
    let id = launch(&stack, task, json!({})).await;
    let path = format!("/agents/{id}/logs?stream=stdout");
    stack.until(&path, |page| page["total"] == 1).await;
    let status = stack.get(&format!("/agents/{id}/status")).await.expect(200);
    assert_eq!(
        (&status["status"], &status["turn_state"]),
        (&json!("running"), &json!("idle"))
    );
    stack.settle().await;
}

#[tokio::test]
async fn work_outlives_the_server_and_nothing_is_there_twice() {
    let mut stack = start().await;
    let task = "/slow 20 100\n/progress 60 b.rs\n/slow 20 100\n/result completed whole\n/exit 0";
    let with = json!({"env": {"MOCK_TURN_COPY": "/workspace/copy"}});
    let id = launch(&stack, task, with).await;
    let path = format!("/agents/{id}/logs?stream=stdout");
    stack.until(&path, |page| page["total"] != 0).await;
    let copy = stack.workspace().join("copy");
    std::fs::rename(copy, stack.workspace().join(format!("{id}.copy"))).unwrap();
    for seen in [3_usize, 15] {
        stack
            .until(&path, |page| page["total"].as_u64().unwrap() >= seen as u64)
            .await;
        stack.kill().await;
        // Some of it while nobody hears it.
        has_said(&stack, &id, |copy| {
            copy.iter().filter(|byte| **byte == b'\n').take(seen + 4).count() == seen + 4
        })
        .await;
        stack.boot().await;
    }
    let instance = stack.ended(&id).await;
    assert_eq!(end_of(&instance), ("completed", None, Some(0), false));
    assert_whole(&stack, &id).await;
    let slow: Vec<String> = (1..=20).map(|n| format!("slow {n}/20")).collect();
    let twice = [slow.clone(), slow].concat();
    assert_eq!(stack.logs(&id, "stdout").await, twice);
    let lines = stored_stdout(&stack, &id).await.len();
    assert_eq!(updates(&stack, &id).await.len(), lines);
    let turns = stack.get(&format!("/agents/{id}/turns")).await.expect(200);
    assert_eq!(turns["turns"].as_array().unwrap().len(), 1, "{turns:#}");
    let turn = &turns["turns"][0];
    assert_eq!(
        (&turn["status"], &turn["text"], &turn["updates"]),
        (&json!("completed"), &json!("whole"), &json!(lines))
    );
    stack.settle().await;
}

#[tokio::test]
async fn a_server_that_dies_at_the_start_or_after_the_end_loses_nothing() {
    let mut stack = start().await;
    let early = launch(&stack, "/slow 5 50\n/result completed a\n/exit 0", json!({})).await;
    stack.kill().await;
    stack.boot().await;
    assert_eq!(end_of(&stack.ended(&early).await).0, "completed");
    // It says its result, and ends, while there is no server.
    let task = "/say first\n/sleep 1000\n/progress 70 c.rs\n/result failed alone\n/exit 5";
    let late = launch(&stack, task, json!({})).await;
    let path = format!("/agents/{late}/logs?stream=stdout");
    stack.until(&path, |page| page["total"] == 1).await;
    stack.kill().await;
    let ended = async {
        while !crate::support::docker(&["ps", "-q", "--filter", &format!("name={late}")]).is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LIMIT, ended).await.expect("it runs on");
    stack.boot().await;
    let instance = stack.ended(&late).await;
    assert_eq!(
        end_of(&instance),
        ("failed", Some("agent_exited"), Some(5), false)
    );
    assert_eq!(instance["progress"], 70);
    for (id, text) in [(&early, "a"), (&late, "alone")] {
        let turns = stack.get(&format!("/agents/{id}/turns")).await.expect(200);
        assert_eq!(turns["turns"].as_array().unwrap().len(), 1, "{turns:#}");
        assert_eq!(turns["turns"][0]["text"], text);
    }
    stack.settle().await;
}

#[tokio::test]
async fn auto_does_not_take_it_for_anything() {
    let stack = Stack::start().await;
    let env = json!({"MOCK_DIALECT": "legacy", "MOCK_SPEED": "0", "TASK_DESCRIPTION": "/exit 0"});
    let answer = stack.try_launch(json!({"env": env})).await.expect(201);
    assert_eq!(answer["error"]["code"], "agent_exited", "{answer:#}");
    let id = answer["id"].as_str().unwrap();
    let events = stack.events(id).await;
    assert!(!events.iter().any(|e| e["kind"] == "update"), "{events:#?}");
    assert_eq!(stack.logs(id, "stdout").await.len(), 2);
    stack.settle().await;
}
