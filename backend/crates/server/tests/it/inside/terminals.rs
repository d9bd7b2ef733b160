//! `terminal/*`.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{launch, lines, processes, running, said, says, start, told};
use crate::support::LIMIT;

#[tokio::test]
async fn a_command_runs_and_its_output_is_seen_by_agent_and_callers() {
    let stack = start("").await;
    let id = launch(&stack).await;
    std::fs::create_dir(stack.workspace().join("sub")).unwrap();
    let script = [
        "/term a /bin/sh -c echo\\040out;echo\\040err>&2;exit\\0403",
        "/term b cwd=/workspace/sub env=GREETING=a=b -- echo $GREETING $(pwd) $KANDEV_TASK_ID | cat",
        "/term c cwd=/workspace/sub pwd",
        "/term-wait b",
        "/term-output b",
        "/term-wait c",
        "/term-output c",
        "/term-release c",
        "/term-output c",
        "/term-release c",
    ];
    let script = script.join("\n").replace("\\040", "\u{a0}");
    // The mock agent splits at spaces, and knows no quotes: the first command is given in one word otherwise.
    let script = script.replace(
        "/term a /bin/sh -c echo\u{a0}out;echo\u{a0}err>&2;exit\u{a0}3",
        "/term a -- echo out; echo err >&2; exit 3\n/term-wait a\n/term-output a",
    );
    let lines = said(&stack, &id, &script).await;
    let task = stack.instance(&id).await["task_id"].as_str().unwrap().to_owned();
    assert!(lines[0].starts_with("term: a \"term-"), "{lines:?}");
    assert_eq!(
        lines[1..3],
        [
            "term-wait: code 3".to_owned(),
            r#"term-output: truncated=false code 3 "out\nerr\n""#.to_owned()
        ]
    );
    assert_eq!(
        lines[5..],
        [
            "term-wait: code 0".to_owned(),
            format!(r#"term-output: truncated=false code 0 "a=b /workspace/sub {task}\n""#),
            "term-wait: code 0".to_owned(),
            r#"term-output: truncated=false code 0 "/workspace/sub\n""#.to_owned(),
            "term-release: {}".to_owned(),
            format!(
                "term-output: error -32002 there is no terminal '{}'",
                id_of(&lines[4])
            ),
            format!(
                "term-release: error -32002 there is no terminal '{}'",
                id_of(&lines[4])
            ),
        ]
    );
    let events = told(&stack, &id, "terminal").await;
    let of = |operation: &str, terminal: &str| -> Vec<_> {
        let wanted = |e: &&serde_json::Value| e["operation"] == operation && e["terminal_id"] == terminal;
        events.iter().filter(wanted).cloned().collect()
    };
    let first = id_of(&lines[0]);
    let created = of("create", first);
    assert_eq!(
        created[0],
        json!({"operation": "create", "request_id": 0, "terminal_id": first, "command": "echo out; echo err >&2; exit 3",
               "args": [], "env": [], "cwd": "/workspace", "outcome": "pending"})
    );
    assert_eq!(created[1]["outcome"], "ok");
    let text: String = of("output", first)
        .iter()
        .map(|e| e["text"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(text, "out\nerr\n");
    assert_eq!(
        of("exit", first)[0]["exit"],
        json!({"exitCode": 3, "signal": null})
    );
    assert_eq!(
        of("create", id_of(&lines[3]))[0]["env"],
        json!(["GREETING"]),
        "names only"
    );
    // The turn is over, and with it the terminals that were left.
    let released: Vec<_> = events.iter().filter(|e| e["by"] == "turn_end").collect();
    assert_eq!(released.len(), 2, "{events:#?}");
    let later = said(&stack, &id, &format!("/term-output {first}")).await;
    assert_eq!(
        later,
        [format!(
            "term-output: error -32002 there is no terminal '{first}'"
        )]
    );
    stack.settle().await;
}

/// Directives that wait until this file is in the workspace.
fn until_there(file: &str) -> String {
    format!("/term {file} -- until [ -e {file} ]; do sleep 0.1; done\n/term-wait {file}")
}

/// The id in what the mock agent says of a new terminal.
fn id_of(line: &str) -> &str {
    line.split('"').nth(1).unwrap_or_else(|| panic!("{line}"))
}

#[tokio::test]
async fn endless_output_is_kept_within_its_limit() {
    let stack = start("").await;
    let id = launch(&stack).await;
    said(&stack, &id, "/term t echo warm\n/term-wait t").await;
    let before = stack.kandev.as_ref().unwrap().memory();
    let script = "/term a limit=1000 yes né\n/term b yes\n/sleep 3000\n/term-output a\n/term-output b\n/term-kill a\n/term-kill b\n/term-wait a\n/term-wait b\n/term-output a";
    let turn = stack.turn(&id, script).await;
    let after = stack.kandev.as_ref().unwrap().memory();
    let lines = lines(&turn);
    let text = |line: &str| -> String {
        let json = line.split_once(" \"").unwrap().1;
        serde_json::from_str(&format!("\"{json}")).unwrap()
    };
    assert!(
        lines[2].starts_with("term-output: truncated=true running "),
        "{}",
        lines[2]
    );
    let small = text(&lines[2]);
    assert!((997..=1000).contains(&small.len()), "{}", small.len());
    assert!(
        small
            .trim_start_matches('é')
            .trim_start()
            .split_inclusive('\n')
            .rev()
            .skip(1)
            .all(|l| l.ends_with("né\n") || l == "\n"),
        "{small}"
    );
    assert!(!small.contains('\u{FFFD}'));
    assert_eq!(
        lines[3], "term-output: truncated=true running 1048576 bytes",
        "the default"
    );
    assert_eq!(lines[6..8], ["term-wait: signal SIGKILL"; 2]);
    assert!(
        lines[8].starts_with("term-output: truncated=true signal SIGKILL "),
        "{}",
        lines[8]
    );
    assert!(after < before + (24 << 20), "{before} {after}");
    let events = told(&stack, &id, "terminal").await;
    let shown: usize = events
        .iter()
        .filter_map(|e| e["text"].as_str())
        .map(str::len)
        .sum();
    assert!(shown < 2 * (256 << 10) + 2 * (256 << 10), "{shown}");
    assert!(
        events.iter().any(|e| e["skipped"].is_u64()),
        "what is left out is told"
    );
    stack.settle().await;
}

#[tokio::test]
async fn kill_and_release_reach_the_whole_group() {
    let stack = start("").await;
    let id = launch(&stack).await;
    let script = format!(
        "/term a -- sleep 1001 & sleep 1002\n/term b -- sleep 2001 & sleep 2002\n/term c -- sleep 3001 & exit 7\n/term-wait c\n\
         {}\n/term-kill a\n/term-wait a\n/term-release b\n/term-output c\n/term-release c\n/stderr gone\n{}",
        until_there("go"),
        until_there("end"),
    );
    let path = says(&stack, &id, &script, "term-wait: code 7").await;
    let sleeps = [
        "sleep 1001",
        "sleep 1002",
        "sleep 2001",
        "sleep 2002",
        "sleep 3001",
    ];
    let deadline = Instant::now() + LIMIT;
    loop {
        let before = processes(&stack, &id).await;
        if sleeps.iter().all(|sleep| running(&before, sleep) >= 1) {
            break;
        }
        assert!(Instant::now() < deadline, "{before:?}");
    }
    std::fs::write(stack.workspace().join("go"), "").unwrap();
    stack
        .until(&format!("/agents/{id}/logs?stream=stderr"), |page| {
            page["total"] == 1
        })
        .await;
    let after = processes(&stack, &id).await;
    for sleep in sleeps {
        assert_eq!(running(&after, sleep), 0, "{sleep}: {after:?}");
    }
    std::fs::write(stack.workspace().join("end"), "").unwrap();
    let ended = stack.until(&path, |t| t["finished_at"].is_string()).await;
    let lines = lines(&ended);
    assert_eq!(lines[3], "term-wait: code 7");
    assert_eq!(
        lines[5..11],
        [
            "term-wait: code 0",
            "term-kill: {}",
            "term-wait: signal SIGKILL",
            "term-release: {}",
            r#"term-output: truncated=false code 7 """#,
            "term-release: {}",
        ]
    );
    stack.settle().await;
}

#[tokio::test]
async fn what_cannot_run_or_was_never_created_is_an_error() {
    let stack = start("").await;
    let id = launch(&stack).await;
    let script = [
        "/term a none",
        "/term b none with args",
        "/term c cwd=/none echo",
        "/term d cwd=relative echo",
        "/term e /workspace",
        "/term-output ghost",
        "/term-wait ghost",
        "/term-kill ghost",
        "/term-release ghost",
        "/request terminal/output {}",
        "/request terminal/create {\"command\":7}",
        "/term f -- no-such-program in a line",
        "/term-wait f",
        "/term-show ghost",
    ];
    let lines = said(&stack, &id, &script.join("\n")).await;
    let ghost = |name: &str| format!("{name}: error -32002 there is no terminal 'ghost'");
    assert_eq!(
        lines[..11],
        [
            "term: a error -32002 there is no program 'none'".to_owned(),
            "term: b error -32002 there is no program 'none'".to_owned(),
            "term: c error -32602 the working directory '/none' is not there".to_owned(),
            "term: d error -32602 the working directory 'relative' is not an absolute path".to_owned(),
            "term: e error -32603 permission denied".to_owned(),
            ghost("term-output"),
            ghost("term-wait"),
            ghost("term-kill"),
            ghost("term-release"),
            "request: error -32602 params.terminalId must be a string".to_owned(),
            "request: error -32602 params.command must be a string".to_owned(),
        ]
    );
    assert_eq!(lines[12], "term-wait: code 127", "the shell says so");
    stack.settle().await;
}

#[tokio::test]
async fn nothing_that_runs_holds_anything_else_up() {
    let stack = start("").await;
    let id = launch(&stack).await;
    std::fs::write(stack.workspace().join("a"), "x").unwrap();
    let script = "/term t -- until [ -e go ]; do sleep 0.1; done\n/term-wait t later\n/term-wait t later\n/fs-read-many a 100\n/term u echo hi\n/term-wait u\n/say between\n/answers";
    let path = says(&stack, &id, script, "between").await;
    // It is waited for until now.
    std::fs::write(stack.workspace().join("go"), "").unwrap();
    let ended = stack.until(&path, |t| t["finished_at"].is_string()).await;
    assert_eq!(
        lines(&ended)[1..],
        [
            "fs-read-many: 100 of 100",
            lines(&ended)[2].as_str(),
            "term-wait: code 0",
            "betweenanswer: code 0",
            "answer: code 0",
        ]
    );
    stack.settle().await;
}

#[tokio::test]
async fn all_is_released_when_the_turn_or_the_instance_ends() {
    let stack = start("").await;
    let id = launch(&stack).await;
    said(
        &stack,
        &id,
        "/term t sleep 1001\n/term u -- sleep 1002 & exit 0\n/term-wait u",
    )
    .await;
    let deadline = Instant::now() + LIMIT;
    while running(&processes(&stack, &id).await, "sleep 100") > 0 {
        assert!(Instant::now() < deadline, "{:?}", processes(&stack, &id).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // In the middle of a turn: a cancel, whose end releases, and then a stop with one waited for.
    let path = says(&stack, &id, "/term t sleep 1003\n/term-wait t", "term-").await;
    stack.cancel(&id).await;
    let ended = stack.until(&path, |t| t["finished_at"].is_string()).await;
    assert_eq!(ended["status"], "cancelled");
    says(&stack, &id, "/term t sleep 1004\n/term-wait t", "term-").await;
    stack
        .post(&format!("/agents/{id}/stop"), &json!({"force": true}))
        .await
        .expect(200);
    assert_eq!(stack.ended(&id).await["status"], "stopped");
    let events = told(&stack, &id, "terminal").await;
    let released = |by: &str| events.iter().filter(|e| e["by"] == by).count();
    assert_eq!(
        (released("turn_end"), released("instance_end")),
        (3, 1),
        "{events:#?}"
    );
    let abandoned: Vec<_> = events.iter().filter(|e| e["outcome"] == "abandoned").collect();
    assert_eq!(abandoned.len(), 1, "{events:#?}");
    stack.settle().await;
}
