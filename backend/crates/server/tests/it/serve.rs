//! `kandev serve` and `kandev migrate` as processes.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{Kandev, TestDatabase};

const INSTANCE: &str = "0198c0de-0000-7000-8000-000000000001";

/// Until the server has read all that was written here. Only the kernel knows.
async fn until_read(open: &TcpStream) {
    let (here, there) = (
        open.local_addr().unwrap().port(),
        open.peer_addr().unwrap().port(),
    );
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let unread = sockets.lines().skip(1).find_map(|line| {
            let mut fields = line.split_ascii_whitespace().skip(1);
            let port = |address: Option<&str>| u16::from_str_radix(address?.rsplit(':').next()?, 16).ok();
            if (port(fields.next()), port(fields.next())) != (Some(there), Some(here)) {
                return None;
            }
            let queues = fields.nth(1)?;
            u32::from_str_radix(queues.rsplit(':').next()?, 16).ok()
        });
        if unread == Some(0) {
            return;
        }
        assert!(Instant::now() < deadline, "unread: {unread:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn it_serves_logs_and_stops_in_order() {
    let database = TestDatabase::create().await;
    let dir = tempfile::tempdir().unwrap();
    let environment = [
        ("DATABASE_URL", database.url()),
        ("KANDEV_LOG_FORMAT", "json"),
        ("RUST_LOG", "debug,sqlx=warn"),
    ];
    let mut kandev = Kandev::serve(dir.path(), &environment).await;
    let client = reqwest::Client::new();
    let request = client
        .get(format!("{}/api/v1/agents/{INSTANCE}", kandev.url))
        .header("X-Request-Id", "r-77");
    assert_eq!(request.send().await.unwrap().status(), 404);
    let line: Value = serde_json::from_str(&kandev.read_until("\"answered\"").await).unwrap();
    assert_eq!(line["span"]["request_id"], "r-77", "{line}");
    assert_eq!(line["span"]["instance_id"], INSTANCE, "{line}");
    assert_eq!(line["status"], 404, "{line}");
    let migrated = sqlx::query("SELECT FROM _sqlx_migrations")
        .fetch_all(&database.pool().await)
        .await
        .unwrap();
    assert!(!migrated.is_empty());
    assert!(dir.path().join("secret.key").exists());
    assert!(!dir.path().join("postgres").exists(), "no private cluster");

    // A request that is being sent when the signal comes is still answered.
    let mut open = TcpStream::connect(kandev.url.trim_start_matches("http://"))
        .await
        .unwrap();
    open.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n")
        .await
        .unwrap();
    drop(client);
    until_read(&open).await;
    kandev.signal(Signal::TERM);
    kandev.read_until("SIGTERM").await;
    open.write_all(b"Connection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    open.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(kandev.ended().await.success());
}

#[tokio::test]
async fn a_second_signal_cuts_the_drain_short() {
    let database = TestDatabase::create().await;
    let dir = tempfile::tempdir().unwrap();
    let mut kandev = Kandev::serve(dir.path(), &[("DATABASE_URL", database.url())]).await;
    let mut open = TcpStream::connect(kandev.url.trim_start_matches("http://"))
        .await
        .unwrap();
    open.write_all(b"GET /health HTTP/1.1\r\n").await.unwrap();
    until_read(&open).await;
    let started = Instant::now();
    kandev.signal(Signal::INT);
    kandev.read_until("SIGINT").await;
    kandev.signal(Signal::INT);
    assert!(kandev.ended().await.success());
    assert!(
        started.elapsed() < Duration::from_secs(8),
        "{:?}",
        started.elapsed()
    );
    drop(open);
}

#[tokio::test]
async fn a_signal_ends_the_wait_for_the_database() {
    let dir = tempfile::tempdir().unwrap();
    let environment = [(
        "DATABASE_URL",
        "postgres://me:hunter2@localhost/x?host=/nonexistent",
    )];
    let mut kandev = Kandev::start(dir.path(), &environment);
    kandev.read_until("the database does not answer yet").await;
    let started = Instant::now();
    kandev.signal(Signal::TERM);
    assert!(kandev.ended().await.success());
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
    assert!(!kandev.log.concat().contains("hunter2"), "{:?}", kandev.log);
}

#[tokio::test]
async fn migrate_brings_the_schema_and_ends() {
    let database = TestDatabase::create().await;
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let mut command = Kandev::command(&[("DATABASE_URL", database.url())]);
        let output = command
            .arg("migrate")
            .env("KANDEV_DATA_DIR", dir.path())
            .output()
            .await
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    sqlx::query("SELECT FROM _sqlx_migrations")
        .fetch_one(&database.pool().await)
        .await
        .unwrap();
}

#[tokio::test]
async fn what_cannot_be_used_is_said_at_once() {
    let database = TestDatabase::create().await;
    let dir = tempfile::tempdir().unwrap();
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let taken = taken
        .local_addr()
        .map(|address| (address.to_string(), taken))
        .unwrap();
    let unknown = database.url().replace("kandev_test_", "kandev_gone_");
    let cases: [(&[(&str, &str)], &str); 3] = [
        (
            &[("KANDEV_LISTEN", &taken.0), ("DATABASE_URL", database.url())],
            &taken.0,
        ),
        (
            &[("KANDEV_LISTEN", "127.0.0.1:0"), ("DATABASE_URL", &unknown)],
            "does not exist",
        ),
        (
            &[
                ("KANDEV_LISTEN", "127.0.0.1:0"),
                ("DATABASE_URL", database.url()),
                ("DOCKER_HOST", "gopher://x"),
            ],
            "gopher",
        ),
    ];
    for (environment, words) in cases {
        let mut command = Kandev::command(environment);
        let output = command
            .arg("serve")
            .env("KANDEV_DATA_DIR", dir.path())
            .output()
            .await
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(words), "'{words}' is not in: {stderr}");
    }
}

#[tokio::test]
async fn the_openapi_command_prints_the_committed_document() {
    let output = Kandev::command(&[]).arg("openapi").output().await.unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        kandev::routes::openapi::document_json()
    );
}
