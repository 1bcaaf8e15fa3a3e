//! The barrier.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engine::handle::Handle;
use crate::engine::operation::ask;
use crate::engine::party::{Party, Passed};
use crate::error::{Error, ErrorKind};
use crate::protocol::barrier::{LAYOUT, PARTY, inspect, read_inspect};
use crate::state::deadline::is_good_lease;
use crate::state::inspection::Inspection;
use crate::state::names::Name;

/// A handle to a named barrier, where a number of parties wait for each other. Creating it does no I/O; cloning is cheap.
///
/// When as many as that have arrived, all of them go on, and the barrier begins its next generation. One of each generation is
/// the leader: the last one to arrive. Each call of [`wait`](Self::wait) is one party, whichever process it is in.
///
/// - **A party that dies breaks its generation** within its lease, and all that wait in it get
///   [`ErrorKind::Broken`]: nobody waits for a party that does not come back. They are told by a message, and if that is lost
///   by looks that are 8 seconds apart at most.
/// - **A party that is cancelled withdraws**: the others go on waiting for another one.
/// - **Waiting parties are renewed** by a thread of their own, so a runtime that is blocked breaks no generation.
/// - **If the server loses a generation**, in a failover or by eviction, its parties get [`ErrorKind::Broken`]. Those that
///   passed before have passed.
///
/// The parties must agree on their number: one that differs gets [`ErrorKind::PartiesDisagree`] while others wait. Redisson has
/// no counterpart, and a mutex of the same name is another thing.
///
/// A server that was promoted from a replica which lagged may have lost an arrival: then nobody passes, and the generation
/// breaks. If it has lost that a generation passed, it gives the number of that generation once more, with a leader of its own,
/// and parties that went on count in it until their leases are over. Replicas are not asked to confirm arrivals, also where
/// [`LocksBuilder::replicated`](crate::LocksBuilder::replicated) has them confirm locks. In a slot that migrates arriving may
/// fail as [`ErrorKind::Unavailable`].
///
/// Least rights of a user, here for the namespace `shop`: `~leasehold_barrier:{shop:* ~leasehold_arrived:{shop:*
/// &leasehold_barrier:{shop:*`, and `+eval +evalsha +time +pttl +pexpire +hget +hset +hdel +hgetall +zscore +zadd +zrem +zcount
/// +zremrangebyscore +zrangebyscore +publish +subscribe +unsubscribe +info`. Without the channel those who wait look each second.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// let step = locks.barrier("step", 3);
/// println!("`{}` is passed by three together", step.key());
/// let workers = [1, 2, 3].map(|worker| {
///     let step = step.clone();
///     tokio::spawn(async move {
///         // … the worker's part of the step …
///         if step.wait().await?.is_leader() {
///             println!("worker {worker} was the last: what one of them does between two steps");
///         }
///         Ok::<_, leasehold::Error>(())
///     })
/// });
/// for worker in workers {
///     worker.await??;
/// }
/// # Ok(())
/// # });
/// ```
#[derive(Clone)]
pub struct Barrier {
    context: Arc<Handle>,
    name: Arc<Name>,
    parties: u32,
    lease: Duration,
}

/// A generation of a [`Barrier`] that has passed, for one of its parties.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// let passed = locks.barrier("step", 1).wait().await?;
/// assert!(passed.is_leader());
/// println!("generation {}", passed.generation());
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BarrierWaitResult {
    generation: u64,
    is_leader: bool,
}

impl Barrier {
    pub(crate) fn new(context: &Arc<Handle>, name: &str, parties: u32) -> Self {
        let name = Name::new(&LAYOUT, context.config.namespace.as_deref(), name);
        Self {
            context: Arc::clone(context),
            name: Arc::new(name),
            parties,
            lease: context.config.lease,
        }
    }

    /// The name with its namespace. The keys on the server are derived from it.
    #[must_use]
    pub fn key(&self) -> &str {
        self.name.key()
    }

    /// The lease of the parties of this handle, 10 ms to 365 days: the time within which the others are told if one of them
    /// dies. By default that of the [`Locks`](crate::Locks).
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// # use std::time::Duration;
    /// // The others are told within three seconds if this party dies.
    /// let step = locks.barrier("step", 1).lease(Duration::from_secs(3));
    /// step.wait().await?;
    /// # Ok(())
    /// # });
    /// ```
    #[must_use]
    pub const fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Arrives, and waits until all parties have. The future is independent of the handle: it can move to another task.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let step = locks.barrier("step", 2);
    /// let (one, other) = tokio::join!(step.wait(), step.wait());
    /// let (one, other) = (one?, other?);
    /// assert_eq!(one.generation(), other.generation());
    /// assert_ne!(one.is_leader(), other.is_leader()); // one of them leads
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Broken`]: a party of this generation died, or the server lost the generation.
    /// - [`ErrorKind::PartiesDisagree`]: others wait there for another number of parties. This one has not arrived.
    /// - [`ErrorKind::BadCount`] for no parties at all, [`ErrorKind::BadName`], [`ErrorKind::BadLease`].
    /// - [`ErrorKind::Unavailable`], [`ErrorKind::Unknown`]: the server cannot be asked; the party withdraws.
    ///   [`ErrorKind::Unknown`] is also told if the generation has ended, and how is forgotten.
    /// - [`ErrorKind::Closed`], [`ErrorKind::WrongType`] and those of asking a server.
    ///
    /// # Panics
    ///
    /// When polled outside of a Tokio runtime with time enabled.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future withdraws the party, unless the generation has passed by then: all others go on as if it had not
    /// arrived.
    pub fn wait(
        &self,
    ) -> impl Future<Output = Result<BarrierWaitResult, Error>> + Send + 'static + use<> {
        let barrier = self.clone();
        // Without a limit it withdraws never.
        async move { barrier.wait_until(None).await?.ok_or_else(Error::closed) }
    }

    /// Arrives, and waits until all parties have, for at most `time`. `None` if it has withdrawn then. The future is
    /// independent of the handle.
    ///
    /// When the server does not answer, it takes up to two command timeouts longer.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// # use std::time::Duration;
    /// let step = locks.barrier("step", 2);
    /// let passed = step.wait_for(Duration::from_millis(20)).await?;
    /// assert!(passed.is_none()); // the other one did not come, and this one has withdrawn
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// As of [`wait`](Self::wait).
    ///
    /// # Panics
    ///
    /// When polled outside of a Tokio runtime with time enabled.
    ///
    /// # Cancel safety
    ///
    /// As of [`wait`](Self::wait).
    pub fn wait_for(
        &self,
        time: Duration,
    ) -> impl Future<Output = Result<Option<BarrierWaitResult>, Error>> + Send + 'static + use<>
    {
        let barrier = self.clone();
        // A time beyond the end of the clock is no limit.
        async move {
            let until = barrier.context.clock().now().checked_add(time);
            barrier.wait_until(until).await
        }
    }

    /// The parties that have arrived in the present generation, as holders: each with the time after which it counts as dead
    /// unless it is renewed. Of more than a hundred the first are told.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let step = locks.barrier("step", 2);
    /// println!("{} have arrived at `{}`", step.inspect().await?.holders().len(), step.key());
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongType`] if the key is no barrier; and those of asking a server.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn inspect(&self) -> Result<Inspection, Error> {
        self.context.ready(&self.name).await?;
        let call = inspect(&self.name);
        let call = call.slices();
        let reply = ask(&self.context, &self.name, &call.call()).await?;
        read_inspect(&reply)
            .ok_or_else(|| self.context.about(&self.name, Error::unexpected(&reply)))
    }

    async fn wait_until(&self, until: Option<Instant>) -> Result<Option<BarrierWaitResult>, Error> {
        let caller = self.context.caller(&self.name, PARTY.primitive);
        let passed = self.pass(until).await;
        let passed = passed.map_err(|error| self.context.about(&self.name, error));
        caller.waited(&passed, Option::is_some);
        Ok(passed?.map(
            |Passed {
                 generation,
                 is_leader,
             }| BarrierWaitResult {
                generation,
                is_leader,
            },
        ))
    }

    async fn pass(&self, until: Option<Instant>) -> Result<Option<Passed>, Error> {
        self.context.ready(&self.name).await?;
        if self.parties == 0 {
            return Err(Error::new(
                ErrorKind::BadCount,
                "a barrier has at least 1 party",
            ));
        }
        if !is_good_lease(self.lease) {
            return Err(Error::bad_lease("the lease"));
        }
        let party = Party {
            context: &self.context,
            name: &self.name,
            parties: self.parties,
            lease: self.lease,
        };
        party.wait(until).await
    }
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Barrier")
            .field("key", &self.key())
            .field("parties", &self.parties)
            .finish_non_exhaustive()
    }
}

impl BarrierWaitResult {
    /// Whether this party is the one of its generation that leads: the last one to arrive.
    #[must_use]
    pub const fn is_leader(&self) -> bool {
        self.is_leader
    }

    /// The generation, the same for all of its parties. It grows from one to the next.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }
}
