//! How they are seen, and what answers them.

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{accept, all, answer, asked, path_of, pending, turn_ended, turn_state};
use crate::protocol::of_kind;
use crate::support::{Got, Socket, Stack};

#[tokio::test]
async fn a_form_is_seen_everywhere_and_answered_once() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let mut reader = stack.follow(&format!("/agents/{id}/events"), None).await;
    let turn = stack.prompt(&id, "/id \"a-1\"\n/form").await;
    let seen = reader.until(|f| f.event == "elicitation_requested").await;
    let event = &seen.last().unwrap().data;
    let open = asked(&stack, &id).await;
    assert_eq!(event["turn_id"], json!(turn));
    for key in [
        "id",
        "mode",
        "message",
        "tool_call_id",
        "requested_schema",
        "url",
        "agent_key",
        "status",
        "session_id",
        "turn_id",
        "requested_at",
        "expires_at",
    ] {
        assert_eq!(event["data"][key], open[key], "{key}");
    }
    assert_eq!(event["data"]["request_id"], "a-1");
    assert_eq!(open["session_id"], stack.instance(&id).await["session_id"]);
    assert_eq!(
        (&open["instance_id"], &open["turn_id"], &open["status"]),
        (&json!(id), &json!(turn), &json!("pending"))
    );
    assert_eq!(
        (&open["mode"], &open["message"]),
        (&json!("form"), &json!("Tell me more"))
    );
    assert_eq!(open["requested_schema"]["required"], json!(["name"]));
    for key in [
        "answered_at",
        "outcome",
        "decided_by",
        "expires_at",
        "url",
        "agent_key",
    ] {
        assert!(open[key].is_null(), "{open:#}");
    }
    assert_eq!(turn_state(&stack, &id).await, "awaiting_input");
    let snapshot = format!("/agents/{id}/events?snapshot=true");
    let now = stack.get(&snapshot).await.expect(200);
    assert_eq!(
        (&now["elicitations"], &now["turn_state"]),
        (&json!([open]), &json!("awaiting_input"))
    );
    let everywhere = stack.get("/api/v1/elicitations?status=pending").await.expect(200);
    assert_eq!(everywhere["elicitations"], json!([open]));
    assert_eq!(stack.get(&path_of(&open)).await.expect(200), open);

    let content = json!({"name": "é\u{0}🦀", "size": 3, "colour": "red", "sure": true, "parts": ["a", "c"]});
    let answered = answer(&stack, &open, accept(content.clone())).await.expect(200);
    assert_eq!(
        (&answered["status"], &answered["outcome"], &answered["decided_by"]),
        (
            &json!("accepted"),
            &json!({"action": "accept", "content": content}),
            &json!("caller")
        )
    );
    assert!(answered["answered_at"].is_string());
    assert_eq!(stack.get(&path_of(&open)).await.expect(200), answered);
    let seen = reader.until(|f| f.event == "elicitation_resolved").await;
    let event = &seen.last().unwrap().data;
    for key in ["id", "status", "outcome", "decided_by", "answered_at"] {
        assert_eq!(event["data"][key], answered[key], "{key}");
    }
    assert_eq!(event["data"]["request_id"], "a-1");
    assert_eq!(
        turn_ended(&stack, &id, &turn).await["text"],
        format!("form: accept {content}\n")
    );
    for late in [accept(content), json!({"action": "cancel"})] {
        let body = answer(&stack, &open, late).await.refused(409, "conflict");
        assert_eq!(body["details"]["status"], "accepted");
    }
    assert_eq!(of_kind(&stack, &id, "elicitation_resolved").await.len(), 1);
    assert_eq!(stack.get(&snapshot).await.expect(200)["elicitations"], json!([]));
    stack.settle().await;
    answer(&stack, &open, json!({"action": "decline"}))
        .await
        .refused(409, "conflict");
}

#[tokio::test]
async fn a_url_is_agreed_to_and_the_agent_tells_when_it_is_done() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let turn = stack
        .prompt(&id, "/open-url pay https://example.com/pay?x=1")
        .await;
    let open = asked(&stack, &id).await;
    assert_eq!(
        (&open["mode"], &open["url"], &open["agent_key"]),
        (
            &json!("url"),
            &json!("https://example.com/pay?x=1"),
            &json!("pay")
        )
    );
    assert!(open["requested_schema"].is_null());
    let refused = answer(&stack, &open, accept(json!({})))
        .await
        .refused(400, "validation_error");
    assert_eq!(refused["details"]["field"], "content");
    let answered = answer(&stack, &open, json!({"action": "accept"}))
        .await
        .expect(200);
    assert_eq!(
        (
            &answered["status"],
            &answered["outcome"],
            &answered["completed_at"]
        ),
        (&json!("accepted"), &json!({"action": "accept"}), &json!(null))
    );
    assert_eq!(turn_ended(&stack, &id, &turn).await["text"], "open-url: accept\n");
    // In a later turn, once; what names nothing is a message.
    stack
        .turn(&id, "/url-done other\n/url-done pay\n/url-done pay")
        .await;
    let done = stack.get(&path_of(&open)).await.expect(200);
    assert_eq!(done["status"], "accepted");
    let events = of_kind(&stack, &id, "elicitation_completed").await;
    assert_eq!(events.len(), 1, "{events:#?}");
    assert_eq!(
        (
            &events[0]["data"]["id"],
            &events[0]["data"]["completed_at"],
            &events[0]["turn_id"]
        ),
        (&open["id"], &done["completed_at"], &json!(turn))
    );
    assert!(done["completed_at"].is_string());
    let messages = of_kind(&stack, &id, "message").await;
    let unknown: Vec<_> = messages
        .iter()
        .filter(|event| event["data"]["method"] == "elicitation/complete")
        .map(|event| event["data"]["params"]["elicitationId"].clone())
        .collect();
    assert_eq!(unknown, [json!("other"), json!("pay")]);
    // One that was not agreed to is not waited for.
    let turn = stack.prompt(&id, "/open-url no\n/url-done no").await;
    answer(&stack, &asked(&stack, &id).await, json!({"action": "decline"}))
        .await
        .expect(200);
    assert_eq!(
        turn_ended(&stack, &id, &turn).await["text"],
        "open-url: decline\n"
    );
    assert_eq!(of_kind(&stack, &id, "elicitation_completed").await.len(), 1);
    stack.settle().await;
}

#[tokio::test]
async fn of_callers_at_once_one_counts() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let turn = stack.prompt(&id, &"/form\n".repeat(5)).await;
    let mut expected = Vec::new();
    for _ in 0..5 {
        let open = asked(&stack, &id).await;
        let answers = [
            accept(json!({"name": "x"})),
            json!({"action": "decline"}),
            json!({"action": "cancel"}),
        ];
        let got = join_all(answers.iter().map(|body| answer(&stack, &open, body.clone()))).await;
        let won: Vec<_> = got.iter().filter(|a| a.status == 200).collect();
        assert_eq!(won.len(), 1, "{got:#?}");
        assert_eq!(got.iter().filter(|a| a.status == 409).count(), 2, "{got:#?}");
        expected.push(match won[0].body["outcome"]["action"].as_str().unwrap() {
            "accept" => "form: accept {\"name\":\"x\"}".to_owned(),
            action => format!("form: {action}"),
        });
    }
    let text = turn_ended(&stack, &id, &turn).await["text"].clone();
    assert_eq!(text.as_str().unwrap().lines().collect::<Vec<_>>(), expected);
    stack.settle().await;
}

#[tokio::test]
async fn answers_that_do_not_fit_are_refused_and_change_nothing() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let other = stack.launch(json!({})).await;
    let turn = stack.prompt(&id, "/form").await;
    let open = asked(&stack, &id).await;
    for (body, field) in [
        (json!({}), "action"),
        (json!({"action": "perhaps"}), "action"),
        (json!({"action": 7}), "action"),
        (json!({"action": "accept"}), "content.name"),
        (json!({"action": "accept", "content": []}), "content"),
        (json!({"action": "decline", "content": {"name": "x"}}), "content"),
        (accept(json!({"size": 1})), "content.name"),
        (accept(json!({"name": ""})), "content.name"),
        (accept(json!({"name": null})), "content.name"),
        (accept(json!({"name": "x", "size": 11})), "content.size"),
        (accept(json!({"name": "x", "size": 1.5})), "content.size"),
        (accept(json!({"name": "x", "colour": "blue"})), "content.colour"),
        (accept(json!({"name": "x", "sure": "yes"})), "content.sure"),
        (accept(json!({"name": "x", "parts": ["d"]})), "content.parts"),
        (accept(json!({"name": "x", "other": 1})), "content.other"),
        (accept(json!({"name": "x".repeat(300 << 10)})), "content"),
    ] {
        let refused = answer(&stack, &open, body.clone())
            .await
            .refused(400, "validation_error");
        assert_eq!(refused["details"]["field"], field, "{refused:#}");
    }
    let eid = open["id"].as_str().unwrap();
    let yes = accept(json!({"name": "x"}));
    for path in [
        format!("/agents/{id}/elicitations/{other}"),
        format!("/agents/{id}/elicitations/none"),
        format!("/agents/{other}/elicitations/{eid}"),
        format!("/agents/{eid}/elicitations/{eid}"),
    ] {
        stack.post(&path, &yes).await.refused(404, "not_found");
        stack.get(&path).await.refused(404, "not_found");
    }
    for path in [
        "/api/v1/elicitations?status=selected",
        "/api/v1/elicitations?cursor=x",
    ] {
        stack.get(path).await.refused(400, "validation_error");
    }
    assert_eq!(asked(&stack, &id).await, open);
    answer(&stack, &open, yes).await.expect(200);
    assert_eq!(
        turn_ended(&stack, &id, &turn).await["text"],
        "form: accept {\"name\":\"x\"}\n"
    );
    stack.settle().await;
}

#[tokio::test]
async fn many_are_listed_page_by_page_and_too_many_are_cancelled() {
    let stack = Stack::start().await;
    let a = stack.launch(json!({})).await;
    let b = stack.launch(json!({"task_id": "b"})).await;
    let turn = stack.prompt(&a, "/form times=70").await;
    stack.prompt(&b, "/form times=2").await;
    // All of them before the first answer, which makes room for another one.
    let of_all = format!("/agents/{a}/elicitations");
    stack.until(&of_all, |page| page["total"] == 70).await;
    let open = pending(&stack, &a, 64).await;
    pending(&stack, &b, 2).await;
    answer(&stack, &open[3], json!({"action": "decline"}))
        .await
        .expect(200);
    let pages = async |query: &str, size: usize| {
        let (mut ids, mut cursor) = (Vec::new(), String::new());
        loop {
            let path = format!("{query}&limit={size}&cursor={cursor}");
            let page = stack.get(&path).await.expect(200);
            let list = page["elicitations"].as_array().unwrap();
            assert!(list.len() <= size);
            ids.extend(list.iter().map(|e| e["id"].clone()));
            match page["next_cursor"].as_str() {
                Some(next) => next.clone_into(&mut cursor),
                None => return (ids, page["total"].clone()),
            }
        }
    };
    let mut newest: Vec<Value> = all(&stack, &a).await.iter().map(|e| e["id"].clone()).collect();
    newest.reverse();
    assert_eq!(
        pages(&format!("/agents/{a}/elicitations?"), 30).await,
        (newest, json!(70))
    );
    let (waiting, total) = pages("/api/v1/elicitations?status=pending", 20).await;
    assert_eq!((waiting.len(), total), (65, json!(65)));
    assert_eq!(
        pages("/api/v1/elicitations?status=declined", 50).await.0,
        [open[3]["id"].clone()]
    );
    assert_eq!(pages("/api/v1/elicitations?task_id=b", 50).await.1, json!(2));
    for open in pending(&stack, &a, 63).await {
        answer(&stack, &open, json!({"action": "cancel"}))
            .await
            .expect(200);
    }
    let text = turn_ended(&stack, &a, &turn).await["text"].clone();
    let lines: Vec<&str> = text.as_str().unwrap().lines().collect();
    assert_eq!((lines.len(), lines[3]), (70, "form: decline"));
    let over = all(&stack, &a).await.split_off(64);
    assert!(
        over.iter()
            .all(|e| e["decided_by"] == "limit" && e["status"] == "cancelled"),
        "{over:#?}"
    );
    stack.settle().await;
}

#[tokio::test]
async fn odd_ones_are_answered_too() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let ask = |params: Value| format!("/request elicitation/create {params}");
    for params in [
        json!({}),
        json!({"mode": "form", "message": "m"}),
        json!({"mode": "_own", "message": "m", "requestedSchema": {}}),
        json!({"mode": "url", "message": "m", "elicitationId": "e", "url": "javascript:alert(1)"}),
        json!({"mode": "url", "message": "m", "url": "https://example.com"}),
    ] {
        let turn = stack.turn(&id, &ask(params.clone())).await;
        let text = turn["text"].as_str().unwrap();
        assert!(text.starts_with("request: error -32602 "), "{params}: {text}");
    }
    assert_eq!(all(&stack, &id).await.len(), 0);
    // One that is too large for a row is whole in its event.
    let large = json!({"properties": {"x": {"type": "string", "title": "x".repeat(70 << 10)}}});
    let turn = stack
        .turn(
            &id,
            &ask(json!({"mode": "form", "message": "m", "requestedSchema": large})),
        )
        .await;
    assert_eq!(turn["text"], "request: result {\"action\":\"cancel\"}\n");
    let events = of_kind(&stack, &id, "elicitation_requested").await;
    assert_eq!(events[0]["data"]["requested_schema"], large);
    let kept = all(&stack, &id).await.remove(0);
    assert_eq!(
        (&kept["requested_schema"], &kept["decided_by"]),
        (&json!(null), &json!("limit"))
    );
    // Without a mode it is a form, of a schema that says little; and about no session.
    let turn = stack
        .prompt(
            &id,
            r#"/raw {"jsonrpc":"2.0","id":1e2,"method":"elicitation/create","params":{"requestId":1,"message":"m","toolCallId":"t","requestedSchema":{}}}"#,
        )
        .await;
    let ended = turn_ended(&stack, &id, &turn).await;
    assert_eq!(ended["stop_reason"], "end_turn");
    let left = all(&stack, &id).await.pop().unwrap();
    assert_eq!(
        (
            &left["tool_call_id"],
            &left["mode"],
            &left["status"],
            &left["decided_by"]
        ),
        (
            &json!("t"),
            &json!("form"),
            &json!("cancelled"),
            &json!("turn_end")
        )
    );
    stack.settle().await;
}

#[tokio::test]
async fn what_is_offered_is_what_is_handled() {
    let kind = |id: &str, more: &str| {
        format!(
            "id = '{id}'\nname = 'x'\nimage = 'kandev/mock-agent:latest'\nnetwork = 'none'\n{more}\n\
             [[mounts]]\nsource = '{{workspace}}'\ntarget = '/workspace'\n"
        )
    };
    let forms = kind("forms", "[client_capabilities.elicitation]\nurl = false");
    let none = kind("none", "[client_capabilities]\nelicitation = false");
    let kandev = kind("old", "protocol = 'kandev'\nenv = {MOCK_DIALECT = 'kandev'}");
    let stack = Stack::with_types(&[], &[("forms", &forms), ("none", &none), ("old", &kandev)]).await;
    let capabilities = async |id: &str| {
        let turn = stack.turn(id, "/client").await;
        let text = turn["text"].as_str().unwrap();
        let client: Value = serde_json::from_str(text.strip_prefix("client: ").unwrap()).unwrap();
        client["clientCapabilities"]["elicitation"].clone()
    };
    let id = stack.launch(json!({})).await;
    assert_eq!(capabilities(&id).await, json!({"form": {}, "url": {}}));
    let id = stack.launch(json!({"agent_type": "forms"})).await;
    assert_eq!(capabilities(&id).await, json!({"form": {}}));
    let turn = stack.turn(&id, "/open-url").await;
    let text = turn["text"].as_str().unwrap();
    assert!(text.starts_with("open-url: error -32602"), "{text}");
    for kind in ["none", "old"] {
        let id = stack.launch(json!({"agent_type": kind})).await;
        let turn = stack.turn(&id, "/form\n/open-url").await;
        assert_eq!(
            turn["text"],
            "form: error -32601 Method not found\nopen-url: error -32601 Method not found\n"
        );
    }
    stack.settle().await;
}

#[tokio::test]
async fn a_websocket_hears_and_answers_elicitations() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let mut socket = Socket::open(&stack, &format!("/agents/{id}/ws")).await;
    socket
        .send(&json!({"type": "prompt", "message": "/form\n/form\n/open-url"}))
        .await;
    // That the prompt was taken may be told before or after what comes of it.
    let (mut taken, mut requested) = (false, Value::Null);
    while !taken || requested.is_null() {
        match socket.next().await {
            Got::Json(message) if message["type"] == "accepted" => taken = true,
            Got::Json(message) if message["event"]["kind"] == "elicitation_requested" => {
                requested = message["event"]["data"]["id"].clone();
            }
            Got::Json(message) => assert_eq!(message["type"], "event", "{message:#}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(requested, asked(&stack, &id).await["id"]);
    for answer in [
        accept(json!({"name": "x"})),
        json!({"action": "decline"}),
        json!({"action": "accept"}),
    ] {
        let eid = asked(&stack, &id).await["id"].clone();
        let mut command = json!({"type": "elicitation", "elicitation_id": eid, "ref": [1]});
        let wrong = socket.answer(&command).await;
        assert_eq!(
            (&wrong["error"], &wrong["details"]["field"], &wrong["ref"]),
            (&json!("validation_error"), &json!("action"), &json!([1])),
            "{wrong:#}"
        );
        for (key, value) in answer.as_object().unwrap() {
            command[key] = value.clone();
        }
        let accepted = socket.answer(&command).await;
        assert_eq!(
            (
                &accepted["type"],
                &accepted["ref"],
                &accepted["elicitation"]["outcome"]
            ),
            (&json!("accepted"), &json!([1]), &answer),
            "{accepted:#}"
        );
        let late = socket.answer(&command).await;
        assert_eq!(
            (&late["error"], &late["http_status"]),
            (&json!("conflict"), &json!(409)),
            "{late:#}"
        );
    }
    let missing = json!({"type": "elicitation", "elicitation_id": "none", "action": "cancel"});
    assert_eq!(socket.answer(&missing).await["error"], "not_found");
    let turns = stack
        .until(&format!("/agents/{id}/turns"), |t| {
            t["turns"][0]["finished_at"].is_string()
        })
        .await;
    assert_eq!(
        turns["turns"][0]["text"],
        "form: accept {\"name\":\"x\"}\nform: decline\nopen-url: accept\n"
    );
    stack.settle().await;
}
