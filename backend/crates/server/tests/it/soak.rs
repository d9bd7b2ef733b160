//! Many rounds of kills: the server in each, PostgreSQL and the engine now and then. `make soak` runs it; see
//! `docs/operations.md`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::recovery::{Moments, launch, stored_stdout};
use crate::support::{Cluster, Engine, Stack};

/// How long a turn may take to go on or end once nothing is killed any more.
const PATIENCE: Duration = Duration::from_mins(3);

/// What the agents do, over and over.
fn scripts() -> [String; 5] {
    [
        "/flood 2000 200\n/sleep 300\n".repeat(20),
        "/slow 100 80".to_owned(),
        "/line 100k\n/sleep 150\n".repeat(40),
        "/stderr-flood 100 100\n/say x\n/sleep 250\n".repeat(30),
        "/permission keep\n/sleep 150\n".repeat(40),
    ]
}

struct Agent {
    id: String,
    kind: usize,
    turns: Vec<String>,
    /// An engine that ends its containers was started in its time.
    doomed: bool,
}

#[derive(Default)]
struct Figures {
    servers: usize,
    databases: usize,
    engines: usize,
    engines_with_containers: usize,
    attached: Vec<Duration>,
    events: usize,
    lines: usize,
    missing: usize,
    cut: usize,
    gaps: usize,
    turns: usize,
    violations: Vec<String>,
}

#[tokio::test]
async fn rounds_of_kills() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse().expect("a number"))
    };
    let rounds = number("KANDEV_SOAK_ROUNDS").unwrap_or(100);
    let seed = number("KANDEV_SOAK_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("soak: {rounds} rounds, seed {seed}");
    let mut draw = Moments(seed);
    let mut figures = Figures::default();
    let started = Instant::now();
    let mut stack = Stack::on_both(Cluster::start(), Engine::start(true)).await;
    let mut agents: Vec<Agent> = Vec::new();
    let mut live_restore = true;
    for round in 1..=rounds {
        top_up(&stack, &mut agents).await;
        pause(&mut draw, 1500).await;
        let (database, engine) = (draw.draw(3) == 0, draw.draw(4) == 0);
        // Before or after the server.
        let first = draw.draw(2) == 0;
        if first {
            take_away(&mut stack, database, engine);
            pause(&mut draw, 700).await;
        }
        stack.kill().await;
        figures.servers += 1;
        if !first {
            pause(&mut draw, 300).await;
            take_away(&mut stack, database, engine);
        }
        if database {
            figures.databases += 1;
            stack.cluster().start_again();
        }
        if engine {
            live_restore = !live_restore;
            figures.engines += 1;
            if !live_restore {
                figures.engines_with_containers += 1;
                for agent in &mut agents {
                    agent.doomed = true;
                }
            }
            let engine = stack.engine.as_mut().unwrap();
            engine.set_live_restore(live_restore);
            engine.start_again();
        }
        let back = Instant::now();
        stack.boot().await;
        stack.until_ready().await;
        if let Some(after) = goes_on(&stack, &agents, back).await {
            figures.attached.push(after);
        }
        println!(
            "soak: round {round}{}{} at {:?}",
            if database { ", database" } else { "" },
            if engine { ", engine" } else { "" },
            started.elapsed()
        );
    }
    for agent in &agents {
        check(&stack, agent, &mut figures).await;
    }
    println!("{}", report(&figures, rounds, started.elapsed()));
    assert!(
        figures.violations.is_empty(),
        "seed {seed}: {:#?}",
        figures.violations
    );
}

/// `kill -9`.
fn take_away(stack: &mut Stack, database: bool, engine: bool) {
    if database {
        stack.cluster().kill();
    }
    if engine {
        stack.engine.as_mut().unwrap().kill();
    }
}

async fn pause(draw: &mut Moments, most: u64) {
    tokio::time::sleep(Duration::from_millis(20 + draw.draw(most))).await;
}

/// Every kind has an instance that is in a turn.
async fn top_up(stack: &Stack, agents: &mut Vec<Agent>) {
    for (kind, script) in scripts().iter().enumerate() {
        if let Some(agent) = agents.iter_mut().rfind(|agent| agent.kind == kind) {
            let instance = stack.instance(&agent.id).await;
            if instance["status"] == "running" {
                let status = stack
                    .get(&format!("/agents/{}/status", agent.id))
                    .await
                    .expect(200);
                if status["turn_state"] != "idle" {
                    continue;
                }
                let body = json!({"message": script});
                let answer = stack.post(&format!("/agents/{}/prompt", agent.id), &body).await;
                // Refused by one whose container has ended in this moment.
                if answer.status == 202 {
                    agent
                        .turns
                        .push(answer.body["turn_id"].as_str().unwrap().to_owned());
                    continue;
                }
                answer.refused(409, "conflict");
            }
        }
        let id = launch(stack).await;
        let turns = vec![stack.prompt(&id, script).await];
        agents.push(Agent {
            id,
            kind,
            turns,
            doomed: false,
        });
    }
}

/// The slow agent's next update after a restart: how long it took. None if its turn had ended.
async fn goes_on(stack: &Stack, agents: &[Agent], since: Instant) -> Option<Duration> {
    let slow = agents.iter().rfind(|agent| agent.kind == 1)?;
    let path = format!("/agents/{}/logs?stream=system&tail=1", slow.id);
    let seq = stack.get(&path).await.expect(200)["logs"][0]["seq"].as_i64()?;
    let updates = format!("/agents/{}/events?kind=update&limit=1&after={seq}", slow.id);
    while since.elapsed() < PATIENCE {
        let status = stack
            .get(&format!("/agents/{}/status", slow.id))
            .await
            .expect(200);
        if status["turn_state"] == "idle" || status["status"] != "running" {
            return None;
        }
        let page = stack.get(&updates).await.expect(200);
        if !page["events"].as_array()?.is_empty() {
            return Some(since.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    None
}

async fn check(stack: &Stack, agent: &Agent, figures: &mut Figures) {
    let id = &agent.id;
    let mut violate = |what: String| {
        figures
            .violations
            .push(format!("{id} (kind {}): {what}", agent.kind));
    };
    for turn in &agent.turns {
        figures.turns += 1;
        let path = format!("/agents/{id}/turns/{turn}");
        let deadline = Instant::now() + PATIENCE;
        let ended = loop {
            let turn = stack.get(&path).await.expect(200);
            if ["completed", "failed", "cancelled"].contains(&turn["status"].as_str().unwrap()) {
                break Some(turn);
            }
            if Instant::now() > deadline {
                break None;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        match ended {
            None => violate(format!("turn {turn} does not end")),
            Some(ended) if ended["status"] == "completed" || agent.doomed => {}
            Some(ended) => violate(format!(
                "turn {turn} ended {}: {}",
                ended["status"], ended["error"]
            )),
        }
    }
    let events = stack.events(id).await;
    figures.events += events.len();
    if events.iter().enumerate().any(|(n, e)| e["seq"] != n as u64 + 1) {
        violate("its events have a hole or a repeat".to_owned());
    }
    for turn in &agent.turns {
        let ends = events
            .iter()
            .filter(|e| e["kind"] == "turn_ended" && e["turn_id"] == turn.as_str());
        let ends = ends.count();
        if ends != 1 {
            violate(format!("turn {turn} has {ends} ends"));
        }
    }
    let gaps = events.iter().filter(|e| e["kind"] == "gap").count();
    let copy = std::fs::read(stack.workspace().join(format!("{id}.copy"))).unwrap();
    let stored = stored_stdout(stack, id).await;
    let (lines, missing, cut) = compare(&copy, &stored, agent.doomed);
    if missing + cut > 0 && gaps == 0 {
        violate(format!(
            "{missing} lines are missing and {cut} are cut, without a gap"
        ));
    }
    figures.gaps += gaps;
    figures.lines += lines;
    figures.missing += missing;
    figures.cut += cut;
}

/// How many lines are stored, how many of the agent's are not among them, and how many of them are none of the agent's.
fn compare(copy: &[u8], stored: &BTreeMap<u64, Vec<u8>>, killed: bool) -> (usize, usize, usize) {
    let written: Vec<&[u8]> = copy.split_inclusive(|b| *b == b'\n').collect();
    let mut next = 0;
    let (mut found, mut cut) = (0, 0);
    for line in stored.values() {
        let at = written[next..]
            .iter()
            .position(|w| w.strip_suffix(b"\n").unwrap_or(w) == line.as_slice());
        match at {
            Some(at) => {
                next += at + 1;
                found += 1;
            }
            // An agent is killed between its lines and their copies.
            None if killed && !written[next..].iter().any(|w| w.ends_with(b"\n")) => {}
            None => cut += 1,
        }
    }
    (stored.len(), written.len() - found, cut)
}

fn report(figures: &Figures, rounds: u64, took: Duration) -> String {
    let mut attached = figures.attached.clone();
    attached.sort();
    let at = |share: f64| {
        let index = ((attached.len() as f64 - 1.0) * share) as usize;
        attached.get(index).copied().unwrap_or_default()
    };
    [
        format!("{rounds} rounds in {took:?}"),
        format!(
            "kills: {} of the server, {} of PostgreSQL, {} of the engine, {} of those with its containers",
            figures.servers, figures.databases, figures.engines, figures.engines_with_containers
        ),
        format!(
            "{} turns, {} events, {} lines of stdout; {} missing, {} cut, {} gaps recorded",
            figures.turns, figures.events, figures.lines, figures.missing, figures.cut, figures.gaps
        ),
        format!(
            "from the start of the server to the next update: p50 {:?}, max {:?}",
            at(0.5),
            at(1.0)
        ),
        format!("{} violations", figures.violations.len()),
    ]
    .map(|line| format!("soak: {line}"))
    .join("\n")
}
