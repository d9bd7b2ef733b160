//! `GET /api/v1/agents/{id}/logs`

use axum::Json;
use axum::extract::State;
use chrono::{DateTime, Utc};
use kandev_domain::{LogLevel, LogStream};
use kandev_store::journal::{self, LogQuery};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::edge::extract::{ApiPath, ApiQuery};
use crate::error::{ApiError, ApiResult, ErrorCode};
use crate::routes::page::names;
use crate::state::AppState;

const DEFAULT_TAIL: usize = 100;
const MAX_LINES: usize = 10_000;

/// Which lines.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct LogParams {
    /// The last so many, at most 10000; 100 if absent. With `after`, the first so many after it.
    tail: Option<usize>,
    /// Another name of `tail`.
    limit: Option<usize>,
    /// Only later lines than the one with this `seq`.
    after: Option<i64>,
    /// `next_cursor` of the page before; the same as `after`.
    cursor: Option<i64>,
    /// Only at or after this time, RFC 3339.
    since: Option<DateTime<Utc>>,
    /// Only before this time, RFC 3339.
    until: Option<DateTime<Utc>>,
    /// Only from these: `stdout`, `stderr`, `system`, separated by commas.
    stream: Option<String>,
    /// Only with these levels: `debug`, `info`, `warn`, `error`, separated by commas.
    level: Option<String>,
    /// Only lines that contain this.
    q: Option<String>,
    /// Not available yet.
    follow: Option<bool>,
}

/// Lines of log, oldest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct LogPage {
    logs: Vec<LogEntry>,
    /// How many match the filters in all.
    total: i64,
    /// For `after`, if there are more.
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
struct LogEntry {
    /// The number of its event.
    seq: i64,
    timestamp: DateTime<Utc>,
    stream: LogStream,
    level: LogLevel,
    message: String,
}

/// Logs of an instance
#[utoipa::path(
    get, path = "/api/v1/agents/{id}/logs", tag = "agents",
    params(("id" = String, Path, description = "The instance"), LogParams),
    responses((status = 200, body = LogPage))
)]
pub async fn logs(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    ApiQuery(params): ApiQuery<LogParams>,
) -> ApiResult<Json<LogPage>> {
    let instance = super::instance(&state, &id).await?;
    if params.follow == Some(true) {
        return Err(ApiError::new(
            ErrorCode::UnsupportedCapability,
            "logs cannot be followed yet; poll with 'after'",
        ));
    }
    let limit = params.tail.or(params.limit).unwrap_or(DEFAULT_TAIL);
    if limit > MAX_LINES {
        return Err(ApiError::validation("tail", "must be at most 10000"));
    }
    let query = LogQuery {
        after: params.after.or(params.cursor),
        since: params.since,
        until: params.until,
        streams: names("stream", params.stream.as_deref())?,
        levels: names("level", params.level.as_deref())?,
        contains: params.q.filter(|q| !q.is_empty()),
        limit,
    };
    let page = journal::logs(&state.pool, instance.id, &query).await?;
    let entry = |line: journal::LogLine| LogEntry {
        seq: line.seq,
        timestamp: line.at,
        stream: line.stream,
        level: line.level,
        message: line.message,
    };
    Ok(Json(LogPage {
        logs: page.lines.into_iter().map(entry).collect(),
        total: page.total,
        next_cursor: page.next_after.map(|seq| seq.to_string()),
    }))
}
