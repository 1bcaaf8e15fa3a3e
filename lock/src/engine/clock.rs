//! The time of one `Locks`: everything that concerns leases and waits reads it here, and sleeps by it.
//!
//! Time limits of single commands do not: the client below keeps them, by the clock of the machine.

use std::future::Future;
use std::time::{Duration, Instant, SystemTime};

use tokio::time::error::Elapsed;

use crate::state::deadline::Now;

/// A timer.
pub(crate) type Sleep = tokio::time::Sleep;

/// A clock; clones show the same time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock;

impl Clock {
    /// The clock of the machine.
    pub(crate) const fn new() -> Self {
        Self
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::now()
    }

    /// The time by the monotonic and the wall clock.
    pub(crate) fn read(&self) -> Now {
        Now::read()
    }

    /// The time of this clock when those of the machine showed these.
    pub(crate) const fn at(&self, monotonic: Instant, wall: SystemTime) -> Now {
        Now { monotonic, wall }
    }

    /// Resolves after `time`.
    pub(crate) async fn sleep(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// A timer that fires at `at`.
    pub(crate) fn sleep_until(&self, at: Instant) -> Sleep {
        tokio::time::sleep_until(at.into())
    }

    /// The output of `future`, if it is there within `time`.
    pub(crate) async fn timeout<F: Future>(
        &self,
        time: Duration,
        future: F,
    ) -> Result<F::Output, Elapsed> {
        tokio::time::timeout(time, future).await
    }

    /// The output of `future`, if it is there by `at`.
    pub(crate) async fn timeout_at<F: Future>(
        &self,
        at: Instant,
        future: F,
    ) -> Result<F::Output, Elapsed> {
        tokio::time::timeout_at(at.into(), future).await
    }
}
