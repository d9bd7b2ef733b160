//! Request ids: the caller's, if it is sane, else one of ours.

use std::fmt;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

/// The header that carries it, both ways.
pub const HEADER: HeaderName = HeaderName::from_static("x-request-id");

const MAX_LEN: usize = 64;

/// A request's id: 1 to 64 visible ASCII characters. Handlers find it in the request's extensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// The id that the caller sent, or a new one.
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that makes request ids; they are not domain ids"
    )]
    pub fn of(headers: &HeaderMap) -> Self {
        let given = headers.get(HEADER).and_then(|value| value.to_str().ok());
        match given.filter(|text| is_sane(text)) {
            Some(text) => Self(text.into()),
            None => Self(uuid::Uuid::now_v7().to_string().into()),
        }
    }

    pub(super) fn header(&self) -> HeaderValue {
        HeaderValue::from_str(&self.0).unwrap_or_else(|_| HeaderValue::from_static("invalid"))
    }
}

/// No spaces or control characters: the id is written into logs and headers.
fn is_sane(text: &str) -> bool {
    (1..=MAX_LEN).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_for(sent: &[u8]) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(HEADER, HeaderValue::from_bytes(sent).unwrap());
        RequestId::of(&headers).to_string()
    }

    #[test]
    fn sane_ids_are_kept_and_others_replaced() {
        for good in ["a", "trace-1/2:3", &"x".repeat(64)] {
            assert_eq!(id_for(good.as_bytes()), good);
        }
        for bad in [&b""[..], b"a b", b"tab\there", "é".as_bytes(), &[b'x'; 65]] {
            let id = id_for(bad);
            assert_eq!(
                uuid::Uuid::parse_str(&id).unwrap().get_version_num(),
                7,
                "{bad:?}"
            );
        }
    }
}
