//! The private PostgreSQL, with real server binaries.

use std::path::Path;
use std::time::{Duration, Instant};

use kandev::private_postgres::{Options, PrivatePostgres, PrivatePostgresError};
use rustix::process::{Pid, Signal, geteuid, getpgid, kill_process, test_kill_process};
use sqlx::{ConnectOptions as _, PgConnection};

use crate::support::{Kandev, passable_dir};

fn options(dir: &Path) -> Options {
    Options {
        data_dir: dir.join("data"),
        fallback_root: dir.join("fallback"),
    }
}

async fn connect(postgres: &PrivatePostgres) -> PgConnection {
    postgres.connect_options().connect().await.unwrap()
}

fn alive(pid: i32) -> bool {
    test_kill_process(Pid::from_raw(pid).unwrap()).is_ok()
}

#[tokio::test]
async fn data_outlives_a_restart() {
    let dir = passable_dir();
    let options = options(dir.path());
    let postgres = PrivatePostgres::start(&options).await.unwrap();
    assert!(!postgres.was_adopted());
    let mut connection = connect(&postgres).await;
    sqlx::raw_sql("CREATE TABLE t AS SELECT 'äöü ✓' AS x")
        .execute(&mut connection)
        .await
        .unwrap();
    let encoding: String = sqlx::query_scalar("SHOW server_encoding")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(encoding, "UTF8");
    let network: String = sqlx::query_scalar("SHOW listen_addresses")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(network, "");

    let second = PrivatePostgres::start(&options).await.unwrap_err();
    assert!(matches!(second, PrivatePostgresError::Locked(_)), "{second}");

    let pid = postgres.postmaster_id();
    postgres.stop().await;
    assert!(!alive(pid), "stopped");
    let postgres = PrivatePostgres::start(&options).await.unwrap();
    let text: String = sqlx::query_scalar("SELECT x FROM t")
        .fetch_one(&mut connect(&postgres).await)
        .await
        .unwrap();
    assert_eq!(text, "äöü ✓");
    postgres.stop().await;
    let log = std::fs::read_to_string(options.data_dir.join("postgres/server.log")).unwrap();
    assert!(log.contains("database system is shut down"), "{log}");
}

#[tokio::test]
async fn a_half_made_cluster_is_made_anew() {
    let dir = passable_dir();
    let options = options(dir.path());
    PrivatePostgres::start(&options).await.unwrap().stop().await;
    let base = options.data_dir.join("postgres");
    std::fs::rename(base.join("data"), base.join("data.new")).unwrap();
    std::fs::remove_file(base.join("data.new/PG_VERSION")).unwrap();
    let postgres = PrivatePostgres::start(&options).await.unwrap();
    assert!(!base.join("data.new").exists());
    postgres.stop().await;
}

#[tokio::test]
async fn it_is_started_again_when_it_dies() {
    let dir = passable_dir();
    let postgres = PrivatePostgres::start(&options(dir.path())).await.unwrap();
    let pid = postgres.postmaster_id();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while postgres.connect_options().connect().await.is_err() {
        assert!(Instant::now() < deadline, "it does not come back");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(!alive(pid));
    postgres.stop().await;
}

#[tokio::test]
async fn a_long_path_gets_a_short_socket() {
    let dir = passable_dir();
    let mut options = options(dir.path());
    options.data_dir = dir.path().join("x".repeat(100));
    let postgres = PrivatePostgres::start(&options).await.unwrap();
    connect(&postgres).await;
    let socket_dir = postgres.connect_options().get_socket().unwrap().clone();
    assert!(!socket_dir.starts_with(dir.path()), "{}", socket_dir.display());
    postgres.stop().await;
    assert!(!socket_dir.exists());
}

/// `/root` is such a directory.
#[tokio::test]
async fn below_a_directory_of_root_the_cluster_is_kept_apart() {
    if !geteuid().is_root() {
        eprintln!("not root: nothing to see");
        return;
    }
    let dir = passable_dir();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    let closed = tempfile::Builder::new()
        .permissions(mode)
        .tempdir_in(dir.path())
        .unwrap();
    let options = Options {
        data_dir: closed.path().join("data"),
        fallback_root: dir.path().join("fallback"),
    };
    let postgres = PrivatePostgres::start(&options).await.unwrap();
    sqlx::raw_sql("CREATE TABLE t ()")
        .execute(&mut connect(&postgres).await)
        .await
        .unwrap();
    assert!(!options.data_dir.join("postgres").exists());
    let apart: Vec<_> = std::fs::read_dir(&options.fallback_root)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    assert!(
        apart.len() == 1 && apart[0].join("data/PG_VERSION").exists(),
        "{apart:?}"
    );
    let owner = std::fs::metadata(apart[0].join("data"))
        .map(|m| std::os::unix::fs::MetadataExt::uid(&m))
        .unwrap();
    assert_ne!(owner, 0);
    postgres.stop().await;

    // It stays there, even when the directory could be passed now.
    std::fs::set_permissions(closed.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let postgres = PrivatePostgres::start(&options).await.unwrap();
    sqlx::raw_sql("SELECT FROM t")
        .execute(&mut connect(&postgres).await)
        .await
        .unwrap();
    postgres.stop().await;
}

fn postmaster_of(data_dir: &Path) -> i32 {
    let file = std::fs::read_to_string(data_dir.join("postgres/data/postmaster.pid")).unwrap();
    file.lines().next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn the_next_kandev_adopts_it_after_kill_9() {
    let dir = passable_dir();
    let data_dir = dir.path().join("data");
    let mut first = Kandev::serve(&data_dir, &[]).await;
    let pid = postmaster_of(&data_dir);
    let group = getpgid(Pid::from_raw(pid)).unwrap();
    assert_eq!(group.as_raw_nonzero().get(), pid, "ctrl-C must not reach it");
    first.signal(Signal::KILL);
    first.ended().await;
    assert!(alive(pid), "it runs on");

    let mut second = Kandev::serve(&data_dir, &[]).await;
    assert_eq!(postmaster_of(&data_dir), pid);
    assert!(
        second.log.iter().any(|line| line.contains("adopted")),
        "{:?}",
        second.log
    );
    // An adopted one is supervised too.
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    second.read_until("PostgreSQL ended; starting it again").await;
    let client = reqwest::Client::new();
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let ready = client.get(format!("{}/ready", second.url)).send().await.unwrap();
        let body: serde_json::Value = ready.json().await.unwrap();
        // A connection of before may answer for a moment after its postmaster's end.
        let file = std::fs::read_to_string(data_dir.join("postgres/data/postmaster.pid")).unwrap_or_default();
        let is_new = !file.is_empty() && file.lines().next() != Some(pid.to_string().as_str());
        if is_new && body["dependencies"]["postgres"]["status"] == "ok" {
            break;
        }
        assert!(Instant::now() < deadline, "{body}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let pid = postmaster_of(&data_dir);
    assert!(second.terminate().await.success());
    assert!(!alive(pid), "stopped with it");
}
