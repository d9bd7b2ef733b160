//! Start, look, stop, kill, remove, list.

use std::collections::HashMap;
use std::time::{Duration, UNIX_EPOCH};

use bollard::models::{self, ContainerStateStatusEnum as Status, ContainerSummaryStateEnum as Listed};
use bollard::query_parameters::{
    KillContainerOptionsBuilder, ListContainersOptionsBuilder, RemoveContainerOptionsBuilder,
    StopContainerOptionsBuilder,
};

use super::client::{Call, Client, Subject, segment, within};
use super::wait;
use crate::error::{Result, RuntimeError};
use crate::types::{ContainerId, ContainerState, ContainerSummary, ExitStatus, LABEL_MANAGED, LABEL_OWNER};

/// What `inspect` of the engine tells.
#[derive(Debug)]
pub(super) struct Inspected {
    pub(super) tty: bool,
    /// As it was said at the container's making, or by its image.
    pub(super) user: String,
    pub(super) working_dir: String,
    /// Directories of the host, and where they are in the container.
    pub(super) binds: Vec<(String, String)>,
    pub(super) state: ContainerState,
}

pub(super) async fn inspect(client: &Client, id: &ContainerId) -> Result<Inspected> {
    let call = client.on("inspect", id);
    let name = &segment(&id.0);
    let answer = client
        .make(call, |engine| async move {
            engine.docker.inspect_container(name, None).await
        })
        .await?;
    let config = answer.config.unwrap_or_default();
    let mounts = answer.mounts.unwrap_or_default().into_iter();
    let binds = mounts
        .filter(|mount| mount.typ.as_deref() == Some("bind"))
        .filter_map(|mount| Some((mount.source?, mount.destination?)))
        .collect();
    Ok(Inspected {
        tty: config.tty.unwrap_or(false),
        user: config.user.unwrap_or_default(),
        working_dir: config.working_dir.unwrap_or_default(),
        binds,
        state: state(call, answer.state.unwrap_or_default())?,
    })
}

/// Whether a user id within containers is another on the host.
pub(super) async fn maps_users(client: &Client) -> Result<bool> {
    let info = client.make(client.call("info", Subject::Engine), |engine| async move {
        engine.docker.info().await
    });
    let options = info.await?.security_options.unwrap_or_default();
    Ok(options
        .iter()
        .any(|option| option.contains("name=userns") || option.contains("name=rootless")))
}

fn state(call: Call<'_>, state: models::ContainerState) -> Result<ContainerState> {
    match state.status {
        None | Some(Status::EMPTY) => Err(call.not_understood("no state")),
        Some(Status::CREATED) => Ok(ContainerState::Created),
        Some(Status::RUNNING | Status::PAUSED | Status::RESTARTING | Status::STOPPING) => {
            Ok(ContainerState::Running)
        }
        Some(Status::EXITED | Status::DEAD | Status::REMOVING) => {
            let error = state.error.filter(|words| !words.is_empty());
            Ok(ContainerState::Exited(ExitStatus::new(
                state.exit_code.unwrap_or(0),
                state.oom_killed.unwrap_or(false),
                error,
            )))
        }
    }
}

pub(super) async fn start(client: &Client, id: &ContainerId) -> Result<()> {
    let name = &segment(&id.0);
    client
        .make(client.on("start", id), |engine| async move {
            engine.docker.start_container(name, None).await
        })
        .await
}

/// The engine counts the grace in whole seconds; ours is rounded up.
pub(super) async fn stop(client: &Client, id: &ContainerId, grace: Duration) -> Result<()> {
    let seconds = grace.as_secs() + u64::from(grace.subsec_nanos() > 0);
    let seconds = i32::try_from(seconds).unwrap_or(i32::MAX);
    let mut call = client.on("stop", id);
    call.limit = call
        .limit
        .saturating_add(Duration::from_secs(seconds.unsigned_abs().into()));
    let options = &StopContainerOptionsBuilder::default().t(seconds).build();
    let name = &segment(&id.0);
    let answer = client.make(call, |engine| async move {
        engine.docker.stop_container(name, Some(options.clone())).await
    });
    unless_ended(answer.await)
}

/// Fine if it is paused already.
pub(super) async fn pause(client: &Client, id: &ContainerId) -> Result<()> {
    let name = &segment(&id.0);
    let answer = client.make(client.on("pause", id), |engine| async move {
        engine.docker.pause_container(name).await
    });
    unless_so(answer.await, "already paused")
}

/// Fine if it is not paused, and if it ended in the moment in which it was.
pub(super) async fn unpause(client: &Client, id: &ContainerId) -> Result<()> {
    let name = &segment(&id.0);
    let answer = client.make(client.on("unpause", id), |engine| async move {
        engine.docker.unpause_container(name).await
    });
    let answer = unless_so(answer.await, "not paused");
    unless_so(answer, "resume a stopped container")
}

fn unless_so(answer: Result<()>, words: &str) -> Result<()> {
    match answer {
        Err(RuntimeError::Refused { message, .. }) if message.contains(words) => Ok(()),
        answer => answer,
    }
}

pub(super) async fn kill(client: &Client, id: &ContainerId) -> Result<()> {
    let options = &KillContainerOptionsBuilder::default().signal("SIGKILL").build();
    let name = &segment(&id.0);
    let answer = client.make(client.on("kill", id), |engine| async move {
        engine.docker.kill_container(name, Some(options.clone())).await
    });
    unless_ended(answer.await)
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
    let options = &RemoveContainerOptionsBuilder::default()
        .force(true)
        .v(true)
        .build();
    let name = &segment(&id.0);
    let answer = client.make(client.on("remove", id), |engine| async move {
        engine.docker.remove_container(name, Some(options.clone())).await
    });
    match answer.await {
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
        answer
            .await
            .map(drop)
            .map_err(|error| client.on("remove", id).error(error))
    };
    match within("remove", client.limits().call, wait).await {
        Err(RuntimeError::ContainerNotFound(_)) => Ok(()),
        answer => answer,
    }
}

pub(super) async fn list(client: &Client, owner: &str) -> Result<Vec<ContainerSummary>> {
    let labels = vec![LABEL_MANAGED.to_owned(), format!("{LABEL_OWNER}={owner}")];
    let options = &ListContainersOptionsBuilder::default()
        .all(true)
        .filters(&HashMap::from([("label", labels)]))
        .build();
    let call = client.call("list", Subject::Engine);
    let listed = client
        .make(call, |engine| async move {
            engine.docker.list_containers(Some(options.clone())).await
        })
        .await?;
    listed
        .into_iter()
        .map(|container| summary(container).ok_or_else(|| call.not_understood("a container without an id")))
        .collect()
}

fn summary(listed: models::ContainerSummary) -> Option<ContainerSummary> {
    let names = listed.names.unwrap_or_default();
    let created = u64::try_from(listed.created.unwrap_or(0)).unwrap_or(0);
    Some(ContainerSummary {
        id: ContainerId(listed.id?),
        name: names
            .first()
            .map_or("", |name| name.trim_start_matches('/'))
            .to_owned(),
        labels: listed.labels.unwrap_or_default().into_iter().collect(),
        running: matches!(
            listed.state,
            Some(Listed::RUNNING | Listed::PAUSED | Listed::RESTARTING | Listed::STOPPING)
        ),
        created_at: UNIX_EPOCH + Duration::from_secs(created),
    })
}

/// Whether the engine said, in whatever words, that there is no such thing.
pub(super) fn is_not_found(error: &RuntimeError) -> bool {
    matches!(
        error,
        RuntimeError::Refused {
            status: Some(404),
            ..
        }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<ContainerState> {
        let call = Call {
            operation: "inspect",
            subject: Subject::Engine,
            limit: Duration::ZERO,
        };
        state(call, serde_json::from_str(json).unwrap())
    }

    #[test]
    fn states_of_an_engine() {
        assert_eq!(
            read(r#"{"Status":"created","ExitCode":127,"Error":"no such file"}"#).unwrap(),
            ContainerState::Created
        );
        assert_eq!(
            read(r#"{"Status":"paused","ExitCode":0}"#).unwrap(),
            ContainerState::Running
        );
        assert_eq!(
            read(r#"{"Status":"exited","ExitCode":137,"OOMKilled":true,"Error":""}"#).unwrap(),
            ContainerState::Exited(ExitStatus::new(137, true, None))
        );
        assert!(read("{}").is_err());
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
