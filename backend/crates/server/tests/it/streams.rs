//! Following: nothing is skipped and nothing comes twice, however a reader comes and goes.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Frame, Stack};

fn seqs(frames: &[Frame]) -> Vec<i64> {
    frames.iter().map(|f| f.id).collect()
}

fn turn_ended(frame: &Frame) -> bool {
    frame.event == "turn_ended"
}

#[tokio::test]
async fn a_stream_equals_the_pages_and_ends_with_the_instance() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let path = format!("/agents/{id}/events");
    let mut reader = stack.follow(&path, None).await;
    stack.prompt(&id, "/flood 5000 200\n/stderr aside").await;
    let mut frames = reader.until(turn_ended).await;
    // Live: each of these is there before the next is asked for.
    for word in ["one", "two"] {
        stack.prompt(&id, &format!("/say {word}")).await;
        frames.extend(reader.until(turn_ended).await);
    }
    stack.stop(&id).await;
    frames.extend(reader.rest().await);

    let events = stack.events(&id).await;
    assert_eq!(seqs(&frames), (1..=events.len() as i64).collect::<Vec<_>>());
    for (frame, event) in frames.iter().zip(&events) {
        assert_eq!(&frame.data, event);
        assert_eq!(frame.event, event["kind"].as_str().unwrap());
    }
    let last = frames.last().unwrap();
    assert_eq!(
        (last.event.as_str(), &last.data["data"]["status"]),
        ("status", &json!("stopped"))
    );

    // Only some kinds; from a place in the middle; after the end.
    let kinds = "kind=turn_started,turn_ended";
    let turns = stack.follow(&format!("{path}?{kinds}"), None).await.rest().await;
    let page = stack.get(&format!("{path}?{kinds}")).await.expect(200);
    let page: Vec<&Value> = page["events"].as_array().unwrap().iter().collect();
    assert_eq!(turns.iter().map(|f| &f.data).collect::<Vec<_>>(), page);
    assert_eq!(turns.len(), 6);
    let after = stack
        .follow(&format!("{path}?after=4990"), None)
        .await
        .rest()
        .await;
    assert_eq!(seqs(&after), (4991..=events.len() as i64).collect::<Vec<_>>());
    let end = stack.try_follow(&path, Some(events.len() as i64)).await;
    assert_eq!(end.status(), 204, "an EventSource must not come back for ever");
}

#[tokio::test]
async fn a_reader_that_comes_back_gets_the_next_one_first() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let other = stack.launch(json!({})).await;
    let path = format!("/agents/{id}/events");
    stack.prompt(&id, "/flood 3000 50\n/slow 20 20").await;
    let mut frames = Vec::new();
    let mut last = None;
    // Hang up again and again, at once and later.
    for take in [1, 7, 900, 1, 2000] {
        let mut reader = stack.follow(&path, last).await;
        for _ in 0..take {
            frames.push(reader.next().await.unwrap());
        }
        last = frames.last().map(|f: &Frame| f.id);
    }
    // The header counts more than the query, with which an EventSource began.
    let mut reader = stack.follow(&format!("{path}?after=2"), last).await;
    frames.extend(reader.until(turn_ended).await);
    assert_eq!(seqs(&frames), (1..=frames.len() as i64).collect::<Vec<_>>());
    assert!(frames.len() > 3020);

    // A cursor is a place in one history: of another instance it shows nothing.
    let of_other = format!("/agents/{other}/events");
    let length = stack.events(&other).await.len() as i64;
    for cursor in [last.unwrap(), length + 1] {
        let refused = stack.try_follow(&of_other, Some(cursor)).await;
        assert_eq!(refused.status(), 400);
        let body: Value = refused.json().await.unwrap();
        assert_eq!(
            (&body["error"], &body["details"]["field"]),
            (&json!("validation_error"), &json!("Last-Event-ID"))
        );
    }
    let mut reader = stack.follow(&of_other, Some(length)).await;
    stack.prompt(&other, "/say mine").await;
    let first = reader.next().await.unwrap();
    assert_eq!(
        (first.id, &first.data["instance_id"]),
        (length + 1, &json!(other))
    );
    for query in ["after=x", "after=-1", "after=100000", "kind=nonsense"] {
        let refused = stack.try_follow(&format!("{of_other}?{query}"), None).await;
        assert_eq!(refused.status(), 400, "{query}");
    }
}

#[tokio::test]
async fn a_reader_comes_back_across_the_death_of_the_server() {
    let mut stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let path = format!("/agents/{id}/events");
    stack.prompt(&id, "/slow 60 50\n/flood 2000 100\n/say done").await;
    let mut frames: Vec<Frame> = Vec::new();
    for _ in 0..2 {
        let last = frames.last().map(|f| f.id);
        let mut reader = stack.follow(&path, last).await;
        for _ in 0..12 {
            frames.push(reader.next().await.unwrap());
        }
        stack.kill().await;
        // What was on its way may still come.
        frames.extend(reader.rest().await);
        stack.boot().await;
    }
    let last = frames.last().map(|f| f.id);
    let mut reader = stack.follow(&path, last).await;
    frames.extend(reader.until(turn_ended).await);
    stack.stop(&id).await;
    frames.extend(reader.rest().await);
    let events = stack.events(&id).await;
    assert_eq!(seqs(&frames), (1..=events.len() as i64).collect::<Vec<_>>());
    for (frame, event) in frames.iter().zip(&events) {
        assert_eq!(&frame.data, event, "what was seen stays what it was");
    }
}

#[tokio::test]
async fn a_reader_that_lags_gets_all_and_costs_no_memory() {
    const UPDATES: usize = 40_000;
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let path = format!("/agents/{id}/events?kind=update");
    // Something to compare with: the memory that such a flood takes without a reader.
    stack.turn(&id, "/flood 20000 1000").await;
    let before = stack.kandev.as_ref().unwrap().memory();
    let last = stack.events(&id).await.len() as i64;
    let mut readers = Vec::new();
    for _ in 0..4 {
        readers.push(stack.follow(&path, Some(last)).await);
    }
    // Nobody reads in the meantime.
    let turn = stack.turn(&id, &format!("/flood {UPDATES} 1000")).await;
    assert_eq!(turn["updates"], UPDATES);
    let lagging = stack.kandev.as_ref().unwrap().memory();
    for reader in &mut readers {
        let mut count = 0;
        let mut seq = last;
        while count < UPDATES {
            let frame = reader.next().await.unwrap();
            assert!(frame.id > seq, "{} after {seq}", frame.id);
            seq = frame.id;
            count += 1;
            let text = frame.data["data"]["update"]["content"]["text"].as_str().unwrap();
            assert!(text.starts_with(&format!("{count:08}")), "{}", &text[..20]);
        }
    }
    let after = stack.kandev.as_ref().unwrap().memory();
    for (when, memory) in [("lagging", lagging), ("after", after)] {
        let growth = memory.saturating_sub(before) >> 20;
        assert!(growth < 64, "{when}: {growth} MiB more than {} MiB", before >> 20);
    }
}

/// What is not handed over in memory is read from the database at once, not when there is more.
#[tokio::test]
async fn a_line_that_is_too_large_to_hand_over_comes_all_the_same() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let last = stack.events(&id).await.len() as i64;
    let path = format!("/agents/{id}/events?kind=update");
    let mut reader = stack.follow(&path, Some(last)).await;
    let turn = stack.prompt(&id, "/say first\n/line 6m\n/sleep 20000").await;
    let text = |frame: &Frame| {
        frame.data["data"]["update"]["content"]["text"]
            .as_str()
            .unwrap()
            .len()
    };
    assert_eq!(text(&reader.next().await.unwrap()), "first".len());
    let mut more = 0;
    while more < 5 << 20 {
        more += text(&reader.next().await.unwrap());
    }
    let turn = stack.get(&format!("/agents/{id}/turns/{turn}")).await.expect(200);
    assert_eq!(turn["status"], "running", "it came only with what followed");
}

#[tokio::test]
async fn logs_are_followed_from_their_tail() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    stack.turn(&id, "/stderr-flood 300 10").await;
    let path = format!("/agents/{id}/logs");
    let filter = "stream=stderr";
    stack
        .until(&format!("{path}?{filter}"), |l| l["total"] == 300)
        .await;
    let mut all = stack.follow(&format!("{path}?{filter}&follow=true"), None).await;
    let mut some = stack
        .follow(&format!("{path}?level=warn&q=half&follow=true&tail=0"), None)
        .await;
    // The tail first: the last hundred, unless told otherwise.
    let mut lines = Vec::new();
    for _ in 0..100 {
        lines.push(all.next().await.unwrap());
    }
    stack
        .turn(
            &id,
            "/stderr WARN: half\n/say x\n/stderr WARN: whole\n/stderr half",
        )
        .await;
    stack
        .turn(&id, "/stderr-flood 200 10\n/stderr [warn] half again")
        .await;
    stack.stop(&id).await;
    lines.extend(all.rest().await);
    let end = stack.events(&id).await.len() as i64;
    assert_eq!(
        all.last_id,
        Some(end),
        "what was filtered out moves the place to come back to"
    );
    let page = stack.get(&format!("{path}?{filter}&tail=304")).await.expect(200);
    let stored = page["logs"].as_array().unwrap();
    assert_eq!(page["total"], 504);
    assert!(lines.iter().all(|f| f.event == "log" && f.id == f.data["seq"]));
    assert_eq!(
        lines.iter().map(|f| &f.data).collect::<Vec<_>>(),
        stored.iter().collect::<Vec<_>>()
    );
    let messages: Vec<Value> = some
        .rest()
        .await
        .into_iter()
        .map(|f| f.data["message"].clone())
        .collect();
    assert_eq!(messages, ["WARN: half", "[warn] half again"]);

    // Back again: only what came after, once; nothing more, and no more coming back, at the end.
    let last = lines[50].id;
    let rest = stack
        .follow(&format!("{path}?{filter}&follow=true"), Some(last))
        .await
        .rest()
        .await;
    assert_eq!(seqs(&rest), seqs(&lines[51..]));
    for (cursor, status) in [(end, 204), (end + 1, 400)] {
        let answer = stack
            .try_follow(&format!("{path}?follow=true"), Some(cursor))
            .await;
        assert_eq!(answer.status(), status);
    }
}

/// What the events up to a position add up to, made the long way.
fn expected(events: &[Value], seq: i64, turn: &str) -> Value {
    let so_far = events.iter().filter(|e| e["seq"].as_i64().unwrap() <= seq);
    let (mut text, mut plan, mut call, mut state) = (String::new(), Value::Null, Value::Null, "idle");
    for event in so_far {
        let own = event["turn_id"] == turn;
        let update = &event["data"]["update"];
        match (event["kind"].as_str().unwrap(), update["sessionUpdate"].as_str()) {
            ("turn_started", _) => state = "prompting",
            ("turn_ended", _) => (state, call) = ("idle", Value::Null),
            (_, Some("agent_message_chunk")) if own => text += update["content"]["text"].as_str().unwrap(),
            (_, Some("plan")) => plan = update["entries"].clone(),
            (_, Some("tool_call")) if own => {
                call = update.clone();
                call.as_object_mut().unwrap().remove("sessionUpdate");
            }
            (_, Some("tool_call_update")) if own => call["status"] = update["status"].clone(),
            _ => {}
        }
    }
    let calls: Vec<Value> = [call]
        .into_iter()
        .filter(|c| c.is_object() && c["status"] != "completed")
        .collect();
    json!({"text": text, "plan": plan, "open_tool_calls": calls, "turn_state": state, "permissions": []})
}

#[tokio::test]
async fn a_snapshot_is_what_the_events_up_to_its_position_add_up_to() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let path = format!("/agents/{id}/events");
    stack.turn(&id, "/say first").await;
    let call = r#"/update {"sessionUpdate":"tool_call","toolCallId":"t","title":"Build","status":"pending"}"#;
    let update = |status: &str| {
        format!(r#"/update {{"sessionUpdate":"tool_call_update","toolCallId":"t","status":"{status}"}}"#)
    };
    let script = [
        "/plan a;b;c\n/slow 20 10",
        call,
        "/slow 20 10\n/flood 3000 20\n/plan-step",
        &update("in_progress"),
        "/slow 20 10\n/plan-step\n/slow 20 10",
        &update("completed"),
        "/slow 30 10\n/say done",
    ];
    let turn = stack.prompt(&id, &script.join("\n")).await;
    let waiting = stack.prompt(&id, "/say last").await;
    let mut snapshots: Vec<Value> = Vec::new();
    loop {
        let snapshot = stack.get(&format!("{path}?snapshot=true")).await.expect(200);
        snapshots.push(snapshot);
        if snapshots.last().unwrap()["turns"][2]["status"] == "completed" {
            break;
        }
    }
    assert!(snapshots.len() > 5, "{} is too few to tell", snapshots.len());
    let events = stack.events(&id).await;
    for snapshot in &snapshots {
        let seq = snapshot["seq"].as_i64().unwrap();
        let shown = json!({
            "text": snapshot["turns"][1]["text"], "plan": snapshot["plan"],
            "open_tool_calls": snapshot["open_tool_calls"], "turn_state": snapshot["turn_state"],
            "permissions": snapshot["permissions"],
        });
        assert_eq!(shown, expected(&events, seq, &turn), "at {seq}");
        assert_eq!(snapshot["session"]["plan"], snapshot["plan"]);
        assert_eq!(
            (
                &snapshot["status"],
                &snapshot["total_turns"],
                &snapshot["turns"][0]["text"]
            ),
            (&json!("running"), &json!(3), &json!("first"))
        );
        assert_eq!(snapshot["turns"][2]["id"], waiting.as_str());
    }
    let with_call = snapshots.iter().filter(|s| s["open_tool_calls"] != json!([]));
    assert!(with_call.count() > 0, "no snapshot caught the open call");
    // Followed from there, nothing is missing.
    let seq = snapshots[1]["seq"].as_i64().unwrap();
    stack.stop(&id).await;
    let frames = stack.follow(&path, Some(seq)).await.rest().await;
    assert_eq!(seqs(&frames), (seq + 1..).take(frames.len()).collect::<Vec<_>>());
    let ended = stack.get(&format!("{path}?snapshot=true")).await.expect(200);
    assert_eq!(
        (&ended["status"], &ended["seq"]),
        (&json!("stopped"), &json!(frames.last().unwrap().id))
    );
    stack
        .get(&format!("{path}?snapshot=perhaps"))
        .await
        .refused(400, "validation_error");
}

#[tokio::test]
async fn a_cursor_older_than_what_is_kept_is_told_so() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    stack.turn(&id, "/flood 100 10").await;
    stack.stop(&id).await;
    let path = format!("/agents/{id}/events");
    let all = stack.events(&id).await;
    // There is no retention yet: this is what it will do.
    let pool = stack.database.pool().await;
    let sql = "DELETE FROM journal WHERE instance_id = $1::uuid AND first_seq <= 5";
    sqlx::query(sql).bind(&id).execute(&pool).await.unwrap();
    let sql = "SELECT min(first_seq) FROM journal WHERE instance_id = $1::uuid";
    let oldest: i64 = sqlx::query_scalar(sql).bind(&id).fetch_one(&pool).await.unwrap();
    assert!(oldest > 5);

    for cursor in [None, Some(3)] {
        let frames = stack.follow(&path, cursor).await.rest().await;
        assert_eq!(
            (frames[0].event.as_str(), frames[0].id, &frames[0].data),
            ("reset", oldest - 1, &json!({"oldest_seq": oldest}))
        );
        assert_eq!(
            seqs(&frames[1..]),
            (oldest..=all.len() as i64).collect::<Vec<_>>()
        );
    }
    let frames = stack.follow(&path, Some(oldest - 1)).await.rest().await;
    assert_eq!(seqs(&frames), (oldest..=all.len() as i64).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_reader_outlives_an_outage_of_the_database() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let mut reader = stack.follow(&format!("/agents/{id}/events"), None).await;
    stack.prompt(&id, "/slow 60 50").await;
    let mut frames = reader.until(|f| f.event == "update").await;
    stack.database.go_away().await;
    // Longer than a reader waits before it looks again.
    tokio::time::sleep(Duration::from_secs(2)).await;
    stack.database.come_back().await;
    frames.extend(reader.until(turn_ended).await);
    assert_eq!(seqs(&frames), (1..=frames.len() as i64).collect::<Vec<_>>());
    let updates = frames.iter().filter(|f| f.event == "update");
    assert!(updates.count() >= 60);
}

#[tokio::test]
async fn a_silent_stream_shows_that_it_is_alive() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let last = stack.events(&id).await.len();
    let path = format!("/agents/{id}/events?kind=error");
    let mut response = stack.try_follow(&path, None).await;
    let mut text = Vec::new();
    while !text.ends_with(format!(": keep-alive\nid: {last}\n\n").as_bytes()) {
        let chunk = tokio::time::timeout(Duration::from_secs(20), response.chunk()).await;
        text.extend_from_slice(&chunk.expect("nothing comes").unwrap().unwrap());
    }
}

#[tokio::test]
async fn a_stream_ends_when_the_server_stops() {
    let mut stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let mut reader = stack.follow(&format!("/agents/{id}/events"), None).await;
    reader.next().await.unwrap();
    let kandev = stack.kandev.take().unwrap();
    let started = std::time::Instant::now();
    assert!(kandev.terminate().await.success());
    assert!(
        started.elapsed() < Duration::from_secs(8),
        "it waited for the reader"
    );
    reader.rest().await;
}
