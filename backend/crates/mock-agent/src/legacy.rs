//! The line format before JSON-RPC. Source: `kandev/AGENTS.md`, "Legacy Message Format".

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::args::{number, size, unescape, word};
use crate::clock;
use crate::config::Config;
use crate::fault::{Fault, Process};
use crate::out::complain;

/// Pause between two steps of progress.
const STEP: Duration = Duration::from_millis(250);

struct Legacy<'a> {
    process: &'a Arc<Process>,
    agent_id: String,
    task_id: String,
}

impl Legacy<'_> {
    fn emit(&self, kind: &str, data: &Value) {
        let line = json!({
            "type": kind,
            "agent_id": self.agent_id,
            "task_id": self.task_id,
            "timestamp": clock::now(),
            "data": data,
        });
        self.process.out.line(&line.to_string());
    }

    fn log(&self, level: &str, message: &str) {
        self.emit("log", &json!({"level": level, "message": message}));
    }

    /// Runs one directive; an error is the task's failure.
    fn directive(&self, line: &str) -> Result<(), String> {
        let (name, rest) = word(line);
        let (first, second) = word(rest);
        match name {
            "say" => self.log("info", &unescape(rest)),
            "log" => self.log(first, &unescape(second)),
            "slow" => {
                let (count, pause) = (number::<u64>(name, first)?, number(name, second)?);
                for n in 1..=count {
                    self.log("info", &format!("slow {n}/{count}"));
                    std::thread::sleep(Duration::from_millis(pause));
                }
            }
            "progress" => self.progress(number(name, first)?, second),
            "status" => self.emit("status", &json!({"status": first})),
            "heartbeat" => self.emit("heartbeat", &json!({"uptime_ms": 500})),
            "result" => self.emit("result", &json!({"status": first, "summary": unescape(second)})),
            "of-type" => self.emit(first, &json!({"said": second})),
            "bare" => self.process.out.line(&json!({"type": first}).to_string()),
            "huge" => self.log("info", &"x".repeat(size(name, rest)?)),
            "sleep" => std::thread::sleep(Duration::from_millis(number(name, rest)?)),
            "hang" => loop {
                std::thread::park();
            },
            "error" => {
                self.emit("error", &json!({"message": second, "code": first}));
                return Err(second.to_owned());
            }
            _ => match Fault::parse(name, rest)? {
                Some(fault) => {
                    if let Some((name, value)) = fault.run(self.process) {
                        self.log("info", &format!("{name}: {value}"));
                    }
                }
                None => self.log("warn", &format!("unknown directive /{name}")),
            },
        }
        Ok(())
    }

    fn progress(&self, percent: u8, file: &str) {
        self.emit("progress", &json!({"progress": percent, "current_file": file}));
    }
}

/// Keeps what is written to it, which it has no use for.
fn copy_input(path: &Path) -> io::Result<()> {
    let mut copy = OpenOptions::new().create(true).append(true).open(path)?;
    std::thread::Builder::new().spawn(move || {
        if let Err(e) = io::copy(&mut io::stdin().lock(), &mut copy) {
            complain(&format!("MOCK_INPUT_COPY: {e}"));
        }
    })?;
    Ok(())
}

/// Does the task of `TASK_DESCRIPTION`; returns when it is done.
pub(crate) fn run(config: &Config, process: &Arc<Process>) -> io::Result<()> {
    let env = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let legacy = Legacy {
        process,
        agent_id: env("KANDEV_INSTANCE_ID").unwrap_or_else(clock::new_id),
        task_id: env("KANDEV_TASK_ID").unwrap_or_else(clock::new_id),
    };
    let task = env("TASK_DESCRIPTION").unwrap_or_else(|| "nothing in particular".to_owned());
    if let Some(path) = &config.input_copy {
        copy_input(path)?;
    }
    legacy.emit("status", &json!({"status": "started"}));
    legacy.emit("status", &json!({"status": "running"}));
    for line in task.lines().filter_map(|line| line.strip_prefix('/')) {
        if let Err(problem) = legacy.directive(line) {
            complain(&problem);
            legacy.emit("result", &json!({"status": "failed", "summary": problem}));
            process.out.exit(1);
        }
    }
    for percent in [0, 25, 50, 75, 100] {
        if percent > 0 {
            std::thread::sleep(STEP.mul_f64(config.speed));
        }
        let current = format!("step {} of 5", percent / 25 + 1);
        legacy.progress(percent, &current);
        match percent {
            0 => legacy.log("info", &format!("Working on: {task}")),
            50 => legacy.emit("heartbeat", &json!({"uptime_ms": 500})),
            _ => {}
        }
    }
    let summary = format!("Done: {task}");
    legacy.emit("result", &json!({"status": "completed", "summary": summary}));
    process.out.exit(0)
}
