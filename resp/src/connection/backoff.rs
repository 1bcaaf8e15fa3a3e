//! The pauses between attempts to connect.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// The first pause before reconnecting.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// The longest pause before reconnecting.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// No pause before the first attempt to connect, then increasing ones until a connection has served. Each is drawn from
/// its upper half, so that the clients of a restarted server do not come back in the same instant.
///
/// A finished handshake alone does not reset it: a peer that shakes hands and hangs up would be called without a pause.
pub(crate) struct Backoff {
    /// The next pause; none before the first attempt.
    pause: Option<Duration>,
    /// The state of the generator behind the jitter.
    random: u64,
}

impl Backoff {
    pub(crate) fn new(node: &str) -> Self {
        Self {
            pause: None,
            random: RandomState::new().hash_one(node) | 1,
        }
    }

    /// The pause before the next attempt.
    pub(crate) fn next(&mut self) -> Option<Duration> {
        let pause = self.pause;
        self.pause = Some(pause.map_or(FIRST_PAUSE, |pause| (pause * 2).min(LONGEST_PAUSE)));
        // xorshift64: quality does not matter here, only that processes differ.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let fraction = (self.random >> 11) as f64 / (1_u64 << 53) as f64;
        pause.map(|pause| pause / 2 + (pause / 2).mul_f64(fraction))
    }

    pub(crate) const fn reset(&mut self) {
        self.pause = None;
    }
}
