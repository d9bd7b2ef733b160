//! Paging by age: newest first, from a cursor that names the last row seen.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};

/// One page of a list.
#[derive(Debug, Clone)]
pub struct Page<T> {
    /// The rows.
    pub items: Vec<T>,
    /// How many rows match in all.
    pub total: i64,
    /// Where the next page begins; none on the last.
    pub next: Option<Cursor>,
}

/// The position of a row in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    /// When the row was made.
    pub created_at: DateTime<Utc>,
    /// Its key.
    pub key: String,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}.{}", self.created_at.timestamp_micros(), self.key)
    }
}

/// A string that is no cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a cursor of this list")]
pub struct InvalidCursor;

impl FromStr for Cursor {
    type Err = InvalidCursor;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let (micros, key) = s.split_once('.').ok_or(InvalidCursor)?;
        // Rows are made in our time, and PostgreSQL's timestamps do not reach as far back as a cursor could.
        let micros = i64::from_str_radix(micros, 16).ok().filter(|micros| *micros >= 0);
        let micros = micros.ok_or(InvalidCursor)?;
        let created_at = DateTime::from_timestamp_micros(micros).ok_or(InvalidCursor)?;
        if key.is_empty() || key.len() > 128 || key.contains('\0') {
            return Err(InvalidCursor);
        }
        Ok(Self {
            created_at,
            key: key.to_owned(),
        })
    }
}

impl<T> Page<T> {
    /// Makes a page out of up to `limit + 1` rows: the one too many tells that there is more.
    pub(crate) fn cut(mut items: Vec<T>, limit: i64, total: i64, cursor: impl Fn(&T) -> Cursor) -> Self {
        let limit = usize::try_from(limit).unwrap_or(0);
        let more = items.len() > limit;
        items.truncate(limit);
        let next = if more { items.last().map(cursor) } else { None };
        Self { items, total, next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_round_trip() {
        let cursor = Cursor {
            created_at: DateTime::from_timestamp_micros(1_764_000_000_123_456).unwrap(),
            key: "a.b:c".to_owned(),
        };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        for bad in [
            "",
            "x",
            "zz.a",
            "10.",
            "7fffffffffffffff.a",
            "-7000000000000000.a",
        ] {
            assert_eq!(bad.parse::<Cursor>(), Err(InvalidCursor), "{bad}");
        }
    }
}
