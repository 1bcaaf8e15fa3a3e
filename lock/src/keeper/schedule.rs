//! What is due when: a slab with a free list, and the times of renewals. Pure.

use std::time::{Duration, Instant};

/// Things that become due. Adding and removing take constant time and, once grown, no heap; finding takes a scan, which
/// happens once a tick and not once a lock.
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    slots: Vec<Slot<T>>,
    /// The first free slot.
    free: Option<usize>,
    used: usize,
}

#[derive(Debug)]
enum Slot<T> {
    /// With the next free one.
    Free(Option<usize>),
    Used(Due, T),
}

/// When something is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// When it must be done.
    pub(crate) at: Instant,
    /// From when on it may be done along with others: that makes few large batches of many that are due one by one.
    pub(crate) from: Instant,
}

impl Due {
    /// Due at `at` and not before.
    pub(crate) const fn sharp(at: Instant) -> Self {
        Self { at, from: at }
    }
}

impl<T> Schedule<T> {
    pub(crate) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: None,
            used: 0,
        }
    }

    /// Adds `item`; the slot is its own until it is removed.
    pub(crate) fn insert(&mut self, due: Due, item: T) -> usize {
        self.used += 1;
        match self
            .free
            .and_then(|at| self.slots.get_mut(at).map(|slot| (at, slot)))
        {
            Some((at, slot)) => {
                if let Slot::Free(next) = slot {
                    self.free = *next;
                }
                *slot = Slot::Used(due, item);
                at
            }
            None => {
                self.slots.push(Slot::Used(due, item));
                self.slots.len() - 1
            }
        }
    }

    pub(crate) fn remove(&mut self, at: usize) -> Option<T> {
        let slot = self
            .slots
            .get_mut(at)
            .filter(|slot| matches!(slot, Slot::Used(..)))?;
        let Slot::Used(_, item) = std::mem::replace(slot, Slot::Free(self.free)) else {
            return None;
        };
        self.free = Some(at);
        self.used -= 1;
        Some(item)
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<(&mut Due, &mut T)> {
        match self.slots.get_mut(at) {
            Some(Slot::Used(due, item)) => Some((due, item)),
            _ => None,
        }
    }

    /// The first slot from `start` on that may be done at `now`.
    pub(crate) fn due(&self, start: usize, now: Instant) -> Option<usize> {
        let rest = self.slots.get(start..)?;
        let is_due = |slot: &Slot<T>| matches!(slot, Slot::Used(due, _) if due.from <= now);
        rest.iter().position(is_due).map(|offset| start + offset)
    }

    pub(crate) fn for_each(&mut self, mut change: impl FnMut(&mut Due, &mut T)) {
        for slot in &mut self.slots {
            if let Slot::Used(due, item) = slot {
                change(due, item);
            }
        }
    }

    /// When the next thing must be done.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        let at = |slot: &Slot<T>| match slot {
            Slot::Used(due, _) => Some(due.at),
            Slot::Free(_) => None,
        };
        self.slots.iter().filter_map(at).min()
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.used == 0
    }
}

/// When a lease that began at `sent` is renewed: at a third of it, give or take ten per cent by `jitter` of 0 to 200, so
/// that locks taken together are not renewed together.
pub(crate) fn renewal(sent: Instant, lease: Duration, jitter: u64) -> Due {
    let per_mille = 900 + jitter.min(200) as u32;
    let at = sent + lease / 3 * per_mille / 1000;
    Due {
        at,
        from: at - (lease / 30).min(at - sent),
    }
}

/// When a renewal that failed at `now` is tried again, it being the n-th failure in a row from 0 on: soon at first, and
/// never so late that fewer than a few attempts would fit into the lease.
pub(crate) fn retry(now: Instant, lease: Duration, failures: u32) -> Due {
    let base = (lease / 30).max(Duration::from_millis(1));
    Due::sharp(now + (base * 2_u32.pow(failures.min(3))).min(lease / 6))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn slots_are_used_again_and_nothing_is_removed_twice() {
        let now = Instant::now();
        let mut schedule = Schedule::new();
        let slots: Vec<usize> = (0..4)
            .map(|n| schedule.insert(Due::sharp(now), n))
            .collect();
        assert_eq!(schedule.remove(slots[1]), Some(1));
        assert_eq!(schedule.remove(slots[1]), None);
        assert_eq!(schedule.remove(slots[3]), Some(3));
        assert_eq!(schedule.remove(99), None);
        let again = [
            schedule.insert(Due::sharp(now), 5),
            schedule.insert(Due::sharp(now), 6),
        ];
        assert_eq!(again, [slots[3], slots[1]]);
        assert_eq!(schedule.insert(Due::sharp(now), 7), 4, "no free one left");
        for at in 0..5 {
            assert!(schedule.remove(at).is_some());
        }
        assert!(schedule.is_empty());
    }

    #[test]
    fn what_is_nearly_due_goes_along() {
        let now = Instant::now();
        let mut schedule = Schedule::new();
        schedule.insert(
            Due {
                at: now + ms(100),
                from: now + ms(50),
            },
            'a',
        );
        schedule.insert(
            Due {
                at: now + ms(140),
                from: now + ms(90),
            },
            'b',
        );
        schedule.insert(
            Due {
                at: now + ms(300),
                from: now + ms(250),
            },
            'c',
        );
        assert_eq!(schedule.next_at(), Some(now + ms(100)));
        assert_eq!(schedule.due(0, now), None);
        let at = now + ms(100);
        assert_eq!(schedule.due(0, at), Some(0));
        assert_eq!(schedule.due(1, at), Some(1));
        assert_eq!(schedule.due(2, at), None);
        assert_eq!(schedule.due(9, at), None);
    }

    #[test]
    fn removed_things_are_never_due() {
        let now = Instant::now();
        let mut schedule = Schedule::new();
        let slot = schedule.insert(Due::sharp(now), ());
        schedule.remove(slot);
        assert_eq!(schedule.due(0, now + ms(1)), None);
        assert_eq!(schedule.next_at(), None);
    }

    #[test]
    fn renewals_are_spread_around_a_third_of_the_lease() {
        let sent = Instant::now();
        assert_eq!(renewal(sent, ms(30_000), 0).at, sent + ms(9_000));
        assert_eq!(renewal(sent, ms(30_000), 200).at, sent + ms(11_000));
        assert_eq!(renewal(sent, ms(30_000), 100).from, sent + ms(9_000));
        assert!(renewal(sent, ms(10), 0).from >= sent);
    }

    #[test]
    fn retries_begin_soon_and_keep_fitting_into_the_lease() {
        let now = Instant::now();
        let after = |failures| retry(now, ms(3_000), failures).at - now;
        assert_eq!(
            [after(0), after(1), after(2), after(3), after(99)],
            [ms(100), ms(200), ms(400), ms(500), ms(500)]
        );
        assert!(retry(now, ms(10), 0).at > now, "never at once");
    }
}
