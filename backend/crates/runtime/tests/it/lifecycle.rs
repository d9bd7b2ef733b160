use std::time::Duration;

use kandev_runtime::{
    ContainerRuntime, ContainerState, ContainerSummary, LABEL_OWNER, Mount, MountSource, RuntimeError,
};

use crate::raw;
use crate::world::{World, collect, exited, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_is_named() {
    let world = World::new();
    let engine = world.runtime.ping().await.unwrap();
    assert!(!engine.version.is_empty());
    assert!(engine.api_version.starts_with("1."), "{engine:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_of_a_life() {
    let world = World::new();
    let spec = world.spec("read line; exit 3");
    let id = world.runtime.create(&spec).await.unwrap();
    assert_eq!(world.runtime.inspect(&id).await.unwrap(), ContainerState::Created);
    let mut attachment = world.runtime.attach(&id).await.unwrap();
    let exit = world.runtime.wait(&id).await.unwrap();
    world.runtime.start(&id).await.unwrap();
    assert_eq!(world.runtime.inspect(&id).await.unwrap(), ContainerState::Running);
    tokio::io::AsyncWriteExt::write_all(&mut attachment.stdin, b"go\n")
        .await
        .unwrap();
    exit.await.unwrap();
    assert_eq!(
        world.runtime.inspect(&id).await.unwrap(),
        ContainerState::Exited(exited(3))
    );
    world.runtime.remove(&id).await.unwrap();
    assert!(
        matches!(world.runtime.inspect(&id).await, Err(RuntimeError::ContainerNotFound(gone)) if gone == id.0)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ending_what_has_ended_is_fine() {
    let world = World::new();
    let running = world.run_script("exit 0").await;
    running.exit.await.unwrap();
    let (runtime, id) = (&world.runtime, &running.id);
    for _ in 0..2 {
        runtime.stop(id, Duration::ZERO).await.unwrap();
        runtime.kill(id).await.unwrap();
        runtime.remove(id).await.unwrap();
    }
    assert!(matches!(
        runtime.start(id).await,
        Err(RuntimeError::ContainerNotFound(_))
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_may_remove_one() {
    let world = World::new();
    let running = world.run_script("trap '' TERM; sleep 60").await;
    let removals = (0..5).map(|_| world.runtime.remove(&running.id));
    let removed = within(30, futures_util::future::join_all(removals)).await;
    assert!(removed.iter().all(Result::is_ok), "{removed:?}");
    assert!(matches!(
        world.runtime.inspect(&running.id).await,
        Err(RuntimeError::ContainerNotFound(_))
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_shows_only_ones_own() {
    let (mine, other) = (World::new(), World::new());
    let running = mine.run_script("sleep 60").await;
    let ended = mine.run_script("exit 0").await;
    ended.exit.await.unwrap();
    let created = mine.runtime.create(&mine.spec("true")).await.unwrap();
    let foreign = other.runtime.create(&other.spec("true")).await.unwrap();
    // The owner's label alone, as on a container that somebody ran by hand.
    let mut spec = mine.spec("true");
    spec.labels.retain(|label, _| label == LABEL_OWNER);
    mine.runtime.create(&spec).await.unwrap();

    let mut listed = mine.runtime.list(&mine.owner).await.unwrap();
    listed.sort_by_key(|container| container.name.clone());
    let seen: Vec<_> = listed
        .iter()
        .map(|ContainerSummary { id, running, .. }| (id, *running))
        .collect();
    assert_eq!(seen, [(&running.id, true), (&ended.id, false), (&created, false)]);
    assert!(
        listed
            .iter()
            .all(|container| container.labels[LABEL_OWNER] == mine.owner)
    );
    assert_eq!(listed[0].name, format!("{}-0", mine.owner));
    #[expect(clippy::disallowed_methods, reason = "the engine's clock is the machine's")]
    let age = std::time::SystemTime::now()
        .duration_since(listed[0].created_at)
        .unwrap();
    assert!(age < Duration::from_mins(2), "{age:?}");
    assert_eq!(other.runtime.list(&other.owner).await.unwrap()[0].id, foreign);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_created_is_not() {
    let world = World::new();
    let mut spec = world.spec("true");
    spec.image = "kandev-test/none:1".to_owned();
    let refused = world.runtime.create(&spec).await;
    assert!(matches!(refused, Err(RuntimeError::ImageNotFound(image)) if image == "kandev-test/none:1"));

    let mut spec = world.spec("true");
    spec.mounts = vec![Mount {
        source: MountSource::Host("/kandev-test/not/there".to_owned()),
        target: "/workspace".to_owned(),
        read_only: false,
    }];
    let refused = world.runtime.create(&spec).await;
    assert!(
        matches!(
            refused,
            Err(RuntimeError::Refused {
                status: Some(400),
                ..
            })
        ),
        "{refused:?}"
    );

    let taken = world.spec("true");
    world.runtime.create(&taken).await.unwrap();
    let refused = world.runtime.create(&taken).await;
    assert!(
        matches!(
            refused,
            Err(RuntimeError::Refused {
                status: Some(409),
                ..
            })
        ),
        "{refused:?}"
    );
    assert_eq!(world.runtime.list(&world.owner).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entrypoint_that_is_not_there() {
    let world = World::new();
    let mut spec = world.spec("true");
    spec.entrypoint = Some(vec!["/bin/none".to_owned()]);
    let id = world.runtime.create(&spec).await.unwrap();
    // docker-init is there and starts, and ends with the code a shell would give; without it the start is refused.
    let exit = world.runtime.wait(&id).await.unwrap();
    let failed = match world.runtime.start(&id).await {
        Ok(()) => matches!(within(10, exit).await, Ok(status) if matches!(status.code, 126 | 127)),
        Err(error) => matches!(error, RuntimeError::Refused { .. }),
    };
    assert!(failed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_outlives_its_containers() {
    let world = World::new();
    let name = format!("{}-volume", world.owner);
    let labels = [(LABEL_OWNER.to_owned(), world.owner.clone())].into();
    for _ in 0..2 {
        world.runtime.ensure_volume(&name, &labels).await.unwrap();
    }
    let mounted = |script: &str, read_only| {
        let mut spec = world.spec(script);
        spec.mounts = vec![Mount {
            source: MountSource::Volume(name.clone()),
            target: "/state".to_owned(),
            read_only,
        }];
        spec
    };
    let first = world
        .run(&mounted("echo kept >/state/file", false))
        .await
        .unwrap();
    assert_eq!(first.exit.await.unwrap(), exited(0));
    world.runtime.remove(&first.id).await.unwrap();
    world.runtime.ensure_volume(&name, &labels).await.unwrap();
    let second = world
        .run(&mounted("cat /state/file; echo x >/state/file", true))
        .await
        .unwrap();
    let (out, err) = collect(second.attachment.output).await;
    assert_eq!(out, b"kept\n");
    assert!(String::from_utf8_lossy(&err).contains("Read-only"), "{err:?}");
    let volume = raw::json("GET", &format!("/volumes/{name}"), &serde_json::Value::Null);
    assert_eq!(volume["Labels"][LABEL_OWNER], world.owner);
}
