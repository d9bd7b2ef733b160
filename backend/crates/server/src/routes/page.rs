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
    /// Checks both.
    pub fn resolve(&self) -> ApiResult<(i64, Option<Cursor>)> {
        let limit = self.limit.unwrap_or(DEFAULT_LIMIT);
        if !(1..=MAX_LIMIT).contains(&limit) {
            return Err(ApiError::validation("limit", "must be 1 to 500"));
        }
        let cursor = self.cursor.as_deref().filter(|c| !c.is_empty());
        let cursor = cursor.map(str::parse).transpose();
        let cursor = cursor.map_err(|_| ApiError::validation("cursor", "is no cursor of this list"))?;
        Ok((limit, cursor))
    }
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
