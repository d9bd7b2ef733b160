//! How much of the container's an agent may have open.

use super::{launch, said, start};

#[tokio::test]
async fn more_terminals_than_there_may_be_are_refused_until_one_is_released() {
    let stack = start("").await;
    let id = launch(&stack).await;
    let most = 64;
    let mut script: Vec<_> = (1..=most + 2).map(|n| format!("/term t{n} sleep 1000")).collect();
    script.push("/term-release t1\n/term again echo\n/term-wait again\n/term over echo".to_owned());
    let lines = said(&stack, &id, &script.join("\n")).await;
    let created = |line: &String| line.starts_with("term: t") && line.contains("\"term-");
    assert_eq!(lines.iter().filter(|line| created(line)).count(), most);
    for n in [most + 1, most + 2] {
        assert_eq!(
            lines[n - 1],
            format!("term: t{n} error -32603 {most} terminals are open")
        );
    }
    assert_eq!(lines[most + 2], "term-release: {}");
    assert!(lines[most + 3].starts_with("term: again \"term-"), "{lines:?}");
    assert_eq!(lines[most + 4], "term-wait: code 0");
    // One that has ended is there until it is released.
    assert_eq!(
        lines[most + 5],
        format!("term: over error -32603 {most} terminals are open")
    );
    // The end of the turn has released them all.
    let again = said(&stack, &id, "/term t echo\n/term-wait t").await;
    assert_eq!(again[1], "term-wait: code 0");
    stack.settle().await;
}
