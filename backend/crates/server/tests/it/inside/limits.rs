//! Large files, and many requests at once.

use serde_json::json;

use super::{boxed, launch, said, start, told};
use crate::support::Stack;

#[tokio::test]
async fn large_files_pass_whole() {
    let stack = start("").await;
    let id = launch(&stack).await;
    let megabytes = 8 << 20;
    std::fs::write(stack.workspace().join("over"), "x".repeat(megabytes + 1)).unwrap();
    let lines = said(
        &stack,
        &id,
        "/fs-fill full 8m\n/fs-read-many full 3\n/fs-read over",
    )
    .await;
    assert_eq!(lines[..2], ["fs-fill: {}", "fs-read-many: 3 of 3"]);
    assert!(
        lines[2].starts_with("fs-read: error -32602 /workspace/over: has more than the 8388608 bytes"),
        "{}",
        lines[2]
    );
    assert_eq!(
        std::fs::metadata(stack.workspace().join("full")).unwrap().len(),
        megabytes as u64
    );
    let events = told(&stack, &id, "fs").await;
    assert!(events.iter().all(|e| e.to_string().len() < 1000), "no contents");
    stack.settle().await;
}

#[tokio::test]
async fn more_than_can_be_open_is_refused_and_the_rest_is_answered() {
    let stack = start("").await;
    let id = launch(&stack).await;
    let script = format!(
        "/term t sleep 1\n{}\n/answers",
        "/term-wait t later\n".repeat(300)
    );
    let lines = said(&stack, &id, &script).await;
    let count = |what: &str| lines.iter().filter(|line| line.as_str() == what).count();
    assert_eq!(
        (
            count("answer: code 0"),
            count("answer: error -32603 too many requests are open")
        ),
        (256, 44)
    );
    stack.settle().await;
}

#[tokio::test]
async fn a_helper_that_cannot_run_is_an_error_for_who_asks_and_no_more() {
    // Nothing can be put where a file is in the way.
    let broken =
        boxed("broken", "") + "[[mounts]]\nsource = '/bin/busybox'\ntarget = '/.kandev'\nread_only = true\n";
    let stack = Stack::with_types(&[], &[("broken", &broken)]).await;
    let id = stack.launch(json!({"agent_type": "broken"})).await;
    let lines = said(&stack, &id, "/fs-read a\n/term t echo\n/say on it goes").await;
    let words = "error -32603 files and terminals in the container cannot be used";
    assert_eq!(
        lines,
        [
            format!("fs-read: {words}"),
            format!("term: t {words}"),
            "on it goes".to_owned()
        ]
    );
    stack.settle().await;
}
