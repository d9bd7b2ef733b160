//! Processes inside a container.
//!
//! Source: `POST /containers/{id}/exec`, `POST /exec/{id}/start` and `GET /exec/{id}/json` of the Docker Engine API
//! reference.

use std::pin::Pin;
use std::time::Duration;

use futures_util::StreamExt;
use hyper::Method;
use serde::Deserialize;
use serde_json::json;
use tokio::io::AsyncWrite;
use tokio::time::sleep;

use super::client::{Call, Client, encode};
use super::create::environment;
use super::stdcopy::Frames;
use crate::error::{Result, RuntimeError};
use crate::types::{ContainerId, Exec, ExecSpec};

/// The pauses between looks at a process that has not ended. The engine has no call that waits for one.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How many failed looks in a row are taken for an absence of the engine that will pass.
const MOST_FAILURES: u32 = 60;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Created {
    id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Process {
    running: bool,
    exit_code: Option<i64>,
}

pub(super) async fn exec(client: &Client, id: &ContainerId, spec: &ExecSpec) -> Result<Exec> {
    let mut config = json!({
        "AttachStdin": spec.stdin,
        "AttachStdout": true,
        "AttachStderr": true,
        "Tty": false,
        "Cmd": spec.command,
        "Env": environment(&spec.env),
    });
    if let Some(working_dir) = &spec.working_dir {
        config["WorkingDir"] = json!(working_dir);
    }
    if let Some(user) = &spec.user {
        config["User"] = json!(user);
    }
    let created: Created = client
        .json(&client.on("exec", Method::POST, &id.0, "/exec").json(&config))
        .await?;
    let path = format!("/exec/{}", encode(&created.id));
    let start = client
        .call("exec", Method::POST, &format!("{path}/start"))
        .json(&json!({ "Detach": false, "Tty": false }));
    let (socket, read_ahead) = client.hijack(start).await?;
    let (read, write) = socket.split();
    let stdin = spec
        .stdin
        .then(|| -> Pin<Box<dyn AsyncWrite + Send>> { Box::pin(write) });
    Ok(Exec {
        stdin,
        output: Frames::new(read, &read_ahead).boxed(),
        exit: Box::pin(exit(client.clone(), format!("{path}/json"))),
    })
}

/// The exit code comes a little after the end of the output, or long after it, if the process closed its pipes.
async fn exit(client: Client, path: String) -> Result<i64> {
    let call: Call<'static> = client.call("exec", Method::GET, &path);
    let mut pause = FIRST_PAUSE;
    let mut failures = 0;
    loop {
        match client.json::<Process>(&call).await {
            Ok(Process {
                running: false,
                exit_code: Some(code),
            }) => return Ok(code),
            Ok(_) => failures = 0,
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
