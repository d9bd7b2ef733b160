//! What a server that is killed leaves: every request gets its answer from the next one.

use serde_json::json;

use super::{launch, lines, processes, running, says, start, told};
use crate::missed_output::{contains, has_said};
use crate::recovery::assert_whole;
use crate::support::Stack;

async fn launch_with_copy(stack: &Stack) -> String {
    // Who is killed while it writes leaves half a line.
    let env = json!({"MOCK_TURN_COPY": "/workspace/copy", "MOCK_STRICT": "torn"});
    let id = stack.launch(json!({"agent_type": "boxed", "env": env})).await;
    let copy = stack.workspace().join("copy");
    std::fs::rename(copy, stack.workspace().join(format!("{id}.copy"))).unwrap();
    id
}

/// An agent in the middle of a turn that has said `text`, and the turn's path.
async fn begun(script: &str, text: &str) -> (Stack, String, String) {
    let stack = start("").await;
    let id = launch_with_copy(&stack).await;
    let path = says(&stack, &id, script, text).await;
    (stack, id, path)
}

#[tokio::test]
async fn terminals_outlive_the_server_and_who_waits_is_answered() {
    let script = "/term t -- echo before; sleep 4; echo after; exit 5\n/say made\n/term-wait t\n/term-output t\n/term-release t";
    let (mut stack, id, path) = begun(script, "made").await;
    stack.kill().await;
    stack.boot().await;
    let ended = stack.until(&path, |t| t["finished_at"].is_string()).await;
    assert_eq!(
        lines(&ended)[1..],
        [
            "madeterm-wait: code 5",
            r#"term-output: truncated=false code 5 "before\nafter\n""#,
            "term-release: {}",
        ]
    );
    let events = told(&stack, &id, "terminal").await;
    let text: String = events.iter().filter_map(|e| e["text"].as_str()).collect();
    assert_eq!(text, "before\nafter\n", "{events:#?}");
    assert_eq!(events.iter().filter(|e| e["operation"] == "exit").count(), 1);
    assert_whole(&stack, &id).await;
    stack.settle().await;
}

/// The server dies in the middle of an answer: its half is no part of what the next one writes.
#[tokio::test]
async fn an_answer_that_is_cut_off_takes_no_other_along() {
    let script = "/fs-fill big 2m\n/say filled\n/fs-read-many big 30\n/say read";
    let (mut stack, id, path) = begun(script, "filled").await;
    let answered = |events: &[serde_json::Value]| events.iter().filter(|e| e["outcome"] == "ok").count();
    let deadline = std::time::Instant::now() + crate::support::LIMIT;
    // Any moment between the first and the last will do.
    while answered(&told(&stack, &id, "fs").await) < 4 {
        assert!(std::time::Instant::now() < deadline, "they are not answered");
    }
    stack.kill().await;
    stack.boot().await;
    let ended = stack.until(&path, |t| t["finished_at"].is_string()).await;
    assert_eq!(
        lines(&ended)[1..],
        ["filledfs-read-many: 30 of 30", "read"],
        "{ended:#}"
    );
    // What was read again, since its answer may have been lost, is told once all the same.
    let mut outcomes = std::collections::BTreeMap::new();
    for event in told(&stack, &id, "fs").await {
        let key = (
            event["request_id"].to_string(),
            event["outcome"].as_str().unwrap().to_owned(),
        );
        *outcomes.entry(key).or_insert(0) += 1;
    }
    assert_eq!(outcomes.len(), 2 * 31, "{outcomes:#?}");
    assert!(outcomes.values().all(|count| *count == 1), "{outcomes:#?}");
    assert_whole(&stack, &id).await;
    stack.settle().await;
}

#[tokio::test]
async fn what_was_asked_is_done_after_the_restart() {
    // Asked while nobody is there, again and again, and once right before a kill.
    let script = "/say ready\n/sleep 700\n/fs-write a one\n/fs-read a\n/term t echo hi\n/term-wait t\n/term-output t\n/fs-write b two";
    let (mut stack, id, path) = begun(script, "ready").await;
    stack.kill().await;
    has_said(&stack, &id, |copy| contains(copy, "fs/write_text_file")).await;
    stack.boot().await;
    // Any moments will do.
    for pause in [0, 30, 60, 120, 250] {
        stack.kill().await;
        tokio::time::sleep(std::time::Duration::from_millis(pause)).await;
        stack.boot().await;
        tokio::time::sleep(std::time::Duration::from_millis(pause * 2)).await;
    }
    let ended = stack.until(&path, |t| t["finished_at"].is_string()).await;
    let said = lines(&ended);
    assert_eq!(said[0..2], ["readyfs-write: {}", r#"fs-read: "one""#]);
    assert_eq!(
        said[3..],
        [
            "term-wait: code 0",
            r#"term-output: truncated=false code 0 "hi\n""#,
            "fs-write: {}"
        ]
    );
    assert_eq!(
        std::fs::read_to_string(stack.workspace().join("b")).unwrap(),
        "two"
    );
    assert_whole(&stack, &id).await;
    stack.settle().await;
}

#[tokio::test]
async fn a_write_that_has_no_answer_is_done_again_with_what_it_brought() {
    // The helper cannot answer while it is stopped, so the kill comes between the request and its answer.
    let script =
        "/term t echo warm\n/term-wait t\n/say ready\n/sleep 1000\n/fs-write a content\\u\n/fs-fill large 3m";
    let (mut stack, id, path) = begun(script, "ready").await;
    let container = stack.instance(&id).await["container_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let pids = crate::support::docker(&["top", &container, "-eo", "pid,args"]);
    let helper = pids.iter().find(|line| line.contains("serve")).unwrap();
    let pid: i32 = helper.split_whitespace().next().unwrap().parse().unwrap();
    let signal = |signal| {
        let helper = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(helper, signal).unwrap();
    };
    signal(rustix::process::Signal::STOP);
    let asked = |page: &serde_json::Value| {
        let events = page["events"].as_array().unwrap();
        events.iter().any(|e| e["data"]["outcome"] == "pending")
    };
    stack.until(&format!("/agents/{id}/events?kind=fs"), asked).await;
    stack.kill().await;
    signal(rustix::process::Signal::CONT);
    // It does what it was asked, and has nobody to tell.
    let file = stack.workspace().join("a");
    let deadline = std::time::Instant::now() + crate::support::LIMIT;
    while std::fs::remove_file(&file).is_err() {
        assert!(std::time::Instant::now() < deadline, "it is not written");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    stack.boot().await;
    let ended = stack.until(&path, |t| t["finished_at"].is_string()).await;
    assert_eq!(lines(&ended)[2..], ["readyfs-write: {}", "fs-fill: {}"]);
    assert_eq!(
        std::fs::read_to_string(stack.workspace().join("a")).unwrap(),
        "content\\u"
    );
    assert_eq!(
        std::fs::metadata(stack.workspace().join("large")).unwrap().len(),
        3 << 20
    );
    assert_whole(&stack, &id).await;
    stack.settle().await;
}

/// The helper cannot answer while it is stopped, so the kill comes between the request and its answer.
async fn a_terminal_is_asked_for_again(with_another_helper: bool) -> (usize, serde_json::Value) {
    let script = "/term t echo warm\n/term-wait t\n/say ready\n/sleep 1000\n/term u -- echo ran >> /workspace/ran; sleep 1\n/term-wait u";
    let (mut stack, id, path) = begun(script, "ready").await;
    let container = stack.instance(&id).await["container_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let signal = |pattern: &str, signal| {
        let top = crate::support::docker(&["top", &container, "-eo", "pid,args"]);
        for line in top.iter().filter(|line| line.contains(pattern)) {
            let pid: i32 = line.split_whitespace().next().unwrap().parse().unwrap();
            rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
        }
    };
    signal(" serve", rustix::process::Signal::STOP);
    let asked = |page: &serde_json::Value| {
        let events = page["events"].as_array().unwrap();
        let create =
            |e: &&serde_json::Value| e["data"]["operation"] == "create" && e["data"]["outcome"] == "pending";
        events.iter().filter(create).count() == 2
    };
    stack
        .until(&format!("/agents/{id}/events?kind=terminal"), asked)
        .await;
    stack.kill().await;
    signal(" serve", rustix::process::Signal::CONT);
    stack.until_there("ran").await;
    if with_another_helper {
        signal(" serve", rustix::process::Signal::KILL);
    }
    stack.boot().await;
    let ended = stack.until(&path, |t| t["finished_at"].is_string()).await;
    assert_eq!(lines(&ended).last().unwrap(), "term-wait: code 0", "{ended:#}");
    let events = told(&stack, &id, "terminal").await;
    let mut made = events
        .into_iter()
        .filter(|e| e["operation"] == "create" && e["outcome"] == "ok");
    assert!(made.next().unwrap()["retried"].is_null(), "the first one");
    let made = made.next().unwrap();
    let ran = std::fs::read_to_string(stack.workspace().join("ran")).unwrap();
    assert_whole(&stack, &id).await;
    stack.settle().await;
    (ran.lines().count(), made["retried"].clone())
}

#[tokio::test]
async fn a_terminal_that_is_asked_for_again_is_made_once() {
    assert_eq!(a_terminal_is_asked_for_again(false).await, (1, json!(null)));
}

/// Nobody knows then how far the first one came; but it is said.
#[tokio::test]
async fn a_terminal_that_is_made_again_is_said_to_be() {
    assert_eq!(a_terminal_is_asked_for_again(true).await, (2, json!(true)));
}

#[tokio::test]
async fn a_terminal_whose_helper_died_is_said_to_be_killed() {
    let script = "/term t sleep 1001\n/say made\n/term-wait t\n/term-output t\n/term-kill t\n/term-release t\n/term-output t\n/term u echo new\n/term-wait u";
    let (mut stack, id, path) = begun(script, "made").await;
    stack.kill().await;
    let pids = |pattern: &str| {
        let all = stack.containers();
        let top = crate::support::docker(&["top", &all[0], "-eo", "pid,args"]);
        let found = top.iter().find(|line| line.contains(pattern)).unwrap();
        found.split_whitespace().next().unwrap().parse::<i32>().unwrap()
    };
    for pattern in ["serve", "sleep 1001"] {
        let pid = rustix::process::Pid::from_raw(pids(pattern)).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    stack.boot().await;
    let ended = stack.until(&path, |t| t["finished_at"].is_string()).await;
    let said = lines(&ended);
    assert_eq!(
        said[1..5],
        [
            "madeterm-wait: signal SIGKILL",
            r#"term-output: truncated=true signal SIGKILL """#,
            "term-kill: {}",
            "term-release: {}",
        ]
    );
    assert!(said[5].starts_with("term-output: error -32002"), "{said:?}");
    assert_eq!(said[7], "term-wait: code 0", "a new helper runs");
    assert!(
        told(&stack, &id, "terminal")
            .await
            .iter()
            .any(|e| e["operation"] == "lost")
    );
    assert_whole(&stack, &id).await;
    stack.settle().await;
}

#[tokio::test]
async fn what_a_dead_server_left_in_the_container_goes() {
    let mut stack = start("").await;
    let id = launch(&stack).await;
    stack.turn(&id, "/term t echo hi\n/term-wait t").await;
    assert_eq!(running(&processes(&stack, &id).await, " connect"), 1);
    stack.kill().await;
    let container = stack.containers().remove(0);
    // Nobody asks for anything: neither the dead server's connection stays, nor the helper.
    let deadline = std::time::Instant::now() + crate::support::LIMIT;
    loop {
        let left = crate::support::docker(&["top", &container, "-eo", "pid,args"]);
        if running(&left, "connect") + running(&left, "serve") == 0 {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{left:?}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    stack.boot().await;
    let again = stack
        .until(&format!("/agents/{id}"), |i| i["status"] == "running")
        .await;
    assert_eq!(again["id"], json!(id));
    stack.settle().await;
}
