//! What serde, the standard library and chrono say of a value that cannot be, in the words of an API: what is wanted, and never the
//! value, which may be a secret.

use serde_json::Value;
use serde_path_to_error::{Path, Segment};

/// Words that repeat a value unless they say what was expected.
const REPEATING: [&str; 4] = [
    "invalid type",
    "invalid value",
    "invalid length",
    "unknown variant",
];

/// What parsers of texts say, which name no type.
const PARSERS: [(&str, &str); 16] = [
    ("invalid digit found in string", WHOLE),
    ("cannot parse integer from empty string", WHOLE),
    ("number too large to fit in target type", "is too large a number"),
    ("number too small to fit in target type", "is too small a number"),
    ("invalid float literal", "must be a number"),
    ("cannot parse float from empty string", "must be a number"),
    (
        "provided string was not `true` or `false`",
        "must be true or false",
    ),
    ("premature end of input", TIME),
    ("trailing input", TIME),
    ("input contains invalid characters", TIME),
    ("input is out of range", TIME),
    ("input is not enough for unique date and time", TIME),
    ("no possible date and time matching input", TIME),
    ("bad or unsupported format string", TIME),
    ("UUID parsing failed", "must be a UUID"),
    ("data did not match any variant", "has a value that cannot be"),
];

const WHOLE: &str = "must be a whole number, in digits";
const TIME: &str = "must be a time as in RFC 3339, such as 2026-01-31T12:00:00Z";

/// The same without the value.
pub(super) fn expectation(words: &str) -> String {
    if let Some((_, expected)) = words.rsplit_once(", expected ") {
        return must_be(expected);
    }
    if let Some((_, plain)) = PARSERS.iter().find(|(said, _)| words.starts_with(said)) {
        return (*plain).to_owned();
    }
    if REPEATING.iter().any(|start| words.starts_with(start)) {
        return "has a value that cannot be".to_owned();
    }
    words.to_owned()
}

/// What is wanted, out of the name that serde has for it.
pub(super) fn must_be(expected: &str) -> String {
    let plain = match expected {
        "bool" | "a boolean" => "true or false",
        "i8" | "i16" | "i32" | "i64" | "isize" | "u8" | "u16" | "u32" | "u64" | "usize" => {
            return whole(expected);
        }
        "f32" | "f64" => "a number",
        "a string" | "a borrowed string" | "str" | "String" | "string" => "a text",
        "a sequence" => "a list",
        "a map" | "any map" => "an object",
        "Uuid" | "a UUID" => "a UUID",
        "unit" => "null",
        "an RFC 3339 formatted date and time string" => return TIME.to_owned(),
        _ if is_type(expected) => "an object",
        _ => expected,
    };
    format!("must be {plain}")
}

/// A type of ours that is read from an object.
fn is_type(expected: &str) -> bool {
    [
        "struct ",
        "tuple struct ",
        "unit struct ",
        "internally tagged enum ",
        "adjacently tagged enum ",
    ]
    .iter()
    .any(|start| expected.starts_with(start))
}

fn whole(integer: &str) -> String {
    let range = match integer {
        "i8" => Some((i8::MIN.to_string(), i8::MAX.to_string())),
        "i16" => Some((i16::MIN.to_string(), i16::MAX.to_string())),
        "i32" => Some((i32::MIN.to_string(), i32::MAX.to_string())),
        "u8" => Some(("0".to_owned(), u8::MAX.to_string())),
        "u16" => Some(("0".to_owned(), u16::MAX.to_string())),
        "u32" => Some(("0".to_owned(), u32::MAX.to_string())),
        _ => None,
    };
    match range {
        Some((least, most)) => format!("must be a whole number from {least} to {most}"),
        None if integer.starts_with('u') => "must be a whole number that is not negative".to_owned(),
        None => "must be a whole number".to_owned(),
    }
}

/// What is at this place.
pub(super) fn at<'a>(path: &Path, whole: &'a mut Value) -> Option<&'a mut Value> {
    path.iter().try_fold(whole, |value, segment| match segment {
        Segment::Seq { index } => value.get_mut(*index),
        Segment::Map { key } => value.get_mut(key.as_str()),
        Segment::Enum { .. } | Segment::Unknown => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lose_the_value_they_repeat() {
        let secret = r#"invalid type: string "sk-1, expected", expected a map"#;
        for (said, plain) in [
            (secret, "must be an object"),
            (
                "unknown variant `sk-1`, expected `a` or `b`",
                "must be `a` or `b`",
            ),
            ("invalid type: string \"sk-1\"", "has a value that cannot be"),
            (
                "a task id has 1 to 128 characters",
                "a task id has 1 to 128 characters",
            ),
        ] {
            assert_eq!(expectation(said), plain);
        }
    }

    /// What is really said, by whom it is said.
    #[test]
    fn nothing_speaks_rust() {
        #[derive(Debug, serde::Deserialize)]
        #[expect(dead_code, reason = "read, and that is all")]
        struct Body {
            whole: Option<i64>,
            count: Option<u32>,
            part: Option<f64>,
            yes: Option<bool>,
            text: Option<String>,
            list: Option<Vec<String>>,
            map: Option<std::collections::BTreeMap<String, String>>,
            time: Option<chrono::DateTime<chrono::Utc>>,
            id: Option<uuid::Uuid>,
        }
        let canary = "canary";
        for (field, wanted) in [
            ("whole", "must be a whole number"),
            ("count", "must be a whole number from 0 to 4294967295"),
            ("part", "must be a number"),
            ("yes", "must be true or false"),
            ("list", "must be a list"),
            ("map", "must be an object"),
            ("time", TIME),
            ("id", "must be a UUID"),
        ] {
            let text = format!("{{\"{field}\": \"{canary}\"}}");
            let said = serde_json::from_str::<Body>(&text).unwrap_err().to_string();
            let said = said.split(" at line").next().unwrap();
            assert_eq!(expectation(said), wanted, "{said}");
        }
        let said = serde_json::from_str::<Body>("[1]").unwrap_err().to_string();
        assert!(!expectation(&said).contains("Body"), "{said}");
        let said = serde_json::from_str::<Body>("7").unwrap_err().to_string();
        assert!(expectation(&said).starts_with("must be an object"), "{said}");
        for (query, wanted) in [
            ("whole=canary", WHOLE),
            ("whole=", WHOLE),
            ("count=-1", WHOLE),
            ("count=99999999999", "is too large a number"),
            ("part=canary", "must be a number"),
            ("yes=canary", "must be true or false"),
            ("time=canary", TIME),
            ("time=2026-13-01T00:00:00Z", TIME),
            ("time=2026-01-01", TIME),
        ] {
            let said = serde_urlencoded::from_str::<Body>(query).unwrap_err();
            assert_eq!(expectation(&said.to_string()), wanted, "{query}: {said}");
        }
    }
}
