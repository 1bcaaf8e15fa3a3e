//! The fair mutex.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::mutex::{Kind, Mutex};
use crate::engine::handle::Handle;
use crate::engine::hold::OwnerHolds;
use crate::engine::request::{Request, Wait};
use crate::error::Error;
use crate::protocol::fair::{FAIR, force_unlock, inspect, read_inspect};
use crate::request::{Acquire, TryAcquire};
use crate::state::id::number_of_hold;
use crate::state::inspection::{Holder, Inspection};

static KIND: Kind = Kind {
    protocol: &FAIR,
    force_unlock,
    inspect,
    read_inspect,
};

/// A handle to a named fair lock, which all who wait get in the order of their calls. Creating it does no I/O; cloning is
/// cheap.
///
/// It is held by one at a time, over all processes. Each call that has to wait stands in a line on the server, and a lock that
/// is waited for is taken by nobody else: neither by newcomers, nor by [`try_lock`](Self::try_lock), nor by the one who has
/// just released it. Where a [`Mutex`] passes from task to task inside a process at no command, this one passes through the
/// server each time, so it costs more.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// # use std::time::Duration;
/// let printer = locks.fair_mutex("printer");
/// let turn = printer.lock().await?; // behind all who asked before, in any process
/// println!("{} wait for `{}`", printer.inspect().await?.waiting(), printer.key());
/// turn.release().await?;
///
/// // With a bound on the wait, and one on the turn:
/// let turn = printer
///     .try_lock_for(Duration::from_secs(60))
///     .max_hold(Duration::from_secs(600))
///     .await?;
/// assert!(turn.is_some());
/// assert!(printer.try_lock().await?.is_none());
///
/// // For operators:
/// if let (Some(holder), Some(left)) = (printer.holder().await?, printer.remaining().await?) {
///     println!("{} has it for {left:?} more", holder.client());
/// }
/// assert!(printer.force_unlock().await?);
/// # Ok(())
/// # });
/// ```
///
/// The names of [`Locks::mutex`](crate::Locks::mutex) and these are the same locks on the server: they exclude each other. But
/// a mutex asks nobody whether it may pass, so use one kind for a name.
///
/// It is not re-entrant; [`Locks::owner`](crate::Locks::owner) makes locks that nest. In Redisson this is `RFairLock`.
///
/// # Order
///
/// Places are by the time of the server, so no clock of a client matters. A place is kept while its process lives and asks: it
/// comes back after a failover, and when the line on the server was lost. It is given up when the call is dropped or its time is
/// over, and the next one is told.
///
/// - A process that died is passed at once where the server sees its connection end. One that is frozen or cut off keeps those
///   behind it waiting for one second, the lease of a grant; for two, and the pause between two looks, where it has several
///   waiters in front.
/// - The first call of a process that has to wait finds that out before it stands in line, a round trip after it asked.
/// - A process that twice in a row does not answer in time when its turn comes goes to the end.
/// - While the slot of the lock migrates between two nodes of a cluster, the order does not hold.
/// - Across a failover the order is that of the replica which took over: a call whose place it did not have yet stands where it
///   was as soon as it asks again, within two seconds.
///
/// # With Redisson
///
/// With [`Interop::Redisson`](crate::Interop::Redisson), which all processes have to set alike, the order includes the waiters
/// of Redisson's fair locks. Consecutive waiters of ours share one entry in its queue, so its scripts, which take longer the
/// more wait, are not slowed by ours. Its own rules then have consequences here:
///
/// - A waiter of Redisson that died is passed when Redisson says so, after five minutes by default.
/// - Redisson takes a waiter for dead that waited longer than it expected. It may take one of ours so: then its clients pass
///   for up to two seconds, until the entry is back in front. Where its clock is wrong by more than three seconds this happens
///   often.
/// - Where its and our waiters alternate more than 16 times in the queue, further ones of ours stand with the last of ours.
///
/// Least rights of a user, here for the namespace `shop`: `~shop:* ~redisson_lock_token:{shop:* ~leasehold_line:{shop:*
/// &leasehold:*`, and `+eval +evalsha +time +pttl +pexpire +info +get +set +zcard +exists +hdel +hset +hscan +hexists +del
/// +zrevrange +zrem +zrange +zpopmin +zadd +zrank +zscore +publish +subscribe +unsubscribe`.
#[derive(Clone)]
pub struct FairMutex {
    mutex: Mutex,
    /// Of its owner: those who wait for one owner nest.
    lane: Option<u64>,
}

impl FairMutex {
    pub(crate) fn new(context: &Arc<Handle>, name: &str, owner: Option<&Arc<OwnerHolds>>) -> Self {
        Self {
            mutex: Mutex::of(&KIND, context, name, owner),
            lane: owner.map(|owner| number_of_hold(owner.number(), 0)),
        }
    }

    /// The key on the server: the namespace and the name.
    #[must_use]
    pub fn key(&self) -> &str {
        self.mutex.key()
    }

    /// Takes the lock, waiting for all who asked before.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let turn = locks.fair_mutex("printer").lock().await?;
    /// turn.release().await?;
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Of the returned [`Acquire`], when it is awaited.
    pub fn lock(&self) -> Acquire {
        Acquire::new(self.request(Wait::Endless))
    }

    /// Takes the lock if it is free and nobody waits for it, in one round trip.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// if let Some(turn) = locks.fair_mutex("printer").try_lock().await? {
    ///     // … it was free, and nobody waited …
    /// #   drop(turn);
    /// }
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Of the returned [`Acquire`], when it is awaited.
    pub fn try_lock(&self) -> TryAcquire {
        Acquire::new(self.request(Wait::None))
    }

    /// Takes the lock, waiting in the order of calls for at most `time`; `None` when that is over.
    ///
    /// When the server does not answer, it takes up to one command timeout longer. With no time to wait it is
    /// [`try_lock`](Self::try_lock): one attempt and no place in line.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// # use std::time::Duration;
    /// let printer = locks.fair_mutex("printer");
    /// let turn = printer.lock().await?;
    /// assert!(printer.try_lock_for(Duration::from_millis(20)).await?.is_none());
    /// # drop(turn);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Of the returned [`Acquire`], when it is awaited.
    pub fn try_lock_for(&self, time: Duration) -> TryAcquire {
        Acquire::new(self.request(Wait::at_most(time)))
    }

    /// The present holder, if there is one.
    ///
    /// # Errors
    ///
    /// Those of [`Mutex::holder`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn holder(&self) -> Result<Option<Holder>, Error> {
        self.mutex.holder().await
    }

    /// For how long the lock stays taken unless it is renewed or released; `None` if it is free.
    ///
    /// # Errors
    ///
    /// Those of [`Mutex::remaining`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn remaining(&self) -> Result<Option<Duration>, Error> {
        self.mutex.remaining().await
    }

    /// The holder and its token, and those who wait in their order, each with a place of its own. With
    /// [`Interop::Redisson`](crate::Interop::Redisson) also Redisson's, which are told to wait since the one before them does:
    /// it does not keep the time.
    ///
    /// # Errors
    ///
    /// Those of [`Mutex::inspect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn inspect(&self) -> Result<Inspection, Error> {
        self.mutex.inspect().await
    }

    /// Removes the lock from its holder, and hands it to the first who waits. A holder in this process loses it at once, others
    /// at their next renewal. Returns whether it was held.
    ///
    /// # Errors
    ///
    /// Those of [`Mutex::force_unlock`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take back what was sent.
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        self.mutex.force_unlock().await
    }

    /// A request in a lane of its own, or of its owner: so it has its own place in line.
    pub(crate) fn request(&self, wait: Wait) -> Request {
        let request = self.mutex.request(wait);
        let new = || request.context.next_hold(None).number();
        let number = self.lane.unwrap_or_else(new);
        let name = Arc::new(request.name.lane(number));
        Request { name, ..request }
    }
}

impl fmt::Debug for FairMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FairMutex")
            .field("key", &self.key())
            .finish_non_exhaustive()
    }
}
