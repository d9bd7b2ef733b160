//! Every directive that leaves agent and turn alive.

use serde_json::{Value, json};

use crate::support::{Agent, official};

#[test]
fn directives_that_say_something() {
    let mut agent = Agent::ready(&[("MOCK_TEST_VALUE", "7 of 9")]);
    let cwd = agent.cwd.clone();
    std::fs::create_dir(format!("{cwd}/sub")).unwrap();
    for (directive, text) in [
        ("/say hello", "hello".to_owned()),
        ("/say  \\n ", " \n ".to_owned()),
        ("/say", String::new()),
        ("/say a\nnot a directive\n/say b", "ab".to_owned()),
        ("/write a/b.txt x\\ny", format!("write: {cwd}/a/b.txt: 3 bytes\n")),
        ("/read a/b.txt", "read: x\ny\n".to_owned()),
        (
            "/read nope",
            format!("read: {cwd}/nope: No such file or directory (os error 2)\n"),
        ),
        ("/ls a", "ls: b.txt\n".to_owned()),
        ("/ls", "ls: a sessions sub\n".to_owned()),
        ("/pwd", format!("pwd: {cwd}\n")),
        ("/env MOCK_TEST_VALUE", "env: MOCK_TEST_VALUE=7 of 9\n".to_owned()),
        ("/env NOPE", "env: NOPE is unset\n".to_owned()),
        ("/blocks", "blocks: text\n".to_owned()),
        ("/slow 3 5", "slow 1/3 slow 2/3 slow 3/3 ".to_owned()),
        ("/sleep 1", String::new()),
        ("/frob", "unknown directive /frob\n".to_owned()),
        ("/sleep soon", "/sleep: 'soon' is not a number\n".to_owned()),
        ("/plan-step", "plan-step: nothing left\n".to_owned()),
        ("/spawn-orphans 3 1", "spawn-orphans: 3\n".to_owned()),
    ] {
        let ended = agent.prompt(directive);
        assert_eq!(ended.text(), text, "{directive}");
        assert_eq!(ended.stop_reason(), "end_turn", "{directive}");
        ended.updates.iter().for_each(official);
    }
    let who = agent.prompt("/whoami").text();
    assert!(
        who.starts_with("whoami: uid=") && who.contains("CapEff=") && !who.contains('?'),
        "{who}"
    );
    let client = agent.prompt("/client").text();
    let client: Value = serde_json::from_str(client.strip_prefix("client: ").unwrap()).unwrap();
    assert_eq!(client["clientCapabilities"]["terminal"], true);
    agent.finish();
}

#[test]
fn directives_that_send_other_updates() {
    let mut agent = Agent::ready(&[]);
    for (directive, expected) in [
        (
            "/think hm",
            vec![json!({"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": "hm"}})],
        ),
        (
            "/mode code",
            vec![json!({"sessionUpdate": "current_mode_update", "currentModeId": "code"})],
        ),
        (
            "/title A b",
            vec![json!({"sessionUpdate": "session_info_update", "title": "A b"})],
        ),
        (
            "/usage 12",
            vec![json!({"sessionUpdate": "usage_update", "used": 12, "size": 200_000})],
        ),
        (
            "/update {\"sessionUpdate\":\"x\"}",
            vec![json!({"sessionUpdate": "x"})],
        ),
        ("/notify _vendor/ping {\"a\":1}", vec![]),
    ] {
        let ended = agent.prompt(directive);
        assert_eq!(ended.updates, expected, "{directive}");
    }
    let ended = agent.prompt("/usage 12");
    assert_eq!(ended.answer["result"]["usage"]["totalTokens"], 12);
    let unknown = agent.prompt("/unknown-update");
    assert_eq!(unknown.updates[0]["sessionUpdate"], "mock_unknown_update");
    assert!(unknown.updates[1].is_object() && unknown.updates[1]["sessionUpdate"].is_null());
    agent.send_prompt("/notify _vendor/ping {\"a\":1}");
    assert_eq!(
        agent.frame(),
        json!({"jsonrpc": "2.0", "method": "_vendor/ping", "params": {"a": 1}})
    );
}

#[test]
fn plans_progress() {
    let mut agent = Agent::ready(&[]);
    let ended = agent.prompt("/plan a;b;c\n/plan-step\n/say x");
    ended.updates.iter().for_each(official);
    let states: Vec<String> = ended
        .of("plan")
        .iter()
        .map(|plan| {
            let entries = plan["entries"].as_array().unwrap();
            let initial = |entry: &Value| entry["status"].as_str().unwrap()[..1].to_owned();
            entries.iter().map(initial).collect()
        })
        .collect();
    assert_eq!(states, ["ipp", "cip", "cci", "ccc"]);
    let stopped = agent.prompt("/plan a;b\n/stop refusal");
    assert_eq!(stopped.of("plan").len(), 1);
    agent.finish();
}

#[test]
fn tools_are_called() {
    let mut agent = Agent::ready(&[]);
    let ended =
        agent.prompt("/tool Run the tests execute\n/tool Ponder\n/diff src/x.c int x;\\n\n/diff src/x.c");
    ended.updates.iter().for_each(official);
    let calls = ended.of("tool_call");
    let kinds: Vec<&str> = calls.iter().map(|call| call["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["execute", "other", "edit", "edit"]);
    assert_eq!(calls[0]["title"], "Run the tests");
    let updates = ended.of("tool_call_update");
    for call in &calls {
        let of_call = updates.iter().filter(|u| u["toolCallId"] == call["toolCallId"]);
        let statuses: Vec<&str> = of_call.map(|u| u["status"].as_str().unwrap()).collect();
        assert_eq!(statuses, ["in_progress", "completed"]);
    }
    let diff = &calls[3]["content"][0];
    assert_eq!(diff["oldText"], "int x;\n");
    let file = std::fs::read_to_string(format!("{}/src/x.c", agent.cwd)).unwrap();
    assert_eq!(file, "int x;\nA line by the mock agent.\n");
    assert_eq!(diff["newText"], file);
    let next = agent.prompt("/tool Odd frobnicate");
    assert_eq!(next.of("tool_call")[0]["kind"], "frobnicate");
    assert_ne!(next.of("tool_call")[0]["toolCallId"], calls[0]["toolCallId"]);
    agent.finish();
}

#[test]
fn masses_have_their_size() {
    let mut agent = Agent::ready(&[]);
    let flood = agent.prompt("/flood 5k 200");
    assert_eq!(flood.updates.len(), 5 << 10);
    for (n, update) in flood.updates.iter().enumerate() {
        let text = update["content"]["text"].as_str().unwrap();
        assert_eq!(text.len(), 200);
        assert_eq!(text[..9], format!("{:08} ", n + 1));
    }
    let prose = agent.prompt("/flood 3 200 prose");
    for (n, update) in prose.updates.iter().enumerate() {
        let text = update["content"]["text"].as_str().unwrap();
        assert_eq!(text.len(), 200);
        assert_eq!(text[..9], format!("{:08} ", n + 1));
        assert!(text[9..].contains(' '), "{text}");
    }
    assert_ne!(prose.updates[1]["content"], prose.updates[2]["content"]);
    assert_eq!(
        agent.prompt("/flood 1 1 verse").text(),
        "/flood: 'verse' is not known\n"
    );
    let id = agent.send_prompt("/line 3m");
    assert_eq!(agent.try_line().unwrap().len(), 3 << 20);
    agent.answer(id);
    let id = agent.send_prompt("/halves 100k 30");
    assert_eq!(agent.try_line().unwrap().len(), 100 << 10);
    assert_eq!(agent.answer(id)["result"]["stopReason"], "end_turn");
    let text = agent.prompt("/large-chunk-utf8 1001").text();
    assert_eq!(text.len(), 1001);
    assert!(text.contains('🦀') && text.contains('é'));
    assert_eq!(agent.prompt("/large-chunk-utf8").text().len(), 1 << 20);
    agent.finish();
}

#[test]
fn the_clock_is_the_machines() {
    let mut agent = Agent::ready(&[]);
    let begun = nanoseconds();
    let text = agent.prompt("/clock 3 1").text();
    let ended = nanoseconds();
    let words: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(
        [words[0], words[2], words[4]],
        ["00000001", "00000002", "00000003"]
    );
    let stamps: Vec<u128> = [words[1], words[3], words[5]].map(|s| s.parse().unwrap()).into();
    assert!(begun <= stamps[0] && stamps[0] < stamps[1] && stamps[1] < stamps[2] && stamps[2] <= ended);
    agent.finish();
}

#[expect(
    clippy::disallowed_methods,
    reason = "the agent's own clock is to be compared with"
)]
fn nanoseconds() -> u128 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap().as_nanos()
}

#[test]
fn turns_end_as_told() {
    let mut agent = Agent::ready(&[]);
    for reason in ["refusal", "max_tokens", "max_turn_requests", "frobnicated"] {
        let ended = agent.prompt(&format!("/stop {reason}\n/say not reached"));
        assert_eq!(ended.stop_reason(), reason);
        assert!(ended.updates.is_empty());
    }
    let ended = agent.prompt("/error -32099 out of luck");
    assert_eq!(
        ended.answer["error"],
        json!({"code": -32099, "message": "out of luck"})
    );
    let id = agent.send_prompt("/late 60 second\n/late 30 first\n/say now");
    assert_eq!(agent.collect(id, |f| panic!("{f}")).text(), "now");
    let text = |frame: Value| frame["params"]["update"]["content"]["text"].clone();
    assert_eq!(text(agent.frame()), "first");
    assert_eq!(text(agent.frame()), "second");
    assert_eq!(agent.prompt("/again").text(), "now");
    agent.finish();
}

#[test]
fn raw_and_noisy_output() {
    let mut agent = Agent::ready(&[]);
    let id =
        agent.send_prompt("/raw {\"half\":\\n {session}\n/noise 2\n/stderr warn\\ning\n/stderr-flood 3 20");
    let line = String::from_utf8(agent.try_line().unwrap()).unwrap();
    assert_eq!(line, format!("{{\"half\":\\n {}", agent.session));
    let mut noise = Vec::new();
    let answer = loop {
        let line = agent.try_line().unwrap();
        match serde_json::from_slice::<Value>(&line) {
            Ok(frame) if frame["id"] == id && frame["result"].is_object() => break frame,
            _ => noise.push(line),
        }
    };
    assert_eq!(answer["result"]["stopReason"], "end_turn");
    assert_eq!(noise.len(), 18);
    assert!(noise.iter().any(|line| std::str::from_utf8(line).is_err()));
    assert!(noise.iter().any(|line| line == b"{\"id\":3,\"level\":\"info\"}"));
    assert!(noise.iter().any(Vec::is_empty));
    agent.stdin = None;
    assert_eq!(agent.exit().code(), Some(0));
    let expected = "warn\ning\n00000001 xxxxxxxxxxx\n00000002 xxxxxxxxxxx\n00000003 xxxxxxxxxxx\n";
    assert_eq!(agent.stderr(), expected);
}

#[test]
fn a_batch_reports_its_refusal() {
    let mut agent = Agent::ready(&[]);
    let id = agent.send_prompt("/batch");
    let batch = agent.frame();
    assert_eq!(batch.as_array().unwrap().len(), 2);
    let error = json!({"code": -32600, "message": "no batches"});
    agent.write(&json!({"jsonrpc": "2.0", "id": null, "error": error}).to_string());
    assert_eq!(
        agent.collect(id, |f| panic!("{f}")).text(),
        "batch: error -32600\n"
    );
    agent.finish();
}
