//! The tests that the tables name: where they are, and what they do.

use std::collections::BTreeMap;
use std::path::Path;

/// The functions of a file of the server's tests, by name.
type Functions = BTreeMap<String, String>;

/// All files of the server's tests.
pub(super) struct Sources(Vec<Functions>);

impl Sources {
    pub(super) fn read(dir: &Path) -> Self {
        let mut files = Vec::new();
        read_all(dir, &mut files);
        Self(files)
    }

    /// What a test does: its body, and those of the functions of its file that it calls, and that these call.
    pub(super) fn test(&self, name: &str) -> Option<String> {
        let file = self.0.iter().find(|file| {
            file.get(name)
                .is_some_and(|f| f.starts_with("#[tokio::test]") || f.contains("\n#[tokio::test]"))
        })?;
        let mut body = file[name].clone();
        for _ in 0..2 {
            let calls = |called: &str| called != name && body.contains(&format!("{called}("));
            let called: Vec<&String> = file
                .iter()
                .filter(|(called, _)| calls(called))
                .map(|(_, text)| text)
                .collect();
            let more: String = called.into_iter().cloned().collect();
            body.push_str(&more);
        }
        Some(body)
    }
}

fn read_all(dir: &Path, files: &mut Vec<Functions>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_all(&path, files);
        } else {
            files.push(functions(&std::fs::read_to_string(&path).unwrap()));
        }
    }
}

/// The functions that stand in no other block, each with its attributes, as rustfmt writes them.
fn functions(source: &str) -> Functions {
    let mut functions = Functions::new();
    for item in source.split("\n\n") {
        let named = item
            .lines()
            .find(|line| !line.starts_with(char::is_whitespace) && line.contains("fn "));
        let name = named.and_then(|line| line.split("fn ").nth(1)?.split(['(', '<']).next());
        let Some(name) = name else { continue };
        // A body may have empty lines.
        let begin = item.as_ptr().addr() - source.as_ptr().addr();
        let text = &source[begin..];
        let end = text.find("\n}\n").unwrap_or(text.len());
        functions.insert(name.to_owned(), text[..end].to_owned());
    }
    functions
}
