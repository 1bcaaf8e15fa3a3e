//! Numbers that spread load over time.

use std::sync::atomic::{AtomicU64, Ordering};

/// A xorshift generator. It protects nothing, so it need not be a good one.
#[derive(Debug)]
pub(crate) struct Jitter(AtomicU64);

impl Jitter {
    /// Differs between processes if `seed` comes from a random identity.
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
