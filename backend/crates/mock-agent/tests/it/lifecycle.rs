//! Ends of the process: exits, crashes, signals, memory, stdin.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::Agent;

const SIGABRT: i32 = 6;

fn signal(agent: &Agent, name: &str) {
    let status = Command::new("kill")
        .args([&format!("-{name}"), &agent.child.id().to_string()])
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn exits_as_told() {
    for (script, code) in [
        ("/crash", 1),
        ("/crash 3", 3),
        ("/exit 7", 7),
        ("/exit 0", 0),
        ("/partial", 1),
        ("/exit 9 30\n/sleep 60000", 9),
    ] {
        let mut agent = Agent::ready(&[]);
        let id = agent.send_prompt(&format!("/say before\n{script}\n/say after"));
        agent.wait_for_text("before");
        let mut last = Vec::new();
        while let Some(line) = agent.try_line() {
            last = line;
        }
        assert_eq!(agent.child.wait().unwrap().code(), Some(code), "{script}");
        match serde_json::from_slice::<Value>(&last) {
            Ok(frame) => assert_ne!(frame["id"], id, "{script}"),
            Err(_) => assert_eq!(last.is_empty(), script != "/partial", "{script}"),
        }
    }
}

#[test]
fn exits_after_the_turn() {
    let mut agent = Agent::ready(&[]);
    let ended = agent.prompt("/exit-after-turn 4\n/say done");
    assert_eq!((ended.text().as_str(), ended.stop_reason()), ("done", "end_turn"));
    assert_eq!(agent.exit().code(), Some(4));
}

#[test]
fn aborts() {
    let mut agent = Agent::ready(&[]);
    agent.send_prompt("/abort");
    assert_eq!(agent.exit().signal(), Some(SIGABRT));
}

#[test]
fn memory_runs_out() {
    // An address space limit stands in for the container's memory limit: there the kernel kills, here the allocator
    // gives up.
    for (script, ends) in [("/child-oom", false), ("/oom", true)] {
        let dir = tempfile::tempdir().unwrap();
        let mut agent = Agent::spawn_limited(dir.path(), 400 << 10);
        agent.handshake();
        agent.open();
        let id = agent.send_prompt(script);
        if ends {
            assert_eq!(agent.exit().signal(), Some(SIGABRT));
        } else {
            let text = agent.collect(id, |f| panic!("{f}")).text();
            assert!(text.starts_with("child-oom: signal: 6"), "{text}");
        }
    }
}

#[test]
fn sigterm_ends_it_unless_ignored() {
    let mut agent = Agent::ready(&[]);
    signal(&agent, "TERM");
    assert_eq!(agent.exit().code(), Some(143));

    let mut agent = Agent::ready(&[]);
    agent.prompt("/ignore-term");
    signal(&agent, "TERM");
    assert_eq!(agent.prompt("/say alive").text(), "alive");
    signal(&agent, "KILL");
    assert_eq!(agent.exit().signal(), Some(9));
}

#[test]
fn the_end_of_stdin_lets_turns_finish() {
    let mut agent = Agent::ready(&[]);
    let id = agent.send_prompt("/sleep 100\n/say done");
    agent.stdin = None;
    let ended = agent.collect(id, |f| panic!("{f}"));
    assert_eq!((ended.text().as_str(), ended.stop_reason()), ("done", "end_turn"));
    assert_eq!(agent.exit().code(), Some(0));

    for (script, frames) in [("/hang", 0), ("/permission unannounced", 1), ("/request x", 1)] {
        let mut agent = Agent::ready(&[]);
        let start = Instant::now();
        let id = agent.send_prompt(script);
        (0..frames).for_each(|_| drop(agent.frame()));
        agent.stdin = None;
        agent.answer(id);
        assert_eq!(agent.exit().code(), Some(0), "{script}");
        assert!(start.elapsed() < Duration::from_secs(3), "{script}");
    }
}

#[test]
fn the_end_of_stdin_can_be_ignored() {
    let mut agent = Agent::ready(&[]);
    agent.prompt("/ignore-eof");
    agent.stdin = None;
    assert!(agent.silent_for(Duration::from_millis(200)));
    assert!(agent.child.try_wait().unwrap().is_none());
}
