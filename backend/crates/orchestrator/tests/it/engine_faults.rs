//! Each step of a launch that the engine has a part in, failed on purpose: nothing stays behind, and the task goes on.

use std::time::Duration;

use kandev_domain::{FailureCode, InstanceStatus, TaskId};
use kandev_orchestrator::{LaunchError, LaunchRequest, Settings};
use kandev_runtime::RuntimeError;

use crate::support::{Fault, FaultyRuntime, Moment, Step, World, launch};

fn refused() -> RuntimeError {
    RuntimeError::Refused {
        operation: "test",
        status: Some(500),
        message: "not today".to_owned(),
    }
}

fn disk_full() -> RuntimeError {
    RuntimeError::Refused {
        operation: "create",
        status: Some(500),
        message: "mkdir /var/lib/docker/overlay2/1: no space left on device".to_owned(),
    }
}

fn away() -> RuntimeError {
    RuntimeError::Unavailable("gone for lunch".to_owned())
}

fn lost_answer() -> RuntimeError {
    RuntimeError::Timeout {
        operation: "test",
        limit: Duration::from_secs(30),
    }
}

fn broken() -> RuntimeError {
    RuntimeError::Broken("the line went dead".to_owned())
}

fn no_image() -> RuntimeError {
    RuntimeError::ImageNotFound("kandev/mock-agent:latest".to_owned())
}

/// What the caller of the launch gets to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// The launch failed for good.
    Failed,
    /// It failed, and the same may well work later.
    TryAgain,
    /// There was a container by then: the instance's status tells.
    Launched,
}

async fn fails(step: Step, moment: Moment, error: fn() -> RuntimeError, code: FailureCode, expected: Told) {
    let world = World::start().await;
    world.runtime.fail(Fault::once(step, moment, error));
    let (id, answer) = world.launch(launch(&TaskId::generate(), &[])).await;
    let told = match answer {
        None => Told::Launched,
        Some(LaunchError::Failed { transient: true, .. }) => Told::TryAgain,
        Some(_) => Told::Failed,
    };
    assert_eq!(told, expected);
    let instance = world.assert_undone(id).await;
    assert_eq!(instance.error_code, Some(code), "{instance:#?}");
    let message = instance.error_message.unwrap();
    assert!(message.contains(&error().to_string()), "{message}");
    assert_eq!(world.runtime.happened(), 1, "the fault did not happen");
    world.end().await;
}

const CREATE: FailureCode = FailureCode::ContainerCreateFailed;

#[tokio::test]
async fn no_volume() {
    fails(Step::EnsureVolume, Moment::Before, refused, CREATE, Told::Failed).await;
}

#[tokio::test]
async fn a_volume_whose_answer_is_lost() {
    fails(
        Step::EnsureVolume,
        Moment::After,
        lost_answer,
        CREATE,
        Told::TryAgain,
    )
    .await;
}

#[tokio::test]
async fn no_container() {
    fails(Step::Create, Moment::Before, refused, CREATE, Told::Failed).await;
}

#[tokio::test]
async fn an_engine_whose_disk_is_full() {
    for step in [Step::EnsureVolume, Step::Create] {
        fails(step, Moment::Before, disk_full, CREATE, Told::TryAgain).await;
    }
    fails(Step::Start, Moment::Before, disk_full, CREATE, Told::Launched).await;
}

#[tokio::test]
async fn an_engine_that_is_away() {
    fails(Step::Create, Moment::Before, away, CREATE, Told::TryAgain).await;
}

#[tokio::test]
async fn an_image_that_the_engine_lost() {
    fails(
        Step::Create,
        Moment::Before,
        no_image,
        FailureCode::ImageNotFound,
        Told::Failed,
    )
    .await;
}

/// The container is there, and nobody was told its id.
#[tokio::test]
async fn a_container_whose_answer_is_lost() {
    fails(Step::Create, Moment::After, lost_answer, CREATE, Told::TryAgain).await;
}

#[tokio::test]
async fn no_attachment() {
    fails(Step::Attach, Moment::Before, broken, CREATE, Told::Launched).await;
}

#[tokio::test]
async fn an_attachment_that_is_lost() {
    fails(Step::Attach, Moment::After, lost_answer, CREATE, Told::Launched).await;
}

#[tokio::test]
async fn no_wait() {
    fails(Step::Wait, Moment::Before, broken, CREATE, Told::Launched).await;
}

#[tokio::test]
async fn no_start() {
    fails(Step::Start, Moment::Before, refused, CREATE, Told::Launched).await;
}

/// The agent runs, and nobody was told.
#[tokio::test]
async fn a_start_whose_answer_is_lost() {
    fails(Step::Start, Moment::After, lost_answer, CREATE, Told::Launched).await;
}

#[tokio::test]
async fn an_image_that_there_never_was() {
    let world = World::start().await;
    let request = LaunchRequest {
        agent_type: "no-image".to_owned(),
        ..launch(&TaskId::generate(), &[])
    };
    let (id, answer) = world.launch(request).await;
    assert!(
        matches!(
            answer,
            Some(LaunchError::Failed {
                code: FailureCode::ImageNotFound,
                transient: false,
                ..
            })
        ),
        "{answer:?}"
    );
    let instance = world.assert_undone(id).await;
    assert_eq!(instance.error_code, Some(FailureCode::ImageNotFound));
    assert_eq!(instance.container_id, None);
    world.end().await;
}

/// Twice in a row: the undo of a step fails as well, and the reconciler does it.
#[tokio::test]
async fn a_start_and_its_undo() {
    let world = World::with(FaultyRuntime::new(), |_| {}).await;
    world
        .runtime
        .fail(Fault::once(Step::Start, Moment::After, lost_answer));
    world
        .runtime
        .fail(Fault::once(Step::Remove, Moment::Before, away));
    let task = TaskId::generate();
    let (id, _) = world.launch(launch(&task, &[])).await;
    let instance = world.reaches(id, InstanceStatus::is_final).await;
    assert_eq!(instance.error_code, Some(CREATE), "{instance:#?}");
    world.until_containers(0).await;
    assert_eq!(world.runtime.happened(), 2, "the faults did not happen");
    world.assert_undone(id).await;
    world.end().await;
}

/// The same when the list that finds a container without an id cannot be had.
#[tokio::test]
async fn a_create_and_its_undo() {
    // Not looking by itself, so that the list that fails is the undo's.
    let slow = |s: &mut Settings| s.reconcile_interval = Duration::from_secs(2);
    let world = World::with(FaultyRuntime::new(), slow).await;
    world.runtime.first_round().await;
    world
        .runtime
        .fail(Fault::once(Step::Create, Moment::After, lost_answer));
    world.runtime.fail(Fault::once(Step::List, Moment::Before, away));
    let (id, answer) = world.launch(launch(&TaskId::generate(), &[])).await;
    assert!(
        matches!(answer, Some(LaunchError::Failed { transient: true, .. })),
        "{answer:?}"
    );
    assert_eq!(world.runtime.happened(), 2, "the faults did not happen");
    world.until_containers(0).await;
    world.assert_undone(id).await;
    world.end().await;
}

/// An instance that ended well, but whose container the engine would not remove.
#[tokio::test]
async fn a_removal_that_fails_is_done_later() {
    let world = World::with(FaultyRuntime::new(), |_| {}).await;
    let (id, answer) = world.launch(launch(&TaskId::generate(), &[])).await;
    assert!(answer.is_none(), "{answer:?}");
    world.reaches(id, |s| s == InstanceStatus::Running).await;
    world
        .runtime
        .fail(Fault::once(Step::Remove, Moment::Before, away));
    world.orchestrator.stop(id, None, false).await.unwrap();
    let instance = world.instance(id).await;
    assert_eq!(instance.status, InstanceStatus::Stopped);
    assert_eq!(world.runtime.happened(), 1, "the fault did not happen");
    world.until_containers(0).await;
    assert_eq!(world.instance(id).await.status, InstanceStatus::Stopped);
    world.end().await;
}

/// SIGTERM cannot be sent: the container goes all the same.
#[tokio::test]
async fn a_stop_that_fails() {
    let world = World::start().await;
    let (id, _) = world.launch(launch(&TaskId::generate(), &[])).await;
    world.reaches(id, |s| s == InstanceStatus::Running).await;
    world
        .runtime
        .fail(Fault::once(Step::Stop, Moment::Before, refused));
    world.orchestrator.stop(id, None, false).await.unwrap();
    assert_eq!(world.runtime.happened(), 1, "the fault did not happen");
    assert_eq!(world.instance(id).await.status, InstanceStatus::Stopped);
    assert!(world.containers(None).await.is_empty());
    world.end().await;
}
