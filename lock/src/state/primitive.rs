//! The kinds of primitives, as observers are told of them.

use std::fmt;

/// The kinds of primitives that are waited for.
///
/// ```
/// use leasehold::observer::Primitive;
///
/// assert_eq!(Primitive::FairMutex.as_str(), "fair_mutex");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Primitive {
    /// A [`Mutex`](crate::Mutex).
    Mutex,
    /// A [`FairMutex`](crate::FairMutex).
    FairMutex,
    /// The lock of an [`Election`](crate::Election).
    Election,
    /// An [`RwLock`](crate::RwLock), to read.
    Read,
    /// An [`RwLock`](crate::RwLock), to write.
    Write,
    /// One of the locks of a [`Multi`](crate::Multi).
    Multi,
    /// A [`RedlockMutex`](crate::RedlockMutex).
    Redlock,
    /// A [`PlainMutex`](crate::PlainMutex).
    PlainMutex,
    /// A [`Semaphore`](crate::Semaphore).
    Semaphore,
    /// A [`CountingSemaphore`](crate::CountingSemaphore).
    CountingSemaphore,
    /// A [`Latch`](crate::Latch), to wait until it is open.
    Latch,
    /// A [`Barrier`](crate::Barrier), to wait for the other parties.
    Barrier,
}

impl Primitive {
    /// Its name in lower case, with underscores: `fair_mutex`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::FairMutex => "fair_mutex",
            Self::Election => "election",
            Self::Read => "read",
            Self::Write => "write",
            Self::Multi => "multi",
            Self::Redlock => "redlock",
            Self::PlainMutex => "plain_mutex",
            Self::Semaphore => "semaphore",
            Self::CountingSemaphore => "counting_semaphore",
            Self::Latch => "latch",
            Self::Barrier => "barrier",
        }
    }
}

impl fmt::Display for Primitive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
