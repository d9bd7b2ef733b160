//! What the agent asks and takes back (`$/cancel_request`).

use serde_json::{Value, json};

use super::{launch, lines, processes, running, said, says, start, told};
use crate::support::{LIMIT, Stack};

/// The helper of the one container, which is stopped and goes on when the test says so.
struct Helper(rustix::process::Pid);

impl Helper {
    async fn of(stack: &Stack, id: &str) -> Self {
        // With its first request there is one.
        stack.turn(id, "/term warm echo up\n/term-wait warm").await;
        let container = stack.instance(id).await["container_id"].clone();
        let top = crate::support::docker(&["top", container.as_str().unwrap(), "-eo", "pid,args"]);
        let line = top.iter().find(|line| line.contains(" serve")).unwrap();
        let pid = line.split_whitespace().next().unwrap().parse().unwrap();
        Self(rustix::process::Pid::from_raw(pid).unwrap())
    }

    fn stop(&self) {
        rustix::process::kill_process(self.0, rustix::process::Signal::STOP).unwrap();
    }

    fn go_on(&self) {
        rustix::process::kill_process(self.0, rustix::process::Signal::CONT).unwrap();
    }
}

/// How a request of this id ended, by the events.
fn outcome(events: &[Value], request: &str) -> Value {
    let of_it = |event: &&Value| event["request_id"] == request;
    events.iter().rfind(of_it).unwrap()["outcome"].clone()
}

#[tokio::test]
async fn who_waits_no_longer_is_answered_and_the_process_runs_on() {
    let stack = start("").await;
    let id = launch(&stack).await;
    let script = "/term t sleep 1003\n/id \"w\"\n/term-wait t later\n/term-wait t later\n/cancel-request \"w\"\n\
                  /term-output t\n/term-kill t\n/answers\n/term-wait t";
    let said = said(&stack, &id, script).await;
    assert_eq!(
        said[1..],
        [
            r#"term-output: truncated=false running """#,
            "term-kill: {}",
            "answer: error -32800 Request cancelled",
            "answer: signal SIGKILL",
            "term-wait: signal SIGKILL",
        ]
    );
    assert_eq!(outcome(&told(&stack, &id, "terminal").await, "w"), "cancelled");
    stack.settle().await;
}

#[tokio::test]
async fn what_only_looks_is_answered_without_the_helper_and_no_terminal_is_made() {
    let stack = start("").await;
    let id = launch(&stack).await;
    let helper = Helper::of(&stack, &id).await;
    std::fs::write(stack.workspace().join("a"), "x").unwrap();
    // Right behind the request, and once the helper has been asked.
    for (late, seconds) in [(false, "1004"), (true, "1005")] {
        helper.stop();
        let (read, create) = (format!("r{seconds}"), format!("c{seconds}"));
        let script = [
            format!("/id \"{read}\""),
            r#"/later fs/read_text_file {"path":"/workspace/a"}"#.to_owned(),
            format!("/id \"{create}\""),
            format!(r#"/later terminal/create {{"command":"sleep","args":["{seconds}"]}}"#),
            if late { "/await go" } else { "" }.to_owned(),
            format!("/cancel-request \"{read}\"\n/cancel-request \"{create}\"\n/answers"),
            format!("/write answered{seconds} x\n/fs-read a\n/await looked{seconds}"),
        ];
        let turn = stack.prompt(&id, &script.join("\n")).await;
        if late {
            pends(&stack, &id, "fs", &read).await;
            pends(&stack, &id, "terminal", &create).await;
            std::fs::write(stack.workspace().join("go"), "").unwrap();
        }
        stack.until_there(&format!("answered{seconds}")).await;
        helper.go_on();
        let path = format!("/agents/{id}/turns/{turn}");
        // With the read, which came after it all, the helper has done what it was asked. The turn's end would end a terminal.
        let has_read = |t: &Value| t["text"].as_str().is_some_and(|text| text.contains("fs-read"));
        stack.until(&path, has_read).await;
        let deadline = std::time::Instant::now() + LIMIT;
        while running(&processes(&stack, &id).await, &format!("sleep {seconds}")) > 0 {
            assert!(std::time::Instant::now() < deadline, "the terminal is kept");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        std::fs::write(stack.workspace().join(format!("looked{seconds}")), "").unwrap();
        let ended = stack.until(&path, |t| t["finished_at"].is_string()).await;
        assert_eq!(
            lines(&ended),
            [
                "answer: error -32800 Request cancelled".to_owned(),
                "answer: error -32800 Request cancelled".to_owned(),
                format!("write: /workspace/answered{seconds}: 1 bytes"),
                r#"fs-read: "x""#.to_owned(),
            ]
        );
        let (files, terminals) = (told(&stack, &id, "fs").await, told(&stack, &id, "terminal").await);
        assert_eq!(
            (outcome(&files, &read), outcome(&terminals, &create)),
            (json!("cancelled"), json!("cancelled"))
        );
    }
    stack.settle().await;
}

/// Waits until this request is on record, and so on its way to the helper.
async fn pends(stack: &Stack, id: &str, kind: &str, request: &str) {
    let is_it = |e: &Value| e["data"]["request_id"] == request && e["data"]["outcome"] == "pending";
    let path = format!("/agents/{id}/events?kind={kind}&limit=500");
    let there = |page: &Value| page["events"].as_array().unwrap().iter().any(is_it);
    stack.until(&path, there).await;
}

/// Waits until the helper has been asked for so many files.
async fn asked(stack: &Stack, id: &str, count: usize) {
    let pending = |page: &Value| {
        let events = page["events"].as_array().unwrap();
        events
            .iter()
            .filter(|e| e["data"]["outcome"] == "pending")
            .count()
            == count
    };
    let path = format!("/agents/{id}/events?kind=fs&limit=500");
    stack.until(&path, pending).await;
}

#[tokio::test]
async fn a_write_that_is_taken_back_is_answered_as_it_was_done_or_not() {
    let stack = start("").await;
    let id = launch(&stack).await;
    let helper = Helper::of(&stack, &id).await;
    helper.stop();
    let write = |n: usize| {
        let params = json!({"path": format!("/workspace/w{n}"), "content": "x".repeat(16 << 10)});
        format!("/id \"{n}\"\n/later fs/write_text_file {params}\n")
    };
    let writes: String = (0..40).map(write).collect();
    let cancels = (0..40)
        .map(|n| format!("/cancel-request \"{n}\"\n"))
        .collect::<Vec<_>>()
        .concat();
    let script = format!("{writes}/await go\n{cancels}/write told x\n/answers");
    let turn = stack.prompt(&id, &script).await;
    asked(&stack, &id, 40).await;
    std::fs::write(stack.workspace().join("go"), "").unwrap();
    let path = format!("/agents/{id}/turns/{turn}");
    let told_all = |t: &Value| t["text"].as_str().is_some_and(|text| text.contains("told"));
    stack.until(&path, told_all).await;
    helper.go_on();
    let ended = stack.until(&path, |t| t["finished_at"].is_string()).await;
    let said = lines(&ended).split_off(1);
    assert_eq!(said.len(), 40);
    for (n, said) in said.iter().enumerate() {
        let expected = if stack.workspace().join(format!("w{n}")).exists() {
            "answer: {}"
        } else {
            "answer: error -32800 Request cancelled"
        };
        assert_eq!(said, expected, "{n}");
    }
    let outcomes = told(&stack, &id, "fs").await;
    let cancelled = outcomes.iter().filter(|e| e["outcome"] == "cancelled").count();
    assert_eq!(cancelled, said.iter().filter(|s| s.contains("-32800")).count());
    stack.settle().await;
}

#[tokio::test]
async fn a_write_whose_helper_died_is_not_begun_again() {
    let stack = start("").await;
    let id = launch(&stack).await;
    let helper = Helper::of(&stack, &id).await;
    helper.stop();
    let write = json!({"path": "/workspace/never", "content": "x"});
    let script = format!(
        "/id \"n\"\n/later fs/write_text_file {write}\n/await go\n/cancel-request\n/say told\\n\n/answers\n/fs-write later y"
    );
    let turn = stack.prompt(&id, &script).await;
    asked(&stack, &id, 1).await;
    std::fs::write(stack.workspace().join("go"), "").unwrap();
    let path = format!("/agents/{id}/turns/{turn}");
    stack.until(&path, |t| t["text"] == "told\n").await;
    rustix::process::kill_process(helper.0, rustix::process::Signal::KILL).unwrap();
    let ended = stack.until(&path, |t| t["finished_at"].is_string()).await;
    assert_eq!(
        lines(&ended)[1..],
        ["answer: error -32800 Request cancelled", "fs-write: {}"]
    );
    assert!(!stack.workspace().join("never").exists());
    stack.settle().await;
}

#[tokio::test]
async fn what_is_asked_and_taken_back_while_the_server_is_away_is_not_done() {
    let mut stack = start("").await;
    let id = launch(&stack).await;
    let write = json!({"path": "/workspace/never", "content": "x"});
    let script = format!(
        "/say ready\n/await go\n/id \"n\"\n/later fs/write_text_file {write}\n/cancel-request\n/write done x\n/answers\n\
         /fs-write later y"
    );
    let path = says(&stack, &id, &script, "ready").await;
    stack.kill().await;
    std::fs::write(stack.workspace().join("go"), "").unwrap();
    stack.until_there("done").await;
    stack.boot().await;
    let ended = stack.until(&path, |t| t["finished_at"].is_string()).await;
    assert_eq!(
        lines(&ended)[1..],
        ["answer: error -32800 Request cancelled", "fs-write: {}"]
    );
    assert!(!stack.workspace().join("never").exists());
    assert_eq!(outcome(&told(&stack, &id, "fs").await, "n"), "cancelled");
    stack.settle().await;
}
