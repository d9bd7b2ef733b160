//! What is kept of subagents, and what a branch has of its session.

use kandev_domain::SessionKey;
use kandev_store::journal::Change;
use kandev_store::sessions::{self, NewSession, SessionFacet};
use kandev_store::subagents::{self, MAX_TASKS, SubagentChange};
use kandev_store::{PgPool, instances};

use crate::rows::change;
use crate::support::{at, instance};

fn told(key: SessionKey, task_id: &str, changed_at: Option<i64>, snapshot: &str) -> Change {
    Change::Subagent(SubagentChange {
        session_key: key,
        task_id: task_id.to_owned(),
        changed_at,
        snapshot: snapshot.to_owned(),
        activity: None,
    })
}

async fn session(pool: &PgPool, forked_from: Option<SessionKey>) -> NewSession {
    let task_id = instances::active(pool, "test").await.unwrap()[0].task_id.clone();
    NewSession {
        forked_from,
        key: SessionKey::generate(),
        session_id: "0".to_owned(),
        agent_type: "mock-agent".to_owned(),
        workspace_path: "/w".to_owned(),
        task_id,
        created_at: at(1),
    }
}

#[sqlx::test(migrations = "../../../migrations")]
async fn the_newest_snapshot_of_each_is_kept(pool: PgPool) {
    let id = instance(&pool).await;
    let new = session(&pool, None).await;
    let key = new.key;
    change(&pool, id, vec![Change::Session(new)]).await.unwrap();
    let kept = async || {
        let list = subagents::list(&pool, key).await.unwrap();
        list.into_iter()
            .map(|task| (task.task_id, task.snapshot))
            .collect::<Vec<_>>()
    };
    let of = |task: &str, snapshot: &str| (task.to_owned(), snapshot.to_owned());
    // In transactions of their own, as batches come.
    for (changed_at, snapshot) in [
        (Some(5), "5"),
        (Some(4), "4"),
        (None, "undated"),
        (Some(5), "again"),
    ] {
        change(&pool, id, vec![told(key, "b\0", changed_at, snapshot)])
            .await
            .unwrap();
    }
    change(
        &pool,
        id,
        vec![told(key, "a", None, "1"), told(key, "a", None, "2")],
    )
    .await
    .unwrap();
    assert_eq!(kept().await, [of("a", "2"), of("b\u{fffd}", "again")]);
    // Of too many, those that were longest silent go.
    let many = (0..MAX_TASKS).map(|n| told(key, &format!("t{n:03}"), None, "x"));
    change(&pool, id, many.collect()).await.unwrap();
    assert_eq!(kept().await.len(), usize::try_from(MAX_TASKS).unwrap());
}

#[sqlx::test(migrations = "../../../migrations")]
async fn a_branch_has_what_was_chosen_in_its_session(pool: PgPool) {
    let id = instance(&pool).await;
    let first = session(&pool, None).await;
    let key = first.key;
    let facet = |name: &'static str, value: &str| {
        Change::Facet(SessionFacet {
            session_key: key,
            facet: name.into(),
            value: value.to_owned(),
        })
    };
    let changes = vec![
        Change::Session(first),
        facet("config_options", "[1]"),
        facet("current_mode", "\"plan\""),
        facet("title", "\"T\""),
    ];
    change(&pool, id, changes).await.unwrap();
    let branch = session(&pool, Some(key)).await;
    let branch_key = branch.key;
    change(&pool, id, vec![Change::Session(branch)]).await.unwrap();
    change(&pool, id, vec![facet("config_options", "[2]")])
        .await
        .unwrap();
    let own = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(
        sessions::facets(&pool, branch_key).await.unwrap(),
        [
            own("inherited_config_options", "[1]"),
            own("inherited_current_mode", "\"plan\"")
        ]
    );
}
