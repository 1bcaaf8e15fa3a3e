//! A fake for the tests of code that uses locks: the same [`Locks`], without a server.
//!
//! For a [`Redlock`](crate::Redlock) it is [`FakeRedlock`].
//!
//! It is not a second implementation. The code that runs is that of the locks, with its scripts, its waiting and its renewals; only
//! the server is in memory, and the clock can be moved on. So whatever a lock does on a server it does here.
//!
//! ```
//! use std::time::Duration;
//! use leasehold::testing::Fake;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), leasehold::Error> {
//! let fake = Fake::new();
//! let locks = fake.locks().await?;
//! let theirs = fake.hold("order:42").await;
//! assert!(locks.mutex("order:42").try_lock().await?.is_none());
//! theirs.release().await;
//! assert!(locks.mutex("order:42").try_lock().await?.is_some());
//! # Ok(())
//! # }
//! ```
//!
//! The feature `testing` belongs into `[dev-dependencies]`:
//!
//! ```toml
//! [dev-dependencies]
//! leasehold = { version = "0.1", features = ["testing"] }
//! ```
//!
//! It builds Lua 5.1 from its source, as servers have it in them, which takes a C compiler.
//!
//! # Time
//!
//! The clock of a fake runs as that of the machine does, so a wait that is given a second ends after a second. [`Fake::advance`]
//! moves it on: leases end, renewals that are due on the way are made, and waits whose time is over end.
//!
//! It goes together with `tokio::time::pause`. Where a task waits for a lock, or for its loss, and the runtime moves its own
//! time on because nothing else is left to do, the clock of the fake goes with it. A test that sleeps itself and then asks whether
//! a lease has ended calls [`Fake::advance`] instead: nothing tells the fake of that sleep.

pub(crate) mod clock;
mod held;
pub(crate) mod hooks;
mod redlock;
mod server;
pub(crate) mod sleep;
mod task;
mod world;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_cluster::Target;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OnceCell;

use crate::client::{Locks, LocksBuilder};
use crate::engine::clock::Clock;
use crate::error::{Error, ErrorKind, LostReason};
pub use held::Held;
use held::{HeldAs, held};
pub use redlock::FakeRedlock;
pub use world::{Event, What};
pub(crate) use world::{Link, World};

/// Servers and clocks for tests, in memory. Clones are the same one; others know nothing of it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// let fake = leasehold::testing::Fake::new();
/// let (here, there) = (fake.locks().await?, fake.locks().await?); // as of two processes
/// let guard = here.mutex("order:42").lock().await?;
/// assert!(there.mutex("order:42").try_lock().await?.is_none());
/// # drop(guard);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Fake(Arc<Inner>);

struct Inner {
    world: Arc<World>,
    /// The locks through which [`Fake::hold`] holds.
    others: OnceCell<Locks>,
}

impl Fake {
    /// A fake where nothing is held. It needs neither a thread nor a runtime.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Inner {
            world: World::new(1),
            others: OnceCell::new(),
        }))
    }

    /// Locks as of one process. Further ones are as of other processes.
    ///
    /// # Errors
    ///
    /// None that a test need expect.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn locks(&self) -> Result<Locks, Error> {
        self.builder().connect().await
    }

    /// Settings for locks as of one process, such as a namespace or another lease.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// let fake = leasehold::testing::Fake::new();
    /// let locks = fake.builder().namespace("shop").connect().await?;
    /// assert_eq!(locks.mutex("order:42").key(), "shop:order:42");
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(&self) -> LocksBuilder {
        LocksBuilder::of_fake(self.0.world.link(0))
    }

    /// Moves the clock on by `time`, in steps: at each the renewals that are due are made, and waits and leases that are over end.
    /// Returns when all that has been done, as far as tasks of this fake's locks do it.
    ///
    /// On a runtime with several threads, tasks that were woken may still be at what they were woken for.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let fake = leasehold::testing::Fake::new();
    /// # let locks = fake.locks().await?;
    /// let renewed = locks.mutex("a").lock().await?;
    /// let fixed = locks.mutex("b").lock().lease(Duration::from_secs(30)).await?;
    /// fake.advance(Duration::from_secs(31)).await;
    /// assert!(renewed.is_held());
    /// assert!(!fixed.is_held());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// If `time` is longer than the clock of the machine can show: hundreds of years.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the clock where it is by then.
    pub async fn advance(&self, time: Duration) {
        self.0.world.advance(time).await;
    }

    /// Somebody else holds the mutex called `name`, namespace included, until what this returns is dropped.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let fake = leasehold::testing::Fake::new();
    /// # let locks = fake.locks().await?;
    /// let theirs = fake.hold("order:42").await;
    /// assert!(locks.mutex("order:42").try_lock().await?.is_none());
    /// drop(theirs);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// If it is held already.
    pub async fn hold(&self, name: impl AsRef<str>) -> Held {
        let name = name.as_ref();
        let taken = self.others().await.mutex(name).try_lock().await;
        Held(HeldAs::Mutexes(vec![held(name, taken)]))
    }

    /// Somebody else reads under the read-write lock called `name`, namespace included, until what this returns is dropped.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let fake = leasehold::testing::Fake::new();
    /// # let locks = fake.locks().await?;
    /// let theirs = fake.hold_shared("prices").await;
    /// assert!(locks.rw_lock("prices").try_read().await?.is_some());
    /// assert!(locks.rw_lock("prices").try_write().await?.is_none());
    /// # drop(theirs);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// If somebody writes.
    pub async fn hold_shared(&self, name: impl AsRef<str>) -> Held {
        let name = name.as_ref();
        let taken = self.others().await.rw_lock(name).try_read().await;
        Held(HeldAs::Read(held(name, taken)))
    }

    /// Somebody else writes under the read-write lock called `name`, namespace included, until what this returns is dropped.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let fake = leasehold::testing::Fake::new();
    /// # let locks = fake.locks().await?;
    /// let theirs = fake.hold_exclusive("prices").await;
    /// assert!(locks.rw_lock("prices").try_read().await?.is_none());
    /// # drop(theirs);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// If it is held already.
    pub async fn hold_exclusive(&self, name: impl AsRef<str>) -> Held {
        let name = name.as_ref();
        let taken = self.others().await.rw_lock(name).try_write().await;
        Held(HeldAs::Write(held(name, taken)))
    }

    /// Somebody else holds `permits` of the semaphore called `name`, namespace included, which has `of` in all.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let fake = leasehold::testing::Fake::new();
    /// # let locks = fake.locks().await?;
    /// let theirs = fake.hold_permits("fragile", 4, 5).await;
    /// assert!(locks.semaphore("fragile", 5).try_acquire_many(2).await?.is_none());
    /// # drop(theirs);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// If there are not as many, or the semaphore has another number in all.
    pub async fn hold_permits(&self, name: impl AsRef<str>, permits: u32, of: u32) -> Held {
        let name = name.as_ref();
        let semaphore = self.others().await.semaphore(name, of);
        let taken = semaphore.try_acquire_many(permits).await;
        Held(HeldAs::Permits(held(name, taken)))
    }

    /// Makes the holders of `name`, namespace included, lose it now for `reason`: `is_held()` turns false, `lost()` resolves. It
    /// is free for others then. Returns how many holds were lost; those of [`hold`](Self::hold) stay.
    ///
    /// ```
    /// # use leasehold::LostReason;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let fake = leasehold::testing::Fake::new();
    /// # let locks = fake.locks().await?;
    /// let guard = locks.mutex("order:42").lock().await?;
    /// let work = guard.run(std::future::pending::<()>());
    /// assert_eq!(fake.lose("order:42", LostReason::Stolen).await, 1);
    /// assert_eq!(work.await.unwrap_err().reason(), LostReason::Stolen);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lose(&self, name: impl AsRef<str>, reason: LostReason) -> usize {
        let lost = self.0.world.lose(name.as_ref(), reason);
        self.0.world.settle().await;
        lost
    }

    /// The server forgets everything, as one without persistence does that is restarted. Holders learn it at their next renewal.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let fake = leasehold::testing::Fake::new();
    /// # let locks = fake.locks().await?;
    /// # use std::time::Duration;
    /// let guard = locks.mutex("order:42").lock().await?;
    /// fake.flush();
    /// fake.advance(Duration::from_secs(11)).await; // its renewal is due at a third of the lease, 30 s
    /// assert!(!guard.is_held());
    /// # Ok(())
    /// # }
    /// ```
    pub fn flush(&self) {
        self.0.world.servers[0].forget();
    }

    /// The next call that names a lock ends with an error of this kind, and does nothing: taking, releasing, asking or counting. A
    /// release that fails like this is finished in the background, as one at a server is.
    ///
    /// ```
    /// # use leasehold::ErrorKind;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let fake = leasehold::testing::Fake::new();
    /// # let locks = fake.locks().await?;
    /// fake.fail_next(ErrorKind::Unavailable);
    /// let failed = locks.mutex("order:42").lock().await;
    /// assert_eq!(failed.unwrap_err().kind(), ErrorKind::Unavailable);
    /// assert!(locks.mutex("order:42").lock().await.is_ok());
    /// # Ok(())
    /// # }
    /// ```
    pub fn fail_next(&self, kind: ErrorKind) {
        self.0.world.fail_next(None, kind);
    }

    /// The same for the next call that names this lock, namespace included.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let fake = leasehold::testing::Fake::new();
    /// # let locks = fake.locks().await?;
    /// # use leasehold::ErrorKind;
    /// fake.fail_next_on("order:42", ErrorKind::Denied);
    /// assert!(locks.mutex("order:7").lock().await.is_ok());
    /// assert_eq!(locks.mutex("order:42").lock().await.unwrap_err().kind(), ErrorKind::Denied);
    /// # Ok(())
    /// # }
    /// ```
    pub fn fail_next_on(&self, name: impl AsRef<str>, kind: ErrorKind) {
        self.0.world.fail_next(Some(name.as_ref().into()), kind);
    }

    /// Grants, releases and losses so far, in their order. Guards that share a hold, as those of an owner or the reads of one
    /// process, are one entry.
    ///
    /// ```
    /// # use leasehold::testing::What;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let fake = leasehold::testing::Fake::new();
    /// # let locks = fake.locks().await?;
    /// let from = locks.mutex("account:1").lock().await?;
    /// let to = locks.mutex("account:2").lock().await?;
    /// let taken: Vec<String> = fake.history().iter().map(|event| event.name().to_owned()).collect();
    /// assert_eq!(taken, ["account:1", "account:2"]);
    /// # drop((from, to));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn history(&self) -> Vec<Event> {
        self.0.world.history()
    }

    /// A connection to its server, for tests of the fake itself.
    #[doc(hidden)]
    #[must_use]
    pub fn connect(&self) -> impl AsyncRead + AsyncWrite + Send + Unpin + use<> {
        self.0.world.servers[0].connect()
    }

    async fn others(&self) -> &Locks {
        let world = &self.0.world;
        let connected = self.0.others.get_or_init(|| async {
            let connected = self.locks().await;
            let locks = connected.unwrap_or_else(|error| panic!("a fake is reachable: {error}"));
            world.add_others(locks.client_id());
            locks
        });
        connected.await
    }
}

/// Has locks be those of `fake`, if there is one, instead of those at `target`. Returns their clock.
pub(crate) fn connect_to(fake: Option<Link>, target: &mut Target) -> Clock {
    let Some(fake) = fake else {
        return Clock::new();
    };
    for endpoint in target.endpoints_mut() {
        endpoint.dialer = Some(fake.dialer.clone());
    }
    Clock::of_fake(fake.world)
}

impl Default for Fake {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Fake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fake").finish_non_exhaustive()
    }
}
