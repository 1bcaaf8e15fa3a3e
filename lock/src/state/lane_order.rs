//! The order in which the lanes of one name stand in line: a state machine without time or I/O.
//!
//! The ticket of the first lane of a run looks for all of them. What it finds concerns the later ones too, and what concerns
//! one of them alone is found once that is the first.

use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasherDefault;
use std::time::{Duration, Instant};

use super::names::KnownHash;

/// Where the first lane does not look, one of the others does after this long.
const STAND_IN: Duration = Duration::from_millis(250);

/// The lanes whose tickets were in line when the server was asked last, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct LaneOrder {
    order: BTreeSet<(Rank, u64)>,
    known: HashMap<u64, Rank, BuildHasherDefault<KnownHash>>,
    /// When one looked instead of the first.
    stood_in: Option<Instant>,
}

/// A place in line, as the server told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    /// The run beside Redisson's queue, if that is kept.
    pub(crate) run: Option<u8>,
    pub(crate) score: u64,
}

impl Rank {
    /// Behind all others, of a ticket that was not put in line.
    pub(crate) const NONE: Self = Self {
        run: None,
        score: u64::MAX,
    };
}

impl LaneOrder {
    /// The ticket of the lane stands there now.
    pub(crate) fn put(&mut self, lane: u64, rank: Rank) {
        if let Some(former) = self.known.insert(lane, rank) {
            self.order.remove(&(former, lane));
        }
        self.order.insert((rank, lane));
    }

    /// The lane has no ticket any more.
    pub(crate) fn remove(&mut self, lane: u64) {
        if let Some(rank) = self.known.remove(&lane) {
            self.order.remove(&(rank, lane));
        }
    }

    /// The first of this run.
    pub(crate) fn first(&self, run: Option<u8>) -> Option<u64> {
        let from = Rank { run, score: 0 };
        let (first, lane) = self.order.range((from, 0)..).next()?;
        (first.run == run).then_some(*lane)
    }

    /// The first of the same run, if that is another one.
    pub(crate) fn first_before(&self, lane: u64) -> Option<u64> {
        let first = self.first(self.known.get(&lane)?.run)?;
        (first != lane).then_some(first)
    }

    /// The first one does not look: whether the one that asks is to look instead, since no other one has just done that.
    pub(crate) fn stands_in(&mut self, now: Instant) -> bool {
        let is_due = self.stood_in.is_none_or(|at| now >= at + STAND_IN);
        if is_due {
            self.stood_in = Some(now);
        }
        is_due
    }

    /// The next one of the same run.
    pub(crate) fn next_behind(&self, lane: u64) -> Option<u64> {
        let rank = *self.known.get(&lane)?;
        let (next, behind) = self.order.range((rank, lane + 1)..).next()?;
        (next.run == rank.run).then_some(*behind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(run: Option<u8>, score: u64) -> Rank {
        Rank { run, score }
    }

    #[test]
    fn one_at_a_time_looks_instead_of_the_first() {
        let (mut lanes, now) = (LaneOrder::default(), Instant::now());
        assert!(lanes.stands_in(now));
        assert!(!lanes.stands_in(now));
        assert!(!lanes.stands_in(now + STAND_IN / 2));
        assert!(lanes.stands_in(now + STAND_IN));
        assert!(!lanes.stands_in(now + STAND_IN));
    }

    #[test]
    fn lanes_are_ordered_by_run_and_score() {
        let mut lanes = LaneOrder::default();
        assert_eq!((lanes.first(None), lanes.first_before(7)), (None, None));
        for (lane, rank) in [
            (9, at(None, 100)),
            (7, at(None, 200)),
            (8, Rank::NONE),
            (5, at(Some(0), 50)),
            (6, at(Some(1), 40)),
            (4, at(Some(1), 60)),
        ] {
            lanes.put(lane, rank);
        }
        assert_eq!(
            [None, Some(1)].map(|run| lanes.first(run)),
            [Some(9), Some(6)]
        );
        assert_eq!(lanes.first(Some(2)), None);
        let before = [9, 7, 8, 5, 6, 4].map(|lane| lanes.first_before(lane));
        assert_eq!(before, [None, Some(9), Some(9), None, None, Some(6)]);
        let behind = [9, 7, 8, 5, 6, 4].map(|lane| lanes.next_behind(lane));
        assert_eq!(behind, [Some(7), Some(8), None, None, Some(4), None]);

        // It comes back at the end.
        lanes.put(9, at(None, 300));
        assert_eq!(lanes.first(None), Some(7));
        assert_eq!(lanes.next_behind(9), Some(8));
        lanes.remove(7);
        lanes.remove(7);
        assert_eq!(lanes.first(None), Some(9));
        assert_eq!(lanes.next_behind(7), None, "it has no ticket");
        for lane in [4, 5, 6, 8, 9] {
            lanes.remove(lane);
        }
        assert!(lanes.order.is_empty() && lanes.known.is_empty());
    }
}
