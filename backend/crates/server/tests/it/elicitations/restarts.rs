//! What a server that is killed leaves: forms and URLs stay open, and answers that were given reach the agent.

use serde_json::{Value, json};

use super::{accept, all, answer, asked, path_of, turn_ended, turn_state};
use crate::protocol::of_kind;
use crate::recovery::{assert_whole, launch_with};
use crate::support::Stack;

#[tokio::test]
async fn a_form_outlives_the_server_and_the_agent_goes_on() {
    let mut stack = Stack::start().await;
    let id = launch_with(&stack, json!({})).await;
    let script = "/say before\\n\n/id \"\\u00e9-1\"\n/form\n/say after";
    let turn = stack.prompt(&id, script).await;
    let before = asked(&stack, &id).await;
    for _ in 0..2 {
        stack.kill().await;
        stack.boot().await;
        assert_eq!(asked(&stack, &id).await, before);
        assert_eq!(turn_state(&stack, &id).await, "awaiting_input");
    }
    // At once, whether or not the instance has been taken up yet.
    answer(&stack, &before, accept(json!({"name": ""})))
        .await
        .refused(400, "validation_error");
    let answered = answer(&stack, &before, accept(json!({"name": "x"})))
        .await
        .expect(200);
    assert_eq!(
        (&answered["status"], &answered["id"]),
        (&json!("accepted"), &before["id"])
    );
    let ended = turn_ended(&stack, &id, &turn).await;
    assert_eq!(ended["text"], "before\nform: accept {\"name\":\"x\"}\nafter");
    for kind in ["elicitation_requested", "elicitation_resolved"] {
        assert_eq!(of_kind(&stack, &id, kind).await.len(), 1, "{kind}");
    }
    answer(&stack, &before, json!({"action": "cancel"}))
        .await
        .refused(409, "conflict");
    assert_whole(&stack, &id).await;
    stack.settle().await;
}

#[tokio::test]
async fn answers_to_forms_are_not_lost_however_soon_the_server_dies() {
    let mut stack = Stack::start().await;
    let id = launch_with(&stack, json!({})).await;
    let turn = stack.prompt(&id, &"/form\n".repeat(5)).await;
    for n in 0..5 {
        let open = asked(&stack, &id).await;
        answer(&stack, &open, accept(json!({"name": n.to_string()})))
            .await
            .expect(200);
        // With the frame on its way, or not yet.
        stack.kill().await;
        stack.boot().await;
    }
    let ended = turn_ended(&stack, &id, &turn).await;
    let said = (0..5)
        .map(|n| format!("form: accept {{\"name\":\"{n}\"}}\n"))
        .collect::<Vec<_>>()
        .concat();
    assert_eq!(ended["text"], said);
    assert!(all(&stack, &id).await.iter().all(|e| e["decided_by"] == "caller"));
    assert_whole(&stack, &id).await;
    stack.settle().await;
}

#[tokio::test]
async fn a_url_that_is_done_while_the_server_is_away_is_done() {
    let mut stack = Stack::start().await;
    let id = launch_with(&stack, json!({"elicitation_timeout_seconds": 5})).await;
    let turn = stack
        .prompt(
            &id,
            "/open-url one\n/await go\n/url-done one\n/write done x\n/open-url two",
        )
        .await;
    let one = asked(&stack, &id).await;
    answer(&stack, &one, json!({"action": "accept"}))
        .await
        .expect(200);
    let path = format!("/agents/{id}/turns/{turn}");
    let heard = |t: &Value| t["text"] == "open-url: accept\n";
    stack.until(&path, heard).await;
    stack.kill().await;
    std::fs::write(stack.workspace().join("go"), "").unwrap();
    stack.until_there("done").await;
    stack.boot().await;
    let done = stack
        .until(&path_of(&one), |e| e["completed_at"].is_string())
        .await;
    assert_eq!(done["status"], "accepted");
    // The time of the next one counts from when it was read.
    let ended = turn_ended(&stack, &id, &turn).await;
    let text = ended["text"].as_str().unwrap();
    assert!(text.ends_with("open-url: cancel\n"), "{text}");
    let two = all(&stack, &id).await.pop().unwrap();
    assert_eq!(two["status"], "expired");
    assert_eq!(of_kind(&stack, &id, "elicitation_completed").await.len(), 1);
    assert_whole(&stack, &id).await;
    stack.settle().await;
}

#[tokio::test]
async fn the_time_for_an_answer_is_over_also_when_the_server_that_gave_it_is_gone() {
    let mut stack = Stack::start().await;
    let id = launch_with(&stack, json!({"elicitation_timeout_seconds": 5})).await;
    let turn = stack.prompt(&id, "/form").await;
    let before = asked(&stack, &id).await;
    stack.kill().await;
    stack.boot().await;
    assert_eq!(turn_ended(&stack, &id, &turn).await["text"], "form: cancel\n");
    let expired = all(&stack, &id).await.remove(0);
    assert_eq!(
        (&expired["id"], &expired["status"], &expired["decided_by"]),
        (&before["id"], &json!("expired"), &json!("timeout"))
    );
    assert_eq!(expired["expires_at"], before["expires_at"]);
    assert_whole(&stack, &id).await;
    stack.settle().await;
}

#[tokio::test]
async fn an_instance_that_is_lost_leaves_no_form_open() {
    let mut stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    stack.prompt(&id, "/form").await;
    let open = asked(&stack, &id).await;
    stack.kill().await;
    // As if what another server needs had been lost.
    let pool = stack.database.pool().await;
    sqlx::query("UPDATE agent_instances SET saved = NULL")
        .execute(&pool)
        .await
        .unwrap();
    pool.close().await;
    stack.boot().await;
    assert_eq!(stack.ended(&id).await["error"]["code"], "runtime_lost");
    let left = all(&stack, &id).await;
    assert_eq!(
        (&left[0]["status"], &left[0]["decided_by"]),
        (&json!("cancelled"), &json!("instance_end"))
    );
    answer(&stack, &open, json!({"action": "decline"}))
        .await
        .refused(409, "conflict");
    stack.settle().await;
}
