//! Events of locks, told to the application as they happen.
//!
//! Implement [`Observer`] and register it with [`LocksBuilder::observer`](crate::LocksBuilder::observer) or
//! [`RedlockBuilder::observer`](crate::RedlockBuilder::observer). For numbers alone [`Locks::stats`](crate::Locks::stats) is
//! enough, and needs none. The guide [`observing`](crate::guides::observing) tells which to use for what.

mod events;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "tracing")]
mod traces;

pub use crate::state::primitive::Primitive;
pub use events::{
    GaveUp, GaveUpReason, Granted, LeaseLost, MapChanged, Reconnected, Released, RenewalFailed,
    Renewed, Waiting, Way,
};
#[cfg(feature = "metrics")]
pub use metrics::Metrics;
#[cfg(feature = "tracing")]
pub use traces::Traces;

/// Receives what happens to locks. Every method does nothing unless it is implemented.
///
/// # Which events belong together
///
/// Each acquisition has a number, `acquisition`, which all of its events have. It begins with [`waiting`](Self::waiting), and
/// ends that with exactly one of [`granted`](Self::granted) and [`gave_up`](Self::gave_up). What was granted is
/// [`renewed`](Self::renewed) any number of times, and ends with exactly one of [`released`](Self::released) and
/// [`lost`](Self::lost).
///
/// - A lock that nests ([`Way::Nested`]), and a latch or barrier ([`Way::Opened`]), is granted, and nothing follows: the hold
///   ends with the acquisition that began it.
/// - A [`Multi`](crate::Multi) is as many acquisitions as it has names. What it takes and gives back while it gathers them is
///   not told.
/// - Permits of a [`Semaphore`](crate::Semaphore) are released with the last part of what was acquired together. Those of a
///   [`CountingSemaphore`](crate::CountingSemaphore) have no owner: they are granted, and released at once as
///   [forgotten](Released::forgotten).
/// - A [`WriteGuard`](crate::WriteGuard) that is downgraded, or a read that is upgraded, is released, and granted as an
///   acquisition of its own ([`Way::Converted`]).
/// - A fixed lease that ran out is noticed when its guard is asked or another caller wants the lock: then it is lost. If its
///   guard is dropped before, it is released.
///
/// # Where and in which order
///
/// What a caller does is told in its own task: waiting, granted, gave up, released. What happens by itself is told on a thread
/// of its own, `leasehold-observer`: renewed, renewal failed, lost, map changed, reconnected. The events of one acquisition come
/// in the order above, but for a renewal that is confirmed while its lock is released: that may be told behind the release. Those
/// of others may come in between, and a release here may be told after the grant that followed it.
///
/// # What an observer may do
///
/// It is called outside of every mutex of this library, so it may call anything, `Locks` included. An observer that panics is
/// contained: the panic is reported as usual, and ends nothing but that call. One that blocks in a caller's task keeps that
/// task and its thread waiting, and nobody else. One that blocks the thread of its own delays no renewal and loses no lock: up
/// to 1,024 events wait for it, and what comes on top is not told but counted ([`Stats::untold`](crate::Stats::untold)). Losses
/// are told in any case.
///
/// No event has a password or a value in it. Keys may be personal data: then do not pass them on.
///
/// ```
/// use leasehold::observer::{LeaseLost, Observer};
///
/// /// Prints what an operator must know at once.
/// struct Alarm;
///
/// impl Observer for Alarm {
///     fn lost(&self, lost: &LeaseLost<'_>) {
///         eprintln!("{} was lost after {:?}: {}", lost.key, lost.held, lost.reason);
///     }
/// }
///
/// let locks = leasehold::Locks::builder("redis://127.0.0.1:6379").observer(Alarm);
/// ```
pub trait Observer: Send + Sync + 'static {
    /// A caller asks for a lock, and waits from now on, if only for the server's answer.
    fn waiting(&self, event: &Waiting<'_>) {
        let _ = event;
    }

    /// The lock is the caller's.
    fn granted(&self, event: &Granted<'_>) {
        let _ = event;
    }

    /// The caller does not get the lock: it would have to wait, its time is over, it is gone, or there was an error.
    fn gave_up(&self, event: &GaveUp<'_>) {
        let _ = event;
    }

    /// The server has confirmed another lease.
    fn renewed(&self, event: &Renewed<'_>) {
        let _ = event;
    }

    /// A renewal had no answer, or not enough replicas confirmed it. It is tried again while there is time.
    fn renewal_failed(&self, event: &RenewalFailed<'_>) {
        let _ = event;
    }

    /// The hold is over although its guard is not.
    fn lost(&self, event: &LeaseLost<'_>) {
        let _ = event;
    }

    /// The guard was released or dropped, and the release is on its way.
    fn released(&self, event: &Released<'_>) {
        let _ = event;
    }

    /// Slots of the cluster are at other nodes, or the sentinels name another master.
    fn map_changed(&self, event: &MapChanged) {
        let _ = event;
    }

    /// A connection that had ended was made again. What was held at that server is looked at now.
    fn reconnected(&self, event: &Reconnected<'_>) {
        let _ = event;
    }
}
