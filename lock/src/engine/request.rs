//! A request for a lock, the same for all primitives.

use std::sync::Arc;
use std::time::Duration;

use super::handle::Handle;
use super::hold::OwnerHolds;
use crate::options::Terms;
use crate::protocol::permits::Permits;
use crate::protocol::{Protocol, TakeOver};
use crate::state::names::Name;

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

impl Wait {
    /// At most `time`. No time to wait leaves one attempt.
    pub(crate) const fn at_most(time: Duration) -> Self {
        if time.is_zero() {
            Self::None
        } else {
            Self::For(time)
        }
    }
}
