use futures_util::StreamExt;
use kandev_runtime::{ContainerId, ContainerRuntime, ExecSpec, RuntimeError};
use tokio::io::AsyncWriteExt;

use crate::world::{World, collect, within};

fn command(words: &[&str]) -> ExecSpec {
    ExecSpec {
        command: words.iter().map(|word| (*word).to_owned()).collect(),
        ..ExecSpec::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_and_exit_code() {
    let world = World::new();
    let running = world.run_script("sleep 60").await;
    let exec = world
        .runtime
        .exec(
            &running.id,
            &command(&["/bin/sh", "-c", "echo out; echo err >&2; exit 5"]),
        )
        .await
        .unwrap();
    assert!(exec.stdin.is_none());
    assert_eq!(collect(exec.output).await, (b"out\n".to_vec(), b"err\n".to_vec()));
    assert_eq!(within(5, exec.exit).await.unwrap(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stdin_can_be_closed() {
    let world = World::new();
    let running = world.run_script("sleep 60").await;
    let spec = ExecSpec {
        stdin: true,
        ..command(&["/bin/cat"])
    };
    let exec = world.runtime.exec(&running.id, &spec).await.unwrap();
    let mut stdin = exec.stdin.unwrap();
    let sent: Vec<u8> = (0..1 << 20).map(|i: u32| (i % 253) as u8).collect();
    let write = async {
        stdin.write_all(&sent).await.unwrap();
        stdin.shutdown().await.unwrap();
    };
    let ((), (out, _)) = within(20, async { tokio::join!(write, collect(exec.output)) }).await;
    assert!(out == sent, "{} of {} bytes", out.len(), sent.len());
    assert_eq!(within(5, exec.exit).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_the_output_closes_the_connection_though_stdin_is_held() {
    let world = World::new();
    let running = world.run_script("sleep 60").await;
    let spec = ExecSpec {
        stdin: true,
        ..command(&["/bin/sleep", "60"])
    };
    let exec = world.runtime.exec(&running.id, &spec).await.unwrap();
    let mut stdin = exec.stdin.unwrap();
    drop(exec.output);
    let error = within(5, stdin.write_all(b"anybody there?\n")).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn environment_directory_and_user() {
    let world = World::new();
    let running = world.run_script("sleep 60").await;
    let spec = ExecSpec {
        env: [("GREETING".to_owned(), "a=b c".to_owned())].into(),
        working_dir: Some("/tmp".to_owned()),
        user: Some("77:88".to_owned()),
        ..command(&["/bin/sh", "-c", "echo $GREETING $(pwd) $(id -u):$(id -g)"])
    };
    let exec = world.runtime.exec(&running.id, &spec).await.unwrap();
    assert_eq!(collect(exec.output).await.0, b"a=b c /tmp 77:88\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_exit_comes_after_closed_pipes() {
    let world = World::new();
    let running = world.run_script("sleep 60").await;
    let spec = command(&["/bin/sh", "-c", "exec >/dev/null 2>&1; sleep 1; exit 4"]);
    let exec = world.runtime.exec(&running.id, &spec).await.unwrap();
    assert_eq!(collect(exec.output).await, (vec![], vec![]));
    assert_eq!(within(10, exec.exit).await.unwrap(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_run() {
    let world = World::new();
    let running = world.run_script("sleep 60").await;
    // An engine says so when asked, or lets the process end with the code a shell would give.
    let failed = match world.runtime.exec(&running.id, &command(&["/bin/none"])).await {
        Ok(mut exec) => {
            while exec.output.next().await.is_some() {}
            matches!(within(5, exec.exit).await, Ok(126 | 127))
        }
        Err(error) => matches!(error, RuntimeError::Refused { .. }),
    };
    assert!(failed);
    let gone = ContainerId("kandev-test-gone".to_owned());
    let exec = world.runtime.exec(&gone, &command(&["/bin/true"])).await;
    assert!(matches!(exec, Err(RuntimeError::ContainerNotFound(_))));
    world.runtime.kill(&running.id).await.unwrap();
    running.exit.await.unwrap();
    let exec = world.runtime.exec(&running.id, &command(&["/bin/true"])).await;
    assert!(
        matches!(
            exec,
            Err(RuntimeError::Refused {
                status: Some(409),
                ..
            })
        ),
        "{exec:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_lost_with_its_container_does_not_hang() {
    let world = World::new();
    let running = world.run_script("sleep 60").await;
    let exec = world
        .runtime
        .exec(&running.id, &command(&["/bin/sleep", "60"]))
        .await
        .unwrap();
    world.runtime.remove(&running.id).await.unwrap();
    within(10, collect(exec.output)).await;
    let ended = within(10, exec.exit).await;
    assert!(
        matches!(ended, Ok(137) | Err(RuntimeError::Broken(_))),
        "{ended:?}"
    );
}
