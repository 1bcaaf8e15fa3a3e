//! Small things several rooms need: a mutex that outlives panics, and jitter.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, also after a panic of another thread.
///
/// Every critical section here leaves its data consistent between any two statements, and a lock that gave up on
/// poisoning would turn one panic into locks that are never released.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Numbers that spread load over time; they protect nothing, so a xorshift will do.
#[derive(Debug)]
pub(crate) struct Jitter(AtomicU64);

impl Jitter {
    /// Jitter that differs between processes, `seed` being from a random identity.
    pub(crate) fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed | 1))
    }

    /// A number from `0..n`; 0 for `n = 0`. Two threads may draw the same one.
    pub(crate) fn below(&self, n: u64) -> u64 {
        let mut x = self.0.load(Ordering::Relaxed);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.0.store(x, Ordering::Relaxed);
        x.checked_rem(n).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_stays_below_its_bound_and_moves() {
        let jitter = Jitter::new(0);
        let drawn: Vec<u64> = (0..200).map(|_| jitter.below(10)).collect();
        assert!(drawn.iter().all(|&n| n < 10));
        assert!(
            (0..10).all(|n| drawn.contains(&n)),
            "every value comes up: {drawn:?}"
        );
        assert_eq!(jitter.below(0), 0);
    }
}
