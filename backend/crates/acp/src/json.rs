//! Tolerant reading of raw JSON: one level at a time, nothing decoded that is not asked for.
//!
//! `serde_json` captures a [`RawValue`] without decoding the strings inside and without recursion, so a lone surrogate
//! or a deep nest inside `params` costs nothing here. Derived structs would refuse both, and repeated keys as well.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Calls `each` with the decoded key and the raw value of every field of the object `json`.
/// Fails if it is not exactly one JSON object.
pub(crate) fn each_field<'a>(
    json: &'a str,
    each: impl FnMut(&str, &'a RawValue),
) -> Result<(), serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_str(json);
    Deserializer::deserialize_map(&mut deserializer, FieldVisitor(each))?;
    deserializer.end()
}

struct FieldVisitor<F>(F);

impl<'de, F: FnMut(&str, &'de RawValue)> Visitor<'de> for FieldVisitor<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<&'de RawValue>()? {
            let value = map.next_value::<&'de RawValue>()?;
            let key = text(key).ok_or_else(|| A::Error::custom("a key is not a string"))?;
            (self.0)(&key, value);
        }
        Ok(())
    }
}

/// The string in a raw value, or none if it is no string. A lone surrogate becomes U+FFFD.
pub(crate) fn text(raw: &RawValue) -> Option<Cow<'_, str>> {
    let inner = raw.get().strip_prefix('"')?.strip_suffix('"')?;
    if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str::<Text<'_>>(raw.get()).ok().map(|t| t.0)
}

/// A string or a number as text, for ids that some agents send as numbers.
pub(crate) fn text_or_number(raw: &RawValue) -> Option<Cow<'_, str>> {
    let first = raw.get().bytes().next()?;
    if first == b'-' || first.is_ascii_digit() {
        return Some(Cow::Borrowed(raw.get()));
    }
    text(raw)
}

/// The elements of an array, or none if it is no array.
pub(crate) fn elements(raw: &RawValue) -> Vec<&RawValue> {
    serde_json::from_str(raw.get()).unwrap_or_default()
}

pub(crate) fn is_null(raw: &RawValue) -> bool {
    raw.get() == "null"
}

/// A string that may hold lone surrogates, which become U+FFFD.
#[derive(Debug, Default)]
pub(crate) struct Text<'a>(pub(crate) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_bytes<E>(self, bytes: &'de [u8]) -> Result<Self::Value, E> {
                Ok(Text(match std::str::from_utf8(bytes) {
                    Ok(text) => Cow::Borrowed(text),
                    Err(_) => Cow::Owned(from_wtf8(bytes)),
                }))
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(from_wtf8(bytes))))
            }
        }
        // As bytes, since only then does serde_json let lone surrogates through, encoded as WTF-8.
        deserializer.deserialize_bytes(TextVisitor)
    }
}

fn from_wtf8(bytes: &[u8]) -> String {
    let mut bytes = bytes.to_vec();
    for at in 0..bytes.len().saturating_sub(2) {
        // No valid UTF-8 has such a pair; the replacement character is as long as a surrogate.
        if bytes[at] == 0xED && bytes[at + 1] >= 0xA0 {
            bytes[at..at + 3].copy_from_slice("\u{FFFD}".as_bytes());
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}

/// The fields of an object; of anything else, none. The last of equal keys wins.
#[derive(Debug, Default)]
pub(crate) struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Fields<'a> {
    pub(crate) fn of(raw: &'a RawValue) -> Self {
        let mut fields = Vec::new();
        let read = each_field(raw.get(), |key, value| fields.push((key.to_owned(), value)));
        Self(if read.is_ok() { fields } else { Vec::new() })
    }

    /// The value, unless it is null or absent.
    pub(crate) fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.get_even_null(name).filter(|raw| !is_null(raw))
    }

    pub(crate) fn get_even_null(&self, name: &str) -> Option<&'a RawValue> {
        self.0
            .iter()
            .rev()
            .find(|(key, _)| key == name)
            .map(|(_, raw)| *raw)
    }

    /// In the order in which they stand, null and repeated ones included.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.0.iter().map(|(name, raw)| (name.as_str(), *raw))
    }

    pub(crate) fn owned(&self, name: &str) -> Option<Box<RawValue>> {
        self.get(name).map(ToOwned::to_owned)
    }

    pub(crate) fn text(&self, name: &str) -> Option<Cow<'a, str>> {
        self.get(name).and_then(text)
    }

    pub(crate) fn string(&self, name: &str) -> Option<String> {
        self.text(name).map(Cow::into_owned)
    }

    pub(crate) fn object(&self, name: &str) -> Self {
        self.get(name).map(Self::of).unwrap_or_default()
    }

    /// True only for `true`.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|raw| raw.get() == "true")
    }

    /// Capabilities are advertised by an object or by `true`; null and false deny them.
    pub(crate) fn offers(&self, name: &str) -> bool {
        self.get(name).is_some_and(|raw| raw.get() != "false")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> &RawValue {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn strings_decode_with_surrogates_replaced() {
        assert_eq!(text(raw(r#""plain""#)).unwrap(), "plain");
        assert!(matches!(text(raw(r#""plain""#)), Some(Cow::Borrowed(_))));
        assert_eq!(text(raw(r#""a\u0000b\n""#)).unwrap(), "a\0b\n");
        assert_eq!(text(raw(r#""x\ud83dy""#)).unwrap(), "x\u{FFFD}y");
        assert_eq!(text(raw(r#""\ud83d\ude00\udc00""#)).unwrap(), "\u{1F600}\u{FFFD}");
        assert_eq!(text(raw("3")), None);
        assert_eq!(text(raw(r#"["a"]"#)), None);
    }

    #[test]
    fn fields_take_the_last_of_equal_keys_and_escaped_keys() {
        let fields = Fields::of(raw(r#"{"a":1,"\u0061":2,"\ud800":3,"n":null}"#));
        assert_eq!(fields.get("a").unwrap().get(), "2");
        assert!(fields.get("n").is_none());
        assert!(fields.get_even_null("n").is_some());
        assert_eq!(fields.get("\u{FFFD}").unwrap().get(), "3");
        assert!(Fields::of(raw("[1]")).get("a").is_none());
    }

    #[test]
    fn anything_but_one_object_is_refused() {
        for json in [
            "",
            "{",
            "1",
            "[]",
            r#"{"a":1} x"#,
            r#"{"a":1}{"b":2}"#,
            r#"{"a":"}"#,
        ] {
            assert!(each_field(json, |_, _| {}).is_err(), "{json}");
        }
    }
}
