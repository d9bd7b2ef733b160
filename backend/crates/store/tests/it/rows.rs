//! Instances, turns, sessions and tasks.

use kandev_domain::permission::Remembered;
use kandev_domain::{
    DecidedBy, InstanceId, InstanceStatus, PermissionId, PermissionStatus, SessionKey, ToolKind, TurnId,
    TurnStatus,
};
use kandev_store::instances::{self, InstanceFilter, InstancePatch};
use kandev_store::journal::{Batch, Change, JournalWriter, PipeLines};
use kandev_store::permissions::{self, NewPermission, PermissionEnd, PermissionFilter};
use kandev_store::sessions::{self, NewSession, SessionFacet};
use kandev_store::tasks::{self, Deleted, TaskMetadata, TaskPatch, TextPatch};
use kandev_store::turns::{self, NewTurn, TurnPatch};
use kandev_store::{PgPool, StoreError};
use serde_json::json;

use crate::support::{RUN, at, instance, task, try_instance, update};

pub(crate) async fn change(
    pool: &PgPool,
    id: kandev_domain::InstanceId,
    changes: Vec<Change>,
) -> Result<(), StoreError> {
    let first = kandev_store::journal::position(pool, id).await?.seq + 1;
    let batch = Batch::new(
        (id, RUN),
        first,
        &[update(1, "x")],
        PipeLines::default(),
        changes,
        true,
    );
    JournalWriter::new(pool).write(&[batch], at(1)).await
}

fn end(id: kandev_domain::InstanceId) -> Vec<Change> {
    let mut patch = InstancePatch::of(id);
    patch.status = Some(InstanceStatus::Completed);
    patch.error_message = Some("with a \0 in it".to_owned());
    vec![Change::Instance(Box::new(patch))]
}

#[sqlx::test(migrations = "../../../migrations")]
async fn a_task_has_one_active_instance(pool: PgPool) {
    let first = try_instance(&pool, "t").await.unwrap();
    let busy = try_instance(&pool, "t").await.unwrap_err();
    assert!(matches!(busy, StoreError::TaskBusy { task_id } if task_id == "t"));
    change(&pool, first, end(first)).await.unwrap();
    let second = try_instance(&pool, "t").await.unwrap();
    let active = instances::active(&pool, "test").await.unwrap();
    assert_eq!(active.iter().map(|i| i.id).collect::<Vec<_>>(), [second]);
    assert!(instances::active(&pool, "other").await.unwrap().is_empty());
    let ended = instances::get(&pool, first).await.unwrap().unwrap();
    assert_eq!(ended.error_message.as_deref(), Some("with a \u{fffd} in it"));
    let again = change(&pool, first, end(first)).await.unwrap_err();
    assert!(
        matches!(again, StoreError::NoSuchRow { .. }),
        "what has ended is not changed: {again}"
    );
}

#[sqlx::test(migrations = "../../../migrations")]
async fn lists_page_from_the_newest_and_filter(pool: PgPool) {
    let mut made = Vec::new();
    for _ in 0..5 {
        made.push(instance(&pool).await);
    }
    change(&pool, made[2], end(made[2])).await.unwrap();
    let mut seen = Vec::new();
    let mut cursor = None;
    loop {
        let page = instances::list(&pool, &InstanceFilter::default(), cursor.as_ref(), 2)
            .await
            .unwrap();
        assert_eq!(page.total, 5);
        seen.extend(page.items.iter().map(|i| i.id));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    made.reverse();
    assert_eq!(seen, made);
    let statuses = vec![InstanceStatus::Completed];
    let filter = InstanceFilter {
        statuses,
        ..InstanceFilter::default()
    };
    let page = instances::list(&pool, &filter, None, 10).await.unwrap();
    assert_eq!((page.total, page.items[0].id), (1, made[2]));
    let filter = InstanceFilter {
        agent_type: Some("none".to_owned()),
        ..InstanceFilter::default()
    };
    assert_eq!(instances::list(&pool, &filter, None, 10).await.unwrap().total, 0);
}

#[sqlx::test(migrations = "../../../migrations")]
async fn a_turn_ends_once(pool: PgPool) {
    let id = instance(&pool).await;
    let turn = TurnId::generate();
    let new = NewTurn {
        id: turn,
        instance_id: id,
        ordinal: 1,
        prompt: "[]".to_owned(),
        prompt_meta: None,
        queued_at: at(0),
    };
    change(&pool, id, vec![Change::TurnQueued(new)]).await.unwrap();
    assert_eq!(turns::unfinished(&pool, id).await.unwrap().len(), 1);
    let mut patch = TurnPatch::of(turn, TurnStatus::Completed);
    patch.stop_reason = Some("end\0turn".to_owned());
    patch.updates = Some(3);
    change(&pool, id, vec![Change::Turn(Box::new(patch))])
        .await
        .unwrap();
    assert!(turns::unfinished(&pool, id).await.unwrap().is_empty());
    let row = turns::get(&pool, id, turn).await.unwrap().unwrap();
    assert_eq!(
        (row.stop_reason.as_deref(), row.updates),
        (Some("end\u{fffd}turn"), Some(3))
    );
    let late = change(
        &pool,
        id,
        vec![Change::Turn(Box::new(TurnPatch::of(turn, TurnStatus::Cancelled)))],
    )
    .await;
    assert!(matches!(late, Err(StoreError::NoSuchRow { table: "turns", .. })));
    let other = instance(&pool).await;
    assert!(
        turns::get(&pool, other, turn).await.unwrap().is_none(),
        "a turn belongs to its instance"
    );
}

#[sqlx::test(migrations = "../../../migrations")]
async fn sessions_keep_the_latest_of_each_facet(pool: PgPool) {
    let id = instance(&pool).await;
    let task_id = instances::get(&pool, id).await.unwrap().unwrap().task_id;
    let session = |key, created| NewSession {
        forked_from: None,
        key,
        session_id: "0".to_owned(),
        agent_type: "mock-agent".to_owned(),
        workspace_path: "/w".to_owned(),
        task_id: task_id.clone(),
        created_at: at(created),
    };
    let (old, new) = (SessionKey::generate(), SessionKey::generate());
    let facet = |value: &str| {
        Change::Facet(SessionFacet {
            session_key: new,
            facet: "plan".into(),
            value: value.to_owned(),
        })
    };
    let entries = vec![("session_id".to_owned(), "0".to_owned())];
    let changes = vec![
        Change::Session(session(old, 1)),
        Change::Session(session(new, 2)),
        facet("[1]"),
        facet(r#"["\u0000"]"#),
        Change::Task(TaskMetadata {
            task_id: task_id.clone(),
            entries,
        }),
    ];
    change(&pool, id, changes).await.unwrap();
    let found = sessions::by_agents_id(&pool, "0", Some("mock-agent"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        found.key, new,
        "of two sessions that an agent calls the same, the newer one"
    );
    assert!(
        sessions::by_agents_id(&pool, "0", Some("other"))
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(
        sessions::facets(&pool, new).await.unwrap(),
        [("plan".to_owned(), r#"["\u0000"]"#.to_owned())]
    );
    let task = tasks::get(&pool, &task_id).await.unwrap().unwrap();
    assert_eq!(task.metadata, json!({"session_id": "0"}));
}

#[sqlx::test(migrations = "../../../migrations")]
async fn tasks_are_patched_and_deleted_with_their_history(pool: PgPool) {
    let mut connection = pool.acquire().await.unwrap();
    assert!(tasks::insert(&mut connection, &task("a")).await.unwrap());
    assert!(!tasks::insert(&mut connection, &task("a")).await.unwrap());
    let id = "a".parse().unwrap();
    let metadata = |value: serde_json::Value| value.as_object().cloned();
    let patch = TaskPatch {
        metadata: metadata(json!({"x": 1, "y": {"z": 2}})),
        ..TaskPatch::default()
    };
    tasks::patch(&pool, &id, &patch, at(5)).await.unwrap().unwrap();
    let patch = TaskPatch {
        title: TextPatch::Set("T".to_owned()),
        metadata: metadata(json!({"x": null, "w": 3})),
        ..TaskPatch::default()
    };
    let task = tasks::patch(&pool, &id, &patch, at(6)).await.unwrap().unwrap();
    assert_eq!(task.metadata, json!({"y": {"z": 2}, "w": 3}));
    assert_eq!((task.title.as_deref(), task.updated_at), (Some("T"), at(6)));
    let patch = TaskPatch {
        title: TextPatch::Clear,
        description: TextPatch::Set("D".to_owned()),
        ..TaskPatch::default()
    };
    let task = tasks::patch(&pool, &id, &patch, at(7)).await.unwrap().unwrap();
    assert_eq!((task.title, task.description.as_deref()), (None, Some("D")));

    let running = try_instance(&pool, "a").await.unwrap();
    assert_eq!(tasks::delete(&pool, &id).await.unwrap(), Deleted::Busy);
    change(&pool, running, end(running)).await.unwrap();
    assert_eq!(tasks::delete(&pool, &id).await.unwrap(), Deleted::Done);
    assert_eq!(tasks::delete(&pool, &id).await.unwrap(), Deleted::Missing);
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM journal")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(left, 0);
}

fn permission(id: InstanceId, key: SessionKey, second: i64) -> NewPermission {
    NewPermission {
        id: PermissionId::generate(),
        instance_id: id,
        session_key: Some(key),
        session_id: Some("s\0".to_owned()),
        turn_id: None,
        request_id: r#""\u0000-1""#.to_owned(),
        tool_kind: ToolKind::SwitchMode,
        tool_call: None,
        options: "[]".to_owned(),
        requested_at: at(second),
        expires_at: Some(at(second + 10)),
    }
}

fn answered(id: PermissionId, words: Option<&str>, second: i64) -> Change {
    Change::PermissionAnswered(PermissionEnd {
        id,
        status: PermissionStatus::Selected,
        outcome: "{}".to_owned(),
        decided_by: DecidedBy::Caller,
        remembered: words.map(|words| Remembered {
            tool_kind: ToolKind::Edit,
            title: Some("with a \0".to_owned()),
            option_id: words.to_owned(),
            option_kind: "allow_always".to_owned(),
            option_name: String::new(),
        }),
        answered_at: at(second),
    })
}

#[sqlx::test(migrations = "../../../migrations")]
async fn a_permission_is_answered_once_and_what_is_remembered_is_found_by_its_session(pool: PgPool) {
    let (id, other) = (instance(&pool).await, instance(&pool).await);
    let (key, foreign) = (SessionKey::generate(), SessionKey::generate());
    let new: Vec<_> = (0..4).map(|n| permission(id, key, n)).collect();
    let elsewhere = permission(other, foreign, 9);
    let asked = |p: &NewPermission| Change::PermissionAsked(Box::new(p.clone()));
    change(&pool, id, new.iter().map(asked).collect()).await.unwrap();
    change(&pool, other, vec![asked(&elsewhere)]).await.unwrap();

    let open = permissions::pending(&pool, id).await.unwrap();
    let ids = |list: &[permissions::Permission]| list.iter().map(|p| p.id).collect::<Vec<_>>();
    assert_eq!(ids(&open), new.iter().map(|p| p.id).collect::<Vec<_>>());
    assert_eq!(
        (
            open[0].request_id.as_str(),
            open[0].session_id.as_deref(),
            open[0].tool_kind,
            open[0].expires_at
        ),
        (
            r#""\u0000-1""#,
            Some("s\u{fffd}"),
            ToolKind::SwitchMode,
            Some(at(10))
        )
    );
    assert!(
        permissions::get(&pool, other, new[0].id).await.unwrap().is_none(),
        "it belongs to its instance"
    );

    change(
        &pool,
        id,
        vec![
            answered(new[1].id, Some("later"), 30),
            answered(new[0].id, Some("first"), 20),
        ],
    )
    .await
    .unwrap();
    change(&pool, id, vec![answered(new[2].id, None, 40)])
        .await
        .unwrap();
    let late = change(&pool, id, vec![answered(new[0].id, None, 50)]).await;
    assert!(matches!(
        late,
        Err(StoreError::NoSuchRow {
            table: "permissions",
            ..
        })
    ));
    assert_eq!(ids(&permissions::pending(&pool, id).await.unwrap()), [new[3].id]);
    let known = async |limit| {
        let known = permissions::remembered(&pool, key, limit).await.unwrap();
        known.into_iter().map(|r| r.option_id).collect::<Vec<_>>()
    };
    assert_eq!(known(10).await, ["first", "later"], "as they were answered");
    assert_eq!(known(1).await, ["later"], "of too many the latest");
    assert!(
        permissions::remembered(&pool, foreign, 10)
            .await
            .unwrap()
            .is_empty()
    );

    let filter = PermissionFilter {
        statuses: vec![PermissionStatus::Pending],
        ..PermissionFilter::default()
    };
    let page = permissions::list(&pool, &filter, None, 1).await.unwrap();
    assert_eq!(
        (page.total, ids(&page.items)),
        (2, vec![elsewhere.id]),
        "the newest first, of all instances"
    );
    let page = permissions::list(&pool, &filter, page.next.as_ref(), 1)
        .await
        .unwrap();
    assert_eq!((ids(&page.items), page.next), (vec![new[3].id], None));
}
