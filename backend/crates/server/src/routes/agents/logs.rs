//! `GET /api/v1/agents/{id}/logs`

use std::borrow::Cow;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use kandev_domain::{EventKind, InstanceId, LogLevel, LogStream};
use kandev_store::journal::{self, LogLine, LogQuery};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::stream::{self, Follower, Start};
use crate::edge::extract::{ApiPath, ApiQuery};
use crate::error::{ApiError, ApiResult};
use crate::routes::page::names;
use crate::routes::sse;
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
    /// As a stream of server-sent events (`id` the `seq`, `event` `log`, `data` the line): first these lines, or with
    /// `Last-Event-ID` those after it, then what comes, until the instance has ended.
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

/// A line as its event has it.
#[derive(Deserialize)]
struct LogData<'a> {
    stream: LogStream,
    level: LogLevel,
    #[serde(borrow)]
    message: Cow<'a, str>,
}

impl From<LogLine> for LogEntry {
    fn from(line: LogLine) -> Self {
        Self {
            seq: line.seq,
            timestamp: line.at,
            stream: line.stream,
            level: line.level,
            message: line.message,
        }
    }
}

/// Logs of an instance
#[utoipa::path(
    get, path = "/api/v1/agents/{id}/logs", tag = "agents",
    params(
        ("id" = String, Path, description = "The instance"),
        LogParams,
        ("Last-Event-ID" = Option<i64>, Header, description = "With `follow`: only lines after this `seq`"),
    ),
    responses(
        (status = 200, content((LogPage = "application/json"), (String = "text/event-stream"))),
        (status = 204, description = "The instance has ended, and `Last-Event-ID` is its last event"),
    )
)]
pub async fn logs(
    State(state): State<AppState>,
    ApiPath(id): ApiPath<String>,
    headers: HeaderMap,
    ApiQuery(params): ApiQuery<LogParams>,
) -> ApiResult<Response> {
    let id = super::instance(&state, &id).await?.id;
    let (field, limit) = match (params.tail, params.limit) {
        (None, Some(limit)) => ("limit", limit),
        (tail, _) => ("tail", tail.unwrap_or(DEFAULT_TAIL)),
    };
    if limit > MAX_LINES {
        return Err(ApiError::validation(field, "must be at most 10000"));
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
    if params.follow == Some(true) {
        return follow(state, id, &headers, query).await;
    }
    let page = journal::logs(&state.pool, id, &query).await?;
    let page = LogPage {
        logs: page.lines.into_iter().map(Into::into).collect(),
        total: page.total,
        next_cursor: page.next_after.map(|seq| seq.to_string()),
    };
    Ok(Json(page).into_response())
}

async fn follow(
    state: AppState,
    id: InstanceId,
    headers: &HeaderMap,
    mut query: LogQuery,
) -> ApiResult<Response> {
    let back = Start::of_header(headers)?;
    let said = query.after.map(|after| Start {
        after,
        said_by: "after",
    });
    let start = back.or(said);
    let standing = stream::standing(&state, id).await?;
    let (after, tail) = if let Some(start) = start {
        start.check(standing)?;
        (start.after, Vec::new())
    } else {
        // Lines that came since are in the tail, or before it.
        let tail = journal::logs(&state.pool, id, &query).await?.lines;
        let last = tail.last().map_or(0, |line| line.seq);
        (standing.last.max(last), tail)
    };
    if back.is_some() && stream::is_over(standing, after) {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let mut first = Vec::new();
    for line in tail {
        let entry = LogEntry::from(line);
        sse::frame(&mut first, entry.seq, "log", &entry);
    }
    query.after = None;
    let follower = Follower::new(state, id, vec![EventKind::Log], after);
    Ok(sse::sse(follower, first, move |out, event| {
        let Ok(line) = serde_json::from_str::<LogData<'_>>(event.data.get()) else {
            return;
        };
        let (stream, level) = (line.stream, line.level);
        if query.wants(event.timestamp, stream, level, || line.message.as_ref().into()) {
            let entry = LogEntry {
                seq: event.seq,
                timestamp: event.timestamp,
                stream,
                level,
                message: line.message.into_owned(),
            };
            sse::frame(out, entry.seq, "log", &entry);
        }
    }))
}
