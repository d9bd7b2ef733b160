//! Whether an answer fits the form that was asked for. The schema is the part of JSON Schema that ACP allows: an object of plain
//! fields. What it has beyond that is left to the agent to judge.

use regex::RegexBuilder;
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use crate::json::{self, Fields, elements};

/// A pattern that takes more to be understood is not checked.
const MAX_PATTERN: usize = 1 << 20;

/// Why an answer does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// The form's field.
    pub field: String,
    /// For people.
    pub problem: String,
}

/// Checks all fields of an answer; the first misfit counts.
pub fn check(schema: &RawValue, content: &Map<String, Value>) -> Result<(), Misfit> {
    let schema = Fields::of(schema);
    let properties = schema.object("properties");
    let misfit = |field: &str, problem: String| {
        Err(Misfit {
            field: field.to_owned(),
            problem,
        })
    };
    let required = schema.get("required").map(elements).unwrap_or_default();
    for name in required.into_iter().filter_map(json::text) {
        if !content.contains_key(&*name) {
            return misfit(&name, "is required".to_owned());
        }
    }
    for (name, value) in content {
        let Some(property) = properties.get(name) else {
            return misfit(name, "is no field of the form".to_owned());
        };
        if let Err(problem) = fits(&Fields::of(property), value) {
            return misfit(name, problem);
        }
    }
    Ok(())
}

fn fits(property: &Fields<'_>, value: &Value) -> Result<(), String> {
    match (property.text("type").as_deref(), value) {
        (Some("string"), Value::String(text)) => string(property, text),
        (Some("string"), _) => Err("must be a text".to_owned()),
        (Some("number"), Value::Number(number)) => between(property, number),
        (Some("number"), _) => Err("must be a number".to_owned()),
        (Some("integer"), Value::Number(number)) if number.is_i64() => between(property, number),
        (Some("integer"), _) => Err("must be a whole number".to_owned()),
        (Some("boolean"), Value::Bool(_)) => Ok(()),
        (Some("boolean"), _) => Err("must be true or false".to_owned()),
        (Some("array"), Value::Array(values)) => array(property, values),
        (Some("array"), _) => Err("must be a list".to_owned()),
        // Of a kind that is not known here: anything that ACP can carry.
        (_, Value::Array(values)) if values.iter().all(Value::is_string) => Ok(()),
        (_, Value::Null | Value::Object(_) | Value::Array(_)) => {
            Err("must be a text, a number, true, false or a list of texts".to_owned())
        }
        _ => Ok(()),
    }
}

fn string(property: &Fields<'_>, text: &str) -> Result<(), String> {
    let length = text.chars().count() as u64;
    if let Some(least) = whole(property, "minLength").filter(|least| length < *least) {
        return Err(format!("must have at least {least} characters"));
    }
    if let Some(most) = whole(property, "maxLength").filter(|most| length > *most) {
        return Err(format!("must have at most {most} characters"));
    }
    if let Some(options) = options(property, "enum", "oneOf") {
        one_of(&options, text)?;
    }
    if let Some(pattern) = property.text("pattern") {
        let compiled = RegexBuilder::new(&pattern).size_limit(MAX_PATTERN).build();
        // One that is not understood here is the agent's to check.
        if compiled.is_ok_and(|pattern| !pattern.is_match(text)) {
            return Err(format!("must match '{pattern}'"));
        }
    }
    match property.text("format").as_deref() {
        Some("email") if !is_email(text) => Err("must be an email address".to_owned()),
        Some("uri") if !is_uri(text) => Err("must be a URI".to_owned()),
        Some("date") if !is_date(text) => Err("must be a date (YYYY-MM-DD)".to_owned()),
        Some("date-time") if chrono::DateTime::parse_from_rfc3339(text).is_err() => {
            Err("must be a time (RFC 3339)".to_owned())
        }
        _ => Ok(()),
    }
}

fn array(property: &Fields<'_>, values: &[Value]) -> Result<(), String> {
    let count = values.len() as u64;
    if let Some(least) = whole(property, "minItems").filter(|least| count < *least) {
        return Err(format!("must have at least {least} items"));
    }
    if let Some(most) = whole(property, "maxItems").filter(|most| count > *most) {
        return Err(format!("must have at most {most} items"));
    }
    let options = options(&property.object("items"), "enum", "anyOf");
    for value in values {
        let text = value.as_str().ok_or("must be a list of texts")?;
        if let Some(options) = &options {
            one_of(options, text)?;
        }
    }
    Ok(())
}

/// What can be chosen; none if anything can be.
fn options(fields: &Fields<'_>, plain: &str, titled: &str) -> Option<Vec<String>> {
    let text = |raw: &RawValue| json::text(raw).map(Into::into);
    if let Some(list) = fields.get(plain) {
        return Some(elements(list).into_iter().filter_map(text).collect());
    }
    let list = elements(fields.get(titled)?);
    let constant = |raw: &RawValue| Fields::of(raw).string("const");
    Some(list.into_iter().filter_map(constant).collect())
}

fn one_of(options: &[String], text: &str) -> Result<(), String> {
    if options.iter().any(|option| option == text) {
        return Ok(());
    }
    Err(format!("must be one of: {}", options.join(", ")))
}

fn whole(fields: &Fields<'_>, name: &str) -> Option<u64> {
    fields.get(name)?.get().parse().ok()
}

fn between(property: &Fields<'_>, number: &Number) -> Result<(), String> {
    let limit = |name| property.get(name).map(RawValue::get);
    // Whole numbers are compared as such: floating point has not all of them.
    let below = |limit: &str| match (number.as_i64(), limit.parse::<i64>()) {
        (Some(number), Ok(limit)) => Some(number.cmp(&limit)),
        _ => number.as_f64()?.partial_cmp(&limit.parse::<f64>().ok()?),
    };
    if let Some(least) = limit("minimum").filter(|least| below(least).is_some_and(std::cmp::Ordering::is_lt))
    {
        return Err(format!("must be at least {least}"));
    }
    if let Some(most) = limit("maximum").filter(|most| below(most).is_some_and(std::cmp::Ordering::is_gt)) {
        return Err(format!("must be at most {most}"));
    }
    Ok(())
}

fn is_email(text: &str) -> bool {
    let parts = text.rsplit_once('@');
    let odd = |c: char| c.is_whitespace() || c.is_control();
    parts.is_some_and(|(name, host)| !name.is_empty() && !host.is_empty()) && !text.contains(odd)
}

fn is_uri(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else {
        return false;
    };
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(legal)
        && !rest.is_empty()
        && !rest.contains(|c: char| c.is_whitespace() || c.is_control())
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && chrono::NaiveDate::parse_from_str(text, "%Y-%m-%d").is_ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use serde_json::value::to_raw_value;

    use super::*;

    fn checked(schema: &Value, content: &Value) -> Result<(), Misfit> {
        check(&to_raw_value(schema).unwrap(), content.as_object().unwrap())
    }

    /// What is wrong with a value of one field.
    fn problem(property: &Value, value: Value) -> Option<String> {
        let schema = json!({"properties": {"x": property}});
        checked(&schema, &json!({"x": value})).err().map(|m| m.problem)
    }

    #[test]
    fn every_kind_of_field_is_checked() {
        let good = [
            (json!({"type": "string"}), json!("")),
            (
                json!({"type": "string", "minLength": 2, "maxLength": 2}),
                json!("é🦀"),
            ),
            (json!({"type": "string", "pattern": "^a.c$"}), json!("abc")),
            (json!({"type": "string", "pattern": "b"}), json!("abc")),
            (json!({"type": "string", "pattern": "(?=lookahead)"}), json!("x")),
            (json!({"type": "string", "format": "email"}), json!("a@b.c")),
            (json!({"type": "string", "format": "uri"}), json!("urn:x")),
            (json!({"type": "string", "format": "date"}), json!("2024-02-29")),
            (
                json!({"type": "string", "format": "date-time"}),
                json!("2024-02-29T01:02:03Z"),
            ),
            (json!({"type": "string", "format": "hostname"}), json!("?")),
            (json!({"type": "string", "enum": ["a", "b"]}), json!("b")),
            (
                json!({"type": "string", "oneOf": [{"const": "a", "title": "A"}]}),
                json!("a"),
            ),
            (
                json!({"type": "number", "minimum": 0.5, "maximum": 1}),
                json!(0.5),
            ),
            (
                json!({"type": "integer", "maximum": 9_007_199_254_740_993_i64}),
                json!(9_007_199_254_740_993_i64),
            ),
            (json!({"type": "integer", "minimum": null}), json!(-1)),
            (json!({"type": "boolean"}), json!(false)),
            (
                json!({"type": "array", "items": {"type": "string", "enum": ["a"]}}),
                json!(["a", "a"]),
            ),
            (
                json!({"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}]}, "maxItems": 1}),
                json!(["a"]),
            ),
            (json!({"type": "_color"}), json!("#fff")),
            (json!({}), json!(["x"])),
            (json!("no schema"), json!(7)),
        ];
        for (property, value) in good {
            assert_eq!(problem(&property, value.clone()), None, "{property} {value}");
        }
        let bad = [
            (json!({"type": "string"}), json!(7)),
            (json!({"type": "string"}), json!(null)),
            (json!({"type": "string", "minLength": 3}), json!("é🦀")),
            (json!({"type": "string", "maxLength": 1}), json!("é🦀")),
            (json!({"type": "string", "pattern": "^a.c$"}), json!("abcd")),
            (json!({"type": "string", "format": "email"}), json!("a@")),
            (json!({"type": "string", "format": "email"}), json!("a b@c")),
            (json!({"type": "string", "format": "uri"}), json!("//x")),
            (json!({"type": "string", "format": "date"}), json!("2023-02-29")),
            (json!({"type": "string", "format": "date"}), json!("2023-2-9")),
            (
                json!({"type": "string", "format": "date-time"}),
                json!("2024-02-29"),
            ),
            (json!({"type": "string", "enum": ["a", "b"]}), json!("c")),
            (
                json!({"type": "string", "oneOf": [{"const": "a", "title": "A"}]}),
                json!("A"),
            ),
            (json!({"type": "number", "minimum": 0.5}), json!(0.4)),
            (json!({"type": "number"}), json!("1")),
            (json!({"type": "integer"}), json!(1.5)),
            (json!({"type": "integer"}), json!(u64::MAX)),
            (
                json!({"type": "integer", "maximum": 9_007_199_254_740_992_i64}),
                json!(9_007_199_254_740_993_i64),
            ),
            (json!({"type": "boolean"}), json!("true")),
            (json!({"type": "array"}), json!("a")),
            (json!({"type": "array"}), json!([1])),
            (json!({"type": "array", "items": {"enum": ["a"]}}), json!(["b"])),
            (json!({"type": "array", "minItems": 1}), json!([])),
            (json!({"type": "array", "maxItems": 1}), json!(["a", "b"])),
            (json!({"type": "_color"}), json!({"r": 1})),
        ];
        for (property, value) in bad {
            assert!(problem(&property, value.clone()).is_some(), "{property} {value}");
        }
    }

    #[test]
    fn fields_are_required_or_not_and_no_others_there() {
        let schema =
            json!({"properties": {"a": {"type": "string"}, "b": {"type": "boolean"}}, "required": ["a"]});
        assert_eq!(checked(&schema, &json!({"a": ""})), Ok(()));
        let misfit = |content| checked(&schema, &content).unwrap_err();
        assert_eq!(misfit(json!({"b": true})).field, "a");
        let other = misfit(json!({"a": "", "c": 1}));
        assert_eq!(
            (other.field.as_str(), other.problem.as_str()),
            ("c", "is no field of the form")
        );
        // A form of nothing takes nothing, however it says so.
        for schema in [json!({}), json!({"properties": 7, "required": null})] {
            assert_eq!(checked(&schema, &json!({})), Ok(()));
            assert!(checked(&schema, &json!({"a": 1})).is_err());
        }
    }
}
