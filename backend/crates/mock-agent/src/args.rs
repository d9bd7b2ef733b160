//! Reading the arguments of directives.

use std::str::FromStr;

/// The first word and what follows the space after it.
pub(crate) fn word(text: &str) -> (&str, &str) {
    text.split_once(' ').unwrap_or((text, ""))
}

/// A plain number.
pub(crate) fn number<T: FromStr>(name: &str, text: &str) -> Result<T, String> {
    let text = text.trim();
    text.parse()
        .map_err(|_| format!("/{name}: '{text}' is not a number"))
}

/// A number that may be left out.
pub(crate) fn number_or<T: FromStr>(name: &str, text: &str, default: T) -> Result<T, String> {
    if text.trim().is_empty() {
        return Ok(default);
    }
    number(name, text)
}

/// A count that may end in `k` or `m`, up to 16 GiB.
pub(crate) fn size(name: &str, text: &str) -> Result<usize, String> {
    let text = text.trim();
    let lower = text.to_ascii_lowercase();
    let (digits, factor) = match lower.as_bytes().last() {
        Some(b'k') => (&lower[..lower.len() - 1], 1 << 10),
        Some(b'm') => (&lower[..lower.len() - 1], 1 << 20),
        _ => (lower.as_str(), 1),
    };
    let value = digits.parse::<usize>().ok().and_then(|n| n.checked_mul(factor));
    let value = value.filter(|n| *n <= 16 << 30);
    value.ok_or_else(|| format!("/{name}: '{text}' is not a size"))
}

/// A count that may be left out.
pub(crate) fn size_or(name: &str, text: &str, default: usize) -> Result<usize, String> {
    if text.trim().is_empty() {
        return Ok(default);
    }
    size(name, text)
}

/// A text with its escapes `\n`, `\t` and `\\` replaced.
pub(crate) fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('\\') | None => out.push('\\'),
            Some(other) => out.extend(['\\', other]),
        }
    }
    out
}

/// A word that must be there.
pub(crate) fn required(name: &str, what: &str, text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err(format!("/{name} needs {what}"));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size("x", "5"), Ok(5));
        assert_eq!(size("x", "5k"), Ok(5 << 10));
        assert_eq!(size("x", " 2M "), Ok(2 << 20));
        for bad in ["", "k", "-1", "1g", "99999999m", "é"] {
            assert!(size("x", bad).is_err(), "{bad}");
        }
        assert_eq!(size_or("x", "", 7), Ok(7));
    }

    #[test]
    fn escapes() {
        assert_eq!(unescape(r"a\nb\tc\\n\q\"), "a\nb\tc\\n\\q\\");
        assert_eq!(unescape("  kept  "), "  kept  ");
    }
}
