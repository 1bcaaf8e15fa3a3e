//! What a command runs under: a lock, a read lock or permits.

use std::pin::Pin;
use std::time::Duration;

use leasehold::{Error, Guard, LostReason, Permit, ReadGuard, Release};

/// A hold of any kind.
#[derive(Debug)]
pub(crate) enum Hold {
    Lock(Guard),
    Read(ReadGuard),
    Permits(Permit),
}

impl Hold {
    /// The key on the server.
    pub(crate) fn key(&self) -> &str {
        match self {
            Self::Lock(guard) => guard.key(),
            Self::Read(guard) => guard.key(),
            Self::Permits(permit) => permit.key(),
        }
    }

    /// The fencing token; `None` of permits, which several have at the same time.
    pub(crate) fn token(&self) -> Option<u64> {
        match self {
            Self::Lock(guard) => Some(guard.token().as_u64()),
            Self::Read(guard) => Some(guard.token().as_u64()),
            Self::Permits(_) => None,
        }
    }

    /// For how long it may be trusted.
    pub(crate) fn valid_for(&self) -> Duration {
        match self {
            Self::Lock(guard) => guard.valid_for(),
            Self::Read(guard) => guard.valid_for(),
            Self::Permits(permit) => permit.valid_for(),
        }
    }

    /// Resolves when it is lost.
    pub(super) fn lost(&self) -> Pin<Box<dyn Future<Output = LostReason>>> {
        match self {
            Self::Lock(guard) => Box::pin(guard.lost()),
            Self::Read(guard) => Box::pin(guard.lost()),
            Self::Permits(permit) => Box::pin(permit.lost()),
        }
    }

    /// Gives it back.
    pub(crate) async fn release(self) -> Result<Release, Error> {
        match self {
            Self::Lock(guard) => guard.release().await,
            Self::Read(guard) => guard.release().await,
            Self::Permits(permit) => permit.release().await,
        }
    }
}
