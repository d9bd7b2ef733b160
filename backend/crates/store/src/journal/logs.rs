//! Reading the log lines among the events.

use std::borrow::Cow;

use chrono::{DateTime, Utc};
use kandev_domain::{InstanceId, LogLevel, LogStream};
use sqlx::PgPool;

use super::read::{BYTES_AT_ONCE, JournalRow, MAX_ROWS};
use crate::error::Result;
use crate::record::{Data, Record};

/// Which log lines to read.
#[derive(Debug, Clone, Default)]
pub struct LogQuery {
    /// Only later ones than this event.
    pub after: Option<i64>,
    /// Only those at or after this time.
    pub since: Option<DateTime<Utc>>,
    /// Only those before this time.
    pub until: Option<DateTime<Utc>>,
    /// Only from these streams; all when empty.
    pub streams: Vec<LogStream>,
    /// Only these levels; all when empty.
    pub levels: Vec<LogLevel>,
    /// Only those that contain this.
    pub contains: Option<String>,
    /// At most so many: the last ones, or with `after` the first ones.
    pub limit: usize,
}

/// A log line.
#[derive(Debug, Clone)]
pub struct LogLine {
    /// The number of its event.
    pub seq: i64,
    /// When it was seen.
    pub at: DateTime<Utc>,
    /// Where it came from.
    pub stream: LogStream,
    /// How bad it is.
    pub level: LogLevel,
    /// What it says.
    pub message: String,
}

/// Log lines in order.
#[derive(Debug, Clone)]
pub struct LogPage {
    /// The lines.
    pub lines: Vec<LogLine>,
    /// How many lines match in all, whatever `after` and the limit.
    pub total: i64,
    /// The number after which the next page begins; none if this one reached the end.
    pub next_after: Option<i64>,
}

impl LogQuery {
    fn matches(&self, record: &Record) -> Option<(LogStream, LogLevel)> {
        let Data::Log { stream, level } = record.data else {
            return None;
        };
        self.wants(record.at, stream, level, || record.message())
            .then_some((stream, level))
    }

    /// True if a line passes the filters, whatever `after` and the limit. Its message is asked for only if it matters.
    pub fn wants<'a>(
        &self,
        at: DateTime<Utc>,
        stream: LogStream,
        level: LogLevel,
        message: impl FnOnce() -> Cow<'a, str>,
    ) -> bool {
        (self.streams.is_empty() || self.streams.contains(&stream))
            && (self.levels.is_empty() || self.levels.contains(&level))
            && self.since.is_none_or(|since| at >= since)
            && self.until.is_none_or(|until| at < until)
            && self.contains.as_deref().is_none_or(|q| message().contains(q))
    }

    /// True if the counts kept with each row are enough to know the total.
    const fn counts_suffice(&self) -> bool {
        self.since.is_none() && self.until.is_none() && self.levels.is_empty() && self.contains.is_none()
    }
}

/// Reads log lines.
pub async fn logs(pool: &PgPool, id: InstanceId, query: &LogQuery) -> Result<LogPage> {
    if query.counts_suffice() {
        counted_logs(pool, id, query).await
    } else {
        scanned_logs(pool, id, query).await
    }
}

fn line_of(seq: i64, record: &Record, stream: LogStream, level: LogLevel) -> LogLine {
    LogLine {
        seq,
        at: record.at,
        stream,
        level,
        message: record.message().into_owned(),
    }
}

/// Which streams count, as the statements take them.
#[derive(Debug, Clone, Copy)]
struct Streams {
    stdout: bool,
    stderr: bool,
    system: bool,
}

impl Streams {
    fn of(query: &LogQuery) -> Self {
        let wanted = |stream| query.streams.is_empty() || query.streams.contains(&stream);
        Self {
            stdout: wanted(LogStream::Stdout),
            stderr: wanted(LogStream::Stderr),
            system: wanted(LogStream::System),
        }
    }
}

/// Reads only the rows that the answer needs, from the end or from `after`.
async fn counted_logs(pool: &PgPool, id: InstanceId, query: &LogQuery) -> Result<LogPage> {
    let streams = Streams::of(query);
    let total: i64 = sqlx::query_scalar(
        "SELECT coalesce(sum(CASE WHEN $2 THEN log_stdout ELSE 0 END + CASE WHEN $3 THEN log_stderr ELSE 0 END \
         + CASE WHEN $4 THEN log_system ELSE 0 END), 0)::bigint FROM journal \
         WHERE instance_id = $1 AND log_stdout + log_stderr + log_system > 0",
    )
    .bind(id.0)
    .bind(streams.stdout)
    .bind(streams.stderr)
    .bind(streams.system)
    .fetch_one(pool)
    .await?;
    let backwards = query.after.is_none();
    let mut edge = query.after.unwrap_or(i64::MAX);
    let mut lines = Vec::new();
    while lines.len() <= query.limit {
        let missing = query.limit + 1 - lines.len();
        let rows = log_rows(pool, id, (edge, backwards), streams, missing).await?;
        if rows.is_empty() {
            break;
        }
        for row in rows {
            edge = if backwards { row.first_seq } else { row.last_seq };
            let mut found: Vec<_> = row
                .records(id)?
                .iter()
                .filter(|(seq, _)| query.after.is_none_or(|after| *seq > after))
                .filter_map(|(seq, record)| query.matches(record).map(|(s, l)| line_of(*seq, record, s, l)))
                .collect();
            if backwards {
                found.reverse();
            }
            lines.append(&mut found);
        }
    }
    let more = lines.len() > query.limit;
    lines.truncate(query.limit);
    if backwards {
        lines.reverse();
    }
    // A tail reaches the end by what it is.
    let next_after = if more && !backwards {
        lines.last().map(|l| l.seq)
    } else {
        None
    };
    Ok(LogPage {
        lines,
        total,
        next_after,
    })
}

/// Reads every row with logs, since the total needs each line.
async fn scanned_logs(pool: &PgPool, id: InstanceId, query: &LogQuery) -> Result<LogPage> {
    let mut kept = std::collections::VecDeque::new();
    let mut total = 0;
    let mut edge = 0;
    let mut more = false;
    let streams = Streams::of(query);
    loop {
        let rows = log_rows(pool, id, (edge, false), streams, usize::MAX).await?;
        let Some(last) = rows.last() else { break };
        edge = last.last_seq;
        for row in &rows {
            for (seq, record) in row.records(id)? {
                let Some((stream, level)) = query.matches(&record) else {
                    continue;
                };
                total += 1;
                match query.after {
                    Some(after) if seq <= after => {}
                    Some(_) if kept.len() >= query.limit => more = true,
                    None if query.limit == 0 => {}
                    None if kept.len() >= query.limit => {
                        kept.pop_front();
                        kept.push_back(line_of(seq, &record, stream, level));
                    }
                    _ => kept.push_back(line_of(seq, &record, stream, level)),
                }
            }
        }
    }
    let lines: Vec<LogLine> = kept.into();
    let next_after = if more { lines.last().map(|l| l.seq) } else { None };
    Ok(LogPage {
        lines,
        total,
        next_after,
    })
}

/// The next rows with lines of these streams before or behind `edge`: as few as have the wanted lines, unless some of the
/// first row's lie on the other side.
async fn log_rows(
    pool: &PgPool,
    id: InstanceId,
    (edge, backwards): (i64, bool),
    streams: Streams,
    wanted: usize,
) -> Result<Vec<JournalRow>> {
    let (side, order) = if backwards {
        ("first_seq < $2", "DESC")
    } else {
        // The row that holds what comes next is the last one that begins at or before `edge`, or one behind it.
        (
            "last_seq > $2 AND first_seq >= \
             coalesce((SELECT max(first_seq) FROM journal WHERE instance_id = $1 AND first_seq <= $2), 0)",
            "ASC",
        )
    };
    let sql = format!(
        "SELECT first_seq, last_seq, body FROM (\
           SELECT *, sum(octet_length(body)) OVER before - octet_length(body) AS bytes_before, \
             sum(lines) OVER before - lines AS lines_before FROM (\
             SELECT first_seq, last_seq, body, lines FROM journal, LATERAL (SELECT CASE WHEN $5 THEN log_stdout ELSE 0 END \
               + CASE WHEN $6 THEN log_stderr ELSE 0 END + CASE WHEN $7 THEN log_system ELSE 0 END AS lines) AS counted \
             WHERE instance_id = $1 AND log_stdout + log_stderr + log_system > 0 AND {side} AND lines > 0 \
             ORDER BY first_seq {order} LIMIT $3) AS rows \
           WINDOW before AS (ORDER BY first_seq {order})) AS sized \
         WHERE bytes_before < $4 AND lines_before < $8 ORDER BY first_seq {order}"
    );
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(id.0)
        .bind(edge)
        .bind(MAX_ROWS.min(wanted) as i64)
        .bind(BYTES_AT_ONCE)
        .bind(streams.stdout)
        .bind(streams.stderr)
        .bind(streams.system)
        .bind(i64::try_from(wanted).unwrap_or(i64::MAX))
        .fetch_all(pool)
        .await?;
    rows.iter().map(JournalRow::try_from).collect()
}
