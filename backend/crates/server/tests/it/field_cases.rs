//! Cases from the field that are told apart only by what the agent itself was sent, or wrote.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::asked::{pending, turn_ended};
use crate::endings::end_of;
use crate::support::Stack;

/// CASE 13: update and response in the same read.
#[tokio::test]
async fn updates_in_the_same_write_as_the_answer_are_before_the_end_of_the_turn() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    for dialect in ["acp", "kandev"] {
        let id = match dialect {
            "acp" => id.clone(),
            dialect => stack.launch(json!({"env": {"MOCK_DIALECT": dialect}})).await,
        };
        // One that is last by chance would not be so again and again.
        for count in [1, 2, 20, 20, 20, 50] {
            let turn = stack.turn(&id, &format!("/say first \n/with-end {count}")).await;
            let last = |n: usize| format!("last {n}/{count} ");
            let said: String = (1..=count).map(last).collect();
            assert_eq!(turn["text"], format!("first {said}"), "{dialect}");
            let events = stack.events(&id).await;
            let own: Vec<_> = events.iter().filter(|e| e["turn_id"] == turn["id"]).collect();
            // In the kandev dialect an update is the end, and the answer comes at once.
            let is_end =
                |data: &Value| data["result"]["stopReason"].is_string() || data["type"] == "complete";
            let stored: Vec<_> = own
                .iter()
                .filter_map(|e| match e["data"]["update"]["content"]["text"].as_str() {
                    Some(text) => Some(text.to_owned()),
                    None if is_end(&e["data"]) => Some("end".to_owned()),
                    None => e["kind"].as_str().filter(|k| *k != "message").map(str::to_owned),
                })
                .collect();
            let mut expected = vec!["turn_started".to_owned(), "first ".to_owned()];
            expected.extend((1..=count).map(last));
            expected.extend(["end", "turn_ended"].map(str::to_owned));
            assert_eq!(stored, expected, "{dialect}");
            let seqs: Vec<_> = own.iter().map(|e| e["seq"].as_u64().unwrap()).collect();
            let first = seqs[0];
            assert_eq!(seqs, (first..first + seqs.len() as u64).collect::<Vec<_>>());
        }
    }
    stack.settle().await;
}

/// CASE 15: ten quick cancels while two permissions are open.
#[tokio::test]
async fn ten_quick_cancels_with_two_open_requests_are_one_at_the_agent() {
    let stack = Stack::start().await;
    let env = json!({"MOCK_INPUT_COPY": "/workspace/input"});
    let id = stack
        .launch(json!({"env": env, "permission_policy": "ask"}))
        .await;
    let turn = stack.prompt(&id, "/permission times=2 keep").await;
    let open = pending(&stack, "permissions", &id, 2).await;
    let path = format!("/agents/{id}/cancel");
    let body = json!({"reason": "enough"});
    for answer in join_all((0..10).map(|_| stack.post(&path, &body))).await {
        answer.expect(200);
    }
    let ended = turn_ended(&stack, &id, &turn).await;
    assert_eq!(
        (&ended["status"], &ended["text"]),
        (&json!("cancelled"), &json!("permission: cancelled\n".repeat(2)))
    );
    for permission in &open {
        let path = crate::asked::path_of("permissions", permission);
        stack
            .post(&path, &json!({"kind": "allow_once"}))
            .await
            .refused(409, "conflict");
    }
    // What comes after it has its own end; nothing of the cancels is left to reach it.
    assert_eq!(stack.turn(&id, "/say next").await["text"], "next");
    assert_eq!(
        stack.sent_to("session/cancel"),
        [json!({"sessionId": ended["session_id"]})]
    );
    let sent = stack.sent();
    let answered: Vec<_> = sent.iter().filter(|frame| frame["result"].is_object()).collect();
    let cancelled = json!({"outcome": {"outcome": "cancelled"}});
    assert_eq!(
        answered
            .iter()
            .map(|frame| (&frame["id"], &frame["result"]))
            .collect::<Vec<_>>(),
        [(&json!(0), &cancelled), (&json!(1), &cancelled)]
    );
    let turns = stack.get(&format!("/agents/{id}/turns")).await.expect(200);
    assert_eq!(turns["turns"].as_array().unwrap().len(), 2, "{turns:#}");
    stack.settle().await;
}

/// What the agent says of its own session.
async fn own_words(stack: &Stack, id: &str) -> Value {
    let turn = stack.turn(id, "/session").await;
    let text = turn["text"].as_str().unwrap();
    serde_json::from_str(text.strip_prefix("session: ").unwrap()).unwrap()
}

/// CASE 20: a boolean option.
#[tokio::test]
async fn a_boolean_option_is_set_again_after_a_resume_and_after_a_cancel_that_was_ignored() {
    let stack = Stack::with(&[("KANDEV_CANCEL_GRACE_SECONDS", "1")]).await;
    let env = json!({"MOCK_INPUT_COPY": "/workspace/input"});
    let first = stack.launch(json!({"env": env})).await;
    assert_eq!(own_words(&stack, &first).await["config"]["verbose"], false);
    let option = format!("/agents/{first}/config_options/verbose");
    stack
        .call(Method::PUT, &option, Some(&json!({"value": true})))
        .await
        .expect(200);
    stack.stop(&first).await;
    let set = |value: bool| {
        let mut params = json!({"sessionId": null, "configId": "verbose", "type": "boolean", "value": value});
        params["sessionId"] = stack.sent_to("session/prompt")[0]["sessionId"].clone();
        params
    };
    assert_eq!(stack.sent_to("session/set_config_option"), [set(true)]);

    let answer = stack
        .post(
            &format!("/agents/{first}/resume"),
            &json!({"wait": "ready", "env": env}),
        )
        .await;
    let id = answer.expect(201)["id"].as_str().unwrap().to_owned();
    assert_eq!(stack.sent_to("session/set_config_option"), [set(true), set(true)]);
    let said = own_words(&stack, &id).await;
    assert_eq!(
        (&said["origin"], &said["config"]["verbose"]),
        (&json!("resume"), &json!(true))
    );

    // A container of its own again, which neither knows of it.
    let turn = stack.deaf_turn(&id).await;
    let containers = stack.containers();
    stack.cancel(&id).await;
    assert_eq!(turn_ended(&stack, &id, &turn).await["status"], "cancelled");
    let said = own_words(&stack, &id).await;
    assert_eq!(
        (&said["origin"], &said["config"]["verbose"]),
        (&json!("resume"), &json!(true))
    );
    assert_ne!(stack.containers(), containers);
    assert_eq!(
        stack.sent_to("session/set_config_option"),
        [set(true), set(true), set(true)]
    );
    let state = stack.get(&format!("/agents/{id}/session")).await.expect(200);
    let options = state["config_options"].as_array().unwrap();
    let verbose = options.iter().find(|option| option["id"] == "verbose").unwrap();
    assert_eq!(verbose["currentValue"], true, "{state:#}");
    stack.settle().await;
}

/// CASE 21: the answer comes after all, while the agent is being ended.
#[tokio::test]
async fn an_answer_to_initialize_that_comes_too_late_is_on_record_and_nothing_follows_from_it() {
    let stack = Stack::with(&[
        ("KANDEV_HANDSHAKE_TIMEOUT_SECONDS", "2"),
        ("KANDEV_STOP_GRACE_SECONDS", "8"),
    ])
    .await;
    let env = json!({
        "MOCK_INIT": "slow:4000", "MOCK_START": "ignore-term;ignore-eof", "MOCK_INPUT_COPY": "/workspace/input",
    });
    let answer = stack
        .try_launch(json!({"env": env, "prompt": "/say never"}))
        .await
        .expect(201);
    let id = answer["id"].as_str().unwrap();
    let ended = stack.ended(id).await;
    assert_eq!(
        (end_of(&ended).0, end_of(&ended).1),
        ("failed", Some("handshake_timeout"))
    );
    let events = stack.events(id).await;
    // It was really written.
    let at = |found: &dyn Fn(&Value) -> bool| events.iter().position(found);
    let late = at(&|e: &Value| e["data"]["id"] == 1 && e["data"]["result"]["protocolVersion"] == 1);
    let late = late.unwrap_or_else(|| panic!("it is not on record: {events:#?}"));
    let given_up = at(&|e: &Value| {
        let message = e["data"]["message"].as_str();
        message.is_some_and(|said| said.starts_with("ending: handshake_timeout"))
    });
    assert!(given_up.is_some_and(|given_up| given_up < late), "{events:#?}");
    // And that was all: it was asked nothing more, has no session, and its turn never began.
    let methods: Vec<_> = stack.sent().iter().map(|frame| frame["method"].clone()).collect();
    assert!(
        methods
            .iter()
            .all(|m| m == "initialize" || m == "$/cancel_request"),
        "{methods:?}"
    );
    let kinds: Vec<_> = events.iter().map(|e| e["kind"].as_str().unwrap()).collect();
    assert!(
        !kinds.contains(&"session") && !kinds.contains(&"turn_started"),
        "{kinds:?}"
    );
    assert_eq!(stack.instance(id).await["session_id"], Value::Null);
    assert!(stack.containers().is_empty());
    let retry = stack.launch(json!({"task_id": answer["task_id"]})).await;
    assert_eq!(stack.turn(&retry, "/say clean").await["text"], "clean");
    stack.settle().await;
}
