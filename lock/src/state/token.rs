//! Fencing tokens.

use std::fmt;

/// Fencing tokens of one name strictly increase from one acquisition to the next.
///
/// Hand it to the storage the lock protects, and let the storage refuse a token that is lower than the highest it has
/// seen: that keeps out a holder that was stopped and does not know yet that it lost the lock.
///
/// There is one limit: two servers that both take themselves for the master, for moments of a failover, know nothing of each
/// other's grants, and can give the same token to a holder each. [`Replicas::All`](crate::Replicas::All) lets no such grant
/// count. Without it, a storage that compares [`Guard::id`](crate::Guard::id) as well still takes one of them only:
/// [`guides::fencing`](crate::guides::fencing#two-masters-at-once).
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// let first = locks.mutex("order:42").lock().await?.token();
/// let second = locks.mutex("order:42").lock().await?.token();
/// assert!(first < second);
/// println!("{second} is {} for the storage", second.as_u64());
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// Below every token.
    pub(crate) const NONE: Self = Self(0);

    pub(crate) const fn new(token: u64) -> Self {
        Self(token)
    }

    /// A token with this number, for tests of a storage that takes tokens.
    ///
    /// ```
    /// use leasehold::FencingToken;
    /// assert!(FencingToken::for_tests(7) < FencingToken::for_tests(8));
    /// ```
    #[cfg(feature = "testing")]
    #[must_use]
    pub const fn for_tests(token: u64) -> Self {
        Self(token)
    }

    /// The number. It fits into 53 bits.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
