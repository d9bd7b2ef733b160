//! How a container ended.
//!
//! Source: `POST /containers/{id}/wait` of the Docker Engine API reference. The engine sends the head of its answer once
//! it has begun to wait, and the body when the container has ended.

use std::time::Duration;

use bollard::errors::Error;
use bollard::models::ContainerWaitResponse;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep};

use super::asked::Asked;
use super::client::{Client, segment, within};
use super::lifecycle;
use super::transport::Socket;
use crate::error::Result;
use crate::types::{ContainerId, ContainerState, ExitStatus, ExitWatch};

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

/// The engine's answer, when it comes.
pub(super) type Answer = BoxFuture<'static, Result<ExitStatus, Error>>;

pub(super) async fn watch(client: &Client, id: &ContainerId) -> Result<ExitWatch> {
    let registered = register(client, id, Condition::NextExit).await?;
    Ok(Box::pin(follow(client.clone(), id.clone(), registered)))
}

/// Returns once the engine waits.
///
/// The request is not bollard's, which tells only of the body.
pub(super) async fn register(client: &Client, id: &ContainerId, condition: Condition) -> Result<Answer> {
    let condition = match condition {
        Condition::NextExit => "next-exit",
        Condition::Removed => "removed",
    };
    let target = &format!("/containers/{}/wait?condition={condition}", segment(&id.0));
    client
        .make(client.on("wait", id), |engine| async move {
            let asked = engine.ask(target).await?;
            Ok(told(asked).boxed())
        })
        .await
}

/// Waits through every absence of the engine, until the container has ended or is gone.
async fn follow(client: Client, id: ContainerId, registered: Answer) -> Result<ExitStatus> {
    let mut waiting = Some(registered);
    let mut pause = FIRST_PAUSE;
    loop {
        if let Some(answer) = waiting.take() {
            let since = Instant::now();
            tokio::select! {
                told = answer => match told {
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
        match register(&client, &id, Condition::NextExit).boxed().await {
            Ok(answer) => waiting = Some(answer),
            Err(error) if error.is_transient() => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits for the body.
async fn told(asked: Asked<Socket>) -> Result<ExitStatus, Error> {
    let broken = |err| Error::IOError { err };
    let body = asked.body().await.map_err(broken)?;
    let answer: ContainerWaitResponse =
        serde_json::from_slice(&body).map_err(|error| broken(error.into()))?;
    let error = answer.error.and_then(|error| error.message);
    let error = error.filter(|words| !words.is_empty());
    Ok(ExitStatus::new(answer.status_code, false, error))
}

/// Looks at the container now and then, the first time at once: it may have ended before the wait began, and a dead
/// connection can look like a quiet one.
async fn look(client: &Client, id: &ContainerId) -> Result<ExitStatus> {
    loop {
        // Boxed, since it is large and seldom there.
        match lifecycle::inspect(client, id)
            .boxed()
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
    match within("inspect", limit, lifecycle::inspect(client, id).boxed()).await {
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
