//! Requests that the agent takes back (`$/cancel_request`).

use serde_json::json;

use super::{all, answer, asked, launch, turn_ended, turn_state};
use crate::protocol::of_kind;
use crate::recovery::assert_whole;
use crate::support::Stack;

/// Asks under this id, and goes on.
fn ask(id: &str) -> String {
    format!(
        "/id {id}\n/later session/request_permission {}",
        json!({"toolCall": {"toolCallId": "t"}, "options": [{"optionId": "y", "name": "Y", "kind": "allow_once"}]})
    )
}

fn go(stack: &Stack, name: &str) {
    std::fs::write(stack.workspace().join(name), "").unwrap();
}

#[tokio::test]
async fn what_the_agent_takes_back_is_closed_and_nobody_can_answer_it() {
    let stack = Stack::start().await;
    let id = launch(&stack, json!({})).await;
    // Another text of the same id names the same request, a number no text.
    let script = format!(
        "{}\n/await go\n/cancel-request 7\n/cancel-request \"\\u0061-1\"\n/answers\n/cancel-request \"a-1\"\n/say on it goes",
        ask("\"a-1\"")
    );
    let turn = stack.prompt(&id, &script).await;
    let permission = asked(&stack, &id).await;
    go(&stack, "go");
    let ended = turn_ended(&stack, &id, &turn).await;
    assert_eq!(
        ended["text"],
        "answer: error -32800 Request cancelled\non it goes"
    );
    assert_eq!(ended["stop_reason"], "end_turn");
    let closed = all(&stack, &id).await.remove(0);
    assert_eq!(
        (&closed["status"], &closed["decided_by"], &closed["outcome"]),
        (
            &json!("cancelled"),
            &json!("agent"),
            &json!({"outcome": "cancelled"})
        )
    );
    let events = of_kind(&stack, &id, "permission_resolved").await;
    assert_eq!(events.len(), 1);
    assert_eq!(
        (&events[0]["data"]["id"], &events[0]["data"]["decided_by"]),
        (&permission["id"], &json!("agent"))
    );
    answer(&stack, &permission, json!({"kind": "allow_once"}))
        .await
        .refused(409, "conflict");
    // What names nothing that is open is on record, and no more.
    let notices: Vec<_> = of_kind(&stack, &id, "message").await;
    let named: Vec<_> = notices
        .iter()
        .filter(|event| event["data"]["method"] == "$/cancel_request")
        .map(|event| event["data"]["params"]["requestId"].clone())
        .collect();
    assert_eq!(named, [json!(7), json!("a-1"), json!("a-1")]);
    stack.settle().await;
}

/// Whatever the order of its fields.
fn is_selected(line: &str) -> bool {
    let answer = line.strip_prefix("answer: ").unwrap_or_default();
    serde_json::from_str::<serde_json::Value>(answer)
        .is_ok_and(|answer| answer == json!({"outcome": {"outcome": "selected", "optionId": "y"}}))
}

#[tokio::test]
async fn a_turn_goes_on_waiting_for_what_was_not_taken_back() {
    let stack = Stack::start().await;
    let id = launch(&stack, json!({})).await;
    let script = format!(
        "{}\n{}\n/await go\n/cancel-request \"b\"\n/answers",
        ask("\"a\""),
        ask("\"b\"")
    );
    let turn = stack.prompt(&id, &script).await;
    let open = super::pending(&stack, &id, 2).await;
    go(&stack, "go");
    let left = asked(&stack, &id).await;
    assert_eq!(left["id"], open[0]["id"]);
    assert_eq!(turn_state(&stack, &id).await, "awaiting_permission");
    answer(&stack, &left, json!({"option_id": "y"})).await.expect(200);
    let text = turn_ended(&stack, &id, &turn).await["text"].clone();
    let lines: Vec<_> = text.as_str().unwrap().lines().collect();
    assert!(is_selected(lines[0]), "{lines:?}");
    assert_eq!(lines[1..], ["answer: error -32800 Request cancelled"]);
    stack.settle().await;
}

#[tokio::test]
async fn of_a_caller_and_the_agent_one_is_first() {
    let stack = Stack::start().await;
    let id = launch(&stack, json!({})).await;
    for round in 0..6 {
        let script = format!("{}\n/await go{round}\n/cancel-request\n/answers", ask("\"a\""));
        let turn = stack.prompt(&id, &script).await;
        let permission = asked(&stack, &id).await;
        let answered = async {
            tokio::task::yield_now().await;
            answer(&stack, &permission, json!({"option_id": "y"})).await
        };
        go(&stack, &format!("go{round}"));
        let answered = answered.await;
        let text = turn_ended(&stack, &id, &turn).await["text"].clone();
        let closed = all(&stack, &id).await.pop().unwrap();
        match answered.status.as_u16() {
            200 => {
                assert_eq!(closed["decided_by"], "caller");
                assert!(is_selected(text.as_str().unwrap().trim_end()), "{text}");
            }
            409 => {
                assert_eq!(closed["decided_by"], "agent");
                assert_eq!(text, "answer: error -32800 Request cancelled\n");
            }
            other => panic!("{other}: {:#}", answered.body),
        }
    }
    stack.settle().await;
}

#[tokio::test]
async fn what_is_taken_back_while_the_server_is_away_is_closed_by_the_next() {
    let mut stack = Stack::start().await;
    let id = crate::recovery::launch_with(&stack, super::asking(json!({}))).await;
    let script = format!(
        "{}\n/await go\n/cancel-request\n/write done x\n/answers",
        ask("\"a\"")
    );
    let turn = stack.prompt(&id, &script).await;
    let permission = asked(&stack, &id).await;
    stack.kill().await;
    go(&stack, "go");
    stack.until_there("done").await;
    stack.boot().await;
    let ended = turn_ended(&stack, &id, &turn).await;
    let text = ended["text"].as_str().unwrap();
    assert!(
        text.ends_with("answer: error -32800 Request cancelled\n"),
        "{text}"
    );
    let closed = all(&stack, &id).await;
    assert_eq!(
        (closed.len(), &closed[0]["id"], &closed[0]["decided_by"]),
        (1, &permission["id"], &json!("agent"))
    );
    assert_whole(&stack, &id).await;
    stack.settle().await;
}
