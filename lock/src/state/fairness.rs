//! Fairness between processes: how often this one may pass a lock on inside while others wait for it.
//!
//! An acquire that follows a release on the same connection always wins against a process that first has to be told of
//! the release. That makes a hand-off inside a process one round trip, and would starve all other processes.

use std::time::Duration;

/// Passes in a row before other processes get their turn.
const MAX_PASSES: u32 = 32;
/// Minimum time the lock is left free for other processes: a wake-up and a round trip of one nearby.
const MIN_PAUSE: Duration = Duration::from_millis(2);
/// Names remembered; a newer one takes the place of an older one with the same entry.
const ENTRIES: usize = 64;

/// Counts of the names used last. They outlive the moment in which no task here holds or wants the lock: one task that
/// locks in a loop leaves such a moment after every release.
#[derive(Debug)]
pub(crate) struct Fairness {
    entries: [Entry; ENTRIES],
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// Of the name that is counted.
    hash: u64,
    /// Grants in a row without another process in between.
    passes: u32,
    /// Whether another process received the last release.
    others: bool,
    /// The last round trip.
    round_trip: Duration,
}

impl Fairness {
    pub(crate) const fn new() -> Self {
        let empty = Entry {
            hash: 0,
            passes: 0,
            others: false,
            round_trip: Duration::ZERO,
        };
        Self {
            entries: [empty; ENTRIES],
        }
    }

    /// The pause before the next attempt, if one is due; the count starts again then.
    pub(crate) fn pause(&mut self, hash: u64) -> Option<Duration> {
        let entry = self.entry(hash);
        if entry.passes < MAX_PASSES || !entry.others {
            return None;
        }
        entry.passes = 0;
        Some(MIN_PAUSE.max(entry.round_trip * 2))
    }

    /// The lock was granted; `at_once` if no other holder was seen since it was asked for.
    pub(crate) fn granted(&mut self, hash: u64, at_once: bool, round_trip: Duration) {
        let entry = self.entry(hash);
        entry.passes = if at_once {
            entry.passes.saturating_add(1)
        } else {
            0
        };
        entry.round_trip = round_trip;
    }

    /// The lock was released, and `others` says whether another process received the message.
    pub(crate) fn released(&mut self, hash: u64, others: bool) {
        self.entry(hash).others = others;
    }

    fn entry(&mut self, hash: u64) -> &mut Entry {
        // The remainder is below `ENTRIES`.
        let entry = &mut self.entries[(hash % ENTRIES as u64) as usize];
        if entry.hash != hash {
            *entry = Entry {
                hash,
                ..Entry::default()
            };
        }
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_micros(100);

    #[test]
    fn a_process_alone_never_pauses() {
        let mut fairness = Fairness::new();
        for _ in 0..1000 {
            assert_eq!(fairness.pause(7), None);
            fairness.granted(7, true, RTT);
            fairness.released(7, false);
        }
    }

    #[test]
    fn others_get_their_turn_after_32_passes() {
        let mut fairness = Fairness::new();
        for _ in 0..3 {
            for _ in 0..32 {
                assert_eq!(fairness.pause(7), None);
                fairness.granted(7, true, RTT);
                fairness.released(7, true);
            }
            assert_eq!(fairness.pause(7), Some(MIN_PAUSE));
        }
    }

    #[test]
    fn the_pause_covers_two_round_trips_of_a_slow_network() {
        let mut fairness = Fairness::new();
        for _ in 0..32 {
            fairness.granted(7, true, Duration::from_millis(20));
        }
        fairness.released(7, true);
        assert_eq!(fairness.pause(7), Some(Duration::from_millis(40)));
    }

    #[test]
    fn a_grant_after_somebody_else_starts_the_count_again() {
        let mut fairness = Fairness::new();
        fairness.released(7, true);
        for _ in 0..31 {
            fairness.granted(7, true, RTT);
        }
        fairness.granted(7, false, RTT);
        fairness.granted(7, true, RTT);
        assert_eq!(fairness.pause(7), None);
    }

    #[test]
    fn names_of_one_entry_do_not_share_a_count() {
        let mut fairness = Fairness::new();
        fairness.released(7, true);
        for _ in 0..40 {
            fairness.granted(7, true, RTT);
        }
        assert_eq!(fairness.pause(7 + ENTRIES as u64), None);
    }
}
