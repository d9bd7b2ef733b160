//! CASE 25 with output whose lines differ: the newest is what is kept, and whoever keeps it does not grow.

use serde_json::Value;

use super::{launch, said, says, start};
use crate::support::{Stack, docker};

/// What the helper in the instance's container may have used at most, whatever a terminal's process writes.
const HELPER: u64 = 24 << 20;

/// A command that writes so many numbered lines, for ever without a number.
fn counter(lines: &str) -> String {
    format!("i=0; while [ $i != '{lines}' ]; do i=$((i+1)); echo \"né $i\"; done")
}

/// The numbers of the whole lines of an output, after what may be a part of one.
fn numbers(output: &str) -> Vec<u64> {
    assert!(!output.contains('\u{fffd}'), "{output}");
    let (_, whole) = output.split_once('\n').unwrap();
    let number = |line: &str| line.strip_prefix("né ").unwrap().parse().unwrap();
    whole.lines().map(number).collect()
}

/// The output that the mock agent said a terminal has, and what is said before it.
fn output(line: &str) -> (&str, String) {
    let (before, text) = line.split_once(" \"").unwrap();
    (before, serde_json::from_str(&format!("\"{text}")).unwrap())
}

/// The most memory that the helper of an instance has used, in bytes.
async fn peak_of_helper(stack: &Stack, id: &str) -> u64 {
    let container = stack.instance(id).await["container_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let processes = docker(&["top", &container, "-eo", "pid,args"]).split_off(1);
    let peaks = processes.iter().filter_map(|line| {
        let (pid, args) = line.trim().split_once(' ')?;
        if !args.trim_start().starts_with("/.kandev/") {
            return None;
        }
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        peak.trim().trim_end_matches(" kB").parse::<u64>().ok()
    });
    peaks.max().unwrap_or_else(|| panic!("no helper: {processes:?}")) << 10
}

#[tokio::test]
async fn the_newest_of_an_endless_output_is_kept() {
    let stack = start("").await;
    let id = launch(&stack).await;
    let (last, total) = (60_000, "60000");
    let script = format!(
        "/term a limit=1000 -- {0}\n/term b limit=100k -- {0}\n/term-wait a\n/term-wait b\n/term-output a\n/term-output b 64",
        counter(total)
    );
    let lines = said(&stack, &id, &script).await;
    assert_eq!(lines[2..4], ["term-wait: code 0"; 2]);
    let (before, text) = output(&lines[4]);
    assert_eq!(before, "term-output: truncated=true code 0");
    // A character that would be cut is left out.
    assert!((999..=1000).contains(&text.len()), "{}", text.len());
    let kept = numbers(&text);
    assert_eq!(
        kept,
        (last - kept.len() as u64 + 1..=last).collect::<Vec<_>>(),
        "the last ones, without a gap"
    );
    assert!(kept.len() > 90, "{}", kept.len());
    let (before, end) = output(&lines[5]);
    let bytes = before
        .strip_prefix("term-output: truncated=true code 0 ")
        .and_then(|rest| rest.strip_suffix(" bytes …"))
        .unwrap_or_else(|| panic!("{before}"));
    assert!([102_399, 102_400].contains(&bytes.parse().unwrap()), "{bytes}");
    assert_eq!(numbers(&end).last(), Some(&last));
    stack.settle().await;
}

#[tokio::test]
async fn who_keeps_endless_output_does_not_grow_with_it() {
    let stack = start("").await;
    let id = launch(&stack).await;
    let forever = counter("");
    let script = format!(
        "/term a limit=1000 -- {forever}\n/term b -- {forever}\n/term c yes\n/say made\\n\n/await measured\n\
         /term-output a\n/term-kill a\n/term-wait a\n/term-output a\n/term-kill b\n/term-kill c\n/term-wait b\n/term-output b 64\n\
         /say ended\n/await end"
    );
    let path = says(&stack, &id, &script, "made").await;
    // Until far more was written than anybody may keep: events tell where in the output they are.
    let many = 64_u64 << 20;
    let written = |page: &Value| {
        let events = page["events"].as_array().unwrap();
        events.iter().filter_map(|e| e["data"]["offset"].as_u64()).max()
    };
    let events = format!("/agents/{id}/events?kind=terminal&limit=5000");
    stack
        .until(&events, |page| written(page).is_some_and(|bytes| bytes > many))
        .await;
    let peak = peak_of_helper(&stack, &id).await;
    assert!(peak < HELPER, "{peak}");
    std::fs::write(stack.workspace().join("measured"), "").unwrap();
    let ended = stack
        .until(&path, |t| t["text"].as_str().unwrap().contains("ended"))
        .await;
    let peak = peak_of_helper(&stack, &id).await;
    assert!(peak < HELPER, "{peak}");
    std::fs::write(stack.workspace().join("end"), "").unwrap();
    let lines = super::lines(&ended);
    let [running, killed] = [4, 7].map(|n| {
        let (before, text) = output(&lines[n]);
        (before.to_owned(), numbers(&text))
    });
    assert_eq!(running.0, "term-output: truncated=true running");
    assert_eq!(killed.0, "term-output: truncated=true signal SIGKILL");
    for kept in [&running.1, &killed.1] {
        let first = kept[0];
        assert_eq!(*kept, (first..first + kept.len() as u64).collect::<Vec<_>>());
    }
    assert!(running.1[0] > 1000 && killed.1.last() >= running.1.last());
    stack.settle().await;
}
