//! Requests that no route can take, on every route of the API's own document.

use std::collections::BTreeSet;

use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};

use super::{counts, read, send};
use crate::support::Stack;

/// Routes whose body is any bytes, from the API's own document.
async fn takes_any_bytes(stack: &Stack, path: &str, method: &str) -> bool {
    let document = stack.get("/api/v1/openapi.json").await.expect(200);
    let body = &document["paths"][path][method.to_lowercase()]["requestBody"];
    body["content"]["application/octet-stream"].is_object()
}

/// Every path of the API with its methods, from its own document.
async fn routes(stack: &Stack) -> Vec<(String, BTreeSet<String>)> {
    let document = stack.get("/api/v1/openapi.json").await.expect(200);
    let paths = document["paths"].as_object().unwrap();
    let methods = |item: &Value| {
        item.as_object()
            .unwrap()
            .keys()
            .map(|m| m.to_uppercase())
            .collect()
    };
    paths
        .iter()
        .map(|(path, item)| (path.clone(), methods(item)))
        .collect()
}

fn filled(path: &str, id: &str, turn: &str) -> String {
    path.replace("{turn_id}", turn).replace("{id}", id)
}

#[tokio::test]
async fn unknown_ids_and_wrong_methods_on_every_route() {
    let stack = Stack::start().await;
    let id = stack.launch(json!({})).await;
    let before = counts(&stack).await;
    let http = Client::new();
    let unknown = "01990000-0000-7000-8000-000000000000";
    let (mut missing, mut wrong) = (0, 0);
    for (path, methods) in routes(&stack).await {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            let verb = Method::from_bytes(method.as_bytes()).unwrap();
            let body = json!({
                "message": "x", "env": {}, "mode_id": "x", "model_id": "x", "value": "x", "effort": "x", "entries": [],
                "method_id": "x", "method": "x", "action": "decline",
            });
            let call = |path: &str| {
                http.request(verb.clone(), stack.url(path))
                    .timeout(crate::support::LIMIT)
                    .json(&body)
            };
            if !methods.contains(method) {
                let response = call(&filled(&path, &id, unknown)).send().await.unwrap();
                let allow = response
                    .headers()
                    .get("allow")
                    .map(|a| a.to_str().unwrap().to_owned());
                let answer = read(response).await;
                answer.refused(405, "bad_request");
                let allow = allow.unwrap_or_else(|| panic!("{method} {path}: no Allow"));
                let allowed: BTreeSet<String> = allow
                    .split(',')
                    .map(|m| m.trim().to_owned())
                    .filter(|m| m != "HEAD")
                    .collect();
                assert_eq!(allowed, methods, "{method} {path}");
                wrong += 1;
            } else if path.contains('{') {
                for id in [
                    unknown,
                    "no-id",
                    "%00",
                    "%F0%9F%A6%80",
                    "..%2F..",
                    &"x".repeat(3000),
                ] {
                    let answer = send(call(&filled(&path, id, id))).await;
                    assert_eq!(answer.status, 404, "{method} {path} {id}: {:#}", answer.body);
                    answer.refused(404, "not_found");
                    missing += 1;
                }
            }
        }
    }
    assert!(
        missing > 100 && wrong > 60,
        "{missing} and {wrong}: the document has lost its routes"
    );
    for turn in [unknown, "no-id", "%00"] {
        stack
            .get(&format!("/agents/{id}/turns/{turn}"))
            .await
            .refused(404, "not_found");
    }
    for path in ["/api/v1/nothing", "/api/v2/agents", "/agents//", "/nothing"] {
        send(http.get(stack.url(path))).await.refused(404, "not_found");
    }
    assert_eq!(counts(&stack).await, before);
    assert_eq!(stack.instance(&id).await["status"], "running");
    stack.settle().await;
}

#[tokio::test]
async fn bodies_that_cannot_be_read_on_every_route() {
    let stack = Stack::with(&[("KANDEV_BODY_LIMIT_BYTES", "20000")]).await;
    let id = stack.launch(json!({})).await;
    let before = counts(&stack).await;
    let http = Client::new();
    let mut routes_with_body = 0;
    for (path, methods) in routes(&stack).await {
        for method in methods
            .iter()
            .filter(|m| ["POST", "PUT", "PATCH"].contains(&m.as_str()))
        {
            if takes_any_bytes(&stack, &path, method).await {
                continue;
            }
            routes_with_body += 1;
            let url = stack.url(&filled(&path, &id, &id));
            let call = || {
                let verb = Method::from_bytes(method.as_bytes()).unwrap();
                http.request(verb, &url).timeout(crate::support::LIMIT)
            };
            let json = |body: Vec<u8>| call().header(CONTENT_TYPE, "application/json").body(body);
            // A session is looked up by any text, and is missing before its body is read.
            let is_session = path.contains("/sessions/") || path.contains("/tasks/");
            let refused = async |request: RequestBuilder, status: u16, code: &str, what: &str| {
                let answer = send(request).await;
                if is_session && answer.status == 404 {
                    return;
                }
                assert_eq!(
                    answer.status.as_u16(),
                    status,
                    "{method} {path}, {what}: {:#}",
                    answer.body
                );
                answer.refused(status, code);
            };
            for broken in [
                &b"{"[..],
                b"{\"a\":}",
                b"nonsense",
                b"\xff\xfe",
                b"{\"reason\":\"\xc3\"}",
            ] {
                let what = String::from_utf8_lossy(broken).into_owned();
                refused(json(broken.to_vec()), 400, "bad_request", &what).await;
            }
            for shape in ["7", "\"x\"", "[1]", "true"] {
                refused(json(shape.into()), 400, "validation_error", shape).await;
            }
            for kind in ["text/plain", "application/x-www-form-urlencoded", "json"] {
                let request = call().header(CONTENT_TYPE, kind).body("{}");
                refused(request, 415, "bad_request", kind).await;
            }
            refused(call().body("{}"), 415, "bad_request", "no content type").await;
            let large = format!("{{\"reason\": \"{}\"}}", "x".repeat(20_000));
            refused(json(large.into()), 413, "payload_too_large", "a large body").await;
        }
    }
    assert!(routes_with_body >= 7, "{routes_with_body}");
    assert_eq!(counts(&stack).await, before);
    assert_eq!(
        stack.instance(&id).await["status"],
        "running",
        "a stop was obeyed"
    );
    stack.settle().await;
}
