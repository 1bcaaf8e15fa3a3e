//! The events: plain values that borrow what they tell.

use std::fmt;
use std::time::Duration;

use crate::error::{ErrorKind, LostReason};
use crate::state::primitive::Primitive;
use crate::state::token::FencingToken;

/// How a caller got what it waited for.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// use leasehold::observer::Way;
///
/// let owner = locks.owner();
/// let outer = owner.mutex("order:42").lock().await?;
/// let inner = owner.mutex("order:42").lock().await?;
/// assert_eq!(locks.stats().granted(Way::AtOnce), 1);
/// assert_eq!(locks.stats().granted(Way::Nested), 1);
/// assert_eq!(Way::HandedOver.as_str(), "handed_over");
/// assert!(!Way::Nested.begins_a_hold());
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Way {
    /// The server found it free when it was asked first.
    AtOnce,
    /// A release at the server made this caller the holder, and a message told so.
    HandedOver,
    /// A guard of this process was released, and its hold passed on without asking the server.
    PassedOn,
    /// The caller asked again, and had it or found it free: a message was lost, a holder died, or it waits without messages.
    Look,
    /// It was taken over from the owner of another process: see [`Locks::owner_from`](crate::Locks::owner_from).
    TakenOver,
    /// A read became a write, or the other way round.
    Converted,
    /// It joined a hold of the same [`Owner`](crate::Owner), or of other reads of this process, without asking the server.
    Nested,
    /// A latch is open, or a barrier was passed. Nothing is held then.
    Opened,
}

/// Why a caller does not get what it waited for.
///
/// ```
/// use leasehold::ErrorKind;
/// use leasehold::observer::GaveUpReason;
///
/// assert_eq!(GaveUpReason::TimedOut.as_str(), "timed_out");
/// assert_eq!(GaveUpReason::Failed(ErrorKind::Denied).to_string(), "denied");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GaveUpReason {
    /// Others have it, and the caller was not to wait (`try_lock`, and a conversion that others are in the way of).
    NotFree,
    /// Others had it until the time to wait was over (`try_lock_for`).
    TimedOut,
    /// The future was dropped.
    Cancelled,
    /// An error of this kind.
    Failed(ErrorKind),
}

/// See [`Observer::waiting`](super::Observer::waiting).
///
/// ```
/// use leasehold::observer::{Observer, Waiting};
///
/// struct Arrivals;
///
/// impl Observer for Arrivals {
///     fn waiting(&self, event: &Waiting<'_>) {
///         println!("{} {} at {}", event.primitive, event.key, event.server);
///     }
/// }
///
/// let locks = leasehold::Locks::builder("redis://127.0.0.1:6379").observer(Arrivals);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Waiting<'a> {
    /// The number of the acquisition, unique in this process.
    pub acquisition: u64,
    /// The key on the server, namespace included.
    pub key: &'a str,
    /// The lock that is waited for.
    pub primitive: Primitive,
    /// The server that has the key, `host:port` or the path of a socket; empty if none is known, or there are several
    /// ([`Primitive::Redlock`]).
    pub server: &'a str,
    /// The number of the database there.
    pub database: u32,
}

/// See [`Observer::granted`](super::Observer::granted).
///
/// ```
/// use leasehold::observer::{Granted, Observer};
///
/// struct Slow;
///
/// impl Observer for Slow {
///     fn granted(&self, event: &Granted<'_>) {
///         println!("{} took {:?} ({})", event.key, event.waited, event.way);
///     }
/// }
///
/// let locks = leasehold::Locks::builder("redis://127.0.0.1:6379").observer(Slow);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Granted<'a> {
    /// The number of the acquisition.
    pub acquisition: u64,
    /// The key on the server, namespace included.
    pub key: &'a str,
    /// The lock that was waited for.
    pub primitive: Primitive,
    /// How the caller got it.
    pub way: Way,
    /// The time since [`Waiting`].
    pub waited: Duration,
    /// The fencing token, if the primitive has them.
    pub token: Option<FencingToken>,
    /// The server that has the key, as in [`Waiting`].
    pub server: &'a str,
    /// The number of the database there.
    pub database: u32,
}

/// See [`Observer::gave_up`](super::Observer::gave_up).
///
/// ```
/// use leasehold::observer::{GaveUp, Observer};
///
/// struct Missed;
///
/// impl Observer for Missed {
///     fn gave_up(&self, event: &GaveUp<'_>) {
///         println!("{} was not to be had: {}", event.key, event.reason);
///     }
/// }
///
/// let locks = leasehold::Locks::builder("redis://127.0.0.1:6379").observer(Missed);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct GaveUp<'a> {
    /// The number of the acquisition.
    pub acquisition: u64,
    /// The key on the server, namespace included.
    pub key: &'a str,
    /// The lock that was waited for.
    pub primitive: Primitive,
    /// Why the caller does not get it.
    pub reason: GaveUpReason,
    /// The time since [`Waiting`].
    pub waited: Duration,
}

/// See [`Observer::renewed`](super::Observer::renewed).
///
/// ```
/// use leasehold::observer::{Observer, Renewed};
///
/// struct Renewals;
///
/// impl Observer for Renewals {
///     fn renewed(&self, event: &Renewed<'_>) {
///         println!("{} renewed for {:?}, {:?} late", event.key, event.lease, event.late);
///     }
/// }
///
/// let locks = leasehold::Locks::builder("redis://127.0.0.1:6379").observer(Renewals);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Renewed<'a> {
    /// The number of the acquisition.
    pub acquisition: u64,
    /// The key on the server, namespace included.
    pub key: &'a str,
    /// The hold.
    pub primitive: Primitive,
    /// The lease from now on.
    pub lease: Duration,
    /// How much later than scheduled the server confirmed it: a renewal is due at a third of the lease, give or take a tenth of
    /// that. A round trip is usual; two thirds of the lease would be too late.
    pub late: Duration,
}

/// See [`Observer::renewal_failed`](super::Observer::renewal_failed).
///
/// ```
/// use leasehold::observer::{Observer, RenewalFailed};
///
/// struct Trouble;
///
/// impl Observer for Trouble {
///     fn renewal_failed(&self, event: &RenewalFailed<'_>) {
///         println!("{} ends in {:?} unless renewed", event.key, event.left);
///     }
/// }
///
/// let locks = leasehold::Locks::builder("redis://127.0.0.1:6379").observer(Trouble);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RenewalFailed<'a> {
    /// The number of the acquisition.
    pub acquisition: u64,
    /// The key on the server, namespace included.
    pub key: &'a str,
    /// The hold.
    pub primitive: Primitive,
    /// For how long the lease may be trusted if no further renewal succeeds.
    pub left: Duration,
}

/// See [`Observer::lost`](super::Observer::lost).
///
/// ```
/// use leasehold::observer::{LeaseLost, Observer};
///
/// struct Alarm;
///
/// impl Observer for Alarm {
///     fn lost(&self, event: &LeaseLost<'_>) {
///         println!("{} was lost after {:?}: {}", event.key, event.held, event.reason);
///     }
/// }
///
/// let locks = leasehold::Locks::builder("redis://127.0.0.1:6379").observer(Alarm);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LeaseLost<'a> {
    /// The number of the acquisition.
    pub acquisition: u64,
    /// The key on the server, namespace included.
    pub key: &'a str,
    /// The hold that ended.
    pub primitive: Primitive,
    /// Why it is over.
    pub reason: LostReason,
    /// The time since [`Granted`].
    pub held: Duration,
}

/// See [`Observer::released`](super::Observer::released).
///
/// ```
/// use leasehold::observer::{Observer, Released};
///
/// struct Times;
///
/// impl Observer for Times {
///     fn released(&self, event: &Released<'_>) {
///         println!("{} was held for {:?}", event.key, event.held);
///     }
/// }
///
/// let locks = leasehold::Locks::builder("redis://127.0.0.1:6379").observer(Times);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Released<'a> {
    /// The number of the acquisition.
    pub acquisition: u64,
    /// The key on the server, namespace included.
    pub key: &'a str,
    /// The hold that ended.
    pub primitive: Primitive,
    /// The time since [`Granted`].
    pub held: Duration,
    /// Whether the server was not told: the permits were [forgotten](crate::Permit::forget), the guard
    /// [detached](crate::Guard::detach), or they are those of a [`CountingSemaphore`](crate::CountingSemaphore), which nobody
    /// owns.
    pub forgotten: bool,
}

/// See [`Observer::map_changed`](super::Observer::map_changed).
///
/// ```
/// use leasehold::observer::{MapChanged, Observer};
///
/// struct Failovers;
///
/// impl Observer for Failovers {
///     fn map_changed(&self, event: &MapChanged) {
///         println!("{} masters now", event.masters);
///     }
/// }
///
/// let locks = leasehold::Locks::builder("redis://127.0.0.1:6379").observer(Failovers);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct MapChanged {
    /// The number of masters now.
    pub masters: usize,
}

/// See [`Observer::reconnected`](super::Observer::reconnected).
///
/// ```
/// use leasehold::observer::{Observer, Reconnected};
///
/// struct Links;
///
/// impl Observer for Links {
///     fn reconnected(&self, event: &Reconnected<'_>) {
///         println!("{} is back after {:?}", event.server, event.after);
///     }
/// }
///
/// let locks = leasehold::Locks::builder("redis://127.0.0.1:6379").observer(Links);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Reconnected<'a> {
    /// The server, `host:port` or the path of a socket.
    pub server: &'a str,
    /// The time without the connection.
    pub after: Duration,
    /// Whether it is the connection for renewals, and not the one for everything else.
    pub for_renewals: bool,
}

impl Way {
    /// All of them.
    pub(crate) const ALL: [Self; 8] = [
        Self::AtOnce,
        Self::HandedOver,
        Self::PassedOn,
        Self::Look,
        Self::TakenOver,
        Self::Converted,
        Self::Nested,
        Self::Opened,
    ];

    /// Its name in lower case, with underscores: `handed_over`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AtOnce => "at_once",
            Self::HandedOver => "handed_over",
            Self::PassedOn => "passed_on",
            Self::Look => "look",
            Self::TakenOver => "taken_over",
            Self::Converted => "converted",
            Self::Nested => "nested",
            Self::Opened => "opened",
        }
    }

    /// Whether a hold begins with it.
    #[must_use]
    pub const fn begins_a_hold(self) -> bool {
        !matches!(self, Self::Nested | Self::Opened)
    }
}

impl GaveUpReason {
    /// Its name in lower case, with underscores: `timed_out`; of an error, that of its
    /// [kind](crate::ErrorKind::as_str).
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotFree => "not_free",
            Self::TimedOut => "timed_out",
            Self::Cancelled => "cancelled",
            Self::Failed(kind) => kind.as_str(),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Display for GaveUpReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
