//! The hold of a task, of whichever kind.

use std::time::Duration;

use leasehold::{Error, Guard, MultiGuard, Permit, ReadGuard, RedlockGuard, Release, WriteGuard};

pub(crate) enum Held {
    Guard(Guard),
    Read(ReadGuard),
    Write(WriteGuard),
    Permit(Permit),
    Multi(MultiGuard),
    Red(RedlockGuard),
}

impl Held {
    pub(crate) fn valid_for(&self) -> Duration {
        match self {
            Self::Guard(guard) => guard.valid_for(),
            Self::Read(guard) => guard.valid_for(),
            Self::Write(guard) => guard.valid_for(),
            Self::Permit(permit) => permit.valid_for(),
            Self::Multi(guard) => guard.valid_for(),
            Self::Red(guard) => guard.valid_for(),
        }
    }

    /// The fencing token of `key`; 0 for what has none.
    pub(crate) fn token(&self, key: &str) -> u64 {
        match self {
            Self::Guard(guard) => guard.token().as_u64(),
            Self::Write(guard) => guard.token().as_u64(),
            Self::Read(_) | Self::Permit(_) => 0,
            Self::Multi(guard) => guard.tokens()[key].as_u64(),
            Self::Red(guard) => guard.token().expect("it is fenced").as_u64(),
        }
    }

    pub(crate) async fn release(self) -> Result<Release, Error> {
        match self {
            Self::Guard(guard) => guard.release().await,
            Self::Read(guard) => guard.release().await,
            Self::Write(guard) => guard.release().await,
            Self::Permit(permit) => permit.release().await,
            Self::Multi(guard) => guard.release().await,
            Self::Red(guard) => guard.release().await,
        }
    }
}

impl From<Guard> for Held {
    fn from(guard: Guard) -> Self {
        Self::Guard(guard)
    }
}

impl From<ReadGuard> for Held {
    fn from(guard: ReadGuard) -> Self {
        Self::Read(guard)
    }
}

impl From<WriteGuard> for Held {
    fn from(guard: WriteGuard) -> Self {
        Self::Write(guard)
    }
}

impl From<Permit> for Held {
    fn from(permit: Permit) -> Self {
        Self::Permit(permit)
    }
}

impl From<MultiGuard> for Held {
    fn from(guard: MultiGuard) -> Self {
        Self::Multi(guard)
    }
}

impl From<RedlockGuard> for Held {
    fn from(guard: RedlockGuard) -> Self {
        Self::Red(guard)
    }
}
