//! The order of faults.

use std::collections::BTreeMap;

use leasehold_testkit::chance::Chance;

/// Kinds of faults in random order, each of which is drawn before any is drawn again.
pub(crate) struct Deck<K> {
    all: Vec<K>,
    cards: Vec<K>,
    played: BTreeMap<K, usize>,
}

impl<K: Copy + Ord> Deck<K> {
    /// A deck of these. A kind that is listed twice is drawn twice as often.
    pub(crate) fn new(all: impl Into<Vec<K>>) -> Self {
        let all = all.into();
        let played = all.iter().map(|kind| (*kind, 0)).collect();
        Self {
            all,
            cards: Vec::new(),
            played,
        }
    }

    pub(crate) fn draw(&mut self, chance: &mut Chance) -> K {
        if self.cards.is_empty() {
            self.cards.clone_from(&self.all);
            chance.shuffle(&mut self.cards);
        }
        self.cards.pop().expect("a new deck has cards")
    }

    /// Counts a fault that was drawn and had an effect.
    pub(crate) fn struck(&mut self, kind: K) {
        *self.played.entry(kind).or_default() += 1;
    }

    /// Whether every kind has had an effect.
    pub(crate) fn is_through(&self) -> bool {
        self.played.values().all(|count| *count > 0)
    }

    /// Number of effective faults of each kind.
    pub(crate) fn played(&self) -> &BTreeMap<K, usize> {
        &self.played
    }
}
