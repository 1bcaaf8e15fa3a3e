//! The holds of this process of one name.

use std::collections::HashMap;

use super::{Claim, Held, Known};

/// The holds of one name. The first needs no heap.
#[derive(Debug)]
pub(super) struct Holds<H> {
    first: Option<Held<H>>,
    /// The others, by their numbers: there may be ten thousand.
    more: HashMap<u64, Held<H>, Known>,
}

impl<H> Holds<H> {
    pub(super) fn none() -> Self {
        Self {
            first: None,
            more: HashMap::default(),
        }
    }

    /// Adds a hold. One that it excludes has run out unnoticed, and makes room.
    pub(super) fn add(&mut self, held: Held<H>) {
        if self.admits(held.claim) && self.first.is_some() {
            self.more.insert(held.number, held);
            return;
        }
        self.more.clear();
        self.first = Some(held);
    }

    /// Removes the hold with this number. Returns whether there was one.
    pub(super) fn remove(&mut self, number: u64) -> bool {
        if self
            .first
            .as_ref()
            .is_some_and(|held| held.number == number)
        {
            let next = self.more.keys().next().copied();
            self.first = next.and_then(|next| self.more.remove(&next));
            return true;
        }
        self.more.remove(&number).is_some()
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        let first = self.first.as_ref();
        first.is_some_and(|held| held.number == number) || self.more.contains_key(&number)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Held<H>> {
        self.first.iter().chain(self.more.values())
    }

    /// The holds beside which `claim` cannot be granted: all or none, since holds beside each other have the same access.
    pub(super) fn excluding(&self, claim: Claim) -> impl Iterator<Item = &Held<H>> {
        let count = if self.admits(claim) { 0 } else { usize::MAX };
        self.iter().take(count)
    }

    fn admits(&self, claim: Claim) -> bool {
        let first = self.first.as_ref();
        first.is_none_or(|first| first.claim.access.admits(claim.access))
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.first.is_none()
    }
}
