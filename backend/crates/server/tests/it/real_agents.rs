//! Agents that were not written for kandev: the examples of ACP's SDKs, and a shell agent of the kandev dialect.

use serde_json::{Value, json};

use crate::support::Stack;

const SHELL: &str = "id = 'shell-agent'\nname = 'Shell agent'\nimage = 'kandev/shell-agent:latest'\nprotocol = 'auto'\n\
    args = ['--acp']\nmemory_mb = 256\npids_limit = 64\nnetwork = 'none'\nresume_env = 'AUGGIE_SESSION_ID'\n\
    session_metadata_key = 'auggie_session_id'\n\
    [[mounts]]\nsource = '{workspace}'\ntarget = '/workspace'\n\
    [[mounts]]\nsource = '{session_store}'\ntarget = '/sessions'\n";

async fn updates(stack: &Stack, id: &str) -> Vec<Value> {
    let all = stack
        .events(id)
        .await
        .into_iter()
        .filter(|e| e["kind"] == "update");
    let updates = all.map(|e| e["data"]["update"].clone());
    // The end of a turn in the kandev dialect is an update that is none of ACP's.
    updates.filter(|u| u["sessionUpdate"].is_string()).collect()
}

fn kinds(updates: &[Value]) -> Vec<&str> {
    updates
        .iter()
        .map(|u| u["sessionUpdate"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn the_typescript_example_is_allowed_what_it_asks() {
    typescript_example("allow").await;
}

#[tokio::test]
async fn the_typescript_example_is_refused_what_it_asks() {
    typescript_example("reject").await;
}

/// Its one permission request has options of the same names as the policies.
async fn typescript_example(policy: &str) {
    let stack = Stack::start().await;
    let launch = json!({"agent_type": "ts-sdk-example", "permission_policy": policy});
    let id = stack.launch(launch).await;
    let turn = stack.turn(&id, "Change the configuration.").await;
    assert_eq!(
        (&turn["status"], &turn["stop_reason"]),
        (&json!("completed"), &json!("end_turn")),
        "{turn:#}"
    );
    let text = turn["text"].as_str().unwrap();
    let allowed = text.contains("successfully updated");
    assert_eq!(allowed, policy == "allow", "{text}");
    let events = stack.events(&id).await;
    let resolved: Vec<_> = events
        .iter()
        .filter(|e| e["kind"] == "permission_resolved")
        .collect();
    assert_eq!(resolved.len(), 1, "{resolved:#?}");
    let data = &resolved[0]["data"];
    assert_eq!(
        (&data["outcome"]["outcome"], &data["decided_by"]),
        (&json!("selected"), &json!("policy"))
    );
    assert_eq!(data["outcome"]["optionId"], policy, "{data:#}");
    let updates = updates(&stack, &id).await;
    for kind in ["agent_message_chunk", "tool_call", "tool_call_update"] {
        assert!(
            kinds(&updates).contains(&kind),
            "no {kind} in {:?}",
            kinds(&updates)
        );
    }
    stack.stop(&id).await;
    stack.settle().await;
}

#[tokio::test]
async fn the_typescript_example_is_cancelled() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({"agent_type": "ts-sdk-example"})).await;
    stack.prompt(&id, "Begin.").await;
    let path = format!("/agents/{id}/turns");
    stack
        .until(&path, |list| {
            !list["turns"][0]["text"].as_str().unwrap().is_empty()
        })
        .await;
    stack
        .post(&format!("/agents/{id}/cancel"), &json!({"reason": "no more"}))
        .await
        .expect(200);
    let ended = |list: &Value| list["turns"][0]["finished_at"].is_string();
    let turn = stack.until(&path, ended).await["turns"][0].clone();
    assert_eq!(
        (&turn["status"], &turn["stop_reason"]),
        (&json!("cancelled"), &json!("cancelled")),
        "{turn:#}"
    );
    assert_eq!(
        stack.instance(&id).await["status"],
        "running",
        "the instance goes on"
    );
    assert_eq!(stack.turn(&id, "Once more.").await["stop_reason"], "end_turn");
    stack.settle().await;
}

#[tokio::test]
async fn the_python_example_echoes() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({"agent_type": "py-sdk-example"})).await;
    for message in ["ein Wort", "zwei – mit Strich 🦀"] {
        let turn = stack.turn(&id, message).await;
        assert_eq!(
            (&turn["status"], &turn["stop_reason"]),
            (&json!("completed"), &json!("end_turn")),
            "{turn:#}"
        );
        assert!(turn["text"].as_str().unwrap().contains(message), "{turn:#}");
    }
    let stopped = stack.stop(&id).await;
    assert_eq!(stopped["status"], "stopped");
    stack.settle().await;
}

/// Answers `initialize` before it is asked, and needs `--acp`: its whole flow, with ids as numbers and as text.
#[tokio::test]
async fn a_shell_agent_of_the_kandev_dialect() {
    let stack = Stack::with_types(&[], &[("shell-agent", SHELL)]).await;
    for text_ids in ["", "1"] {
        let launch = json!({
            "agent_type": "shell-agent", "task_id": format!("ids-{text_ids}"), "env": {"SHELL_TEXT_IDS": text_ids},
            "prompt": "first things first", "wait": "turn",
        });
        let id = stack.launch(launch).await;
        let session = stack.get(&format!("/agents/{id}/session")).await.expect(200);
        assert_eq!(session["protocol"], "kandev", "{session:#}");
        let first = stack.get(&format!("/agents/{id}/turns")).await.expect(200)["turns"][0].clone();
        assert_eq!(
            (&first["status"], &first["stop_reason"]),
            (&json!("completed"), &json!("end_turn")),
            "{first:#}"
        );
        assert_eq!(first["text"], "Processing: first things first");

        let tool = stack.turn(&id, "tool notes.txt").await;
        assert_eq!(tool["status"], "completed", "{tool:#}");
        let written = std::fs::read_to_string(stack.workspace().join("notes.txt")).unwrap();
        assert_eq!(written, "edited by the shell agent\n");
        let updates = updates(&stack, &id).await;
        let called = ["agent_message_chunk", "tool_call", "tool_call_update"];
        assert_eq!(kinds(&updates)[..3], called, "{updates:#?}");
        assert_eq!(updates[1]["toolCallId"], updates[2]["toolCallId"], "{updates:#?}");

        let failed = stack.turn(&id, "fail on purpose").await;
        assert_eq!(
            (&failed["status"], &failed["error"]["code"]),
            (&json!("failed"), &json!("agent_error"))
        );
        assert_eq!(failed["error"]["message"], "on purpose", "{failed:#}");
        // Two at once: the agent reads nothing while it works, so the second waits with us.
        let (one, other) = tokio::join!(stack.turn(&id, "one"), stack.turn(&id, "other"));
        assert_eq!(
            (&one["status"], &other["status"]),
            (&json!("completed"), &json!("completed"))
        );

        let exit = stack.turn(&id, "exit 3").await;
        assert_eq!(
            (&exit["status"], &exit["error"]["code"]),
            (&json!("failed"), &json!("agent_exited")),
            "{exit:#}"
        );
        let instance = stack.ended(&id).await;
        assert_eq!(
            (&instance["status"], &instance["exit_code"]),
            (&json!("failed"), &json!(3)),
            "{instance:#}"
        );
        let task = stack.get(&format!("/tasks/ids-{text_ids}")).await.expect(200);
        assert_eq!(
            task["metadata"]["auggie_session_id"], instance["session_id"],
            "{task:#}"
        );
    }
    stack.settle().await;
}

/// It exits on a cancel, as the guide has it: that is the end of the turn, and no failure. Its session goes on.
#[tokio::test]
async fn a_shell_agent_is_cancelled_and_resumed() {
    let stack = Stack::with_types(&[], &[("shell-agent", SHELL)]).await;
    let id = stack
        .launch(json!({"agent_type": "shell-agent", "env": {"SHELL_WORK_SECONDS": "1"}}))
        .await;
    assert_eq!(stack.turn(&id, "remember me").await["status"], "completed");
    stack.prompt(&id, "a long piece of work").await;
    let path = format!("/agents/{id}/turns");
    stack
        .until(&path, |list| {
            !list["turns"][1]["text"].as_str().unwrap().is_empty()
        })
        .await;
    let cancel = format!("/agents/{id}/cancel");
    stack
        .post(&cancel, &json!({"reason": "changed my mind"}))
        .await
        .expect(200);
    let instance = stack.ended(&id).await;
    assert_eq!(
        (&instance["status"], &instance["exit_code"]),
        (&json!("stopped"), &json!(0)),
        "{instance:#}"
    );
    let turns = stack.get(&path).await.expect(200)["turns"].clone();
    assert_eq!(
        (&turns[1]["status"], &turns[1]["cancel_reason"]),
        (&json!("cancelled"), &json!("changed my mind"))
    );
    assert!(
        instance["stderr_tail"]
            .as_str()
            .unwrap()
            .contains("cancelled: changed my mind"),
        "{instance:#}"
    );

    let resume = json!({"prompt": "history", "wait": "turn"});
    let resumed = stack
        .post(&format!("/agents/{id}/resume"), &resume)
        .await
        .expect(201);
    assert_eq!(resumed["session_id"], instance["session_id"], "{resumed:#}");
    let path = format!("/agents/{}/turns", resumed["id"].as_str().unwrap());
    let turns = stack.get(&path).await.expect(200);
    let text = turns["turns"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("history: [\"remember me\""), "{text}");

    // A session that this agent does not have is lost, and never silently a fresh one.
    let launch = json!({"agent_type": "shell-agent", "env": {"AUGGIE_SESSION_ID": "nowhere"}});
    let lost = stack.try_launch(launch).await.expect(201);
    assert_eq!(
        (&lost["status"], &lost["error"]["code"]),
        (&json!("failed"), &json!("session_lost")),
        "{lost:#}"
    );
    stack.settle().await;
}
