//! Requests that a caller answers: how they are seen, and what answers them.

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{all, answer, asked, launch, path_of, pending, turn_ended, turn_state};
use crate::protocol::of_kind;
use crate::support::{Socket, Stack};

#[tokio::test]
async fn a_request_is_seen_everywhere_and_answered_once() {
    let stack = Stack::start().await;
    let id = launch(&stack, json!({})).await;
    let mut reader = stack.follow(&format!("/agents/{id}/events"), None).await;
    let turn = stack.prompt(&id, "/id \"a-1\"\n/permission").await;
    let seen = reader.until(|f| f.event == "permission_requested").await;
    let event = &seen.last().unwrap().data;
    let permission = asked(&stack, &id).await;
    assert_eq!(event["turn_id"], json!(turn));
    for key in [
        "id",
        "tool_call",
        "options",
        "status",
        "session_id",
        "turn_id",
        "requested_at",
        "tool_kind",
    ] {
        assert_eq!(event["data"][key], permission[key], "{key}");
    }
    assert_eq!(event["data"]["request_id"], "a-1");
    assert_eq!(permission["session_id"], stack.instance(&id).await["session_id"]);
    assert_eq!(
        (
            &permission["instance_id"],
            &permission["turn_id"],
            &permission["status"]
        ),
        (&json!(id), &json!(turn), &json!("pending"))
    );
    assert_eq!(permission["tool_call"]["rawInput"]["command"], "rm -rf build");
    assert_eq!(
        permission["options"][0],
        json!({"optionId": "allow-once", "name": "allow once", "kind": "allow_once"})
    );
    for key in ["answered_at", "outcome", "decided_by", "expires_at"] {
        assert!(permission[key].is_null(), "{permission:#}");
    }
    assert_eq!(turn_state(&stack, &id).await, "awaiting_permission");
    let snapshot = stack
        .get(&format!("/agents/{id}/events?snapshot=true"))
        .await
        .expect(200);
    assert_eq!(
        (&snapshot["permissions"], &snapshot["turn_state"]),
        (&json!([permission]), &json!("awaiting_permission"))
    );
    let everywhere = stack.get("/api/v1/permissions?status=pending").await.expect(200);
    assert_eq!(everywhere["permissions"], json!([permission]));
    assert_eq!(stack.get(&path_of(&permission)).await.expect(200), permission);

    let answered = answer(&stack, &permission, json!({"option_id": "reject-once"}))
        .await
        .expect(200);
    assert_eq!(
        (&answered["status"], &answered["outcome"], &answered["decided_by"]),
        (
            &json!("selected"),
            &json!({"outcome": "selected", "optionId": "reject-once"}),
            &json!("caller")
        )
    );
    assert!(answered["answered_at"].is_string());
    assert_eq!(stack.get(&path_of(&permission)).await.expect(200), answered);
    let seen = reader.until(|f| f.event == "permission_resolved").await;
    let event = &seen.last().unwrap().data;
    for key in ["id", "status", "outcome", "decided_by", "answered_at"] {
        assert_eq!(event["data"][key], answered[key], "{key}");
    }
    assert_eq!(
        (&event["data"]["option_kind"], &event["data"]["request_id"]),
        (&json!("reject_once"), &json!("a-1"))
    );
    assert_eq!(
        turn_ended(&stack, &id, &turn).await["text"],
        "permission: selected reject-once\n"
    );
    for late in [
        json!({"option_id": "reject-once"}),
        json!({"outcome": "cancelled"}),
    ] {
        let body = answer(&stack, &permission, late).await.refused(409, "conflict");
        assert_eq!(body["details"]["status"], "selected");
    }
    assert_eq!(of_kind(&stack, &id, "permission_resolved").await.len(), 1);
    assert_eq!(
        stack
            .get(&format!("/agents/{id}/events?snapshot=true"))
            .await
            .expect(200)["permissions"],
        json!([])
    );
    stack.settle().await;
    answer(&stack, &permission, json!({"kind": "allow_once"}))
        .await
        .refused(409, "conflict");
}

#[tokio::test]
async fn of_answers_at_once_one_counts() {
    let stack = Stack::start().await;
    let id = launch(&stack, json!({})).await;
    let turn = stack.prompt(&id, &"/permission keep\n".repeat(5)).await;
    let mut expected = Vec::new();
    for _ in 0..5 {
        let permission = asked(&stack, &id).await;
        let answers = [
            json!({"kind": "allow_once"}),
            json!({"kind": "reject_once"}),
            json!({"outcome": "cancelled"}),
        ];
        let got = join_all(
            answers
                .iter()
                .map(|body| answer(&stack, &permission, body.clone())),
        )
        .await;
        let won: Vec<_> = got.iter().filter(|a| a.status == 200).collect();
        assert_eq!(won.len(), 1, "{got:#?}");
        assert_eq!(got.iter().filter(|a| a.status == 409).count(), 2, "{got:#?}");
        expected.push(match won[0].body["outcome"]["optionId"].as_str() {
            Some(option) => format!("permission: selected {option}"),
            None => "permission: cancelled".to_owned(),
        });
    }
    let text = turn_ended(&stack, &id, &turn).await["text"].clone();
    assert_eq!(text.as_str().unwrap().lines().collect::<Vec<_>>(), expected);
    stack.settle().await;
}

#[tokio::test]
async fn answers_that_cannot_be_are_refused_and_change_nothing() {
    let stack = Stack::start().await;
    let id = launch(&stack, json!({})).await;
    let other = launch(&stack, json!({})).await;
    let turn = stack.prompt(&id, "/permission allow_once,else").await;
    let permission = asked(&stack, &id).await;
    for (body, field) in [
        (json!({}), "option_id"),
        (json!({"option_id": "none"}), "option_id"),
        (json!({"option_id": ""}), "option_id"),
        (json!({"option_id": "a\u{0}"}), "option_id"),
        (json!({"option_id": 7}), "option_id"),
        (json!({"kind": "reject_once"}), "kind"),
        (json!({"kind": "allow"}), "kind"),
        (json!({"option_id": "allow-once", "kind": "allow_once"}), "kind"),
        (json!({"outcome": "selected"}), "option_id"),
        (json!({"outcome": "perhaps"}), "outcome"),
        (json!({"outcome": "cancelled", "kind": "allow_once"}), "outcome"),
    ] {
        let refused = answer(&stack, &permission, body.clone())
            .await
            .refused(400, "validation_error");
        assert_eq!(refused["details"]["field"], field, "{body}: {refused:#}");
    }
    let pid = permission["id"].as_str().unwrap();
    let yes = json!({"kind": "allow_once"});
    for path in [
        format!("/agents/{id}/permissions/{other}"),
        format!("/agents/{id}/permissions/none"),
        format!("/agents/{other}/permissions/{pid}"),
        format!("/agents/{pid}/permissions/{pid}"),
    ] {
        stack.post(&path, &yes).await.refused(404, "not_found");
        stack.get(&path).await.refused(404, "not_found");
    }
    stack
        .get("/agents/none/permissions")
        .await
        .refused(404, "not_found");
    stack
        .get("/api/v1/permissions?status=lost")
        .await
        .refused(400, "validation_error");
    stack
        .get("/api/v1/permissions?cursor=x")
        .await
        .refused(400, "validation_error");
    assert_eq!(asked(&stack, &id).await, permission);
    // A kind that ACP does not know is chosen by its name.
    answer(&stack, &permission, json!({"kind": "else"}))
        .await
        .expect(200);
    assert_eq!(
        turn_ended(&stack, &id, &turn).await["text"],
        "permission: selected else\n"
    );
    stack.settle().await;
}

#[tokio::test]
async fn many_are_listed_page_by_page() {
    let stack = Stack::start().await;
    let (a, b) = (
        launch(&stack, json!({})).await,
        launch(&stack, json!({"task_id": "b"})).await,
    );
    let turn = stack.prompt(&a, "/permission keep times=7").await;
    stack.prompt(&b, "/permission keep times=2").await;
    let open = pending(&stack, &a, 7).await;
    pending(&stack, &b, 2).await;
    answer(&stack, &open[0], json!({"kind": "allow_once"}))
        .await
        .expect(200);
    answer(&stack, &open[3], json!({"outcome": "cancelled"}))
        .await
        .expect(200);
    let pages = async |query: &str, size: usize| {
        let (mut ids, mut cursor) = (Vec::new(), String::new());
        loop {
            let path = format!("{query}&limit={size}&cursor={cursor}");
            let page = stack.get(&path).await.expect(200);
            let list = page["permissions"].as_array().unwrap();
            assert!(list.len() <= size);
            ids.extend(list.iter().map(|p| p["id"].clone()));
            match page["next_cursor"].as_str() {
                Some(next) => next.clone_into(&mut cursor),
                None => return (ids, page["total"].clone()),
            }
        }
    };
    let mut newest: Vec<Value> = open.iter().map(|p| p["id"].clone()).collect();
    newest.reverse();
    assert_eq!(
        pages(&format!("/agents/{a}/permissions?"), 3).await,
        (newest.clone(), json!(7))
    );
    let (waiting, total) = pages("/api/v1/permissions?status=pending", 2).await;
    assert_eq!((waiting.len(), total), (7, json!(7)));
    let (ended, _) = pages("/api/v1/permissions?status=selected,cancelled", 50).await;
    assert_eq!(ended, [open[3]["id"].clone(), open[0]["id"].clone()]);
    assert_eq!(pages("/api/v1/permissions?task_id=b", 50).await.1, json!(2));
    for permission in pending(&stack, &a, 5).await {
        answer(&stack, &permission, json!({"kind": "allow_once"}))
            .await
            .expect(200);
    }
    let text = turn_ended(&stack, &a, &turn).await["text"].clone();
    let lines: Vec<&str> = text.as_str().unwrap().lines().collect();
    assert_eq!(
        lines
            .iter()
            .filter(|l| **l == "permission: selected allow-once")
            .count(),
        6
    );
    assert_eq!(lines[3], "permission: cancelled");
    stack.settle().await;
}

#[tokio::test]
async fn too_many_at_once_are_cancelled() {
    let stack = Stack::start().await;
    let id = launch(&stack, json!({})).await;
    let turn = stack.prompt(&id, "/permission unannounced keep times=70").await;
    for permission in pending(&stack, &id, 64).await {
        answer(&stack, &permission, json!({"kind": "allow_once"}))
            .await
            .expect(200);
    }
    let text = turn_ended(&stack, &id, &turn).await["text"].clone();
    let expected = "permission: selected allow-once\n".repeat(64) + &"permission: cancelled\n".repeat(6);
    assert_eq!(text, expected);
    let over = all(&stack, &id).await.split_off(64);
    assert!(
        over.iter()
            .all(|p| p["decided_by"] == "limit" && p["status"] == "cancelled"),
        "{over:#?}"
    );
    stack.settle().await;
}

#[tokio::test]
async fn odd_requests_are_answered_too() {
    let stack = Stack::start().await;
    // Answers to what is not of the schema need not be.
    let id = launch(&stack, json!({"env": {"MOCK_STRICT": "0"}})).await;
    let ask = |call: &str, options: &str| {
        format!(r#"/request session/request_permission {{"toolCall":{call},"options":{options}}}"#)
    };
    let options = r#"[{"optionId":"y","name":"Y","kind":"allow_once"}]"#;
    let many: Vec<_> = (0..70)
        .map(|n| json!({"optionId": n.to_string(), "name": "x", "kind": "allow_once"}))
        .collect();
    // Nobody could answer these.
    for options in [
        "[]",
        "{}",
        "null",
        r#"[{"name":"no id"}]"#,
        &json!(many).to_string(),
    ] {
        let turn = stack.turn(&id, &ask("{}", options)).await;
        assert_eq!(
            turn["text"], "request: result {\"outcome\":{\"outcome\":\"cancelled\"}}\n",
            "{options}"
        );
    }
    // A call without a name, one that is far too large for a row, and an id that is none of ACP's.
    let large = json!({"toolCallId": "big", "title": "Big", "rawInput": "x".repeat(600 << 10)});
    for (call, options, kept, chosen) in [
        ("null", options, json!(null), json!("y")),
        (
            &*large.to_string(),
            options,
            json!({"toolCallId": "big", "title": "Big", "kind": null, "_meta": {"kandev.truncated": true}}),
            json!("y"),
        ),
        (
            r#"{"toolCallId":"n"}"#,
            r#"[{"optionId":7,"kind":"allow_once"}]"#,
            json!({"toolCallId": "n"}),
            json!(7),
        ),
    ] {
        let turn = stack.prompt(&id, &ask(call, options)).await;
        let permission = asked(&stack, &id).await;
        assert_eq!(permission["tool_call"], kept);
        let answered = answer(&stack, &permission, json!({"kind": "allow_once"}))
            .await
            .expect(200);
        assert_eq!(answered["outcome"]["optionId"], chosen);
        let text = turn_ended(&stack, &id, &turn).await["text"].clone();
        assert!(
            text.as_str()
                .unwrap()
                .contains(&format!(r#""optionId":{chosen}"#)),
            "{text}"
        );
    }
    let event = of_kind(&stack, &id, "permission_requested").await;
    assert_eq!(event[6]["data"]["tool_call"], large, "the event has it whole");

    // The same id again while it is open is the same question.
    let raw = format!(
        r#"/raw {{"jsonrpc":"2.0","id":"twice","method":"session/request_permission","params":{{"sessionId":"{{session}}","toolCall":{{"toolCallId":"t"}},"options":{options}}}}}"#
    );
    let before = all(&stack, &id).await.len();
    let turn = stack.prompt(&id, &format!("{raw}\n{raw}\n/sleep 60000")).await;
    let permission = asked(&stack, &id).await;
    let warned = format!("/agents/{id}/logs?q=asks%20again");
    stack.until(&warned, |page| page["total"] == 1).await;
    answer(&stack, &permission, json!({"option_id": "y"}))
        .await
        .expect(200);
    assert_eq!(all(&stack, &id).await.len(), before + 1);
    stack.cancel(&id).await;
    turn_ended(&stack, &id, &turn).await;
    stack.settle().await;
}

#[tokio::test]
async fn a_websocket_hears_and_answers() {
    let stack = Stack::start().await;
    let id = launch(&stack, json!({})).await;
    let mut socket = Socket::open(&stack, &format!("/agents/{id}/ws")).await;
    socket
        .send(&json!({"type": "prompt", "message": "/permission keep\n/permission keep\n/permission keep"}))
        .await;
    let requested = |event: &Value| event["kind"] == "permission_requested";
    let events = socket.events(requested).await;
    assert_eq!(
        events.last().unwrap()["data"]["id"],
        asked(&stack, &id).await["id"]
    );
    for (answer, outcome) in [
        (
            json!({"option_id": "reject-once"}),
            json!({"outcome": "selected", "optionId": "reject-once"}),
        ),
        (
            json!({"kind": "allow_once"}),
            json!({"outcome": "selected", "optionId": "allow-once"}),
        ),
        (json!({"outcome": "cancelled"}), json!({"outcome": "cancelled"})),
    ] {
        let pid = asked(&stack, &id).await["id"].clone();
        let mut command = json!({"type": "permission", "permission_id": pid, "ref": [1]});
        let wrong = socket
            .answer(&json!({"type": "permission", "permission_id": pid, "option_id": "x", "ref": 3}))
            .await;
        assert_eq!(
            (
                &wrong["type"],
                &wrong["error"],
                &wrong["details"]["field"],
                &wrong["ref"]
            ),
            (
                &json!("error"),
                &json!("validation_error"),
                &json!("option_id"),
                &json!(3)
            ),
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
                &accepted["permission"]["outcome"]
            ),
            (&json!("accepted"), &json!([1]), &outcome),
            "{accepted:#}"
        );
        let late = socket.answer(&command).await;
        assert_eq!(
            (&late["error"], &late["http_status"]),
            (&json!("conflict"), &json!(409)),
            "{late:#}"
        );
    }
    for (command, code) in [
        (
            json!({"type": "permission", "permission_id": id, "kind": "allow_once"}),
            "not_found",
        ),
        (
            json!({"type": "permission", "permission_id": "none", "kind": "allow_once"}),
            "not_found",
        ),
        (
            json!({"type": "permission", "kind": "allow_once"}),
            "validation_error",
        ),
        (
            json!({"type": "permission", "permission_id": id}),
            "validation_error",
        ),
    ] {
        let refused = socket.answer(&command).await;
        assert_eq!(refused["error"], code, "{command}: {refused:#}");
    }
    let turns = stack
        .until(&format!("/agents/{id}/turns"), |t| {
            t["turns"][0]["finished_at"].is_string()
        })
        .await;
    assert_eq!(
        turns["turns"][0]["text"],
        "permission: selected reject-once\npermission: selected allow-once\npermission: cancelled\n"
    );
    stack.settle().await;
}
