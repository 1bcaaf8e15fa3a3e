//! Reproducible random choices.

use std::time::{Duration, SystemTime};

/// A sequence of numbers that its seed decides (SplitMix64).
#[derive(Debug, Clone)]
pub struct Chance(u64);

impl Chance {
    /// The sequence of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The seed in `LEASEHOLD_SEED`, or one from the clock.
    ///
    /// # Panics
    ///
    /// When that is not a number.
    #[must_use]
    pub fn seed() -> u64 {
        match std::env::var("LEASEHOLD_SEED") {
            Ok(seed) => seed.parse().expect("LEASEHOLD_SEED is a number"),
            Err(_) => SystemTime::UNIX_EPOCH
                .elapsed()
                .map_or(0, |since| since.as_micros() as u64),
        }
    }

    /// A number from `0..n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n.max(1)
    }

    /// True so many times in a hundred.
    pub fn percent(&mut self, n: u64) -> bool {
        self.below(100) < n
    }

    /// A duration from `from` up to `to` milliseconds.
    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to.saturating_sub(from) + 1))
    }

    /// One of them.
    ///
    /// # Panics
    ///
    /// When there is none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// Puts them into another order.
    pub fn shuffle<T>(&mut self, all: &mut [T]) {
        for last in (1..all.len()).rev() {
            all.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}
