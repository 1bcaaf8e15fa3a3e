//! The read-write lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::conversion::Conversion;
use crate::engine::force::force;
use crate::engine::handle::Handle;
use crate::engine::hold::OwnerHolds;
use crate::engine::operation::ask;
use crate::engine::request::{Request, Wait};
use crate::error::Error;
use crate::guard::{Guard, guard_methods};
use crate::options::Terms;
use crate::protocol::Protocol;
use crate::protocol::permits::Permits;
use crate::protocol::read_write::{
    READ, WRITE, downgrade, force_unlock, force_unlock_single_key, inspect, inspect_single_key,
    read_inspect, remaining, upgrade,
};
use crate::request::{Acquire, Outcome, TryAcquire};
use crate::state::inspection::Inspection;
use crate::state::names::Name;
use crate::state::token::FencingToken;

/// A handle to a named lock that many read or one writes. Creating it does no I/O; cloning is cheap.
///
/// Waiters stand in one line on the server, readers and writers, one place for each process and lock. The first writer in
/// it keeps back all readers behind it, so it waits for the reads that have begun and for no others: for the longest of them
/// and two round trips, a holder that died for what is left of its lease. A process that reads and misses the message of that
/// hears of it with its next renewal, within a third of its lease. Readers in line behind each other enter together.
///
/// The reads of one process share one hold on the server. The first asks for it; while it lasts and nobody waits to write, others
/// are handed out without a command, except those with [`lease`](Acquire::lease) or [`max_hold`](Acquire::max_hold), and
/// those of an [`Owner`](crate::Owner), which have holds of their own.
///
/// A task that reads and waits to write waits for itself, as with Tokio's lock: [`ReadGuard::try_upgrade`] does not wait.
///
/// On one server, and with [`Replicas`](crate::Replicas) across a failover, a writer is alone, as far as leases go: see
/// [`Guard`]. While the slot of the lock moves to another node of a cluster, a read excludes other readers too.
///
/// In Redisson it is `RReadWriteLock`, on the same keys. Redisson's readers know of nobody who waits: those that overlap without
/// end keep writers out, ours as its own.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// let prices = locks.rw_lock("prices");
/// assert_eq!(prices.key(), "prices");
///
/// let reading = prices.read().await?; // with others
/// reading.release().await?;
///
/// let writing = prices.write().await?; // alone
/// let reading = writing.downgrade().await?; // with others again, and nobody wrote in between
/// # drop(reading);
/// # Ok(())
/// # });
/// ```
///
/// Least rights of a user, here for the namespace `shop`: `~shop:* ~{shop:* ~redisson_lock_token:{shop:* ~leasehold_line:{shop:*
/// &leasehold:*`, and `+eval +evalsha +time +pttl +pexpire +info +hdel +set +get +zcard +del +hset +hmget +hlen +hscan +zrange
/// +zrevrange +zrem +zadd +zrank +publish +subscribe +unsubscribe`.
#[derive(Clone)]
pub struct RwLock {
    context: Arc<Handle>,
    name: Arc<Name>,
    owner: Option<Arc<OwnerHolds>>,
}

/// A lock that is held to read, for as long as the lease lasts.
///
/// Dropping it releases it, see [`Guard`]. Others of this process may share its hold on the server: that ends with the last of
/// them, and until then [`release`](Self::release) says [`StillHeld`](crate::Release::StillHeld), and
/// [`lost`](Self::lost) does not resolve for a release.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// # use std::time::Duration;
/// let prices = locks.rw_lock("prices");
/// let reading = prices.read().await?;
/// assert_eq!(reading.key(), "prices");
/// assert!(reading.is_held() && reading.valid_for() <= Duration::from_secs(30));
/// assert_eq!(reading.acknowledged(), 0); // no replica was asked
/// let read = reading.run(async { 7 }).await?; // ends where it stands if the lock is lost
/// println!("{read}, written under token {} or an earlier one", reading.token());
///
/// let (lost, cancelled) = (reading.lost(), reading.cancellation()); // for other tasks, and blocking ones
/// reading.release().await?;
/// lost.await; // at the release, or at a loss before
/// assert!(cancelled.is_cancelled());
/// # Ok(())
/// # });
/// ```
#[must_use = "dropping the guard releases the lock"]
pub struct ReadGuard {
    guard: Guard,
}

/// A lock that is held to write, for as long as the lease lasts.
///
/// Dropping it releases it, see [`Guard`].
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// let writing = locks.rw_lock("prices").write().await?;
/// writing.run(async { /* … write, with `writing.token()` … */ }).await?;
/// let inspection = locks.rw_lock("prices").inspect().await?;
/// assert_eq!(inspection.holders()[0].id(), writing.id());
/// writing.release().await?;
/// # Ok(())
/// # });
/// ```
#[must_use = "dropping the guard releases the lock"]
pub struct WriteGuard {
    guard: Guard,
}

static DOWNGRADE: Conversion = Conversion {
    to: &READ,
    call: downgrade,
};

static UPGRADE: Conversion = Conversion {
    to: &WRITE,
    call: upgrade,
};

impl RwLock {
    pub(crate) fn new(context: &Arc<Handle>, name: &str, owner: Option<&Arc<OwnerHolds>>) -> Self {
        let name = Name::new(READ.layout, context.config.namespace.as_deref(), name);
        Self {
            context: Arc::clone(context),
            name: Arc::new(name),
            owner: owner.cloned(),
        }
    }

    /// The key on the server: the namespace and the name.
    #[must_use]
    pub fn key(&self) -> &str {
        self.name.key()
    }

    /// Takes the lock to read, waiting for as long as somebody writes or waits to write.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let prices = locks.rw_lock("prices");
    /// let (one, other) = (prices.read().await?, prices.read().await?); // at the same time
    /// assert!(one.is_held() && other.is_held());
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Of the returned [`Acquire`], when it is awaited.
    pub fn read(&self) -> Acquire<ReadGuard> {
        Acquire::new(self.read_request(Wait::Endless))
    }

    /// Takes the lock to read if nobody writes or waits to write, in one round trip; without one where this process reads already.
    ///
    /// `None` otherwise; at once and without asking the server while this process writes or waits.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let prices = locks.rw_lock("prices");
    /// let writing = prices.write().await?;
    /// assert!(prices.try_read().await?.is_none());
    /// # drop(writing);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Of the returned [`Acquire`], when it is awaited.
    pub fn try_read(&self) -> TryAcquire<ReadGuard> {
        Acquire::new(self.read_request(Wait::None))
    }

    /// Takes the lock to read, waiting for at most `time`; `None` when that is over.
    ///
    /// When the server does not answer, it takes up to one command timeout longer. With no time to wait it is
    /// [`try_read`](Self::try_read).
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// # use std::time::Duration;
    /// let reading = locks.rw_lock("prices").try_read_for(Duration::from_secs(1)).await?;
    /// assert!(reading.is_some()); // nobody writes
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Of the returned [`Acquire`], when it is awaited.
    pub fn try_read_for(&self, time: Duration) -> TryAcquire<ReadGuard> {
        Acquire::new(self.read_request(Wait::at_most(time)))
    }

    /// Takes the lock to write, waiting for as long as others hold it or wait before this.
    ///
    /// From when it waits at the server, no reader enters before it.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let writing = locks.rw_lock("prices").write().await?; // alone
    /// println!("write with token {}", writing.token());
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Of the returned [`Acquire`], when it is awaited.
    pub fn write(&self) -> Acquire<WriteGuard> {
        Acquire::new(self.write_request(Wait::Endless))
    }

    /// Takes the lock to write if it is free, in one round trip.
    ///
    /// `None` if others hold it or wait for it; at once and without asking the server while this process holds it or waits.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let prices = locks.rw_lock("prices");
    /// let reading = prices.read().await?;
    /// assert!(prices.try_write().await?.is_none());
    /// # drop(reading);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Of the returned [`Acquire`], when it is awaited.
    pub fn try_write(&self) -> TryAcquire<WriteGuard> {
        Acquire::new(self.write_request(Wait::None))
    }

    /// Takes the lock to write, waiting for at most `time`; `None` when that is over.
    ///
    /// When the server does not answer, it takes up to one command timeout longer. With no time to wait it is
    /// [`try_write`](Self::try_write).
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// # use std::time::Duration;
    /// let prices = locks.rw_lock("prices");
    /// let reading = prices.read().await?;
    /// assert!(prices.try_write_for(Duration::from_millis(20)).await?.is_none());
    /// # drop(reading);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Of the returned [`Acquire`], when it is awaited.
    pub fn try_write_for(&self, time: Duration) -> TryAcquire<WriteGuard> {
        Acquire::new(self.write_request(Wait::at_most(time)))
    }

    /// For how long the lock stays taken, to read or to write, unless it is renewed or released; `None` if it is free.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let prices = locks.rw_lock("prices");
    /// assert_eq!(prices.remaining().await?, None); // free
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoExpiry`](crate::ErrorKind::NoExpiry) if it has no expiry,
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType) if the key is not a lock; and those of asking a server.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn remaining(&self) -> Result<Option<Duration>, Error> {
        self.context.ready(&self.name).await?;
        let call = remaining(&self.name);
        let call = call.slices();
        let reply = ask(&self.context, &self.name, &call.call()).await?;
        match reply.as_int() {
            Some(-1) => Err(self.error(Error::no_expiry())),
            Some(left) => Ok(u64::try_from(left).ok().map(Duration::from_millis)),
            None => Err(self.error(Error::unexpected(&reply))),
        }
    }

    /// The holders, readers or a writer with its token, and those who wait in line with their places. Of more than a hundred
    /// readers some are told, in no order.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let prices = locks.rw_lock("prices");
    /// let reading = prices.read().await?;
    /// assert_eq!(prices.inspect().await?.holders().len(), 1);
    /// assert!(prices.remaining().await?.is_some());
    /// # drop(reading);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType) if the key is not a lock; and those of asking a server.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn inspect(&self) -> Result<Inspection, Error> {
        self.context.ready(&self.name).await?;
        let all = inspect(&self.name);
        let all = all.slices();
        let holders = || inspect_single_key(&self.name).to_owned();
        // While the slot of the lock is migrating, or without rights to the line, nobody can tell who is in it.
        let call = all.call().with_fallback(&holders);
        let reply = ask(&self.context, &self.name, &call).await?;
        read_inspect(&reply).ok_or_else(|| self.error(Error::unexpected(&reply)))
    }

    /// Removes the lock from all of its holders, readers or writer. Those in this process lose it at once, others at their next
    /// renewal. Returns whether it was held.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let prices = locks.rw_lock("prices");
    /// let reading = prices.read().await?;
    /// assert!(prices.force_unlock().await?);
    /// assert!(!reading.is_held());
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType) if the key is not a lock, nothing is deleted then;
    /// [`ErrorKind::Unknown`](crate::ErrorKind::Unknown) if the lock is free but an attempt without an answer may have been what
    /// freed it; and those of asking a server.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take back what was sent.
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        let (context, name) = (&self.context, &self.name);
        force(context, name, force_unlock, force_unlock_single_key).await
    }

    pub(crate) fn read_request(&self, wait: Wait) -> Request {
        self.request(&READ, wait)
    }

    pub(crate) fn write_request(&self, wait: Wait) -> Request {
        self.request(&WRITE, wait)
    }

    fn request(&self, protocol: &'static Protocol, wait: Wait) -> Request {
        let config = &self.context.config;
        Request {
            context: Arc::clone(&self.context),
            protocol,
            name: Arc::clone(&self.name),
            permits: Permits::NONE,
            owner: self.owner.clone(),
            terms: Terms::renewed(config.lease, config.replicas),
            wait,
            polling: None,
        }
    }

    fn error(&self, error: Error) -> Error {
        self.context.about(&self.name, error)
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock")
            .field("key", &self.key())
            .finish_non_exhaustive()
    }
}

impl ReadGuard {
    /// The fencing token of the latest writer before: what is read here was written under it or an earlier one. Where there
    /// was none it is a time.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let prices = locks.rw_lock("prices");
    /// let written = prices.write().await?.token();
    /// assert_eq!(prices.read().await?.token(), written); // what is read was written under this one at the latest
    /// # Ok(())
    /// # });
    /// ```
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.guard.token()
    }

    /// Goes on to write, if nobody else reads; the guard comes back as it was if somebody does, in this process or another.
    ///
    /// It never waits: of two readers that wait for each other to finish neither would. It may pass a writer that waits, which
    /// waits for this reader in any case. The token is a new one. The guard of an [`Owner`](crate::Owner) that writes already
    /// goes on with that.
    ///
    /// Redisson has no counterpart: there a reader that asks to write waits for itself.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let reading = locks.rw_lock("prices").read().await?;
    /// match reading.try_upgrade().await? {
    ///     Ok(writing) => println!("alone, with token {}", writing.token()),
    ///     Err(reading) => println!("others read too: {reading:?}"),
    /// }
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the lock was lost before; and those of an [`Acquire`]. The lock is released
    /// then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock, whatever has become of it.
    pub async fn try_upgrade(self) -> Result<Result<WriteGuard, Self>, Error> {
        let upgraded = self.guard.convert(&UPGRADE).await?;
        Ok(upgraded.map(WriteGuard::from).map_err(Self::from))
    }
}

impl WriteGuard {
    /// The id of the hold: see [`Guard::id`](crate::Guard::id).
    #[must_use]
    pub fn id(&self) -> &str {
        self.guard.id()
    }

    /// The fencing token: higher than that of every earlier writer, and of every earlier acquisition of a mutex of this name.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let prices = locks.rw_lock("prices");
    /// let first = prices.write().await?.token();
    /// assert!(prices.write().await?.token() > first);
    /// # Ok(())
    /// # });
    /// ```
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.guard.token()
    }

    /// Goes on to read, without a moment in which others could write. Readers that wait, up to the first writer among them, enter
    /// at once.
    ///
    /// While other guards of the same [`Owner`](crate::Owner) write, nothing is sent, and it lasts as long as they do.
    ///
    /// Redisson's counterpart, taking the lock to read and then releasing the one to write, wakes nobody.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let writing = locks.rw_lock("prices").write().await?;
    /// // … write …
    /// let reading = writing.downgrade().await?; // nobody wrote in between
    /// assert!(locks.rw_lock("prices").try_read().await?.is_some());
    /// # drop(reading);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the lock was lost before; and those of an [`Acquire`]. The lock is released
    /// then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock, whatever has become of it.
    pub async fn downgrade(self) -> Result<ReadGuard, Error> {
        let (Ok(guard) | Err(guard)) = self.guard.convert(&DOWNGRADE).await?;
        Ok(guard.into())
    }
}

guard_methods!(ReadGuard);
guard_methods!(WriteGuard);

impl From<Guard> for ReadGuard {
    fn from(guard: Guard) -> Self {
        Self { guard }
    }
}

impl From<Guard> for WriteGuard {
    fn from(guard: Guard) -> Self {
        Self { guard }
    }
}

impl Outcome for ReadGuard {
    fn of(guard: Option<Guard>) -> Result<Self, Error> {
        Guard::of(guard).map(Self::from)
    }
}

impl Outcome for WriteGuard {
    fn of(guard: Option<Guard>) -> Result<Self, Error> {
        Guard::of(guard).map(Self::from)
    }
}
