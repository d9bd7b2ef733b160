//! The WebSocket: the same events, commands beside them, and how it ends.

use std::time::{Duration, Instant};

use futures_util::SinkExt as _;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::{Message, client::IntoClientRequest as _};

use crate::support::{Got, Socket, Stack};

fn turn_ended(event: &Value) -> bool {
    event["kind"] == "turn_ended"
}

#[tokio::test]
async fn a_conversation_over_a_websocket() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let path = format!("/agents/{id}/ws");
    let mut socket = Socket::open(&stack, &path).await;
    socket
        .send(&json!({"type": "prompt", "message": "/flood 3000 100", "ref": 1}))
        .await;
    let mut events = socket.events(turn_ended).await;
    socket
        .send(&json!({"type": "prompt", "prompt": [{"type": "text", "text": "/say two"}]}))
        .await;
    events.extend(socket.events(turn_ended).await);
    stack.stop(&id).await;
    events.extend(
        socket
            .events(|e| e["kind"] == "status" && e["data"]["status"] == "stopped")
            .await,
    );
    assert_eq!(socket.next().await, Got::Closed(Some(1000)));
    assert_eq!(events, stack.events(&id).await);

    // From a place on, some kinds.
    let mut later = Socket::open(&stack, &format!("{path}?after=100&kind=turn_ended,status")).await;
    let kept = later.events(|e| e["data"]["status"] == "stopped").await;
    let expected = events.iter().filter(|e| {
        e["seq"].as_i64().unwrap() > 100 && ["turn_ended", "status"].contains(&e["kind"].as_str().unwrap())
    });
    assert_eq!(kept.iter().collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    assert_eq!(later.next().await, Got::Closed(Some(1000)));
}

#[tokio::test]
async fn commands_are_answered_by_their_names() {
    let stack = Stack::with(&[("KANDEV_BODY_LIMIT_BYTES", "65536")]).await;
    let id = stack.launch(json!({})).await;
    let mut socket = Socket::open(&stack, &format!("/agents/{id}/ws")).await;
    let accepted = socket
        .answer(&json!({"type": "prompt", "message": "/hang", "ref": {"a": [1]}}))
        .await;
    assert_eq!(
        (&accepted["type"], &accepted["ref"]),
        (&json!("accepted"), &json!({"a": [1]}))
    );
    let turn = accepted["turn_id"].as_str().unwrap().to_owned();
    let queued = socket
        .answer(&json!({"type": "prompt", "message": "/say then", "ref": "q"}))
        .await;
    assert_eq!((&queued["queued"], &queued["ref"]), (&json!(true), &json!("q")));

    let large = "x".repeat(70_000);
    for (command, status, code) in [
        (
            json!({"type": "prompt", "message": "x", "when_busy": "reject", "ref": 7}),
            409,
            "conflict",
        ),
        (json!({"type": "prompt", "ref": 7}), 400, "validation_error"),
        (
            json!({"type": "prompt", "message": "", "ref": 7}),
            400,
            "validation_error",
        ),
        (
            json!({"type": "prompt", "message": 1, "ref": 7}),
            400,
            "validation_error",
        ),
        (json!({"type": "stop", "ref": 7}), 400, "validation_error"),
        (json!({"ref": 7}), 400, "validation_error"),
        (
            json!({"type": "prompt", "message": large, "ref": 7}),
            413,
            "payload_too_large",
        ),
    ] {
        let error = socket.answer(&command).await;
        assert_eq!(
            (
                &error["type"],
                &error["ref"],
                &error["http_status"],
                &error["error"]
            ),
            (&json!("error"), &json!(7), &json!(status), &json!(code)),
            "{error:#}"
        );
        assert!(error["message"].is_string() && error["request_id"].is_string());
    }
    for message in [Message::text("{"), Message::binary(vec![1, 2])] {
        socket.0.send(message).await.unwrap();
        let error = socket.any_answer().await;
        assert_eq!(
            (&error["error"], &error["ref"]),
            (&json!("bad_request"), &Value::Null)
        );
    }
    socket
        .0
        .send(Message::Ping(b"there?".to_vec().into()))
        .await
        .unwrap();
    loop {
        match socket.next().await {
            Got::Pong(data) => break assert_eq!(data, b"there?"),
            Got::Json(_) => {}
            closed @ Got::Closed(_) => panic!("{closed:?}"),
        }
    }
    let cancel = json!({"type": "cancel", "reason": "enough", "ref": 8});
    let cancelled = socket.answer(&cancel).await;
    assert_eq!(
        (&cancelled["type"], &cancelled["ref"]),
        (&json!("accepted"), &json!(8))
    );
    let path = format!("/agents/{id}/turns/{turn}");
    let ended = stack.until(&path, |t| t["status"] == "cancelled").await;
    assert_eq!(ended["cancel_reason"], "enough");
    // A message far too large ends the connection, and nothing else.
    let _ = socket.0.send(Message::text("x".repeat(200_000))).await;
    while matches!(socket.next().await, Got::Json(_)) {}
    assert_eq!(stack.turn(&id, "/say fine").await["text"], "fine");
}

#[tokio::test]
async fn a_client_that_does_not_read_can_cancel_and_does_not_hold_up_the_end() {
    let mut stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let mut socket = Socket::open(&stack, &format!("/agents/{id}/ws")).await;
    let turn = stack.prompt(&id, "/flood 30000 1000\n/hang").await;
    // More than the buffers between here and there hold.
    let events = format!("/agents/{id}/events?after=20000&limit=1");
    stack.until(&events, |page| page["events"] != json!([])).await;
    socket.send(&json!({"type": "cancel"})).await;
    let path = format!("/agents/{id}/turns/{turn}");
    stack.until(&path, |t| t["status"] == "cancelled").await;

    let mut reading = Socket::open(&stack, &format!("/agents/{id}/ws?kind=turn_ended")).await;
    reading.events(turn_ended).await;
    let kandev = stack.kandev.take().unwrap();
    let started = Instant::now();
    let (status, closed) = tokio::join!(kandev.terminate(), reading.next());
    assert_eq!(closed, Got::Closed(Some(1001)));
    assert!(status.success());
    assert!(
        started.elapsed() < Duration::from_secs(8),
        "it waited for the reader"
    );
}

#[tokio::test]
async fn what_is_no_handshake_from_here_is_refused() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let path = format!("/agents/{id}/ws");
    stack.get(&path).await.refused(426, "bad_request");
    stack.get("/agents/none/ws").await.refused(404, "not_found");
    for (path, origin, status) in [
        (path.clone(), "http://evil.example", 403),
        (format!("{path}?after=100000"), "", 400),
        (format!("{path}?after=-1"), "", 400),
        (format!("{path}?kind=nonsense"), "", 400),
    ] {
        let url = stack.url(&path).replacen("http", "ws", 1);
        let mut request = url.as_str().into_client_request().unwrap();
        if !origin.is_empty() {
            request.headers_mut().insert("origin", origin.parse().unwrap());
        }
        let stream = TcpStream::connect(url.split('/').nth(2).unwrap()).await.unwrap();
        let refused = tokio_tungstenite::client_async(request, stream).await;
        match refused.unwrap_err() {
            tokio_tungstenite::tungstenite::Error::Http(response) => {
                assert_eq!(response.status(), status, "{path} {origin}");
            }
            other => panic!("{other}"),
        }
    }
}
