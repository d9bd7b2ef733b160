//! What an agent says while no server runs: whole, or a gap that says what is missing.

use serde_json::{Value, json};

use crate::recovery::{assert_whole, launch, stored_stdout, turn_ended};
use crate::support::{LIMIT, Stack};

/// A log that holds about a thousand updates.
const SMALL_LOG: [(&str, &str); 2] = [
    ("KANDEV_CONTAINER_LOG_FILE_BYTES", "262144"),
    ("KANDEV_CONTAINER_LOG_FILES", "2"),
];

fn copy(stack: &Stack, id: &str) -> Vec<u8> {
    std::fs::read(stack.workspace().join(format!("{id}.copy"))).unwrap()
}

/// Waits until the agent has said so much, whether or not a server hears it.
pub(crate) async fn has_said(stack: &Stack, id: &str, enough: impl Fn(&[u8]) -> bool) {
    let said = async {
        while !enough(&copy(stack, id)) {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, said)
        .await
        .expect("the agent is silent");
}

pub(crate) fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|w| w == text.as_bytes())
}

async fn heard(stack: &Stack, id: &str, turn: &str, text: &str) {
    let path = format!("/agents/{id}/turns/{turn}");
    stack
        .until(&path, |t| t["text"].as_str().unwrap().contains(text))
        .await;
}

async fn gaps(stack: &Stack, id: &str) -> Vec<Value> {
    let events = stack.events(id).await;
    let gaps = events.iter().filter(|e| e["kind"] == "gap");
    gaps.map(|e| e["data"].clone()).collect()
}

/// A turn that says "before", and all else up to "after" while there is no server: whose it was.
async fn says_without_server(stack: &mut Stack, script: &str) -> String {
    let id = launch(stack).await;
    let turn = stack.prompt(&id, script).await;
    heard(stack, &id, &turn, "before").await;
    stack.kill().await;
    has_said(stack, &id, |said| contains(said, "after")).await;
    stack.boot().await;
    let ended = turn_ended(stack, &id, &turn).await;
    assert_eq!(ended["status"], "completed");
    id
}

#[tokio::test]
async fn long_lines_of_a_time_without_server_are_whole() {
    let mut stack = Stack::start().await;
    let script = "/say before\n/sleep 1500\n/line 100k\n/line 5m\n/line 16384\n/line 16385\n/say after";
    let id = says_without_server(&mut stack, script).await;
    assert_whole(&stack, &id).await;
    assert_eq!(gaps(&stack, &id).await, Vec::<Value>::new());
    stack.settle().await;
}

/// The first half of a line was heard by a server that died; the second comes before the next one, or after it has begun.
#[tokio::test]
async fn a_line_that_was_half_heard_is_whole() {
    let mut stack = Stack::start().await;
    for (size, without_server) in [("100k", true), ("5m", true), ("100k", false)] {
        let id = launch(&stack).await;
        let turn = stack
            .prompt(&id, &format!("/say before\n/halves {size} 4000\n/say after"))
            .await;
        heard(&stack, &id, &turn, "before").await;
        let so_far = copy(&stack, &id).len();
        has_said(&stack, &id, |said| said.len() > so_far).await;
        stack.kill().await;
        if without_server {
            has_said(&stack, &id, |said| contains(said, "after")).await;
        }
        stack.boot().await;
        let ended = turn_ended(&stack, &id, &turn).await;
        assert_eq!(ended["status"], "completed");
        assert_whole(&stack, &id).await;
        assert_eq!(gaps(&stack, &id).await, Vec::<Value>::new(), "{size}");
    }
    stack.settle().await;
}

/// The engine's log spoils characters that lie across its pieces of 16 KiB: what comes of them is said.
#[tokio::test]
async fn characters_that_the_log_has_spoilt_are_a_gap() {
    let mut stack = Stack::start().await;
    let script = "/say before\n/sleep 1500\n/large-chunk-utf8 300k\n/line 100k\n/say after";
    let id = says_without_server(&mut stack, script).await;

    let written = copy(&stack, &id);
    let written: Vec<&str> = std::str::from_utf8(&written).unwrap().lines().collect();
    let stored = stored_stdout(&stack, &id).await;
    assert_eq!(stored.len(), written.len());
    let mut spoilt = Vec::new();
    for (number, line) in &stored {
        let (line, whole) = (std::str::from_utf8(line).unwrap(), written[*number as usize - 1]);
        if line != whole {
            let kept = line.chars().filter(|c| *c != char::REPLACEMENT_CHARACTER).count();
            assert!(whole.starts_with(line.split(char::REPLACEMENT_CHARACTER).next().unwrap()));
            spoilt.push((*number, whole.chars().count() - kept));
        }
    }
    assert_eq!(spoilt.len(), 1, "no character lay across pieces");
    let (number, characters) = spoilt[0];
    let [gap] = &gaps(&stack, &id).await[..] else {
        panic!("not one gap");
    };
    let expected = json!({
        "reason": gap["reason"], "stream": "stdout", "line": number, "characters": characters,
    });
    assert_eq!(*gap, expected);
    stack.settle().await;
}

#[tokio::test]
async fn a_log_that_was_rotated_is_taken_up_where_it_was_left() {
    let mut stack = Stack::with(&SMALL_LOG).await;
    let id = launch(&stack).await;
    // The container's first lines are gone, and all is stored.
    assert_eq!(stack.turn(&id, "/flood 5000 100").await["status"], "completed");
    for _ in 0..2 {
        let turn = stack
            .prompt(
                &id,
                "/say before\n/sleep 1500\n/flood 300 100\n/say after\n/sleep 500",
            )
            .await;
        heard(&stack, &id, &turn, "before").await;
        let so_far = copy(&stack, &id).len();
        stack.kill().await;
        has_said(&stack, &id, |said| contains(&said[so_far..], "after")).await;
        stack.boot().await;
        let ended = turn_ended(&stack, &id, &turn).await;
        assert_eq!(ended["status"], "completed");
    }
    assert_whole(&stack, &id).await;
    assert_eq!(gaps(&stack, &id).await, Vec::<Value>::new());
    stack.settle().await;
}

#[tokio::test]
async fn what_was_rotated_away_is_a_gap_and_the_rest_is_stored_once() {
    let mut stack = Stack::with(&SMALL_LOG).await;
    let id = launch(&stack).await;
    let turn = stack
        .prompt(
            &id,
            "/say before\n/sleep 1500\n/flood 20000 100\n/say after\n/slow 5 300",
        )
        .await;
    heard(&stack, &id, &turn, "before").await;
    stack.kill().await;
    has_said(&stack, &id, |said| contains(said, "after")).await;
    stack.boot().await;
    let ended = turn_ended(&stack, &id, &turn).await;
    assert_eq!(ended["status"], "completed");
    // Lines cannot be counted from the beginning any more, but what is stored is found again.
    let later = stack.prompt(&id, "/slow 30 100\n/say done").await;
    heard(&stack, &id, &later, "slow 3/").await;
    stack.kill().await;
    stack.boot().await;
    assert_eq!(turn_ended(&stack, &id, &later).await["updates"], 31);

    let [gap] = &gaps(&stack, &id).await[..] else {
        panic!("{:#?}", gaps(&stack, &id).await);
    };
    let before = gap["stored_lines"]["stdout"].as_u64().unwrap() as usize;
    assert!(
        gap["stored_until"].as_str().unwrap() < gap["log_begins_at"].as_str().unwrap(),
        "{gap:#}"
    );
    let written = copy(&stack, &id);
    let written: Vec<&[u8]> = written.trim_ascii_end().split(|b| *b == b'\n').collect();
    let stored: Vec<Vec<u8>> = stored_stdout(&stack, &id).await.into_values().collect();
    let after = stored.len() - before;
    assert!(
        after > 300 && stored.len() < written.len(),
        "{after} of {}",
        written.len()
    );
    assert!(stored[..before] == written[..before], "what was stored before");
    assert!(
        stored[before..] == written[written.len() - after..],
        "what the log had"
    );
    stack.settle().await;
}
