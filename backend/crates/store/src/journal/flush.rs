//! Brings to the disk what was committed without waiting for it, while the writer goes on.
//!
//! A commit that waits makes all before it durable, on whichever connection it is made. But it tells only of transactions
//! that began while its connection was there: a crash of the database ends every connection, and what was answered before
//! may be lost with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use tokio::sync::watch;

use crate::error::{Result, StoreError};

/// How old what is not on the disk may become, while the database is there.
const EVERY: Duration = Duration::from_millis(250);
/// How long a connection may take to be made.
const CONNECT_LIMIT: Duration = Duration::from_secs(15);

/// How far the writer's transactions have come; they are numbered from 1.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// The last that was begun.
    pub(super) begun: AtomicU64,
    /// The last that was answered.
    pub(super) answered: watch::Sender<u64>,
    /// All behind the first and up to the second are on the disk.
    pub(super) flushed: watch::Sender<(u64, u64)>,
}

/// See the module's text. Made by [`JournalWriter::flusher`](super::JournalWriter::flusher).
#[derive(Debug)]
pub struct Flusher {
    options: PgConnectOptions,
    marks: Arc<Marks>,
    /// With the last transaction that may have begun before it was there.
    connection: Option<(PgConnection, u64)>,
}

impl Flusher {
    pub(super) fn new(options: PgConnectOptions, marks: Arc<Marks>) -> Self {
        Self {
            options,
            marks,
            connection: None,
        }
    }

    /// Flushes a moment after there is something to flush, for ever.
    pub async fn run(mut self) {
        let mut answered = self.marks.answered.subscribe();
        let mut done = 0;
        loop {
            // The writer, who keeps all of it, has its own trouble with the database then.
            if let Err(error) = self.connect().await {
                tracing::debug!(%error, "what is committed stays off the disk for now");
            } else if answered.wait_for(|answered| *answered > done).await.is_err() {
                return;
            }
            tokio::time::sleep(EVERY).await;
            match self.flush().await {
                Ok(until) => done = until,
                Err(error) => tracing::debug!(%error, "what was committed last may not be on the disk"),
            }
        }
    }

    /// Flushes what has been answered, and tells how far that is.
    pub async fn flush(&mut self) -> Result<u64> {
        self.connect().await?;
        let until = *self.marks.answered.borrow();
        let Some((mut connection, since)) = self.connection.take() else {
            return Ok(0);
        };
        // Not even a commit that waits would, of a transaction that wrote nothing.
        sqlx::query("SELECT pg_logical_emit_message(true, 'kandev', '')")
            .execute(&mut connection)
            .await?;
        self.marks.flushed.send_replace((since, until));
        self.connection = Some((connection, since));
        Ok(until)
    }

    /// Connects, unless it is connected.
    pub async fn connect(&mut self) -> Result<()> {
        if self.connection.is_some() {
            return Ok(());
        }
        let options = self.options.clone().application_name("kandev-flush");
        let options = options.options([("synchronous_commit", "on")]);
        let connect = async {
            PgConnection::connect_with(&options)
                .await
                .map_err(StoreError::Unavailable)
        };
        let connection = crate::within(CONNECT_LIMIT, connect).await?;
        self.connection = Some((connection, self.marks.begun.load(Ordering::SeqCst)));
        Ok(())
    }
}
