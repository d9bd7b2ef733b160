//! The group commit: one transaction at a time for the whole process, and whatever arrived meanwhile goes into the next.
//!
//! So the latency is one commit when little happens, and the throughput grows with the load. A batch is acknowledged
//! only after its commit; an instance that waits for the acknowledgement takes no more output from its agent, which is how
//! a slow database holds agents back.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use kandev_domain::Clock;
use kandev_store::journal::{Batch, JournalWriter};
use kandev_store::notify::Wake;
use kandev_store::{PgPool, StoreError};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::lease::Lease;
use crate::wakes::Wakes;

/// How many instances' batches may wait.
const QUEUE: usize = 1024;
/// How many bytes go into one transaction, unless a single batch has more.
const MAX_COMMIT_BYTES: usize = 8 << 20;
/// How many batches go into one transaction.
const MAX_COMMIT_BATCHES: usize = 512;
/// Waits between attempts while the database is away.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LAST: Duration = Duration::from_secs(2);

/// Why a batch was not stored.
#[derive(Debug, Clone, thiserror::Error)]
pub enum JournalError {
    /// The database refused it, which is a defect of kandev's.
    #[error("the journal refused a batch: {0}")]
    Refused(String),
    /// Another server has taken over what this one held.
    #[error("another server has taken over")]
    Fenced,
    /// The process is ending.
    #[error("the journal is closed")]
    Closed,
}

/// The database does not take what is to be stored; it is tried again until it does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// Since when.
    pub since: DateTime<Utc>,
    /// What it said first.
    pub error: String,
}

struct Entry {
    batch: Batch,
    stored: oneshot::Sender<Result<(), JournalError>>,
}

/// A way to the journal.
#[derive(Debug, Clone)]
pub struct Journal {
    queue: mpsc::Sender<Entry>,
    trouble: watch::Receiver<Option<Trouble>>,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry")
            .field("instance", &self.batch.instance_id())
            .finish_non_exhaustive()
    }
}

impl Journal {
    /// Starts the writer, which wakes readers after each commit. After `closing` it takes no more and stores the rest; with
    /// `abandon` it ends at once.
    pub(crate) fn start(
        pool: &PgPool,
        clock: Arc<dyn Clock>,
        (lease, wakes): (Lease, Wakes),
        tracker: &TaskTracker,
        closing: CancellationToken,
        abandon: CancellationToken,
    ) -> Self {
        let (queue, entries) = mpsc::channel(QUEUE);
        let (trouble, watcher) = watch::channel(None);
        let writer = JournalWriter::new(pool);
        let flusher = writer.flusher();
        let over = closing.clone();
        tracker.spawn(async move {
            tokio::select! {
                () = flusher.run() => {}
                () = over.cancelled() => {}
            }
        });
        tracker.spawn(async move {
            tokio::select! {
                () = run((writer, trouble), clock, (lease, wakes), entries, closing) => {}
                () = abandon.cancelled() => tracing::warn!("the journal was closed before all was stored"),
            }
        });
        Self {
            queue,
            trouble: watcher,
        }
    }

    /// What keeps it from storing, if anything does.
    pub fn trouble(&self) -> Option<Trouble> {
        self.trouble.borrow().clone()
    }

    /// Stores a batch, and answers once it is.
    pub async fn store(&self, batch: Batch) -> Result<(), JournalError> {
        let (stored, answer) = oneshot::channel();
        self.queue
            .send(Entry { batch, stored })
            .await
            .map_err(|_| JournalError::Closed)?;
        answer.await.map_err(|_| JournalError::Closed)?
    }
}

/// The writer, and where its trouble is told.
type Writer = (JournalWriter, watch::Sender<Option<Trouble>>);

async fn run(
    mut writer: Writer,
    clock: Arc<dyn Clock>,
    (lease, wakes): (Lease, Wakes),
    mut entries: mpsc::Receiver<Entry>,
    closing: CancellationToken,
) {
    loop {
        let first = tokio::select! {
            first = entries.recv() => first,
            () = closing.cancelled(), if !entries.is_closed() => {
                entries.close();
                continue;
            }
        };
        let Some(first) = first else { return };
        let mut size = first.batch.size();
        let mut batches = vec![first.batch];
        let mut waiting = vec![first.stored];
        while size < MAX_COMMIT_BYTES && batches.len() < MAX_COMMIT_BATCHES {
            let Ok(entry) = entries.try_recv() else { break };
            size += entry.batch.size();
            batches.push(entry.batch);
            waiting.push(entry.stored);
        }
        let others = if lease.has_others() {
            wakes_of(&batches)
        } else {
            Vec::new()
        };
        commit(&mut writer, clock.as_ref(), batches, waiting).await;
        wakes.committed();
        for wake in others {
            if let Err(error) = writer.0.wake(&wake).await {
                tracing::debug!(%error, "other servers look by themselves");
            }
        }
    }
}

/// What other servers may wait for of these.
fn wakes_of(batches: &[Batch]) -> Vec<Wake> {
    let ids = batches.iter().map(Batch::instance_id).collect();
    let mut wakes = vec![Wake::Journal(ids)];
    if batches.iter().any(Batch::answers) {
        wakes.push(Wake::Answers);
    }
    wakes
}

async fn commit(
    writer: &mut Writer,
    clock: &dyn Clock,
    batches: Vec<Batch>,
    waiting: Vec<oneshot::Sender<Result<(), JournalError>>>,
) {
    match write_until_answered(writer, clock, &batches).await {
        Ok(()) => waiting.into_iter().for_each(|w| drop(w.send(Ok(())))),
        // One of them is at fault: each gets its own chance, so that an instance's trouble stays its own.
        Err(_) if batches.len() > 1 => {
            for (batch, stored) in batches.into_iter().zip(waiting) {
                let result = write_until_answered(writer, clock, std::slice::from_ref(&batch)).await;
                report(&batch, result, stored);
            }
        }
        Err(error) => {
            if let (Some(batch), Some(stored)) = (batches.first(), waiting.into_iter().next()) {
                report(batch, Err(error), stored);
            }
        }
    }
}

fn report(batch: &Batch, result: Result<(), StoreError>, stored: oneshot::Sender<Result<(), JournalError>>) {
    let result = result.map_err(|error| {
        if matches!(error, StoreError::Fenced) {
            return JournalError::Fenced;
        }
        tracing::error!(instance_id = %batch.instance_id(), %error, "the journal refused a batch");
        JournalError::Refused(error.to_string())
    });
    // An instance that does not wait any more has ended; its batch is stored all the same.
    let _ = stored.send(result);
}

/// Tries again for as long as the database is away.
async fn write_until_answered(
    (writer, trouble): &mut Writer,
    clock: &dyn Clock,
    batches: &[Batch],
) -> Result<(), StoreError> {
    let mut pause = RETRY_FIRST;
    let mut attempts = 0_u32;
    loop {
        let result = match attempts {
            0 => writer.write(batches, clock.now()).await,
            // The connection may have broken after the commit and before its answer.
            _ => match writer.has_written(batches, clock.now()).await {
                Ok(true) => Ok(()),
                Ok(false) => writer.write(batches, clock.now()).await,
                Err(error) => Err(error),
            },
        };
        match result {
            Err(error) if error.is_transient() => {
                attempts += 1;
                if attempts == 1 {
                    tracing::warn!(%error, "the journal waits for the database");
                    let (since, error) = (clock.now(), error.to_string());
                    trouble.send_replace(Some(Trouble { since, error }));
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(RETRY_LAST);
            }
            result => {
                if attempts > 0 {
                    tracing::info!(attempts, "the journal has its database again");
                    trouble.send_replace(None);
                }
                return result;
            }
        }
    }
}
