//! How a container ended.
//!
//! Source: `POST /containers/{id}/wait` of the Docker Engine API reference. The engine sends the head of its answer once
//! it has begun to wait, and the body when the container has ended.

use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Method, Response};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use super::client::{Client, body, within};
use super::lifecycle;
use crate::error::{Result, RuntimeError};
use crate::types::{ContainerId, ContainerState, ExitStatus, ExitWatch};

/// The longest answer that is read.
pub(super) const ANSWER_LIMIT: usize = 64 << 10;
/// The pauses between attempts while the engine is away.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long the engine may take to tell of a container whose end it just announced.
const DETAILS_LIMIT: Duration = Duration::from_secs(5);

/// What to wait for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Condition {
    NextExit,
    Removed,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    status_code: i64,
    error: Option<AnswerError>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AnswerError {
    message: Option<String>,
}

pub(super) async fn watch(client: &Client, id: &ContainerId) -> Result<ExitWatch> {
    let registered = register(client, id, Condition::NextExit).await?;
    Ok(Box::pin(follow(client.clone(), id.clone(), registered)))
}

/// Returns once the engine waits.
pub(super) async fn register(
    client: &Client,
    id: &ContainerId,
    condition: Condition,
) -> Result<Response<Incoming>> {
    let condition = match condition {
        Condition::NextExit => "next-exit",
        Condition::Removed => "removed",
    };
    let call = client
        .on("wait", Method::POST, &id.0, "/wait")
        .query("condition", condition);
    client.send(&call).await
}

/// Waits through every absence of the engine, until the container has ended or is gone.
async fn follow(client: Client, id: ContainerId, registered: Response<Incoming>) -> Result<ExitStatus> {
    let mut waiting = Some(registered);
    let mut pause = FIRST_PAUSE;
    loop {
        if let Some(response) = waiting.take() {
            let since = Instant::now();
            tokio::select! {
                told = answer(response) => match told {
                    Ok(told) => return Ok(details(&client, &id, told).await),
                    Err(error) => tracing::debug!(container = %id, %error, "the wait for an exit broke"),
                },
                ended = look(&client, &id) => return ended,
            }
            if since.elapsed() > LONGEST_PAUSE {
                pause = FIRST_PAUSE;
            }
        }
        // An engine that stops breaks the wait, and may have ended the container, too.
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        match register(&client, &id, Condition::NextExit).await {
            Ok(response) => waiting = Some(response),
            Err(error) if error.is_transient() => {}
            Err(error) => return Err(error),
        }
    }
}

async fn answer(response: Response<Incoming>) -> Result<ExitStatus> {
    let bytes = body(response, ANSWER_LIMIT).await?;
    let answer: Answer =
        serde_json::from_slice(&bytes).map_err(|error| RuntimeError::Broken(error.to_string()))?;
    Ok(ExitStatus {
        code: answer.status_code,
        oom_killed: false,
        error: answer
            .error
            .and_then(|error| error.message)
            .filter(|words| !words.is_empty()),
    })
}

/// Looks at the container now and then, the first time at once: it may have ended before the wait began, and a dead
/// connection can look like a quiet one.
async fn look(client: &Client, id: &ContainerId) -> Result<ExitStatus> {
    loop {
        match lifecycle::inspect(client, id)
            .await
            .map(|inspected| inspected.state)
        {
            Ok(ContainerState::Exited(status)) => return Ok(status),
            Ok(ContainerState::Created | ContainerState::Running) => {}
            Err(error) if error.is_transient() => {}
            Err(error) => return Err(error),
        }
        sleep(client.limits().exit_poll).await;
    }
}

/// Adds what only `inspect` tells, if it does.
async fn details(client: &Client, id: &ContainerId, told: ExitStatus) -> ExitStatus {
    let limit = DETAILS_LIMIT.min(client.limits().call);
    match within("inspect", limit, lifecycle::inspect(client, id)).await {
        Ok(lifecycle::Inspected {
            state: ContainerState::Exited(status),
            ..
        }) => status,
        Ok(_) => told,
        Err(error) => {
            tracing::warn!(container = %id, %error, "an ended container does not tell whether it ran out of memory");
            told
        }
    }
}
