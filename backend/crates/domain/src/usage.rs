//! What agents use: tokens and money, as far as they report it.
//!
//! Source: ACP v1, `UsageUpdate` (the cost, cumulative over the session), and the unstable `usage` of the answer to
//! `session/prompt` (tokens of that turn).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How finely costs are told: a billionth of the currency.
const GRAIN: f64 = 1e9;

/// Tokens of one turn. None of what the agent does not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Of all kinds.
    pub total: Option<u64>,
    /// Sent to the model.
    pub input: Option<u64>,
    /// Made by it.
    pub output: Option<u64>,
    /// Made by it while it thought.
    pub thought: Option<u64>,
    /// Read from its provider's cache.
    pub cached_read: Option<u64>,
    /// Written to it.
    pub cached_write: Option<u64>,
}

/// An amount of money.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Cost {
    /// In units of the currency.
    pub amount: f64,
    /// ISO 4217, as the agent has it.
    pub currency: String,
}

impl Cost {
    /// Without what sums of binary fractions leave behind.
    #[must_use]
    pub fn rounded(amount: f64, currency: String) -> Self {
        Self {
            amount: (amount * GRAIN).round() / GRAIN,
            currency,
        }
    }
}
