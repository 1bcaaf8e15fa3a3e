//! The awaitable that takes a lock, the same for all primitives.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::time::Duration;

use crate::engine::acquire::acquire;
use crate::engine::request::Request;
use crate::error::Error;
use crate::guard::Guard;
use crate::options::Replicas;
use crate::state::backoff::Backoff;

/// An acquisition to be awaited. It resolves to a [`Guard`] or the guard of another primitive, or, as [`TryAcquire`], to `None`
/// where it may not wait, or not as long as others hold the lock.
///
/// The lease is renewed until the guard is dropped, unless [`lease`](Self::lease) fixes it. A lock that nests with one of
/// the same [`Owner`](crate::Owner) has the lease of that one.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// # use std::time::Duration;
/// // The conditions come before `.await`:
/// let guard = locks
///     .mutex("order:42")
///     .try_lock_for(Duration::from_secs(2)) // how long to wait
///     .max_hold(Duration::from_secs(60)) // how long to hold
///     .await?;
/// assert!(guard.is_some());
/// # Ok(())
/// # });
/// ```
///
/// # Errors
///
/// That the lock is held is not an error, and an error never means that it is held.
///
/// * [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable), [`ErrorKind::Unknown`](crate::ErrorKind::Unknown): the
///   server did not answer within the command timeout, counted for each attempt. What an attempt without an answer may
///   have left is removed, which the server sees before anything else that this client sends for the lock. The first
///   waiter of a process asks for all: those behind it that want the same fail with it, as `Unavailable`.
/// * [`ErrorKind::NotReplicated`](crate::ErrorKind::NotReplicated): too few replicas confirmed it.
/// * [`ErrorKind::WrongType`](crate::ErrorKind::WrongType), [`ErrorKind::NoExpiry`](crate::ErrorKind::NoExpiry): what the
///   key holds will not go away by waiting.
/// * [`ErrorKind::Lost`](crate::ErrorKind::Lost): the lease was over before the answer came; or, through an
///   [`Owner`](crate::Owner), a guard of the same lock is still there but lost.
/// * [`ErrorKind::Nested`](crate::ErrorKind::Nested): the owner holds the lock already, but fewer replicas had to confirm
///   it, or it may last longer, than is asked for here.
/// * [`ErrorKind::BadName`](crate::ErrorKind::BadName), [`ErrorKind::BadLease`](crate::ErrorKind::BadLease),
///   [`ErrorKind::Denied`](crate::ErrorKind::Denied), [`ErrorKind::Closed`](crate::ErrorKind::Closed) and others.
///
/// # Spawning
///
/// An acquisition becomes a future when it is awaited. Where a future is asked for, as by `tokio::spawn`, `tokio::join!` or
/// `tokio::time::timeout`, [`into_future`](IntoFuture::into_future) gives it. It needs no `use`, and borrows nothing:
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// # let order = locks.mutex("order:42");
/// let waiting = tokio::spawn(order.lock().into_future());
/// let guard = waiting.await??;
/// # Ok(())
/// # });
/// ```
///
/// Without it the compiler says that `Acquire` is not a future, and that it "must implement `IntoFuture` to be awaited":
///
/// ```compile_fail,E0277
/// # async fn example(order: leasehold::Mutex) {
/// let waiting = tokio::spawn(order.lock());
/// # }
/// ```
///
/// # Panics
///
/// When polled outside of a Tokio runtime with time enabled.
///
/// # Cancel safety
///
/// Dropping the future leaves nothing behind, here or on the server; its place in the queue is lost. If an attempt was on
/// its way, a release follows it.
#[must_use = "a lock that is not awaited is not taken"]
pub struct Acquire<T = Guard> {
    request: Request,
    result: PhantomData<fn() -> T>,
}

/// An [`Acquire`] that resolves to `None` if others have the lock, at once or until the time to wait is over.
pub type TryAcquire<G = Guard> = Acquire<Option<G>>;

/// The result of an acquisition: the guard of a primitive, or `None` where it may not wait for ever.
pub(crate) trait Outcome: Sized + 'static {
    /// `None` if the time to wait is over.
    fn of(guard: Option<Guard>) -> Result<Self, Error>;
}

impl<T> Acquire<T> {
    pub(crate) const fn new(request: Request) -> Self {
        Self {
            request,
            result: PhantomData,
        }
    }

    /// A fixed lease, of 10 ms to 365 days, that is not renewed. It is not monitored either: loss on the server is detected
    /// at release or expiry only. Where it was waited for, it begins as a grant of a second, which one renewal confirms.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// # use std::time::Duration;
    /// let order = locks.mutex("order:42");
    /// let guard = order.lock().lease(Duration::from_millis(50)).await?;
    /// assert!(guard.valid_for() <= Duration::from_millis(50));
    /// tokio::time::sleep(Duration::from_millis(100)).await;
    /// assert!(order.try_lock().await?.is_some()); // it is over, and the next one has it
    /// # Ok(())
    /// # });
    /// ```
    pub fn lease(mut self, lease: Duration) -> Self {
        self.request.terms.lease = lease;
        self.request.terms.renew = false;
        self
    }

    /// Upper bound on the hold, 10 ms to 365 days, however often it is renewed: a body that hangs does not keep it for
    /// ever.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// # use std::time::Duration;
    /// use leasehold::LostReason;
    ///
    /// let guard = locks.mutex("order:42").lock().max_hold(Duration::from_millis(50)).await?;
    /// let stuck = guard.run(std::future::pending::<()>()).await.unwrap_err();
    /// assert!(matches!(stuck.reason(), LostReason::MaxHold | LostReason::Expired));
    /// # Ok(())
    /// # });
    /// ```
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.request.terms.max_hold = Some(max_hold);
        self
    }

    /// How long the lock stays taken at least, 10 ms to 365 days, counted from its grant: for a job that is done so fast that
    /// another host, whose clock is behind, would start it again.
    ///
    /// A guard that is released or dropped before ends as ever: no renewal follows, and [`is_held`](Guard::is_held) is false. But
    /// the lock has no next holder until the time is over. It is not passed on, `try_lock` says `None`, and those who wait
    /// get it after that, as from a holder that died; [`release`](Guard::release) returns
    /// [`Release::Kept`](crate::Release::Kept). On the server the key stays, with the rest of the time as its TTL, and its holder
    /// is the former one with `:kept` behind its id. `force_unlock` removes it. If the server is not reached at the
    /// release, it stays for up to as much longer.
    ///
    /// The first lease is as long as this at least. So the lock also stays taken if this process dies, and for as long, if replicas
    /// confirm it, through a failover; of a job that runs for longer than this the later leases are the usual ones. A shutdown
    /// of the locks keeps it too.
    ///
    /// Of locks that nest, the longest counts, each from its own call; should this process die, from the next renewal on, which
    /// is a third of a lease later at most. A hold that is [detached](Guard::detach) leaves it to whoever
    /// releases it how long it stays.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// # use std::time::Duration;
    /// // Every host runs this at midnight, by its own clock.
    /// let job = locks.mutex("nightly-report");
    /// if let Some(guard) = job.try_lock().at_least(Duration::from_secs(60)).await? {
    ///     // … the report, which may take a second
    ///     guard.release().await?;
    /// }
    /// assert!(job.try_lock().await?.is_none()); // for the rest of the minute
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadLease`](crate::ErrorKind::BadLease), when it is awaited, if this is longer than [`max_hold`](Self::max_hold) or
    /// than a fixed [`lease`](Self::lease). [`ErrorKind::Config`](crate::ErrorKind::Config) for reads, writes and permits: it is
    /// for the mutex, the fair mutex and the plain mutex.
    pub fn at_least(mut self, time: Duration) -> Self {
        self.request.terms.at_least = Some(time);
        self
    }

    /// Which replicas must confirm the lock, whatever [`LocksBuilder::replicated`](crate::LocksBuilder::replicated) says.
    ///
    /// ```
    /// # leasehold_testkit::example::with_replicas(async |url| {
    /// # let lease = std::time::Duration::from_secs(1); // a fresh server grants nothing for as long
    /// # let locks = leasehold::Locks::builder(url).lease(lease).connect().await?;
    /// use leasehold::Replicas;
    ///
    /// let guard = locks.mutex("order:42").lock().replicated(Replicas::All).await?;
    /// assert_eq!(guard.acknowledged(), 2); // both
    /// # Ok(())
    /// # });
    /// ```
    pub fn replicated(mut self, replicas: Replicas) -> Self {
        self.request.terms.replicas = replicas;
        self
    }

    /// Waits without publish and subscribe: nothing is subscribed to, and no message is sent to this waiter. For servers,
    /// proxies and users without it.
    ///
    /// It has its place in line as others have. A lock that comes free is granted to it silently, and found by its next look:
    /// after `max` of the backoff and a round trip at most, or after a quarter of the lease if that is less. Until then
    /// the lock stands unused; if the waiter died, for twice that time, and for a second at least.
    ///
    /// Those of one process and lock have one place, and the first of them looks for all.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// use leasehold::Backoff;
    ///
    /// let guard = locks.mutex("order:42").lock().polling(Backoff::default()).await?;
    /// guard.release().await?;
    /// # Ok(())
    /// # });
    /// ```
    pub fn polling(mut self, backoff: Backoff) -> Self {
        self.request.polling = Some(backoff);
        self
    }
}

impl<T: Outcome> IntoFuture for Acquire<T> {
    type Output = Result<T, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(mut self) -> Self::IntoFuture {
        self.request.settle_terms();
        Box::pin(async move {
            let hold = acquire(&self.request).await?;
            T::of(hold.map(|hold| Guard::new(&self.request.context, hold)))
        })
    }
}

impl Outcome for Guard {
    fn of(guard: Option<Guard>) -> Result<Self, Error> {
        // An endless wait never ends without a guard or an error.
        guard.ok_or_else(Error::closed)
    }
}

impl<G: From<Guard> + Outcome> Outcome for Option<G> {
    fn of(guard: Option<Guard>) -> Result<Self, Error> {
        Ok(guard.map(G::from))
    }
}

impl<T> fmt::Debug for Acquire<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("key", &self.request.name.key())
            .field("terms", &self.request.terms)
            .field("wait", &self.request.wait)
            .finish_non_exhaustive()
    }
}
