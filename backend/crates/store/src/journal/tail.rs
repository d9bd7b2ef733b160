//! The last lines of a container's output that are stored.

use chrono::{DateTime, Utc};
use kandev_domain::InstanceId;
use sqlx::PgPool;

use super::PipeLines;
use super::read::JournalRow;
use crate::error::Result;
use crate::record::Source;

/// How many lines of each pipe are read: as many as an engine may hold of one, in lines of ordinary length.
const LINES: usize = 4096;
/// How many rows are fetched at once, and how many bytes of them are looked through at most.
const ROWS: i64 = 4;
const LOOKED_THROUGH: usize = 64 << 20;

/// The last lines of each pipe, oldest first. Lines that were counted and not stored are left out.
#[derive(Debug, Clone, Default)]
pub struct LastLines {
    /// How many were counted.
    pub lines: PipeLines,
    /// Of stdout.
    pub stdout: Vec<StoredLine>,
    /// Of stderr.
    pub stderr: Vec<StoredLine>,
}

/// A line as it is stored.
#[derive(Debug, Clone)]
pub struct StoredLine {
    /// Its number within its pipe, from 1.
    pub number: u64,
    /// When it was seen.
    pub at: DateTime<Utc>,
    /// What it is known again by.
    pub mark: u64,
}

/// Reads up to 4096 lines of each pipe, as far as the last 64 MiB of the history have them. `mark` makes of a line what it is
/// known again by.
pub async fn last_lines(
    pool: &PgPool,
    id: InstanceId,
    lines: PipeLines,
    mark: fn(&[u8]) -> u64,
) -> Result<LastLines> {
    let mut last = LastLines {
        lines,
        ..LastLines::default()
    };
    let mut before = i64::MAX;
    let mut bytes = 0;
    while !(is_enough(&last.stdout, lines.stdout) && is_enough(&last.stderr, lines.stderr)) {
        let rows = sqlx::query(
            "SELECT first_seq, last_seq, body FROM journal WHERE instance_id = $1 AND first_seq < $2 \
             ORDER BY first_seq DESC LIMIT $3",
        )
        .bind(id.0)
        .bind(before)
        .bind(ROWS)
        .fetch_all(pool)
        .await?;
        if rows.is_empty() || bytes > LOOKED_THROUGH {
            break;
        }
        for row in &rows {
            let row = JournalRow::try_from(row)?;
            before = row.first_seq;
            bytes += row.body.len();
            for (_, record) in row.records(id)?.into_iter().rev() {
                let (pipe, number) = match record.source {
                    Some(Source::Stdout(n)) if n <= lines.stdout => (&mut last.stdout, n),
                    Some(Source::Stderr(n)) if n <= lines.stderr => (&mut last.stderr, n),
                    _ => continue,
                };
                if pipe.len() < LINES {
                    pipe.push(StoredLine {
                        number,
                        at: record.at,
                        mark: mark(&record.line),
                    });
                }
            }
        }
    }
    last.stdout.reverse();
    last.stderr.reverse();
    Ok(last)
}

fn is_enough(newest_first: &[StoredLine], lines: u64) -> bool {
    lines == 0 || newest_first.len() >= LINES || newest_first.last().is_some_and(|line| line.number == 1)
}
