//! The time of one `Locks`: everything that concerns leases and waits reads it here, and sleeps by it.
//!
//! Time limits of single commands do not: the client below keeps them, by the clock of the machine.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant, SystemTime};

use crate::state::deadline::Now;
#[cfg(feature = "testing")]
use crate::testing::World;

/// A timer.
#[cfg(not(feature = "testing"))]
pub(crate) type Sleep = tokio::time::Sleep;
#[cfg(feature = "testing")]
pub(crate) use crate::testing::sleep::Sleep;

/// The time is up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elapsed;

/// A clock; clones show the same time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    /// `None` for the clock of the machine.
    #[cfg(feature = "testing")]
    fake: Option<std::sync::Arc<World>>,
}

impl Clock {
    /// The clock of the machine.
    pub(crate) const fn new() -> Self {
        Self {
            #[cfg(feature = "testing")]
            fake: None,
        }
    }

    #[cfg(feature = "testing")]
    pub(crate) const fn of_fake(world: std::sync::Arc<World>) -> Self {
        Self { fake: Some(world) }
    }

    /// The clock of a fake, if it is that.
    #[cfg(feature = "testing")]
    pub(crate) const fn fake(&self) -> Option<&std::sync::Arc<World>> {
        self.fake.as_ref()
    }

    /// Whether it is the clock of a fake.
    pub(crate) const fn is_fake(&self) -> bool {
        #[cfg(feature = "testing")]
        return self.fake.is_some();
        #[cfg(not(feature = "testing"))]
        false
    }

    pub(crate) fn now(&self) -> Instant {
        #[cfg(feature = "testing")]
        if let Some(fake) = &self.fake {
            return fake.clock.now();
        }
        Instant::now()
    }

    /// The time by the monotonic and the wall clock.
    pub(crate) fn read(&self) -> Now {
        #[cfg(feature = "testing")]
        if let Some(fake) = &self.fake {
            return fake.clock.at(Instant::now(), SystemTime::now());
        }
        Now::read()
    }

    /// The time of this clock when those of the machine showed these.
    pub(crate) fn at(&self, monotonic: Instant, wall: SystemTime) -> Now {
        #[cfg(feature = "testing")]
        if let Some(fake) = &self.fake {
            return fake.clock.at(monotonic, wall);
        }
        Now { monotonic, wall }
    }

    /// Resolves after `time`.
    pub(crate) async fn sleep(&self, time: Duration) {
        self.sleep_until(self.now() + time).await;
    }

    /// A timer that fires at `at`.
    pub(crate) fn sleep_until(&self, at: Instant) -> Sleep {
        #[cfg(feature = "testing")]
        return Sleep::new(self.fake.as_ref().map(|world| &world.clock), at);
        #[cfg(not(feature = "testing"))]
        tokio::time::sleep_until(at.into())
    }

    /// The output of `future`, if it is there within `time`.
    pub(crate) async fn timeout<F: Future>(
        &self,
        time: Duration,
        future: F,
    ) -> Result<F::Output, Elapsed> {
        self.timeout_at(self.now() + time, future).await
    }

    /// The output of `future`, if it is there by `at`.
    #[cfg(not(feature = "testing"))]
    pub(crate) async fn timeout_at<F: Future>(
        &self,
        at: Instant,
        future: F,
    ) -> Result<F::Output, Elapsed> {
        let timed = tokio::time::timeout_at(at.into(), future);
        timed.await.map_err(|_| Elapsed)
    }

    /// The output of `future`, if it is there by `at`.
    #[cfg(feature = "testing")]
    pub(crate) async fn timeout_at<F: Future>(
        &self,
        at: Instant,
        future: F,
    ) -> Result<F::Output, Elapsed> {
        crate::testing::sleep::timeout(self.sleep_until(at), future).await
    }
}

/// Moves a timer to `at`, unless that is when it fires.
pub(crate) fn move_to(mut sleep: Pin<&mut Sleep>, at: Instant) {
    #[cfg(not(feature = "testing"))]
    let at = tokio::time::Instant::from_std(at);
    if sleep.deadline() != at {
        sleep.as_mut().reset(at);
    }
}

/// Whether the thread that renews by a clock has anything to do, for a fake that waits until it has not.
#[derive(Debug)]
pub(crate) struct Activity {
    #[cfg(feature = "testing")]
    fake: Option<std::sync::Arc<crate::testing::clock::Activity>>,
}

impl Activity {
    pub(crate) fn new(_clock: &Clock) -> Self {
        Self {
            #[cfg(feature = "testing")]
            fake: _clock.fake.as_ref().map(|world| world.clock.worker()),
        }
    }

    /// The thread is given something to do.
    pub(crate) fn call(&self) {
        #[cfg(feature = "testing")]
        if let Some(fake) = &self.fake {
            fake.call();
        }
    }

    /// How often the thread was given something to do.
    pub(crate) fn calls(&self) -> u64 {
        #[cfg(feature = "testing")]
        if let Some(fake) = &self.fake {
            return fake.calls();
        }
        0
    }

    /// The thread has done all that the first of these calls were for, and waits.
    pub(crate) fn rest(&self, _calls: u64) {
        #[cfg(feature = "testing")]
        if let Some(fake) = &self.fake {
            fake.rest(_calls);
        }
    }

    /// The thread goes on.
    pub(crate) fn work(&self) {
        #[cfg(feature = "testing")]
        if let Some(fake) = &self.fake {
            fake.work();
        }
    }
}
