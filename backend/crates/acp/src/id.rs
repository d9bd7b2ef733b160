//! JSON-RPC ids, kept as they were written.

use std::fmt;
use std::hash::{Hash, Hasher};

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::json;

/// The largest integer that a float holds exactly.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// The id of a request: a number or a string. Null is none.
///
/// Two ids are equal if they mean the same (`2` and `2.0`, `"a"` and `"\u0061"`), and `0` is not `"0"`. Serialised, an
/// id is byte for byte what the other side wrote, so one beyond 2^53 survives.
#[derive(Clone)]
pub struct Id {
    raw: Box<RawValue>,
    meaning: Meaning,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Meaning {
    Integer(i128),
    /// A number that is no integer, or too large to tell: its text.
    Number(String),
    Text(String),
}

impl Id {
    /// Reads a number or a string.
    pub fn from_raw(raw: &RawValue) -> Option<Self> {
        let text = raw.get();
        let meaning = match text.bytes().next()? {
            b'"' => Meaning::Text(exact_text(raw)?),
            b'-' | b'0'..=b'9' => number(text),
            _ => return None,
        };
        Some(Self {
            raw: raw.to_owned(),
            meaning,
        })
    }

    /// The JSON as it was written.
    pub fn as_raw(&self) -> &RawValue {
        &self.raw
    }

    /// The integer, if it is a non-negative one that fits.
    pub fn as_u64(&self) -> Option<u64> {
        match self.meaning {
            Meaning::Integer(n) => n.try_into().ok(),
            Meaning::Number(_) | Meaning::Text(_) => None,
        }
    }

    /// The string, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match &self.meaning {
            Meaning::Text(text) => Some(text),
            Meaning::Integer(_) | Meaning::Number(_) => None,
        }
    }
}

/// Strings with lone surrogates stay as they were written: replaced, two of them would become equal.
fn exact_text(raw: &RawValue) -> Option<String> {
    let decoded = json::text(raw)?;
    if decoded.contains('\u{FFFD}') {
        return Some(serde_json::from_str(raw.get()).unwrap_or_else(|_| raw.get().to_owned()));
    }
    Some(decoded.into_owned())
}

fn number(text: &str) -> Meaning {
    if let Ok(n) = text.parse::<i128>() {
        return Meaning::Integer(n);
    }
    match text.parse::<f64>() {
        Ok(n) if n.fract() == 0.0 && n.abs() <= EXACT => Meaning::Integer(n as i128),
        _ => Meaning::Number(text.to_owned()),
    }
}

impl PartialEq for Id {
    fn eq(&self, other: &Self) -> bool {
        self.meaning == other.meaning
    }
}

impl Eq for Id {}

impl Hash for Id {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.meaning.hash(state);
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Id({})", self.raw.get())
    }
}

/// As JSON.
impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.raw.get())
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.raw.serialize(serializer)
    }
}

impl<'de> serde::Deserialize<'de> for Id {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Self::from_raw(&raw).ok_or_else(|| serde::de::Error::custom("an id is a number or a string"))
    }
}

impl From<u64> for Id {
    fn from(n: u64) -> Self {
        // A number is always valid JSON; null would only be reached if it were not.
        let raw = RawValue::from_string(n.to_string()).unwrap_or_else(|_| RawValue::NULL.to_owned());
        Self {
            raw,
            meaning: Meaning::Integer(n.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(json: &str) -> Id {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn ids_are_serialised_as_they_came() {
        for json in [
            "0",
            r#""0""#,
            r#""""#,
            r#""a-1""#,
            "9007199254740993",
            "123456789012345678901234567890123456789012345678901234567890",
            "1.5",
            "2.0",
            "-7",
            "1e400",
            r#""\u0061\ud800""#,
        ] {
            assert_eq!(serde_json::to_string(&id(json)).unwrap(), json);
        }
    }

    #[test]
    fn ids_are_equal_by_meaning() {
        assert_eq!(id("2"), id("2.0"));
        assert_eq!(id(r#""a""#), id(r#""\u0061""#));
        assert_ne!(id("0"), id(r#""0""#));
        assert_ne!(id(r#""""#), id(r#""0""#));
        assert_ne!(id("9007199254740992"), id("9007199254740993"));
        assert_ne!(id(r#""\ud800""#), id(r#""\ud801""#));
        assert_eq!(Id::from(7), id("7"));
        assert_eq!(id("7").as_u64(), Some(7));
        assert_eq!(id("-7").as_u64(), None);
    }

    #[test]
    fn nothing_else_is_an_id() {
        for json in ["null", "true", "[]", "{}"] {
            assert!(serde_json::from_str::<Id>(json).is_err(), "{json}");
        }
    }
}
