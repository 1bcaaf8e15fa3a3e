//! The names of errors and losses in statistics, traces and metrics, and their places in tables of counters.

use super::{ErrorKind, LostReason};

/// The number of kinds of errors.
pub(crate) const KINDS: usize = 20;
/// The number of reasons for a loss.
pub(crate) const REASONS: usize = 8;

impl ErrorKind {
    /// Its name in lower case, with underscores: `not_replicated`. It stays the same over versions of this crate.
    ///
    /// ```
    /// assert_eq!(leasehold::ErrorKind::NotReplicated.as_str(), "not_replicated");
    /// ```
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.label().1
    }

    /// Below [`KINDS`].
    pub(crate) const fn index(self) -> usize {
        self.label().0
    }

    const fn label(self) -> (usize, &'static str) {
        match self {
            Self::Lost => (0, "lost"),
            Self::Unavailable => (1, "unavailable"),
            Self::Unknown => (2, "unknown"),
            Self::NotReplicated => (3, "not_replicated"),
            Self::WrongType => (4, "wrong_type"),
            Self::NoExpiry => (5, "no_expiry"),
            Self::Broken => (6, "broken"),
            Self::PartiesDisagree => (7, "parties_disagree"),
            Self::BadName => (8, "bad_name"),
            Self::BadLease => (9, "bad_lease"),
            Self::BadCount => (10, "bad_count"),
            Self::CapacityDisagrees { .. } => (11, "capacity_disagrees"),
            Self::Nested => (12, "nested"),
            Self::Config => (13, "config"),
            Self::Denied => (14, "denied"),
            Self::Protocol => (15, "protocol"),
            Self::Server => (16, "server"),
            Self::Thread => (17, "thread"),
            Self::Closed => (18, "closed"),
            Self::Forked => (19, "forked"),
        }
    }
}

impl LostReason {
    /// Its name in lower case, with underscores: `node_gone`. It stays the same over versions of this crate.
    ///
    /// ```
    /// assert_eq!(leasehold::LostReason::NodeGone.as_str(), "node_gone");
    /// ```
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.label().1
    }

    /// Below [`REASONS`].
    pub(crate) const fn index(self) -> usize {
        self.label().0
    }

    const fn label(self) -> (usize, &'static str) {
        match self {
            Self::Expired => (0, "expired"),
            Self::Stolen => (1, "stolen"),
            Self::NodeGone => (2, "node_gone"),
            Self::NoMajority => (3, "no_majority"),
            Self::MaxHold => (4, "max_hold"),
            Self::Closed => (5, "closed"),
            Self::Forked => (6, "forked"),
            Self::Released => (7, "released"),
        }
    }
}
