//! The semaphore whose permits are leases.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold_cluster::Effect;

use super::counting::CountingSemaphore;
use super::permit::Permit;
use crate::engine::handle::Handle;
use crate::engine::operation::{apply, ask};
use crate::engine::request::{Request, Wait};
use crate::error::Error;
use crate::options::{Interop, Terms};
use crate::protocol::permits::{Permits, bad_capacity};
use crate::protocol::semaphore::inspect::{inspect, read_inspect};
use crate::protocol::semaphore::{
    Counted, Resize, SEMAPHORE, available, read_available, set_permits,
};
use crate::request::{Acquire, TryAcquire};
use crate::state::inspection::Inspection;
use crate::state::names::Name;

/// A handle to a named semaphore: so many permits over all processes. Creating it does no I/O; cloning is cheap.
///
/// A permit is a lease: it is renewed while its [`Permit`] lives, and that of a holder that died comes back when its lease
/// ends, without anybody's help. How many are free is computed from those that live, so none leaks.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// // At most 5 connections to a fragile service, over all hosts.
/// let connections = locks.semaphore("fragile:connections", 5);
/// assert_eq!(connections.key(), "fragile:connections");
/// let permit = connections.acquire().await?; // waits; renewed until the permit is dropped
/// permit.run(async { /* dropped where it stands when the permit is lost */ }).await?;
///
/// let three = connections.acquire_many(3).await?; // all or none
/// assert_eq!(connections.available().await?, 1);
/// # drop(three);
/// # Ok(())
/// # });
/// ```
///
/// # How many there are
///
/// The server keeps the number of the first user. One that comes with another number gets
/// [`ErrorKind::CapacityDisagrees`](crate::ErrorKind::CapacityDisagrees) and no permit, and
/// [`set_permits`](Self::set_permits) changes it. An hour, or ten leases, after the last use it is forgotten.
///
/// # Who is served
///
/// Waiters stand in a line on the server, one place for each process and semaphore, and are served in its order: an
/// [`acquire_many`](Self::acquire_many) that is first keeps what becomes free until it has enough, so small requests do not
/// starve large ones. Within a process it is the order of the calls; a thousand waiters cost the server what one does. A
/// process that dies at the head of the line holds up the others for a second, and until the next one looks, a stopped one as well.
///
/// # Topologies
///
/// On one server there are never more holders than permits while the leases are kept. A failover to a replica that has not
/// heard of a permit grants it a second time: [`Acquire::replicated`] closes that as for the mutex, and
/// [`Permit::lost`] tells. In a cluster all keys of a semaphore are in one slot; while that migrates permits are renewed and
/// given back, and acquisitions wait until it is over.
///
/// # Redisson
///
/// This is Redisson's `RPermitExpirableSemaphore`, on the same keys. Its processes and ours share the permits with
/// [`Interop::Redisson`](crate::Interop::Redisson); without it the keys expire a minute after the last permit, which
/// Redisson does not expect. Two things differ: a number that Redisson *lowers*, by `addPermits` or `setPermits`, is taken
/// for a leak and raised again, so lower it with [`set_permits`](Self::set_permits); and Redisson decides by its clients'
/// clocks when a permit has expired: one that is ahead by more than 1 % of the lease and 2 ms frees permits of ours early.
///
/// Least rights of a user, here for the namespace `shop`: `~shop:* ~{shop:* ~leasehold_cap:{shop:* ~leasehold_line:{shop:*
/// &leasehold:*`, and `+eval +evalsha +time +pttl +pexpire +info +get +zcard +set +zrange +zrem +zadd +zremrangebyscore +zscore
/// +zrangebyscore +zcount +zrank +zrevrange +publish +subscribe +unsubscribe`.
#[derive(Clone)]
pub struct Semaphore {
    context: Arc<Handle>,
    name: Arc<Name>,
    /// How many permits there are in all. Shared by clones, for [`set_permits`](Self::set_permits).
    capacity: Arc<AtomicU32>,
}

impl Semaphore {
    pub(crate) fn new(context: &Arc<Handle>, name: &str, permits: u32) -> Self {
        let name = Name::new(SEMAPHORE.layout, context.config.namespace.as_deref(), name);
        Self {
            context: Arc::clone(context),
            name: Arc::new(name),
            capacity: Arc::new(AtomicU32::new(permits)),
        }
    }

    /// The key on the server: the namespace and the name.
    #[must_use]
    pub fn key(&self) -> &str {
        self.name.key()
    }

    /// The semaphore of the same name that only counts, whose permits have no holders and no leases. A name is either of this
    /// kind or of that: both on one key would take each other's permits for lost.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let exports = locks.semaphore("exports", 20).counting();
    /// assert!(exports.try_acquire(1).await?);
    /// exports.release(1).await?;
    /// # Ok(())
    /// # });
    /// ```
    #[must_use]
    pub fn counting(&self) -> CountingSemaphore {
        let capacity = self.capacity.load(Ordering::Acquire);
        CountingSemaphore::new(&self.context, &self.name, capacity)
    }

    /// Takes a permit, waiting for as long as there is none.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let permit = locks.semaphore("fragile", 5).acquire().await?;
    /// permit.release().await?; // or drop it
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Of the returned [`Acquire`], when it is awaited.
    pub fn acquire(&self) -> Acquire<Permit> {
        self.acquire_many(1)
    }

    /// Takes so many permits at once, waiting until it can have all of them. It holds none of them before.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let connections = locks.semaphore("fragile", 5);
    /// let three = connections.acquire_many(3).await?;
    /// assert_eq!(three.num_permits(), 3);
    /// # drop(three);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Of the returned [`Acquire`], when it is awaited;
    /// [`ErrorKind::BadCount`](crate::ErrorKind::BadCount) for none, for more than there are in all, and for more than
    /// 10,000.
    pub fn acquire_many(&self, permits: u32) -> Acquire<Permit> {
        Acquire::new(self.request(permits, Wait::Endless))
    }

    /// Takes a permit if there is one, in one round trip; `None` if not, or if somebody waits for one.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let only = locks.semaphore("fragile", 1);
    /// let permit = only.try_acquire().await?.expect("it is free");
    /// assert!(only.try_acquire().await?.is_none());
    /// # drop(permit);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Of the returned [`Acquire`], when it is awaited.
    pub fn try_acquire(&self) -> TryAcquire<Permit> {
        self.try_acquire_many(1)
    }

    /// Takes so many permits if they are free, in one round trip; `None` if not, or if somebody waits for some.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let connections = locks.semaphore("fragile", 5);
    /// let four = connections.try_acquire_many(4).await?;
    /// assert!(four.is_some());
    /// assert!(connections.try_acquire_many(2).await?.is_none()); // one is free
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`acquire_many`](Self::acquire_many).
    pub fn try_acquire_many(&self, permits: u32) -> TryAcquire<Permit> {
        Acquire::new(self.request(permits, Wait::None))
    }

    /// Takes a permit, waiting for at most `time`; `None` when that is over.
    ///
    /// When the server does not answer, it takes up to one command timeout longer.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// # use std::time::Duration;
    /// let permit = locks.semaphore("fragile", 5).try_acquire_for(Duration::from_secs(1)).await?;
    /// assert!(permit.is_some());
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Of the returned [`Acquire`], when it is awaited.
    pub fn try_acquire_for(&self, time: Duration) -> TryAcquire<Permit> {
        self.try_acquire_many_for(1, time)
    }

    /// Takes so many permits at once, waiting for at most `time`; `None` when that is over.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// # use std::time::Duration;
    /// let connections = locks.semaphore("fragile", 5);
    /// let four = connections.acquire_many(4).await?;
    /// let two = connections.try_acquire_many_for(2, Duration::from_millis(20)).await?;
    /// assert!(two.is_none());
    /// # drop(four);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`acquire_many`](Self::acquire_many).
    pub fn try_acquire_many_for(&self, permits: u32, time: Duration) -> TryAcquire<Permit> {
        Acquire::new(self.request(permits, Wait::at_most(time)))
    }

    /// How many permits are free at the moment. Those that a waiting [`acquire_many`](Self::acquire_many) keeps are not.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let connections = locks.semaphore("fragile", 5);
    /// let permit = connections.acquire().await?;
    /// assert_eq!(connections.available().await?, 4);
    /// assert_eq!(connections.capacity().await?, 5);
    /// # drop(permit);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType) if the key is not a semaphore; and those of asking a server.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn available(&self) -> Result<u32, Error> {
        Ok(self.count().await?.free)
    }

    /// How many permits there are in all, on the server; the number of this handle for a semaphore that was not used yet.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// assert_eq!(locks.semaphore("fragile", 5).capacity().await?, 5);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`available`](Self::available).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn capacity(&self) -> Result<u32, Error> {
        Ok(self.count().await?.capacity)
    }

    /// Sets how many permits there are in all, for everybody. This handle and its clones go on with the new number; others get
    /// [`ErrorKind::CapacityDisagrees`](crate::ErrorKind::CapacityDisagrees) until they are made with it.
    ///
    /// Permits that are held stay held: after a lower number none is given out until enough came back.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// use leasehold::ErrorKind;
    ///
    /// let connections = locks.semaphore("fragile", 5);
    /// connections.acquire().await?.release().await?; // the server knows the number now
    /// connections.set_permits(8).await?;
    ///
    /// let outdated = locks.semaphore("fragile", 5).try_acquire().await.unwrap_err();
    /// assert_eq!(outdated.kind(), ErrorKind::CapacityDisagrees { server: 8, yours: 5 });
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadCount`](crate::ErrorKind::BadCount) for none;
    /// [`ErrorKind::NotReplicated`](crate::ErrorKind::NotReplicated) if too few of the replicas that
    /// [`LocksBuilder::replicated`](crate::LocksBuilder::replicated) asks for confirmed it;
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType) if the key is not a semaphore; and those of asking a server.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take back what was sent. It may be repeated.
    pub async fn set_permits(&self, permits: u32) -> Result<(), Error> {
        self.context.ready(&self.name).await?;
        if let Some(bad) = bad_capacity(permits) {
            return Err(self.error(Error::bad_permits(bad)));
        }
        let context = &self.context;
        let resize = Resize {
            name: &self.name,
            with_line: true,
            capacity: permits,
            lease: context.config.lease,
            channels: context.client.channels(),
            redisson: context.config.interop == Interop::Redisson,
        };
        let without_line = || {
            let resize = Resize {
                with_line: false,
                ..resize
            };
            set_permits(&resize).to_owned()
        };
        let call = set_permits(&resize);
        let slices = call.slices();
        let call = slices.call().with_fallback(&without_line);
        let reply = apply(context, &self.name, &call, context.config.replicas, |_| {
            Effect::Wrote
        })
        .await?;
        if reply.as_int() != Some(1) {
            return Err(self.error(Error::unexpected(&reply)));
        }
        self.capacity.store(permits, Ordering::Release);
        Ok(())
    }

    /// The holders of permits, how many and for how long, and the waiters in line and for how many.
    ///
    /// The first thousand permits to expire are looked at. Of the id of a holder's client the server knows a part: the rest is told
    /// of those that wait in line as well, and of this one. A permit of Redisson's has its own id.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let connections = locks.semaphore("fragile", 5);
    /// let permits = connections.acquire_many(2).await?;
    /// let state = connections.inspect().await?;
    /// println!("held by {:?}, {} wait", state.holders(), state.waiting());
    /// # assert!(!state.holders().is_empty());
    /// # drop(permits);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`available`](Self::available).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn inspect(&self) -> Result<Inspection, Error> {
        self.context.ready(&self.name).await?;
        let all = inspect(&self.name, true);
        let all = all.slices();
        let holders = || inspect(&self.name, false).to_owned();
        // While the slot is migrating, or without rights to the line, nobody can tell who is in it.
        let call = all.call().with_fallback(&holders);
        let reply = ask(&self.context, &self.name, &call).await?;
        read_inspect(&reply, self.context.id()).ok_or_else(|| self.error(Error::unexpected(&reply)))
    }

    async fn count(&self) -> Result<Counted, Error> {
        self.context.ready(&self.name).await?;
        let call = available(&self.name, self.capacity.load(Ordering::Acquire));
        let call = call.slices();
        let reply = ask(&self.context, &self.name, &call.call()).await?;
        read_available(&reply).ok_or_else(|| self.error(Error::unexpected(&reply)))
    }

    pub(crate) fn request(&self, permits: u32, wait: Wait) -> Request {
        let config = &self.context.config;
        Request {
            context: Arc::clone(&self.context),
            protocol: &SEMAPHORE,
            name: Arc::clone(&self.name),
            permits: Permits::of(permits, self.capacity.load(Ordering::Acquire)),
            owner: None,
            terms: Terms::renewed(config.lease, config.replicas),
            wait,
            polling: None,
        }
    }

    fn error(&self, error: Error) -> Error {
        self.context.about(&self.name, error)
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("key", &self.key())
            .field("permits", &self.capacity.load(Ordering::Acquire))
            .finish_non_exhaustive()
    }
}
