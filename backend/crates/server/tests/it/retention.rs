//! Old events go, and nothing else: who comes for them is told, and whoever runs goes on.

use serde_json::{Value, json};
use sqlx::PgPool;

use crate::support::{Got, Socket, Stack};

const EVERY_SECOND: (&str, &str) = ("KANDEV_RETENTION_INTERVAL_SECONDS", "1");

/// Makes all that is stored two days old.
async fn age(pool: &PgPool) {
    sqlx::query("UPDATE journal SET written_at = written_at - interval '2 days'")
        .execute(pool)
        .await
        .unwrap();
}

/// First and last event of each row.
async fn rows(pool: &PgPool, id: &str) -> Vec<(i64, i64)> {
    let sql = "SELECT first_seq, last_seq FROM journal WHERE instance_id = $1::uuid ORDER BY first_seq";
    sqlx::query_as(sql).bind(id).fetch_all(pool).await.unwrap()
}

/// Waits until so few rows are left.
async fn until_left(pool: &PgPool, id: &str, few: impl Fn(&[(i64, i64)]) -> bool) -> Vec<(i64, i64)> {
    let deadline = std::time::Instant::now() + crate::support::LIMIT;
    loop {
        let rows = rows(pool, id).await;
        if few(&rows) {
            return rows;
        }
        assert!(std::time::Instant::now() < deadline, "{rows:?}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

async fn page(stack: &Stack, id: &str, query: &str) -> Value {
    stack
        .get(&format!("/agents/{id}/events?limit=5000&{query}"))
        .await
        .expect(200)
}

fn seqs(events: &Value) -> Vec<i64> {
    let events = events.as_array().unwrap().iter();
    events.map(|e| e["seq"].as_i64().unwrap()).collect()
}

#[tokio::test]
async fn what_is_too_old_goes_and_every_reader_is_told() {
    let stack = Stack::with(&[("KANDEV_RETENTION_DAYS", "1"), EVERY_SECOND]).await;
    let ended = stack.launch(json!({})).await;
    let idle = stack.launch(json!({})).await;
    let turn = stack
        .turn(&ended, "/say gone\n/stderr aside\n/flood 2000 100")
        .await;
    stack.turn(&idle, "/flood 2000 100").await;
    stack.stop(&ended).await;
    let first = stack.get("/events?limit=1").await.expect(200);
    let early = first["cursor"].as_str().unwrap().to_owned();
    let before = stack.events(&ended).await;
    let last = before.len() as i64;
    let pool = stack.database.pool().await;
    age(&pool).await;
    let left = until_left(&pool, &ended, |rows| rows.len() == 1).await;
    let oldest_of_idle = until_left(&pool, &idle, |rows| rows.len() == 1).await[0].0;
    let oldest = left[0].0;
    assert!(oldest > 1 && left[0].1 == last);

    // Pages, streams and sockets of the instance.
    let reset = json!({"instance_id": ended, "oldest_seq": oldest});
    for query in ["", "after=1", "kind=status", "kind=turn_started"] {
        let page = page(&stack, &ended, query).await;
        assert_eq!(page["reset"], reset, "{query}");
        let kept = before[oldest as usize - 1..].iter();
        let expected =
            kept.filter(|e| !query.starts_with("kind") || query.ends_with(e["kind"].as_str().unwrap()));
        let events: Vec<_> = page["events"].as_array().unwrap().iter().collect();
        assert_eq!(events, expected.collect::<Vec<_>>(), "{query}");
    }
    let rest = page(&stack, &ended, &format!("after={}", oldest - 1)).await;
    assert_eq!(
        (&rest["reset"], seqs(&rest["events"])),
        (&Value::Null, (oldest..=last).collect())
    );
    let path = format!("/agents/{ended}/events");
    let frames = stack.follow(&path, Some(1)).await.rest().await;
    assert_eq!(
        (frames[0].event.as_str(), &frames[0].data),
        ("reset", &json!({"oldest_seq": oldest}))
    );
    assert_eq!(frames.len() as i64, last - oldest + 2);
    let mut socket = Socket::open(&stack, &format!("/agents/{ended}/ws?after=1")).await;
    let told = json!({"type": "reset", "oldest_seq": oldest});
    assert_eq!(socket.next().await, Got::Json(told));
    let session = stack.instance(&ended).await["session_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let of_session = stack
        .get(&format!("/sessions/{session}/events"))
        .await
        .expect(200);
    assert_eq!(of_session["reset"], reset);

    // Those of all instances.
    let path = format!("/events?cursor={early}");
    let removed = json!({"reason": "removed"});
    let all = stack.get(&path).await.expect(200);
    assert_eq!(all["reset"], removed);
    let frame = stack
        .follow_from("/events", Some(&early))
        .await
        .next()
        .await
        .unwrap();
    assert_eq!((frame.event.as_str(), &frame.data), ("reset", &removed));
    let Got::Json(message) = Socket::open(&stack, &path).await.next().await else {
        panic!("closed early")
    };
    assert_eq!(
        (&message["type"], &message["reason"]),
        (&json!("reset"), &json!("removed"))
    );

    // What is not the journal's stays, and says what it misses.
    let snapshot = page(&stack, &ended, "snapshot=true").await;
    assert_eq!(
        (&snapshot["seq"], &snapshot["status"], &snapshot["total_turns"]),
        (&json!(last), &json!("stopped"), &json!(1))
    );
    let id = turn["id"].as_str().unwrap();
    let kept = stack
        .get(&format!("/agents/{ended}/turns/{id}"))
        .await
        .expect(200);
    assert_eq!(
        (&turn["text_removed"], &kept["text_removed"], &kept["status"]),
        (&json!(false), &json!(true), &json!("completed"))
    );
    let logs = stack.get(&format!("/agents/{ended}/logs")).await.expect(200);
    assert_eq!(logs["total"], logs["logs"].as_array().unwrap().len());

    // The one that runs goes on where it was.
    let position = rows(&pool, &idle).await[0].1;
    let next = stack.turn(&idle, "/say more").await;
    assert_eq!(
        (&next["text"], &next["text_removed"]),
        (&json!("more"), &json!(false))
    );
    let events = page(&stack, &idle, &format!("after={position}")).await;
    assert_eq!(seqs(&events["events"])[0], position + 1);
    let removed = format!(
        r#"kandev_retention_removed_total{{unit="events"}} {}"#,
        oldest - 1 + oldest_of_idle - 1
    );
    let metrics = reqwest::get(stack.url("/metrics"))
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    assert!(
        metrics.lines().any(|line| line == removed),
        "{removed}: {metrics}"
    );
}

#[tokio::test]
async fn an_instance_in_a_turn_keeps_what_its_next_server_needs() {
    let mut stack = Stack::with(&[("KANDEV_RETENTION_DAYS", "1"), EVERY_SECOND]).await;
    let id = stack.launch(json!({})).await;
    stack.turn(&id, "/flood 2000 100").await;
    let turn = stack.prompt(&id, "/say begun\n/slow 100 50\n/say done").await;
    let path = format!("/agents/{id}/turns/{turn}");
    stack
        .until(&path, |t| t["text"].as_str().is_some_and(|text| text.len() > 20))
        .await;
    let pool = stack.database.pool().await;
    age(&pool).await;
    let sql = "SELECT first_seq FROM turns WHERE id = $1::uuid";
    let first: i64 = sqlx::query_scalar(sql)
        .bind(&turn)
        .fetch_one(&pool)
        .await
        .unwrap();
    // Everything before the turn goes, and nothing of it.
    let left = until_left(&pool, &id, |rows| rows[0].1 >= first).await;
    assert!(left[0].0 > 1 && left[0].0 <= first, "{left:?} {first}");
    stack.kill().await;
    age(&pool).await;
    stack.boot().await;
    let ended = stack.until(&path, |t| t["status"] == "completed").await;
    let text = ended["text"].as_str().unwrap();
    assert!(text.starts_with("begun") && text.ends_with("done"), "{text}");
    assert_eq!(ended["updates"], 102);
    let events = page(&stack, &id, "").await;
    let seqs = seqs(&events["events"]);
    assert!(seqs.is_sorted_by(|a, b| a + 1 == *b), "{seqs:?}");
    assert_eq!(stack.turn(&id, "/say again").await["text"], "again");
}

#[tokio::test]
async fn what_is_too_much_goes_oldest_first_and_holds_nobody_up() {
    const MAX: i64 = 300_000;
    let max = MAX.to_string();
    let stack = Stack::with(&[("KANDEV_RETENTION_MAX_BYTES", &max), EVERY_SECOND]).await;
    let older = stack.launch(json!({})).await;
    let newer = stack.launch(json!({})).await;
    let pool = stack.database.pool().await;
    // Somebody is in its way.
    let mut lock = pool.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM journal_retention FOR UPDATE")
        .execute(&mut *lock)
        .await
        .unwrap();
    for id in [&older, &newer] {
        let turn = stack.turn(id, "/flood 20000 200").await;
        assert_eq!(turn["updates"], 20000);
    }
    lock.rollback().await.unwrap();
    let took = "SELECT coalesce(sum(octet_length(body) + 250), 0)::bigint FROM journal";
    let deadline = std::time::Instant::now() + crate::support::LIMIT;
    let mut rounds = 0;
    loop {
        // Writes go on all the while.
        assert_eq!(stack.turn(&newer, "/say x").await["text"], "x");
        let bytes: i64 = sqlx::query_scalar(took).fetch_one(&pool).await.unwrap();
        assert!(rounds > 0 || bytes > MAX, "{bytes} is not too much");
        rounds += 1;
        if bytes <= MAX {
            assert!(bytes > MAX / 3, "{bytes}: more than needed was removed");
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{bytes}");
    }
    // Of the older one only what must stay, of the newer one an end without a gap.
    assert_eq!(rows(&pool, &older).await.len(), 1);
    let events = page(&stack, &newer, "").await;
    let seqs = seqs(&events["events"]);
    assert!(seqs.is_sorted_by(|a, b| a + 1 == *b), "{seqs:?}");
    assert_eq!(events["reset"]["oldest_seq"], seqs[0]);
}
