//! The terminals of a container.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use kandev_helper::wire::{Command, Exit, Message, Notice, Reason, Reply};

use crate::failure::{Failure, Result};
use crate::outgoing::Outgoing;
use crate::terminal::Terminal;

/// How many there may be at once.
const MOST: usize = 64;

/// Locks, and takes what a thread that panicked left as it is.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Terminals {
    open: Mutex<BTreeMap<String, Arc<Terminal>>>,
    outgoing: Arc<Outgoing>,
}

impl Terminals {
    pub(crate) fn new(outgoing: Arc<Outgoing>) -> Self {
        Self {
            open: Mutex::default(),
            outgoing,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.open).is_empty()
    }

    fn all(&self) -> Vec<Arc<Terminal>> {
        lock(&self.open).values().map(Arc::clone).collect()
    }

    fn find(&self, id: &str) -> Result<Arc<Terminal>> {
        let found = lock(&self.open).get(id).map(Arc::clone);
        found.ok_or_else(|| Failure::new(Reason::UnknownTerminal, format!("there is no terminal '{id}'")))
    }

    pub(crate) fn create(&self, command: &Command) -> Result<Reply> {
        let mut open = lock(&self.open);
        if open.contains_key(&command.id) {
            return Ok(Reply::Done);
        }
        if open.len() >= MOST {
            return Err(Failure::new(
                Reason::TooMany,
                format!("{MOST} terminals are open"),
            ));
        }
        let terminal = Terminal::start(command, Arc::clone(&self.outgoing))?;
        open.insert(command.id.clone(), terminal);
        drop(open);
        // Its output is told from now on.
        self.outgoing.wake();
        Ok(Reply::Done)
    }

    pub(crate) fn output(&self, id: &str) -> Result<Reply> {
        Ok(self.find(id)?.output())
    }

    /// Answers at the end of the process.
    pub(crate) fn wait(&self, id: &str, connection: u64, tag: u64) -> Result<()> {
        self.find(id)?.wait(connection, tag);
        Ok(())
    }

    /// Waits no longer; false if nobody did under this tag.
    pub(crate) fn unwait(&self, connection: u64, tag: u64) -> bool {
        self.all().iter().any(|terminal| terminal.unwait(connection, tag))
    }

    pub(crate) fn kill(&self, id: &str) -> Result<Reply> {
        self.find(id)?.kill();
        Ok(Reply::Done)
    }

    pub(crate) fn release(&self, id: &str) -> Reply {
        let found = lock(&self.open).remove(id);
        if let Some(terminal) = found {
            terminal.release();
        }
        Reply::Done
    }

    pub(crate) fn follow(&self, id: &str, from: u64) -> Result<Reply> {
        self.find(id)?.follow(from);
        self.outgoing.wake();
        Ok(Reply::Done)
    }

    /// The connection is gone: nobody hears any more.
    pub(crate) fn unfollow(&self) {
        for terminal in self.all() {
            terminal.unfollow();
        }
    }

    /// What is to be told now.
    pub(crate) fn notices(&self, now: Instant) -> Vec<Notice> {
        let told = |terminal: Arc<Terminal>| terminal.notices(now);
        self.all().into_iter().flat_map(told).collect()
    }

    pub(crate) fn release_all(&self) {
        let all = std::mem::take(&mut *lock(&self.open));
        for terminal in all.values() {
            terminal.release();
        }
    }
}

/// The answer to who waits.
pub(crate) fn exited(tag: u64, exit: Exit) -> Vec<u8> {
    Message::Reply(tag, Reply::Exited(exit)).encode()
}
