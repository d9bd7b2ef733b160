//! Which version of the engine's API is spoken.
//!
//! Source: "Versioning" of the Docker Engine API reference. Requests name the version in their path, since the same
//! request means other things in other versions, and an engine serves a range of them.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

use super::client::Call;
use crate::error::Result;

/// The oldest version that has all we need.
const OLDEST: ApiVersion = ApiVersion { major: 1, minor: 41 };
/// The newest version whose changes were read.
const NEWEST: ApiVersion = ApiVersion { major: 1, minor: 53 };

/// A version of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ApiVersion {
    pub(super) major: u16,
    pub(super) minor: u16,
}

impl fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for ApiVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text.split_once('.').and_then(|(major, minor)| {
            Some(Self {
                major: major.parse().ok()?,
                minor: minor.parse().ok()?,
            })
        });
        parsed.ok_or_else(|| format!("'{text}' is not an API version"))
    }
}

/// The engine, and the version agreed on with it.
#[derive(Debug, Clone)]
pub(super) struct EngineVersion {
    pub(super) engine: String,
    pub(super) api: ApiVersion,
}

/// The answer of `GET /version`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    version: String,
    api_version: String,
    #[serde(rename = "MinAPIVersion")]
    min_api_version: Option<String>,
}

impl EngineVersion {
    /// The newest version that both sides know.
    pub(super) fn agree(call: &Call<'_>, answer: &[u8]) -> Result<Self> {
        choose(answer).map_err(|message| call.refused(None, message))
    }
}

fn choose(answer: &[u8]) -> Result<EngineVersion, String> {
    let answer: Answer = serde_json::from_slice(answer).map_err(|error| error.to_string())?;
    let newest: ApiVersion = answer.api_version.parse()?;
    let oldest = match answer.min_api_version.as_deref() {
        Some(text) if !text.is_empty() => text.parse()?,
        _ => OLDEST,
    };
    let api = newest.min(NEWEST);
    if api < OLDEST {
        return Err(format!(
            "it speaks the API up to {newest}, and {OLDEST} is needed"
        ));
    }
    if api < oldest {
        return Err(format!(
            "it speaks the API from {oldest}, and we know it up to {NEWEST}"
        ));
    }
    Ok(EngineVersion {
        engine: answer.version,
        api,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreed(min: &str, max: &str) -> Result<String, String> {
        let answer = format!(r#"{{"Version":"x","ApiVersion":"{max}","MinAPIVersion":"{min}"}}"#);
        choose(answer.as_bytes()).map(|version| version.api.to_string())
    }

    #[test]
    fn takes_the_newest_that_both_know() {
        assert_eq!(agreed("1.12", "1.41").unwrap(), "1.41");
        assert_eq!(agreed("1.44", "1.52").unwrap(), "1.52");
        assert_eq!(agreed("1.44", "1.99").unwrap(), "1.53");
        assert_eq!(agreed("", "1.99").unwrap(), "1.53");
    }

    #[test]
    fn refuses_what_shares_no_version() {
        assert!(agreed("1.12", "1.40").unwrap_err().contains("1.41 is needed"));
        assert!(agreed("1.60", "2.0").unwrap_err().contains("from 1.60"));
        assert!(agreed("1.12", "new").is_err());
    }
}
