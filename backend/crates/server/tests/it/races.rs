//! What happens at once has one outcome (CASES 17, 27), and every turn and instance has one end.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, join_all, select};
use kandev_domain::InstanceId;
use kandev_store::tasks;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgPool};

use crate::support::{Stack, docker};

/// The instances of a task, newest first.
async fn instances(stack: &Stack, task: &str) -> Vec<Value> {
    let list = stack.get(&format!("/agents?task_id={task}")).await.expect(200);
    list["agents"].as_array().unwrap().clone()
}

fn containers_of(stack: &Stack, task: &str) -> usize {
    let (owner, task) = (
        format!("label=kandev.owner={}", stack.owner),
        format!("label=kandev.task_id={task}"),
    );
    docker(&["ps", "-aq", "--filter", &owner, "--filter", &task]).len()
}

#[tokio::test]
async fn of_two_launches_for_one_task_one_is_refused() {
    let stack = Stack::start().await;
    for round in 0..10 {
        let task = format!("round-{round}");
        let launch = || stack.try_launch(json!({"task_id": task, "wait": "none"}));
        let (one, other) = tokio::join!(launch(), launch());
        let (won, lost) = if one.status == 201 {
            (one, other)
        } else {
            (other, one)
        };
        let won = won.expect(201);
        assert_eq!(lost.refused(409, "conflict")["details"]["task_id"], task.as_str());
        let all = instances(&stack, &task).await;
        assert_eq!(all.len(), 1, "{all:#?}");
        assert_eq!(all[0]["id"], won["id"]);
        assert_eq!(containers_of(&stack, &task), 1, "{task}");
        let stop = format!("/agents/{}/stop", won["id"].as_str().unwrap());
        stack.post(&stop, &json!({"force": true})).await.expect(200);
    }
    stack.settle().await;
}

#[tokio::test]
async fn a_launch_whose_caller_hangs_up_is_finished() {
    let stack = Stack::start().await;
    let mut recorded = 0;
    for (round, patience) in [0, 2, 5, 10, 20, 40, 80, 160].into_iter().enumerate() {
        let task = format!("round-{round}");
        let launch = stack.try_launch(json!({"task_id": task}));
        // Dropping the request closes its connection.
        let _ = tokio::time::timeout(Duration::from_millis(patience), launch).await;
    }
    // And one that is on record by then, however slow the machine is.
    let path = "/agents?task_id=round-8";
    let launch = stack.try_launch(json!({"task_id": "round-8", "env": {"MOCK_INIT": "slow:200"}}));
    tokio::select! {
        biased;
        _ = stack.until(path, |list| list["total"] == 1) => {}
        _ = launch => {}
    }
    for round in 0..9 {
        let task = format!("round-{round}");
        // The next launch either meets the first one or is the first.
        let next = stack.try_launch(json!({"task_id": task})).await;
        let path = format!("/agents?task_id={task}");
        let settled = |list: &Value| list["agents"][0]["status"] == "running";
        stack.until(&path, settled).await;
        assert_eq!(instances(&stack, &task).await.len(), 1);
        assert_eq!(containers_of(&stack, &task), 1);
        if next.status == 409 {
            recorded += 1;
        } else {
            next.expect(201);
        }
    }
    assert!(recorded > 0, "no launch was begun before its caller hung up");
    stack.settle().await;
}

#[tokio::test]
async fn of_two_prompts_that_do_not_wait_one_is_refused() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let (prompt, cancel) = (format!("/agents/{id}/prompt"), format!("/agents/{id}/cancel"));
    let list = format!("/agents/{id}/turns");
    for round in 0..5 {
        let body = json!({"message": "/say done\n/hang", "when_busy": "reject", "wait": true});
        let one = pin!(stack.post(&prompt, &body));
        let other = pin!(stack.post(&prompt, &body));
        // The one that became a turn has no answer yet.
        let (lost, won) = match select(one, other).await {
            Either::Left(answered) | Either::Right(answered) => answered,
        };
        lost.refused(409, "conflict");
        stack
            .until(&list, |page| page["turns"][round]["text"] == "done")
            .await;
        let ((), won) = tokio::join!(
            async {
                stack.post(&cancel, &json!({})).await.expect(200);
            },
            won
        );
        assert_eq!(won.expect(200)["turn"]["text"], "done");
    }
    let turns = stack.get(&list).await.expect(200);
    assert_eq!(turns["total"], 5, "a refused prompt is no turn");
    stack.settle().await;
}

/// The prompt is refused, or becomes a turn that has its end with the instance.
#[tokio::test]
async fn a_prompt_meets_a_stop() {
    let stack = Stack::start().await;
    let rounds = (0..6).map(|round| {
        let stack = &stack;
        async move {
            let id = stack.launch(json!({})).await;
            let body = json!({"message": "/sleep 20000", "wait": true});
            let prompt = async {
                tokio::time::sleep(Duration::from_millis(round)).await;
                stack.post(&format!("/agents/{id}/prompt"), &body).await
            };
            let stop = async {
                tokio::time::sleep(Duration::from_millis(5 - round)).await;
                stack
                    .post(&format!("/agents/{id}/stop"), &json!({"reason": "now"}))
                    .await
            };
            let (prompted, stopped) = tokio::join!(prompt, stop);
            assert_eq!(stopped.expect(200)["status"], "stopped");
            if prompted.status == 409 {
                prompted.refused(409, "conflict");
            } else {
                assert_eq!(prompted.expect(200)["turn"]["status"], "cancelled");
            }
        }
    });
    join_all(rounds).await;
    stack.settle().await;
}

#[tokio::test]
async fn a_stop_while_starting_ends_the_launch() {
    let stack = Stack::start().await;
    // While the agent takes its time, and at once, when the engine is still at work.
    for (round, env) in [json!({"MOCK_INIT": "never"}), json!({}), json!({})]
        .into_iter()
        .enumerate()
    {
        let task = format!("round-{round}");
        let launch = stack.try_launch(json!({"task_id": task, "env": env, "prompt": "/say x"}));
        let stop = async {
            let path = format!("/agents?task_id={task}");
            let recorded = stack.until(&path, |list| list["total"] == 1).await;
            let id = recorded["agents"][0]["id"].as_str().unwrap().to_owned();
            stack
                .post(
                    &format!("/agents/{id}/stop"),
                    &json!({"reason": "changed my mind"}),
                )
                .await
                .expect(200);
            id
        };
        let (launched, id) = tokio::join!(launch, stop);
        let launched = launched.expect(201);
        assert_eq!(
            (launched["id"].as_str(), launched["status"].as_str()),
            (Some(id.as_str()), Some("stopped"))
        );
        let instance = stack.instance(&id).await;
        assert_eq!(
            (&instance["reason"], &instance["error"]),
            (&json!("changed my mind"), &Value::Null)
        );
        assert_eq!(containers_of(&stack, &task), 0);
        let turns = stack.get(&format!("/agents/{id}/turns")).await.expect(200);
        assert_eq!(turns["turns"][0]["status"], "cancelled", "{turns:#}");
        // And the task is free.
        let next = stack.launch(json!({"task_id": task})).await;
        stack
            .post(&format!("/agents/{next}/stop"), &json!({"force": true}))
            .await
            .expect(200);
    }
    stack.settle().await;
}

#[tokio::test]
async fn ten_stops_are_one() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({"prompt": "/hang"})).await;
    let path = format!("/agents/{id}/stop");
    let body = json!({"reason": "enough"});
    for stopped in join_all((0..10).map(|_| stack.post(&path, &body))).await {
        assert_eq!(stopped.expect(200)["status"], "stopped");
    }
    let endings: Vec<_> = stack
        .logs(&id, "system")
        .await
        .into_iter()
        .filter(|l| l.starts_with("ending"))
        .collect();
    assert_eq!(endings, ["ending: stopped: enough"]);
    // A later one finds nothing to do.
    let again = stack.post(&path, &json!({"reason": "again"})).await.expect(200);
    assert_eq!(again["status"], "stopped");
    assert_eq!(stack.instance(&id).await["reason"], "enough");
    stack.settle().await;
}

/// Whichever comes first: the turn has one end, and the next prompt is not hit by a late cancel.
#[tokio::test]
async fn a_cancel_meets_the_end() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let (prompt, cancel) = (format!("/agents/{id}/prompt"), format!("/agents/{id}/cancel"));
    for round in 0..15_u64 {
        let body = json!({"message": "/sleep 20\n/say done", "wait": true});
        let late = async {
            tokio::time::sleep(Duration::from_millis(15 + round)).await;
            stack.post(&cancel, &json!({})).await.expect(200)
        };
        let (turn, _) = tokio::join!(stack.post(&prompt, &body), late);
        let turn = turn.expect(200)["turn"].clone();
        assert!(
            ["completed", "cancelled"].contains(&turn["status"].as_str().unwrap()),
            "{turn:#}"
        );
        let next = stack.turn(&id, "/sleep 5\n/say next").await;
        assert_eq!(
            (&next["status"], &next["text"]),
            (&json!("completed"), &json!("next")),
            "{next:#}"
        );
    }
    stack.settle().await;
}

/// Waits until a statement of the server's waits for a lock of ours.
async fn until_someone_waits(pool: &PgPool) {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    for _ in 0..1000 {
        let waiting: i64 = sqlx::query_scalar(sql).fetch_one(pool).await.unwrap();
        if waiting > 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nobody waits");
}

/// The launch is not committed yet when the task is deleted: its instance must not go with the task.
#[tokio::test]
async fn a_task_is_not_deleted_under_a_launch() {
    let stack = Stack::start().await;
    let pool = stack.database.pool().await;
    let id = stack.launch(json!({"task_id": "t"})).await;
    stack
        .post(&format!("/agents/{id}/stop"), &json!({"force": true}))
        .await
        .expect(200);
    let task = tasks::get(&pool, &"t".parse().unwrap()).await.unwrap().unwrap();
    let mut launch = pool.begin().await.unwrap();
    tasks::ensure(&mut launch, &task).await.unwrap();
    let delete = stack.call(Method::DELETE, "/tasks/t", None);
    let insert = async {
        until_someone_waits(&pool).await;
        let columns = "agent_type, workspace_path, priority, metadata, launch, env_names, env_sealed, permission_policy, \
                       lifecycle, turn_state, created_at, updated_at";
        let sql = format!(
            "INSERT INTO agent_instances (id, task_id, owner, status, {columns}) \
             SELECT $1, task_id, 'another', 'starting', {columns} FROM agent_instances"
        );
        let copy = sqlx::query(AssertSqlSafe(sql)).bind(InstanceId::generate().0);
        copy.execute(&mut *launch).await.unwrap();
        launch.commit().await.unwrap();
    };
    let (deleted, ()) = tokio::join!(delete, insert);
    deleted.refused(409, "conflict");
    assert_eq!(instances(&stack, "t").await.len(), 2);
    pool.close().await;
}

/// The other way round: the launch waits for the deletion, and makes the task anew.
#[tokio::test]
async fn a_launch_outlives_the_deletion_of_its_task() {
    let stack = Stack::start().await;
    let pool = stack.database.pool().await;
    stack
        .post("/tasks", &json!({"id": "t", "title": "the first"}))
        .await
        .expect(201);
    let mut delete = pool.begin().await.unwrap();
    sqlx::query("DELETE FROM tasks WHERE id = 't'")
        .execute(&mut *delete)
        .await
        .unwrap();
    let launch = stack.try_launch(json!({"task_id": "t"}));
    let commit = async {
        until_someone_waits(&pool).await;
        delete.commit().await.unwrap();
    };
    let (launched, ()) = tokio::join!(launch, commit);
    assert_eq!(launched.expect(201)["task_id"], "t");
    assert_eq!(
        stack.get("/tasks/t").await.expect(200)["title"],
        Value::Null,
        "a task of its own"
    );
    pool.close().await;
    stack.settle().await;
}
