//! The server dies or ends; the agents run on, and the next server takes them up.

use std::collections::BTreeMap;
use std::time::Duration;

use kandev_store::record::{Source, unpack};
use rustix::process::Signal;
use serde_json::{Value, json};
use sqlx::Row as _;

use crate::support::{LIMIT, Stack};

/// Every line of the agent's stdout that is stored, by its number.
pub(crate) async fn stored_stdout(stack: &Stack, id: &str) -> BTreeMap<u64, Vec<u8>> {
    let pool = stack.database.pool().await;
    let sql = "SELECT body FROM journal WHERE instance_id = $1::uuid ORDER BY first_seq";
    let rows = sqlx::query(sql).bind(id).fetch_all(&pool).await.unwrap();
    let mut lines = BTreeMap::new();
    for row in rows {
        for record in unpack(&row.get::<Vec<u8>, _>(0)).unwrap() {
            if let Some(Source::Stdout(number)) = record.source {
                assert!(
                    lines.insert(number, record.line.to_vec()).is_none(),
                    "line {number} is stored twice"
                );
            }
        }
    }
    lines
}

/// What is stored equals the agent's own copy, line for line, and the events have no gap.
pub(crate) async fn assert_whole(stack: &Stack, id: &str) {
    let stored = stored_stdout(stack, id).await;
    let copy = copy_of(stack, id, stored.len()).await;
    let written: Vec<&[u8]> = copy
        .strip_suffix(b"\n")
        .unwrap_or(&copy)
        .split(|b| *b == b'\n')
        .collect();
    assert_eq!(
        stored.keys().copied().collect::<Vec<_>>(),
        (1..=written.len() as u64).collect::<Vec<_>>()
    );
    for (n, line) in written.iter().enumerate() {
        let stored = &stored[&(n as u64 + 1)];
        assert!(
            stored == line,
            "line {}: {} and {}",
            n + 1,
            show(stored),
            show(line)
        );
    }
    let seqs: Vec<_> = stack
        .events(id)
        .await
        .iter()
        .map(|e| e["seq"].as_i64().unwrap())
        .collect();
    assert_eq!(seqs, (1..=seqs.len() as i64).collect::<Vec<_>>());
}

/// The agent's own copy. It writes a line there once it has said it, and may come to that later than we do to the line.
async fn copy_of(stack: &Stack, id: &str, lines: usize) -> Vec<u8> {
    let path = stack.workspace().join(format!("{id}.copy"));
    let deadline = std::time::Instant::now() + LIMIT;
    loop {
        let copy = std::fs::read(&path).unwrap();
        let written = copy.split(|b| *b == b'\n').count() - 1;
        if written >= lines || std::time::Instant::now() > deadline {
            return copy;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Whether what is stored equals the agent's own copy.
pub(crate) async fn is_whole(stack: &Stack, id: &str) -> bool {
    let copy = std::fs::read(stack.workspace().join(format!("{id}.copy"))).unwrap();
    let mut stored = Vec::new();
    for line in stored_stdout(stack, id).await.into_values() {
        stored.extend(line);
        stored.push(b'\n');
    }
    stored == copy
}

fn show(line: &[u8]) -> String {
    String::from_utf8_lossy(&line[..line.len().min(120)]).into_owned()
}

/// An agent that keeps its own copy of what it writes.
pub(crate) async fn launch(stack: &Stack) -> String {
    launch_with(stack, json!({})).await
}

/// The same, with more in its launch.
pub(crate) async fn launch_with(stack: &Stack, mut with: Value) -> String {
    with["env"] = json!({"MOCK_TURN_COPY": "/workspace/copy"});
    let id = stack.launch(with).await;
    // One workspace for all: the copy is known by its instance.
    std::fs::rename(
        stack.workspace().join("copy"),
        stack.workspace().join(format!("{id}.copy")),
    )
    .unwrap();
    id
}

pub(crate) async fn turn_ended(stack: &Stack, id: &str, turn: &str) -> Value {
    // Not the turn itself, which has all its text.
    let path = format!("/agents/{id}/events?kind=turn_ended&limit=5000");
    let is_it = |e: &Value| e["turn_id"] == *turn;
    stack
        .until(&path, |page| page["events"].as_array().unwrap().iter().any(is_it))
        .await;
    stack.get(&format!("/agents/{id}/turns/{turn}")).await.expect(200)
}

#[tokio::test]
async fn a_turn_outlives_the_server_that_began_it() {
    let mut stack = Stack::start().await;
    let id = launch(&stack).await;
    let turn = stack
        .prompt(&id, "/slow 30 100\n/stderr careful\n/say done")
        .await;
    stack
        .until(&format!("/agents/{id}/turns/{turn}"), |t| {
            t["text"].as_str().unwrap().contains("slow 3/")
        })
        .await;
    stack.kill().await;
    stack.boot().await;
    let ended = turn_ended(&stack, &id, &turn).await;
    assert_eq!(
        (ended["status"].as_str(), ended["stop_reason"].as_str()),
        (Some("completed"), Some("end_turn"))
    );
    let text = ended["text"].as_str().unwrap();
    let expected = (1..=30)
        .map(|n| format!("slow {n}/30 "))
        .collect::<Vec<_>>()
        .concat();
    assert_eq!(text, format!("{expected}done"));
    assert_eq!(ended["updates"], 31);
    // Of two pipes, either may be the faster one.
    let logs = format!("/agents/{id}/logs?stream=stderr");
    stack.until(&logs, |page| page["total"] == 1).await;
    assert_eq!(stack.logs(&id, "stderr").await, ["careful"]);
    // Ids of requests go on, and so does everything else.
    assert_eq!(stack.turn(&id, "/say again").await["text"], "again");
    assert_whole(&stack, &id).await;
    stack.stop(&id).await;
    assert!(stack.containers().is_empty());
}

#[tokio::test]
async fn floods_and_long_lines_are_taken_up_whole_again_and_again() {
    let mut stack = Stack::start().await;
    let flood = launch(&stack).await;
    let lines = launch(&stack).await;
    let long = "/line 100k\n/sleep 30\n".repeat(40);
    let turns = [
        (
            &flood,
            stack
                .prompt(&flood, "/flood 40000 100\n/slow 40 50\n/flood 10000 100")
                .await,
        ),
        (&lines, stack.prompt(&lines, &long).await),
    ];
    // Any moments in the turns will do.
    for pause in [300, 700, 450] {
        tokio::time::sleep(Duration::from_millis(pause)).await;
        stack.kill().await;
        stack.boot().await;
    }
    for (id, turn) in &turns {
        let ended = turn_ended(&stack, id, turn).await;
        assert_eq!(ended["status"], "completed", "{ended:#}");
        assert_whole(&stack, id).await;
    }
}

#[tokio::test]
async fn what_ended_meanwhile_has_its_true_end() {
    let mut stack = Stack::start().await;
    let id = launch(&stack).await;
    let turn = stack
        .prompt(
            &id,
            "/say before\n/sleep 700\n/stderr last words\n/line 100k\n/crash 7",
        )
        .await;
    stack
        .until(&format!("/agents/{id}/turns/{turn}"), |t| t["text"] == "before")
        .await;
    stack.kill().await;
    stack.until_exited(&id).await;
    stack.boot().await;
    let instance = stack.ended(&id).await;
    assert_eq!(
        (&instance["status"], &instance["exit_code"]),
        (&json!("failed"), &json!(7))
    );
    assert_eq!(instance["error"]["code"], "agent_exited");
    assert_eq!(instance["stderr_tail"], "last words");
    let ended = turn_ended(&stack, &id, &turn).await;
    assert_eq!(
        (&ended["status"], &ended["updates"]),
        (&json!("failed"), &json!(2))
    );
    assert_whole(&stack, &id).await;
    assert!(stack.containers().is_empty());
}

#[tokio::test]
async fn cancelled_stays_cancelled_and_queued_stays_queued() {
    let mut stack = Stack::start().await;
    let id = launch(&stack).await;
    let first = stack.prompt(&id, "/slow 40 100").await;
    let second = stack.prompt(&id, "/say second").await;
    stack
        .until(&format!("/agents/{id}/turns/{first}"), |t| {
            t["text"].as_str().unwrap().contains("slow 2/")
        })
        .await;
    stack
        .post(&format!("/agents/{id}/cancel"), &json!({"reason": "enough"}))
        .await
        .expect(200);
    stack.kill().await;
    stack.boot().await;
    let ended = turn_ended(&stack, &id, &first).await;
    assert_eq!(
        (&ended["status"], &ended["cancel_reason"]),
        (&json!("cancelled"), &json!("enough"))
    );
    assert_eq!(turn_ended(&stack, &id, &second).await["text"], "second");
    assert_whole(&stack, &id).await;
}

#[tokio::test]
async fn a_server_that_is_asked_to_end_leaves_its_agents_running() {
    let mut stack = Stack::start().await;
    let id = launch(&stack).await;
    let turn = stack.prompt(&id, "/slow 30 100").await;
    stack
        .until(&format!("/agents/{id}/turns/{turn}"), |t| {
            t["text"].as_str().unwrap().contains("slow 2/")
        })
        .await;
    let container = stack.containers();
    let mut kandev = stack.kandev.take().unwrap();
    kandev.signal(Signal::TERM);
    assert!(kandev.ended().await.success());
    assert_eq!(stack.containers(), container);
    stack.boot().await;
    assert_eq!(turn_ended(&stack, &id, &turn).await["status"], "completed");
    assert_eq!(stack.containers(), container);
    assert_whole(&stack, &id).await;
}

/// A cursor is a place in one history, before and after the server's death.
#[tokio::test]
async fn a_cursor_is_good_at_the_next_server_for_its_own_history_alone() {
    let mut stack = Stack::start().await;
    let (long, short) = (launch(&stack).await, launch(&stack).await);
    stack.turn(&long, "/flood 200 20").await;
    let turn = stack.prompt(&long, "/slow 20 100").await;
    let path = format!("/agents/{long}/events");
    let mut reader = stack.follow(&path, None).await;
    let mut last = 0;
    while last < 210 {
        last = reader.next().await.unwrap().id;
    }
    drop(reader);
    stack.kill().await;
    stack.boot().await;
    let mut reader = stack.follow(&path, Some(last)).await;
    let frames = reader.until(|f| f.event == "turn_ended").await;
    assert_eq!(
        frames.iter().map(|f| f.id).collect::<Vec<_>>(),
        (last + 1..).take(frames.len()).collect::<Vec<_>>()
    );
    assert_eq!(turn_ended(&stack, &long, &turn).await["status"], "completed");
    let other = format!("/agents/{short}/events");
    assert_eq!(stack.try_follow(&other, Some(last)).await.status(), 400);
    let length = stack.events(&short).await.len() as i64;
    let mut reader = stack.follow(&other, Some(length)).await;
    stack.turn(&short, "/say mine").await;
    let first = reader.next().await.unwrap();
    assert_eq!(
        (first.id, &first.data["instance_id"]),
        (length + 1, &json!(short))
    );
    stack.settle().await;
}

/// Two pipes at once: in the engine's log their times are not quite in order.
#[tokio::test]
async fn lines_of_two_pipes_are_taken_up_once() {
    let mut stack = Stack::start().await;
    let id = launch(&stack).await;
    let script = "/stderr-flood 100 100\n/say x\n/sleep 250\n".repeat(20);
    let turn = stack.prompt(&id, &script).await;
    // In the middle of what is said at once, and between.
    for seen in [150, 400, 650, 1000, 1450] {
        stack
            .until(&format!("/agents/{id}/logs?stream=stderr&tail=1"), |page| {
                page["total"].as_u64().unwrap() >= seen
            })
            .await;
        stack.kill().await;
        stack.boot().await;
    }
    assert_eq!(turn_ended(&stack, &id, &turn).await["status"], "completed");
    assert_whole(&stack, &id).await;
    assert_eq!(stack.logs(&id, "stderr").await.len(), 2000);
    let events = stack.events(&id).await;
    assert!(events.iter().all(|e| e["kind"] != "gap"));
    stack.settle().await;
}

/// Moments for the kills: any will do, and the same ones again when it fails.
pub(crate) struct Moments(pub(crate) u64);

impl Moments {
    pub(crate) fn next(&mut self) -> Duration {
        Duration::from_millis(20 + self.draw(700))
    }

    /// A number below `limit`.
    pub(crate) fn draw(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Five agents in turns of mixed kinds: each instance and its turn.
pub(crate) async fn five_turns(stack: &Stack) -> Vec<(String, String)> {
    let scripts = [
        "/flood 2000 200\n/sleep 300\n".repeat(60),
        "/slow 300 80".to_owned(),
        "/line 100k\n/sleep 150\n".repeat(120),
        "/stderr-flood 100 100\n/say x\n/sleep 250\n".repeat(80),
        "/permission keep\n/sleep 150\n".repeat(120),
    ];
    let mut turns = Vec::new();
    for script in &scripts {
        let id = launch(stack).await;
        let turn = stack.prompt(&id, script).await;
        turns.push((id, turn));
    }
    turns
}

/// All is stored that they wrote, once, and every turn has its right end.
pub(crate) async fn assert_five_whole(stack: &Stack, turns: &[(String, String)]) {
    for (id, turn) in turns {
        let ended = turn_ended(stack, id, turn).await;
        assert_eq!(
            (&ended["status"], &ended["stop_reason"]),
            (&json!("completed"), &json!("end_turn")),
            "{ended:#}"
        );
        assert_whole(stack, id).await;
        let ends = stack
            .events(id)
            .await
            .iter()
            .filter(|e| e["kind"] == "turn_ended")
            .count();
        assert_eq!(ends, 1);
    }
    let stderr = stack.logs(&turns[3].0, "stderr").await;
    assert_eq!(stderr.len(), 8000);
    let (asking, turn) = &turns[4];
    let text = stack
        .get(&format!("/agents/{asking}/turns/{turn}"))
        .await
        .expect(200)["text"]
        .clone();
    assert_eq!(
        text.as_str().unwrap(),
        "permission: selected allow-once\n".repeat(120)
    );
}

#[tokio::test]
async fn five_agents_and_twenty_kills() {
    let mut stack = Stack::start().await;
    let turns = five_turns(&stack).await;
    let mut moments = Moments(2026);
    for _ in 0..20 {
        tokio::time::sleep(moments.next()).await;
        stack.kill().await;
        stack.boot().await;
    }
    assert_five_whole(&stack, &turns).await;
    stack.settle().await;
}
