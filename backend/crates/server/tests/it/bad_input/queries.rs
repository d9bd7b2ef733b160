//! Pages, filters and times that cannot be.

use serde_json::json;

use super::names;
use crate::support::Stack;

#[tokio::test]
async fn of_every_list() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({"prompt": "/say x", "wait": "turn"})).await;
    let session = stack.instance(&id).await["session_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let lists = [
        "/agents".to_owned(),
        "/tasks".to_owned(),
        "/sessions".to_owned(),
        "/uploads".to_owned(),
        format!("/agents/{id}/turns"),
        format!("/agents/{id}/events"),
        format!("/agents/{id}/logs"),
        format!("/sessions/{session}/events"),
    ];
    let refused = async |query: &str, field: &str| {
        names(stack.get(query).await, field, &json!(query));
    };
    for list in &lists {
        for cursor in [
            "x",
            "1",
            "zz.y",
            ".",
            "1.",
            "-1",
            "0.%00",
            "7fffffffffffffff.x",
            "-7000000000000000.x",
        ] {
            let plain_number = list.ends_with("/events") || list.ends_with("/logs");
            if plain_number && cursor == "1" {
                continue;
            }
            let query = format!("{list}?cursor={cursor}");
            let answer = stack.get(&query).await;
            // A number that is before everything, or a time at which nothing was.
            assert!(
                [200, 400].contains(&answer.status.as_u16()),
                "{query}: {} {:#}",
                answer.status,
                answer.body
            );
            if answer.status == 400 {
                names(answer, "cursor", &json!(query));
            } else {
                assert!(
                    cursor.contains("000.x") || cursor == "-1",
                    "{query}: {:#}",
                    answer.body
                );
            }
        }
        let name = if list.ends_with("/logs") { "tail" } else { "limit" };
        for limit in ["-1", "x", "1.5", "99999999999999999999", "100001", ""] {
            refused(&format!("{list}?{name}={limit}"), name).await;
        }
    }
    for list in lists.iter().filter(|l| !l.ends_with("/logs")) {
        refused(&format!("{list}?limit=0"), "limit").await;
    }
    refused("/agents?status=runing", "status").await;
    refused("/agents?status=running,asleep", "status").await;
    refused(&format!("/agents/{id}/events?kind=thought"), "kind").await;
    refused(&format!("/agents/{id}/events?after=-1"), "after").await;
    refused(&format!("/agents/{id}/events?after=x"), "after").await;
    refused(&format!("/sessions/{session}/events?after=1"), "after").await;
    refused(&format!("/agents/{id}/logs?stream=stdin"), "stream").await;
    refused(&format!("/agents/{id}/logs?level=loud"), "level").await;
    refused(&format!("/agents/{id}/logs?after=x"), "after").await;
    refused(&format!("/agents/{id}/logs?follow=perhaps"), "follow").await;
    for time in [
        "yesterday",
        "2026-01-01",
        "2026-13-01T00:00:00Z",
        "1767225600",
        "2026-01-01T00:00:00",
    ] {
        refused(&format!("/agents/{id}/logs?since={time}"), "since").await;
        refused(&format!("/agents/{id}/logs?until={time}"), "until").await;
    }
    // Words that match nothing, whatever they are made of.
    for word in ["%00", "%25", "_", "'", "%F0%9F%A6%80", "no-such"] {
        for query in [
            "agents?agent_type",
            "agents?task_id",
            "tasks?state",
            "sessions?task_id",
            "sessions?agent_type",
        ] {
            let page = stack.get(&format!("/{query}={word}")).await.expect(200);
            assert_eq!(page["total"], 0, "{query}={word}: {page:#}");
        }
        let page = stack
            .get(&format!("/agents/{id}/logs?q={word}"))
            .await
            .expect(200);
        assert!(word == "_" || page["total"] == 0, "{word}: {page:#}");
    }
    stack.settle().await;
}

#[tokio::test]
async fn say_in_plain_words_what_is_wanted_and_repeat_nothing() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    for (query, said) in [
        (
            "/agents?status=canary",
            "status: must be 'starting', 'running', 'completed', 'failed' or 'stopped'",
        ),
        (
            "/permissions?status=pending,canary",
            "status: must be 'pending', 'selected', 'cancelled' or 'expired'",
        ),
        ("/agents?limit=canary", "limit: must be a whole number, in digits"),
        ("/agents?limit=", "limit: must be a whole number, in digits"),
        ("/agents/ID/logs?limit=10001", "limit: must be at most 10000"),
        ("/agents/ID/logs?tail=10001", "tail: must be at most 10000"),
        (
            "/agents/ID/logs?tail=10001&limit=5",
            "tail: must be at most 10000",
        ),
        (
            "/agents/ID/logs?level=canary",
            "level: must be 'debug', 'info', 'warn' or 'error'",
        ),
        ("/agents/ID/logs?follow=canary", "follow: must be true or false"),
        (
            "/agents/ID/logs?since=canary",
            "since: must be a time as in RFC 3339, such as 2026-01-31T12:00:00Z",
        ),
    ] {
        let path = query.replace("ID", &id);
        let body = names(
            stack.get(&path).await,
            said.split(':').next().unwrap(),
            &json!(query),
        );
        assert_eq!(body["message"], said, "{query}");
    }
    let kinds = stack.get(&format!("/agents/{id}/events?kind=canary")).await;
    let kinds = names(kinds, "kind", &json!("canary"));
    let said = kinds["message"].as_str().unwrap();
    assert!(
        said.contains("'turn_ended'") && !said.contains("canary"),
        "{said}"
    );
    stack.settle().await;
}

#[tokio::test]
async fn a_cursor_is_good_for_its_own_list_only() {
    let stack = Stack::start().await;
    let mut lists = vec![
        "/agents".to_owned(),
        "/tasks".to_owned(),
        "/sessions".to_owned(),
        "/uploads".to_owned(),
    ];
    for _ in 0..2 {
        let id = stack.launch(json!({"prompt": "/say x", "wait": "turn"})).await;
        stack.turn(&id, "/say y").await;
        let session = stack.instance(&id).await["session_id"]
            .as_str()
            .unwrap()
            .to_owned();
        lists.push(format!("/agents/{id}/turns"));
        lists.push(format!("/sessions/{session}/events"));
        let upload = reqwest::Client::new()
            .post(stack.url("/uploads?name=x"))
            .header("content-type", "text/plain")
            .body("x");
        assert_eq!(upload.send().await.unwrap().status(), 201);
    }
    let mut cursors = Vec::new();
    for list in &lists {
        let page = stack.get(&format!("{list}?limit=1")).await.expect(200);
        let cursor = page["next_cursor"]
            .as_str()
            .unwrap_or_else(|| panic!("{list}: {page:#}"));
        let next = stack
            .get(&format!("{list}?limit=1&cursor={cursor}"))
            .await
            .expect(200);
        assert_ne!(next, page, "{list}");
        cursors.push((list, cursor.to_owned()));
    }
    for list in &lists {
        for (from, cursor) in cursors.iter().filter(|(from, _)| *from != list) {
            let case = json!(format!("{list} with the cursor of {from}"));
            names(
                stack.get(&format!("{list}?cursor={cursor}")).await,
                "cursor",
                &case,
            );
        }
    }
    stack.settle().await;
}
