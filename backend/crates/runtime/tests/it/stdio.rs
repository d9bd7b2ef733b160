use std::io::ErrorKind;
use std::time::Duration;

use futures_util::StreamExt;
use kandev_runtime::docker::Limits;
use kandev_runtime::{Attachment, ContainerId, ContainerRuntime, LABEL_OWNER, LogsFrom, RuntimeError};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::raw;
use crate::world::{World, collect, exited, until, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_channels_come_whole_and_in_order() {
    let world = World::new();
    let running = world
        .run_script("for i in $(seq 1 2000); do echo out $i; echo err $i >&2; done; head -c 5242880 /dev/zero; exit 3")
        .await;
    let (out, err) = within(60, collect(running.attachment.output)).await;
    let lines = |word: &str| {
        (1..=2000)
            .flat_map(|i| [word.to_owned(), format!(" {i}\n")])
            .collect::<String>()
    };
    assert_eq!(String::from_utf8(err).unwrap(), lines("err"));
    let expected = lines("out");
    assert!(out.starts_with(expected.as_bytes()));
    assert_eq!(out.len(), expected.len() + 5_242_880, "a line of 5 MiB");
    assert!(
        out[expected.len()..].iter().all(|byte| *byte == 0),
        "no header bytes inside"
    );
    assert_eq!(running.exit.await.unwrap(), exited(3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tty_is_refused() {
    let world = World::new();
    let config = json!({
        "Image": raw::IMAGE, "Cmd": ["/bin/echo", "hello"], "Tty": true, "OpenStdin": true,
        "Labels": { LABEL_OWNER: world.owner },
    });
    let created = raw::json("POST", "/containers/create", &config);
    let id = ContainerId(created["Id"].as_str().unwrap().to_owned());
    let attached = world.runtime.attach(&id).await;
    assert!(matches!(attached, Err(RuntimeError::TtyNotSupported(refused)) if refused == id.0));
    let logs = world
        .runtime
        .logs_from(
            &id,
            LogsFrom {
                since: None,
                follow: false,
            },
        )
        .await;
    assert!(matches!(logs, Err(RuntimeError::TtyNotSupported(_))));
}

async fn echo(attachment: &mut Attachment, line: &str) {
    attachment
        .stdin
        .write_all(format!("{line}\n").as_bytes())
        .await
        .unwrap();
    attachment.stdin.flush().await.unwrap();
    assert_eq!(until(&mut attachment.output, "\n").await, format!("{line}\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_later_attachment_gets_stdin_again() {
    let world = World::new();
    let mut running = world.run_script("cat").await;
    echo(&mut running.attachment, "one").await;
    drop(running.attachment);
    let mut again = world.runtime.attach(&running.id).await.unwrap();
    echo(&mut again, "two").await;
    assert!(
        futures_util::FutureExt::now_or_never(running.exit).is_none(),
        "still runs"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stdin_cannot_be_ended_and_says_so() {
    let world = World::new();
    let mut running = world.run_script("cat; echo ended").await;
    let refused = running.attachment.stdin.shutdown().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    echo(&mut running.attachment, "goes on").await;
    let Attachment { stdin, mut output } = running.attachment;
    drop(stdin);
    let quiet = tokio::time::timeout(Duration::from_millis(300), output.next()).await;
    assert!(
        quiet.is_err(),
        "dropping stdin neither ends cat nor the output: {quiet:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_the_output_closes_the_connection_though_stdin_is_held() {
    let world = World::with_limits(Limits {
        call: Duration::from_secs(10),
        ..Limits::default()
    });
    let running = world
        .run_script("yes ffffffffffffffffffffffffffffffffffffffffffffff")
        .await;
    let Attachment { mut stdin, output } = running.attachment;
    // Nobody reads: the engine holds the container back, and answers no call about it. Nothing shows that it has come to
    // that, so give it time; too little would only make this test weaker.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    drop(output);
    let written = within(5, async {
        loop {
            if let Err(error) = stdin.write_all(b"anybody there?\n").await {
                return error;
            }
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(written.await.kind(), ErrorKind::BrokenPipe);
    world.runtime.kill(&running.id).await.unwrap();
    assert_eq!(within(10, running.exit).await.unwrap(), exited(137));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_pauses_gets_everything() {
    let world = World::new();
    let running = world.run_script("seq 1 1000000").await;
    let mut output = running.attachment.output;
    let first = output.next().await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (rest, _) = within(60, collect(output)).await;
    let lines = first
        .bytes
        .iter()
        .chain(&rest)
        .filter(|byte| **byte == b'\n')
        .count();
    assert_eq!(lines, 1_000_000);
    assert!(rest.ends_with(b"\n1000000\n"));
    assert_eq!(running.exit.await.unwrap(), exited(0));
}
