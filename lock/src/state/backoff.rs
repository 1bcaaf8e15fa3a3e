//! Pauses of a waiter that polls.

use std::time::Duration;

/// The shortest pause: below it a waiter would be a busy loop.
const SHORTEST: Duration = Duration::from_millis(1);
/// The longest pause: with longer ones a lock would stand granted and unused for too long.
const LONGEST: Duration = Duration::from_secs(10);

/// The pauses of a waiter that polls: see [`Acquire::polling`](crate::Acquire::polling).
///
/// They begin at a shortest one, double with each look up to a longest one, and each is shortened by up to a half at random,
/// so that waiters that began together do not go on together.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// # use std::time::Duration;
/// use leasehold::Backoff;
///
/// let often = Backoff::new(Duration::from_millis(5), Duration::from_millis(50));
/// let guard = locks.mutex("order:42").lock().polling(often).await?;
/// # drop(guard);
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Backoff {
    min: Duration,
    max: Duration,
}

impl Backoff {
    /// Pauses from `min` to `max`. Both are brought into the bounds of 1 ms to 10 s, and `max` is not below `min`.
    #[must_use]
    pub fn new(min: Duration, max: Duration) -> Self {
        let min = min.clamp(SHORTEST, LONGEST);
        Self {
            min,
            max: max.clamp(min, LONGEST),
        }
    }

    /// The same with pauses that fit into a lease: a grant must be found while it lasts.
    pub(crate) fn within(self, lease: Duration) -> Self {
        let longest = (lease / 4).max(SHORTEST);
        Self {
            min: self.min.min(longest),
            max: self.max.min(longest),
        }
    }

    /// The lease of a grant that is found by a look, where it is usually `usual`, and the hold has `lease`.
    pub(crate) fn grant_lease(self, usual: Duration, lease: Duration) -> Duration {
        usual.max(self.max * 2).min(lease)
    }

    /// The pause after so many looks. `jitter` is below 100.
    pub(crate) fn pause(self, looks: u32, jitter: u64) -> Duration {
        let doubled = self.min.saturating_mul(1 << looks.min(16));
        let pause = doubled.min(self.max);
        pause - pause * jitter.min(100) as u32 / 200
    }
}

/// From 10 ms to 250 ms.
impl Default for Backoff {
    fn default() -> Self {
        Self::new(Duration::from_millis(10), Duration::from_millis(250))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_are_shortened_by_a_half_at_most() {
        let backoff = Backoff::default();
        let pauses: Vec<_> = (0..7).map(|looks| backoff.pause(looks, 0)).collect();
        assert_eq!(pauses, [10, 20, 40, 80, 160, 250, 250].map(ms));
        assert_eq!(backoff.pause(3, 99), ms(80) - ms(80) * 99 / 200);
        assert_eq!(backoff.pause(u32::MAX, 0), ms(250));
    }

    #[test]
    fn bounds_are_kept() {
        let none = Backoff::new(Duration::ZERO, Duration::ZERO);
        assert_eq!(none, Backoff::new(ms(1), ms(1)));
        let long = Backoff::new(Duration::MAX, ms(5));
        assert_eq!(long, Backoff::new(LONGEST, LONGEST));
        assert_eq!(Backoff::default().within(ms(100)).pause(9, 0), ms(25));
        assert_eq!(Backoff::default().within(ms(1)).pause(0, 0), ms(1));
    }

    #[test]
    fn a_grant_lasts_until_two_looks_were_made() {
        let (usual, lease) = (ms(1_000), ms(30_000));
        assert_eq!(Backoff::default().grant_lease(usual, lease), usual);
        let slow = Backoff::new(ms(10), ms(4_000));
        assert_eq!(slow.grant_lease(usual, lease), ms(8_000));
        assert_eq!(slow.grant_lease(usual, ms(500)), ms(500));
    }
}
