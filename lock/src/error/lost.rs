//! The end of a hold, as its guards see it.

/// Why a hold can no longer be trusted.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// use leasehold::LostReason;
///
/// let guard = locks.mutex("order:42").lock().await?;
/// let lost = guard.lost(); // for another task
/// guard.release().await?;
/// match lost.await {
///     LostReason::Released | LostReason::Closed => {}
///     reason => eprintln!("lost: {reason}"),
/// }
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// The lease ran out: it was a fixed one, or no renewal was confirmed in time.
    #[error("the lease ran out")]
    Expired,
    /// The server says that the hold is gone: forced, flushed or evicted.
    #[error("the server no longer knows the hold")]
    Stolen,
    /// The server that has the key now does not know the hold: it was restarted, or is a replica that was promoted
    /// without it. Found by asking at once when a connection comes back or the key has another master.
    #[error("the server was restarted or replaced, and the hold is not known there")]
    NodeGone,
    /// Fewer than a majority of the nodes of a [`Redlock`](crate::Redlock) still know the hold.
    #[error("no majority of the nodes knows the hold any more")]
    NoMajority,
    /// The longest hold that was asked for is over.
    #[error("the longest hold is over")]
    MaxHold,
    /// [`Locks::shutdown`](crate::Locks::shutdown) was called, and released it.
    #[error("the locks were shut down")]
    Closed,
    /// This process was forked from the one that holds the lock, and does not hold it.
    #[error("this process was forked from the one that holds it")]
    Forked,
    /// It was released here, by dropping the guard or by [`Guard::release`](crate::Guard::release).
    #[error("it was released")]
    Released,
}

/// The lock was lost while [`Guard::run`](crate::Guard::run) ran.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// # use std::time::Duration;
/// let guard = locks.mutex("order:42").lock().lease(Duration::from_millis(50)).await?;
/// let lost = guard.run(tokio::time::sleep(Duration::from_secs(10))).await.unwrap_err();
/// println!("{lost}: {:?}", lost.reason());
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lock was lost: {reason}")]
pub struct Lost {
    reason: LostReason,
}

impl Lost {
    pub(crate) const fn new(reason: LostReason) -> Self {
        Self { reason }
    }

    /// Why.
    #[must_use]
    pub const fn reason(&self) -> LostReason {
        self.reason
    }
}
