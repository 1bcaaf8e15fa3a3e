//! How often this process may take a lock from itself while other processes wait for it.
//!
//! An acquire that leaves right behind a release on the same connection always wins against a process that first has to
//! hear of the release. That makes a hand-off inside a process one round trip, and would starve everybody else.

use std::time::Duration;

/// This many passes in a row, then the others get their turn.
const MAX_PASSES: u32 = 32;
/// At least this long stands the lock free for them: a wake-up and a round trip of a process nearby.
const MIN_PAUSE: Duration = Duration::from_millis(2);
/// Names remembered; a newer one takes the place of an older one with the same slot.
const SLOTS: usize = 64;

/// What is known of the names used last. It survives the moment in which nobody here holds or wants the lock: one task
/// that locks in a loop leaves such a moment after every release.
#[derive(Debug)]
pub(crate) struct Courtesy {
    slots: [Slot; SLOTS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Whose slot it is.
    hash: u64,
    /// Grants in a row that nobody else came between.
    passes: u32,
    /// Whether the last release was heard by somebody who is not us.
    others: bool,
    /// The last round trip.
    round_trip: Duration,
}

impl Courtesy {
    pub(crate) const fn new() -> Self {
        let empty = Slot {
            hash: 0,
            passes: 0,
            others: false,
            round_trip: Duration::ZERO,
        };
        Self {
            slots: [empty; SLOTS],
        }
    }

    /// How long to stand back before the next attempt, if it is time to; the count starts again then.
    pub(crate) fn pause(&mut self, hash: u64) -> Option<Duration> {
        let slot = self.slot(hash);
        if slot.passes < MAX_PASSES || !slot.others {
            return None;
        }
        slot.passes = 0;
        Some(MIN_PAUSE.max(slot.round_trip * 2))
    }

    /// The lock was granted; `at_once` if nobody else was seen holding it since it was wanted.
    pub(crate) fn granted(&mut self, hash: u64, at_once: bool, round_trip: Duration) {
        let slot = self.slot(hash);
        slot.passes = if at_once {
            slot.passes.saturating_add(1)
        } else {
            0
        };
        slot.round_trip = round_trip;
    }

    /// The lock was released, and `others` says whether another process heard of it.
    pub(crate) fn released(&mut self, hash: u64, others: bool) {
        self.slot(hash).others = others;
    }

    fn slot(&mut self, hash: u64) -> &mut Slot {
        // The remainder is below SLOTS.
        let slot = &mut self.slots[(hash % SLOTS as u64) as usize];
        if slot.hash != hash {
            *slot = Slot {
                hash,
                ..Slot::default()
            };
        }
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_micros(100);

    #[test]
    fn a_process_alone_never_pauses() {
        let mut courtesy = Courtesy::new();
        for _ in 0..1000 {
            assert_eq!(courtesy.pause(7), None);
            courtesy.granted(7, true, RTT);
            courtesy.released(7, false);
        }
    }

    #[test]
    fn others_get_their_turn_after_32_passes() {
        let mut courtesy = Courtesy::new();
        for _ in 0..3 {
            for _ in 0..32 {
                assert_eq!(courtesy.pause(7), None);
                courtesy.granted(7, true, RTT);
                courtesy.released(7, true);
            }
            assert_eq!(courtesy.pause(7), Some(MIN_PAUSE));
        }
    }

    #[test]
    fn the_pause_covers_two_round_trips_of_a_slow_network() {
        let mut courtesy = Courtesy::new();
        for _ in 0..32 {
            courtesy.granted(7, true, Duration::from_millis(20));
        }
        courtesy.released(7, true);
        assert_eq!(courtesy.pause(7), Some(Duration::from_millis(40)));
    }

    #[test]
    fn a_grant_after_somebody_else_starts_the_count_again() {
        let mut courtesy = Courtesy::new();
        courtesy.released(7, true);
        for _ in 0..31 {
            courtesy.granted(7, true, RTT);
        }
        courtesy.granted(7, false, RTT);
        courtesy.granted(7, true, RTT);
        assert_eq!(courtesy.pause(7), None);
    }

    #[test]
    fn names_in_one_slot_do_not_share_a_count() {
        let mut courtesy = Courtesy::new();
        courtesy.released(7, true);
        for _ in 0..40 {
            courtesy.granted(7, true, RTT);
        }
        assert_eq!(courtesy.pause(7 + SLOTS as u64), None);
    }
}
