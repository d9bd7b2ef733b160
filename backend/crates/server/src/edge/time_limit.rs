//! How long a request may take.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::{Extension, Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::{ApiError, ErrorCode};
use crate::state::AppState;

/// How long the database may take to show that it is there.
const DATABASE_LIMIT: Duration = Duration::from_secs(1);

/// Tells whether a request still waits for its body, so that a late one is blamed on the right side.
#[derive(Debug, Clone)]
pub struct BodyClock {
    pub(super) limit: Duration,
    reading: Arc<AtomicBool>,
}

impl BodyClock {
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            reading: Arc::new(AtomicBool::new(false)),
        }
    }

    pub(super) fn set_reading(&self, reading: bool) {
        self.reading.store(reading, Ordering::Relaxed);
    }
}

/// Middleware for routes that do not wait by design: 408 if the body is late, 503 if the database is, 504 if
/// the answer is.
pub async fn limit_time(
    State(state): State<AppState>,
    Extension(clock): Extension<BodyClock>,
    request: Request,
    next: Next,
) -> Response {
    match tokio::time::timeout(state.config.request_timeout, next.run(request)).await {
        Ok(response) => response,
        Err(_) if clock.reading.load(Ordering::Relaxed) => late_body().into_response(),
        Err(_) if !database_answers(&state).await => {
            let cause = "it did not answer in the time of the request";
            ApiError::database_unavailable(cause).into_response()
        }
        Err(_) => ApiError::new(
            ErrorCode::InternalError,
            "the request took too long and was given up",
        )
        .status(StatusCode::GATEWAY_TIMEOUT)
        .into_response(),
    }
}

/// A frozen database hangs in the middle of a statement, which is then the reason why the answer is late.
async fn database_answers(state: &AppState) -> bool {
    let query = sqlx::query("SELECT 1").execute(&state.pool);
    tokio::time::timeout(DATABASE_LIMIT, query)
        .await
        .is_ok_and(|answer| answer.is_ok())
}

pub(super) fn late_body() -> ApiError {
    ApiError::bad_request("the request body did not arrive in time").status(StatusCode::REQUEST_TIMEOUT)
}
