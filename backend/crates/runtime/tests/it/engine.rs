use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use kandev_runtime::docker::{DockerRuntime, Limits};
use kandev_runtime::{Channel, ContainerId, ContainerRuntime, ContainerState, RuntimeError};

use crate::fake::{Fake, Reply, version};
use crate::proxy::Proxy;
use crate::world::{exited, within};

const SHORT: Limits = Limits {
    call: Duration::from_millis(300),
    exit_poll: Duration::from_millis(50),
};

fn id() -> ContainerId {
    ContainerId("c1".to_owned())
}

fn state(status: &str, code: i64) -> Reply {
    let json = format!(r#"{{"State":{{"Status":"{status}","ExitCode":{code}}},"Config":{{"Tty":false}}}}"#);
    Reply::Json(200, json)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_is_not_there_may_come_later() {
    let mut proxy = Proxy::new();
    let runtime = DockerRuntime::connect(Some(&proxy.host())).unwrap();
    proxy.cut().await;
    for _ in 0..2 {
        assert!(matches!(runtime.ping().await, Err(RuntimeError::Unavailable(_))));
        assert!(matches!(
            runtime.list("nobody").await,
            Err(RuntimeError::Unavailable(_))
        ));
    }
    proxy.restore();
    assert_eq!(runtime.list("kandev-test-nobody").await.unwrap(), []);
    proxy.cut().await;
    assert!(matches!(
        runtime.inspect(&id()).await,
        Err(RuntimeError::Unavailable(_))
    ));
    proxy.restore();
    assert!(matches!(
        runtime.inspect(&id()).await,
        Err(RuntimeError::ContainerNotFound(_))
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_listens_on_tcp() {
    let runtime = DockerRuntime::connect(Some("tcp://127.0.0.1:1")).unwrap();
    assert!(matches!(runtime.ping().await, Err(RuntimeError::Unavailable(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_hangs() {
    for stage in ["version", "head", "body"] {
        let fake = Fake::new(move |line| match (stage, line) {
            ("version", _) => Reply::Hang,
            (_, "GET /version") => version("1.12", "1.41"),
            ("head", _) => Reply::Hang,
            _ => Reply::HangInBody,
        });
        let runtime = DockerRuntime::connect_with(Some(&fake.host()), SHORT).unwrap();
        let hung = within(5, runtime.inspect(&id())).await;
        assert!(
            matches!(hung, Err(RuntimeError::Timeout { limit, .. }) if limit == SHORT.call),
            "{stage}: {hung:?}"
        );
        within(5, runtime.drained()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_hangs_up() {
    let fake = Fake::new(|_| Reply::Close);
    let runtime = DockerRuntime::connect_with(Some(&fake.host()), SHORT).unwrap();
    let error = runtime.inspect(&id()).await.unwrap_err();
    assert!(matches!(error, RuntimeError::Unavailable(_)), "{error:?}");
    assert!(error.is_transient());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn speaks_what_both_know() {
    for (min, max, spoken) in [
        ("1.12", "1.41", "v1.41"),
        ("1.44", "1.52", "v1.52"),
        ("1.44", "1.99", "v1.53"),
    ] {
        let fake = Fake::new(move |line| match line {
            "GET /version" => version(min, max),
            _ => state("running", 0),
        });
        let runtime = DockerRuntime::connect(Some(&fake.host())).unwrap();
        for _ in 0..2 {
            assert_eq!(runtime.inspect(&id()).await.unwrap(), ContainerState::Running);
        }
        let inspect = format!("GET /{spoken}/containers/c1/json");
        assert_eq!(fake.seen(), ["GET /version", &inspect, &inspect], "asked once");
        assert_eq!(runtime.ping().await.unwrap().api_version, spoken[1..]);
    }
    for (min, max) in [("1.12", "1.40"), ("1.60", "1.70")] {
        let fake = Fake::new(move |_| version(min, max));
        let runtime = DockerRuntime::connect(Some(&fake.host())).unwrap();
        assert!(
            matches!(runtime.inspect(&id()).await, Err(RuntimeError::Refused { .. })),
            "{min} to {max}"
        );
    }
}

/// Another engine on the same socket, and no call failed in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_engine_takes_over() {
    let asked = AtomicUsize::new(0);
    let fake = Fake::new(move |line| match line {
        "GET /version" if asked.fetch_add(1, Ordering::Relaxed) == 0 => version("1.44", "1.52"),
        "GET /version" => version("1.12", "1.41"),
        "GET /v1.41/containers/c1/json" => state("running", 0),
        _ => Reply::Json(
            400,
            r#"{"message":"client version 1.52 is too new. Maximum supported API version is 1.41"}"#
                .to_owned(),
        ),
    });
    let runtime = DockerRuntime::connect(Some(&fake.host())).unwrap();
    runtime.ping().await.unwrap();
    assert_eq!(runtime.inspect(&id()).await.unwrap(), ContainerState::Running);
    assert_eq!(fake.seen().len(), 4);
}

/// What comes back after an absence may be another engine: one that knows the old version, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_was_away_is_asked_again() {
    let asked = AtomicUsize::new(0);
    let fake = Fake::new(move |line| match line {
        "GET /version" if asked.fetch_add(1, Ordering::Relaxed) == 0 => version("1.12", "1.41"),
        "GET /version" => version("1.12", "1.44"),
        "GET /v1.41/containers/c1/json" => Reply::Close,
        _ => state("running", 0),
    });
    let runtime = DockerRuntime::connect(Some(&fake.host())).unwrap();
    assert!(matches!(
        runtime.inspect(&id()).await,
        Err(RuntimeError::Unavailable(_))
    ));
    assert_eq!(runtime.inspect(&id()).await.unwrap(), ContainerState::Running);
    let inspects = ["GET /v1.41/containers/c1/json", "GET /v1.44/containers/c1/json"];
    assert_eq!(
        fake.seen(),
        ["GET /version", inspects[0], "GET /version", inspects[1]]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_make_no_sense() {
    for reply in ["not json", "{}", "[]"] {
        let fake = Fake::new(move |line| match line {
            "GET /version" => version("1.12", "1.41"),
            _ => Reply::Json(200, reply.to_owned()),
        });
        let runtime = DockerRuntime::connect(Some(&fake.host())).unwrap();
        assert!(
            matches!(
                runtime.inspect(&id()).await,
                Err(RuntimeError::Refused { status: None, .. })
            ),
            "{reply}"
        );
    }
    let fake = Fake::new(|line| match line {
        "GET /version" => version("1.12", "1.41"),
        _ => Reply::Json(503, "<html>a proxy's page</html>".to_owned()),
    });
    let runtime = DockerRuntime::connect(Some(&fake.host())).unwrap();
    let refused = runtime.kill(&id()).await;
    assert!(
        matches!(&refused, Err(RuntimeError::Refused { status: Some(503), message, operation: "kill" })
            if message.contains("proxy")),
        "{refused:?}"
    );
}

/// The wait hangs for ever, and `inspect` tells the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_hangs_looks_for_itself() {
    let looks = AtomicUsize::new(0);
    let fake = Fake::new(move |line| match line {
        "GET /version" => version("1.12", "1.41"),
        "GET /v1.41/containers/c1/json" => match looks.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => state("running", 0),
            2 => Reply::Close,
            3 => Reply::Hang,
            _ => state("exited", 9),
        },
        _ => Reply::HangInBody,
    });
    let runtime = DockerRuntime::connect_with(Some(&fake.host()), SHORT).unwrap();
    let exit = runtime.wait(&id()).await.unwrap();
    assert_eq!(within(10, exit).await.unwrap(), exited(9));
    within(5, runtime.drained()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_was_dropped_leaves_nothing() {
    let fake = Fake::new(move |line| match line {
        "GET /version" => version("1.12", "1.41"),
        line if line.ends_with("/json") => state("running", 0),
        _ => Reply::HangInBody,
    });
    let runtime = DockerRuntime::connect(Some(&fake.host())).unwrap();
    let mut exit = runtime.wait(&id()).await.unwrap();
    let waiting = tokio::time::timeout(Duration::from_millis(100), exit.as_mut());
    assert!(waiting.await.is_err());
    drop(exit);
    within(5, runtime.drained()).await;
}

/// Three interleaved frames and half a header in one read, together with the head of the answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_in_one_read() {
    let frames = b"\x01\0\0\0\0\0\0\x04one\n\x02\0\0\0\0\0\0\x04err\n\x01\0\0\0\0\0\0\x04two\n\x01\0\0";
    let rest = b"\0\0\0\0\x06three\n";
    let fake = Fake::new(move |line| match line {
        "GET /version" => version("1.12", "1.41"),
        line if line.ends_with("/json") => state("running", 0),
        _ => Reply::Raw(vec![frames.to_vec(), rest.to_vec()]),
    });
    let runtime = DockerRuntime::connect(Some(&fake.host())).unwrap();
    let attachment = runtime.attach(&id()).await.unwrap();
    let seen: Vec<_> = within(5, attachment.output.map(Result::unwrap).collect::<Vec<_>>()).await;
    let seen: Vec<_> = seen
        .iter()
        .map(|chunk| (chunk.channel, &chunk.bytes[..]))
        .collect();
    assert_eq!(
        seen,
        [
            (Channel::Stdout, &b"one\n"[..]),
            (Channel::Stderr, &b"err\n"[..]),
            (Channel::Stdout, &b"two\n"[..]),
            (Channel::Stdout, &b"three\n"[..]),
        ]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_output_that_breaks_is_no_end() {
    let fake = Fake::new(move |line| match line {
        "GET /version" => version("1.12", "1.41"),
        line if line.ends_with("/json") => state("running", 0),
        _ => Reply::Raw(vec![b"\x01\0\0\0\0\0\0\x04on".to_vec()]),
    });
    let runtime = DockerRuntime::connect(Some(&fake.host())).unwrap();
    let mut output = runtime.attach(&id()).await.unwrap().output;
    assert_eq!(&output.next().await.unwrap().unwrap().bytes[..], b"on");
    assert!(matches!(output.next().await, Some(Err(RuntimeError::Broken(_)))));
    assert!(output.next().await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_does_not_upgrade() {
    let fake = Fake::new(move |line| match line {
        "GET /version" => version("1.12", "1.41"),
        _ => state("running", 0),
    });
    let runtime = DockerRuntime::connect(Some(&fake.host())).unwrap();
    let refused = runtime.attach(&id()).await;
    assert!(matches!(
        refused,
        Err(RuntimeError::Refused {
            operation: "attach",
            status: Some(200),
            ..
        })
    ));
}
