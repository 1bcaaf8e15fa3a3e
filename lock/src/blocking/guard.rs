//! The guard of a blocking lock.

use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use super::thread::Thread;
use crate::engine::release::Release;
use crate::error::{Error, LostReason};
use crate::guard::Guard as AsyncGuard;
use crate::primitives::permit::Permit;
use crate::primitives::rw_lock::{ReadGuard, WriteGuard};

/// A lock that is held, as the guard `G` of the async locks, whose methods it has; those that wait block here.
///
/// Dropping it releases the lock, anywhere, also inside of an async task, and waits for nothing.
///
/// ```
/// # use std::time::Duration;
/// # use leasehold::Release;
/// # fn main() -> Result<(), leasehold::Error> {
/// # let server = leasehold_testkit::Server::builder().start_blocking();
/// # let locks = leasehold::blocking::Locks::connect(server.url())?;
/// let guard = locks.mutex("order:42").lock()?;
/// assert!(guard.is_held());
/// assert_eq!(guard.wait_lost(Duration::from_millis(10)), None);
/// assert_eq!(guard.release()?, Release::Released);
///
/// let writing = locks.write_lock("map").lock()?;
/// let reading = locks.wait(writing.into_async().downgrade())?;
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping the guard releases the lock"]
pub struct Guard<G = AsyncGuard> {
    // Dropped first: what it releases is sent by the thread.
    guard: G,
    thread: Arc<Thread>,
}

/// A guard of the async locks. Implemented for those that [`Lock`](super::Lock) gives, and for no other.
pub trait Held: sealed::Held {}

mod sealed {
    use super::{AsyncGuard, Error, Future, LostReason, Release};

    pub trait Held: From<AsyncGuard> {
        fn release(self) -> impl Future<Output = Result<Release, Error>>;
        fn lost(&self) -> impl Future<Output = LostReason> + 'static;
    }
}

macro_rules! held {
    ($($guard:ty),+) => {$(
        impl Held for $guard {}

        impl sealed::Held for $guard {
            fn release(self) -> impl Future<Output = Result<Release, Error>> {
                self.release()
            }

            fn lost(&self) -> impl Future<Output = LostReason> + 'static {
                self.lost()
            }
        }
    )+};
}

held!(AsyncGuard, ReadGuard, WriteGuard, Permit);

impl<G: Held> Guard<G> {
    pub(super) fn new(thread: &Arc<Thread>, guard: G) -> Self {
        Self {
            guard,
            thread: Arc::clone(thread),
        }
    }

    /// Releases the lock and waits for the server's answer.
    ///
    /// # Errors
    ///
    /// Those of [`Guard::release`](crate::Guard::release). The lock is given up all the same.
    ///
    /// # Panics
    ///
    /// Inside of an async task: see [the module](super).
    #[track_caller]
    pub fn release(self) -> Result<Release, Error> {
        let Self { guard, thread } = self;
        thread.block_on(sealed::Held::release(guard))
    }

    /// Waits for at most `time` until the lease can no longer be trusted, and returns the reason; `None` if it is held still.
    ///
    /// For a flag to be asked between the steps of some work, without waiting, there is
    /// [`cancellation`](crate::Guard::cancellation).
    ///
    /// # Panics
    ///
    /// Inside of an async task: see [the module](super).
    #[track_caller]
    pub fn wait_lost(&self, time: Duration) -> Option<LostReason> {
        let lost = sealed::Held::lost(&self.guard);
        self.thread.block_on_for(time, lost)
    }

    /// The async guard alone, for what takes one of those, such as [`WriteGuard::downgrade`] or [`Permit::merge`]: see
    /// [`Locks::wait`](super::Locks::wait).
    pub fn into_async(self) -> G {
        self.guard
    }
}

impl<G> Deref for Guard<G> {
    type Target = G;

    fn deref(&self) -> &G {
        &self.guard
    }
}

impl<G> DerefMut for Guard<G> {
    fn deref_mut(&mut self) -> &mut G {
        &mut self.guard
    }
}

impl<G: fmt::Debug> fmt::Debug for Guard<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}
