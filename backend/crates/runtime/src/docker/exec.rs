//! Processes inside a container.
//!
//! Source: `POST /containers/{id}/exec`, `POST /exec/{id}/start` and `GET /exec/{id}/json` of the Docker Engine API
//! reference.

use std::pin::Pin;
use std::time::Duration;

use bollard::models::ExecConfig;
use futures_util::StreamExt;
use tokio::io::AsyncWrite;
use tokio::time::sleep;

use super::client::{Client, Subject, segment};
use super::create::environment;
use super::stdcopy::Frames;
use crate::error::{Result, RuntimeError};
use crate::types::{ContainerId, Exec, ExecSpec, RunSign};

/// The pauses between looks at a process that has not ended. The engine has no call that waits for one.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How many failed looks in a row are taken for an absence of the engine that will pass.
const MOST_FAILURES: u32 = 60;

pub(super) async fn exec(client: &Client, id: &ContainerId, spec: &ExecSpec) -> Result<Exec> {
    let config = ExecConfig {
        attach_stdin: Some(spec.stdin),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        tty: Some(false),
        cmd: Some(spec.command.clone()),
        env: Some(environment(&spec.env)),
        working_dir: spec.working_dir.clone(),
        user: spec.user.clone(),
        ..ExecConfig::default()
    };
    let (container, config) = (&segment(&id.0), &config);
    let created = client
        .make(client.on("exec", id), |engine| async move {
            engine.docker.create_exec(container, config.clone()).await
        })
        .await?;
    let process = segment(&created.id);
    let start = &format!("/exec/{process}/start");
    let connection = client
        .make(client.call("exec", Subject::Engine), |engine| async move {
            engine.hijack(start, r#"{"Detach":false,"Tty":false}"#).await
        })
        .await?;
    let stdin = spec
        .stdin
        .then(|| -> Pin<Box<dyn AsyncWrite + Send>> { Box::pin(connection.write) });
    Ok(Exec {
        stdin,
        output: Frames::new(connection.read, &connection.read_ahead).boxed(),
        exit: Box::pin(exit(client.clone(), process)),
    })
}

/// A process that is never started. The engine keeps it in memory alone, as long as the container runs.
pub(super) async fn run_sign(client: &Client, id: &ContainerId) -> Result<RunSign> {
    let config = ExecConfig {
        cmd: Some(vec!["/never-started".to_owned()]),
        ..ExecConfig::default()
    };
    let (container, config) = (&segment(&id.0), &config);
    let created = client
        .make(client.on("run_sign", id), |engine| async move {
            engine.docker.create_exec(container, config.clone()).await
        })
        .await?;
    Ok(RunSign(created.id))
}

pub(super) async fn has_sign(client: &Client, sign: &RunSign) -> Result<bool> {
    let process = &segment(&sign.0);
    let look = client.make(client.call("has_sign", Subject::Engine), |engine| async move {
        engine.docker.inspect_exec(process).await
    });
    match look.await {
        Ok(_) => Ok(true),
        Err(error) if super::lifecycle::is_not_found(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The exit code comes a little after the end of the output, or long after it, if the process closed its pipes.
async fn exit(client: Client, process: String) -> Result<i64> {
    let process = process.as_str();
    let mut pause = FIRST_PAUSE;
    let mut failures = 0;
    loop {
        let look = client.make(client.call("exec", Subject::Engine), |engine| async move {
            engine.docker.inspect_exec(process).await
        });
        match look.await {
            Ok(seen) => match (seen.running, seen.exit_code) {
                (Some(false), Some(code)) => return Ok(code),
                _ => failures = 0,
            },
            Err(error) if error.is_transient() && failures < MOST_FAILURES => failures += 1,
            Err(error) => return Err(lost(error)),
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// The engine forgets a process with its container, or when it restarts.
fn lost(error: RuntimeError) -> RuntimeError {
    if super::lifecycle::is_not_found(&error) {
        return RuntimeError::Broken("the engine no longer knows the process".to_owned());
    }
    error
}
