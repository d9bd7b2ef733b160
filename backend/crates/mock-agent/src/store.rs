//! Sessions on disk: a JSONL file each, a header first, then a line per finished turn.
//!
//! A turn is one write of one line, synced. A crash can tear only the last line, which is skipped when read and closed
//! off by the next append.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::clock;

/// Largest file that is read back, in bytes.
const MAX_FILE: u64 = 256 << 20;

/// The first line of a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Header {
    pub(crate) session_id: String,
    pub(crate) cwd: String,
    pub(crate) created_at: String,
}

/// One finished turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StoredTurn {
    /// The prompt's content blocks.
    pub(crate) prompt: Vec<Value>,
    /// The updates sent, in order.
    pub(crate) updates: Vec<Value>,
    /// The text of the answer.
    pub(crate) text: String,
    /// Stop reason, or `error`.
    pub(crate) stop: String,
    /// The client's mark of the prompt, a boundary for forks (Koda).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) entry: Option<String>,
    /// The session's title since this turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) title: Option<String>,
    pub(crate) ended_at: String,
}

/// A session as read back.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Stored {
    pub(crate) header: Header,
    pub(crate) turns: Vec<StoredTurn>,
}

/// The directory of sessions.
#[derive(Debug)]
pub(crate) struct Store {
    dir: PathBuf,
}

impl Store {
    /// Makes the directory if need be.
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let dir = dir.to_owned();
        Ok(Self { dir })
    }

    /// None for ids that are no plain file name.
    fn path(&self, id: &str) -> Option<PathBuf> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        let legal = !id.is_empty() && id.len() <= 128 && id.bytes().all(plain);
        legal.then(|| self.dir.join(format!("{id}.jsonl")))
    }

    /// A file for what else is kept of a session.
    pub(crate) fn beside(&self, id: &str, what: &str) -> Option<PathBuf> {
        self.path(id).map(|path| path.with_extension(what))
    }

    /// Writes a new session, with the turns it inherits.
    pub(crate) fn create(&self, id: &str, cwd: &str, turns: &[StoredTurn]) -> io::Result<()> {
        let path = self.path(id).ok_or(io::ErrorKind::InvalidInput)?;
        let header = Header {
            session_id: id.to_owned(),
            cwd: cwd.to_owned(),
            created_at: clock::now(),
        };
        let mut bytes = serde_json::to_vec(&header)?;
        bytes.push(b'\n');
        for turn in turns {
            serde_json::to_writer(&mut bytes, turn)?;
            bytes.push(b'\n');
        }
        let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        File::open(&self.dir)?.sync_all()
    }

    /// Adds a finished turn; it is on disk when this returns.
    pub(crate) fn append(&self, id: &str, turn: &StoredTurn) -> io::Result<()> {
        let path = self.path(id).ok_or(io::ErrorKind::InvalidInput)?;
        let mut file = OpenOptions::new().read(true).append(true).open(path)?;
        let mut bytes = Vec::new();
        let mut last = [b'\n'];
        if file.metadata()?.len() > 0 {
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
        }
        if last != *b"\n" {
            bytes.push(b'\n');
        }
        serde_json::to_writer(&mut bytes, turn)?;
        bytes.push(b'\n');
        file.write_all(&bytes)?;
        file.sync_data()
    }

    /// Reads a session; None if there is none of that id.
    pub(crate) fn load(&self, id: &str) -> io::Result<Option<Stored>> {
        let Some(path) = self.path(id) else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        match File::open(path) {
            Ok(file) => file.take(MAX_FILE).read_to_end(&mut bytes)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let mut lines = bytes.split(|b| *b == b'\n');
        let Ok(header) = serde_json::from_slice(lines.next().unwrap_or_default()) else {
            return Ok(None);
        };
        let turns = lines
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect();
        Ok(Some(Stored { header, turns }))
    }

    /// Removes a session.
    pub(crate) fn delete(&self, id: &str) -> io::Result<()> {
        let path = self.path(id).ok_or(io::ErrorKind::NotFound)?;
        fs::remove_file(path)?;
        File::open(&self.dir)?.sync_all()
    }

    /// All sessions.
    pub(crate) fn list(&self) -> io::Result<Vec<Stored>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let name = entry?.file_name();
            let Some(id) = name.to_str().and_then(|name| name.strip_suffix(".jsonl")) else {
                continue;
            };
            found.extend(self.load(id)?);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(text: &str) -> StoredTurn {
        StoredTurn {
            prompt: vec![serde_json::json!({"type": "text", "text": "hi"})],
            updates: vec![],
            text: text.to_owned(),
            stop: "end_turn".to_owned(),
            entry: None,
            title: None,
            ended_at: clock::now(),
        }
    }

    #[test]
    fn turns_come_back_and_a_torn_one_is_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("deep/er")).unwrap();
        store.create("a-1", "/w", &[turn("zero")]).unwrap();
        store.append("a-1", &turn("one")).unwrap();
        let path = store.path("a-1").unwrap();
        let mut torn = fs::read(&path).unwrap();
        torn.extend_from_slice(b"{\"prompt\":[");
        fs::write(&path, torn).unwrap();
        store.append("a-1", &turn("two")).unwrap();
        let stored = store.load("a-1").unwrap().unwrap();
        let texts: Vec<&str> = stored.turns.iter().map(|t| t.text.as_str()).collect();
        assert_eq!(texts, ["zero", "one", "two"]);
        assert_eq!(stored.header.cwd, "/w");
        assert_eq!(store.list().unwrap(), [stored]);
        store.delete("a-1").unwrap();
        assert_eq!(store.load("a-1").unwrap(), None);
        assert!(store.delete("a-1").is_err() && store.delete("../x").is_err());
    }

    #[test]
    fn ids_are_no_paths() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        for id in ["", "../x", "a/b", "a.b"] {
            assert_eq!(store.load(id).unwrap(), None);
            assert!(store.create(id, "/", &[]).is_err());
        }
        assert_eq!(store.load("unknown").unwrap(), None);
    }
}
