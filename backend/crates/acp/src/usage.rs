//! Tokens and costs in what agents say. Whatever is no number is not there.

use kandev_domain::usage::{Cost, Tokens};
use serde_json::value::RawValue;

use crate::json::Fields;

/// Beyond this an amount is a mistake.
const MAX_AMOUNT: f64 = 1e12;
/// The longest name of a currency, in bytes. ISO 4217 has three.
const MAX_CURRENCY: usize = 16;

/// Reads `usage` of an answer to `session/prompt`; none if it tells of no tokens. Without a total, input and output make it.
pub fn tokens(usage: &RawValue) -> Option<Tokens> {
    let fields = Fields::of(usage);
    let count = |name| fields.get(name).and_then(|raw| raw.get().parse::<u64>().ok());
    let mut tokens = Tokens {
        total: count("totalTokens"),
        input: count("inputTokens"),
        output: count("outputTokens"),
        thought: count("thoughtTokens"),
        cached_read: count("cachedReadTokens"),
        cached_write: count("cachedWriteTokens"),
    };
    if let (None, Some(input), Some(output)) = (tokens.total, tokens.input, tokens.output) {
        tokens.total = Some(input.saturating_add(output));
    }
    (tokens != Tokens::default()).then_some(tokens)
}

/// Reads the cost in an update of kind `usage_update`: the session's, up to now.
pub fn cost(update: &RawValue) -> Option<Cost> {
    let fields = Fields::of(update);
    let cost = Fields::of(fields.get("cost")?);
    let amount = cost.get("amount")?.get().parse::<f64>().ok()?;
    let currency = cost.string("currency")?;
    let is_sound = (0.0..=MAX_AMOUNT).contains(&amount) && (1..=MAX_CURRENCY).contains(&currency.len());
    is_sound.then_some(Cost { amount, currency })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> &RawValue {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn tokens_are_those_that_are_told() {
        let told = r#"{"totalTokens":7,"inputTokens":4,"outputTokens":3,"thoughtTokens":null,"cachedReadTokens":2,"_meta":{}}"#;
        let expected = Tokens {
            total: Some(7),
            input: Some(4),
            output: Some(3),
            cached_read: Some(2),
            ..Tokens::default()
        };
        assert_eq!(tokens(raw(told)), Some(expected));
        let sum = tokens(raw(r#"{"inputTokens":4,"outputTokens":3}"#)).unwrap();
        assert_eq!(sum.total, Some(7));
        for odd in [
            "null",
            "[]",
            "{}",
            r#"{"totalTokens":-1}"#,
            r#"{"totalTokens":"7"}"#,
            r#"{"totalTokens":1.5}"#,
        ] {
            assert_eq!(tokens(raw(odd)), None, "{odd}");
        }
    }

    #[test]
    fn a_cost_is_an_amount_of_some_currency() {
        let update = |cost: &str| {
            let update = format!(r#"{{"sessionUpdate":"usage_update","used":1,"size":2,"cost":{cost}}}"#);
            super::cost(raw(&update))
        };
        let expected = Cost {
            amount: 0.25,
            currency: "USD".to_owned(),
        };
        assert_eq!(update(r#"{"amount":0.25,"currency":"USD"}"#), Some(expected));
        for odd in [
            "null",
            "3",
            r#"{"amount":1}"#,
            r#"{"amount":-1,"currency":"USD"}"#,
            r#"{"amount":1e300,"currency":"USD"}"#,
            r#"{"amount":1e999,"currency":"USD"}"#,
            r#"{"amount":"1","currency":"USD"}"#,
            r#"{"amount":1,"currency":""}"#,
            r#"{"amount":1,"currency":"a currency of the moon"}"#,
        ] {
            assert_eq!(update(odd), None, "{odd}");
        }
    }
}
