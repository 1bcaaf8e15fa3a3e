//! The end of a hold, as its guards see it.

use std::fmt::{self, Write};

use leasehold_resp::error::shown::{Escaping, Shortened};

use super::ErrorKind;

/// How many keys of several locks a message names.
const SHOWN: usize = 3;

/// Why a hold can no longer be trusted.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// use leasehold::LostReason;
///
/// let guard = locks.mutex("order:42").lock().await?;
/// let lost = guard.lost(); // for another task
/// guard.release().await?;
/// match lost.await {
///     LostReason::Released | LostReason::Closed => {}
///     reason => eprintln!("lost: {reason}"),
/// }
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// The lease ran out: it was a fixed one, or no renewal was confirmed in time.
    #[error("the lease ran out")]
    Expired,
    /// The server says that the hold is gone: forced, flushed or evicted.
    #[error("the server no longer knows the hold")]
    Stolen,
    /// The server that has the key now does not know the hold: it was restarted, or is a replica that was promoted
    /// without it. Found by asking at once when a connection comes back or the key has another master.
    #[error("the server was restarted or replaced, and the hold is not known there")]
    NodeGone,
    /// Fewer than a majority of the nodes of a [`Redlock`](crate::Redlock) still know the hold.
    #[error("no majority of the nodes knows the hold any more")]
    NoMajority,
    /// The longest hold that was asked for is over.
    #[error("the longest hold is over")]
    MaxHold,
    /// [`Locks::shutdown`](crate::Locks::shutdown) was called, and released it.
    #[error("the locks were shut down")]
    Closed,
    /// This process was forked from the one that holds the lock, and does not hold it.
    #[error("this process was forked from the one that holds it")]
    Forked,
    /// It was released here, by dropping the guard or by [`Guard::release`](crate::Guard::release).
    #[error("it was released")]
    Released,
}

impl LostReason {
    /// What to do about it. Empty for what the program did itself.
    const fn advice(self) -> &'static str {
        match self {
            Self::Expired | Self::Stolen | Self::NodeGone | Self::NoMajority => {
                "the work was stopped where it was: see what it left, then lock again"
            }
            Self::MaxHold => "allow a longer one with `max_hold`, or do less under one lock",
            Self::Forked => ErrorKind::Forked.advice(false),
            Self::Closed | Self::Released => "",
        }
    }
}

/// The lock was lost while [`Guard::run`](crate::Guard::run) ran. It says which one, why, and what to do.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// # use std::time::Duration;
/// use leasehold::LostReason;
///
/// let guard = locks.mutex("order:42").lock().lease(Duration::from_millis(50)).await?;
/// let lost = guard.run(tokio::time::sleep(Duration::from_secs(10))).await.unwrap_err();
/// assert_eq!(lost.reason(), LostReason::Expired);
/// assert!(lost.to_string().starts_with("the lock was lost (key `order:42`): the lease ran out"));
/// # Ok(())
/// # });
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Lost {
    reason: LostReason,
    /// As they are shown: one of a lock, the first ones of several.
    keys: Box<str>,
}

impl Lost {
    pub(crate) fn new<'a>(reason: LostReason, keys: impl IntoIterator<Item = &'a str>) -> Self {
        let mut keys = keys.into_iter();
        let shown = keys
            .by_ref()
            .take(SHOWN)
            .map(|key| format!("`{}`", Shortened(key)));
        let mut text = shown.collect::<Vec<_>>().join(", ");
        let others = keys.count();
        if others > 0 {
            text.push_str(&format!(" and {others} more"));
        }
        Self {
            reason,
            keys: text.into(),
        }
    }

    /// Why.
    #[must_use]
    pub const fn reason(&self) -> LostReason {
        self.reason
    }
}

/// The reason and the sentence, as that of [`Error`](crate::Error): a `main` that returns it prints nothing else.
impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.reason)
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, keys } = self;
        let f = &mut Escaping(f);
        write!(f, "the lock was lost (key {keys}): {reason}")?;
        match reason.advice() {
            "" => Ok(()),
            advice => write!(f, "; {advice}"),
        }
    }
}

impl std::error::Error for Lost {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_of_many_keys_are_named() {
        let keys = ["a", "b", "c", "d", "e"];
        let lost = |count| Lost::new(LostReason::Closed, keys[..count].iter().copied()).to_string();
        let (few, many) = (
            "the lock was lost (key `a`, `b`, `c`): the locks were shut down",
            "the lock was lost (key `a`, `b`, `c` and 2 more): the locks were shut down",
        );
        assert_eq!((lost(3).as_str(), lost(5).as_str()), (few, many));
    }

    #[test]
    fn what_main_prints_says_it_all_and_forges_no_line() {
        let lost = Lost::new(LostReason::Expired, ["order\n42"]);
        assert_eq!(
            format!("{lost:?}"),
            "Expired: the lock was lost (key `order\\n42`): the lease ran out; \
             the work was stopped where it was: see what it left, then lock again"
        );
    }
}
