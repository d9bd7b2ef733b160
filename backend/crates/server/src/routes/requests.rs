//! Which of what agents ask: permissions and elicitations are listed alike.

use std::str::FromStr;

use kandev_domain::status::UnknownName;
use kandev_store::RequestFilter;
use serde::Deserialize;
use utoipa::IntoParams;

use super::agents::instance;
use super::page::{Paging, names};
use crate::error::ApiResult;
use crate::state::AppState;

/// Which of all requests.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct RequestParams {
    /// Only with one of these statuses, separated by commas.
    status: Option<String>,
    /// Only of this task's instances.
    task_id: Option<String>,
    /// At most so many; 1 to 500, 50 if absent.
    limit: Option<i64>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// Which of an instance's requests.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct InstanceRequestParams {
    /// Only with one of these statuses, separated by commas.
    status: Option<String>,
    /// At most so many; 1 to 500, 50 if absent.
    limit: Option<i64>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// A status, as it is written in a query.
pub trait Status: FromStr<Err = UnknownName> {}

impl<S: FromStr<Err = UnknownName>> Status for S {}

impl RequestParams {
    /// Checks the statuses.
    pub fn read<S: Status>(self) -> ApiResult<(RequestFilter<S>, Paging)> {
        let filter = RequestFilter {
            instance_id: None,
            task_id: self.task_id,
            statuses: names("status", self.status.as_deref())?,
        };
        let (limit, cursor) = (self.limit, self.cursor);
        Ok((filter, Paging { limit, cursor }))
    }
}

impl InstanceRequestParams {
    /// Checks the instance and the statuses.
    pub async fn read<S: Status>(self, state: &AppState, id: &str) -> ApiResult<(RequestFilter<S>, Paging)> {
        let filter = RequestFilter {
            instance_id: Some(instance(state, id).await?.id),
            task_id: None,
            statuses: names("status", self.status.as_deref())?,
        };
        let (limit, cursor) = (self.limit, self.cursor);
        Ok((filter, Paging { limit, cursor }))
    }
}
