//! Every path of refusal answers with the one body.

use std::time::Duration;

use axum::routing::{get, post};
use kandev::AppState;
use kandev::config::Flags;
use kandev::edge::extract::{ApiJson, ApiPath, ApiQuery};
use kandev::error::ApiError;
use kandev_domain::InstanceId;
use kandev_runtime::RuntimeError;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use utoipa_axum::router::OpenApiRouter;

use crate::support::{TestDatabase, TestServer};

const CANARY: &str = "canary-3141";

#[derive(Deserialize, Serialize)]
struct Body {
    name: String,
    limits: Option<Limits>,
}

#[derive(Deserialize, Serialize)]
struct Limits {
    memory_mb: u64,
}

#[derive(Deserialize)]
struct Page {
    limit: Option<u32>,
}

/// Routes that use each extractor, and routes that misbehave.
fn routes() -> OpenApiRouter<AppState> {
    async fn panic() -> &'static str {
        panic!("{CANARY}")
    }
    OpenApiRouter::new()
        .route(
            "/t/body",
            post(async |ApiJson(body): ApiJson<Body>| axum::Json(body)),
        )
        .route(
            "/t/optional",
            post(async |body: Option<ApiJson<Body>>| body.map_or_else(String::new, |b| b.0.name)),
        )
        .route(
            "/t/query",
            get(async |ApiQuery(page): ApiQuery<Page>| page.limit.unwrap_or(7).to_string()),
        )
        .route(
            "/t/path/{id}",
            get(async |ApiPath(id): ApiPath<InstanceId>| id.to_string()),
        )
        .route("/t/panic", get(panic))
        .route("/t/slow", get(std::future::pending::<()>))
        .route(
            "/t/internal",
            get(async || ApiError::internal(std::io::Error::other(CANARY))),
        )
        .route(
            "/t/engine",
            get(async || ApiError::from(RuntimeError::Broken(CANARY.to_owned()))),
        )
        .route(
            "/t/database",
            get(async || ApiError::from(sqlx::Error::PoolTimedOut)),
        )
        .route("/t/bare", get(async || StatusCode::IM_A_TEAPOT))
}

fn flags() -> Flags {
    Flags {
        body_limit_bytes: Some("2000".to_owned()),
        request_timeout_seconds: Some("1".to_owned()),
        ..Flags::default()
    }
}

async fn server() -> TestServer {
    TestServer::without_database(flags(), routes()).await
}

/// Checks that the answer is the one body, and gives it.
async fn refused(response: reqwest::Response, status: u16, code: &str) -> Value {
    assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
    assert_eq!(response.headers()["x-content-type-options"], "nosniff");
    let id = response.headers()["x-request-id"].to_str().unwrap().to_owned();
    assert_eq!(response.status().as_u16(), status);
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["error"], code, "{body}");
    assert_eq!(body["http_status"], status, "{body}");
    assert_eq!(body["request_id"], id, "{body}");
    assert!(body["message"].as_str().is_some_and(|m| !m.is_empty()), "{body}");
    assert_eq!(body.as_object().unwrap().len(), 5, "{body}");
    assert!(!body.to_string().contains(CANARY), "{body}");
    body
}

async fn post_json(server: &TestServer, path: &str, body: impl Into<reqwest::Body>) -> reqwest::Response {
    let request = server
        .client
        .post(server.url(path))
        .header(CONTENT_TYPE, "application/json");
    request.body(body).send().await.unwrap()
}

#[tokio::test]
async fn unknown_routes_and_wrong_methods() {
    let server = server().await;
    for path in ["/nope", "/api/v1/nope", "/api/v1/", "/health/", "/docs/nope.js"] {
        refused(server.get(path).await, 404, "not_found").await;
    }
    let response = server.client.delete(server.url("/t/body")).send().await.unwrap();
    assert_eq!(response.headers()["allow"], "POST");
    refused(response, 405, "bad_request").await;
    let strange = Method::from_bytes(b"BREW").unwrap();
    refused(
        server
            .client
            .request(strange, server.url("/health"))
            .send()
            .await
            .unwrap(),
        405,
        "bad_request",
    )
    .await;
    server.stop().await;
}

#[tokio::test]
async fn head_and_options_are_sane() {
    let server = server().await;
    let response = server.client.head(server.url("/health")).send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.bytes().await.unwrap().len(), 0);
    assert_eq!(
        server
            .client
            .head(server.url("/nope"))
            .send()
            .await
            .unwrap()
            .status(),
        404
    );
    let options = server
        .client
        .request(Method::OPTIONS, server.url("/health"))
        .send()
        .await
        .unwrap();
    assert_eq!(options.status(), 204);
    assert_eq!(options.headers()["allow"], "GET,HEAD");
    server.stop().await;
}

#[tokio::test]
async fn bodies_that_are_no_json() {
    let server = server().await;
    let body = refused(
        post_json(&server, "/t/body", "{\n  \"name\": nope}").await,
        400,
        "bad_request",
    )
    .await;
    assert_eq!(body["details"], json!({ "line": 2, "column": 12 }));
    for bad in ["", "{", "{\"name\":\"x\"} trailing", "nul"] {
        let body = refused(post_json(&server, "/t/body", bad).await, 400, "bad_request").await;
        assert!(body["details"]["line"].is_u64(), "{body}");
    }
    let body = refused(
        post_json(&server, "/t/body", &b"{\"name\":\"\xff\"}"[..]).await,
        400,
        "bad_request",
    )
    .await;
    assert_eq!(body["details"], json!({ "offset": 9 }));
    let deep = "[".repeat(1000);
    refused(post_json(&server, "/t/body", deep).await, 400, "validation_error").await;
    server.stop().await;
}

#[tokio::test]
async fn content_types() {
    let server = server().await;
    let send = async |content_type: Option<&str>| {
        let request = server.client.post(server.url("/t/body")).body("{\"name\":\"x\"}");
        content_type
            .map_or(request.try_clone().unwrap(), |t| request.header(CONTENT_TYPE, t))
            .send()
            .await
            .unwrap()
    };
    for bad in [
        None,
        Some("text/plain"),
        Some("application/x-www-form-urlencoded"),
        Some("text/json"),
        Some(""),
    ] {
        refused(send(bad).await, 415, "bad_request").await;
    }
    for good in [
        "application/json",
        "Application/JSON; charset=utf-8",
        "application/merge-patch+json",
    ] {
        assert_eq!(send(Some(good)).await.status(), 200, "{good}");
    }
    server.stop().await;
}

#[tokio::test]
async fn fields_are_named_and_values_not_repeated() {
    let server = server().await;
    let cases = [
        (json!({}), "name"),
        (json!({ "name": 5 }), "name"),
        (json!({ "name": "x", "limits": {} }), "limits.memory_mb"),
        (
            json!({ "name": "x", "limits": { "memory_mb": CANARY } }),
            "limits.memory_mb",
        ),
        (json!({ "name": "x", "limits": CANARY }), "limits"),
    ];
    for (sent, field) in cases {
        let body = post_json(&server, "/t/body", sent.to_string()).await;
        let body = refused(body, 400, "validation_error").await;
        assert_eq!(body["details"]["field"], field, "{body}");
    }
    let more = json!({ "name": "x", "unknown": 1 }).to_string();
    assert_eq!(
        post_json(&server, "/t/body", more).await.status(),
        200,
        "unknown fields are ignored"
    );
    server.stop().await;
}

#[tokio::test]
async fn a_body_over_the_limit() {
    let server = server().await;
    let fits = json!({ "name": "x".repeat(2000 - 11) }).to_string();
    assert_eq!(fits.len(), 2000);
    assert_eq!(post_json(&server, "/t/body", fits.clone()).await.status(), 200);
    // One byte too many, and so many that the client still sends when the refusal is made.
    for extra in [1, 5_000, 1_000_000] {
        let body = refused(
            post_json(&server, "/t/body", fits.clone() + &" ".repeat(extra)).await,
            413,
            "payload_too_large",
        );
        assert_eq!(body.await["details"]["limit_bytes"], 2000);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_sends_before_it_listens_sees_the_413() {
    const LIMIT: usize = 8 << 20;
    let flags = Flags {
        body_limit_bytes: Some(LIMIT.to_string()),
        ..Flags::default()
    };
    let server = TestServer::without_database(flags, routes()).await;
    for _ in 0..3 {
        let mut stream = TcpStream::connect(&server.address).await.unwrap();
        let length = 3 * LIMIT;
        let head = format!(
            "POST /t/body HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&vec![b' '; length]).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    }
    server.stop().await;
}

#[tokio::test]
async fn an_optional_body() {
    let server = server().await;
    assert_eq!(
        server
            .client
            .post(server.url("/t/optional"))
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap(),
        ""
    );
    assert_eq!(
        post_json(&server, "/t/optional", "").await.text().await.unwrap(),
        ""
    );
    assert_eq!(
        post_json(&server, "/t/optional", "{\"name\":\"x\"}")
            .await
            .text()
            .await
            .unwrap(),
        "x"
    );
    refused(post_json(&server, "/t/optional", "{").await, 400, "bad_request").await;
    refused(
        server
            .client
            .post(server.url("/t/optional"))
            .body("{}")
            .send()
            .await
            .unwrap(),
        415,
        "bad_request",
    )
    .await;
    server.stop().await;
}

#[tokio::test]
async fn queries_and_paths() {
    let server = server().await;
    assert_eq!(
        server
            .get("/t/query?limit=3&unknown=1")
            .await
            .text()
            .await
            .unwrap(),
        "3"
    );
    assert_eq!(server.get("/t/query").await.text().await.unwrap(), "7");
    for bad in ["limit=x", "limit=-1", "limit=", "limit=99999999999"] {
        let body = refused(
            server.get(&format!("/t/query?{bad}")).await,
            400,
            "validation_error",
        )
        .await;
        assert_eq!(body["details"]["field"], "limit", "{body}");
    }
    for bad in ["x", "%ff", "0198c0de-0000-7000-8000-00000000000"] {
        let body = refused(
            server.get(&format!("/t/path/{bad}")).await,
            400,
            "validation_error",
        )
        .await;
        assert_eq!(body["details"]["field"], "id", "{body}");
    }
    assert_eq!(
        server
            .get("/t/path/0198c0de-0000-7000-8000-000000000001")
            .await
            .status(),
        200
    );
    server.stop().await;
}

#[tokio::test]
async fn our_own_faults_say_nothing_of_their_cause() {
    let server = server().await;
    refused(server.get("/t/panic").await, 500, "internal_error").await;
    refused(server.get("/t/internal").await, 500, "internal_error").await;
    refused(server.get("/t/bare").await, 418, "bad_request").await;
    for (path, code) in [
        ("/t/engine", "runtime_unavailable"),
        ("/t/database", "internal_error"),
    ] {
        let response = server.get(path).await;
        assert!(response.headers().contains_key("retry-after"), "{path}");
        refused(response, 503, code).await;
    }
    assert_eq!(
        server.get("/health").await.status(),
        200,
        "the server lives on after a panic"
    );
    server.stop().await;
}

#[tokio::test]
async fn late_answers_and_late_bodies() {
    // A request that is late while the database is away is late for that.
    let away = server().await;
    refused(away.get("/t/slow").await, 503, "internal_error").await;
    away.stop().await;
    let database = TestDatabase::create().await;
    let server = TestServer::start(database.pool().await, flags(), routes()).await;
    refused(server.get("/t/slow").await, 504, "internal_error").await;
    let mut stream = TcpStream::connect(&server.address).await.unwrap();
    let head =
        "POST /t/body HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 2000];
    let read = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut answer))
        .await
        .unwrap()
        .unwrap();
    let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
    assert!(
        answer.starts_with("HTTP/1.1 408 ") && answer.contains("\"error\":\"bad_request\""),
        "{answer}"
    );
    drop(stream);
    server.stop().await;
}

#[tokio::test]
async fn request_ids_are_kept_if_sane() {
    let server = server().await;
    let send = async |id: &str| {
        let response = server
            .client
            .get(server.url("/nope"))
            .header("X-Request-Id", id)
            .send()
            .await
            .unwrap();
        refused(response, 404, "not_found").await["request_id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(send("mine-1").await, "mine-1");
    assert_ne!(send("not mine").await, "not mine");
    assert_eq!(send(&"x".repeat(65)).await.len(), 36);
    server.stop().await;
}
