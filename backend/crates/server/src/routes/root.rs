//! `GET /`: where to look.

use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;

/// Links for someone who found the port.
#[derive(Debug, Serialize, ToSchema)]
pub struct Landing {
    /// `kandev`.
    name: &'static str,
    /// Of the running build.
    version: &'static str,
    /// The API for people.
    docs: &'static str,
    /// The API for programs.
    openapi: &'static str,
    /// Liveness.
    health: &'static str,
    /// Readiness.
    ready: &'static str,
    /// Prometheus.
    metrics: &'static str,
}

/// Where to look
#[utoipa::path(get, path = "/", tag = "service", responses((status = 200, body = Landing)))]
pub async fn root() -> Json<Landing> {
    Json(Landing {
        name: "kandev",
        version: env!("CARGO_PKG_VERSION"),
        docs: "/docs/",
        openapi: "/api/v1/openapi.json",
        health: "/health",
        ready: "/ready",
        metrics: "/metrics",
    })
}
