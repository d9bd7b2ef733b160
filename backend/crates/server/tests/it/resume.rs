//! Sessions that outlive their instances, and what a launch sets in them.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::Stack;

/// The mock agent under another name, its sessions in a directory of the test's.
fn twin(id: &str, sessions: &Path) -> String {
    format!(
        r#"
id = "{id}"
name = "Twin"
image = "kandev/mock-agent:latest"
network = "none"
[[mounts]]
source = "{{workspace}}"
target = "/workspace"
[[mounts]]
source = "{}"
target = "/sessions"
"#,
        sessions.display()
    )
}

/// An instance that has had one turn and was stopped: its id and its session's.
async fn had_a_turn(stack: &Stack, launch: Value) -> (String, String) {
    let id = stack.launch(launch).await;
    assert_eq!(stack.turn(&id, "/say remember me").await["status"], "completed");
    stop(stack, &id).await;
    let session = stack.instance(&id).await["session_id"]
        .as_str()
        .unwrap()
        .to_owned();
    (id, session)
}

async fn stop(stack: &Stack, id: &str) {
    stack
        .post(&format!("/agents/{id}/stop"), &json!({"force": true}))
        .await
        .expect(200);
}

async fn session_event(stack: &Stack, id: &str) -> Value {
    let page = stack
        .get(&format!("/agents/{id}/events?kind=session"))
        .await
        .expect(200);
    assert_eq!(page["events"].as_array().unwrap().len(), 1, "{page:#}");
    page["events"][0]["data"].clone()
}

async fn updates(stack: &Stack, id: &str) -> Vec<Value> {
    let page = stack
        .get(&format!("/agents/{id}/events?kind=update&limit=5000"))
        .await
        .expect(200);
    page["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["data"]["update"].clone())
        .collect()
}

/// What the agent says of its own session.
async fn own_words(stack: &Stack, id: &str) -> Value {
    let turn = stack.turn(id, "/session").await;
    serde_json::from_str(turn["text"].as_str().unwrap().strip_prefix("session: ").unwrap()).unwrap()
}

#[tokio::test]
async fn a_session_goes_on_whichever_way_it_is_named() {
    let stack = Stack::start().await;
    let (first, session) = had_a_turn(&stack, json!({"task_id": "the-task", "env": {"A": "1"}})).await;
    let task = stack.get("/tasks/the-task").await.expect(200);
    let metadata = &task["metadata"];
    assert_eq!(
        (&metadata["auggie_session_id"], &metadata["session_id"]),
        (&json!(session), &json!(session))
    );

    let mut instances = vec![first.clone()];
    let mut prompts = vec!["/say remember me".to_owned()];
    let launches = [
        json!({"session_id": session}),
        json!({"env": {"AUGGIE_SESSION_ID": session}}),
        // The seed's recipe: read the task, launch with what it says.
        json!({"task_id": "the-task", "env": {"AUGGIE_SESSION_ID": metadata["auggie_session_id"]}}),
    ];
    for launch in launches {
        let id = stack.launch(launch).await;
        assert_eq!(session_event(&stack, &id).await["how"], "resumed");
        instances.push(id);
        check_history(&stack, &instances, &session, &mut prompts).await;
    }
    let routes = [
        format!("/agents/{first}/resume"),
        format!("/sessions/{session}/resume"),
    ];
    for (n, route) in routes.iter().enumerate() {
        let body = json!({"wait": "turn", "prompt": "/env A", "env": {"B": "2"}});
        let resumed = stack.post(route, &body).await.expect(201);
        assert_eq!(
            (&resumed["status"], &resumed["session_id"]),
            (&json!("running"), &json!(session)),
            "{route}"
        );
        let id = resumed["id"].as_str().unwrap().to_owned();
        let instance = stack.instance(&id).await;
        assert_eq!(instance["resumed_from"], *[&first, instances.last().unwrap()][n]);
        prompts.push("/env A".to_owned());
        instances.push(id);
        check_history(&stack, &instances, &session, &mut prompts).await;
    }
    let detail = stack.get(&format!("/sessions/{session}")).await.expect(200);
    assert_eq!(detail["instances"], json!(instances));
    let sessions = stack.get("/sessions").await.expect(200);
    assert_eq!(sessions["total"], 1, "{sessions:#}");
    stack.settle().await;
}

/// The newest instance knows every prompt so far; then it is stopped.
async fn check_history(stack: &Stack, instances: &[String], session: &str, prompts: &mut Vec<String>) {
    let id = instances.last().unwrap();
    let turn = stack.turn(id, "/history").await;
    assert_eq!(
        (&turn["text"], &turn["session_id"]),
        (&json!(format!("history: {}\n", json!(prompts))), &json!(session))
    );
    prompts.push("/history".to_owned());
    stop(stack, id).await;
}

#[tokio::test]
async fn only_an_ended_instance_with_a_session_is_resumed() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    stack
        .post(&format!("/agents/{id}/resume"), &json!({}))
        .await
        .refused(409, "conflict");
    let never = stack
        .try_launch(json!({"env": {"MOCK_INIT": "exit:1"}}))
        .await
        .expect(201);
    let never = format!("/agents/{}/resume", never["id"].as_str().unwrap());
    stack.post(&never, &json!({})).await.refused(409, "conflict");
    stack
        .post("/sessions/none/resume", &json!({}))
        .await
        .refused(404, "not_found");
    stack.settle().await;
}

#[tokio::test]
async fn two_instances_do_not_work_in_one_session() {
    let stack = Stack::start().await;
    let (first, session) = had_a_turn(&stack, json!({"task_id": "one"})).await;
    let slow = json!({"session_id": session, "wait": "none", "env": {"MOCK_INIT": "slow:3000"}});
    let second = stack.launch(slow).await;
    // While it starts, when it runs, and whichever way the session is named.
    for status in ["starting", "running"] {
        stack
            .until(&format!("/agents/{second}"), |i| i["status"] == status)
            .await;
        for launch in [
            json!({"session_id": session, "task_id": "three"}),
            json!({"env": {"AUGGIE_SESSION_ID": session}}),
            json!({"session_id": session, "on_lost": "new"}),
        ] {
            let refused = stack.try_launch(launch).await.refused(409, "conflict");
            assert_eq!(refused["details"]["instance_id"], second.as_str(), "{refused:#}");
        }
        for path in [
            format!("/agents/{first}/resume"),
            format!("/sessions/{session}/resume"),
        ] {
            stack.post(&path, &json!({})).await.refused(409, "conflict");
        }
    }
    let all = stack.get("/agents").await.expect(200);
    assert_eq!(all["total"], 2, "{all:#}");
    stop(&stack, &second).await;
    stack.launch(json!({"session_id": session})).await;
    stack.settle().await;
}

#[tokio::test]
async fn of_two_launches_into_one_session_one_is_refused() {
    let stack = Stack::start().await;
    let (_, known) = had_a_turn(&stack, json!({})).await;
    for round in 0..6 {
        // One that kandev knows, and one that only the agent can know.
        let session = if round % 2 == 0 { &known } else { "elsewhere" };
        // It stays where it says it goes on with the session.
        let env = json!({"MOCK_INIT": "never"});
        let launch = || stack.try_launch(json!({"session_id": session, "wait": "none", "env": env}));
        let (one, other) = tokio::join!(launch(), launch());
        let (won, lost) = if one.status == 201 {
            (one, other)
        } else {
            (other, one)
        };
        let won = won.expect(201)["id"].as_str().unwrap().to_owned();
        let lost = lost.refused(409, "conflict");
        assert_eq!(lost["details"]["instance_id"], won.as_str(), "{round}");
        stop(&stack, &won).await;
    }
    // Whoever got a fresh session is not in the lost one any more.
    let fresh = || stack.launch(json!({"session_id": "elsewhere", "on_lost": "new"}));
    let ids = [fresh().await, fresh().await];
    assert_eq!(session_event(&stack, &ids[1]).await["how"], "new");
    stack.settle().await;
}

#[tokio::test]
async fn a_replay_of_what_is_known_is_not_stored_again() {
    let stack = Stack::start().await;
    let (first, session) = had_a_turn(&stack, json!({})).await;
    let servers = json!([{"name": "tools", "command": "/bin/tools", "args": [], "env": []}]);
    let launch = json!({
        "session_id": session, "mcp_servers": servers, "mode": "code", "model": "mock-small",
        "env": {"MOCK_WITHOUT": "resume", "MOCK_LOAD": "replay:68"},
    });
    let id = stack.launch(launch).await;
    let event = session_event(&stack, &id).await;
    assert_eq!(
        (&event["how"], &event["replayed_updates"]),
        (&json!("loaded"), &json!(68))
    );
    let before = updates(&stack, &id).await;
    assert!(!json!(before).to_string().contains("replayed"), "{before:#?}");
    stack.turn(&id, "/say one more").await;
    let after = updates(&stack, &id).await;
    let live =
        json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "one more"}});
    assert_eq!(after[before.len()..], [live]);
    let said = own_words(&stack, &id).await;
    assert_eq!((&said["origin"], &said["mcpServers"]), (&json!("load"), &servers));
    assert_eq!(
        (&said["mode"], &said["model"]),
        (&json!("code"), &json!("mock-small"))
    );
    // Mode, model and servers are set again by the next one, and the replay is none of its either.
    stop(&stack, &id).await;
    let resumed = stack.resume(&id).await;
    let id = resumed["id"].as_str().unwrap();
    let again = own_words(&stack, id).await;
    for what in ["origin", "mcpServers", "mode", "model"] {
        assert_eq!(again[what], said[what], "{what}");
    }
    let first_turn = &stack.get(&format!("/agents/{first}/turns")).await.expect(200)["turns"][0];
    assert_eq!(first_turn["text"], "remember me");
    stack.settle().await;
}

/// As fast-agent does: `session/resume` is not to replay anything.
#[tokio::test]
async fn a_replay_that_nobody_asked_for_is_not_stored_either() {
    let stack = Stack::start().await;
    let (first, session) = had_a_turn(&stack, json!({})).await;
    let id = stack
        .launch(json!({"session_id": session, "env": {"MOCK_LOAD": "replay:68"}}))
        .await;
    let event = session_event(&stack, &id).await;
    assert_eq!(
        (&event["how"], &event["replayed_updates"]),
        (&json!("resumed"), &json!(68))
    );
    let before = updates(&stack, &id).await;
    assert!(!json!(before).to_string().contains("replayed"), "{before:#?}");
    stack.turn(&id, "/say one more").await;
    let live =
        json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "one more"}});
    assert_eq!(updates(&stack, &id).await[before.len()..], [live]);
    assert_eq!(own_words(&stack, &id).await["origin"], "resume");
    // An agent that keeps silent is not said to have replayed anything.
    stop(&stack, &id).await;
    let resumed = stack.resume(&first).await;
    let event = session_event(&stack, resumed["id"].as_str().unwrap()).await;
    assert_eq!(
        (&event["how"], &event["replayed_updates"]),
        (&json!("resumed"), &Value::Null)
    );
    stack.settle().await;
}

#[tokio::test]
async fn a_replay_of_what_is_not_known_is_the_history() {
    let sessions = crate::support::passable_dir();
    let types = ["twin-a", "twin-b"].map(|id| (id, twin(id, sessions.path())));
    let types: Vec<_> = types.iter().map(|(id, toml)| (*id, toml.as_str())).collect();
    let stack = Stack::with_types(&[], &types).await;
    let (_, session) = had_a_turn(&stack, json!({"agent_type": "twin-a"})).await;
    let id = stack
        .launch(json!({"agent_type": "twin-b", "session_id": session}))
        .await;
    let event = session_event(&stack, &id).await;
    assert_eq!(
        (&event["session_id"], &event["replayed_updates"]),
        (&json!(session), &Value::Null)
    );
    let told = updates(&stack, &id).await;
    let content = json!({"type": "text", "text": "remember me"});
    assert!(told.iter().any(|u| u["content"] == content), "{told:#?}");
    assert_eq!(
        stack.turn(&id, "/history").await["text"],
        "history: [\"/say remember me\"]\n"
    );
    stack.settle().await;
}

#[tokio::test]
async fn a_lost_session_is_said_to_be_lost() {
    let stack = Stack::start().await;
    let (_, session) = had_a_turn(&stack, json!({})).await;
    let unknown = "0190a5a5-0000-7000-8000-000000000000";
    let lost = [
        json!({"session_id": unknown}),
        json!({"session_id": session, "env": {"MOCK_LOAD": "error:-32603"}}),
        json!({"session_id": session, "env": {"MOCK_LOAD": "error:-32603", "MOCK_WITHOUT": "resume"}}),
        json!({"session_id": session, "env": {"MOCK_LOAD": "unsupported"}}),
    ];
    for launch in lost {
        let answer = stack.try_launch(launch.clone()).await.expect(201);
        assert_eq!(
            (&answer["status"], &answer["error"]["code"]),
            (&json!("failed"), &json!("session_lost")),
            "{launch}"
        );
        let mut fresh = launch.clone();
        fresh["on_lost"] = json!("new");
        let id = stack.launch(fresh).await;
        assert_eq!(session_event(&stack, &id).await["how"], "new", "{launch}");
        let said = own_words(&stack, &id).await;
        assert_eq!(
            (&said["origin"], &said["turns"]),
            (&json!("new"), &json!(0)),
            "{launch}"
        );
        assert_ne!(said["sessionId"], launch["session_id"]);
        assert_eq!(stack.instance(&id).await["session_id"], said["sessionId"]);
        stop(&stack, &id).await;
    }
    stack.settle().await;
}

#[tokio::test]
async fn a_launch_sets_mode_model_and_options() {
    let stack = Stack::start().await;
    let servers = json!([{"name": "tools", "command": "/bin/tools", "args": ["-v"], "env": [{"name": "K", "value": "v"}]}]);
    let launch = json!({
        "mode": "code", "model": "mock-small", "config_options": {"effort": "high", "verbose": true}, "mcp_servers": servers,
    });
    let id = stack.launch(launch).await;
    let said = own_words(&stack, &id).await;
    assert_eq!(
        (&said["mode"], &said["model"], &said["mcpServers"]),
        (&json!("code"), &json!("mock-small"), &servers)
    );
    let config = &said["config"];
    assert_eq!(
        (&config["effort"], &config["verbose"]),
        (&json!("high"), &json!(true)),
        "{said:#}"
    );
    let session = stack.get(&format!("/agents/{id}/session")).await.expect(200);
    assert_eq!(
        (&session["current_mode"], &session["protocol"]),
        (&json!("code"), &json!("acp")),
        "{session:#}"
    );
    let options = session["config_options"].as_array().unwrap();
    let current = |id: &str| options.iter().find(|o| o["id"] == id).unwrap()["currentValue"].clone();
    assert_eq!(
        (current("effort"), current("verbose"), current("model")),
        (json!("high"), json!(true), json!("mock-small"))
    );
    for (field, value) in [
        ("mode", json!("no-such")),
        ("model", json!("no-such")),
        ("config_options", json!({"no": "such"})),
    ] {
        let answer = stack.try_launch(json!({field: value})).await.expect(201);
        assert_eq!(answer["error"]["code"], "handshake_failed", "{field}");
        assert!(
            answer["error"]["message"].as_str().unwrap().contains("no"),
            "{field}: {:#}",
            answer["error"]
        );
    }
    stack.settle().await;
}
