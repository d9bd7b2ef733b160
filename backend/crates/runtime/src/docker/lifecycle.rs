//! Start, look, stop, kill, remove, list.

use std::time::{Duration, UNIX_EPOCH};

use hyper::{Method, StatusCode};
use serde::Deserialize;
use serde_json::json;

use super::client::{Client, within};
use super::wait;
use crate::error::{Result, RuntimeError};
use crate::types::{
    ContainerId, ContainerState, ContainerSummary, ExitStatus, LABEL_MANAGED, LABEL_OWNER, Labels,
};

/// What `inspect` of the engine tells.
#[derive(Debug)]
pub(super) struct Inspected {
    pub(super) tty: bool,
    /// As it was said at the container's making, or by its image.
    pub(super) user: String,
    pub(super) state: ContainerState,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InspectAnswer {
    state: StateAnswer,
    config: ConfigAnswer,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct StateAnswer {
    status: String,
    #[serde(default)]
    exit_code: i64,
    #[serde(default, rename = "OOMKilled")]
    oom_killed: bool,
    #[serde(default)]
    error: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ConfigAnswer {
    #[serde(default)]
    tty: bool,
    #[serde(default)]
    user: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListAnswer {
    id: String,
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    labels: Option<Labels>,
    state: String,
    created: u64,
}

impl From<StateAnswer> for ContainerState {
    fn from(answer: StateAnswer) -> Self {
        match answer.status.as_str() {
            // "configured" and "initialized" are Podman's.
            "created" | "configured" | "initialized" => Self::Created,
            status if runs(status) => Self::Running,
            // "exited", "dead", "removing", Podman's "stopped".
            _ => Self::Exited(ExitStatus {
                code: answer.exit_code,
                oom_killed: answer.oom_killed,
                error: answer.error.filter(|words| !words.is_empty()),
            }),
        }
    }
}

fn runs(status: &str) -> bool {
    matches!(status, "running" | "paused" | "restarting" | "stopping")
}

pub(super) async fn inspect(client: &Client, id: &ContainerId) -> Result<Inspected> {
    let call = client.on("inspect", Method::GET, &id.0, "/json");
    let answer: InspectAnswer = client.json(&call).await?;
    Ok(Inspected {
        tty: answer.config.tty,
        user: answer.config.user,
        state: answer.state.into(),
    })
}

pub(super) async fn start(client: &Client, id: &ContainerId) -> Result<()> {
    client
        .done(&client.on("start", Method::POST, &id.0, "/start"))
        .await
}

/// The engine counts the grace in whole seconds; ours is rounded up.
pub(super) async fn stop(client: &Client, id: &ContainerId, grace: Duration) -> Result<()> {
    let seconds = grace.as_secs() + u64::from(grace.subsec_nanos() > 0);
    let call = client
        .on("stop", Method::POST, &id.0, "/stop")
        .query("t", &seconds.to_string())
        .limit(Duration::from_secs(seconds).saturating_add(client.limits().call));
    unless_ended(client.done(&call).await)
}

pub(super) async fn kill(client: &Client, id: &ContainerId) -> Result<()> {
    let call = client
        .on("kill", Method::POST, &id.0, "/kill")
        .query("signal", "SIGKILL");
    unless_ended(client.done(&call).await)
}

/// A container that has ended, or is gone, was stopped well enough. "Is not running" comes as a conflict.
fn unless_ended(answer: Result<()>) -> Result<()> {
    match answer {
        Err(RuntimeError::ContainerNotFound(_)) => Ok(()),
        Err(RuntimeError::Refused {
            status: Some(409),
            message,
            ..
        }) if message.contains("not running") => Ok(()),
        answer => answer,
    }
}

/// Anonymous volumes go with it, named ones stay.
pub(super) async fn remove(client: &Client, id: &ContainerId) -> Result<()> {
    let call = client
        .on("remove", Method::DELETE, &id.0, "")
        .query("force", "1")
        .query("v", "1");
    match client.done(&call).await {
        Err(RuntimeError::ContainerNotFound(_)) => Ok(()),
        Err(RuntimeError::Refused {
            status: Some(409),
            message,
            ..
        }) if message.contains("in progress") => removed(client, id).await,
        answer => answer,
    }
}

/// Waits for a removal that somebody else began.
async fn removed(client: &Client, id: &ContainerId) -> Result<()> {
    let wait = async {
        let answer = wait::register(client, id, wait::Condition::Removed).await?;
        super::client::body(answer, wait::ANSWER_LIMIT).await.map(drop)
    };
    match within("remove", client.limits().call, wait).await {
        Err(RuntimeError::ContainerNotFound(_)) => Ok(()),
        answer => answer,
    }
}

pub(super) async fn list(client: &Client, owner: &str) -> Result<Vec<ContainerSummary>> {
    let filters = json!({ "label": [LABEL_MANAGED, format!("{LABEL_OWNER}={owner}")] });
    let call = client
        .call("list", Method::GET, "/containers/json")
        .query("all", "1")
        .query("filters", &filters.to_string());
    let answer: Vec<ListAnswer> = client.json(&call).await?;
    Ok(answer.into_iter().map(summary).collect())
}

fn summary(answer: ListAnswer) -> ContainerSummary {
    let name = answer.names.first().map_or("", String::as_str);
    ContainerSummary {
        id: ContainerId(answer.id),
        name: name.trim_start_matches('/').to_owned(),
        labels: answer.labels.unwrap_or_default(),
        running: runs(&answer.state),
        created_at: UNIX_EPOCH + Duration::from_secs(answer.created),
    }
}

/// Whether the engine said, in whatever words, that there is no such thing.
pub(super) fn is_not_found(error: &RuntimeError) -> bool {
    matches!(
        error,
        RuntimeError::Refused { status: Some(status), .. } if *status == StatusCode::NOT_FOUND.as_u16()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(json: &str) -> ContainerState {
        serde_json::from_str::<StateAnswer>(json).unwrap().into()
    }

    #[test]
    fn states_of_docker_and_podman() {
        assert_eq!(
            state(r#"{"Status":"created","ExitCode":127,"Error":"no such file"}"#),
            ContainerState::Created
        );
        assert_eq!(state(r#"{"Status":"configured"}"#), ContainerState::Created);
        assert_eq!(
            state(r#"{"Status":"paused","ExitCode":0}"#),
            ContainerState::Running
        );
        assert_eq!(
            state(r#"{"Status":"exited","ExitCode":137,"OOMKilled":true,"Error":""}"#),
            ContainerState::Exited(ExitStatus {
                code: 137,
                oom_killed: true,
                error: None
            })
        );
        assert!(
            matches!(state(r#"{"Status":"stopped","ExitCode":3}"#), ContainerState::Exited(s) if s.code == 3)
        );
    }

    #[test]
    fn ending_what_has_ended_is_fine() {
        let refused = |status, message: &str| RuntimeError::Refused {
            operation: "kill",
            status: Some(status),
            message: message.to_owned(),
        };
        assert!(unless_ended(Err(refused(409, "Container c1 is not running"))).is_ok());
        assert!(unless_ended(Err(RuntimeError::ContainerNotFound("c1".into()))).is_ok());
        assert!(unless_ended(Err(refused(409, "is paused"))).is_err());
        assert!(unless_ended(Err(refused(500, "not running"))).is_err());
    }
}
