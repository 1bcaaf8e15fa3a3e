//! What can go wrong with a lock, one kind for each cause.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use leasehold_resp as resp;

use crate::lease::{MAX_LEASE, MIN_LEASE};
use crate::names::BadName;

/// Why an operation on a lock failed.
///
/// That somebody else holds the lock is never an error. The message says what happened to which key at which node, and what
/// to do. It never shows a password. [`source`](StdError::source) is the client's error, where there is one.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    /// What happened, if the kind alone does not say it.
    detail: String,
    /// The key on the server; empty if it concerns no key.
    key: String,
    /// The server; empty if none was asked.
    node: Arc<str>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The kinds of [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The lease ran out, or was taken away, before it could be used.
    Lost,
    /// The server could not be reached or does not serve at the moment. Nothing was done.
    Unavailable,
    /// The request was sent and no answer came: it may have been done. What it may have left behind is being removed.
    Unknown,
    /// Fewer replicas confirmed the lock than were asked for, so it does not count and is being released.
    NotReplicated,
    /// The key holds something that is not a lock.
    WrongType,
    /// The lock has no expiry on the server, so nobody will ever free it. This library never writes such a lock.
    NoExpiry,
    /// The name of a lock or the namespace cannot be used.
    BadName,
    /// A lease or a longest hold that cannot be used.
    BadLease,
    /// The URL or another setting cannot be used.
    Config,
    /// The server does not let this user in, or not do this.
    Denied,
    /// The peer's answer makes no sense: it is not a Redis or Valkey server, or something changes bytes in between.
    Protocol,
    /// The server refused for a reason of its own.
    Server,
    /// The thread that renews leases could not be started.
    Thread,
    /// [`Locks::shutdown`](crate::Locks::shutdown) was called.
    Closed,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            detail: detail.into(),
            key: String::new(),
            node: Arc::from(""),
            source: None,
        }))
    }

    pub(crate) fn closed() -> Self {
        Self::new(ErrorKind::Closed, "")
    }

    pub(crate) fn bad_name(bad: BadName) -> Self {
        Self::new(ErrorKind::BadName, bad.to_string())
    }

    /// What cannot be used is called `what`.
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

    pub(crate) fn not_replicated(acknowledged: usize, required: usize) -> Self {
        Self::new(
            ErrorKind::NotReplicated,
            format!("{acknowledged} of {required} replicas have it"),
        )
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
        let kind = match error.kind() {
            resp::ErrorKind::NotSent => ErrorKind::Unavailable,
            resp::ErrorKind::Unknown | resp::ErrorKind::Timeout => ErrorKind::Unknown,
            resp::ErrorKind::Protocol => ErrorKind::Protocol,
            resp::ErrorKind::Closed => ErrorKind::Closed,
            resp::ErrorKind::Config => ErrorKind::Config,
            resp::ErrorKind::Server => server_kind(&error),
            _ => ErrorKind::Server,
        };
        let mut this = Self::new(kind, error.detail());
        this.0.node = Arc::from(error.node());
        this.0.source = Some(Box::new(error));
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

    /// The same about `key` at `node`, unless the client named the node already.
    #[must_use]
    pub(crate) fn about(mut self, key: &str, node: &Arc<str>) -> Self {
        key.clone_into(&mut self.0.key);
        if self.0.node.is_empty() {
            self.0.node = Arc::clone(node);
        }
        self
    }

    /// The same with what caused it.
    #[must_use]
    pub(crate) fn caused_by(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.0.source = Some(Box::new(source));
        self
    }

    /// The cause.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The key on the server, namespace included; empty if it concerns no key.
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

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.kind.said())?;
        if !self.0.key.is_empty() {
            write!(f, " (key `{}`)", self.0.key)?;
        }
        if !self.0.node.is_empty() {
            write!(f, " at {}", self.0.node)?;
        }
        if !self.0.detail.is_empty() {
            write!(f, ": {}", self.0.detail)?;
        }
        match self.0.kind.advice() {
            "" => Ok(()),
            advice => write!(f, "; {advice}"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

impl ErrorKind {
    const fn said(self) -> &'static str {
        match self {
            Self::Lost => "the lock was lost",
            Self::Unavailable => {
                "the server could not be reached or does not serve, nothing was done"
            }
            Self::Unknown => "no answer came, the outcome is unknown",
            Self::NotReplicated => "too few replicas confirmed the lock, it was given back",
            Self::WrongType => "the key holds something that is not a lock",
            Self::NoExpiry => "the lock has no expiry, nobody will ever free it",
            Self::BadName => "the name cannot be used",
            Self::BadLease => "the duration cannot be used",
            Self::Config => "the configuration cannot be used",
            Self::Denied => "the server denies it",
            Self::Protocol => "the answer makes no sense",
            Self::Server => "the server refused",
            Self::Thread => "the thread that renews leases could not be started",
            Self::Closed => "these locks were shut down",
        }
    }

    const fn advice(self) -> &'static str {
        match self {
            Self::Lost => "stop the work it protected, then lock again",
            Self::Unavailable => "try again later",
            Self::Unknown => {
                "what it may have left is being removed, and ends with its lease at the latest; try again"
            }
            Self::NotReplicated => {
                "see that all replicas are up and follow this master, then try again"
            }
            Self::WrongType => "use another name or a namespace of your own",
            Self::NoExpiry => "find out who wrote it, then call `force_unlock()`",
            Self::Denied => {
                "check user and password, and the user's rights against the section ACL of the README"
            }
            Self::Protocol => "check that the URL is the one of a Redis or Valkey server",
            Self::Thread => "check the limits of this process",
            Self::BadName | Self::BadLease | Self::Config | Self::Server | Self::Closed => "",
        }
    }
}

fn server_kind(error: &resp::Error) -> ErrorKind {
    use resp::ServerErrorKind::{
        Denied, MasterDown, NoAuth, NoPerm, NoReplicas, ReadOnly, WrongPass, WrongType,
    };
    match error.as_server().map(resp::ServerError::kind) {
        Some(WrongType) => ErrorKind::WrongType,
        // By class, not by code: inside a script a denial is an `ERR`.
        Some(NoAuth | WrongPass | NoPerm | Denied) => ErrorKind::Denied,
        // A replica, or a master that may not write: another node, or this one later, may.
        Some(ReadOnly | MasterDown | NoReplicas) => ErrorKind::Unavailable,
        _ if error.is_transient() => ErrorKind::Unavailable,
        _ => ErrorKind::Server,
    }
}

/// Why a hold can no longer be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The lease ran out: it was a fixed one, or no renewal was confirmed in time.
    Expired,
    /// The server says that the hold is gone: forced, flushed or evicted.
    Stolen,
    /// The server that has the key now does not know the hold: it was restarted, or is a replica that was promoted
    /// without it. Found by asking at once when a connection comes back or the key has another master.
    NodeGone,
    /// The longest hold that was asked for is over.
    MaxHold,
    /// [`Locks::shutdown`](crate::Locks::shutdown) was called, and released it.
    Closed,
    /// It was released here, by dropping the guard or by [`Guard::release`](crate::Guard::release).
    Released,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "the lease ran out",
            Self::Stolen => "the server no longer knows the hold",
            Self::NodeGone => {
                "the server was restarted or replaced, and the hold is not known there"
            }
            Self::MaxHold => "the longest hold is over",
            Self::Closed => "the locks were shut down",
            Self::Released => "it was released",
        })
    }
}

/// The lock was lost while [`Guard::run`](crate::Guard::run) ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    reason: LostReason,
}

impl Lost {
    pub(crate) const fn new(reason: LostReason) -> Self {
        Self { reason }
    }

    /// Why.
    #[must_use]
    pub const fn reason(&self) -> LostReason {
        self.reason
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the lock was lost: {}", self.reason)
    }
}

impl StdError for Lost {}

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
            "the lock has no expiry, nobody will ever free it (key `shop:order:42`) at 127.0.0.1:6379; find out who \
             wrote it, then call `force_unlock()`"
        );
        assert_eq!(
            Error::bad_lease("the lease").to_string(),
            "the duration cannot be used: the lease must be 10ms to 365 days"
        );
        // What a `main` prints that returns it.
        let shown = format!("{error:?}");
        assert_eq!(shown, format!("NoExpiry: {error}"));
    }

    #[test]
    fn a_clients_error_keeps_its_node_and_is_the_source() {
        let node: Arc<str> = Arc::from("10.0.0.1:6379");
        let error = Error::from_client(resp::Error::not_sent(&node, "connection refused"))
            .about("k", &Arc::from("other"));
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!((error.key(), error.node()), ("k", "10.0.0.1:6379"));
        assert!(error.source().is_some());
        assert!(error.to_string().contains("connection refused"));

        let unknown = resp::Error::unknown(&node, "reset");
        assert_eq!(
            Error::from_client(unknown.clone()).kind(),
            ErrorKind::Unknown
        );
        assert_eq!(Error::from_read(unknown).kind(), ErrorKind::Unavailable);
    }
}
