//! B7: reads of a long history: ten million events of a thousand instances.
//!
//! The database is filled through the journal's own packing. Nine of ten instances have a hundred events a row, as busy
//! agents do; every tenth has a row for each event, as a slow agent has, for which each commit is a row of its own.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use kandev_domain::status::{InstanceLifecycle, PermissionPolicy};
use kandev_domain::{Clock as _, EventKind, InstanceId, LogLevel, LogStream, SystemClock, TaskId, TurnId};
use kandev_store::Fence;
use kandev_store::instances::{self, NewInstance};
use kandev_store::journal::{Batch, JournalWriter, PipeLines};
use kandev_store::record::{Data, Record, Source};
use kandev_store::servers::Register;
use kandev_store::tasks::{self, Task};
use serde_json::json;
use sqlx::PgPool;
use tokio::task::spawn_blocking;

use super::Bench;
use crate::kandev::Kandev;
use crate::report::{Row, Target, percentile};

const INSTANCES: usize = 1000;
const EVENTS: usize = 10_000;
const REQUESTS: usize = 1000;
/// Another deployment.
const OWNER: &str = "kandev-bench-history";

/// B7.
pub(super) async fn b7(bench: &Bench) -> Result<Vec<Row>> {
    let server = bench.server("B7").await?;
    let begun = Instant::now();
    let ids = fill(&server.database.pool).await?;
    let filled = begun.elapsed().as_secs();
    let mut random = Random(1);
    let mut rows = Vec::new();
    for what in ["logs?tail=100", "events?after=…&limit=500", "GET /agents"] {
        let mut times = Vec::new();
        for n in 0..REQUESTS + 50 {
            let id = ids[random.below(ids.len())];
            let path = match what {
                "GET /agents" => "/agents".to_owned(),
                "logs?tail=100" => format!("/agents/{id}/logs?tail=100"),
                _ => format!(
                    "/agents/{id}/events?after={}&limit=500",
                    random.below(EVENTS - 500)
                ),
            };
            let begun = Instant::now();
            get(&server, &path).await?;
            // The first ones warm the pool's connections up.
            if n >= 50 {
                times.push(begun.elapsed().as_secs_f64() * 1e3);
            }
        }
        let at = |percent| percentile(times.iter().copied(), percent);
        rows.push(
            Row::new(
                "B7",
                format!("{what}, p99"),
                "ms",
                None,
                at(99.0),
                Target::AtMost(10.0),
            )
            .noting(format!(
                "p50 {:.1} ms, p90 {:.1} ms; 10 million events, filled in {filled} s",
                at(50.0),
                at(90.0)
            )),
        );
    }
    server.end().await?;
    Ok(rows)
}

async fn get(server: &Kandev, path: &str) -> Result<()> {
    let answer = server
        .http
        .get(format!("{}/api/v1{path}", server.base))
        .send()
        .await?;
    let status = answer.status();
    let body = answer.bytes().await?;
    ensure!(
        status.is_success() && body.len() > 1000,
        "GET {path}: {status}, {} bytes",
        body.len()
    );
    Ok(())
}

/// Numerical Recipes' generator.
struct Random(u32);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((u64::from(self.0) * limit as u64) >> 32) as usize
    }
}

async fn fill(pool: &PgPool) -> Result<Vec<InstanceId>> {
    let mut writer = JournalWriter::new(pool);
    let run = Register::new(pool, OWNER)
        .begin("bench", None, Duration::from_hours(1))
        .await?;
    let lines = lines();
    let mut ids = Vec::new();
    let mut next = None;
    for n in 0..=INSTANCES {
        // The next one is packed while this one is written.
        let packed = next.take();
        if n < INSTANCES {
            let id = instance(pool, run).await?;
            ids.push(id);
            let lines = lines.clone();
            next = Some(spawn_blocking(move || {
                batches((id, run), &lines, if n % 10 == 0 { 1 } else { 100 })
            }));
        }
        if let Some(packed) = packed {
            writer.write(&packed.await?, SystemClock.now()).await?;
        }
    }
    // As the database does by itself in time.
    sqlx::query("VACUUM (ANALYZE)").execute(pool).await?;
    Ok(ids)
}

/// A row of an instance of another deployment, so that nobody takes it up.
async fn instance(pool: &PgPool, held_by: Fence) -> Result<InstanceId> {
    let now = SystemClock.now();
    let task = Task {
        id: TaskId::generate(),
        title: None,
        description: None,
        state: tasks::DEFAULT_STATE.to_owned(),
        metadata: json!({}),
        created_at: now,
        updated_at: now,
    };
    let id = InstanceId::generate();
    let new = NewInstance {
        id,
        task_id: task.id.clone(),
        agent_type: "bench-agent".to_owned(),
        workspace_path: "/workspace".to_owned(),
        priority: 0,
        metadata: json!({}),
        launch: "{}".to_owned(),
        env_names: Vec::new(),
        env_sealed: Vec::new(),
        permission_policy: PermissionPolicy::Allow,
        lifecycle: InstanceLifecycle::Interactive,
        owner: OWNER.to_owned(),
        resumed_from: None,
        resumes: None,
        held_by,
        created_at: now,
    };
    let mut connection = pool.acquire().await?;
    tasks::insert(&mut connection, &task).await?;
    instances::insert(&mut connection, &new).await?;
    Ok(id)
}

/// Lines of updates of 200 bytes of text, and where their params are.
fn lines() -> Vec<(Bytes, Data)> {
    const WORDS: [&str; 16] = [
        "the", "function", "returns", "a", "value", "that", "tests", "expect", "in", "this", "file", "so",
        "we", "change", "its", "error",
    ];
    let mut random = Random(7);
    let line = |_| {
        let mut text = String::new();
        while text.len() < 200 {
            text.push_str(WORDS[random.below(WORDS.len())]);
            text.push(' ');
        }
        text.truncate(200);
        let params = json!({"sessionId": "0d9c7f1e-5d5c-4c7e-9b1a-0a3f6f0e2b11", "update": {
            "sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}});
        let head = r#"{"jsonrpc":"2.0","method":"session/update","params":"#;
        let params = params.to_string();
        let range = head.len()..head.len() + params.len();
        (Bytes::from(format!("{head}{params}}}")), Data::Slice(range))
    };
    (0..509).map(line).collect()
}

/// The history of one instance; every twentieth event is a line of stderr.
fn batches(of: (InstanceId, Fence), lines: &[(Bytes, Data)], per_row: usize) -> Vec<Batch> {
    let (now, turn) = (SystemClock.now(), TurnId::generate());
    let mut counted = PipeLines::default();
    let mut records = Vec::with_capacity(per_row);
    let mut batches = Vec::with_capacity(EVENTS / per_row);
    for n in 0..EVENTS {
        let (line, data) = &lines[n % lines.len()];
        let log = n % 20 == 19;
        if log {
            counted.stderr += 1;
        } else {
            counted.stdout += 1;
        }
        records.push(Record {
            at: now,
            kind: if log { EventKind::Log } else { EventKind::Update },
            session_id: Some("0d9c7f1e-5d5c-4c7e-9b1a-0a3f6f0e2b11".to_owned()),
            turn_id: Some(turn),
            source: Some(if log {
                Source::Stderr(counted.stderr)
            } else {
                Source::Stdout(counted.stdout)
            }),
            line: line.clone(),
            data: if log {
                Data::Log {
                    stream: LogStream::Stderr,
                    level: LogLevel::Info,
                }
            } else {
                data.clone()
            },
        });
        if records.len() == per_row {
            let first = (n + 2 - per_row) as i64;
            batches.push(Batch::new(of, first, &records, counted, Vec::new(), false));
            records.clear();
        }
    }
    batches
}
