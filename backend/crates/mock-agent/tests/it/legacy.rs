//! The line format before JSON-RPC.

use serde_json::Value;

use crate::support::Agent;

fn lines(task: &str, code: i32) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let env = [
        ("MOCK_DIALECT", "legacy"),
        ("KANDEV_INSTANCE_ID", "agent-7"),
        ("KANDEV_TASK_ID", "task-7"),
        ("TASK_DESCRIPTION", task),
    ];
    let mut agent = Agent::spawn(dir.path(), &env);
    let mut lines = Vec::new();
    while let Some(line) = agent.try_line() {
        lines.push(serde_json::from_slice(&line).unwrap());
    }
    assert_eq!(agent.exit().code(), Some(code));
    lines
}

#[test]
fn a_task_runs_to_its_result() {
    let lines = lines("Tidy up", 0);
    for line in &lines {
        assert_eq!(line["agent_id"], "agent-7");
        assert_eq!(line["task_id"], "task-7");
        let time = line["timestamp"].as_str().unwrap();
        assert!(time.ends_with('Z') && time.len() == 24, "{time}");
    }
    let of = |kind: &str| -> Vec<&Value> {
        let wanted = lines.iter().filter(|line| line["type"] == kind);
        wanted.map(|line| &line["data"]).collect()
    };
    assert_eq!(lines[0]["data"]["status"], "started");
    let progress: Vec<_> = of("progress").iter().map(|d| d["progress"].clone()).collect();
    assert_eq!(progress, [0, 25, 50, 75, 100]);
    assert_eq!(of("heartbeat").len(), 1);
    assert!(of("log")[0]["message"].as_str().unwrap().contains("Tidy up"));
    assert_eq!(of("result")[0]["status"], "completed");
    assert_eq!(lines.last().unwrap()["type"], "result");
}

#[test]
fn a_task_can_fail() {
    let failed = lines("/say hi\n/error 7 no luck\n/say not reached", 1);
    let kinds: Vec<&str> = failed.iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["status", "status", "log", "error", "result"]);
    assert_eq!(failed[4]["data"]["status"], "failed");
    assert_eq!(lines("/crash 5", 5).len(), 2);
}

#[test]
fn a_task_says_all_six_types_right_and_wrong() {
    let said = lines(
        "/progress 40 a.rs\n/log warn slow\n/status paused\n/heartbeat\n/of-type novel x\n/bare log\n/huge 2k\n\
         /slow 2 1\n/result cancelled enough\n/exit 0",
        0,
    );
    let said: Vec<(&str, &Value)> = said
        .iter()
        .skip(2)
        .map(|line| (line["type"].as_str().unwrap(), &line["data"]))
        .collect();
    let kinds: Vec<&str> = said.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(
        kinds,
        [
            "progress",
            "log",
            "status",
            "heartbeat",
            "novel",
            "log",
            "log",
            "log",
            "log",
            "result"
        ]
    );
    assert_eq!(said[0].1["progress"], 40);
    assert_eq!(said[1].1["level"], "warn");
    assert_eq!(said[2].1["status"], "paused");
    assert!(said[5].1.is_null());
    assert_eq!(said[6].1["message"].as_str().unwrap().len(), 2048);
    assert_eq!(said[8].1["message"], "slow 2/2");
    assert_eq!(said[9].1["status"], "cancelled");
}
