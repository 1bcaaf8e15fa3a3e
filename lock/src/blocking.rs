//! The same locks for code without an async runtime: methods that block the thread until they are done.
//!
//! ```
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), leasehold::Error> {
//! # let server = leasehold_testkit::Server::builder().start_blocking();
//! # let url = server.url();
//! let locks = leasehold::blocking::Locks::connect(url)?;
//! let order = locks.mutex("order:42");
//!
//! let guard = order.lock()?; // waits; the lease is renewed until the guard is dropped
//! assert!(guard.is_held());
//! guard.release()?; // or just drop it
//!
//! let job = locks.mutex("nightly-report").at_least(Duration::from_secs(60));
//! if let Some(guard) = job.try_lock()? {
//!     let lost = guard.cancellation(); // a flag, to be asked between the steps of the job
//!     let done = (0..1_000).take_while(|_| !lost.is_cancelled()).count();
//!     assert_eq!(done, 1_000);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`Locks::connect`] starts a thread that reads from the servers, and ends it with the last handle and guard of this module; leases
//! are renewed by the renewal thread, as ever. Conditions of an acquisition are set on the handle: [`Lock::lease`],
//! [`Lock::max_hold`] and the others. What has no method here, such as latches, barriers and elections, is done by
//! [`Locks::wait`], which blocks until any future of these locks is done.
//!
//! # Panics
//!
//! Every method that blocks panics when it is called inside of an async task, where it would keep the runtime's thread from its other
//! tasks: Tokio says "Cannot start a runtime from within a runtime". Use the async methods there, or
//! `tokio::task::spawn_blocking`. Guards can be dropped anywhere: a drop does not block.
//!
//! A process that is forked has none of these locks, as with the async ones: the methods fail with
//! [`ErrorKind::Forked`](crate::ErrorKind::Forked), and the child connects anew.

mod guard;
mod lock;
mod thread;

use std::fmt;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use crate::client::LocksBuilder;
use crate::error::Error;
use crate::guard::Guard as AsyncGuard;
use crate::primitives::permit::Permit;
use crate::primitives::rw_lock::{ReadGuard, WriteGuard};

pub use guard::{Guard, Held};
pub use lock::Lock;
use thread::Thread;

/// [`Locks`](crate::Locks) whose methods block. Cloning is cheap.
///
/// ```
/// # use std::time::Duration;
/// # fn main() -> Result<(), leasehold::Error> {
/// # let server = leasehold_testkit::Server::builder().start_blocking();
/// # let url = server.url();
/// let locks = leasehold::blocking::Locks::connect(url)?;
/// for lock in [locks.mutex("a"), locks.fair_mutex("b"), locks.plain_mutex("c")] {
///     let guard = lock.lock()?;
///     assert!(lock.try_lock()?.is_none());
/// }
/// let readers = (locks.read_lock("d").lock()?, locks.read_lock("d").lock()?);
/// assert!(locks.write_lock("d").try_lock()?.is_none());
/// let two_of_three = locks.permits("e", 3, 2).lock()?;
/// assert!(locks.permits("e", 3, 2).try_lock()?.is_none());
///
/// // All else is waited for:
/// let latch = locks.asynchronous().latch("f");
/// locks.wait(latch.try_set_count(1))?;
/// assert!(locks.wait_for(Duration::from_millis(10), latch.wait()).is_none());
/// locks.shutdown()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Locks {
    locks: crate::Locks,
    thread: Arc<Thread>,
}

impl Locks {
    /// Connects to the server at `url` with default settings. For others, see
    /// [`LocksBuilder::connect_blocking`].
    ///
    /// # Errors
    ///
    /// Those of [`LocksBuilder::connect`]; [`ErrorKind::Thread`](crate::ErrorKind::Thread) if no thread can be started.
    ///
    /// # Panics
    ///
    /// Inside of an async task: see [the module](self).
    pub fn connect(url: impl Into<String>) -> Result<Self, Error> {
        crate::Locks::builder(url).connect_blocking()
    }

    fn of(builder: LocksBuilder) -> Result<Self, Error> {
        let thread = Thread::start()?;
        let locks = thread.block_on(builder.connect())?;
        thread.serve(&locks);
        Ok(Self { locks, thread })
    }

    /// The mutex called `name`, see [`Locks::mutex`](crate::Locks::mutex).
    pub fn mutex(&self, name: impl AsRef<str>) -> Lock<AsyncGuard> {
        let mutex = self.locks.mutex(name);
        Lock::new(&self.thread, move |wait| mutex.request(wait))
    }

    /// The fair lock called `name`, see [`Locks::fair_mutex`](crate::Locks::fair_mutex).
    pub fn fair_mutex(&self, name: impl AsRef<str>) -> Lock<AsyncGuard> {
        let mutex = self.locks.fair_mutex(name);
        Lock::new(&self.thread, move |wait| mutex.request(wait))
    }

    /// The plain lock called `name`, see [`Locks::plain_mutex`](crate::Locks::plain_mutex).
    pub fn plain_mutex(&self, name: impl AsRef<str>) -> Lock<AsyncGuard> {
        let mutex = self.locks.plain_mutex(name);
        Lock::new(&self.thread, move |wait| mutex.request(wait))
    }

    /// The side of the readers of the read-write lock called `name`, see [`RwLock::read`](crate::RwLock::read).
    pub fn read_lock(&self, name: impl AsRef<str>) -> Lock<ReadGuard> {
        let rw_lock = self.locks.rw_lock(name);
        Lock::new(&self.thread, move |wait| rw_lock.read_request(wait))
    }

    /// The side of the writer of the read-write lock called `name`, see [`RwLock::write`](crate::RwLock::write).
    pub fn write_lock(&self, name: impl AsRef<str>) -> Lock<WriteGuard> {
        let rw_lock = self.locks.rw_lock(name);
        Lock::new(&self.thread, move |wait| rw_lock.write_request(wait))
    }

    /// So many `permits` of the semaphore called `name`, which has `capacity` in all, see
    /// [`Semaphore::acquire_many`](crate::Semaphore::acquire_many).
    pub fn permits(&self, name: impl AsRef<str>, capacity: u32, permits: u32) -> Lock<Permit> {
        let semaphore = self.locks.semaphore(name, capacity);
        Lock::new(&self.thread, move |wait| semaphore.request(permits, wait))
    }

    /// The async locks under these, for [`wait`](Self::wait).
    #[must_use]
    pub const fn asynchronous(&self) -> &crate::Locks {
        &self.locks
    }

    /// Blocks until a future of these locks is done.
    ///
    /// ```
    /// # fn main() -> Result<(), leasehold::Error> {
    /// # let server = leasehold_testkit::Server::builder().start_blocking();
    /// # let locks = leasehold::blocking::Locks::connect(server.url())?;
    /// let pages = locks.asynchronous().latch("pages");
    /// locks.wait(pages.try_set_count(1))?;
    /// locks.wait(pages.count_down())?;
    /// locks.wait(pages.wait())?;
    ///
    /// let both = locks.asynchronous().multi(["account:1", "account:2"]);
    /// let guard = locks.wait(both.lock())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Inside of an async task: see [the module](self).
    pub fn wait<F: IntoFuture>(&self, future: F) -> F::Output {
        self.thread.block_on(future.into_future())
    }

    /// Blocks until a future of these locks is done, but for `time` at most; `None` if it is not done by then.
    ///
    /// # Panics
    ///
    /// Inside of an async task: see [the module](self).
    pub fn wait_for<F: IntoFuture>(&self, time: Duration, future: F) -> Option<F::Output> {
        self.thread.block_on_for(time, future.into_future())
    }

    /// Ends all locking through these locks: see [`Locks::shutdown`](crate::Locks::shutdown).
    ///
    /// # Errors
    ///
    /// Those of the async one.
    ///
    /// # Panics
    ///
    /// Inside of an async task: see [the module](self).
    pub fn shutdown(&self) -> Result<(), Error> {
        self.wait(self.locks.shutdown())
    }
}

impl LocksBuilder {
    /// Connects, and gives the locks whose methods block, for code without an async runtime: see [`blocking`](self).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), leasehold::Error> {
    /// # let server = leasehold_testkit::Server::builder().start_blocking();
    /// # let url = server.url();
    /// let locks = leasehold::Locks::builder(url)
    ///     .lease(Duration::from_secs(10))
    ///     .connect_blocking()?;
    /// let guard = locks.mutex("order:42").lock()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect), and [`ErrorKind::Thread`](crate::ErrorKind::Thread) if no thread can be started.
    ///
    /// # Panics
    ///
    /// Inside of an async task: see [the module](self).
    pub fn connect_blocking(self) -> Result<Locks, Error> {
        Locks::of(self)
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Locks").field(&self.locks).finish()
    }
}
