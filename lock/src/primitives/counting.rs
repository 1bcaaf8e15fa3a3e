//! The semaphore without owners.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold_cluster::Effect;
use leasehold_resp::Value;

use crate::engine::acquire::acquire;
use crate::engine::handle::Handle;
use crate::engine::operation::{apply, ask};
use crate::engine::request::{Request, Wait};
use crate::error::Error;
use crate::guard::Guard;
use crate::options::{Interop, Replicas, Terms};
use crate::protocol::call::Call;
use crate::protocol::counting::{
    COUNTING, Change, REMEMBERED, available, give_back, read_available, set_permits,
};
use crate::protocol::permits::{Permits, bad_capacity};
use crate::state::id::HoldId;
use crate::state::names::Name;

/// A semaphore that only counts: who takes permits and who gives them back need not be the same, and neither is known to the
/// server. Made by [`Semaphore::counting`](crate::Semaphore::counting).
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// // One process starts work of which another one tells the end.
/// let in_flight = locks.semaphore("exports", 20).counting();
/// assert_eq!(in_flight.key(), "exports");
/// in_flight.acquire(1).await?;
/// // … and elsewhere:
/// in_flight.release(1).await?;
/// # Ok(())
/// # });
/// ```
///
/// # What crashes cost
///
/// Permits have no holder, so none comes back by itself: **what a process took that died before it gave it back is gone for
/// ever**, until somebody calls [`release`](Self::release) or [`set_permits`](Self::set_permits) for it. A
/// [`Semaphore`](crate::Semaphore), whose permits are leases, has no such loss: use this one only where others give back what was
/// taken, or beside Redisson. Its key has no expiry, and a server that evicts or loses it begins again with the number of the
/// handle, whatever was taken; a failover to a replica forgets what it has not heard of. What is put aside for the first in line
/// is in a key of its own: a server that loses that one has lost these permits as well.
///
/// Requests may be repeated, so an answer that is lost costs nothing: the server remembers each for a minute.
///
/// # Who is served
///
/// Waiters stand in a line as with [`Semaphore`](crate::Semaphore): large requests are not starved, a thousand waiters of
/// a process cost what one does, and a process that dies in line costs nobody a permit.
///
/// # Redisson
///
/// This is Redisson's `RSemaphore`, on the same key. Redisson's waiters are told with
/// [`Interop::Redisson`](crate::Interop::Redisson), and stand in no line.
///
/// Least rights of a user, here for the namespace `shop`: `~shop:* ~leasehold_res:{shop:* ~leasehold_op:{shop:*
/// ~leasehold_line:{shop:* &leasehold:*`, and `+eval +evalsha +time +pttl +pexpire +info +get +set +zrange +zrangebyscore +zcard
/// +zrem +zadd +zrevrange +zscore +zrank +publish +subscribe +unsubscribe`.
#[derive(Clone)]
pub struct CountingSemaphore {
    context: Arc<Handle>,
    name: Arc<Name>,
    /// How many permits there are at first. Shared by clones, for [`set_permits`](Self::set_permits).
    permits: Arc<AtomicU32>,
}

impl CountingSemaphore {
    pub(crate) fn new(context: &Arc<Handle>, name: &Name, permits: u32) -> Self {
        Self {
            context: Arc::clone(context),
            name: Arc::new(name.with_layout(COUNTING.layout)),
            permits: Arc::new(AtomicU32::new(permits)),
        }
    }

    /// The key on the server: the namespace and the name.
    #[must_use]
    pub fn key(&self) -> &str {
        self.name.key()
    }

    /// Takes so many permits at once, waiting until it can have all of them. The first use of a semaphore sets its number to the
    /// one of the handle. The future is independent of the handle: it can move to another task.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let in_flight = locks.semaphore("exports", 20).counting();
    /// assert_eq!(in_flight.key(), "exports");
    /// in_flight.acquire(3).await?; // waits until there are three
    /// assert_eq!(in_flight.available().await?, 17);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadCount`](crate::ErrorKind::BadCount) for no permits, and for more than the handle's number; otherwise those
    /// of [`Acquire`](crate::Acquire). After an [`ErrorKind::Unknown`](crate::ErrorKind::Unknown) what it may have taken is
    /// being given back.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: what it may have taken is given back.
    pub fn acquire(
        &self,
        permits: u32,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'static + use<> {
        let semaphore = self.clone();
        async move {
            let taken = semaphore.take(permits, Wait::Endless).await?;
            // An endless wait never ends without permits or an error.
            taken.then_some(()).ok_or_else(Error::closed)
        }
    }

    /// Takes so many permits if they are free and nobody waits, in one round trip. Returns whether it did.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let in_flight = locks.semaphore("exports", 2).counting();
    /// assert!(in_flight.try_acquire(2).await?);
    /// assert!(!in_flight.try_acquire(1).await?);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self, permits: u32) -> Result<bool, Error> {
        self.take(permits, Wait::None).await
    }

    /// Takes so many permits at once, waiting for at most `time`. Returns whether it did.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// # use std::time::Duration;
    /// let in_flight = locks.semaphore("exports", 1).counting();
    /// in_flight.acquire(1).await?;
    /// assert!(!in_flight.try_acquire_for(1, Duration::from_millis(20)).await?);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire_for(
        &self,
        permits: u32,
        time: Duration,
    ) -> impl Future<Output = Result<bool, Error>> + Send + 'static + use<> {
        let semaphore = self.clone();
        async move { semaphore.take(permits, Wait::at_most(time)).await }
    }

    /// Gives so many permits back, whoever took them; it is not known whether anybody did.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let in_flight = locks.semaphore("exports", 20).counting();
    /// in_flight.acquire(1).await?;
    /// in_flight.release(1).await?; // by this process or another one
    /// assert_eq!(in_flight.available().await?, 20);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadCount`](crate::ErrorKind::BadCount) for no permits;
    /// [`ErrorKind::Unknown`](crate::ErrorKind::Unknown) if no answer came, and it may have been done or not; and those of
    /// asking a server.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take back what was sent.
    pub async fn release(&self, permits: u32) -> Result<(), Error> {
        self.context.ready(&self.name).await?;
        if let Some(bad) = bad_capacity(permits) {
            return Err(self.error(Error::bad_permits(bad)));
        }
        let id = self.context.next_hold(None);
        let reply = self.run(&give_back(&self.change(&id, permits))).await?;
        self.read(&reply, reply.as_int()).map(|_| ())
    }

    /// How many permits are free at the moment. Those that somebody in line keeps are not.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// assert_eq!(locks.semaphore("exports", 20).counting().available().await?, 20);
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
        self.context.ready(&self.name).await?;
        let call = available(&self.name, self.permits.load(Ordering::Acquire));
        let call = call.slices();
        let reply = ask(&self.context, &self.name, &call.call()).await?;
        self.read(&reply, read_available(&reply))
    }

    /// Sets how many permits are free, whatever was taken. This handle and its clones go on with the new number.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let in_flight = locks.semaphore("exports", 20).counting();
    /// in_flight.acquire(15).await?; // by a process that died
    /// in_flight.set_permits(20).await?;
    /// assert_eq!(in_flight.available().await?, 20);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadCount`](crate::ErrorKind::BadCount) for a number that a semaphore cannot have; otherwise those of
    /// [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take back what was sent.
    pub async fn set_permits(&self, permits: u32) -> Result<(), Error> {
        self.set(permits, false).await.map(|_| ())
    }

    /// Sets how many permits are free if nobody used the semaphore yet. Returns whether that is so.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let in_flight = locks.semaphore("exports", 20).counting();
    /// assert!(in_flight.try_set_permits(20).await?);
    /// assert!(!in_flight.try_set_permits(5).await?); // it has a number
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`set_permits`](Self::set_permits).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take back what was sent.
    pub async fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        self.set(permits, true).await
    }

    async fn set(&self, permits: u32, only_unused: bool) -> Result<bool, Error> {
        self.context.ready(&self.name).await?;
        if let Some(bad) = bad_capacity(permits) {
            return Err(self.error(Error::bad_permits(bad)));
        }
        let id = self.context.next_hold(None);
        let change = self.change(&id, permits);
        let reply = self.run(&set_permits(&change, only_unused)).await?;
        let is_set = self.read(&reply, reply.as_int())? == 1;
        if is_set {
            self.permits.store(permits, Ordering::Release);
        }
        Ok(is_set)
    }

    async fn take(&self, permits: u32, wait: Wait) -> Result<bool, Error> {
        let request = Request {
            context: Arc::clone(&self.context),
            protocol: &COUNTING,
            name: Arc::clone(&self.name),
            permits: Permits::of(permits, self.permits.load(Ordering::Acquire)),
            owner: None,
            terms: Terms {
                lease: REMEMBERED,
                renew: false,
                max_hold: None,
                at_least: None,
                replicas: Replicas::None,
            },
            wait,
            polling: None,
        };
        let taken = acquire(&request).await?;
        let is_taken = taken.is_some();
        if let Some(hold) = taken {
            // It is nobody's from here on.
            Guard::new(&self.context, hold).forget();
        }
        Ok(is_taken)
    }

    fn change<'a>(&'a self, id: &'a HoldId, permits: u32) -> Change<'a> {
        Change {
            name: &self.name,
            id,
            permits,
            channels: self.context.client.channels(),
            redisson: self.context.config.interop == Interop::Redisson,
        }
    }

    /// Runs a script that changes something within the command timeout.
    async fn run(&self, call: &Call<'_>) -> Result<Value, Error> {
        let call = call.slices();
        apply(
            &self.context,
            &self.name,
            &call.call(),
            Replicas::None,
            |_| Effect::Wrote,
        )
        .await
    }

    fn read<T>(&self, reply: &Value, read: Option<T>) -> Result<T, Error> {
        read.ok_or_else(|| self.error(Error::unexpected(reply)))
    }

    fn error(&self, error: Error) -> Error {
        self.context.about(&self.name, error)
    }
}

impl fmt::Debug for CountingSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountingSemaphore")
            .field("key", &self.key())
            .finish_non_exhaustive()
    }
}
