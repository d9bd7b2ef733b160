//! Which version of the engine's API is spoken.
//!
//! Source: "Versioning" of the Docker Engine API reference. Requests name the version in their path, since the same
//! request means other things in other versions, and an engine serves a range of them. bollard asks the engine for its
//! newest version only, and drops the one it agreed on from its paths, so that both are done here.

use bollard::models::SystemVersion;
use bollard::{API_DEFAULT_VERSION, ClientVersion};

/// The oldest version that has all we need.
const OLDEST: ClientVersion = ClientVersion {
    major_version: 1,
    minor_version: 41,
};
/// The newest version we know: the one bollard's types are made from.
const NEWEST: ClientVersion = *API_DEFAULT_VERSION;

/// The newest version that both sides know.
pub(super) fn choose(answer: &SystemVersion) -> Result<ClientVersion, String> {
    let newest = parse(answer.api_version.as_deref().unwrap_or_default())?;
    let oldest = match answer.min_api_version.as_deref() {
        Some(text) if !text.is_empty() => parse(text)?,
        _ => OLDEST,
    };
    let api = if newest < NEWEST { newest } else { NEWEST };
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
    Ok(api)
}

fn parse(text: &str) -> Result<ClientVersion, String> {
    let parsed = text.split_once('.').and_then(|(major, minor)| {
        Some(ClientVersion {
            major_version: major.parse().ok()?,
            minor_version: minor.parse().ok()?,
        })
    });
    parsed.ok_or_else(|| format!("'{text}' is not an API version"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreed(min: &str, max: &str) -> Result<String, String> {
        let answer = SystemVersion {
            api_version: Some(max.to_owned()),
            min_api_version: Some(min.to_owned()),
            ..SystemVersion::default()
        };
        choose(&answer).map(|version| version.to_string())
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
        assert!(choose(&SystemVersion::default()).is_err());
    }
}
