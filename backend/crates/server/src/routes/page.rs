//! What all lists have in common.

use std::str::FromStr;

use kandev_domain::status::UnknownName;
use kandev_store::Cursor;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::error::{ApiError, ApiResult};

const DEFAULT_LIMIT: i64 = 50;
const MAX_LIMIT: i64 = 500;

/// Which page of a list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Paging {
    /// At most so many; 1 to 500, 50 if absent.
    #[param(minimum = 1, maximum = 500)]
    pub limit: Option<i64>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

impl Paging {
    /// Checks both. The list's name is in its cursors, so that none is taken for that of another list.
    pub fn resolve(&self, list: &str) -> ApiResult<(i64, Option<Cursor>)> {
        let limit = self.limit.unwrap_or(DEFAULT_LIMIT);
        if !(1..=MAX_LIMIT).contains(&limit) {
            return Err(ApiError::validation("limit", "must be 1 to 500"));
        }
        let cursor = self.cursor.as_deref().filter(|c| !c.is_empty());
        let own = |text: &str| text.strip_prefix(list)?.strip_prefix('.')?.parse().ok();
        let cursor = cursor.map(|text| own(text).ok_or_else(foreign_cursor));
        Ok((limit, cursor.transpose()?))
    }
}

/// Where the list's next page begins, as [`Paging::resolve`] takes it.
pub fn next_cursor(list: &str, next: Option<Cursor>) -> Option<String> {
    next.map(|cursor| format!("{list}.{cursor}"))
}

/// The refusal of a cursor that the list did not give.
pub fn foreign_cursor() -> ApiError {
    ApiError::validation("cursor", "is no cursor of this list")
}

/// Reads a comma-separated list of names.
pub fn names<T: FromStr<Err = UnknownName>>(field: &'static str, text: Option<&str>) -> ApiResult<Vec<T>> {
    text.unwrap_or_default()
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(|name| {
            name.parse()
                .map_err(|e: UnknownName| ApiError::validation(field, &e.wanted()))
        })
        .collect()
}
