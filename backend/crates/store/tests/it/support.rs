//! An instance to write about.

use bytes::Bytes;
use chrono::{DateTime, Utc};
use kandev_domain::status::{InstanceLifecycle, PermissionPolicy};
use kandev_domain::{EventKind, InstanceId, LogLevel, LogStream, TaskId};
use kandev_store::instances::{self, NewInstance};
use kandev_store::record::{Data, Record, Source};
use kandev_store::servers::Register;
use kandev_store::tasks::{self, Task};
use kandev_store::{Fence, PgPool, StoreError};
use serde_json::json;

pub(crate) fn at(second: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_764_000_000 + second, 0).unwrap()
}

pub(crate) fn task(id: &str) -> Task {
    Task {
        id: id.parse().unwrap(),
        title: None,
        description: None,
        state: tasks::DEFAULT_STATE.to_owned(),
        metadata: json!({}),
        created_at: at(0),
        updated_at: at(0),
    }
}

/// The run of the first server of a test's database.
pub(crate) const RUN: Fence = Fence(1);

/// Begins it, unless it has begun.
pub(crate) async fn run(pool: &PgPool) -> Fence {
    let runs: i64 = sqlx::query_scalar("SELECT count(*) FROM servers")
        .fetch_one(pool)
        .await
        .unwrap();
    if runs == 0 {
        let lease = std::time::Duration::from_mins(1);
        let run = Register::new(pool, "test").begin("one", None, lease).await;
        assert_eq!(run.unwrap(), RUN);
    }
    RUN
}

pub(crate) async fn try_instance(pool: &PgPool, task_id: &str) -> Result<InstanceId, StoreError> {
    let mut connection = pool.acquire().await.unwrap();
    tasks::insert(&mut connection, &task(task_id)).await?;
    let id = InstanceId::generate();
    let new = NewInstance {
        id,
        task_id: task_id.parse::<TaskId>().unwrap(),
        agent_type: "mock-agent".to_owned(),
        workspace_path: "/w".to_owned(),
        priority: 0,
        metadata: json!({}),
        launch: "{}".to_owned(),
        env_names: vec!["A".to_owned()],
        env_sealed: vec![1, 2],
        permission_policy: PermissionPolicy::Allow,
        lifecycle: InstanceLifecycle::Interactive,
        owner: "test".to_owned(),
        resumed_from: None,
        resumes: None,
        held_by: run(pool).await,
        created_at: at(0),
    };
    instances::insert(&mut connection, &new).await?;
    Ok(id)
}

pub(crate) async fn instance(pool: &PgPool) -> InstanceId {
    try_instance(pool, TaskId::generate().as_str()).await.unwrap()
}

pub(crate) fn update(n: u64, text: &str) -> Record {
    let line = format!(r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"text":"{text}"}}}}"#);
    let start = line.find(r#"{"text""#).unwrap();
    let end = line.len() - 1;
    Record {
        at: at(n.cast_signed()),
        kind: EventKind::Update,
        session_id: Some("s".to_owned()),
        turn_id: None,
        source: Some(Source::Stdout(n)),
        line: Bytes::from(line),
        data: Data::Slice(start..end),
    }
}

pub(crate) fn log(n: u64, stream: LogStream, level: LogLevel, text: &str) -> Record {
    Record {
        at: at(n.cast_signed()),
        kind: EventKind::Log,
        session_id: None,
        turn_id: None,
        source: Some(Source::Stderr(n)),
        line: Bytes::from(text.to_owned()),
        data: Data::Log { stream, level },
    }
}
