//! How much an agent may be asked at once, what it does when it is asked too much, and large things that it says.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};

use crate::protocol::of_kind;
use crate::support::{LIMIT, Stack};

async fn set_mode(stack: &Stack, id: &str) -> crate::support::Answer {
    let path = format!("/agents/{id}/mode");
    stack
        .call(Method::PUT, &path, Some(&json!({"mode_id": "code"})))
        .await
}

/// Waits until the agent was sent so many frames of a method.
async fn until_sent(stack: &Stack, method: &str, count: usize) {
    let deadline = std::time::Instant::now() + LIMIT;
    let input = stack.workspace().join("input");
    let sent = || {
        let input = std::fs::read_to_string(&input).unwrap_or_default();
        input.matches(&format!("\"method\":\"{method}\"")).count()
    };
    while sent() < count {
        assert!(std::time::Instant::now() < deadline, "{} of {count}", sent());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn more_than_may_wait_for_the_agent_is_refused_and_the_rest_is_answered() {
    let stack = Stack::start().await;
    let env = json!({"MOCK_SET": "slow:10000", "MOCK_INPUT_COPY": "/workspace/input"});
    let id = stack.launch(json!({"env": env})).await;
    let most = 32;
    let (answers, ()) = tokio::join!(join_all((0..most).map(|_| set_mode(&stack, &id))), async {
        until_sent(&stack, "session/set_mode", most).await;
        let refused = set_mode(&stack, &id).await;
        refused.refused(429, "too_many_requests");
        // Prompts are not among them.
        assert_eq!(stack.turn(&id, "/say beside").await["text"], "beside");
    });
    for answer in answers {
        answer.expect(200);
    }
    assert_eq!(stack.sent_to("session/set_mode").len(), most);
    stack.settle().await;
}

/// The agent lets go of what it is told nobody waits for.
#[tokio::test]
async fn what_the_agent_gives_up_because_it_was_told_to_has_not_happened() {
    let stack = Stack::with(&[("KANDEV_CALL_TIMEOUT_SECONDS", "1")]).await;
    let env = json!({"MOCK_SET": "yields:60000", "MOCK_INPUT_COPY": "/workspace/input"});
    let id = stack.launch(json!({"env": env})).await;
    set_mode(&stack, &id).await.refused(502, "agent_error");
    let asked = stack
        .sent()
        .into_iter()
        .find(|frame| frame["method"] == "session/set_mode")
        .unwrap();
    // Its answer, which nobody waits for, is on record.
    let path = format!("/agents/{id}/events?limit=1000");
    let given_up = |page: &Value| {
        let events = page["events"].as_array().unwrap();
        events
            .iter()
            .any(|e| e["data"]["id"] == asked["id"] && e["data"]["error"]["code"] == -32800)
    };
    stack.until(&path, given_up).await;
    assert_eq!(
        stack.sent_to("$/cancel_request"),
        [json!({"requestId": asked["id"]})]
    );
    let session = stack.get(&format!("/agents/{id}/session")).await.expect(200);
    assert_eq!(session["current_mode"], "ask", "{session:#}");
    let said = stack.turn(&id, "/session").await;
    assert!(
        said["text"].as_str().unwrap().contains("\"mode\":\"ask\""),
        "{said:#}"
    );
    stack.settle().await;
}

/// Agents differ in what they make of a second prompt. They are never sent one.
#[tokio::test]
async fn a_second_prompt_is_the_same_to_every_agent() {
    let stack = Stack::start().await;
    for busy in ["error", "replace", "silent"] {
        let env = json!({"MOCK_BUSY": busy, "MOCK_INPUT_COPY": format!("/workspace/{busy}")});
        let id = stack.launch(json!({"env": env})).await;
        let prompt = format!("/agents/{id}/prompt");
        let ask = |message: &'static str, when_busy: &'static str| {
            let (stack, prompt) = (&stack, &prompt);
            async move {
                let body = json!({"message": message, "when_busy": when_busy});
                stack.post(prompt, &body).await
            }
        };
        let go = stack.workspace().join("go");
        let first = stack.prompt(&id, "/say one\n/await go").await;
        let path = format!("/agents/{id}/turns/{first}");
        stack.until(&path, |t| t["text"] == "one").await;
        ask("/say no", "reject").await.refused(409, "conflict");
        let queued = ask("/say two\n/hang", "queue").await.expect(202)["turn_id"].clone();
        std::fs::write(&go, "").unwrap();
        assert_eq!(
            stack.until(&path, |t| t["finished_at"].is_string()).await["stop_reason"],
            "end_turn",
            "{busy}"
        );
        let path = format!("/agents/{id}/turns/{}", queued.as_str().unwrap());
        stack.until(&path, |t| t["text"] == "two").await;
        let body = json!({"message": "/say three", "when_busy": "interrupt", "wait": true});
        let third = stack.post(&prompt, &body).await.expect(200)["turn"].clone();
        assert_eq!(
            (&third["text"], &third["stop_reason"]),
            (&json!("three"), &json!("end_turn")),
            "{busy}"
        );
        let second = stack.get(&path).await.expect(200);
        assert_eq!(second["stop_reason"], "cancelled", "{busy}");
        std::fs::remove_file(&go).unwrap();
        // A cancel before the third, and each prompt after the end of the one before it.
        let input = std::fs::read_to_string(stack.workspace().join(busy)).unwrap();
        let methods: Vec<_> = input
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["method"].clone())
            .skip(2)
            .collect();
        assert_eq!(
            methods,
            [
                "session/prompt",
                "session/prompt",
                "session/cancel",
                "session/prompt"
            ],
            "{busy}"
        );
        stack.stop(&id).await;
    }
    stack.settle().await;
}

/// Agents with many skills list them all, again and again.
#[tokio::test]
async fn commands_of_half_a_megabyte_are_kept_of_the_session() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let commands: Vec<_> = (0..2000)
        .map(
            |n| json!({"name": format!("skill-{n}"), "description": "é".repeat(120), "input": {"hint": "x"}}),
        )
        .collect();
    let update = json!({"sessionUpdate": "available_commands_update", "availableCommands": commands});
    assert!(update.to_string().len() > 560_000, "{}", update.to_string().len());
    let turn = stack
        .turn(&id, &format!("/update {update}\n/update {update}\n/say on"))
        .await;
    assert_eq!((&turn["text"], &turn["updates"]), (&json!("on"), &json!(3)));
    let session = stack.get(&format!("/agents/{id}/session")).await.expect(200);
    assert!(session["commands"] == json!(commands), "the session has others");
    let events = of_kind(&stack, &id, "update").await;
    let told = events.iter().filter(|e| e["data"]["update"] == update).count();
    assert_eq!(told, 2);
    stack.settle().await;
}

#[tokio::test]
async fn audio_is_prompted_with_by_upload() {
    let stack = Stack::start().await;
    let env = json!({"MOCK_INPUT_COPY": "/workspace/input"});
    let id = stack.launch(json!({"env": env})).await;
    let mut bytes = b"RIFF\x24\x00\x00\x00WAVEfmt ".to_vec();
    bytes.extend((0..200_000_u32).map(|n| n.to_le_bytes()[0]));
    let uploaded = reqwest::Client::new()
        .post(stack.url("/uploads?name=note.wav"))
        .header(CONTENT_TYPE, "audio/wav")
        .body(bytes.clone())
        .send()
        .await
        .unwrap();
    assert_eq!(uploaded.status(), 201);
    let upload: Value = uploaded.json().await.unwrap();
    let prompt = json!([
        {"type": "text", "text": "/blocks"},
        {"type": "audio", "upload_id": upload["id"], "annotations": {"priority": 1.0}},
    ]);
    let body = json!({"prompt": prompt, "wait": true});
    let path = format!("/agents/{id}/prompt");
    let turn = stack.post(&path, &body).await.expect(200)["turn"].clone();
    assert_eq!(turn["text"], "blocks: text,audio\n");
    let sent = stack.sent_to("session/prompt").pop().unwrap();
    let audio = &sent["prompt"][1];
    assert_eq!(
        (&audio["type"], &audio["mimeType"], &audio["annotations"]),
        (&json!("audio"), &json!("audio/wav"), &json!({"priority": 1.0}))
    );
    let data = base64::Engine::decode(
        &base64::engine::general_purpose::STANDARD,
        audio["data"].as_str().unwrap(),
    );
    assert!(data.unwrap() == bytes, "it came otherwise");
    assert_eq!(audio.get("upload_id"), None);
    stack.settle().await;
}
