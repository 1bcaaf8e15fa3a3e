//! A request for a lock, the same for all primitives.

use std::sync::Arc;
use std::time::Duration;

use super::handle::Handle;
use super::hold::OwnerHolds;
use crate::observer::GaveUpReason;
use crate::options::{Interop, Terms};
use crate::protocol::permits::Permits;
use crate::protocol::{Protocol, TakeOver};
use crate::state::backoff::Backoff;
use crate::state::names::Name;
use crate::state::waiters::Access;

/// Redisson's `lockWatchdogTimeout`, unless it is changed there.
const REDISSON_WATCHDOG: Duration = Duration::from_secs(30);

/// A lock that was asked for, and the conditions.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) context: Arc<Handle>,
    pub(crate) protocol: &'static Protocol,
    pub(crate) name: Arc<Name>,
    pub(crate) permits: Permits,
    pub(crate) owner: Option<Arc<OwnerHolds>>,
    pub(crate) terms: Terms,
    pub(crate) wait: Wait,
    /// Its pauses, if it is to wait without messages.
    pub(crate) polling: Option<Backoff>,
}

impl Request {
    /// Whether its hold may be passed on within the process. Not those of owners, which are known by their ids.
    pub(crate) const fn may_pass(&self) -> bool {
        self.protocol.passes && self.owner.is_none()
    }

    /// The owner whose hold it takes over, and how, if there may be one.
    pub(crate) fn former(&self) -> Option<(TakeOver, &str)> {
        let former = self.owner.as_ref()?.former()?;
        Some((self.protocol.take_over?, former))
    }
}

/// How long to wait while others hold the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// One attempt.
    None,
    For(Duration),
    Endless,
}

impl Request {
    /// To be called when the terms are what was asked for.
    pub(crate) fn settle_terms(&mut self) {
        let access = self.protocol.access;
        if access == Access::Shared {
            self.terms = settled(self.terms, access, self.context.config.interop);
        }
    }
}

/// The terms on which a hold is taken, where `terms` were asked for. Redisson's renewals of its own reads set the expiry of the lock
/// to its watchdog's time, also if it was longer: a read with a longer lease is renewed before that.
pub(crate) fn settled(terms: Terms, access: Access, interop: Interop) -> Terms {
    if access == Access::Shared && interop == Interop::Redisson {
        terms.in_leases_of(REDISSON_WATCHDOG)
    } else {
        terms
    }
}

impl Wait {
    /// At most `time`. No time to wait leaves one attempt.
    pub(crate) const fn at_most(time: Duration) -> Self {
        if time.is_zero() {
            Self::None
        } else {
            Self::For(time)
        }
    }

    /// The reason to report if the lock was not granted.
    pub(crate) const fn gave_up(self) -> GaveUpReason {
        match self {
            Self::None => GaveUpReason::NotFree,
            Self::For(_) | Self::Endless => GaveUpReason::TimedOut,
        }
    }
}
