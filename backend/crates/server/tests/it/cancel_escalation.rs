//! Agents that ignore a cancel: ended, and started again with their session, whatever happens meanwhile.

use serde_json::{Value, json};

use crate::recovery::{assert_whole, turn_ended};
use crate::support::{DEAF, LIMIT, Stack};

async fn stack() -> Stack {
    Stack::with(&[("KANDEV_CANCEL_GRACE_SECONDS", "1")]).await
}

async fn cancel(stack: &Stack, id: &str) {
    let body = json!({"reason": "enough"});
    stack
        .post(&format!("/agents/{id}/cancel"), &body)
        .await
        .expect(200);
}

async fn of_kind(stack: &Stack, id: &str, kind: &str) -> Vec<Value> {
    let events = stack.events(id).await;
    let wanted = events.iter().filter(|e| e["kind"] == kind);
    wanted.map(|e| e["data"].clone()).collect()
}

async fn turns(stack: &Stack, id: &str) -> Vec<Value> {
    let list = stack.get(&format!("/agents/{id}/turns")).await.expect(200);
    list["turns"].as_array().unwrap().clone()
}

fn statuses(turns: &[Value]) -> Vec<&str> {
    turns.iter().map(|t| t["status"].as_str().unwrap()).collect()
}

/// What the agent says of its own session.
fn own_words(turn: &Value) -> Value {
    let text = turn["text"].as_str().unwrap();
    serde_json::from_str(text.strip_prefix("session: ").unwrap()).unwrap()
}

#[tokio::test]
async fn it_is_started_again_and_goes_on_with_its_session() {
    let stack = stack().await;
    let id = stack.launch(json!({"mode": "ask"})).await;
    assert_eq!(stack.turn(&id, "/say before").await["text"], "before");
    stack
        .call(
            reqwest::Method::PUT,
            &format!("/agents/{id}/mode"),
            Some(&json!({"mode_id": "code"})),
        )
        .await
        .expect(200);
    let session = stack.instance(&id).await["session_id"].clone();
    for n in 1..=2 {
        let container = stack.containers();
        let turn = stack.deaf_turn(&id).await;
        let queued = stack.prompt(&id, "/session").await;
        cancel(&stack, &id).await;
        let next = turn_ended(&stack, &id, &queued).await;
        let words = own_words(&next);
        assert_eq!(
            (
                &words["sessionId"],
                &words["origin"],
                &words["mode"],
                &words["turns"]
            ),
            (&session, &json!("resume"), &json!("code"), &json!(n)),
            "the session, with what was chosen at last and the turns that had an end"
        );
        let cancelled = turn_ended(&stack, &id, &turn).await;
        assert_eq!(
            (
                &cancelled["status"],
                &cancelled["cancel_reason"],
                &cancelled["error"],
                &cancelled["text"]
            ),
            (
                &json!("cancelled"),
                &json!("enough"),
                &Value::Null,
                &json!("deaf")
            )
        );
        let now = stack.containers();
        assert!(now.len() == 1 && now != container, "{container:?} {now:?}");
        let instance = stack.instance(&id).await;
        assert_eq!(
            (
                &instance["status"],
                &instance["container_id"],
                &instance["exit_code"],
                &instance["error"]
            ),
            (&json!("running"), &json!(now[0]), &Value::Null, &Value::Null)
        );
    }
    let told = of_kind(&stack, &id, "session").await;
    let how: Vec<_> = told.iter().map(|s| (&s["how"], &s["session_id"])).collect();
    let [new, resumed] = [json!("new"), json!("resumed")];
    assert_eq!(
        how,
        [(&new, &session), (&resumed, &session), (&resumed, &session)]
    );
    let told = of_kind(&stack, &id, "status").await;
    let restarting: Vec<_> = told.iter().map(|s| s["restarting"].as_bool()).collect();
    let twice = [Some(true), Some(false), Some(true), Some(false)];
    assert_eq!(restarting, [&[None, None][..], &twice].concat(), "{told:#?}");
    let sessions = stack.get("/sessions").await.expect(200);
    assert_eq!(sessions["total"], 1, "{sessions:#}");
    stack.settle().await;
}

#[tokio::test]
async fn a_history_that_it_loads_is_not_stored_again() {
    let stack = stack().await;
    let id = stack.launch(json!({"env": {"MOCK_WITHOUT": "resume"}})).await;
    assert_eq!(stack.turn(&id, "/say before").await["text"], "before");
    stack.deaf_turn(&id).await;
    cancel(&stack, &id).await;
    assert_eq!(stack.turn(&id, "/say after").await["text"], "after");
    let told = of_kind(&stack, &id, "session").await;
    assert_eq!(told[1]["how"], "loaded");
    assert!(told[1]["replayed_updates"].as_u64().unwrap() >= 2, "{told:#?}");
    let updates = of_kind(&stack, &id, "update").await;
    let texts: Vec<_> = updates
        .iter()
        .filter_map(|u| u["update"]["content"]["text"].as_str())
        .collect();
    assert_eq!(texts, ["before", "deaf", "after"]);
    let turns = turns(&stack, &id).await;
    let texts: Vec<_> = turns.iter().map(|t| t["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["before", "deaf", "after"]);
    stack.settle().await;
}

#[tokio::test]
async fn without_its_session_it_is_no_use_to_start_it_again() {
    let stack = stack().await;
    // It can neither load nor resume; it had one turn to do; it says that it can, and does not.
    let unable = json!({"env": {"MOCK_LOAD": "unsupported"}});
    let one_shot = json!({"lifecycle": "one_shot", "prompt": DEAF});
    let forgetful = json!({"env": {"MOCK_LOAD": "error:-32002"}});
    for (launch, status, code) in [
        (unable, "stopped", Value::Null),
        (one_shot.clone(), "stopped", Value::Null),
        (forgetful, "failed", json!("session_lost")),
    ] {
        let id = stack.launch(launch.clone()).await;
        if launch == one_shot {
            let text = |t: &Value| t["turns"][0]["text"] == "deaf";
            stack.until(&format!("/agents/{id}/turns"), text).await;
        } else {
            stack.deaf_turn(&id).await;
        }
        stack.prompt(&id, "/say never").await;
        cancel(&stack, &id).await;
        let instance = stack.ended(&id).await;
        assert_eq!(
            (&instance["status"], &instance["error"]["code"]),
            (&json!(status), &code),
            "{instance:#}"
        );
        assert_eq!(statuses(&turns(&stack, &id).await), ["cancelled", "cancelled"]);
        let last = of_kind(&stack, &id, "status").await.pop().unwrap();
        let reason = last["reason"].as_str().unwrap_or_default();
        let says = reason.starts_with("the agent did not end its turn when it was cancelled");
        assert_eq!(says, status == "stopped", "{last:#}");
    }
    stack.settle().await;
}

#[tokio::test]
async fn a_fresh_session_takes_the_place_of_a_lost_one_where_the_launch_says_so() {
    let stack = stack().await;
    for env in [
        json!({"MOCK_LOAD": "unsupported"}),
        json!({"MOCK_LOAD": "error:-32002"}),
    ] {
        let id = stack.launch(json!({"env": env, "on_lost": "new"})).await;
        let first = stack.instance(&id).await["session_id"].clone();
        stack.deaf_turn(&id).await;
        let queued = stack.prompt(&id, "/session").await;
        cancel(&stack, &id).await;
        let words = own_words(&turn_ended(&stack, &id, &queued).await);
        assert_eq!(words["origin"], "new", "{words:#}");
        assert_ne!(words["sessionId"], first);
        assert_eq!(stack.instance(&id).await["session_id"], words["sessionId"]);
    }
    stack.settle().await;
}

/// Moments of a restart.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// The agent is about to be killed.
    Begun,
    /// Its turn has its end; its container is about to go.
    TurnEnded,
    /// There is another container.
    Created,
    /// The agent was asked to initialize.
    Started,
    /// It was asked for its session.
    Resuming,
}

/// Waits for a moment of the restart of this number.
async fn comes_to(stack: &Stack, id: &str, moment: Moment, restart: usize) {
    let is_there = async || match moment {
        Moment::Begun => {
            let told = of_kind(stack, id, "status").await;
            told.iter().filter(|s| s["restarting"] == true).count() >= restart
        }
        Moment::TurnEnded => {
            let told = of_kind(stack, id, "turn_ended").await;
            told.iter().filter(|s| s["status"] == "cancelled").count() >= restart
        }
        Moment::Created => {
            let logs = stack.logs(id, "system").await;
            let created = |l: &&String| l.starts_with("container ") && l.ends_with(" created");
            logs.iter().filter(created).count() > restart
        }
        Moment::Started => {
            let logs = stack.logs(id, "system").await;
            logs.iter().filter(|l| *l == "container started").count() > restart
        }
        Moment::Resuming => {
            let input = std::fs::read_to_string(stack.workspace().join("input")).unwrap();
            input.matches("\"session/resume\"").count() >= restart
        }
    };
    let comes = async {
        while !is_there().await {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, comes)
        .await
        .unwrap_or_else(|_| panic!("{moment:?} does not come"));
}

async fn launch(stack: &Stack) -> String {
    let env = json!({
        "MOCK_TURN_COPY": "/workspace/copy", "MOCK_INPUT_COPY": "/workspace/input",
        "MOCK_INIT": "slow:300", "MOCK_LOAD": "slow:300",
    });
    stack.launch(json!({"env": env})).await
}

#[tokio::test]
async fn whenever_the_server_dies_the_next_one_finishes_it() {
    let mut stack = stack().await;
    let id = launch(&stack).await;
    let moments = [
        Moment::Begun,
        Moment::TurnEnded,
        Moment::Created,
        Moment::Started,
        Moment::Resuming,
    ];
    for (n, moment) in moments.into_iter().enumerate() {
        let turn = stack.deaf_turn(&id).await;
        let next = stack.prompt(&id, "/say next").await;
        cancel(&stack, &id).await;
        comes_to(&stack, &id, moment, n + 1).await;
        stack.kill().await;
        stack.boot().await;
        let ended = turn_ended(&stack, &id, &next).await;
        assert_eq!(
            (&ended["status"], &ended["text"]),
            (&json!("completed"), &json!("next")),
            "{moment:?}"
        );
        let ended = turn_ended(&stack, &id, &turn).await;
        assert_eq!(
            (&ended["status"], &ended["text"]),
            (&json!("cancelled"), &json!("deaf")),
            "{moment:?}"
        );
        // Another death, when all that the log has is of the new container: it is read from where the journal stands.
        let slow = stack.prompt(&id, "/slow 20 40\n/stderr heard").await;
        let path = format!("/agents/{id}/turns/{slow}");
        stack
            .until(&path, |t| t["text"].as_str().unwrap().contains("slow 3/"))
            .await;
        stack.kill().await;
        stack.boot().await;
        let ended = turn_ended(&stack, &id, &slow).await;
        let expected: Vec<_> = (1..=20).map(|n| format!("slow {n}/20 ")).collect();
        assert_eq!(ended["text"], expected.concat(), "{moment:?}");
        assert_eq!(stack.containers().len(), 1, "{moment:?}");
    }
    let told = of_kind(&stack, &id, "session").await;
    let how: Vec<_> = told.iter().map(|s| s["how"].as_str().unwrap()).collect();
    assert_eq!(how, [&["new"][..], &["resumed"; 5]].concat());
    // Of two pipes, either may be the faster one.
    let logs = format!("/agents/{id}/logs?stream=stderr");
    stack.until(&logs, |page| page["total"] == 5).await;
    assert_eq!(stack.logs(&id, "stderr").await, ["heard"; 5]);
    // A container that ended while no server was there may have ended with its engine, for all that can be known.
    let gaps = of_kind(&stack, &id, "gap").await;
    assert!(gaps.iter().all(|gap| gap["certain"] == false), "{gaps:#?}");
    std::fs::rename(
        stack.workspace().join("copy"),
        stack.workspace().join(format!("{id}.copy")),
    )
    .unwrap();
    assert_whole(&stack, &id).await;
    stack.settle().await;
}

#[tokio::test]
async fn who_stops_it_in_the_middle_has_it_stopped() {
    let stack = stack().await;
    for moment in [Moment::Begun, Moment::TurnEnded, Moment::Created, Moment::Started] {
        let id = launch(&stack).await;
        stack.deaf_turn(&id).await;
        // Without an end of its own, should the stop come so late that it has begun.
        stack.prompt(&id, "/hang").await;
        cancel(&stack, &id).await;
        comes_to(&stack, &id, moment, 1).await;
        let answer = stack
            .post(&format!("/agents/{id}/stop"), &json!({"reason": "no more"}))
            .await;
        answer.expect(200);
        let instance = stack.instance(&id).await;
        assert_eq!(
            (&instance["status"], &instance["error"]),
            (&json!("stopped"), &Value::Null),
            "{moment:?}: {instance:#}"
        );
        let last = of_kind(&stack, &id, "status").await.pop().unwrap();
        assert_eq!(last["reason"], "no more", "{moment:?}: {last:#}");
        assert_eq!(statuses(&turns(&stack, &id).await), ["cancelled", "cancelled"]);
        assert!(stack.containers().is_empty(), "{moment:?}");
    }
    stack.settle().await;
}

/// Prompts that come while it starts again wait for it.
#[tokio::test]
async fn prompts_are_taken_meanwhile() {
    let stack = stack().await;
    let id = launch(&stack).await;
    stack.deaf_turn(&id).await;
    cancel(&stack, &id).await;
    comes_to(&stack, &id, Moment::Begun, 1).await;
    let first = stack.prompt(&id, "/say first").await;
    comes_to(&stack, &id, Moment::Started, 1).await;
    let second = stack.turn(&id, "/say second").await;
    assert_eq!(second["text"], "second");
    assert_eq!(turn_ended(&stack, &id, &first).await["text"], "first");
    stack.settle().await;
}
