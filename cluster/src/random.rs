//! Random choices: which node to ask, how long to pause. They need no quality, only to differ between processes.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// The shortest part of a pause that jitter leaves.
const SHORTEST_PART: f64 = 0.6;

/// A random number.
pub(crate) fn random() -> u64 {
    // The keys differ for each thread and for each call.
    RandomState::new().build_hasher().finish()
}

/// Between 60 % of `pause` and all of it.
pub(crate) fn jittered(pause: Duration) -> Duration {
    let fraction = (random() >> 11) as f64 / (1_u64 << 53) as f64;
    pause.mul_f64(SHORTEST_PART + (1.0 - SHORTEST_PART) * fraction)
}

/// Puts `items` into a random order.
pub(crate) fn shuffle<T>(items: &mut [T]) {
    for end in (1..items.len()).rev() {
        items.swap(end, (random() % (end as u64 + 1)) as usize);
    }
}
