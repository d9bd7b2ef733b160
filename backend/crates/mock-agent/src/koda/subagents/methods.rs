//! What a client asks of a session's subagents. Their names are of Koda's page, the parameters this agent's own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Start, Status, Task, block, deliver_if_idle, go, role, row, tell};
use crate::acp::{session_of, text};
use crate::agent::{Agent, Delay, Reply};
use crate::config::Set;
use crate::frame::{INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, RpcError};
use crate::koda::{refusal, roles};
use crate::out::complain;
use crate::session::Session;

/// `session/subagent_*`.
pub(crate) fn manage(agent: &Arc<Agent>, method: &str, params: &Value) -> Result<Reply, RpcError> {
    let session = session_of(agent, params)?;
    let result = match method {
        "list" => block(agent, &session),
        "release_wait" => {
            let released = session.subagents.with(|tasks| {
                let waiting = tasks.waiting.take();
                let released = waiting.is_some();
                tasks.released = waiting.or_else(|| tasks.released.take());
                released
            });
            json!({"released": released})
        }
        "cancel" => cancel(agent, &session, params)?,
        "extend" => extend(agent, &session, params)?,
        "details" => details(&session, params)?,
        "restart" => restart(agent, &session, params)?,
        "prompt" => prompt(agent, &session, params)?,
        "compress" => return compress(agent, &session, params),
        other => return roles::manage(agent, &session, other, params),
    };
    Ok(Ok(result).into())
}

/// The task that the params name.
fn task_of(session: &Session, params: &Value) -> Result<Task, RpcError> {
    let id = text(params, "taskId")?;
    let found = session
        .subagents
        .with(|tasks| tasks.list.iter().find(|task| task.id == id).cloned());
    found.ok_or_else(|| {
        refusal(
            INVALID_PARAMS,
            "task_not_found",
            format!("there is no task '{id}'"),
        )
    })
}

/// The same, if it rests.
fn resting(session: &Session, params: &Value) -> Result<Task, RpcError> {
    let task = task_of(session, params)?;
    let why = if task.compressing {
        ("task_compressing", "the task is being compressed")
    } else if task.status == Status::Running {
        ("task_running", "the task runs")
    } else {
        return Ok(task);
    };
    Err(refusal(INVALID_REQUEST, why.0, why.1))
}

fn cancel(agent: &Arc<Agent>, session: &Arc<Session>, params: &Value) -> Result<Value, RpcError> {
    let task = task_of(session, params)?;
    let update = session.subagents.with(|tasks| {
        let update = tasks.change(&task.id, |task| {
            if task.has_ended() {
                return None;
            }
            task.status = Status::Cancelled;
            "cancelled".clone_into(&mut task.result);
            Some(task.update(None))
        });
        tasks.save();
        update.flatten()
    });
    let cancelled = update.is_some();
    let (of, on) = (Arc::clone(agent), Arc::clone(session));
    // Not here: this thread never writes.
    let spawned = agent.workers.spawn("cancelled", move || {
        if let Some(update) = &update {
            tell(&of, &on, update);
        }
        deliver_if_idle(&of, &on);
    });
    if let Err(e) = spawned {
        complain(&format!("no thread to tell of a cancel: {e}"));
    }
    Ok(json!({"cancelled": cancelled}))
}

fn extend(agent: &Arc<Agent>, session: &Arc<Session>, params: &Value) -> Result<Value, RpcError> {
    let task = task_of(session, params)?;
    let extended = task.status == Status::Stalled;
    if extended {
        go(
            agent,
            session,
            &task.id,
            &Start::of(&task.description),
            task.for_model,
        );
    }
    Ok(json!({"extended": extended}))
}

fn details(session: &Session, params: &Value) -> Result<Value, RpcError> {
    let task = task_of(session, params)?;
    let snapshot = task.snapshot();
    Ok(json!({"contextUsage": snapshot["contextUsage"], "task": snapshot, "history": task.history}))
}

/// One that had come to its end takes its role anew; any other goes on with the role as it was.
fn restart(agent: &Arc<Agent>, session: &Arc<Session>, params: &Value) -> Result<Value, RpcError> {
    let task = resting(session, params)?;
    if let Some(name) = task.role.as_ref().filter(|_| task.status == Status::Completed) {
        role(agent, session, name).map_err(|problem| refusal(INVALID_PARAMS, "role_not_found", problem))?;
    }
    go(agent, session, &task.id, &Start::of(&task.description), true);
    Ok(json!({"task": task_of(session, params)?.snapshot()}))
}

/// A user's own words to it: the model is told nothing of the answer.
fn prompt(agent: &Arc<Agent>, session: &Arc<Session>, params: &Value) -> Result<Value, RpcError> {
    let task = resting(session, params)?;
    if !task.has_ended() {
        return Err(refusal(
            INVALID_REQUEST,
            "task_not_ended",
            "the task has not ended",
        ));
    }
    let said = text(params, "prompt")?;
    let policy = params["policy"].as_str().unwrap_or("read_only");
    if !["read_only", "auto_edit", "yolo"].contains(&policy) {
        let details = format!("unknown policy '{policy}'");
        return Err(refusal(INVALID_PARAMS, "unknown_value", details));
    }
    session.subagents.with(|tasks| {
        tasks.change(&task.id, |task| {
            let mut row = row("user", said);
            row["policy"] = json!(policy);
            task.remember(row);
        })
    });
    go(agent, session, &task.id, &Start::of(said), false);
    Ok(json!({"task": task_of(session, params)?.snapshot()}))
}

/// Its history becomes one summary; `MOCK_SET=slow` makes it last.
fn compress(agent: &Arc<Agent>, session: &Arc<Session>, params: &Value) -> Result<Reply, RpcError> {
    let task = resting(session, params)?;
    let before = task.used.unwrap_or(0);
    let counts = json!({"originalTokenCount": before, "newTokenCount": before / 10});
    let begun = session.subagents.with(|tasks| {
        tasks.change(&task.id, |task| {
            task.compressing = true;
            task.update(Some(json!({"kind": "compression", "status": "in_progress"})))
        })
    });
    let (of, on, id, result) = (Arc::clone(agent), Arc::clone(session), task.id, counts.clone());
    let finish = move || {
        let update = on.subagents.with(|tasks| {
            let update = tasks.change(&id, |task| {
                task.compressing = false;
                task.used = result["newTokenCount"].as_u64();
                task.history = VecDeque::from([row("summary", "what was said before")]);
                let mut activity = result.clone();
                activity["kind"] = json!("compression");
                activity["status"] = json!("completed");
                task.update(Some(activity))
            });
            tasks.save();
            update
        });
        if let Some(update) = &update {
            tell(&of, &on, update);
        }
    };
    let mut reply = Reply::from(Ok(counts));
    let slow = match agent.config.set {
        Set::Slow(ms) | Set::Yields(ms) => Duration::from_millis(ms),
        Set::Normal | Set::Error(_) => Duration::ZERO,
    };
    // The answer comes after the end of it.
    reply.delay = Delay::Slow(slow.as_millis() as u64 + 100);
    let (of, on, until) = (Arc::clone(agent), Arc::clone(session), Instant::now() + slow);
    let spawned = agent.workers.spawn("compression", move || {
        if let Some(update) = &begun {
            tell(&of, &on, update);
        }
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        finish();
    });
    spawned.map_err(|e| RpcError::new(INTERNAL_ERROR, e.to_string()))?;
    Ok(reply)
}
