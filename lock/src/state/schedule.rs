//! Times at which entries are due: a slab with a free list, and the times of renewals.

use std::time::{Duration, Instant};

/// Entries that become due. Adding and removing take constant time and, once grown, no heap; finding takes a scan, which
/// happens once a tick and not once a lock.
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    cells: Vec<Cell<T>>,
    /// Index of the first free cell.
    free: Option<usize>,
    used: usize,
    /// No entry must be done before this. It may be too early, never too late: an entry that is removed leaves it as it is.
    earliest: Option<Instant>,
}

#[derive(Debug)]
enum Cell<T> {
    /// With the index of the next free one.
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
            cells: Vec::new(),
            free: None,
            used: 0,
            earliest: None,
        }
    }

    /// Adds `item` and returns its index, which is its own until it is removed.
    pub(crate) fn insert(&mut self, due: Due, item: T) -> usize {
        self.used += 1;
        self.expect(due);
        match self
            .free
            .and_then(|at| self.cells.get_mut(at).map(|cell| (at, cell)))
        {
            Some((at, cell)) => {
                if let Cell::Free(next) = cell {
                    self.free = *next;
                }
                *cell = Cell::Used(due, item);
                at
            }
            None => {
                self.cells.push(Cell::Used(due, item));
                self.cells.len() - 1
            }
        }
    }

    pub(crate) fn remove(&mut self, at: usize) -> Option<T> {
        let cell = self
            .cells
            .get_mut(at)
            .filter(|cell| matches!(cell, Cell::Used(..)))?;
        let Cell::Used(_, item) = std::mem::replace(cell, Cell::Free(self.free)) else {
            return None;
        };
        self.free = Some(at);
        self.used -= 1;
        if self.used == 0 {
            self.earliest = None;
        }
        Some(item)
    }

    /// Changes the entry with this index, if there is one.
    pub(crate) fn update(&mut self, at: usize, change: impl FnOnce(&mut Due, &mut T)) {
        if let Some(Cell::Used(due, item)) = self.cells.get_mut(at) {
            change(due, item);
            let due = *due;
            self.expect(due);
        }
    }

    /// Visits every entry that may be done at `now`, with its index.
    pub(crate) fn for_each_due(
        &mut self,
        now: Instant,
        mut visit: impl FnMut(usize, &mut Due, &mut T),
    ) {
        self.for_each(|at, due, item| {
            if due.from <= now {
                visit(at, due, item);
            }
        });
    }

    /// Visits every entry, with its index.
    pub(crate) fn for_each(&mut self, mut visit: impl FnMut(usize, &mut Due, &mut T)) {
        let mut earliest = None;
        for (at, cell) in self.cells.iter_mut().enumerate() {
            if let Cell::Used(due, item) = cell {
                visit(at, due, item);
                earliest = Some(sooner(earliest, due.at));
            }
        }
        // Not before: if `visit` panics, the time that was known stays.
        self.earliest = earliest;
    }

    /// When to look for the next entry that must be done: not after that, but maybe before. Takes constant time, since every
    /// release that fails asks for it.
    pub(crate) const fn next_at(&self) -> Option<Instant> {
        self.earliest
    }

    fn expect(&mut self, due: Due) {
        self.earliest = Some(sooner(self.earliest, due.at));
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.used == 0
    }
}

fn sooner(known: Option<Instant>, at: Instant) -> Instant {
    known.map_or(at, |known| known.min(at))
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

    fn due(schedule: &mut Schedule<char>, now: Instant) -> Vec<(usize, char)> {
        let mut found = Vec::new();
        schedule.for_each_due(now, |at, _, item| found.push((at, *item)));
        found
    }

    #[test]
    fn cells_are_used_again_and_nothing_is_removed_twice() {
        let now = Instant::now();
        let mut schedule = Schedule::new();
        let added: Vec<usize> = (0..4)
            .map(|n| schedule.insert(Due::sharp(now), n))
            .collect();
        assert_eq!(schedule.remove(added[1]), Some(1));
        assert_eq!(schedule.remove(added[1]), None);
        assert_eq!(schedule.remove(added[3]), Some(3));
        assert_eq!(schedule.remove(99), None);
        let again = [
            schedule.insert(Due::sharp(now), 5),
            schedule.insert(Due::sharp(now), 6),
        ];
        assert_eq!(again, [added[3], added[1]]);
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
        assert_eq!(due(&mut schedule, now), []);
        assert_eq!(due(&mut schedule, now + ms(100)), [(0, 'a'), (1, 'b')]);
    }

    #[test]
    fn removed_entries_are_never_due() {
        let now = Instant::now();
        let mut schedule = Schedule::new();
        let index = schedule.insert(Due::sharp(now), 'a');
        schedule.remove(index);
        assert_eq!(due(&mut schedule, now + ms(1)), []);
        assert_eq!(schedule.next_at(), None);
    }

    #[test]
    fn the_next_look_is_never_too_late() {
        let now = Instant::now();
        let mut schedule = Schedule::new();
        let first = schedule.insert(Due::sharp(now + ms(100)), 'a');
        let second = schedule.insert(Due::sharp(now + ms(200)), 'b');
        schedule.remove(first);
        assert_eq!(schedule.next_at(), Some(now + ms(100)), "too early");
        assert_eq!(due(&mut schedule, now + ms(100)), []);
        assert_eq!(schedule.next_at(), Some(now + ms(200)), "found by the look");
        schedule.update(second, |due, _| *due = Due::sharp(now + ms(150)));
        assert_eq!(schedule.next_at(), Some(now + ms(150)));
        schedule.for_each(|_, due, _| *due = Due::sharp(now));
        assert_eq!(schedule.next_at(), Some(now));
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
