//! The one writer of stdout. Every write is a whole piece: nothing comes between its bytes.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Mutex;

use crate::sync::lock;

struct Inner {
    stdout: io::Stdout,
    copy: Option<File>,
}

/// Stdout, with the copy that `MOCK_TURN_COPY` asks for.
pub(crate) struct Out(Mutex<Inner>);

impl Out {
    pub(crate) fn open(copy: Option<&Path>) -> io::Result<Self> {
        let copy = match copy {
            Some(path) => Some(OpenOptions::new().create(true).append(true).open(path)?),
            None => None,
        };
        let stdout = io::stdout();
        Ok(Self(Mutex::new(Inner { stdout, copy })))
    }

    /// Writes a line; the newline is added.
    pub(crate) fn line(&self, line: &str) {
        let mut bytes = Vec::with_capacity(line.len() + 1);
        bytes.extend_from_slice(line.as_bytes());
        bytes.push(b'\n');
        self.bytes(&bytes);
    }

    /// Writes bytes as they are. The copy gets them after stdout took them, so it never holds more than was said.
    pub(crate) fn bytes(&self, bytes: &[u8]) {
        let mut inner = lock(&self.0);
        if inner.stdout.write_all(bytes).is_err() || inner.stdout.flush().is_err() {
            // Nobody reads any more.
            std::process::exit(1);
        }
        if let Some(copy) = &mut inner.copy
            && let Err(e) = copy.write_all(bytes)
        {
            complain(&format!("MOCK_TURN_COPY: {e}"));
            std::process::exit(1);
        }
    }

    /// Exits once no line is half written.
    pub(crate) fn exit(&self, code: i32) -> ! {
        let _whole = lock(&self.0);
        std::process::exit(code)
    }
}

/// Writes a line to stderr; that it cannot be written is no reason to stop.
pub(crate) fn complain(message: &str) {
    let mut line = message.to_owned();
    line.push('\n');
    let _ = io::stderr().write_all(line.as_bytes());
}
