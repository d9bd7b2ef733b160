//! This run's lease, and the leases of the others.
//!
//! A run registers, gets its number (see [`kandev_store::servers`]), and renews its lease several times within its length. A
//! run that is found to have been ended lets all its instances go and begins anew, with another number. Of another run, the
//! end is known at once where it shares our data directory ([`crate::home`]); else it is taken for ended once its lease has
//! run out, but not before we ourselves have had the database for the length of a lease without a break: after an
//! outage of the database every lease is late, and everybody gets the time to renew.

use std::sync::Arc;
use std::time::Duration;

use kandev_store::servers::{End, Register};
use kandev_store::{Fence, PgPool, StoreError};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::home::{Alive, Home};
use crate::settings::Settings;

/// How often a lease is renewed within its length.
const BEATS: u32 = 5;
/// How often what is long over is forgotten, in beats.
const PRUNE_EVERY: u32 = 600;

/// This run lost its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lost;

/// A run, from its registration to its end.
#[derive(Debug)]
pub(crate) struct Term {
    pub(crate) fence: Fence,
    /// The run has been ended: what it holds is another's.
    pub(crate) lost: CancellationToken,
    /// Until then nobody ends it for being late.
    current_until: watch::Sender<Instant>,
}

impl Term {
    fn new(fence: Fence, until: Instant) -> Arc<Self> {
        Arc::new(Self {
            fence,
            lost: CancellationToken::new(),
            current_until: watch::Sender::new(until),
        })
    }

    /// Nobody can have taken over.
    pub(crate) fn is_current(&self) -> bool {
        !self.lost.is_cancelled() && Instant::now() < *self.current_until.borrow()
    }

    /// Waits until nobody can have taken over: at once, unless this process stood still or the database is away.
    pub(crate) async fn current(&self) -> Result<(), Lost> {
        let mut until = self.current_until.subscribe();
        loop {
            if self.is_current() {
                return Ok(());
            }
            tokio::select! {
                () = self.lost.cancelled() => return Err(Lost),
                changed = until.changed() => changed.map_err(|_| Lost)?,
            }
        }
    }
}

/// What the rest of the process sees of it.
#[derive(Debug, Clone)]
pub(crate) struct Lease {
    term: watch::Receiver<Option<Arc<Term>>>,
    others: watch::Receiver<bool>,
}

impl Lease {
    /// The run, if it is registered.
    pub(crate) fn term(&self) -> Option<Arc<Term>> {
        self.term.borrow().clone()
    }

    /// Waits for the registration.
    pub(crate) async fn registered(&self) -> Result<Arc<Term>, StoreError> {
        let mut term = self.term.clone();
        let limit = Duration::from_secs(10);
        match timeout(limit, term.wait_for(Option::is_some)).await {
            Ok(Ok(term)) => term.clone().ok_or(StoreError::Fenced),
            Ok(Err(_)) | Err(_) => Err(StoreError::no_answer()),
        }
    }

    /// Other servers share the database and the deployment.
    pub(crate) fn has_others(&self) -> bool {
        *self.others.borrow()
    }
}

/// Keeps the lease; made by [`new`], to be [run](Keeper::run) as a task.
pub(crate) struct Keeper {
    register: Register,
    name: String,
    length: Duration,
    home: Option<Home>,
    term: watch::Sender<Option<Arc<Term>>>,
    others: watch::Sender<bool>,
    /// Told when there are instances that no living run holds, and once at the start.
    unheld: Arc<Notify>,
    alive: Option<Alive>,
    /// Since when every beat was answered in time.
    unbroken_since: Option<Instant>,
    beats: u32,
}

/// A keeper, and what it shows.
pub(crate) fn new(pool: &PgPool, settings: &Settings, unheld: Arc<Notify>) -> (Keeper, Lease) {
    let (term, term_seen) = watch::channel(None);
    let (others, others_seen) = watch::channel(false);
    let keeper = Keeper {
        register: Register::new(pool, &settings.owner),
        name: settings.server_name.clone(),
        length: settings.lease,
        home: None,
        term,
        others,
        unheld,
        alive: None,
        unbroken_since: None,
        beats: 0,
    };
    let lease = Lease {
        term: term_seen,
        others: others_seen,
    };
    (keeper, lease)
}

impl Keeper {
    /// Keeps the lease until `closing`, and then gives it back.
    pub(crate) async fn run(mut self, data_dir: std::path::PathBuf, closing: CancellationToken) {
        let opened = tokio::task::spawn_blocking(move || Home::open(&data_dir)).await;
        match opened.map_err(std::io::Error::other).flatten() {
            Ok(home) => self.home = Some(home),
            Err(error) => {
                tracing::warn!(%error, "the data directory cannot show that this server lives; its lease will");
            }
        }
        let mut interval = tokio::time::interval(self.length / BEATS);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = interval.tick() => {}
                () = closing.cancelled() => break,
            }
            tokio::select! {
                () = self.beat() => {}
                () = closing.cancelled() => break,
            }
        }
        self.give_back().await;
    }

    async fn beat(&mut self) {
        // An answer that takes longer than this says nothing about now.
        match timeout(self.length / 2, self.try_beat()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.missed(&error),
            Err(_) => self.missed(&"the database does not answer"),
        }
    }

    fn missed(&mut self, why: &dyn std::fmt::Display) {
        if self.unbroken_since.take().is_some() || self.beats == 0 {
            tracing::warn!(%why, "the lease could not be renewed yet");
        }
    }

    async fn try_beat(&mut self) -> Result<(), StoreError> {
        let asked = Instant::now();
        let fence = self.renew().await?;
        self.unbroken_since.get_or_insert(asked);
        self.look_at_others(fence).await?;
        if self.register.any_unheld().await? || self.beats == 0 {
            self.unheld.notify_one();
        }
        if self.beats.is_multiple_of(PRUNE_EVERY) {
            self.register.prune().await?;
        }
        self.beats = self.beats.wrapping_add(1);
        Ok(())
    }

    async fn renew(&mut self) -> Result<Fence, StoreError> {
        let asked = Instant::now();
        let term = self.term.borrow().clone();
        if let Some(term) = term {
            if self.register.renew(term.fence, self.length).await? && !term.lost.is_cancelled() {
                term.current_until.send_replace(asked + self.length);
                return Ok(term.fence);
            }
            tracing::warn!(fence = %term.fence, "another server has ended this run: its instances are let go");
            term.lost.cancel();
            self.alive = None;
        }
        let home = self.home.as_ref().map(|home| home.id);
        let fence = self.register.begin(&self.name, home, self.length).await?;
        self.alive = self.home.as_ref().and_then(|home| match home.show(fence) {
            Ok(alive) => Some(alive),
            Err(error) => {
                tracing::warn!(%error, "the data directory cannot show that this server lives; its lease will");
                None
            }
        });
        tracing::info!(%fence, name = self.name, "registered");
        self.term
            .send_replace(Some(Term::new(fence, asked + self.length)));
        Ok(fence)
    }

    async fn look_at_others(&mut self, fence: Fence) -> Result<(), StoreError> {
        let mut left = 0;
        for other in self.register.others(fence).await? {
            let ours = self.home.as_ref().filter(|home| other.home == Some(home.id));
            let trusted = self
                .unbroken_since
                .is_some_and(|since| since.elapsed() >= self.length);
            let why = if ours.is_some_and(|home| home.has_ended(other.fence)) {
                End::Known
            } else if other.late && trusted {
                End::Late
            } else {
                left += 1;
                continue;
            };
            if self.register.end(other.fence, why).await? {
                tracing::warn!(fence = %other.fence, name = other.name, ?why, "another server is gone; its instances are taken up");
            }
        }
        self.others
            .send_if_modified(|others| std::mem::replace(others, left > 0) != (left > 0));
        Ok(())
    }

    /// Others may take up at once what this run held.
    async fn give_back(&mut self) {
        let Some(term) = self.term.send_replace(None) else {
            return;
        };
        let give_back = self.register.end(term.fence, End::Known);
        match timeout(self.length, give_back).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "the lease could not be given back and runs out by itself");
            }
            Err(_) => tracing::warn!("the lease could not be given back in time and runs out by itself"),
        }
        term.lost.cancel();
    }
}
