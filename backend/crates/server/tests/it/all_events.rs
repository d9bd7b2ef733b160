//! The events of all instances: one order for every reader, nothing missed, nothing twice.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

use crate::support::{Frame, Got, Reader, Socket, Stack};

const PATH: &str = "/events";

fn is_end_of(event: &Value, id: &str) -> bool {
    event["instance_id"] == id && event["kind"] == "status" && event["data"]["status"] == "stopped"
}

/// Up to the end of each of these instances.
async fn until_ended(reader: &mut Reader, ids: &[&str]) -> Vec<Frame> {
    let mut frames = Vec::new();
    let mut left = ids.to_vec();
    while !left.is_empty() {
        let frame = reader.next().await.expect("the stream ended early");
        left.retain(|id| !is_end_of(&frame.data, id));
        frames.push(frame);
    }
    frames
}

fn of<'a>(events: impl IntoIterator<Item = &'a Value>, id: &str) -> Vec<Value> {
    events
        .into_iter()
        .filter(|e| e["instance_id"] == id)
        .cloned()
        .collect()
}

/// Every event of every instance, once, each instance's in order.
async fn complete<'a>(stack: &Stack, events: impl IntoIterator<Item = &'a Value> + Clone, ids: &[&str]) {
    let mut total = 0;
    for id in ids {
        let expected = stack.events(id).await;
        assert_eq!(of(events.clone(), id), expected, "{id}");
        total += expected.len();
    }
    assert_eq!(events.into_iter().count(), total, "events of nobody");
}

fn data(frames: &[Frame]) -> impl Iterator<Item = &Value> + Clone {
    frames.iter().map(|f| &f.data)
}

async fn pages(stack: &Stack, query: &str) -> Vec<Value> {
    let mut events = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = stack
            .get(&format!("{PATH}?{query}&cursor={cursor}"))
            .await
            .expect(200);
        assert_eq!(page["reset"], Value::Null);
        events.extend(page["events"].as_array().unwrap().iter().cloned());
        match page["next_cursor"].as_str() {
            Some(next) => next.clone_into(&mut cursor),
            None => return events,
        }
    }
}

#[tokio::test]
async fn every_reader_gets_every_event_of_every_instance_once_in_one_order() {
    let stack = Stack::start().await;
    let mut stream = stack.follow(PATH, None).await;
    let mut socket = Socket::open(&stack, PATH).await;
    let first = stack.launch(json!({"task_id": "one"})).await;
    let second = stack.launch(json!({"task_id": "two"})).await;
    let ids = [first.as_str(), second.as_str()];
    let mut of_task = stack.follow(&format!("{PATH}?task_id=two"), None).await;
    let work = "/flood 2000 100\n/slow 20 10\n/stderr aside";
    tokio::join!(stack.turn(&first, work), stack.turn(&second, work));
    stack.turn(&first, "/say again").await;
    stack.stop(&first).await;
    stack.stop(&second).await;

    let frames = until_ended(&mut stream, &ids).await;
    complete(&stack, data(&frames), &ids).await;
    assert!(frames.iter().all(|f| f.event == f.data["kind"]));
    let places: std::collections::HashSet<_> = frames.iter().map(|f| &f.place).collect();
    assert_eq!(places.len(), frames.len());

    // The same over a WebSocket, as pages of any size, and for somebody who comes late: in the same order.
    let mut left = ids.to_vec();
    let mut received = Vec::new();
    while !left.is_empty() {
        let Got::Json(message) = socket.next().await else {
            panic!("closed early")
        };
        assert_eq!(message["type"], "event", "{message:#}");
        left.retain(|id| !is_end_of(&message["event"], id));
        received.push(message);
    }
    for (message, frame) in received.iter().zip(&frames) {
        assert_eq!(
            (&message["event"], &message["cursor"]),
            (&frame.data, &json!(frame.place))
        );
    }
    assert_eq!(received.len(), frames.len());
    let all: Vec<_> = data(&frames).cloned().collect();
    for limit in [97, 5000] {
        assert_eq!(pages(&stack, &format!("limit={limit}")).await, all);
    }
    let late = until_ended(&mut stack.follow(PATH, None).await, &ids).await;
    assert!(data(&late).eq(&all));

    // Only of a task, only some kinds.
    let of_task = until_ended(&mut of_task, &[&second]).await;
    assert_eq!(data(&of_task).cloned().collect::<Vec<_>>(), of(&all, &second));
    assert_eq!(pages(&stack, "task_id=two&limit=1000").await, of(&all, &second));
    assert!(pages(&stack, "task_id=three").await.is_empty());
    let kinds = ["turn_started", "turn_ended"];
    let turns: Vec<_> = all
        .iter()
        .filter(|e| kinds.contains(&e["kind"].as_str().unwrap()))
        .cloned()
        .collect();
    assert_eq!(pages(&stack, "kind=turn_started,turn_ended&limit=1").await, turns);
    assert_eq!(turns.len(), 6);
}

/// The rows of the journal: instance, first and last event.
async fn rows(stack: &Stack) -> Vec<(String, i64, i64)> {
    let sql = "SELECT instance_id::text, first_seq, last_seq FROM journal";
    sqlx::query_as(sql)
        .fetch_all(&stack.database.pool().await)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_reader_comes_back_in_the_middle_of_a_row() {
    let stack = Stack::start().await;
    let first = stack.launch(json!({})).await;
    let second = stack.launch(json!({})).await;
    let ids = [first.as_str(), second.as_str()];
    tokio::join!(
        stack.turn(&first, "/flood 3000 50"),
        stack.turn(&second, "/flood 3000 50")
    );
    let mut frames: Vec<Frame> = Vec::new();
    let mut cuts = Vec::new();
    for take in [1, 7, 900, 1, 2000, 3] {
        let mut reader = stack
            .follow_from(PATH, frames.last().map(|f| f.place.as_str()))
            .await;
        for _ in 0..take {
            frames.push(reader.next().await.unwrap());
        }
        cuts.push(frames.last().unwrap().data.clone());
    }
    stack.stop(&first).await;
    stack.stop(&second).await;
    // The header counts more than the query, with which an EventSource began.
    let began = format!("{PATH}?cursor={}", frames[5].place);
    let mut reader = stack
        .follow_from(&began, Some(frames.last().unwrap().place.as_str()))
        .await;
    frames.extend(until_ended(&mut reader, &ids).await);
    complete(&stack, data(&frames), &ids).await;
    let rows = rows(&stack).await;
    let within = |cut: &&Value| {
        let seq = cut["seq"].as_i64().unwrap();
        rows.iter()
            .any(|(id, from, to)| cut["instance_id"] == id.as_str() && (*from..*to).contains(&seq))
    };
    assert!(cuts.iter().filter(within).count() > 0, "no cut was within a row");
    // And so does one by a WebSocket, whose cursor is in the query, and one that reads pages.
    let middle = &frames[frames.len() / 2];
    let after = format!("{PATH}?limit=1&cursor={}", middle.place);
    let Got::Json(message) = Socket::open(&stack, &after).await.next().await else {
        panic!("closed early")
    };
    let next = &frames[frames.len() / 2 + 1];
    assert_eq!(message["event"], next.data);
    let page = stack.get(&after).await.expect(200);
    assert_eq!(
        (&page["events"], &page["cursor"]),
        (&json!([next.data]), &json!(next.place))
    );
}

#[tokio::test]
async fn a_reader_comes_back_across_the_death_of_the_server() {
    let mut stack = Stack::start().await;
    let first = stack.launch(json!({})).await;
    let second = stack.launch(json!({})).await;
    let ids = [first.as_str(), second.as_str()];
    let work = "/slow 60 50\n/flood 2000 100\n/say done";
    stack.prompt(&first, work).await;
    stack.prompt(&second, work).await;
    let mut frames: Vec<Frame> = Vec::new();
    let mut last: Option<String> = None;
    for _ in 0..2 {
        let mut reader = stack.follow_from(PATH, last.as_deref()).await;
        for _ in 0..20 {
            frames.push(reader.next().await.unwrap());
        }
        stack.kill().await;
        // What was on its way may still come.
        frames.extend(reader.rest().await);
        last = reader.last_place;
        stack.boot().await;
    }
    let mut reader = stack.follow_from(PATH, last.as_deref()).await;
    for id in ids {
        let turns = format!("/agents/{id}/turns");
        stack
            .until(&turns, |t| t["turns"][0]["status"] == "completed")
            .await;
        stack.stop(id).await;
    }
    frames.extend(until_ended(&mut reader, &ids).await);
    complete(&stack, data(&frames), &ids).await;
}

#[tokio::test]
async fn a_reader_that_lags_gets_all_and_costs_no_memory() {
    const UPDATES: usize = 20_000;
    let stack = Stack::start().await;
    let first = stack.launch(json!({})).await;
    let second = stack.launch(json!({})).await;
    let path = format!("{PATH}?kind=update&cursor=latest");
    // Something to compare with: the memory that such a flood takes without a reader.
    let flood = format!("/flood {UPDATES} 1000");
    tokio::join!(stack.turn(&first, &flood), stack.turn(&second, &flood));
    let before = stack.kandev.as_ref().unwrap().memory();
    let stands = async |id: &str| {
        let snapshot = stack
            .get(&format!("/agents/{id}/events?snapshot=true"))
            .await
            .expect(200);
        snapshot["seq"].as_i64().unwrap()
    };
    let old = HashMap::from([(&first, stands(&first).await), (&second, stands(&second).await)]);
    let mut readers = Vec::new();
    for _ in 0..3 {
        readers.push(stack.follow(&path, None).await);
    }
    // Nobody reads in the meantime.
    tokio::join!(stack.turn(&first, &flood), stack.turn(&second, &flood));
    let lagging = stack.kandev.as_ref().unwrap().memory();
    for reader in &mut readers {
        let mut counts: HashMap<String, usize> = HashMap::new();
        while counts.values().sum::<usize>() < 2 * UPDATES {
            let frame = reader.next().await.unwrap();
            let instance = frame.data["instance_id"].as_str().unwrap();
            // `latest` may be a little earlier, where a transaction of another test was running then.
            if frame.data["seq"].as_i64().unwrap() <= old[&instance.to_owned()] {
                continue;
            }
            let count = counts.entry(instance.to_owned()).or_default();
            *count += 1;
            let text = frame.data["data"]["update"]["content"]["text"].as_str().unwrap();
            assert!(text.starts_with(&format!("{count:08}")), "{}", &text[..20]);
        }
        assert_eq!(counts.get(&first), counts.get(&second));
    }
    let after = stack.kandev.as_ref().unwrap().memory();
    for (when, memory) in [("lagging", lagging), ("after", after)] {
        let growth = memory.saturating_sub(before) >> 20;
        assert!(growth < 64, "{when}: {growth} MiB more than {} MiB", before >> 20);
    }
}

#[tokio::test]
async fn a_transaction_that_commits_late_delays_its_readers_and_loses_nothing() {
    let stack = Stack::start().await;
    let ended = stack.launch(json!({})).await;
    let busy = stack.launch(json!({})).await;
    stack.turn(&ended, "/say x").await;
    stack.stop(&ended).await;
    let mut reader = stack.follow(PATH, None).await;
    let mut frames = until_ended(&mut reader, &[&ended]).await;

    // Somebody begins to write, as another server would, and takes his time.
    let pool = stack.database.pool().await;
    let mut late = pool.begin().await.unwrap();
    let sql = "INSERT INTO journal (instance_id, first_seq, last_seq, kinds, log_stdout, log_stderr, log_system, \
         stdout_lines, stderr_lines, written_at, body) \
         SELECT instance_id, last_seq + 1, last_seq * 2 - first_seq + 1, kinds, log_stdout, log_stderr, log_system, \
         stdout_lines, stderr_lines, written_at, body FROM journal WHERE instance_id = $1::uuid \
         ORDER BY first_seq DESC LIMIT 1 RETURNING last_seq";
    let late_seq: i64 = sqlx::query_scalar(sql)
        .bind(&ended)
        .fetch_one(&mut *late)
        .await
        .unwrap();
    let turn = stack.turn(&busy, "/say meanwhile").await;
    // Longer than a reader waits before it looks again.
    let early = tokio::time::timeout(Duration::from_secs(2), reader.next()).await;
    let passed_by = early.ok().flatten().filter(|f| f.data["turn_id"] == turn["id"]);
    assert!(passed_by.is_none(), "{passed_by:?}");
    late.commit().await.unwrap();
    let turn_ended = |f: &Frame| f.event == "turn_ended" && f.data["instance_id"] == busy.as_str();
    frames.extend(reader.until(turn_ended).await);
    let at = |holds: &dyn Fn(&Frame) -> bool| frames.iter().position(holds);
    let late_at = at(&|f| f.data["seq"] == late_seq && f.data["instance_id"] == ended.as_str());
    let turn_at = at(&|f| f.data["turn_id"] == turn["id"]);
    assert!(late_at.is_some() && late_at < turn_at, "{late_at:?} {turn_at:?}");
    stack.stop(&busy).await;
    frames.extend(until_ended(&mut reader, &[&busy]).await);
    complete(&stack, data(&frames), &[&ended, &busy]).await;
}

#[tokio::test]
async fn a_cursor_is_a_place_here_or_refused_or_reset() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({"prompt": "/say x", "wait": "turn"})).await;
    stack.stop(&id).await;
    let all = pages(&stack, "limit=5000").await;
    let page = stack.get(&format!("{PATH}?limit=1")).await.expect(200);
    let cursor = page["cursor"].as_str().unwrap().to_owned();
    for bad in [
        "x",
        "1",
        "-1",
        "1.2.3.4",
        &cursor[..9],
        &format!("{cursor}0x"),
        "%00",
        "a%20b",
    ] {
        let path = format!("{PATH}?cursor={bad}");
        let refused = stack.get(&path).await.refused(400, "validation_error");
        assert_eq!(refused["details"]["field"], "cursor", "{bad}");
        assert_eq!(stack.try_follow(&path, None).await.status(), 400, "{bad}");
        if !bad.contains('%') {
            let header = stack.try_follow_from(PATH, Some(bad)).await;
            assert_eq!(header.status(), 400, "{bad}");
        }
    }
    for query in [
        "limit=0",
        "limit=5001",
        "kind=nonsense",
        "task_id=a%20b",
        "task_id=",
    ] {
        let path = format!("{PATH}?{query}");
        stack.get(&path).await.refused(400, "validation_error");
        assert_eq!(stack.try_follow(&path, None).await.status(), 400, "{query}");
    }

    // Of another database, or ahead of this one as before a restore: said so, then everything.
    let parts: Vec<_> = cursor.split('.').collect();
    let elsewhere = ["1234", parts[1], parts[2], parts[3]].join(".");
    let ahead = [parts[0], "7fffffffffff", parts[2], parts[3]].join(".");
    for cursor in [elsewhere, ahead] {
        let mut reader = stack.follow_from(PATH, Some(&cursor)).await;
        let first = reader.next().await.unwrap();
        assert_eq!(
            (first.event.as_str(), &first.data),
            ("reset", &json!({"reason": "unknown"}))
        );
        assert!(data(&until_ended(&mut reader, &[&id]).await).eq(&all));
        // The place that came with it is one to go on from.
        let mut again = stack.follow_from(PATH, Some(&first.place)).await;
        assert!(data(&until_ended(&mut again, &[&id]).await).eq(&all));

        let path = format!("{PATH}?limit=5000&cursor={cursor}");
        let page = stack.get(&path).await.expect(200);
        assert_eq!(
            (&page["reset"], &page["events"]),
            (&json!({"reason": "unknown"}), &json!(all))
        );
        let Got::Json(message) = Socket::open(&stack, &path).await.next().await else {
            panic!("closed early")
        };
        assert_eq!(
            (&message["type"], &message["reason"]),
            (&json!("reset"), &json!("unknown"))
        );
    }

    // From now on: nothing of what was.
    let page = stack.get(&format!("{PATH}?cursor=latest")).await.expect(200);
    assert_eq!(
        (&page["events"], &page["next_cursor"]),
        (&json!([]), &Value::Null)
    );
    let from = page["cursor"].as_str().unwrap();
    let next = stack.launch(json!({})).await;
    stack.stop(&next).await;
    let mut reader = stack
        .follow_from(&format!("{PATH}?cursor=latest"), Some(from))
        .await;
    let frames = until_ended(&mut reader, &[&next]).await;
    complete(&stack, data(&frames), &[&next]).await;
}

async fn refused_handshake(stack: &Stack, path: &str, headers: &[(&'static str, &str)]) -> u16 {
    let url = stack.url(path).replacen("http", "ws", 1);
    let mut request = url.as_str().into_client_request().unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    let stream = TcpStream::connect(url.split('/').nth(2).unwrap()).await.unwrap();
    match tokio_tungstenite::client_async(request, stream)
        .await
        .unwrap_err()
    {
        tokio_tungstenite::tungstenite::Error::Http(response) => response.status().as_u16(),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_socket_takes_no_commands_and_ends_with_the_server() {
    let mut stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let cursor = format!("{PATH}?cursor=nonsense");
    assert_eq!(refused_handshake(&stack, &cursor, &[]).await, 400);
    let other = [("origin", "http://evil.example")];
    assert_eq!(refused_handshake(&stack, PATH, &other).await, 403);
    let version = [("sec-websocket-version", "7")];
    assert_eq!(refused_handshake(&stack, PATH, &version).await, 426);

    let mut talkative = Socket::open(&stack, &format!("{PATH}?cursor=latest")).await;
    talkative.send(&json!({"type": "prompt", "message": "x"})).await;
    assert_eq!(talkative.next().await, Got::Closed(Some(1003)));

    // One that reads, one that does not, and a stream: none holds up the end.
    let mut socket = Socket::open(&stack, &format!("{PATH}?kind=turn_ended")).await;
    let _idle = Socket::open(&stack, PATH).await;
    let mut stream = stack.follow(&format!("{PATH}?kind=turn_ended"), None).await;
    stack.turn(&id, "/flood 20000 1000").await;
    assert!(matches!(socket.next().await, Got::Json(message) if message["type"] == "event"));
    assert_eq!(stream.next().await.unwrap().event, "turn_ended");
    let kandev = stack.kandev.take().unwrap();
    let started = Instant::now();
    let (status, closed, rest) = tokio::join!(kandev.terminate(), socket.next(), stream.rest());
    assert_eq!((closed, rest.len()), (Got::Closed(Some(1001)), 0));
    assert!(status.success());
    assert!(
        started.elapsed() < Duration::from_secs(8),
        "it waited for a reader"
    );
}

#[tokio::test]
async fn a_silent_reader_is_told_where_it_stands() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let before = stack.events(&id).await.len() as i64;
    let silent = format!("{PATH}?kind=error");
    let mut socket = Socket::open(&stack, &silent).await;
    let mut response = stack.try_follow(&silent, None).await;
    let mut text = String::new();
    let place = loop {
        let chunk = tokio::time::timeout(Duration::from_secs(20), response.chunk()).await;
        text += std::str::from_utf8(&chunk.expect("nothing comes").unwrap().unwrap()).unwrap();
        if let Some((_, place)) = text.split_once(": keep-alive\nid: ")
            && let Some(place) = place.strip_suffix("\n\n")
        {
            break place.to_owned();
        }
    };
    let Got::Json(message) = socket.next().await else {
        panic!("closed early")
    };
    assert_eq!(message["type"], "cursor");
    // What did not pass the filter is behind both.
    stack.turn(&id, "/say more").await;
    for cursor in [place.as_str(), message["cursor"].as_str().unwrap()] {
        // Transactions of other tests may hold the order back for a moment.
        let path = format!("{PATH}?cursor={cursor}");
        let page = stack
            .until(&path, |page| {
                let events = page["events"].as_array().unwrap();
                events.iter().any(|e| e["kind"] == "turn_started")
            })
            .await;
        let events = page["events"].as_array().unwrap();
        assert!(events[0]["seq"].as_i64().unwrap() > before, "{cursor}: {page:#}");
        assert!(events.iter().any(|e| e["kind"] == "turn_started"));
    }
}

#[tokio::test]
async fn a_reader_outlives_an_outage_of_the_database() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let mut reader = stack.follow(PATH, None).await;
    stack.prompt(&id, "/slow 60 50").await;
    let mut frames = reader.until(|f| f.event == "update").await;
    stack.database.go_away().await;
    // Longer than a reader waits before it looks again.
    tokio::time::sleep(Duration::from_secs(2)).await;
    stack.database.come_back().await;
    frames.extend(reader.until(|f| f.event == "turn_ended").await);
    stack.stop(&id).await;
    frames.extend(until_ended(&mut reader, &[&id]).await);
    complete(&stack, data(&frames), &[&id]).await;
}
