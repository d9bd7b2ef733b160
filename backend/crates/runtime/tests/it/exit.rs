use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use kandev_runtime::docker::Limits;
use kandev_runtime::{ContainerRuntime, RuntimeError};

use crate::proxy::Proxy;
use crate::world::{World, collect, exited, until, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_short_lives_are_all_seen() {
    let world = World::new();
    let lives = stream::iter(0..100).map(|i| {
        let world = &world;
        async move {
            let spec = world.spec(&format!("echo life {i}; exit 7"));
            let running = world.run(&spec).await.unwrap();
            let (out, _) = collect(running.attachment.output).await;
            let status = running.exit.await.unwrap();
            world.runtime.remove(&running.id).await.unwrap();
            (String::from_utf8(out).unwrap() == format!("life {i}\n"), status)
        }
    });
    let seen: Vec<_> = within(100, lives.buffer_unordered(16).collect()).await;
    assert_eq!(seen.iter().filter(|(line, _)| *line).count(), 100);
    assert_eq!(
        seen.iter().filter(|(_, status)| *status == exited(7)).count(),
        100
    );
    within(5, world.runtime.drained()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_exit_is_told_though_nobody_reads_the_output() {
    let world = World::new();
    let running = world.run_script("echo last words; exit 4").await;
    assert_eq!(within(20, running.exit).await.unwrap(), exited(4));
    let (out, _) = within(5, collect(running.attachment.output)).await;
    assert_eq!(out, b"last words\n", "and is still there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_comes_late_tells_the_exit_too() {
    let world = World::new();
    let running = world.run_script("exit 5").await;
    assert_eq!(within(20, running.exit).await.unwrap(), exited(5));
    let late = world.runtime.wait(&running.id).await.unwrap();
    assert_eq!(within(5, late).await.unwrap(), exited(5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_container_ends_the_watch() {
    let world = World::new();
    let id = world.runtime.create(&world.spec("exit 0")).await.unwrap();
    let exit = world.runtime.wait(&id).await.unwrap();
    world.runtime.remove(&id).await.unwrap();
    let ended = within(20, exit).await;
    assert!(
        matches!(ended, Ok(_) | Err(RuntimeError::ContainerNotFound(_))),
        "{ended:?}"
    );
    assert!(matches!(
        world.runtime.wait(&id).await,
        Err(RuntimeError::ContainerNotFound(_))
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn out_of_memory() {
    const HOG: &str = "dd if=/dev/zero of=/dev/null bs=200M count=1";
    let world = World::new();

    // Under load an engine can see the end before its cause, hence several.
    let mut seen = 0;
    for _ in 0..4 {
        let agent = world.run_script(&format!("sleep 0.2; exec {HOG}")).await;
        let status = within(30, agent.exit).await.unwrap();
        assert_eq!(status.code, 137);
        seen += u32::from(status.oom_killed);
    }
    assert!(seen >= 2, "the agent itself: {seen} of 4");

    // The engine misses what happens in the very moment of the end.
    let child = world.run_script(&format!("{HOG}; sleep 1; exit 3")).await;
    let status = within(30, child.exit).await.unwrap();
    assert_eq!(
        (status.code, status.oom_killed, status.oom_hint),
        (3, false, true),
        "a child, which is a hint"
    );

    let killed = world.run_script("sleep 60").await;
    world.runtime.kill(&killed.id).await.unwrap();
    assert_eq!(
        within(30, killed.exit).await.unwrap(),
        exited(137),
        "our own kill"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graceful_agent_is_asked_and_a_stubborn_one_killed() {
    let world = World::new();
    let grace = Duration::from_secs(1);

    let mut graceful = world
        .run_script("trap 'echo bye; exit 9' TERM; echo up; while :; do sleep 0.05; done")
        .await;
    until(&mut graceful.attachment.output, "up\n").await;
    world
        .runtime
        .stop(&graceful.id, Duration::from_secs(10))
        .await
        .unwrap();
    assert_eq!(within(5, graceful.exit).await.unwrap(), exited(9));
    assert_eq!(collect(graceful.attachment.output).await.0, b"bye\n");

    let mut stubborn = world
        .run_script("trap '' TERM; echo up; while :; do sleep 0.05; done")
        .await;
    until(&mut stubborn.attachment.output, "up\n").await;
    let begin = Instant::now();
    world.runtime.stop(&stubborn.id, grace).await.unwrap();
    assert!(begin.elapsed() >= grace, "it had its grace");
    assert_eq!(within(5, stubborn.exit).await.unwrap(), exited(137));
}

/// The engine is away while the container ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_outlasts_an_absence_of_the_engine() {
    let mut proxy = Proxy::new();
    let world = World::at(&proxy.host(), Limits::default());
    let mut running = world.run_script("echo up; sleep 1; exit 6").await;
    until(&mut running.attachment.output, "up\n").await;
    let exit = tokio::time::timeout(Duration::from_millis(2500), running.exit.as_mut());
    proxy.cut().await;
    assert!(exit.await.is_err(), "the engine cannot have told");
    let broken = running.attachment.output.next().await;
    assert!(
        matches!(broken, None | Some(Err(RuntimeError::Broken(_)))),
        "{broken:?}"
    );
    assert!(matches!(
        world.runtime.ping().await,
        Err(RuntimeError::Unavailable(_))
    ));
    proxy.restore();
    assert_eq!(within(20, running.exit).await.unwrap(), exited(6));
}

/// The connection of the watch breaks, and the container lives on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_watch_is_renewed() {
    let mut proxy = Proxy::new();
    let world = World::at(&proxy.host(), Limits::default());
    let mut running = world.run_script("read line; exit 8").await;
    let waiting = tokio::time::timeout(Duration::from_millis(500), running.exit.as_mut());
    assert!(waiting.await.is_err());
    proxy.cut().await;
    let waiting = tokio::time::timeout(Duration::from_millis(300), running.exit.as_mut());
    assert!(waiting.await.is_err());
    proxy.restore();
    let mut again = world.runtime.attach(&running.id).await.unwrap();
    let renewed = tokio::time::timeout(Duration::from_secs(3), running.exit.as_mut());
    assert!(renewed.await.is_err(), "it runs");
    tokio::io::AsyncWriteExt::write_all(&mut again.stdin, b"go\n")
        .await
        .unwrap();
    assert_eq!(
        within(5, running.exit).await.unwrap(),
        exited(8),
        "told, not looked up 15 s later"
    );
    drop(again);
}
