//! The turns of Redisson's waiters: which releases leave a lock to whoever comes first.
//!
//! Redisson's waiters stand in no line and hear of no grant. So some releases are open: if any of them listens, the lock is
//! announced to them instead of granted, and those in line look a little later.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Of the releases of a name by one process, each of this number is open.
const EACH: u32 = 16;
/// And the first after this time.
const PAUSE: Duration = Duration::from_millis(100);

/// Names beyond this number are looked through for those whose next release is open anyway.
const NAMES: usize = 1024;

#[derive(Debug)]
pub(crate) struct RedissonTurns {
    names: HashMap<u64, Turn>,
    /// When to look through the names.
    limit: usize,
}

#[derive(Debug)]
struct Turn {
    /// Releases since the last open one.
    releases: u32,
    /// When that was.
    open_at: Instant,
}

impl RedissonTurns {
    pub(crate) fn new() -> Self {
        Self {
            names: HashMap::new(),
            limit: NAMES,
        }
    }

    /// Counts a release of the name with this hash; whether it is open.
    pub(crate) fn is_open(&mut self, name: u64, now: Instant) -> bool {
        if self.names.len() >= self.limit {
            self.names.retain(|_, turn| now < turn.open_at + PAUSE);
            self.limit = NAMES.max(2 * self.names.len());
        }
        let mut is_new = false;
        let turn = self.names.entry(name).or_insert_with(|| {
            is_new = true;
            Turn {
                releases: 0,
                open_at: now,
            }
        });
        turn.releases += 1;
        let is_open = is_new || turn.releases >= EACH || now >= turn.open_at + PAUSE;
        if is_open {
            *turn = Turn {
                releases: 0,
                open_at: now,
            };
        }
        is_open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sixteenth_release_is_open_and_the_first_after_a_pause() {
        let now = Instant::now();
        let mut turns = RedissonTurns::new();
        let open: Vec<usize> = (0..40).filter(|_| turns.is_open(7, now)).collect();
        assert_eq!(open, [0, 16, 32]);
        assert!(turns.is_open(8, now), "another name has its own count");
        assert!(turns.is_open(7, now + PAUSE));
        assert!(!turns.is_open(7, now + PAUSE));
    }

    #[test]
    fn names_that_are_not_used_any_more_take_no_memory() {
        let now = Instant::now();
        let mut turns = RedissonTurns::new();
        for name in 0..NAMES as u64 {
            turns.is_open(name, now);
        }
        turns.is_open(99_999, now + PAUSE);
        assert_eq!(turns.names.len(), 1);
    }
}
