//! The end of a stream of lines, within a bound.

use std::collections::VecDeque;

const MAX_LINES: usize = 50;
const MAX_BYTES: usize = 16 * 1024;

/// The last lines.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    lines: VecDeque<String>,
    bytes: usize,
}

impl Tail {
    /// Adds a line; of a long one its end.
    pub(crate) fn push(&mut self, line: &str) {
        let mut start = line.len().saturating_sub(MAX_BYTES);
        while !line.is_char_boundary(start) {
            start += 1;
        }
        self.bytes += line.len() - start;
        self.lines.push_back(line[start..].to_owned());
        while self.lines.len() > MAX_LINES || self.bytes > MAX_BYTES {
            self.bytes -= self.lines.pop_front().map_or(0, |l| l.len());
        }
    }

    /// All of it; none if there was nothing.
    pub(crate) fn text(&self) -> Option<String> {
        (!self.lines.is_empty()).then(|| {
            self.lines
                .iter()
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join("\n")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_is_kept() {
        let mut tail = Tail::default();
        assert_eq!(tail.text(), None);
        for n in 0..1000 {
            tail.push(&format!("line {n}"));
        }
        let text = tail.text().unwrap();
        assert!(
            text.starts_with("line 950") && text.ends_with("line 999"),
            "{text}"
        );
        tail.push(&"é".repeat(MAX_BYTES));
        assert!(tail.text().unwrap().len() <= MAX_BYTES);
    }
}
