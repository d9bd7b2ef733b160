//! `GET /ready`: can the service do its work, and if not, which part is away?

use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use crate::edge::OwnBody;
use crate::state::AppState;

/// What one check may take.
const LIMIT: Duration = Duration::from_secs(2);

/// Readiness, by dependency.
#[derive(Debug, Serialize, ToSchema)]
pub struct Readiness {
    status: ReadyStatus,
    dependencies: Dependencies,
}

#[derive(Debug, Serialize, ToSchema)]
struct Dependencies {
    postgres: Postgres,
    docker: Docker,
    journal: Journal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum ReadyStatus {
    Ok,
    Unavailable,
}

#[derive(Debug, Serialize, ToSchema)]
struct Postgres {
    status: ReadyStatus,
    /// Of one query, in milliseconds.
    latency_ms: Option<f64>,
    error: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
struct Docker {
    status: ReadyStatus,
    /// Of the engine.
    version: Option<String>,
    /// The API version agreed on.
    api_version: Option<String>,
    error: Option<String>,
}

/// Whether what happens is stored. Agents are held back while it is not.
#[derive(Debug, Serialize, ToSchema)]
struct Journal {
    status: ReadyStatus,
    /// Since when something waits to be stored.
    waiting_since: Option<DateTime<Utc>>,
    /// Why.
    error: Option<String>,
}

/// Readiness
#[utoipa::path(
    get, path = "/ready", tag = "service",
    responses(
        (status = 200, description = "Everything answers", body = Readiness),
        (status = 503, description = "Something is away", body = Readiness),
    )
)]
pub async fn ready(State(state): State<AppState>) -> Response {
    let (postgres, docker) = tokio::join!(check_postgres(&state), check_docker(&state));
    let journal = check_journal(&state);
    let parts = [postgres.status, docker.status, journal.status];
    let good = parts.iter().all(|status| *status == ReadyStatus::Ok) && !state.stopping.is_cancelled();
    let (status, http_status) = if good {
        (ReadyStatus::Ok, StatusCode::OK)
    } else {
        (ReadyStatus::Unavailable, StatusCode::SERVICE_UNAVAILABLE)
    };
    let body = Json(Readiness {
        status,
        dependencies: Dependencies {
            postgres,
            docker,
            journal,
        },
    });
    let mut response = (http_status, body).into_response();
    response.extensions_mut().insert(OwnBody);
    response
}

fn late<E>(_: E) -> String {
    format!("no answer within {} s", LIMIT.as_secs())
}

async fn check_postgres(state: &AppState) -> Postgres {
    let started = Instant::now();
    let query = sqlx::query_scalar::<_, bool>("SELECT current_setting('transaction_read_only')::bool")
        .fetch_one(&state.pool);
    let result = tokio::time::timeout(LIMIT, query).await.map_err(late);
    let answer = result.and_then(|answer| answer.map_err(|error| error.to_string()));
    match answer.and_then(|read_only| takes_writes(!read_only)) {
        Ok(()) => {
            let latency_ms = Some(started.elapsed().as_micros() as f64 / 1e3);
            Postgres {
                status: ReadyStatus::Ok,
                latency_ms,
                error: None,
            }
        }
        Err(error) => Postgres {
            status: ReadyStatus::Unavailable,
            latency_ms: None,
            error: Some(error),
        },
    }
}

/// A standby, or a server that the operator has closed to writes, answers all the same.
fn takes_writes(it_does: bool) -> Result<(), String> {
    it_does
        .then_some(())
        .ok_or_else(|| "it takes no writes".to_owned())
}

fn check_journal(state: &AppState) -> Journal {
    let trouble = state.orchestrator.journal_trouble();
    Journal {
        status: if trouble.is_none() {
            ReadyStatus::Ok
        } else {
            ReadyStatus::Unavailable
        },
        waiting_since: trouble.as_ref().map(|trouble| trouble.since),
        error: trouble.map(|trouble| trouble.error),
    }
}

async fn check_docker(state: &AppState) -> Docker {
    let result = tokio::time::timeout(LIMIT, state.runtime.ping())
        .await
        .map_err(late);
    match result.and_then(|answer| answer.map_err(|error| error.to_string())) {
        Ok(engine) => Docker {
            status: ReadyStatus::Ok,
            version: Some(engine.version),
            api_version: Some(engine.api_version),
            error: None,
        },
        Err(error) => Docker {
            status: ReadyStatus::Unavailable,
            version: None,
            api_version: None,
            error: Some(error),
        },
    }
}
