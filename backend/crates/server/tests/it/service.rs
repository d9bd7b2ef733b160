//! Health, readiness, metrics, documents.

use std::time::{Duration, Instant};

use kandev::config::Flags;
use serde_json::Value;
use utoipa_axum::router::OpenApiRouter;

use crate::support::{TestDatabase, TestServer};

#[tokio::test]
async fn ready_follows_the_engine() {
    let database = TestDatabase::create().await;
    let server = TestServer::start(database.pool().await, Flags::default(), OpenApiRouter::new()).await;
    let ready = async || {
        let response = server.get("/ready").await;
        (
            response.status().as_u16(),
            response.json::<Value>().await.unwrap(),
        )
    };
    let (status, body) = ready().await;
    assert_eq!((status, &body["status"]), (200, &Value::from("ok")), "{body}");
    assert_eq!(body["dependencies"]["docker"]["version"], "1.2.3");
    assert_eq!(body["dependencies"]["docker"]["api_version"], "1.41");
    assert!(
        body["dependencies"]["postgres"]["latency_ms"]
            .as_f64()
            .is_some_and(|ms| ms > 0.0),
        "{body}"
    );

    server.runtime.go_away();
    let (status, body) = ready().await;
    assert_eq!(
        (status, &body["status"]),
        (503, &Value::from("unavailable")),
        "{body}"
    );
    assert_eq!(body["dependencies"]["postgres"]["status"], "ok");
    assert!(
        body["dependencies"]["docker"]["error"]
            .as_str()
            .unwrap()
            .contains("away"),
        "{body}"
    );

    server.runtime.hang();
    let started = Instant::now();
    let (status, body) = ready().await;
    assert_eq!(status, 503, "{body}");
    assert!(started.elapsed() < Duration::from_secs(20), "a check is bounded");

    server.runtime.come_back();
    assert_eq!(ready().await.0, 200);
    server.stop().await;
}

#[tokio::test]
async fn without_a_database_it_is_alive_but_not_ready() {
    let server = TestServer::without_database(Flags::default(), OpenApiRouter::new()).await;
    let health: Value = server.get("/health").await.json().await.unwrap();
    assert_eq!(health["status"], "ok");
    assert_eq!(health["version"], env!("CARGO_PKG_VERSION"));
    let response = server.get("/ready").await;
    assert_eq!(response.status(), 503);
    let body: Value = response.json().await.unwrap();
    assert_eq!(
        body["dependencies"]["postgres"]["status"], "unavailable",
        "{body}"
    );
    assert_eq!(body["dependencies"]["docker"]["status"], "ok", "{body}");
    server.stop().await;
}

#[tokio::test]
async fn metrics_count_by_route_and_not_by_path() {
    let server = TestServer::without_database(Flags::default(), OpenApiRouter::new()).await;
    for path in ["/health", "/nope/1", "/nope/2"] {
        server.get(path).await;
    }
    let response = server.get("/metrics").await;
    assert!(
        response.headers()["content-type"]
            .to_str()
            .unwrap()
            .starts_with("text/plain; version=0.0.4")
    );
    let text = response.text().await.unwrap();
    for line in [
        "kandev_http_requests_total{method=\"GET\",route=\"/health\",status=\"200\"} 1",
        "kandev_http_requests_total{method=\"GET\",route=\"(none)\",status=\"404\"} 2",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("/nope"), "{text}");
    server.stop().await;
}

#[tokio::test]
async fn the_human_page_needs_no_internet() {
    let server = TestServer::without_database(Flags::default(), OpenApiRouter::new()).await;
    let page = server.get("/docs").await;
    assert_eq!(page.url().path(), "/docs/", "redirected");
    let html = page.text().await.unwrap();
    assert!(!html.contains("//"), "a foreign address: {html}");
    let assets: Vec<_> = html
        .split('"')
        .filter(|part| [".js", ".css"].iter().any(|kind| part.ends_with(kind)))
        .map(str::to_owned)
        .collect();
    assert!(assets.len() >= 4, "{assets:?}");
    for asset in &assets {
        let response = server
            .get(&format!("/docs/{}", asset.trim_start_matches("./")))
            .await;
        assert_eq!(response.status(), 200, "{asset}");
    }
    let start = server
        .get("/docs/swagger-initializer.js")
        .await
        .text()
        .await
        .unwrap();
    assert!(
        start.contains("/api/v1/openapi.json") && start.contains("\"validatorUrl\": \"none\""),
        "{start}"
    );
    server.stop().await;
}

#[tokio::test]
async fn the_served_document_is_openapi_3_1_with_the_error_body_everywhere() {
    let server = TestServer::without_database(Flags::default(), OpenApiRouter::new()).await;
    let document: Value = server.get("/api/v1/openapi.json").await.json().await.unwrap();
    assert!(
        document["openapi"].as_str().unwrap().starts_with("3.1"),
        "{}",
        document["openapi"]
    );
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let schema = &operation["responses"]["default"]["content"]["application/json"]["schema"]["$ref"];
            assert_eq!(schema, "#/components/schemas/ErrorBody", "{method} {path}");
        }
    }
    let landing: Value = server.get("/").await.json().await.unwrap();
    for link in ["docs", "openapi", "health", "ready", "metrics"] {
        let response = server.get(landing[link].as_str().unwrap()).await;
        assert!(!response.status().is_client_error(), "{link}");
    }
    server.stop().await;
}

#[test]
fn the_committed_document_is_up_to_date() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/openapi.json");
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    let generated = kandev::routes::openapi::document_json();
    assert!(
        committed == generated,
        "docs/openapi.json is not what the routes say: run `make openapi` and commit it"
    );
}
