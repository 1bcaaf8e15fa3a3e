//! When a command is to end for its lock's sake.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::exit::Failure;

/// The shortest lease of a command: stopping a group of processes takes some milliseconds on a busy machine.
pub(crate) const SHORTEST_LEASE: Duration = Duration::from_millis(300);
/// The time between the first signal and SIGKILL if none is given, or a quarter of the lease if that is less.
const USUAL_GRACE: Duration = Duration::from_secs(5);

/// The action on a command whose lock is about to be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OnLost {
    /// This signal, then SIGKILL in time.
    Signal(i32),
    /// SIGKILL in time.
    Kill,
    /// Nothing.
    Ignore,
}

/// The times of a command, before the deadline of its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Limits {
    pub(crate) on_lost: OnLost,
    /// From the first signal to the deadline.
    pub(crate) grace: Duration,
    /// From SIGKILL to the deadline: by then all processes are gone.
    pub(crate) margin: Duration,
}

impl Limits {
    /// The limits for leases of this length.
    pub(crate) fn new(
        lease: Duration,
        grace: Option<Duration>,
        on_lost: OnLost,
    ) -> Result<Self, Failure> {
        if lease < SHORTEST_LEASE {
            return Err(Failure::usage(format!(
                "the lease of a command must be {SHORTEST_LEASE:?} at least"
            )));
        }
        if grace.is_some_and(|grace| grace >= lease / 2) {
            return Err(Failure::usage(format!(
                "--grace must be less than half of the lease, which is {lease:?}: renewals need the rest"
            )));
        }
        let margin = (lease / 20).clamp(Duration::from_millis(20), Duration::from_millis(500));
        Ok(Self {
            on_lost,
            grace: grace.unwrap_or_else(|| USUAL_GRACE.min(lease / 4)),
            margin,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn the_grace_is_less_than_half_of_the_lease() {
        let new = |lease, grace| Limits::new(ms(lease), grace, OnLost::Kill);
        assert_eq!(new(30_000, None).unwrap().grace, ms(5_000));
        assert_eq!(new(4_000, None).unwrap().grace, ms(1_000));
        assert!(new(10_000, Some(ms(4_999))).is_ok());
        for (lease, grace) in [(10_000, 5_000), (1_000, 60_000)] {
            assert_eq!(new(lease, Some(ms(grace))).unwrap_err().code, 64);
        }
        assert!(new(299, None).is_err());
    }

    #[test]
    fn the_margin_grows_with_the_lease() {
        for (lease, margin) in [(300, 20), (1_000, 50), (30_000, 500)] {
            let limits = Limits::new(ms(lease), None, OnLost::Kill).unwrap();
            assert_eq!(limits.margin, ms(margin), "{lease}");
        }
    }
}
