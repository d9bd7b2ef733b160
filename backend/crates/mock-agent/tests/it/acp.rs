//! The ACP methods, checked against the official types.

use agent_client_protocol_schema::v1::{
    InitializeResponse, ListSessionsResponse, NewSessionResponse, PromptResponse, RequestPermissionRequest,
    SetSessionConfigOptionResponse,
};
use serde_json::{Value, json};

use crate::support::{Agent, contains, official};

/// Parses into an official type, and checks that nothing was skipped but what is not of its version.
fn typed<T: serde::de::DeserializeOwned + serde::Serialize>(answer: &Value, unstable: &[&str]) -> T {
    let mut result = answer["result"].clone();
    let typed: T = serde_json::from_value(result.clone()).unwrap_or_else(|e| panic!("{e}: {answer}"));
    for path in unstable {
        let pointer = path.rsplit_once('/').unwrap();
        let parent = result.pointer_mut(pointer.0).unwrap();
        assert!(
            parent.as_object_mut().unwrap().remove(pointer.1).is_some(),
            "{path}"
        );
    }
    contains(&serde_json::to_value(&typed).unwrap(), &result);
    typed
}

#[test]
fn initialize_and_new_are_official() {
    let mut agent = Agent::ready(&[]);
    let answer = agent.handshake();
    let init: InitializeResponse = typed(&answer, &["/agentCapabilities/sessionCapabilities/fork"]);
    assert!(init.agent_capabilities.load_session);
    assert!(init.auth_methods.is_empty());
    let first = agent.session.clone();
    let new: NewSessionResponse = typed(&agent.open(), &["/models"]);
    assert_eq!(new.config_options.unwrap().len(), 3);
    assert_ne!(first, agent.session);
    let commands = agent.frame();
    official(&commands["params"]["update"]);
    assert_eq!(
        commands["params"]["update"]["sessionUpdate"],
        "available_commands_update"
    );
    // A client that does not say that it knows boolean options is shown none.
    let plain = json!({"protocolVersion": 1, "clientCapabilities": {}});
    agent.call("initialize", &plain);
    let new: NewSessionResponse = typed(&agent.open(), &["/models"]);
    assert_eq!(new.config_options.unwrap().len(), 2);
    agent.finish();
}

#[test]
fn the_demo_is_official_and_writes_its_file() {
    let mut agent = Agent::ready(&[]);
    std::fs::write(format!("{}/README.md", agent.cwd), "one\ntwo\n").unwrap();
    let ended = agent.prompt("Fix the flux capacitor in /etc/flux");
    ended.updates.iter().for_each(official);
    let mut answer = ended.answer.clone();
    assert!(answer["result"]["usage"]["totalTokens"].as_u64().unwrap() > 0);
    answer["result"].as_object_mut().unwrap().remove("usage");
    let _: PromptResponse = typed(&answer, &[]);
    assert_eq!(ended.stop_reason(), "end_turn");
    assert!(ended.text().contains("flux capacitor"));
    assert!(ended.text().contains("a README of 2 lines"));
    let file = std::fs::read_to_string(format!("{}/KANDEV_DEMO.md", agent.cwd)).unwrap();
    assert!(file.contains("flux capacitor"));
    let plans = ended.of("plan");
    assert_eq!(plans.len(), 4);
    let last = plans[3]["entries"].as_array().unwrap();
    assert!(last.iter().all(|entry| entry["status"] == "completed"));
    let calls = ended.of("tool_call");
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[1]["content"][0]["type"], "diff");
    for call in calls {
        let updates = ended.of("tool_call_update");
        let last = updates.iter().rfind(|u| u["toolCallId"] == call["toolCallId"]);
        assert_eq!(last.unwrap()["status"], "completed");
    }
    assert!(ended.of("agent_message_chunk").len() > 5);
    agent.finish();
}

#[test]
fn the_demo_bears_a_directory_it_cannot_write() {
    let mut agent = Agent::ready(&[]);
    // No permission bits stop root; a directory in place of the file does.
    std::fs::create_dir(format!("{}/KANDEV_DEMO.md", agent.cwd)).unwrap();
    let ended = agent.prompt("hello");
    assert_eq!(ended.stop_reason(), "end_turn");
    assert!(ended.text().contains("could not write"));
    let failed = |u: &&&Value| u["status"] == "failed";
    assert_eq!(ended.of("tool_call_update").iter().filter(failed).count(), 1);
    agent.finish();
}

#[test]
fn permission_requests_are_official_and_their_outcomes_said() {
    let mut agent = Agent::ready(&[]);
    for (directive, choice, said) in [
        ("/permission", "allow-once", "permission: selected allow-once\n"),
        (
            "/permission allow_always,allow_once,allow_once",
            "allow-once-2",
            "permission: selected allow-once-2\n",
        ),
        (
            "/permission reject_once unannounced",
            "reject-once",
            "permission: selected reject-once\n",
        ),
    ] {
        let id = agent.send_prompt(directive);
        let ended = agent.collect(id, |request| {
            let params = request["params"].clone();
            let asked: RequestPermissionRequest = serde_json::from_value(params.clone()).unwrap();
            contains(&serde_json::to_value(&asked).unwrap(), &params);
            if directive.contains("allow_always,") {
                assert_eq!(params["options"][0]["kind"], "allow_always");
            }
            json!({"outcome": {"outcome": "selected", "optionId": choice}})
        });
        assert_eq!(ended.text(), said);
        assert_eq!(ended.stop_reason(), "end_turn");
        let announced = usize::from(!directive.contains("unannounced"));
        assert_eq!(ended.of("tool_call").len(), announced);
    }
    let cancelled = |_: &Value| json!({"outcome": {"outcome": "cancelled"}});
    let id = agent.send_prompt("/permission\n/say no");
    let ended = agent.collect(id, cancelled);
    assert_eq!(
        (ended.text().as_str(), ended.stop_reason()),
        ("permission: cancelled\n", "cancelled")
    );
    let id = agent.send_prompt("/permission keep times=2\n/say on");
    let ended = agent.collect(id, cancelled);
    assert_eq!(ended.text(), "permission: cancelled\npermission: cancelled\non");
    assert_eq!(ended.stop_reason(), "end_turn");
    agent.finish();
}

#[test]
fn request_ids_are_sent_as_written_and_answers_find_them() {
    let mut agent = Agent::ready(&[]);
    for raw in [
        "0",
        "\"0\"",
        "\"\"",
        "\"a-1\"",
        "12345678901234567890123",
        "9007199254740993",
    ] {
        let id = agent.send_prompt(&format!(
            "/id {raw}\n/request fs/read_text_file {{\"path\":\"/x\"}}"
        ));
        let line = String::from_utf8(agent.try_line().unwrap()).unwrap();
        assert!(
            line.starts_with(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{raw},\"method\":")),
            "{line}"
        );
        assert!(line.contains(&agent.session), "{line}");
        agent.write(&format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{raw},\"result\":{{\"content\":\"hi\"}}}}"
        ));
        let ended = agent.collect(id, |f| panic!("{f}"));
        assert_eq!(ended.text(), "request: result {\"content\":\"hi\"}\n");
    }
    let id = agent.send_prompt("/request terminal/frob");
    let request = agent.frame();
    let error = json!({"code": -32601, "message": "no"});
    agent.write(&json!({"jsonrpc": "2.0", "id": request["id"], "error": error}).to_string());
    assert_eq!(
        agent.collect(id, |f| panic!("{f}")).text(),
        "request: error -32601 no\n"
    );
    agent.finish();
}

#[test]
fn settings_are_checked_and_changed() {
    let mut agent = Agent::ready(&[]);
    let session = agent.session.clone();
    for (method, params, code) in [
        ("session/set_mode", json!({"modeId": "code"}), None),
        ("session/set_mode", json!({"modeId": "frob"}), Some(-32602)),
        ("session/set_model", json!({"modelId": "mock-small"}), None),
        ("session/set_model", json!({"modelId": "frob"}), Some(-32602)),
        (
            "session/set_config_option",
            json!({"configId": "effort", "value": "high"}),
            None,
        ),
        (
            "session/set_config_option",
            json!({"configId": "effort", "value": "frob"}),
            Some(-32602),
        ),
        (
            "session/set_config_option",
            json!({"configId": "verbose", "type": "boolean", "value": true}),
            None,
        ),
        (
            "session/set_config_option",
            json!({"configId": "frob", "value": "x"}),
            Some(-32602),
        ),
        ("session/frob", json!({}), Some(-32601)),
    ] {
        let mut params = params;
        params["sessionId"] = json!(session);
        let answer = agent.call(method, &params);
        assert_eq!(answer["error"]["code"].as_i64(), code, "{method} {params}");
        if method == "session/set_config_option" && code.is_none() {
            let _: SetSessionConfigOptionResponse = typed(&answer, &[]);
        }
    }
    let said = agent.prompt("/session").text();
    let said: Value = serde_json::from_str(said.strip_prefix("session: ").unwrap()).unwrap();
    assert_eq!(said["mode"], "code");
    assert_eq!(said["model"], "mock-small");
    assert_eq!(said["config"]["effort"], "high");
    assert_eq!(said["config"]["verbose"], true);
    agent.finish();
}

#[test]
fn a_session_survives_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = Agent::spawn(dir.path(), &[]);
    first.handshake();
    first.open();
    let id = first.session.clone();
    first.prompt("/say one\n/tool Look read\n/title Named");
    first.prompt("/say two");
    first.finish();

    let mut second = Agent::spawn(dir.path(), &[]);
    second.handshake();
    let listed = second.call("session/list", &json!({"cwd": second.cwd}));
    let listed: ListSessionsResponse = typed(&listed, &[]);
    assert_eq!(listed.sessions.len(), 1);
    assert_eq!(listed.sessions[0].title.as_deref(), Some("Named"));
    let elsewhere = second.call("session/list", &json!({"cwd": "/elsewhere"}));
    assert_eq!(elsewhere["result"]["sessions"], json!([]));
    let servers = json!([{"name": "files", "command": "/bin/files", "args": [], "env": []}]);
    let params = json!({"sessionId": id, "cwd": second.cwd, "mcpServers": servers});
    let loading = second.send("session/load", &params);
    let replayed = second.collect(loading, |f| panic!("{f}"));
    assert!(replayed.answer["result"]["modes"].is_object());
    let kinds: Vec<&str> = replayed
        .updates
        .iter()
        .map(|u| u["sessionUpdate"].as_str().unwrap())
        .collect();
    let expected = "user_message_chunk agent_message_chunk tool_call tool_call_update tool_call_update \
                    user_message_chunk agent_message_chunk";
    assert_eq!(kinds.join(" "), expected);
    replayed.updates.iter().for_each(official);
    second.session.clone_from(&id);
    let ended = second.prompt("/history\n/again\n/session");
    let text = ended.text();
    assert!(
        text.starts_with(
            "history: [\"/say one\\n/tool Look read\\n/title Named\",\"/say two\"]\ntwosession: "
        ),
        "{text}"
    );
    assert!(
        text.contains("\"origin\":\"load\"") && text.contains("\"name\":\"files\""),
        "{text}"
    );

    let params = json!({"sessionId": id, "cwd": second.cwd});
    let resuming = second.send("session/resume", &params);
    let resumed = second.collect(resuming, |f| panic!("{f}"));
    assert!(resumed.updates.is_empty());
    assert!(resumed.answer["result"]["configOptions"].is_array());
    let params = json!({"sessionId": "frob", "cwd": second.cwd, "mcpServers": []});
    for method in ["session/load", "session/resume", "session/fork"] {
        let lost = second.call(method, &params);
        assert_eq!(lost["error"]["code"], -32002, "{method}");
        assert_eq!(lost["error"]["data"]["reason"], "not_found");
    }
    second.finish();
}

#[test]
fn fork_close_and_delete() {
    let mut agent = Agent::ready(&[]);
    agent.prompt("/say one");
    let old = agent.session.clone();
    let params = json!({"sessionId": old, "cwd": agent.cwd, "mcpServers": []});
    let forked = agent.call("session/fork", &params);
    let new = forked["result"]["sessionId"].as_str().unwrap().to_owned();
    assert_ne!(old, new);
    agent.session = new;
    assert_eq!(agent.prompt("/history").text(), "history: [\"/say one\"]\n");
    let closed = agent.call("session/close", &json!({"sessionId": old}));
    assert!(closed["error"].is_null());
    for gone in [false, true] {
        let deleted = agent.call("session/delete", &json!({"sessionId": old}));
        assert_eq!(deleted["error"].is_null(), !gone, "{deleted}");
    }
    let load = json!({"sessionId": old, "cwd": agent.cwd, "mcpServers": []});
    assert_eq!(agent.call("session/load", &load)["error"]["code"], -32002);
    let prompt = json!({"sessionId": old, "prompt": [{"type": "text", "text": "x"}]});
    assert_eq!(agent.call("session/prompt", &prompt)["error"]["code"], -32002);
    agent.finish();
}

#[test]
fn bad_requests_are_refused() {
    let mut agent = Agent::ready(&[("MOCK_WITHOUT", "image")]);
    let session = agent.session.clone();
    for (method, params, code) in [
        ("session/new", json!({"mcpServers": []}), -32602),
        ("session/new", json!({"cwd": "rel", "mcpServers": []}), -32602),
        ("session/new", json!({"cwd": "/"}), -32602),
        (
            "session/prompt",
            json!({"sessionId": session, "prompt": []}),
            -32602,
        ),
        (
            "session/prompt",
            json!({"sessionId": session, "prompt": [{"type": "image", "data": "", "mimeType": "image/png"}]}),
            -32602,
        ),
        (
            "session/prompt",
            json!({"prompt": [{"type": "text", "text": "x"}]}),
            -32602,
        ),
        ("authenticate", json!({"methodId": "mock_login"}), -32602),
    ] {
        let answer = agent.call(method, &params);
        assert_eq!(answer["error"]["code"], code, "{method} {params}");
    }
    for (line, code) in [("{broken", -32700), ("[]", -32600), ("42", -32600)] {
        agent.write(line);
        let answer = loop {
            let frame = agent.frame();
            if frame["error"].is_object() {
                break frame;
            }
        };
        assert!(answer.as_object().unwrap().contains_key("id") && answer["id"].is_null());
        assert_eq!(answer["error"]["code"], code, "{line}");
    }
    agent.finish();
}
