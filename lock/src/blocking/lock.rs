//! A lock of blocking locks, whichever kind it is.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::guard::{Guard, Held};
use super::thread::Thread;
use crate::engine::request::{Request, Wait};
use crate::error::Error;
use crate::guard::Guard as AsyncGuard;
use crate::options::Replicas;
#[cfg(doc)]
use crate::request::Acquire;
use crate::request::TryAcquire;
use crate::state::backoff::Backoff;

/// A handle to a named lock whose methods block, with the conditions on which it is taken. Creating it does no I/O; cloning is
/// cheap.
///
/// ```
/// # use std::time::Duration;
/// # use leasehold::{Backoff, Release, Replicas};
/// # fn main() -> Result<(), leasehold::Error> {
/// # let server = leasehold_testkit::Server::builder().start_blocking();
/// # let locks = leasehold::blocking::Locks::connect(server.url())?;
/// let minute = Duration::from_secs(60);
/// let job = locks.mutex("job").max_hold(10 * minute).at_least(minute);
/// assert!(matches!(job.lock()?.release()?, Release::Kept { .. }));
/// assert!(job.try_lock_for(Duration::from_millis(10))?.is_none());
///
/// let fixed = locks.mutex("order:42").lease(minute).replicated(Replicas::None);
/// let guard = fixed.try_lock()?.expect("it is free");
/// assert!(fixed.polling(Backoff::default()).try_lock()?.is_none());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// Its methods fail as an [`Acquire`] does when it is awaited. That the lock is held is not an error.
///
/// # Panics
///
/// Its methods panic inside of an async task: see [the module](super).
#[must_use = "a handle takes no lock by itself"]
pub struct Lock<G> {
    thread: Arc<Thread>,
    request: Arc<dyn Fn(Wait) -> Request + Send + Sync>,
    conditions: Conditions,
    guard: PhantomData<fn() -> G>,
}

/// Conditions that were set; `None` for the defaults of these locks.
#[derive(Clone, Copy, Debug, Default)]
struct Conditions {
    lease: Option<Duration>,
    max_hold: Option<Duration>,
    at_least: Option<Duration>,
    replicas: Option<Replicas>,
    polling: Option<Backoff>,
}

impl<G: Held> Lock<G> {
    pub(super) fn new(
        thread: &Arc<Thread>,
        request: impl Fn(Wait) -> Request + Send + Sync + 'static,
    ) -> Self {
        Self {
            thread: Arc::clone(thread),
            request: Arc::new(request),
            conditions: Conditions::default(),
            guard: PhantomData,
        }
    }

    /// A fixed lease that is not renewed: see [`Acquire::lease`].
    pub fn lease(mut self, lease: Duration) -> Self {
        self.conditions.lease = Some(lease);
        self
    }

    /// Upper bound on the hold: see [`Acquire::max_hold`].
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.conditions.max_hold = Some(max_hold);
        self
    }

    /// How long the lock stays taken at least: see [`Acquire::at_least`].
    pub fn at_least(mut self, time: Duration) -> Self {
        self.conditions.at_least = Some(time);
        self
    }

    /// Which replicas must confirm the lock: see [`Acquire::replicated`].
    pub fn replicated(mut self, replicas: Replicas) -> Self {
        self.conditions.replicas = Some(replicas);
        self
    }

    /// Waits without publish and subscribe: see [`Acquire::polling`].
    pub fn polling(mut self, backoff: Backoff) -> Self {
        self.conditions.polling = Some(backoff);
        self
    }

    /// Takes the lock, waiting for as long as others hold it.
    ///
    /// # Errors
    ///
    /// Those of an [`Acquire`].
    #[track_caller]
    pub fn lock(&self) -> Result<Guard<G>, Error> {
        // An endless wait never ends without a guard or an error.
        self.take(Wait::Endless)?.ok_or_else(Error::closed)
    }

    /// Takes the lock if it is free, in one round trip; `None` if others hold it.
    ///
    /// # Errors
    ///
    /// Those of an [`Acquire`].
    #[track_caller]
    pub fn try_lock(&self) -> Result<Option<Guard<G>>, Error> {
        self.take(Wait::None)
    }

    /// Takes the lock, waiting for at most `time`; `None` when that is over.
    ///
    /// # Errors
    ///
    /// Those of an [`Acquire`].
    #[track_caller]
    pub fn try_lock_for(&self, time: Duration) -> Result<Option<Guard<G>>, Error> {
        self.take(Wait::at_most(time))
    }

    #[track_caller]
    fn take(&self, wait: Wait) -> Result<Option<Guard<G>>, Error> {
        let Conditions {
            lease,
            max_hold,
            at_least,
            replicas,
            polling,
        } = self.conditions;
        let mut acquire = TryAcquire::<AsyncGuard>::new((self.request)(wait));
        if let Some(lease) = lease {
            acquire = acquire.lease(lease);
        }
        if let Some(max_hold) = max_hold {
            acquire = acquire.max_hold(max_hold);
        }
        if let Some(at_least) = at_least {
            acquire = acquire.at_least(at_least);
        }
        if let Some(replicas) = replicas {
            acquire = acquire.replicated(replicas);
        }
        if let Some(polling) = polling {
            acquire = acquire.polling(polling);
        }
        let taken = self.thread.block_on(acquire.into_future())?;
        Ok(taken.map(|guard| Guard::new(&self.thread, G::from(guard))))
    }
}

impl<G> Clone for Lock<G> {
    fn clone(&self) -> Self {
        Self {
            thread: Arc::clone(&self.thread),
            request: Arc::clone(&self.request),
            conditions: self.conditions,
            guard: PhantomData,
        }
    }
}

impl<G> fmt::Debug for Lock<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("key", &(self.request)(Wait::None).name.key())
            .field("conditions", &self.conditions)
            .finish_non_exhaustive()
    }
}
