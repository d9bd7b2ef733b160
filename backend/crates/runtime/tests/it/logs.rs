use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use kandev_runtime::{ContainerId, ContainerRuntime, LogsFrom, RuntimeError};

use crate::raw;
use crate::world::{World, collect, exited, until, within};

const ALL: LogsFrom = LogsFrom {
    since: None,
    follow: false,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_gives_back_what_was_written() {
    let world = World::new();
    // The engine's log cuts lines at 16 KiB.
    let running = world
        .run_script("echo début; head -c 100000 /dev/zero | tr '\\0' x; echo; echo err >&2; printf tail")
        .await;
    let live = collect(running.attachment.output).await;
    running.exit.await.unwrap();
    let logged = collect(world.runtime.logs_from(&running.id, ALL).await.unwrap()).await;
    assert_eq!(live.0.len(), "début\n".len() + 100_001 + 4);
    assert!(logged == live);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_followed_log_goes_on_until_the_end() {
    let world = World::new();
    let mut running = world
        .run_script("read go; echo one; read go; echo two; exit 2")
        .await;
    let from = LogsFrom {
        since: None,
        follow: true,
    };
    // Nothing is written yet, and the answer comes at once.
    let mut log = within(5, world.runtime.logs_from(&running.id, from))
        .await
        .unwrap();
    for word in ["one\n", "two\n"] {
        tokio::io::AsyncWriteExt::write_all(&mut running.attachment.stdin, b"go\n")
            .await
            .unwrap();
        assert_eq!(until(&mut log, "\n").await, word);
    }
    assert_eq!(within(10, running.exit).await.unwrap(), exited(2));
    assert!(within(10, log.next()).await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_from_a_point_in_time() {
    let world = World::new();
    let running = world.run_script("echo early; sleep 2; echo late").await;
    collect(running.attachment.output).await;
    running.exit.await.unwrap();
    let inspected = raw::inspect(&running.id.0);
    let finished = inspected["State"]["FinishedAt"].as_str().unwrap().to_owned();
    let status = std::process::Command::new("date")
        .args(["+%s", "-d", &finished])
        .output()
        .unwrap();
    let finished: u64 = String::from_utf8(status.stdout).unwrap().trim().parse().unwrap();
    let since = SystemTime::UNIX_EPOCH + Duration::from_secs(finished) - Duration::from_secs(1);
    let from = LogsFrom {
        since: Some(since),
        follow: false,
    };
    let (out, _) = collect(world.runtime.logs_from(&running.id, from).await.unwrap()).await;
    assert_eq!(out, b"late\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gone_container_has_no_log() {
    let world = World::new();
    let log = world
        .runtime
        .logs_from(&ContainerId("kandev-test-gone".to_owned()), ALL)
        .await;
    assert!(matches!(log, Err(RuntimeError::ContainerNotFound(_))));
}
