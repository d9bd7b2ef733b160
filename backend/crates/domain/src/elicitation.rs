//! What agents ask people for: to fill in a form, or to go to a URL.
//!
//! ```text
//! pending ──► accepted    a caller gave what was asked for, or agreed to go to the URL
//!    ├──────► declined    a caller would not
//!    ├──────► cancelled   nobody decided: the turn or the instance ended, the agent took it back, or a caller dismissed it
//!    └──────► expired     the time was up, and the default was answered
//! ```
//! Source: ACP v1, "Elicitation". Who decided is told as for permissions ([`DecidedBy`](crate::DecidedBy)).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::status::named;

/// Where an elicitation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ElicitationStatus {
    /// The agent waits for the answer.
    Pending,
    /// It has what it asked for.
    Accepted,
    /// It was told no.
    Declined,
    /// Nobody said yes or no.
    Cancelled,
    /// Nobody answered in time.
    Expired,
}
named!(ElicitationStatus {
    Pending => "pending",
    Accepted => "accepted",
    Declined => "declined",
    Cancelled => "cancelled",
    Expired => "expired",
});

/// How an agent asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ElicitationMode {
    /// A form, whose content the agent gets.
    Form,
    /// A URL to go to. What is done there the agent learns by itself.
    Url,
}
named!(ElicitationMode { Form => "form", Url => "url" });

/// What is answered when nobody did in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ElicitationDefault {
    /// That nobody decided.
    #[default]
    Cancel,
    /// No.
    Decline,
}
named!(ElicitationDefault { Cancel => "cancel", Decline => "decline" });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_api() {
        for status in ElicitationStatus::ALL {
            assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
        }
        for mode in ElicitationMode::ALL {
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.as_str());
        }
        for default in ElicitationDefault::ALL {
            assert_eq!(serde_json::to_value(default).unwrap(), default.as_str());
        }
    }
}
