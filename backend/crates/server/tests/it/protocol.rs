//! What agents say, and what becomes of it: noise, unknown things, ids, order, long lines.

use serde_json::{Value, json};

use crate::support::Stack;

pub(crate) async fn of_kind(stack: &Stack, id: &str, kind: &str) -> Vec<Value> {
    stack
        .events(id)
        .await
        .into_iter()
        .filter(|e| e["kind"] == kind)
        .collect()
}

fn chunk(text: &str) -> Value {
    json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}})
}

#[tokio::test]
async fn lines_of_megabytes_are_stored_as_they_are() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    for (size, bytes) in [("1m", 1 << 20), ("5m", 5 << 20)] {
        let turn = stack.turn(&id, &format!("/line {size}")).await;
        assert_eq!(
            (&turn["status"], &turn["updates"]),
            (&json!("completed"), &json!(1))
        );
        let update = of_kind(&stack, &id, "update").await.pop().unwrap();
        let data = &update["data"];
        let frame = json!({"jsonrpc": "2.0", "method": "session/update", "params": data});
        assert_eq!(frame.to_string().len(), bytes, "{size}");
        let text = data["update"]["content"]["text"].as_str().unwrap();
        assert!(
            text.strip_prefix("00000001 ").unwrap().bytes().all(|b| b == b'x'),
            "{size}"
        );
        assert_eq!(update["turn_id"], turn["id"]);
    }
    let mixed = stack.turn(&id, "/large-chunk-utf8 900k").await;
    let text = mixed["text"].as_str().unwrap();
    assert_eq!(text.len(), 900 << 10);
    assert_eq!(text.trim_end_matches('.'), "🦀語éx".repeat((900 << 10) / 10));
    stack.settle().await;
}

#[tokio::test]
async fn an_endless_line_is_an_error_of_its_own() {
    let stack = Stack::with(&[("KANDEV_MAX_LINE_BYTES", "100000")]).await;
    let id = stack.launch(json!({})).await;
    let other = stack.launch(json!({})).await;
    stack.prompt(&id, "/say before\n/endless 20m").await;
    let errors = format!("/agents/{id}/events?kind=error");
    let error = stack.until(&errors, |page| page["events"][0].is_object()).await["events"][0].clone();
    assert_eq!(
        (&error["data"]["code"], &error["data"]["limit"]),
        (&json!("protocol_error"), &json!(100_000))
    );
    assert_eq!(stack.turn(&other, "/say unharmed").await["text"], "unharmed");
    stack.cancel(&id).await;
    // The agent ends its line then, and is understood again.
    assert_eq!(stack.turn(&id, "/say after").await["text"], "after");
    let turns = stack.get(&format!("/agents/{id}/turns")).await.expect(200);
    assert_eq!(
        (&turns["turns"][0]["text"], &turns["turns"][0]["stop_reason"]),
        (&json!("before"), &json!("cancelled"))
    );
    assert_eq!(of_kind(&stack, &id, "error").await, [error]);
    stack.settle().await;
}

#[tokio::test]
async fn noise_is_log_and_settles_nothing() {
    let stack = Stack::start().await;
    let id = stack
        .launch(json!({"env": {"MOCK_START": "noise 2;stderr up"}}))
        .await;
    let noise = [
        "** Mock Agent 1.0 ** loading plugins... done",
        "",
        "\u{1b}[32mready\u{1b}[0m \u{1b}[2Kin 12 ms",
        "42",
        "[1]",
        "\"text\"",
        "{\"id\":3,\"level\":\"info\"}",
        "invalid \u{fffd}\u{fffd}\u{fffd} UTF-8",
        "{broken",
    ];
    assert_eq!(stack.logs(&id, "stdout").await, noise.repeat(2));
    assert_eq!(stack.logs(&id, "stderr").await, ["up"]);
    // The prompt is request 3, as in the noise; none of these is its answer.
    let others = [
        r#"/raw {"jsonrpc":"2.0","id":"3","result":{"stopReason":"refusal"}}"#,
        r#"/raw {"jsonrpc":"2.0","id":null,"result":{"stopReason":"refusal"}}"#,
        r#"/raw {"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}"#,
        r#"/raw {"jsonrpc":"2.0","id":4,"result":{"stopReason":"refusal"}}"#,
        r#"/raw {"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1}}"#,
    ];
    let turn = stack
        .turn(
            &id,
            &format!("/noise\n{}\n/sleep 200\n/say still here", others.join("\n")),
        )
        .await;
    assert_eq!(
        (&turn["stop_reason"], &turn["text"]),
        (&json!("end_turn"), &json!("still here"))
    );
    assert_eq!(stack.logs(&id, "stdout").await, noise.repeat(3));
    let frames = of_kind(&stack, &id, "message").await;
    for other in others {
        let frame: Value = serde_json::from_str(&other[5..]).unwrap();
        assert_eq!(frames.iter().filter(|e| e["data"] == frame).count(), 1, "{other}");
    }
    stack.settle().await;
}

#[tokio::test]
async fn the_agents_ids_come_back_as_they_were() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let ids = ["0", r#""0""#, r#""""#, r#""a-1""#, "9007199254740993", "-7"];
    for rpc in ids {
        let script = format!("/id {rpc}\n/request mock/none\n/id {rpc}\n/permission unannounced");
        let turn = stack.turn(&id, &script).await;
        let text = turn["text"].as_str().unwrap();
        assert!(text.starts_with("request: error -32601 "), "{rpc}: {text}");
        assert!(
            text.ends_with("\npermission: selected allow-once\n"),
            "{rpc}: {text}"
        );
    }
    let resolved = of_kind(&stack, &id, "permission_resolved").await;
    let told: Vec<_> = resolved
        .iter()
        .map(|e| e["data"]["request_id"].to_string())
        .collect();
    assert_eq!(told, ids);
    stack.settle().await;
}

#[tokio::test]
async fn what_is_not_known_is_kept_and_harms_nothing() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let requests = [
        "mock/none",
        "fs/remove_file",
        "terminal/resize",
        "elicitation/list",
    ];
    let script = requests
        .map(|method| format!("/request {method} {{\"path\":\"/etc/passwd\"}}"))
        .join("\n");
    let turn = stack.turn(&id, &script).await;
    let refusals: Vec<_> = turn["text"].as_str().unwrap().lines().collect();
    assert_eq!(refusals.len(), requests.len(), "{refusals:#?}");
    assert!(
        refusals.iter().all(|r| r.starts_with("request: error -32601 ")),
        "{refusals:#?}"
    );

    let script = "/notify _vendor/ping {\"a\":[1,2.50]}\n/unknown-update\n/tool Dig dug_deep\n/batch\n/stop out_of_coffee";
    let turn = stack.turn(&id, script).await;
    assert_eq!(
        (&turn["status"], &turn["stop_reason"]),
        (&json!("completed"), &json!("out_of_coffee"))
    );
    assert_eq!(turn["text"], "batch: error -32600\n");
    let events = stack.events(&id).await;
    let session = &turn["session_id"];
    let has = |kind: &str, data: Value| {
        let found = events
            .iter()
            .filter(|e| e["kind"] == kind && e["data"] == data && e["turn_id"] == turn["id"]);
        assert_eq!(found.count(), 1, "{kind} {data:#}");
    };
    has(
        "message",
        json!({"jsonrpc": "2.0", "method": "_vendor/ping", "params": {"a": [1, 2.50]}}),
    );
    let unknown =
        json!({"sessionUpdate": "mock_unknown_update", "nested": {"list": [1, "two", null], "text": "kept"}});
    has("update", json!({"sessionId": session, "update": unknown}));
    has(
        "update",
        json!({"sessionId": session, "update": {"withoutKind": true}}),
    );
    assert!(
        events.iter().any(|e| e["data"]["update"]["kind"] == "dug_deep"),
        "{events:#?}"
    );

    // A turn without any update is visible as such.
    let silent = stack.turn(&id, "/stop end_turn").await;
    assert_eq!(
        (&silent["status"], &silent["updates"], &silent["text"]),
        (&json!("completed"), &json!(0), &json!(""))
    );
    let warned = stack
        .get(&format!("/agents/{id}/logs?level=warn&q=without%20any%20update"))
        .await
        .expect(200);
    assert_eq!(warned["total"], 1);
    // An error of the agent's is the turn's, and the instance goes on.
    let failed = stack.turn(&id, "/error -32603 out of luck").await;
    assert_eq!(
        (&failed["status"], &failed["error"]["code"]),
        (&json!("failed"), &json!("agent_error"))
    );
    assert_eq!(
        (&failed["error"]["message"], &failed["error"]["details"]["code"]),
        (&json!("out of luck"), &json!(-32603))
    );
    assert_eq!(stack.turn(&id, "/say on").await["text"], "on");
    stack.settle().await;
}

#[tokio::test]
async fn updates_keep_their_order_and_their_turn() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({"env": {"MOCK_NEW": "early-updates"}})).await;
    let session = stack.instance(&id).await["session_id"].clone();
    let events = stack.events(&id).await;
    let early = events
        .iter()
        .position(|e| e["data"]["update"] == chunk("early"))
        .unwrap();
    let established = events.iter().position(|e| e["kind"] == "session").unwrap();
    assert!(early < established, "{events:#?}");
    assert_eq!(events[early]["session_id"], session);
    let said = stack.get(&format!("/agents/{id}/session")).await.expect(200);
    assert!(
        said["commands"].as_array().is_some_and(|c| c.len() > 3),
        "{said:#}"
    );

    let turn = stack
        .turn(&id, "/slow 100 0\n/say  \n/say \\n\n/say end\n/late 200 too late")
        .await;
    let expected = (1..=100)
        .map(|n| format!("slow {n}/100 "))
        .collect::<Vec<_>>()
        .concat();
    assert_eq!(turn["text"], format!("{expected} \nend"));
    let path = format!("/agents/{id}/events?kind=update,turn_ended&limit=500");
    let page = stack
        .until(&path, |p| {
            p["events"]
                .as_array()
                .unwrap()
                .iter()
                .any(|e| e["data"]["update"] == chunk("too late"))
        })
        .await;
    let own: Vec<_> = page["events"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|e| e["turn_id"] == turn["id"])
        .collect();
    assert_eq!(
        own.len(),
        100 + 3 + 1 + 1,
        "the chunks, the end, and what came late"
    );
    assert_eq!(own[103]["kind"], "turn_ended");
    assert_eq!(own[104]["session_id"], session);
    stack.settle().await;
}

#[tokio::test]
async fn nul_and_lone_surrogates_are_kept() {
    let stack = Stack::start().await;
    // The scripts answer their own prompts, so the next one comes while the agent thinks it is busy.
    let id = stack.launch(json!({"env": {"MOCK_BUSY": "queue"}})).await;
    let raw = |update: &str| {
        format!(
            r#"/raw {{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"{{session}}","update":{update}}}}}"#
        )
    };
    let texts = [r"a\u0000b", r"x\ud800y", r"\udc00", r"\ud83e\udd80"];
    let mut script: Vec<_> = texts.iter().map(|t| raw(&format!(r#"{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":"{t}"}},"after":1}}"#))).collect();
    script.push(raw(
        r#"{"sessionUpdate":"session_info_update","title":"t\u0000\ud800"}"#,
    ));
    script.push(r#"/raw {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s\u0000\ud800","update":{"sessionUpdate":"plan","entries":[{"content":"\u0000","status":"pending","priority":"low"}]}}}"#.to_owned());
    script.push(r#"/raw {"jsonrpc":"2.0","id":"\u0000\ud800","method":"session/request_permission","params":{"sessionId":"{session}","options":[{"optionId":"\u0000","kind":"allow_once"}]}}"#.to_owned());
    script.push(r#"/raw {"jsonrpc":"2.0","id":3,"result":{"stopReason":"end\u0000\ud800","usage":{"a":"\u0000"},"_meta":{"b":"\u0000"}}}"#.to_owned());
    let turn = stack.turn(&id, &script.join("\n")).await;
    assert_eq!(turn["status"], "completed");
    assert!(
        turn["stop_reason"].as_str().unwrap().starts_with("end"),
        "{turn:#}"
    );
    assert_eq!(turn["usage"], json!({"a": "\0"}));
    assert!(turn["text"].as_str().unwrap().starts_with("a\0bx"), "{turn:#}");
    assert!(turn["text"].as_str().unwrap().ends_with('🦀'), "{turn:#}");
    let failed =
        r#"/raw {"jsonrpc":"2.0","id":4,"error":{"code":-1,"message":"m\u0000\ud800","data":"\u0000"}}"#;
    let failed = stack.turn(&id, failed).await;
    assert!(
        failed["error"]["message"].as_str().unwrap().starts_with('m'),
        "{failed:#}"
    );
    // The events have the escapes that the agent wrote, which a reader of JSON as strict as ours must not unescape.
    let page = text_of(&stack, &format!("/agents/{id}/events?kind=update&limit=100")).await;
    for text in texts {
        assert!(
            page.contains(&format!(r#""text":"{text}"}},"after":1"#)),
            "{text} in {page}"
        );
    }
    let resolved = text_of(&stack, &format!("/agents/{id}/events?kind=permission_resolved")).await;
    assert!(resolved.contains(r#""request_id":"\u0000\ud800""#), "{resolved}");
    let state = text_of(&stack, &format!("/agents/{id}/session")).await;
    assert!(state.contains(r#""title":"t\u0000"#), "{state}");
    for (n, answer, kept) in [
        (
            5,
            r#""result":{"stopReason":"end_turn","usage":{"a":"\ud800"}}"#,
            r#""usage":{"a":"\ud800"}"#,
        ),
        (
            6,
            r#""error":{"code":-1,"message":"","data":["\ud802"]}"#,
            r#""data":["\ud802"]"#,
        ),
    ] {
        let turn = stack
            .prompt(&id, &format!(r#"/raw {{"jsonrpc":"2.0","id":{n},{answer}}}"#))
            .await;
        stack
            .until(&format!("/agents/{id}/status"), |s| s["turn_state"] == "idle")
            .await;
        // Once in the turn and once in the event of its end.
        let turn = text_of(&stack, &format!("/agents/{id}/turns/{turn}")).await;
        assert!(turn.contains(kept), "{turn}");
        let ends = text_of(&stack, &format!("/agents/{id}/events?kind=turn_ended&after={n}")).await;
        assert!(ends.contains(kept), "{ends}");
    }
    assert_eq!(stack.turn(&id, "/say fine").await["text"], "fine");
    assert_eq!(stack.instance(&id).await["status"], "running");
    stop_and_count(&stack, &id).await;
}

async fn text_of(stack: &Stack, path: &str) -> String {
    let response = reqwest::get(stack.url(path)).await.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    response.text().await.unwrap()
}

/// The lone surrogates are not for a strict reader: the numbers are taken from the text.
async fn stop_and_count(stack: &Stack, id: &str) {
    stack.stop(id).await;
    let page = text_of(stack, &format!("/agents/{id}/events?limit=5000")).await;
    let number = |piece: &str| piece.split(',').next().unwrap().parse::<usize>().unwrap();
    let seqs: Vec<_> = page.split("{\"seq\":").skip(1).map(number).collect();
    assert_eq!(seqs, (1..=seqs.len()).collect::<Vec<_>>());
    assert!(stack.containers().is_empty());
}

#[tokio::test]
async fn what_is_said_of_another_session_does_not_change_this_one() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let other = json!({"jsonrpc": "2.0", "method": "session/update", "params": {
        "sessionId": "of-a-subagent", "update": {"sessionUpdate": "session_info_update", "title": "theirs"}}});
    stack.turn(&id, &format!("/title ours\n/raw {other}")).await;
    assert_eq!(
        stack.get(&format!("/agents/{id}/session")).await.expect(200)["title"],
        "ours"
    );
    let events = stack.events(&id).await;
    let stored = events
        .iter()
        .find(|e| e["session_id"] == "of-a-subagent")
        .unwrap();
    assert_eq!(stored["data"], other["params"]);
    stack.settle().await;
}
