//! Numbers of what these locks have done.

use crate::error::{ErrorKind, KINDS, LostReason, REASONS};
use crate::observer::Way;

/// Statistics of one [`Locks`](crate::Locks), its clones included, in this process since it was connected. See
/// [`Locks::stats`](crate::Locks::stats).
///
/// [`held`](Self::held) and [`waiting`](Self::waiting) are gauges: they rise and fall. All others are counters that only rise, so
/// the difference of two snapshots tells what happened in between.
///
/// The numbers are counted without a mutex and read one after another. A snapshot that is taken while locks are taken and
/// released may have counted the end of something and not yet something else; when nothing is under way, they add up:
///
/// - acquisitions: [`begun`](Self::begun) = [`waiting`](Self::waiting) + all [`granted`](Self::granted) + [`gave_up`](Self::gave_up)
/// - holds: [`acquired`](Self::acquired) = [`held`](Self::held) + [`released`](Self::released) + [`lost`](Self::lost)
///
/// Several locks that are taken together count as many; the permits of one acquisition count as one.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// use leasehold::observer::Way;
/// use leasehold::{ErrorKind, LostReason};
///
/// let order = locks.mutex("order:42");
/// let guard = order.lock().await?;
/// assert!(order.try_lock().await?.is_none());
/// let stats = locks.stats();
/// assert_eq!((stats.begun(), stats.waiting(), stats.held()), (2, 0, 1));
/// assert_eq!((stats.acquired(), stats.granted(Way::AtOnce)), (1, 1));
/// assert_eq!((stats.gave_up(), stats.not_free()), (1, 1));
///
/// order.force_unlock().await?;
/// drop(guard);
/// let stats = locks.stats();
/// assert_eq!((stats.lost(), stats.lost_for(LostReason::Stolen), stats.released()), (1, 1, 0));
/// assert_eq!((stats.timed_out(), stats.cancelled()), (0, 0));
/// assert_eq!((stats.failed(), stats.failed_with(ErrorKind::Unavailable)), (0, 0));
/// assert!(stats.late_renewals() <= stats.renewals());
/// assert_eq!(stats.failed_renewals(), 0);
/// assert_eq!((stats.reconnects(), stats.map_changes(), stats.untold()), (0, 0, 0));
/// assert!(stats.requests() >= 2);
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub(crate) begun: u64,
    pub(crate) ways: [u64; Way::ALL.len()],
    pub(crate) not_free: u64,
    pub(crate) timed_out: u64,
    pub(crate) cancelled: u64,
    pub(crate) errors: [u64; KINDS],
    pub(crate) released: u64,
    pub(crate) lost: [u64; REASONS],
    pub(crate) renewals: u64,
    pub(crate) late_renewals: u64,
    pub(crate) failed_renewals: u64,
    pub(crate) reconnects: u64,
    pub(crate) map_changes: u64,
    pub(crate) requests: u64,
    pub(crate) untold: u64,
}

impl Stats {
    /// Gauge: holds whose guards are there, as far as is known.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.acquired()
            .saturating_sub(self.released.saturating_add(self.lost()))
    }

    /// Gauge: callers that wait, for a lock, a latch or a barrier, or for the answer of a server.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        let granted: u64 = self.ways.iter().sum();
        self.begun
            .saturating_sub(granted.saturating_add(self.gave_up()))
    }

    /// Counter: callers that began to wait.
    #[must_use]
    pub const fn begun(&self) -> u64 {
        self.begun
    }

    /// Counter: holds that began, in whichever [way](Way::begins_a_hold).
    #[must_use]
    pub fn acquired(&self) -> u64 {
        let ways = Way::ALL.into_iter().filter(|way| way.begins_a_hold());
        ways.map(|way| self.granted(way)).sum()
    }

    /// Counter: callers that got what they waited for in this way.
    #[must_use]
    pub const fn granted(&self, way: Way) -> u64 {
        self.ways[way as usize]
    }

    /// Counter: callers that did not get it: those of the four numbers below.
    #[must_use]
    pub fn gave_up(&self) -> u64 {
        self.not_free + self.timed_out + self.cancelled + self.failed()
    }

    /// Counter: attempts that found it taken and were not to wait.
    #[must_use]
    pub const fn not_free(&self) -> u64 {
        self.not_free
    }

    /// Counter: waits that ended with their time.
    #[must_use]
    pub const fn timed_out(&self) -> u64 {
        self.timed_out
    }

    /// Counter: waits whose future was dropped.
    #[must_use]
    pub const fn cancelled(&self) -> u64 {
        self.cancelled
    }

    /// Counter: waits that ended with an error.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.errors.iter().sum()
    }

    /// Counter: waits that ended with an error of this kind, whatever its fields say.
    #[must_use]
    pub const fn failed_with(&self, kind: ErrorKind) -> u64 {
        self.errors[kind.index()]
    }

    /// Counter: holds that ended with their guards.
    #[must_use]
    pub const fn released(&self) -> u64 {
        self.released
    }

    /// Counter: holds that ended before their guards.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.iter().sum()
    }

    /// Counter: holds that ended before their guards for this reason.
    #[must_use]
    pub const fn lost_for(&self, reason: LostReason) -> u64 {
        self.lost[reason.index()]
    }

    /// Counter: leases that were renewed. The first of them when the connection for renewals is there, some 20 ms after the first
    /// lock was taken; then each after a third of its lease.
    #[must_use]
    pub const fn renewals(&self) -> u64 {
        self.renewals
    }

    /// Counter: of those, the ones that were confirmed when about half of the lease had passed, instead of a third.
    #[must_use]
    pub const fn late_renewals(&self) -> u64 {
        self.late_renewals
    }

    /// Counter: renewals that had no answer, or that not enough replicas confirmed. They are tried again.
    #[must_use]
    pub const fn failed_renewals(&self) -> u64 {
        self.failed_renewals
    }

    /// Counter: connections that had ended and were made again, that for renewals included.
    #[must_use]
    pub const fn reconnects(&self) -> u64 {
        self.reconnects
    }

    /// Counter: changes of the map of the cluster, or of the master that sentinels name.
    #[must_use]
    pub const fn map_changes(&self) -> u64 {
        self.map_changes
    }

    /// Counter: scripts and commands that were sent, repetitions and renewals included. A script that renews a hundred leases is
    /// one.
    #[must_use]
    pub const fn requests(&self) -> u64 {
        self.requests
    }

    /// Counter: events that observers were not told because they are too slow.
    #[must_use]
    pub const fn untold(&self) -> u64 {
        self.untold
    }
}
