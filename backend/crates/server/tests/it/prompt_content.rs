//! What prompts are made of: every kind of content, and files by upload or out of the workspace.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};

use crate::support::{Answer, Stack};

/// Begins as a PNG does.
fn picture(bytes: usize) -> Vec<u8> {
    let mut picture = b"\x89PNG\r\n\x1a\n".to_vec();
    picture.extend((0..bytes).map(|n| (n % 251) as u8));
    picture
}

async fn copied(stack: &Stack, env: Value) -> String {
    let mut env = env;
    env["MOCK_INPUT_COPY"] = json!("/workspace/input");
    stack.launch(json!({"env": env})).await
}

/// Prompts with these blocks, after a text, and waits for the end: the turn.
async fn turn(stack: &Stack, id: &str, blocks: &Value) -> Value {
    let answer = try_prompt(stack, id, blocks, true).await.expect(200);
    assert_eq!(answer["turn"]["status"], "completed", "{answer:#}");
    answer["turn"].clone()
}

async fn try_prompt(stack: &Stack, id: &str, blocks: &Value, wait: bool) -> Answer {
    let mut prompt = vec![json!({"type": "text", "text": "/say seen"})];
    prompt.extend(blocks.as_array().unwrap().iter().cloned());
    let body = json!({"prompt": prompt, "wait": wait});
    stack.post(&format!("/agents/{id}/prompt"), &body).await
}

/// Lets a turn go on that waits for this file.
fn go(stack: &Stack, file: &str) {
    std::fs::write(stack.workspace().join(file), "").unwrap();
}

/// What the agent got in the last prompt, after the text.
fn last_sent(stack: &Stack) -> Vec<Value> {
    let sent = stack.sent_to("session/prompt").pop().unwrap();
    sent["prompt"].as_array().unwrap()[1..].to_vec()
}

async fn upload(stack: &Stack, query: &str, media_type: Option<&str>, bytes: Vec<u8>) -> Answer {
    let request = reqwest::Client::new().post(stack.url(&format!("/uploads{query}")));
    let request = match media_type {
        Some(media_type) => request.header(CONTENT_TYPE, media_type),
        None => request,
    };
    let response = request.body(bytes).send().await.unwrap();
    let status = response.status();
    Answer {
        status,
        body: response.json().await.unwrap(),
    }
}

async fn uploaded(stack: &Stack, name: &str, bytes: Vec<u8>) -> String {
    let answer = upload(stack, &format!("?name={name}"), None, bytes)
        .await
        .expect(201);
    answer["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn every_kind_of_content_reaches_the_agent() {
    let stack = Stack::start().await;
    let id = copied(&stack, json!({})).await;
    let blocks = json!([
        {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png", "uri": "file:///a.png", "annotations": {"priority": 1.0}},
        {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "file:///a.rs", "text": "fn a() {}\u{0}", "mimeType": "text/x-rust"}},
        {"type": "resource", "resource": {"uri": "file:///b", "blob": "/w=="}, "_meta": {"k": [1]}},
        {"type": "resource_link", "uri": "https://example.org/ä", "name": "ä", "size": 7},
        {"type": "text", "text": "ü\u{2028}"},
    ]);
    let done = turn(&stack, &id, &blocks).await;
    assert_eq!(json!(last_sent(&stack)), blocks, "unchanged");
    assert_eq!(
        done["prompt"].as_array().unwrap()[1..],
        *blocks.as_array().unwrap()
    );

    // What the agent did not advertise is refused, and nothing is sent.
    let plain = copied(&stack, json!({"MOCK_WITHOUT": "image,audio,embeddedContext"})).await;
    let before = stack.sent().len();
    for index in 0..4 {
        let refused = try_prompt(&stack, &plain, &json!([blocks[index]]), true).await;
        let refused = refused.refused(400, "validation_error");
        assert_eq!(refused["details"]["field"], "prompt");
        let kind = blocks[index]["type"].as_str().unwrap();
        assert!(
            refused["message"]
                .as_str()
                .unwrap()
                .contains(&format!("'{kind}'")),
            "{refused:#}"
        );
    }
    turn(&stack, &plain, &json!([blocks[4]])).await;
    assert_eq!(stack.sent().len(), before + 1);
    // Before the agent has said what it takes, the turn fails.
    let launch = json!({"env": {"MOCK_WITHOUT": "image"}, "prompt": [blocks[0]], "wait": "turn"});
    let early = stack.launch(launch).await;
    let turns = stack.get(&format!("/agents/{early}/turns")).await.expect(200);
    assert_eq!(
        turns["turns"][0]["error"]["code"], "validation_error",
        "{turns:#}"
    );
    stack.settle().await;
}

#[tokio::test]
async fn an_upload_is_kept_and_named_by_its_id() {
    let mut stack = Stack::start().await;
    let bytes = picture(1 << 20);
    let kept = upload(
        &stack,
        "?name=shot.png",
        Some("application/octet-stream"),
        bytes.clone(),
    )
    .await;
    let kept = kept.expect(201);
    assert_eq!(
        (
            &kept["name"],
            &kept["mime_type"],
            &kept["size"],
            &kept["instance_id"]
        ),
        (
            &json!("shot.png"),
            &json!("image/png"),
            &json!(bytes.len()),
            &Value::Null
        )
    );
    let upload = kept["id"].as_str().unwrap().to_owned();
    let id = copied(&stack, json!({})).await;
    let image = json!({"type": "image", "upload_id": upload, "annotations": {"audience": ["assistant"]}});
    // A prompt that waits behind a turn is kept with the file, over a restart too.
    stack.prompt(&id, "/await first").await;
    let queued = try_prompt(&stack, &id, &json!([image]), false).await.expect(202);
    stack.kill().await;
    stack.boot().await;
    assert_eq!(stack.get(&format!("/uploads/{upload}")).await.expect(200), kept);
    go(&stack, "first");
    let path = format!("/agents/{id}/turns/{}", queued["turn_id"].as_str().unwrap());
    let done = stack.until(&path, |turn| turn["status"] == "completed").await;
    let sent = last_sent(&stack);
    let data = BASE64_STANDARD.encode(&bytes);
    assert_eq!(
        (&sent[0]["type"], &sent[0]["mimeType"], &sent[0]["annotations"]),
        (
            &json!("image"),
            &json!("image/png"),
            &json!({"audience": ["assistant"]})
        )
    );
    assert!(sent[0]["data"] == data.as_str(), "another content");
    assert!(
        sent[0].get("upload_id").is_none(),
        "the agent knows nothing of ids"
    );
    // What is stored and shown names it.
    assert_eq!(done["prompt"][1], image);
    let events = json!(stack.events(&id).await).to_string();
    assert!(events.contains(&upload) && !events.contains(&data[..100]));
    // As what the agent takes: without images, embedded.
    let other = copied(&stack, json!({"MOCK_WITHOUT": "image"})).await;
    turn(&stack, &other, &json!([{"type": "file", "upload_id": upload}])).await;
    let sent = last_sent(&stack);
    assert!(sent[0]["type"] == "resource" && sent[0]["resource"]["blob"] == data.as_str());
    let refused = try_prompt(&stack, &other, &json!([image]), true).await;
    refused.refused(400, "validation_error");
    let notes = uploaded(&stack, "notes.md", b"# ok".to_vec()).await;
    turn(&stack, &id, &json!([{"type": "resource", "upload_id": notes}])).await;
    let resource = &last_sent(&stack)[0]["resource"];
    assert_eq!(
        (&resource["text"], &resource["mimeType"]),
        (&json!("# ok"), &json!("text/markdown"))
    );
    let refused = try_prompt(&stack, &id, &json!([{"type": "image", "upload_id": notes}]), true).await;
    assert!(
        refused.refused(400, "validation_error")["message"]
            .as_str()
            .unwrap()
            .contains("text/markdown")
    );

    let list = stack.get("/uploads").await.expect(200);
    assert_eq!(
        (&list["total"], &list["uploads"][0]["id"]),
        (&json!(2), &json!(notes))
    );
    let response = reqwest::get(stack.url(&format!("/uploads/{upload}/content")))
        .await
        .unwrap();
    assert_eq!(response.headers()["content-type"], "image/png");
    assert_eq!(response.headers()["content-disposition"], "attachment");
    assert!(response.bytes().await.unwrap() == bytes);
    // One that is deleted is nothing that a new prompt could name; one that waits says so after a restart.
    stack.prompt(&id, "/await second").await;
    let queued = try_prompt(&stack, &id, &json!([image]), false).await.expect(202);
    stack
        .call(Method::DELETE, &format!("/uploads/{upload}"), None)
        .await
        .expect(204);
    stack
        .call(Method::DELETE, &format!("/uploads/{upload}"), None)
        .await
        .refused(404, "not_found");
    let refused = try_prompt(&stack, &id, &json!([image]), false)
        .await
        .refused(400, "validation_error");
    assert!(
        refused["message"].as_str().unwrap().contains(&upload),
        "{refused:#}"
    );
    stack.kill().await;
    stack.boot().await;
    go(&stack, "second");
    let path = format!("/agents/{id}/turns/{}", queued["turn_id"].as_str().unwrap());
    let failed = stack.until(&path, |turn| turn["status"] == "failed").await;
    assert_eq!(failed["error"]["code"], "validation_error", "{failed:#}");
    assert_eq!(stack.turn(&id, "/say on").await["text"], "on");
    stack.settle().await;
}

#[tokio::test]
async fn uploads_have_limits() {
    let limits = [
        ("KANDEV_UPLOAD_LIMIT_BYTES", "2000"),
        ("KANDEV_UPLOAD_TOTAL_BYTES", "5000"),
    ];
    let stack = Stack::with(&limits).await;
    let full = |answer: Answer| answer.refused(413, "payload_too_large")["details"]["limit_bytes"].clone();
    assert_eq!(full(upload(&stack, "", None, vec![0; 2001]).await), 2000);
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.push(uploaded(&stack, "a.txt", vec![b'x'; 2000]).await);
    }
    assert_eq!(full(upload(&stack, "", None, vec![0; 1001]).await), 5000);
    for (query, media_type, bytes, status, code) in [
        ("?name=a/b", None, vec![1], 400, "validation_error"),
        ("?name=%00", None, vec![1], 400, "validation_error"),
        ("?name=", None, vec![1], 400, "validation_error"),
        ("", None, vec![], 400, "validation_error"),
        ("", Some("nonsense"), vec![1], 415, "bad_request"),
    ] {
        upload(&stack, query, media_type, bytes)
            .await
            .refused(status, code);
    }
    let foreign = reqwest::Client::new()
        .post(stack.url("/uploads"))
        .header("origin", "https://elsewhere.example")
        .body("x")
        .send()
        .await
        .unwrap();
    assert_eq!(foreign.status(), 403);
    // A copy of a file of the workspace counts as well, and goes with its instance.
    std::fs::write(stack.workspace().join("big"), vec![b'y'; 2001]).unwrap();
    std::fs::write(stack.workspace().join("small"), vec![b'y'; 1000]).unwrap();
    let id = stack.launch(json!({"task_id": "t"})).await;
    let small = json!([{"type": "resource", "path": "small"}]);
    let done = turn(&stack, &id, &small).await;
    let copy = done["prompt"][1]["upload_id"].as_str().unwrap();
    let shown = stack.get(&format!("/uploads/{copy}")).await.expect(200);
    assert_eq!(
        (&shown["instance_id"], &shown["size"]),
        (&json!(id), &json!(1000))
    );
    assert_eq!(stack.get("/uploads").await.expect(200)["total"], 2);
    try_prompt(&stack, &id, &small, true)
        .await
        .refused(400, "validation_error");
    stack
        .try_launch(json!({"prompt": small}))
        .await
        .refused(400, "validation_error");
    stack
        .call(Method::DELETE, &format!("/uploads/{}", ids[0]), None)
        .await
        .expect(204);
    turn(&stack, &id, &small).await;
    let large = json!([{"type": "resource", "path": "big"}]);
    let refused = try_prompt(&stack, &id, &large, true)
        .await
        .refused(400, "validation_error");
    assert!(
        refused["message"].as_str().unwrap().contains("2000 bytes"),
        "{refused:#}"
    );
    // A link needs no copy.
    turn(&stack, &id, &json!([{"type": "file", "path": "big"}])).await;
    let refused = try_prompt(&stack, &id, &json!(vec![large[0].clone(); 17]), true).await;
    refused.refused(400, "validation_error");
    stack.stop(&id).await;
    stack.call(Method::DELETE, "/tasks/t", None).await.expect(204);
    stack
        .get(&format!("/uploads/{copy}"))
        .await
        .refused(404, "not_found");
    stack.settle().await;
}

#[tokio::test]
async fn files_of_the_workspace_are_named_by_path() {
    let stack = Stack::start().await;
    let workspace = stack.workspace();
    std::fs::create_dir(workspace.join("sub dir")).unwrap();
    std::fs::write(workspace.join("sub dir/a.rs"), "fn a() {}").unwrap();
    std::fs::write(workspace.join("shot.png"), picture(10)).unwrap();
    std::fs::write(stack.path("secret.png"), picture(1)).unwrap();
    std::os::unix::fs::symlink(stack.path("secret.png"), workspace.join("out.png")).unwrap();
    std::os::unix::fs::symlink("shot.png", workspace.join("in.png")).unwrap();
    let id = copied(&stack, json!({})).await;
    let by_path = |kind: &str, path: &str| json!({"type": kind, "path": path});
    let link = json!({
        "type": "resource_link", "uri": "file:///workspace/sub%20dir/a.rs", "name": "a.rs", "mimeType": "text/x-rust", "size": 9,
    });
    let shot = json!({
        "type": "image", "data": BASE64_STANDARD.encode(picture(10)), "mimeType": "image/png", "uri": "file:///workspace/shot.png",
    });
    for (block, sent) in [
        (by_path("resource_link", "sub dir/a.rs"), &link),
        (by_path("file", "/workspace/sub dir/a.rs"), &link),
        (by_path("image", "shot.png"), &shot),
        (by_path("file", "./shot.png"), &shot),
        (by_path("image", "in.png"), &shot),
    ] {
        turn(&stack, &id, &json!([block])).await;
        assert_eq!(last_sent(&stack)[0], *sent, "{block}");
    }
    turn(&stack, &id, &json!([by_path("resource", "sub dir/a.rs")])).await;
    assert_eq!(
        last_sent(&stack)[0]["resource"],
        json!({"uri": "file:///workspace/sub%20dir/a.rs", "mimeType": "text/x-rust", "text": "fn a() {}"})
    );
    // It is the file of the moment at which the prompt was taken.
    stack.prompt(&id, "/await written").await;
    let queued = try_prompt(&stack, &id, &json!([by_path("image", "shot.png")]), false)
        .await
        .expect(202);
    std::fs::write(workspace.join("shot.png"), picture(20)).unwrap();
    go(&stack, "written");
    let path = format!("/agents/{id}/turns/{}", queued["turn_id"].as_str().unwrap());
    stack.until(&path, |turn| turn["status"] == "completed").await;
    assert_eq!(last_sent(&stack)[0], shot);
    let before = stack.sent().len();
    for path in [
        "missing",
        "out.png",
        "../secret.png",
        "/etc/passwd",
        "sub dir",
        "/workspace/../secret.png",
        ".",
    ] {
        for kind in ["image", "resource", "resource_link", "file"] {
            let refused = try_prompt(&stack, &id, &json!([by_path(kind, path)]), true).await;
            let refused = refused.refused(400, "validation_error");
            assert_eq!(refused["details"]["field"], "prompt");
        }
        stack
            .try_launch(json!({"prompt": [by_path("file", path)]}))
            .await
            .refused(400, "validation_error");
    }
    assert_eq!(stack.sent().len(), before);
    // At a launch too. An agent without images finds the file itself.
    let env = json!({"MOCK_WITHOUT": "image", "MOCK_INPUT_COPY": "/workspace/input"});
    let prompt = json!([{"type": "text", "text": "/say seen"}, by_path("file", "shot.png"), by_path("resource", "sub dir/a.rs")]);
    stack
        .launch(json!({"env": env, "prompt": prompt, "wait": "turn"}))
        .await;
    let sent = last_sent(&stack);
    assert_eq!(
        (&sent[0]["type"], &sent[0]["uri"]),
        (&json!("resource_link"), &json!("file:///workspace/shot.png"))
    );
    assert_eq!(sent[1]["resource"]["text"], "fn a() {}");
    stack.settle().await;
}

#[tokio::test]
async fn a_prompt_that_reaches_another_server_has_its_files() {
    let stack = Stack::start().await;
    let id = copied(&stack, json!({})).await;
    let upload = uploaded(&stack, "a.txt", b"over there".to_vec()).await;
    let other = stack.another("other").await;
    let url = format!("{}/api/v1/agents/{id}/prompt", other.url);
    let post = async |upload: &str| {
        let prompt =
            json!([{"type": "text", "text": "/say seen"}, {"type": "resource", "upload_id": upload}]);
        let body = json!({"prompt": prompt, "wait": true});
        reqwest::Client::new()
            .post(&url)
            .json(&body)
            .send()
            .await
            .unwrap()
    };
    assert_eq!(post(&upload).await.status(), 200);
    assert_eq!(last_sent(&stack)[0]["resource"]["text"], "over there");
    let unknown = kandev_domain::UploadId::generate().to_string();
    assert_eq!(post(&unknown).await.status(), 400);
    drop(other);
    stack.settle().await;
}
