//! Waiting for an instance to change, whichever server holds it.

use std::sync::Arc;
use std::time::Duration;

use kandev_domain::InstanceId;
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, sleep_until};

use crate::Orchestrator;
use crate::instance::View;

/// How often to look where no wake came: another server holds the instance, or this one is about to.
const POLL: Duration = Duration::from_millis(500);

/// Says when to look at the database again: subscribe, look, wait. What changed after the subscription ends the wait.
pub struct Changes {
    orchestrator: Arc<Orchestrator>,
    id: InstanceId,
    watch: Option<watch::Receiver<View>>,
    others: broadcast::Receiver<Option<InstanceId>>,
}

impl std::fmt::Debug for Changes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Changes")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Changes {
    /// Of an instance.
    pub fn of(orchestrator: &Arc<Orchestrator>, id: InstanceId) -> Self {
        Self {
            orchestrator: Arc::clone(orchestrator),
            id,
            watch: None,
            others: orchestrator.news(),
        }
    }

    /// From here on changes count.
    pub fn subscribe(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.mark_unchanged();
        } else {
            let watch = self.orchestrator.watch(self.id);
            self.watch = watch.filter(|watch| watch.has_changed().is_ok());
        }
        self.others = self.others.resubscribe();
    }

    /// The next wait ends soon, whatever happens: the look that was meant did not succeed.
    pub fn look_soon(&mut self) {
        self.watch = None;
    }

    /// What this server's task of the instance shows, if it holds it.
    pub fn view(&self) -> Option<View> {
        self.watch.as_ref().map(|watch| watch.borrow().clone())
    }

    /// Waits until the instance may have changed. Cancel safe.
    pub async fn wait(&mut self) {
        self.wait_until(|_| true).await;
    }

    /// The same, but passes over what this server's task shows and is not `worth` a look.
    pub async fn wait_until(&mut self, worth: impl Fn(&View) -> bool) {
        while let Some(watch) = &mut self.watch {
            if watch.changed().await.is_err() {
                // The task has ended, or has let the instance go.
                self.watch = None;
                return;
            }
            if worth(&watch.borrow_and_update()) {
                return;
            }
        }
        let poll = Instant::now() + POLL;
        loop {
            let news = tokio::select! {
                news = self.others.recv() => news,
                () = sleep_until(poll) => return,
            };
            match news {
                Ok(Some(id)) if id != self.id => {}
                // Also when too many came to read them all.
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => return,
                Err(broadcast::error::RecvError::Closed) => return sleep_until(poll).await,
            }
        }
    }
}
