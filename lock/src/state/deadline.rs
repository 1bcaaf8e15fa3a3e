//! Trusted time of a lease: arithmetic on instants.

use std::time::{Duration, Instant, SystemTime};

/// The shortest lease. A round trip must fit in with room to spare, and 2 ms go to the margin.
pub(crate) const MIN_LEASE: Duration = Duration::from_millis(10);
/// The longest lease: longer ones would in effect be locks without an end, which do not exist here.
pub(crate) const MAX_LEASE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Subtracted from every lease besides one per cent: expiry on the server has a granularity of 1 ms.
const MARGIN: Duration = Duration::from_millis(2);

/// The instant until which a hold may be trusted, by two clocks; the earlier counts.
///
/// The monotonic clock stops while a machine sleeps, and the wall clock steps. Each alone would trust a hold too long in
/// one of the cases; the earlier of the two is too careful at worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline {
    monotonic: Instant,
    wall: SystemTime,
}

/// An instant by both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub(crate) monotonic: Instant,
    pub(crate) wall: SystemTime,
}

impl Now {
    pub(crate) fn read() -> Self {
        Self {
            monotonic: Instant::now(),
            wall: SystemTime::now(),
        }
    }

    /// The instant that much later.
    pub(crate) fn later_by(self, time: Duration) -> Self {
        Self {
            monotonic: self.monotonic + time,
            // A wall clock at the end of time: trust nothing.
            wall: self.wall.checked_add(time).unwrap_or(self.wall),
        }
    }
}

impl Deadline {
    /// The end of a lease that a request granted which was written after `sent`.
    ///
    /// The server starts counting when it runs the request, which is later than `sent`: by then its own deadline lies
    /// behind this one. One per cent covers clocks that run at different rates.
    pub(crate) fn new(sent: Now, lease: Duration) -> Self {
        let trusted = (lease - lease / 100).saturating_sub(MARGIN);
        let end = sent.later_by(trusted);
        Self {
            monotonic: end.monotonic,
            wall: end.wall,
        }
    }

    /// The later one, whole: a confirmed renewal never moves the end back.
    ///
    /// Both clocks of the result are from one request. With the later of each clock, a wall clock that was set back between
    /// two renewals would be trusted for as long as it was set back, and only that one runs while a machine sleeps.
    #[must_use]
    pub(crate) fn extended(self, other: Self) -> Self {
        if other.monotonic < self.monotonic {
            self
        } else {
            other
        }
    }

    /// The time that is left; zero when it is over.
    pub(crate) fn left(&self, now: Now) -> Duration {
        let monotonic = self.monotonic.saturating_duration_since(now.monotonic);
        let wall = self.wall.duration_since(now.wall).unwrap_or_default();
        monotonic.min(wall)
    }

    pub(crate) fn is_over(&self, now: Now) -> bool {
        self.left(now).is_zero()
    }

    /// The end by the clock that timers use.
    pub(crate) const fn monotonic(&self) -> Instant {
        self.monotonic
    }
}

/// Whether `lease` is one a lock can have.
pub(crate) fn is_good_lease(lease: Duration) -> bool {
    (MIN_LEASE..=MAX_LEASE).contains(&lease)
}

/// A lease in the milliseconds that the server takes.
pub(crate) fn millis(lease: Duration) -> u64 {
    // Bounded by MAX_LEASE.
    lease.as_millis() as u64
}

/// How long the counter of fencing tokens outlives its last use.
///
/// Tokens have the server's time as their floor, so a lost counter matters only if the clock steps back meanwhile.
pub(crate) fn token_ttl(lease: Duration) -> Duration {
    (lease * 10).max(Duration::from_secs(600))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Now {
        Now {
            monotonic: Instant::now() + Duration::from_secs(1000),
            wall: SystemTime::now(),
        }
    }

    fn later(now: Now, by: Duration) -> Now {
        Now {
            monotonic: now.monotonic + by,
            wall: now.wall + by,
        }
    }

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_hold_is_trusted_for_a_little_less_than_its_lease() {
        let sent = now();
        let deadline = Deadline::new(sent, ms(1000));
        assert_eq!(deadline.left(sent), ms(988));
        assert!(!deadline.is_over(later(sent, ms(987))));
        assert!(deadline.is_over(later(sent, ms(988))));
        assert_eq!(deadline.left(later(sent, ms(5000))), Duration::ZERO);
    }

    #[test]
    fn the_shortest_lease_leaves_something() {
        let sent = now();
        assert_eq!(
            Deadline::new(sent, MIN_LEASE).left(sent),
            Duration::from_micros(7_900)
        );
    }

    #[test]
    fn suspended_machine_the_wall_clock_ends_the_trust() {
        let sent = now();
        let deadline = Deadline::new(sent, ms(1000));
        let woken = Now {
            monotonic: sent.monotonic + ms(1),
            wall: sent.wall + ms(2000),
        };
        assert!(deadline.is_over(woken));
    }

    #[test]
    fn wall_clock_set_back_the_monotonic_clock_ends_the_trust() {
        let sent = now();
        let deadline = Deadline::new(sent, ms(1000));
        let stepped = Now {
            monotonic: sent.monotonic + ms(988),
            wall: sent.wall - ms(3_600_000),
        };
        assert!(deadline.is_over(stepped));
    }

    #[test]
    fn a_renewal_never_moves_the_end_back() {
        let sent = now();
        let long = Deadline::new(sent, ms(10_000));
        let short = Deadline::new(later(sent, ms(100)), ms(1000));
        assert_eq!(long.extended(short), long);
        assert_eq!(short.extended(long), long);
    }

    #[test]
    fn a_wall_clock_that_was_set_back_is_not_trusted_for_longer() {
        let sent = now();
        let hour = ms(3_600_000);
        let set_back = Now {
            monotonic: sent.monotonic + ms(300),
            wall: sent.wall + ms(300) - hour,
        };
        let deadline = Deadline::new(sent, ms(1000)).extended(Deadline::new(set_back, ms(1000)));
        assert_eq!(deadline.left(set_back), ms(988));
        // The machine sleeps for two seconds: the monotonic clock stands still.
        let woken = Now {
            monotonic: set_back.monotonic + ms(1),
            wall: set_back.wall + ms(2000),
        };
        assert!(deadline.is_over(woken));
    }

    #[test]
    fn a_renewal_counts_from_its_own_sending() {
        let sent = now();
        let renewed =
            Deadline::new(sent, ms(1000)).extended(Deadline::new(later(sent, ms(300)), ms(1000)));
        assert_eq!(renewed.left(sent), ms(1288));
    }

    #[test]
    fn absurd_leases_are_refused() {
        for good in [MIN_LEASE, ms(30_000), MAX_LEASE] {
            assert!(is_good_lease(good), "{good:?}");
        }
        for bad in [
            Duration::ZERO,
            Duration::from_micros(9_999),
            MAX_LEASE + ms(1),
            Duration::MAX,
        ] {
            assert!(!is_good_lease(bad), "{bad:?}");
        }
    }

    #[test]
    fn the_token_counter_outlives_ten_leases_and_ten_minutes() {
        assert_eq!(token_ttl(ms(10)), Duration::from_secs(600));
        assert_eq!(
            token_ttl(Duration::from_secs(120)),
            Duration::from_secs(1200)
        );
    }
}
