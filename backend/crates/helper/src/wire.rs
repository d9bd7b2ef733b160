//! Frames: a length of four bytes, a tag of eight, a kind of one, and the fields, all numbers big-endian.
//!
//! A tag names a request, and its reply; notices have tag 0.

mod codec;

use std::io::{self, Read};

/// No frame is longer: the largest file, and what goes with it.
pub const MAX_FRAME: usize = 17 << 20;

/// What is asked of the helper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Some lines of a file, or all of it.
    Read(ReadFile),
    /// All of a file.
    Write(WriteFile),
    /// A process in a group of its own. Asked again under the same id, nothing happens.
    Create(Command),
    /// What a terminal has put out so far.
    Output(String),
    /// The end of a terminal's process.
    Wait(String),
    /// Kills the process group.
    Kill(String),
    /// Kills the process group, and forgets the terminal. Of an unknown one, nothing.
    Release(String),
    /// Tells the terminal's output as it comes, from this offset on.
    Follow(String, u64),
    /// Nobody wants the answer to the request of this tag any more: if it only waits, it fails now as [`Reason::Cancelled`]; if
    /// it is being done, it is done. It has no answer of its own.
    Cancel,
}

/// A file to be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadFile {
    /// Absolute.
    pub path: String,
    /// Directories, one of which the file must be in.
    pub roots: Vec<String>,
    /// The first line, from 1.
    pub line: u64,
    /// How many lines.
    pub limit: Option<u64>,
    /// The most that is given.
    pub max_bytes: u64,
}

/// A file to be written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WriteFile {
    /// Absolute.
    pub path: String,
    /// Directories, one of which the file must be in.
    pub roots: Vec<String>,
    /// What shall be in it.
    pub content: Vec<u8>,
}

/// A process to be run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Command {
    /// The terminal's id.
    pub id: String,
    /// A program, or a command line for the shell.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Added to the container's environment.
    pub env: Vec<(String, String)>,
    /// Absolute.
    pub cwd: String,
    /// How many bytes of output are kept.
    pub keep: u64,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// By itself.
    Code(u32),
    /// By a signal.
    Signal(u32),
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The file's lines.
    Content(Vec<u8>),
    /// The file is written.
    Written {
        /// It was not there before.
        created: bool,
        /// It was replaced in one step.
        atomic: bool,
    },
    /// It is so.
    Done,
    /// A terminal's output.
    Output {
        /// The newest of it.
        bytes: Vec<u8>,
        /// How much there has been.
        total: u64,
        /// The process has ended.
        exit: Option<Exit>,
    },
    /// The process has ended.
    Exited(Exit),
    /// It was not done.
    Failed(Reason, String),
}

/// What is told unasked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The first words of a connection.
    Hello(u8),
    /// Output, which begins after so many bytes.
    Output(String, u64, Vec<u8>),
    /// The process has ended, and its output has been told.
    Exited(String, Exit),
}

/// What comes from the helper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// The answer to the request of this tag.
    Reply(u64, Reply),
    /// Something else.
    Notice(Notice),
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident => $text:literal),+ $(,)?) => {
        /// Why something was not done.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Reason { $($(#[$doc])* $name),+ }

        impl Reason {
            const ALL: &[Self] = &[$(Self::$name),+];

            /// For programs.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }
        }
    };
}
reasons! {
    /// The path is not absolute, or cannot be one.
    InvalidPath => "invalid_path",
    /// The path leads out of the roots.
    OutsideRoots => "outside_roots",
    /// Nothing is there.
    NotFound => "not_found",
    /// It is a directory, or something else that has no text.
    NotAFile => "not_a_file",
    /// It is not UTF-8.
    NotText => "not_text",
    /// It has more than is allowed.
    TooLarge => "too_large",
    /// The agent's user may not.
    PermissionDenied => "permission_denied",
    /// Nobody may write there.
    ReadOnly => "read_only",
    /// The disk is full.
    NoSpace => "no_space",
    /// There is no such program.
    CommandNotFound => "command_not_found",
    /// There is no such directory to work in.
    InvalidCwd => "invalid_cwd",
    /// There is no such terminal.
    UnknownTerminal => "unknown_terminal",
    /// Too many are open.
    TooMany => "too_many",
    /// It was taken back before it was begun.
    Cancelled => "cancelled",
    /// Anything else that the system said.
    Io => "io",
}

/// Bytes that are no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the frame cannot be read")
    }
}

impl std::error::Error for Malformed {}

impl From<Malformed> for io::Error {
    fn from(error: Malformed) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// The length of the frame that begins with these bytes, without them.
pub fn length(head: [u8; 4]) -> Result<usize, Malformed> {
    let length = u32::from_be_bytes(head) as usize;
    if length > MAX_FRAME {
        Err(Malformed)
    } else {
        Ok(length)
    }
}

/// Reads a frame without its length; none at the end.
pub fn read(from: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut head = [0; 4];
    match from.read_exact(&mut head) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let mut frame = vec![0; length(head)?];
    from.read_exact(&mut frame)?;
    Ok(Some(frame))
}
