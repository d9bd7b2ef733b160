//! CASE 8: everything that is written to an agent's stdin, large and at the same time.

use std::collections::HashSet;
use std::fmt::Write as _;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{launch, said, start_with, told};
use crate::asked;
use crate::support::Stack;

const LARGE: usize = 256 << 10;
/// Of each kind.
const MANY: usize = 13;
/// Answers to permissions are as large as the options may be together.
const OPTION: usize = 60 << 10;

/// A text of so many bytes that is nothing else's, with characters of several bytes all over it.
fn large(name: &str, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 32);
    while text.len() < bytes {
        write!(text, "{name} é🦀 {} ", text.len()).unwrap();
    }
    text
}

/// The request of an id that asked for a file, and the file.
fn reads(events: &[Value]) -> Vec<(Value, String)> {
    let asked = events
        .iter()
        .filter(|e| e["operation"] == "read" && e["outcome"] == "pending");
    asked
        .map(|e| {
            let path = e["path"].as_str().unwrap();
            (
                e["request_id"].clone(),
                path.rsplit_once('/').unwrap().1.to_owned(),
            )
        })
        .collect()
}

/// What the agent does not read for a while is written as soon as it reads: contents of files, what callers decided and
/// asked. The prompts after it come one by one, each while the file that the one before it asked for is still written.
#[tokio::test]
async fn prompts_decisions_and_files_at_once_arrive_whole_and_as_they_were() {
    let stack = start_with(&[("KANDEV_MAX_PROMPT_QUEUE", "64")], "").await;
    let workspace = stack.workspace();
    let id = stack
        .launch(json!({
            "agent_type": "boxed", "permission_policy": "ask", "env": {"MOCK_INPUT_COPY": "/workspace/input"},
        }))
        .await;
    for n in 1..=2 * MANY {
        std::fs::write(workspace.join(format!("f{n}")), large(&format!("f{n}"), LARGE)).unwrap();
    }
    let mut script = String::new();
    for n in 0..MANY {
        let option = large(&format!("option {n}"), OPTION);
        let params = json!({
            "toolCall": {"toolCallId": format!("call-{n}"), "title": "x"},
            "options": [{"optionId": option, "name": "x", "kind": "allow_once"}],
        });
        writeln!(script, "/later session/request_permission {params}").unwrap();
    }
    write!(
        script,
        "/await go\n/deaf 1000\n/fs-read-many f{{}} {MANY}\n/answers\n/say all"
    )
    .unwrap();
    let turn = stack.prompt(&id, &script).await;
    let open = asked::pending(&stack, "permissions", &id, MANY).await;

    let mut prompted = Vec::new();
    for n in 0..MANY {
        let file = MANY + 1 + n;
        let read = json!({"path": format!("/workspace/f{file}")});
        let text = large(&format!("prompt {n}"), LARGE);
        let script = format!("/later fs/read_text_file {read}\n/say {n}\n{text}");
        prompted.push((stack.prompt(&id, &script).await, script));
    }

    let stack = &stack;
    std::fs::write(workspace.join("go"), "").unwrap();
    let decisions = join_all(open.iter().map(|permission| decide(stack, permission)));
    let (instance, caller) = (&id, stack);
    let questions = join_all((0..MANY).map(|n| async move {
        let params = json!({"n": n, "text": large(&format!("echo {n}"), LARGE)});
        let body = json!({"method": "_mock/echo", "params": params});
        let answer = caller.post(&format!("/agents/{instance}/rpc"), &body).await;
        assert!(
            answer.expect(200)["result"] == params,
            "{n} is not what came back"
        );
    }));
    tokio::join!(decisions, questions);

    let turns = format!("/agents/{id}/turns");
    let first = stack
        .until(&format!("{turns}/{turn}"), |t| t["finished_at"].is_string())
        .await;
    let text = first["text"].as_str().unwrap();
    let said: Vec<_> = text.lines().collect();
    assert_eq!(said[0], format!("fs-read-many: {MANY} of {MANY}"));
    for n in 0..MANY {
        let answer: Value = serde_json::from_str(said[n + 1].strip_prefix("answer: ").unwrap()).unwrap();
        let option = large(&format!("option {n}"), OPTION);
        let outcome = json!({"outcome": "selected", "optionId": option});
        assert!(
            answer == json!({"outcome": outcome}),
            "{n} is not what was chosen"
        );
    }
    assert_eq!(said[MANY + 1..], ["all"]);
    for (turn, _) in &prompted {
        let ended = stack
            .until(&format!("{turns}/{turn}"), |t| t["finished_at"].is_string())
            .await;
        assert_eq!(ended["stop_reason"], "end_turn", "{ended:#}");
    }
    // The last file is asked for by a turn that is over: its answer may still come.
    let reads = reads(&told(stack, &id, "fs").await);
    assert_eq!(reads.len(), 2 * MANY);
    let deadline = std::time::Instant::now() + crate::support::LIMIT;
    while answers(stack).len() < 3 * MANY {
        assert!(std::time::Instant::now() < deadline, "a file does not come");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }

    // Every line that it read is whole, and says what was to be said.
    let sent = stack.sent();
    let answers = answers(stack);
    for (request, file) in reads {
        let answer = answers.iter().find(|frame| frame["id"] == request).unwrap();
        let content = answer["result"]["content"].as_str();
        let there = large(&file, LARGE);
        assert!(content == Some(&there), "{file} came otherwise: {content:.100?}");
    }
    let of = |method: &'static str| sent.iter().filter(move |frame| frame["method"] == method);
    let arrived: Vec<_> = of("session/prompt")
        .map(|frame| frame["params"]["prompt"][0]["text"].as_str().unwrap())
        .collect();
    let ids: HashSet<_> = of("session/prompt")
        .map(|frame| frame["id"].to_string())
        .collect();
    assert_eq!((arrived.len(), ids.len()), (MANY + 1, MANY + 1));
    assert!(arrived[0] == script, "the first prompt is another");
    for (_, prompt) in &prompted {
        assert!(arrived.contains(&prompt.as_str()), "{prompt:.20} is missing");
    }
    let writes = sent
        .iter()
        .filter(|frame| frame.to_string().len() >= LARGE)
        .count();
    assert_eq!(writes, 1 + 2 * MANY + MANY + MANY, "as many as there were");
    stack.settle().await;
}

/// Each is a write of the agent's and then an answer to it; what they brought is in no other's file.
#[tokio::test]
async fn fifty_files_at_once_have_each_what_was_written_and_read() {
    let stack = start_with(&[], "").await;
    let id = launch(&stack).await;
    let lines = said(
        &stack,
        &id,
        "/fs-fill-many f{} 256k 50\n/fs-read-many f{} 50\n/fs-read-many f1 50",
    )
    .await;
    assert_eq!(
        lines,
        [
            "fs-fill-many: 50 of 50",
            "fs-read-many: 50 of 50",
            "fs-read-many: 50 of 50"
        ]
    );
    for n in 1..=50 {
        let there = std::fs::read_to_string(stack.workspace().join(format!("f{n}"))).unwrap();
        assert_eq!(there.len(), LARGE);
        let whole = there.rsplit_once('\n').unwrap().0;
        for (line, text) in whole.lines().enumerate() {
            assert_eq!(text, format!("f{n} {:08}", line + 1));
        }
    }
    stack.settle().await;
}

/// Allows it once. A busy server may say that it should be tried again, and have done it all the same.
async fn decide(stack: &Stack, permission: &Value) {
    let path = asked::path_of("permissions", permission);
    let deadline = std::time::Instant::now() + crate::support::LIMIT;
    let mut again = false;
    loop {
        let answer = stack.post(&path, &json!({"kind": "allow_once"})).await;
        let is_done = again && answer.body["details"]["status"] == "selected";
        if answer.status != 503 || std::time::Instant::now() > deadline {
            assert!(is_done || answer.status == 200, "{:#}", answer.body);
            return;
        }
        again = true;
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
}

/// What the agent was answered: permissions and files.
fn answers(stack: &Stack) -> Vec<Value> {
    let input = std::fs::read_to_string(stack.workspace().join("input")).unwrap();
    let whole = input.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let frames = whole.map(|line| serde_json::from_str::<Value>(line).unwrap());
    frames.filter(|frame| frame["result"].is_object()).collect()
}
