//! The reconciler against an engine and a database that do not always answer.

use std::time::Duration;

use kandev_domain::status::{InstanceLifecycle, PermissionPolicy};
use kandev_domain::{Clock as _, FailureCode, InstanceId, InstanceStatus, SystemClock, TaskId};
use kandev_orchestrator::Settings;
use kandev_runtime::{
    ContainerId, ContainerRuntime as _, ContainerSpec, LABEL_INSTANCE, LABEL_MANAGED, LABEL_OWNER, Labels,
    Network, RuntimeError,
};
use kandev_store::PgPool;
use kandev_store::instances::{self, NewInstance};
use kandev_store::servers::{End, Register};
use kandev_store::tasks::{self, Task};

use crate::support::{Fault, FaultyRuntime, Step, TestDatabase, World};

fn away() -> RuntimeError {
    RuntimeError::Unavailable("gone for lunch".to_owned())
}

/// A container as an instance's launch makes it.
async fn container(runtime: &FaultyRuntime, owner: &str, id: InstanceId) -> ContainerId {
    let labels = Labels::from([
        (LABEL_MANAGED.to_owned(), "true".to_owned()),
        (LABEL_OWNER.to_owned(), owner.to_owned()),
        (LABEL_INSTANCE.to_owned(), id.to_string()),
    ]);
    let spec = ContainerSpec {
        name: format!("kandev-agent-{id}"),
        image: "kandev/mock-agent:latest".to_owned(),
        entrypoint: None,
        args: Vec::new(),
        env: std::collections::BTreeMap::new(),
        labels,
        working_dir: "/".to_owned(),
        mounts: Vec::new(),
        memory_bytes: 64 << 20,
        cpu_cores: 0.5,
        pids_limit: 16,
        network: Network::None,
        user: None,
        cap_add: Vec::new(),
        read_only_root: false,
        log_max_bytes: 1 << 20,
        log_max_files: 1,
    };
    runtime.engine().create(&spec).await.unwrap()
}

/// A row of an instance whose server has ended.
async fn row(pool: &PgPool, owner: &str) -> InstanceId {
    let (id, task_id, now) = (InstanceId::generate(), TaskId::generate(), SystemClock.now());
    let task = Task {
        id: task_id.clone(),
        title: None,
        description: None,
        state: tasks::DEFAULT_STATE.to_owned(),
        metadata: serde_json::json!({}),
        created_at: now,
        updated_at: now,
    };
    let mut register = Register::new(pool, owner);
    let held_by = register
        .begin("gone", None, Duration::from_mins(1))
        .await
        .unwrap();
    let new = NewInstance {
        id,
        task_id,
        agent_type: "mock-agent".to_owned(),
        workspace_path: "/nowhere".to_owned(),
        priority: 0,
        metadata: serde_json::json!({}),
        launch: "{}".to_owned(),
        env_names: Vec::new(),
        env_sealed: Vec::new(),
        permission_policy: PermissionPolicy::Allow,
        lifecycle: InstanceLifecycle::Interactive,
        owner: owner.to_owned(),
        resumed_from: None,
        resumes: None,
        held_by,
        created_at: now,
    };
    let mut tx = pool.begin().await.unwrap();
    tasks::insert(&mut tx, &task).await.unwrap();
    instances::insert(&mut tx, &new).await.unwrap();
    tx.commit().await.unwrap();
    assert!(register.end(held_by, End::Known).await.unwrap());
    id
}

/// A world in which the reconciler waits for the test: its engine does not list.
async fn blind() -> World {
    let runtime = FaultyRuntime::new();
    runtime.fail(Fault::always(Step::List, away));
    World::with(runtime, |_| {}).await
}

async fn lost(world: &World, id: InstanceId) -> instances::Instance {
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    loop {
        let instance = world.instance(id).await;
        if instance.status.is_final() {
            return instance;
        }
        assert!(std::time::Instant::now() < deadline, "it stays {instance:#?}");
        world.runtime.rounds(1).await;
    }
}

#[tokio::test]
async fn an_engine_that_cannot_be_asked_costs_nothing() {
    let world = blind().await;
    let stray = container(&world.runtime, &world.owner, InstanceId::generate()).await;
    let id = row(&world.pool, &world.owner).await;
    world.runtime.rounds(4).await;
    assert_eq!(
        world
            .containers(None)
            .await
            .iter()
            .map(|c| &c.id)
            .collect::<Vec<_>>(),
        [&stray]
    );
    assert_eq!(
        world.instance(id).await.status,
        InstanceStatus::Starting,
        "nothing was known of its container"
    );

    world.runtime.heal();
    world.until_containers(0).await;
    let instance = lost(&world, id).await;
    assert_eq!(instance.error_code, Some(FailureCode::RuntimeLost));
    assert_eq!(
        instance.error_message.as_deref(),
        Some("the server ended before the instance had a container")
    );
    world.assert_launchable(&instance.task_id).await;
    world.end().await;
}

#[tokio::test]
async fn a_database_that_cannot_be_asked_costs_nothing() {
    let database = TestDatabase::create().await;
    let pool = database.pool().await;
    kandev_store::migrate(&pool).await.unwrap();
    pool.close().await;
    let runtime = FaultyRuntime::new();
    let owner = format!("test-{}", InstanceId::generate());
    let stray = container(&runtime, &owner, InstanceId::generate()).await;
    let world = World::over(database, pool, runtime, |s| s.owner = owner);
    world.runtime.rounds(4).await;
    assert_eq!(
        world
            .containers(None)
            .await
            .iter()
            .map(|c| &c.id)
            .collect::<Vec<_>>(),
        [&stray]
    );
    world.runtime.engine().remove(&stray).await.unwrap();
    world.end().await;
}

/// Trouble with one container is no trouble of the others.
#[tokio::test]
async fn one_container_that_will_not_go_holds_up_nobody() {
    let world = blind().await;
    let first = row(&world.pool, &world.owner).await;
    let stuck = container(&world.runtime, &world.owner, first).await;
    world.runtime.engine().start(&stuck).await.unwrap();
    let second = row(&world.pool, &world.owner).await;
    container(&world.runtime, &world.owner, second).await;
    let stray = container(&world.runtime, &world.owner, InstanceId::generate()).await;
    let other_stray = container(&world.runtime, &world.owner, InstanceId::generate()).await;
    world.runtime.heal();
    world.runtime.fail(Fault::always(Step::Stop, away).of(&stuck));
    world.runtime.fail(Fault::always(Step::Remove, away).of(&stray));
    world
        .runtime
        .fail(Fault::always(Step::Remove, away).of(&other_stray));

    let instance = lost(&world, second).await;
    assert_eq!(instance.error_code, Some(FailureCode::RuntimeLost));
    assert_eq!(
        instance.error_message.as_deref(),
        Some("the server ended before the instance's container was started")
    );
    assert!(world.containers(Some(second)).await.is_empty());
    assert_eq!(
        world.instance(first).await.status,
        InstanceStatus::Starting,
        "it may run on, so nothing is said of it yet"
    );
    world.runtime.heal();
    world.until_containers(0).await;
    let instance = lost(&world, first).await;
    let said = instance.error_message.unwrap();
    assert!(said.ends_with("its container was stopped"), "{said}");
    world.end().await;
}

/// Young containers may belong to a launch whose row is not there yet; those of others are none of ours.
#[tokio::test]
async fn young_containers_and_those_of_others_are_left_alone() {
    let patient = |s: &mut Settings| s.orphan_grace = Duration::from_hours(1);
    let world = World::with(FaultyRuntime::new(), patient).await;
    let young = container(&world.runtime, &world.owner, InstanceId::generate()).await;
    let other_owner = world.other_owner();
    let foreign = container(&world.runtime, &other_owner, InstanceId::generate()).await;
    world.runtime.rounds(4).await;
    assert_eq!(
        world
            .containers(None)
            .await
            .iter()
            .map(|c| &c.id)
            .collect::<Vec<_>>(),
        [&young]
    );
    let others = world.runtime.engine().list(&other_owner).await.unwrap();
    assert_eq!(others.iter().map(|c| &c.id).collect::<Vec<_>>(), [&foreign]);
    for id in [young, foreign] {
        world.runtime.engine().remove(&id).await.unwrap();
    }
    world.end().await;
}
