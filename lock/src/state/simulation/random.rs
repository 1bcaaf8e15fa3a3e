//! Numbers of one seed.

use std::cell::Cell;

/// A xorshift generator.
#[derive(Debug)]
pub(super) struct Random(Cell<u64>);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        let this = Self(Cell::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1));
        for _ in 0..8 {
            this.next();
        }
        this
    }

    /// A number from `0..n`; 0 for `n = 0`.
    pub(super) fn below(&self, n: u64) -> u64 {
        (self.next() >> 11).checked_rem(n).unwrap_or(0)
    }

    /// A number from `low..high`.
    pub(super) fn between(&self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low))
    }

    /// True `per_mille` times of a thousand.
    pub(super) fn chance(&self, per_mille: u64) -> bool {
        per_mille > 0 && self.below(1000) < per_mille
    }

    fn next(&self) -> u64 {
        let mut x = self.0.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.0.set(x);
        x.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}
