//! What a command runs under: one lock or several, a read lock or permits.

use std::pin::Pin;
use std::time::Duration;

use leasehold::{Error, Guard, LostReason, MultiGuard, Permit, ReadGuard, RedlockGuard, Release};

/// How often it looks whether a grant was confirmed.
const LOOK: Duration = Duration::from_millis(2);

/// A hold of any kind.
#[derive(Debug)]
pub(crate) enum Hold {
    Lock(Guard),
    Read(ReadGuard),
    Permits(Permit),
    /// Of several locks, which are lost together.
    All(MultiGuard),
    /// Of a lock at several servers.
    Majority(RedlockGuard),
}

impl Hold {
    /// The fencing token of the lock of this name; `None` of permits, which several have at the same time.
    pub(crate) fn token(&self, name: &str) -> Option<u64> {
        match self {
            Self::Lock(guard) => Some(guard.token().as_u64()),
            Self::Read(guard) => Some(guard.token().as_u64()),
            Self::Permits(_) => None,
            Self::All(guard) => guard.tokens().get(name).map(|token| token.as_u64()),
            Self::Majority(guard) => guard.token().map(|token| token.as_u64()),
        }
    }

    /// For how long it may be trusted; of several locks, the one that ends first.
    pub(super) fn valid_for(&self) -> Duration {
        match self {
            Self::Lock(guard) => guard.valid_for(),
            Self::Read(guard) => guard.valid_for(),
            Self::Permits(permit) => permit.valid_for(),
            Self::All(guard) => guard.valid_for(),
            Self::Majority(guard) => guard.valid_for(),
        }
    }

    /// Waits until it is held for `least` from then on. Returns whether it came to that before it ended.
    pub(crate) async fn is_held_for(&self, least: Duration) -> bool {
        loop {
            let left = self.valid_for();
            if left >= least || left.is_zero() {
                return left >= least;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Resolves when it is lost.
    pub(super) fn lost(&self) -> Pin<Box<dyn Future<Output = LostReason>>> {
        match self {
            Self::Lock(guard) => Box::pin(guard.lost()),
            Self::Read(guard) => Box::pin(guard.lost()),
            Self::Permits(permit) => Box::pin(permit.lost()),
            Self::All(guard) => Box::pin(guard.lost()),
            Self::Majority(guard) => Box::pin(guard.lost()),
        }
    }

    /// Gives it back.
    pub(crate) async fn release(self) -> Result<Release, Error> {
        match self {
            Self::Lock(guard) => guard.release().await,
            Self::Read(guard) => guard.release().await,
            Self::Permits(permit) => permit.release().await,
            Self::All(guard) => guard.release().await,
            Self::Majority(guard) => guard.release().await,
        }
    }
}
