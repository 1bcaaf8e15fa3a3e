//! Errors of locks, one kind for each cause.

mod kind;
mod labels;
mod lost;

use std::fmt::{self, Write};
use std::sync::Arc;

use leasehold_resp as resp;
use leasehold_resp::error::shown::{Escaping, Shortened};

pub use self::kind::ErrorKind;
pub(crate) use self::labels::{KINDS, REASONS};
pub use self::lost::{Lost, LostReason};
use crate::protocol::permits::BadPermits;
use crate::state::deadline::{MAX_LEASE, MIN_LEASE};
use crate::state::names::BadName;

/// Why an operation on a lock failed.
///
/// That others hold the lock is never an error. The message says what happened to which key at which node, what caused it,
/// and what to do. It is one line, in which control characters are escaped and long names are shortened, and never shows a
/// password.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// use std::time::Duration;
///
/// let guard = loop {
///     match locks.mutex("order:42").lock().await {
///         Ok(guard) => break guard,
///         Err(error) if error.is_retryable() => {
///             eprintln!("{error}");
///             tokio::time::sleep(Duration::from_secs(1)).await;
///         }
///         Err(error) => return Err(error.into()),
///     }
/// };
/// # drop(guard);
///
/// let error = locks.mutex("").lock().await.unwrap_err(); // a name has 1 byte at least
/// assert_eq!(error.kind(), leasehold::ErrorKind::BadName);
/// assert!(!error.is_retryable());
/// println!("key {:?}, server {:?}", error.key(), error.node());
/// # Ok(())
/// # });
/// ```
#[derive(thiserror::Error)]
#[error("{0}")]
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    /// Details, if the kind alone does not say it all.
    detail: String,
    /// The key on the server; empty if it concerns no key.
    key: String,
    /// The server; empty if none was asked.
    node: Arc<str>,
    /// Whether it is about a change that is no hold: nothing is given back then.
    is_of_change: bool,
    /// Whether that change is the same if it is made twice.
    is_repeatable: bool,
    /// Advice, where the cause tells it better than the kind.
    advice: Option<&'static str>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            detail: detail.into(),
            key: String::new(),
            node: Arc::from(""),
            is_of_change: false,
            is_repeatable: false,
            advice: None,
        }))
    }

    pub(crate) fn closed() -> Self {
        Self::new(ErrorKind::Closed, "")
    }

    pub(crate) fn bad_name(bad: BadName) -> Self {
        Self::new(ErrorKind::BadName, bad.to_string())
    }

    pub(crate) fn bad_permits(bad: BadPermits) -> Self {
        Self::new(ErrorKind::BadCount, bad.to_string())
    }

    /// The server has another number of permits in all than the request says.
    pub(crate) fn capacity_disagrees(server: u32, yours: u32) -> Self {
        Self::new(
            ErrorKind::CapacityDisagrees { server, yours },
            format!("{server} in all there, {yours} here"),
        )
    }

    /// `what` is the duration that cannot be used.
    pub(crate) fn bad_lease(what: &str) -> Self {
        Self::new(
            ErrorKind::BadLease,
            format!(
                "{what} must be {MIN_LEASE:?} to {} days",
                MAX_LEASE.as_secs() / 86_400
            ),
        )
    }

    pub(crate) fn no_expiry() -> Self {
        Self::new(ErrorKind::NoExpiry, "")
    }

    pub(crate) fn not_replicated(refusal: &leasehold_cluster::Refusal) -> Self {
        Self::new(ErrorKind::NotReplicated, refusal.to_string())
    }

    /// The server does not let us ask whether replicas have the lock.
    pub(crate) fn unconfirmed(denied: resp::Error) -> Self {
        let mut this = Self::from_client(denied);
        this.0.detail.insert_str(
            0,
            "replicas cannot be asked for the lock, so it is given back: ",
        );
        this
    }

    /// A reply of a type or value the script never gives.
    pub(crate) fn unexpected(value: &resp::Value) -> Self {
        Self::new(
            ErrorKind::Protocol,
            format!("the script answered with a value of type {}", value.kind()),
        )
    }

    /// The client's error about a request that changes something.
    pub(crate) fn from_client(error: resp::Error) -> Self {
        let mut this = Self::new(ErrorKind::of(&error), error.detail());
        this.0.node = Arc::from(error.node());
        this.0.advice = kind::advice_on(&error);
        this
    }

    /// The client's error about a request that only reads: whether it was done does not matter.
    pub(crate) fn from_read(error: resp::Error) -> Self {
        let mut this = Self::from_client(error);
        if this.0.kind == ErrorKind::Unknown {
            this.0.kind = ErrorKind::Unavailable;
        }
        this
    }

    /// The same, where an earlier attempt without an answer may have been done all the same.
    #[must_use]
    pub(crate) fn doubted(mut self) -> Self {
        self.0.kind = ErrorKind::Unknown;
        self.0
            .detail
            .push_str("; an earlier attempt may have been done");
        self
    }

    /// The error of waiters behind an attempt that failed with this, for whom nothing was sent; `None` if it concerns that
    /// attempt only.
    pub(crate) fn of_waiters_behind(&self) -> Option<Self> {
        let kind = match self.0.kind {
            ErrorKind::Unavailable | ErrorKind::Unknown => ErrorKind::Unavailable,
            ErrorKind::NotReplicated => ErrorKind::NotReplicated,
            _ => return None,
        };
        let mut this = self.copied();
        this.0.kind = kind;
        this.0.detail = format!("an attempt ahead of this one failed: {}", self.0.detail);
        Some(this)
    }

    /// The same, as the reason for `what`.
    #[must_use]
    pub(crate) fn reason_for(mut self, what: &str) -> Self {
        let reason = format!("{what}: {} ({})", self.0.detail, self.0.node);
        self.0.detail = reason;
        self
    }

    /// Another error that says the same.
    pub(crate) fn copied(&self) -> Self {
        Self(Box::new(Inner {
            kind: self.0.kind,
            detail: self.0.detail.clone(),
            key: self.0.key.clone(),
            node: Arc::clone(&self.0.node),
            is_of_change: self.0.is_of_change,
            is_repeatable: self.0.is_repeatable,
            advice: self.0.advice,
        }))
    }

    /// The same about a change that is no hold.
    #[must_use]
    pub(crate) fn of_change(mut self) -> Self {
        self.0.is_of_change = true;
        self
    }

    /// The same about `key` at `node`, unless the client named the node already or none was asked.
    #[must_use]
    pub(crate) fn about(mut self, key: &str, node: &Arc<str>) -> Self {
        key.clone_into(&mut self.0.key);
        if self.0.node.is_empty() && self.0.kind.is_of_server() {
            self.0.node = Arc::clone(node);
        }
        self
    }

    /// The same about a change that may be made again: twice is as once.
    #[must_use]
    pub(crate) fn of_repeatable_change(mut self) -> Self {
        self.0.is_of_change = true;
        self.0.is_repeatable = true;
        if self.0.kind == ErrorKind::Unknown {
            self.0.advice = Some("it may have been done, and can be repeated");
        }
        self
    }

    /// The same about a hold, which is given back.
    #[must_use]
    pub(crate) fn of_hold(mut self) -> Self {
        self.0.is_of_change = false;
        self
    }

    /// The cause.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the same call may succeed a little later, so that a loop with a pause is worth it.
    ///
    /// | kind | |
    /// |---|---|
    /// | `Unavailable` | yes: nothing was done |
    /// | `Unknown`, `NotReplicated` | yes for locks: what was left is removed, or was given back; and for what may be done twice, such as extending a detached hold. No for counts of a latch and permits without owners, which may have been counted: look first |
    /// | `Lost` | yes, for a lock anew: end first what was done under the one that was lost |
    /// | all others | no: something has to be changed first |
    ///
    /// Somebody else holding the lock is no error and needs no such loop: `lock()` waits, `try_lock()` says `None`.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self.0.kind {
            ErrorKind::Unavailable | ErrorKind::Lost => true,
            ErrorKind::Unknown | ErrorKind::NotReplicated => {
                !self.0.is_of_change || self.0.is_repeatable
            }
            _ => false,
        }
    }

    /// The key on the server, namespace included, as it is; empty if it concerns no key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.0.key
    }

    /// The server, `host:port` or the path of a socket; empty if none was asked.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.0.node
    }
}

/// The kind and the sentence: a `main` that returns the error, and `unwrap`, print nothing else.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl fmt::Display for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let f = &mut Escaping(f);
        match self.kind.sentence_of_change(&self.node) {
            Some(sentence) if self.is_of_change => f.write_str(&sentence)?,
            _ => f.write_str(&self.kind.sentence(&self.node))?,
        }
        if !self.key.is_empty() {
            write!(f, " (key `{}`)", Shortened(&self.key))?;
        }
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        let advice = self.kind.advice(self.is_of_change);
        match self.advice.unwrap_or(advice) {
            "" => Ok(()),
            advice => write!(f, "; {advice}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_pointer() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }

    #[test]
    fn the_message_says_what_where_and_what_to_do() {
        let error = Error::no_expiry().about("shop:order:42", &Arc::from("127.0.0.1:6379"));
        assert_eq!(
            error.to_string(),
            "the lock at 127.0.0.1:6379 has no expiry, it is never freed by itself (key `shop:order:42`); find out who \
             wrote it, then call `force_unlock()`"
        );
        assert_eq!(
            Error::bad_lease("the lease").to_string(),
            "the duration cannot be used: the lease must be 10ms to 365 days"
        );
        // As a `main` prints it that returns it.
        let shown = format!("{error:?}");
        assert_eq!(shown, format!("NoExpiry: {error}"));
    }

    #[test]
    fn a_clients_error_keeps_its_node_and_tells_its_cause_once() {
        use std::error::Error as _;

        let node: Arc<str> = Arc::from("10.0.0.1:6379");
        let error = Error::from_client(resp::Error::not_sent(&node, "connection refused"))
            .about("k", &Arc::from("other"));
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!((error.key(), error.node()), ("k", "10.0.0.1:6379"));
        assert_eq!(
            error.to_string(),
            "10.0.0.1:6379 could not be reached or does not serve, nothing was done (key `k`): connection refused; try \
             again later"
        );
        assert!(error.source().is_none(), "it is in the message");

        let unknown = resp::Error::unknown(&node, "reset");
        assert_eq!(
            Error::from_client(unknown.clone()).kind(),
            ErrorKind::Unknown
        );
        assert_eq!(Error::from_read(unknown).kind(), ErrorKind::Unavailable);
    }
}
