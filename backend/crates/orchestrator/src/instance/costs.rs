//! What turns cost.
//!
//! Agents tell what the whole session has cost up to now. What that has grown by is the cost of the turn that it was told in, or
//! of the last one if it comes later. The same figure again is nothing new. A smaller one is a count that began anew: agents
//! need not keep it when they are started again. What grew while there was no turn is the next one's.

use kandev_acp::usage;
use kandev_domain::TurnId;
use kandev_domain::usage::Cost;
use kandev_store::usage::TurnCost;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::actor::Actor;

/// The facet that keeps what a session has cost, for the next instance.
pub(crate) const SESSION_COST: &str = "cost";

/// What was told so far.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Costs {
    /// The session's, as last told.
    session: Option<Cost>,
    /// That of the last turn in which it was told.
    turn: Option<(TurnId, Cost)>,
}

impl Costs {
    /// Of a session that has cost so much.
    pub(super) fn of_session(session: Option<Cost>) -> Self {
        Self { session, turn: None }
    }

    /// Takes what the session has cost up to now. What the turn has, if that has changed.
    fn take(&mut self, told: Cost, turn: Option<TurnId>) -> Option<TurnCost> {
        let known = self
            .session
            .as_ref()
            .filter(|known| known.currency == told.currency);
        let anew = known.is_none_or(|known| told.amount < known.amount);
        let before = known.filter(|_| !anew).map_or(0.0, |known| known.amount);
        let Some(id) = turn else {
            if anew {
                self.session = Some(told);
            }
            return None;
        };
        let grown = told.amount - before;
        let currency = told.currency.clone();
        self.session = Some(told);
        if grown <= 0.0 {
            return None;
        }
        let so_far = self
            .turn
            .take()
            .filter(|(of, cost)| *of == id && cost.currency == currency);
        let amount = so_far.map_or(0.0, |(_, cost)| cost.amount) + grown;
        let cost = Cost::rounded(amount, currency);
        self.turn = Some((id, cost.clone()));
        Some(TurnCost { id, cost })
    }

    /// The session has cost so much before anything was known of it.
    fn begin_at(&mut self, told: Cost) {
        self.session = Some(told);
    }

    const fn is_unknown(&self) -> bool {
        self.session.is_none()
    }
}

impl Actor {
    /// The agent has told what its session uses.
    pub(super) fn was_used(&mut self, update: &RawValue) {
        // What is told again of a history was counted when it was told first.
        let Some(told) = usage::cost(update).filter(|_| self.replay.is_none()) else {
            return;
        };
        // By itself: not every update of the session's usage tells it.
        self.facet(SESSION_COST, &super::raw(&told));
        // A session from elsewhere: what it has cost there is no turn's here.
        let foreign = self
            .spec
            .resume
            .as_ref()
            .is_some_and(|r| r.key.is_none() && !r.lost);
        if foreign && self.costs.is_unknown() {
            return self.costs.begin_at(told);
        }
        if let Some(cost) = self.costs.take(told, self.turns.attributed()) {
            self.outbox.turn_cost(cost);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usd(amount: f64) -> Cost {
        Cost {
            amount,
            currency: "USD".to_owned(),
        }
    }

    #[test]
    fn a_turn_costs_what_the_session_grew_by() {
        let [first, second, third] = [(); 3].map(|()| TurnId::generate());
        let mut costs = Costs::default();
        let mut take = |amount, turn: Option<TurnId>| {
            let taken = costs.take(usd(amount), turn);
            taken.map(|t| (t.id, t.cost.amount))
        };
        assert_eq!(take(0.1, Some(first)), Some((first, 0.1)));
        assert_eq!(take(0.3, Some(first)), Some((first, 0.3)));
        assert_eq!(take(0.3, Some(first)), None, "told again");
        assert_eq!(take(0.4, Some(second)), Some((second, 0.1)));
        // The agent was started again, and says so before its next turn, or does not.
        assert_eq!(take(0.0, None), None);
        assert_eq!(take(0.5, Some(third)), Some((third, 0.5)));
        assert_eq!(take(0.2, Some(third)), Some((third, 0.7)));
    }

    #[test]
    fn what_is_told_between_turns_is_the_next_ones() {
        let turn = TurnId::generate();
        let mut costs = Costs::of_session(Some(usd(1.0)));
        assert!(costs.take(usd(1.5), None).is_none());
        assert_eq!(costs.take(usd(1.75), Some(turn)).unwrap().cost, usd(0.75));
    }

    #[test]
    fn another_currency_is_counted_anew() {
        let turn = TurnId::generate();
        let mut costs = Costs::default();
        costs.take(usd(1.0), Some(turn));
        let euros = Cost {
            amount: 2.0,
            currency: "EUR".to_owned(),
        };
        assert_eq!(costs.take(euros.clone(), Some(turn)).unwrap().cost, euros);
    }
}
