//! How many instances may have a container at once. Who has to wait is served by priority, then by age.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use kandev_domain::InstanceId;
use tokio::sync::oneshot;

/// Higher priority first, then the older id.
type Rank = (std::cmp::Reverse<i32>, InstanceId);

#[derive(Debug)]
struct State {
    /// Negative while instances that were taken up have more than there are.
    free: isize,
    waiting: BTreeMap<Rank, oneshot::Sender<Slot>>,
}

/// The slots of a server.
#[derive(Debug, Clone)]
pub(crate) struct Slots(Arc<Mutex<State>>);

/// The right to have a container, until it is dropped.
#[derive(Debug)]
pub(crate) struct Slot(Slots);

/// A slot, or a place in the queue.
#[derive(Debug)]
pub(crate) enum Admission {
    /// Go on.
    Now(Slot),
    /// Wait for it.
    Later(Place),
}

/// A place in the queue, given up when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    rank: Rank,
    slots: Slots,
    /// Resolves to the slot.
    pub(crate) turn: oneshot::Receiver<Slot>,
}

impl Slots {
    /// So many.
    pub(crate) fn new(count: usize) -> Self {
        let count = isize::try_from(count).unwrap_or(isize::MAX);
        Self(Arc::new(Mutex::new(State {
            free: count,
            waiting: BTreeMap::new(),
        })))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a slot.
    pub(crate) fn ask(&self, id: InstanceId, priority: i32) -> Admission {
        let mut state = self.lock();
        if state.free > 0 {
            state.free -= 1;
            return Admission::Now(Slot(self.clone()));
        }
        let rank = (std::cmp::Reverse(priority), id);
        let (grant, turn) = oneshot::channel();
        state.waiting.insert(rank, grant);
        Admission::Later(Place {
            rank,
            slots: self.clone(),
            turn,
        })
    }

    /// Takes a slot whether or not there is one: for an instance that has its container already.
    pub(crate) fn take(&self) -> Slot {
        self.lock().free -= 1;
        Slot(self.clone())
    }

    /// How many are before this one, from 1; none if it does not wait.
    pub(crate) fn position(&self, id: InstanceId) -> Option<usize> {
        self.lock()
            .waiting
            .keys()
            .position(|(_, waiting)| *waiting == id)
            .map(|n| n + 1)
    }

    fn release(&self) {
        let mut state = self.lock();
        if state.free < 0 {
            state.free += 1;
            return;
        }
        while let Some((_, grant)) = state.waiting.pop_first() {
            if grant.is_closed() {
                continue;
            }
            // The lock is held: a slot that comes back must not release again while we are here.
            match grant.send(Slot(self.clone())) {
                Ok(()) => return,
                Err(slot) => std::mem::forget(slot),
            }
        }
        state.free += 1;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.slots.lock().waiting.remove(&self.rank);
        // The slot may have been granted in the meantime: it is released with the receiver, outside the lock.
        self.turn.close();
        let granted = self.turn.try_recv();
        drop(granted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn later(slots: &Slots, priority: i32) -> (InstanceId, Place) {
        let id = InstanceId::generate();
        match slots.ask(id, priority) {
            Admission::Later(place) => (id, place),
            Admission::Now(_) => panic!("there should be no slot"),
        }
    }

    #[test]
    fn the_queue_is_by_priority_then_age() {
        let slots = Slots::new(1);
        let Admission::Now(held) = slots.ask(InstanceId::generate(), 0) else {
            panic!("a slot is free")
        };
        let (old, mut old_place) = later(&slots, 0);
        let (young, young_place) = later(&slots, 0);
        let (urgent, mut urgent_place) = later(&slots, 5);
        let positions = [urgent, old, young].map(|id| slots.position(id));
        assert_eq!(positions, [Some(1), Some(2), Some(3)]);
        drop(held);
        let slot = urgent_place.turn.try_recv().expect("the urgent one is next");
        assert_eq!(slots.position(old), Some(1));
        drop(young_place);
        drop(slot);
        let _slot = old_place.turn.try_recv().expect("the old one is next");
        assert_eq!(slots.position(young), None);
    }

    #[test]
    fn a_granted_slot_that_nobody_takes_comes_back() {
        let slots = Slots::new(1);
        let Admission::Now(held) = slots.ask(InstanceId::generate(), 0) else {
            panic!("a slot is free")
        };
        let (_, place) = later(&slots, 0);
        drop(held);
        drop(place);
        assert!(matches!(slots.ask(InstanceId::generate(), 0), Admission::Now(_)));
    }
}
