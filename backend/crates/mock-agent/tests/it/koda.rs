//! The koda dialect, as Koda's page documents it.

use serde_json::json;

use crate::support::Agent;

#[test]
fn without_a_store_nothing_is_loaded() {
    let mut agent = Agent::ready(&[("MOCK_DIALECT", "koda")]);
    let capabilities = agent.handshake()["result"]["agentCapabilities"].clone();
    assert_eq!(capabilities["loadSession"], false);
    let names: Vec<_> = capabilities["sessionCapabilities"]
        .as_object()
        .unwrap()
        .keys()
        .collect();
    assert_eq!(names, ["fork", "accessPolicy", "subagents"]);
    let params = json!({"sessionId": agent.session, "cwd": agent.cwd, "mcpServers": []});
    let refused = agent.call("session/load", &params);
    assert_eq!(refused["error"]["code"], -32001);
    assert_eq!(refused["error"]["data"]["reason"], "store_disabled");
    assert_eq!(agent.call("session/fork", &params)["error"]["code"], -32002);
    assert_eq!(agent.call("session/list", &params)["error"]["code"], -32601);
    agent.finish();
}

#[test]
fn sessions_are_shaped_and_changed() {
    let mut agent = Agent::ready(&[("MOCK_DIALECT", "koda")]);
    let new = agent.open();
    let model = &new["result"]["models"]["availableModels"][0];
    assert_eq!(model["reasoning"]["currentEffort"], "medium");
    assert_eq!(new["result"]["mcpState"]["discoveryState"], "completed");
    let kinds: Vec<_> = (0..4)
        .map(|_| agent.frame()["params"]["update"]["sessionUpdate"].clone())
        .collect();
    let expected = [
        "available_commands_update",
        "mcp_state_update",
        "session_info_update",
        "context_usage_update",
    ];
    assert_eq!(kinds, expected);
    let session = agent.session.clone();
    let mut call = |method: &str, mut params: serde_json::Value| {
        params["sessionId"] = json!(session);
        agent.call(method, &params)
    };
    let effort = call("session/set_reasoning_effort", json!({"effort": "high"}));
    let models = &effort["result"]["models"]["availableModels"];
    assert_eq!(models[0]["reasoning"]["currentEffort"], "high");
    let bad = call("session/set_reasoning_effort", json!({"effort": "frob"}));
    assert_eq!(bad["error"]["code"], -32602);
    assert_eq!(
        call("session/set_model", json!({"modelId": "koda-lite"}))["result"],
        json!({})
    );
    let policy = json!({"configId": "access_policy", "value": "read_only"});
    let policy = call("session/set_config_option", policy);
    assert_eq!(policy["result"]["configOptions"][1]["currentValue"], "read_only");
    let compacted = call("session/compact", json!({}));
    assert_eq!(compacted["result"]["compacted"], true);
    let running = json!({"content": "a", "status": "in_progress"});
    let bad = call("session/set_plan", json!({"entries": [running, running]}));
    assert_eq!(bad["error"]["code"], -32602);
    let good = call(
        "session/set_plan",
        json!({"entries": [running, {"content": "b"}]}),
    );
    assert!(good["error"].is_null());
    let plan = agent.frame()["params"]["update"].clone();
    assert_eq!(plan["sessionUpdate"], "plan");
    assert_eq!(plan["entries"][1]["status"], "pending");

    // A new prompt cancels the one before it.
    let one = agent.send_prompt("/hang");
    let two = agent.send_prompt("/say two");
    assert_eq!(agent.answer(one)["result"]["stopReason"], "cancelled");
    assert_eq!(agent.collect(two, |f| panic!("{f}")).text(), "two");
    agent.finish();
}

#[test]
fn with_a_store_sessions_are_loaded_and_forked() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("koda");
    let env = [
        ("MOCK_DIALECT", "koda"),
        ("KODA_ACP_SESSION_STORE_DIR", store.to_str().unwrap()),
    ];
    let mut agent = Agent::spawn(dir.path(), &env);
    assert_eq!(
        agent.handshake()["result"]["agentCapabilities"]["loadSession"],
        true
    );
    agent.open();
    for n in 1..=3 {
        let params = json!({
            "sessionId": agent.session,
            "prompt": [{"type": "text", "text": format!("/say {n}")}],
            "_meta": {"com.kodadev.desktopEntryId": format!("message-{n}")},
        });
        agent.call("session/prompt", &params);
    }
    let old = agent.session.clone();
    let cwd = agent.cwd.clone();
    agent.finish();

    let mut agent = Agent::spawn(dir.path(), &env);
    let place = |cwd: &str, mark: &str| json!({"sessionId": old, "cwd": cwd, "mcpServers": [], "_meta": {"com.kodadev.desktopEntryId": mark}});
    let moved = agent.call("session/load", &place("/elsewhere", ""));
    assert_eq!(moved["error"]["code"], -32001);
    assert_eq!(moved["error"]["data"]["reason"], "cwd_mismatch");
    let id = agent.send("session/load", &place(&cwd, ""));
    let loaded = agent.collect(id, |f| panic!("{f}"));
    assert!(loaded.updates.is_empty());
    assert!(loaded.answer["result"].is_null() && loaded.answer["error"].is_null());
    let lost = agent.call("session/fork", &place(&cwd, "message-9"));
    assert_eq!(lost["error"]["code"], -32002);
    let forked = agent.call("session/fork", &place(&cwd, "message-3"));
    forked["result"]["sessionId"]
        .as_str()
        .unwrap()
        .clone_into(&mut agent.session);
    assert_eq!(
        agent.prompt("/history").text(),
        "history: [\"/say 1\",\"/say 2\"]\n"
    );
    agent.finish();
}
