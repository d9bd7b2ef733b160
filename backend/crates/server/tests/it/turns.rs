//! Turns of the mock agent, and of agents in shell where the test must see what reached the agent.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::Stack;

/// Repeats on stderr whatever it is sent, and answers a prompt only when it is cancelled, half a second later.
const PARROT: &str = r#"
id = "parrot"
name = "Parrot"
image = "kandev/shell-agent:latest"
network = "none"
command = ["/bin/bash", "-c", '''
while read -r line; do
  echo "got $line" >&2
  case $line in
    *'"initialize"'*) echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"agentCapabilities":{}}}' ;;
    *'"session/new"'*) echo '{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s"}}' ;;
    *'"session/prompt"'*) [[ $line =~ \"id\":([0-9]+) ]]; prompt=${BASH_REMATCH[1]} ;;
    *'"session/cancel"'*)
      sleep 0.5
      echo '{"jsonrpc":"2.0","id":'$prompt',"result":{"stopReason":"cancelled"}}' ;;
  esac
done
''']
"#;

async fn prompting(stack: &Stack, id: &str) {
    stack
        .until(&format!("/agents/{id}/status"), |s| {
            s["turn_state"] == "prompting"
        })
        .await;
}

/// Cancels: what the answer says.
async fn cancel(stack: &Stack, id: &str) -> String {
    let answer = stack
        .post(
            &format!("/agents/{id}/cancel"),
            &json!({"reason": "changed my mind"}),
        )
        .await;
    answer.expect(200)["message"].as_str().unwrap().to_owned()
}

async fn turns(stack: &Stack, id: &str) -> Vec<Value> {
    let list = stack.get(&format!("/agents/{id}/turns")).await.expect(200);
    list["turns"].as_array().unwrap().clone()
}

fn statuses(turns: &[Value]) -> Vec<&str> {
    turns.iter().map(|t| t["status"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn three_prompts_are_three_turns_of_one_session() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let first = stack.turn(&id, "/say one \n/say and a half").await;
    assert_eq!(
        (&first["status"], &first["stop_reason"]),
        (&json!("completed"), &json!("end_turn"))
    );
    assert_eq!(
        (&first["text"], &first["updates"], &first["usage"]),
        (&json!("one and a half"), &json!(2), &Value::Null)
    );
    assert_eq!(
        first["prompt"],
        json!([{"type": "text", "text": "/say one \n/say and a half"}])
    );
    let second = stack.turn(&id, "/think hm\n/usage 1234\n/say two").await;
    let usage = json!({"totalTokens": 1234, "inputTokens": 926, "outputTokens": 308});
    assert_eq!(
        (&second["text"], &second["updates"], &second["usage"]),
        (&json!("two"), &json!(3), &usage)
    );
    let third = stack.turn(&id, "/history").await;
    let prompts = json!(["/say one \n/say and a half", "/think hm\n/usage 1234\n/say two"]);
    assert_eq!(third["text"], format!("history: {prompts}\n"));
    assert_eq!(first["session_id"], third["session_id"]);
    assert_eq!(turns(&stack, &id).await, [first, second.clone(), third]);
    let one = stack
        .get(&format!("/agents/{id}/turns/{}", second["id"].as_str().unwrap()))
        .await
        .expect(200);
    assert_eq!(one, second);
    let events = stack.events(&id).await;
    let end = &events
        .iter()
        .filter(|e| e["kind"] == "turn_ended")
        .nth(1)
        .unwrap()["data"];
    assert_eq!(
        (&end["usage"], &end["stop_reason"], &end["updates"]),
        (&usage, &json!("end_turn"), &json!(3))
    );
    stack.settle().await;
}

#[tokio::test]
async fn prompts_before_the_session_wait_for_it() {
    let stack = Stack::start().await;
    let launch = json!({"wait": "none", "env": {"MOCK_INIT": "slow:700", "TASK_DESCRIPTION": "/say first"}});
    let id = stack.launch(launch).await;
    let early = stack
        .post(&format!("/agents/{id}/prompt"), &json!({"message": "/say early"}))
        .await
        .expect(202);
    assert_eq!(
        (&early["message"], &early["session_id"]),
        (&json!("prompt queued"), &Value::Null)
    );
    let refused = json!({"message": "/say no", "when_busy": "reject"});
    stack
        .post(&format!("/agents/{id}/prompt"), &refused)
        .await
        .refused(409, "conflict");
    assert_eq!(stack.turn(&id, "/say third").await["text"], "third");
    let mut turns = turns(&stack, &id).await;
    turns.sort_by_key(|t| t["started_at"].as_str().unwrap().to_owned());
    let texts: Vec<_> = turns.iter().map(|t| &t["text"]).collect();
    assert_eq!(texts, ["first", "early", "third"]);
    stack.settle().await;
}

#[tokio::test]
async fn a_launch_waits_as_told() {
    let stack = Stack::start().await;
    let launch = json!({"wait": "turn", "prompt": "/sleep 100\n/say done", "env": {"MOCK_NEW": "slow:200"}});
    let launched = stack.try_launch(launch).await.expect(201);
    assert_eq!(
        (&launched["status"], &launched["error"]),
        (&json!("running"), &Value::Null)
    );
    let turns = turns(&stack, launched["id"].as_str().unwrap()).await;
    assert_eq!(
        (statuses(&turns), &turns[0]["text"]),
        (vec!["completed"], &json!("done"))
    );
    let ready = stack
        .try_launch(json!({"env": {"MOCK_NEW": "slow:200"}}))
        .await
        .expect(201);
    assert_eq!(
        (&ready["status"], ready["session_id"].is_string()),
        (&json!("running"), true)
    );
    // One that fails is no failure of the request.
    let failed = stack
        .try_launch(json!({"wait": "turn", "env": {"MOCK_INIT": "exit:3"}}))
        .await
        .expect(201);
    assert_eq!(
        (&failed["status"], &failed["error"]["code"]),
        (&json!("failed"), &json!("agent_exited"))
    );
    stack.settle().await;
}

#[tokio::test]
async fn a_cancel_ends_the_turn_and_not_the_instance() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    assert_eq!(cancel(&stack, &id).await, "there is no turn to cancel");
    let turn = stack.prompt(&id, "/say before\n/slow 1000 20").await;
    let path = format!("/agents/{id}/turns/{turn}");
    stack
        .until(&path, |t| t["text"].as_str().unwrap().starts_with("before"))
        .await;
    assert_eq!(cancel(&stack, &id).await, "the turn is being cancelled");
    let turn = stack.until(&path, |t| t["status"] != "running").await;
    assert_eq!(
        (&turn["status"], &turn["stop_reason"]),
        (&json!("cancelled"), &json!("cancelled"))
    );
    assert_eq!(turn["cancel_reason"], "changed my mind");
    assert!(turn["text"].as_str().unwrap().starts_with("before"), "{turn:#}");
    assert_eq!(stack.instance(&id).await["status"], "running");
    assert_eq!(stack.turn(&id, "/say after").await["text"], "after");
    stack.settle().await;
}

#[tokio::test]
async fn ten_quick_cancels_are_one() {
    let stack = Stack::with_types(&[], &[("parrot", PARROT)]).await;
    let id = stack.launch(json!({"agent_type": "parrot"})).await;
    let turn = stack.prompt(&id, "stay").await;
    prompting(&stack, &id).await;
    let said = join_all((0..10).map(|_| cancel(&stack, &id))).await;
    assert_eq!(
        said.iter()
            .filter(|said| *said == "the turn is being cancelled")
            .count(),
        1,
        "{said:?}"
    );
    // A prompt at once gets a turn of its own, after the cancelled one.
    let next = stack.prompt(&id, "next").await;
    let path = format!("/agents/{id}/turns/{next}");
    stack.until(&path, |t| t["status"] == "running").await;
    let both = turns(&stack, &id).await;
    assert_eq!(
        both.iter().map(|t| t["id"].as_str().unwrap()).collect::<Vec<_>>(),
        [turn, next]
    );
    assert_eq!(statuses(&both), ["cancelled", "running"]);
    stack
        .until(&format!("/agents/{id}/logs?q=next&stream=stderr"), |l| {
            l["total"] == 1
        })
        .await;
    let got = stack.logs(&id, "stderr").await;
    let methods: Vec<&str> = got
        .iter()
        .map(|l| {
            l.split("\"method\":\"")
                .nth(1)
                .unwrap()
                .split('"')
                .next()
                .unwrap()
        })
        .collect();
    let expected = [
        "initialize",
        "session/new",
        "session/prompt",
        "session/cancel",
        "session/prompt",
    ];
    assert_eq!(methods, expected, "{got:#?}");
    cancel(&stack, &id).await;
    stack.until(&path, |t| t["status"] == "cancelled").await;
    stack.settle().await;
}

#[tokio::test]
async fn an_ignored_cancel_ends_the_instance_of_an_agent_that_cannot_resume() {
    let graces = [
        ("KANDEV_CANCEL_GRACE_SECONDS", "1"),
        ("KANDEV_STOP_GRACE_SECONDS", "60"),
    ];
    let stack = Stack::with(&graces).await;
    let id = stack
        .launch(json!({"env": {"MOCK_WITHOUT": "load,resume"}}))
        .await;
    stack.deaf_turn(&id).await;
    let queued = stack.prompt(&id, "/say never").await;
    let since = Instant::now();
    cancel(&stack, &id).await;
    let instance = stack.ended(&id).await;
    assert!(since.elapsed() < Duration::from_secs(30), "{:?}", since.elapsed());
    assert_eq!(
        (&instance["status"], &instance["error"]),
        (&json!("stopped"), &Value::Null)
    );
    assert_eq!(
        (&instance["exit_code"], &instance["oom_killed"]),
        (&json!(137), &json!(false))
    );
    let turns = turns(&stack, &id).await;
    assert_eq!(
        (statuses(&turns), &turns[1]["id"]),
        (vec!["cancelled", "cancelled"], &json!(queued))
    );
    assert_eq!(turns[0]["cancel_reason"], "changed my mind");
    stack.settle().await;
}

#[tokio::test]
async fn an_agent_may_exit_on_cancel() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({"env": {"MOCK_EXIT_ON_CANCEL": "1"}})).await;
    stack.prompt(&id, "/hang").await;
    prompting(&stack, &id).await;
    cancel(&stack, &id).await;
    let instance = stack.ended(&id).await;
    assert_eq!(
        (&instance["status"], &instance["exit_code"]),
        (&json!("stopped"), &json!(0))
    );
    assert_eq!(
        (&instance["error"], statuses(&turns(&stack, &id).await)),
        (&Value::Null, vec!["cancelled"])
    );
    stack.settle().await;
}

#[tokio::test]
async fn who_comes_while_a_turn_runs_waits_interrupts_or_gives_up() {
    let stack = Stack::with(&[("KANDEV_MAX_PROMPT_QUEUE", "2")]).await;
    let id = stack.launch(json!({})).await;
    let path = format!("/agents/{id}/prompt");
    stack.prompt(&id, "/hang").await;
    let prompt = async |message: &str, when_busy: &str| {
        stack
            .post(&path, &json!({"message": message, "when_busy": when_busy}))
            .await
    };
    prompt("/say refused", "reject").await.refused(409, "conflict");
    for n in 0..2 {
        assert_eq!(
            prompt(&format!("/say {n}"), "queue").await.expect(202)["message"],
            "prompt queued"
        );
    }
    prompt("/say too many", "queue")
        .await
        .refused(429, "too_many_requests");
    let interrupting = json!({"message": "/say mine", "when_busy": "interrupt", "wait": true});
    let turn = stack.post(&path, &interrupting).await.expect(200)["turn"].clone();
    assert_eq!(
        (&turn["status"], &turn["text"]),
        (&json!("completed"), &json!("mine"))
    );
    let turns = turns(&stack, &id).await;
    assert_eq!(
        statuses(&turns),
        ["cancelled", "cancelled", "cancelled", "completed"]
    );
    assert_eq!(
        (&turns[1]["started_at"], &turns[1]["text"]),
        (&Value::Null, &json!(""))
    );
    stack.settle().await;
}

#[tokio::test]
async fn two_prompts_at_once_run_one_after_the_other() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let (a, b) = tokio::join!(
        stack.turn(&id, "/sleep 100\n/say a"),
        stack.turn(&id, "/sleep 100\n/say b")
    );
    assert_eq!((&a["text"], &b["text"]), (&json!("a"), &json!("b")));
    let order: Vec<_> = stack
        .events(&id)
        .await
        .iter()
        .map(|e| e["kind"].as_str().unwrap().to_owned())
        .filter(|k| k.starts_with("turn"))
        .collect();
    assert_eq!(
        order,
        ["turn_started", "turn_ended", "turn_started", "turn_ended"]
    );
    stack.settle().await;
}

#[tokio::test]
async fn fifty_large_prompts_at_once_arrive_whole() {
    let stack = Stack::with(&[("KANDEV_MAX_PROMPT_QUEUE", "64")]).await;
    let id = stack.launch(json!({})).await;
    let large = |n: usize| format!("{n:02} é🦀 {}", "x".repeat(256 << 10));
    let said = join_all((0..50).map(|n| {
        let (stack, id) = (&stack, &id);
        async move { stack.turn(id, &format!("/say {}", large(n))).await["text"].clone() }
    }))
    .await;
    for (n, text) in said.iter().enumerate() {
        assert!(*text == large(n), "{n} did not come back");
    }
    let asked = stack.turn(&id, "/permission unannounced keep times=200").await;
    assert_eq!(asked["text"], "permission: selected allow-once\n".repeat(200));
    stack.settle().await;
}

#[tokio::test]
async fn permissions_asked_while_cancelling_are_cancelled() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let turn = stack
        .prompt(
            &id,
            "/ignore-cancel\n/say deaf\n/sleep 500\n/permission keep times=3",
        )
        .await;
    let path = format!("/agents/{id}/turns/{turn}");
    stack.until(&path, |t| t["text"] == "deaf").await;
    cancel(&stack, &id).await;
    let turn = stack.until(&path, |t| t["finished_at"].is_string()).await;
    assert_eq!(
        (&turn["status"], &turn["stop_reason"]),
        (&json!("cancelled"), &json!("end_turn"))
    );
    assert_eq!(
        turn["text"],
        format!("deaf{}", "permission: cancelled\n".repeat(3))
    );
    stack.settle().await;
}

/// In the kandev dialect the end of a turn names no turn: what was ended before the running one began is another.
#[tokio::test]
async fn a_late_end_does_not_end_a_newer_turn() {
    let mut stack = Stack::start().await;
    let env = json!({"MOCK_DIALECT": "kandev", "MOCK_BUSY": "queue"});
    let id = stack.launch(json!({"env": env})).await;
    assert_eq!(stack.turn(&id, "/say one").await["text"], "one");
    let end = json!({
        "jsonrpc": "2.0", "method": "session/update",
        "params": {"type": "complete", "data": {"sessionId": "{session}", "success": true}},
    });
    // It says that it is done, and says so again a while later.
    let early = stack
        .prompt(&id, &format!("/say two\n/raw {end}\n/sleep 3000"))
        .await;
    let late = stack.prompt(&id, "/say three").await;
    let path = format!("/agents/{id}/turns/{early}");
    let ended = stack.until(&path, |t| t["status"] == "completed").await;
    assert_eq!(ended["text"], "two");
    // Whoever takes it up knows that as well.
    stack.kill().await;
    stack.boot().await;
    let path = format!("/agents/{id}/turns/{late}");
    let ended = stack.until(&path, |t| t["finished_at"].is_string()).await;
    assert_eq!(
        (&ended["status"], &ended["text"]),
        (&json!("completed"), &json!("three"))
    );
    let logs = stack.logs(&id, "system").await;
    assert_eq!(
        logs.iter()
            .filter(|l| l.contains("an earlier one is meant"))
            .count(),
        1
    );
    stack.settle().await;
}

/// What a subagent says in its own session is stored, and is not the turn's text.
#[tokio::test]
async fn the_text_of_a_turn_is_its_own() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let chunk =
        |kind: &str, text: &str| json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}});
    let other = json!({
        "jsonrpc": "2.0", "method": "session/update",
        "params": {"sessionId": "another", "update": chunk("agent_message_chunk", "not mine")},
    });
    let script = format!(
        "/say one \n/think a thought\n/raw {other}\n/update {}\n/plan a;b\n/tool Look read\n/say two\n/say  ",
        chunk("user_message_chunk", "not said")
    );
    let turn = stack.turn(&id, &script).await;
    assert_eq!(turn["text"], "one two ");
    let events = stack.events(&id).await;
    let others = events.iter().filter(|e| e["session_id"] == "another").count();
    let thoughts = events
        .iter()
        .filter(|e| e["data"]["update"]["sessionUpdate"] == "agent_thought_chunk");
    assert_eq!((others, thoughts.count()), (1, 1));
    stack.settle().await;
}
