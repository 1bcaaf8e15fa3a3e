//! The kinds of errors: how each is told, and which of the server's errors it stands for.

use leasehold_resp as resp;
use leasehold_resp::ServerErrorKind::{
    CrossSlot, Denied, MasterDown, Moved, NoAuth, NoPerm, NoReplicas, ReadOnly, WrongPass,
    WrongType,
};

/// The kinds of [`Error`](crate::Error).
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// use leasehold::ErrorKind;
///
/// match locks.mutex("order:42").try_lock().await {
///     Ok(Some(guard)) => drop(guard), // … ours …
///     Ok(None) => println!("others have it"),
///     Err(error) => match error.kind() {
///         ErrorKind::Unavailable | ErrorKind::Unknown => eprintln!("{error}"), // and try again
///         _ => return Err(error.into()),                                       // see to it
///     },
/// }
/// # Ok(())
/// # });
/// ```
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
    /// The lock has no expiry on the server, so it is never freed by itself. This library never writes such a lock.
    NoExpiry,
    /// What is waited for will not happen: a party of the barrier's generation died, or the latch vanished before it was counted
    /// down.
    Broken,
    /// Parties have arrived at the barrier that expect another number of them.
    PartiesDisagree,
    /// The name of a lock or the namespace cannot be used.
    BadName,
    /// A lease or a longest hold that cannot be used.
    BadLease,
    /// A count of a latch, a number of parties or of permits that cannot be used.
    BadCount,
    /// The server has another number of permits in all for this semaphore than the handle says. Nothing was granted. A user of
    /// it was given another number, or Redisson's `addPermits` or `setPermits` changed it.
    CapacityDisagrees {
        /// The number on the server.
        server: u32,
        /// The number of the handle.
        yours: u32,
    },
    /// The same [`Owner`](crate::Owner) holds the lock already, on weaker terms than were asked for.
    Nested,
    /// The URL or another setting cannot be used; or TLS fails for a reason that lasts, such as a refused certificate.
    Config,
    /// The server does not let this user in, or not do this.
    Denied,
    /// Unexpected reply: the peer is not a Redis or Valkey server, or something changes bytes in between.
    Protocol,
    /// The server refused for a reason of its own.
    Server,
    /// The thread that renews leases could not be started.
    Thread,
    /// [`Locks::shutdown`](crate::Locks::shutdown) was called.
    Closed,
    /// This process was forked from the one that the locks belong to. Nothing was done.
    Forked,
}

impl ErrorKind {
    /// The first clause of the message, with `node` where that matters.
    pub(super) fn sentence(self, node: &str) -> String {
        let (asked, node) = match node {
            "" => (false, "the server"),
            node => (true, node),
        };
        match self {
            Self::Lost => format!("the lock at {node} was lost"),
            Self::Unavailable => {
                format!("{node} could not be reached or does not serve, nothing was done")
            }
            Self::Unknown => format!("no answer came from {node}, the outcome is unknown"),
            Self::NotReplicated => {
                format!("too few replicas of {node} confirmed the lock, it was given back")
            }
            Self::WrongType => format!("the key at {node} holds something that is not a lock"),
            Self::NoExpiry => {
                format!("the lock at {node} has no expiry, it is never freed by itself")
            }
            Self::Broken => format!("what is waited for at {node} will not happen"),
            Self::PartiesDisagree => {
                format!("the parties of the barrier at {node} disagree on how many they are")
            }
            Self::BadName => "the name cannot be used".into(),
            Self::BadLease => "the duration cannot be used".into(),
            Self::BadCount => "the count cannot be used".into(),
            Self::CapacityDisagrees { .. } => {
                format!("the semaphore at {node} has another number of permits")
            }
            Self::Nested => "the owner holds the lock already, on weaker terms".into(),
            Self::Config if asked => format!("the configuration does not work with {node}"),
            Self::Config => "the configuration cannot be used".into(),
            Self::Denied => format!("permission denied by {node}"),
            Self::Protocol => format!("unexpected reply from {node}"),
            Self::Server => format!("{node} refused"),
            Self::Thread => "the thread that renews leases could not be started".into(),
            Self::Closed => "these locks were shut down".into(),
            Self::Forked => {
                "these locks belong to the process that this one was forked from, nothing was done"
                    .into()
            }
        }
    }

    /// The first clause where a change that is no hold failed like this, if that is another one.
    pub(super) fn sentence_of_change(self, node: &str) -> Option<String> {
        let node = if node.is_empty() { "the server" } else { node };
        (self == Self::NotReplicated).then(|| {
            format!("too few replicas of {node} confirmed the change, which their master has")
        })
    }

    /// Advice at the end of the message; empty where it is clear or depends.
    pub(super) const fn advice(self, is_of_change: bool) -> &'static str {
        match self {
            Self::Unknown if is_of_change => "it may have been done: look before you repeat it",
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
            Self::Nested => "ask for them where the owner locks it first",
            Self::Denied => {
                "check user and password, and the user's rights against the section ACL of the guide `operating`"
            }
            Self::Protocol => "check that the URL is the one of a Redis or Valkey server",
            Self::Thread => "check the limits of this process",
            Self::Forked => "connect anew in this process",
            Self::CapacityDisagrees { .. } => {
                "use the same number everywhere, or change it there with `set_permits()`"
            }
            Self::Broken => "begin anew once all who take part are up",
            Self::PartiesDisagree => "use the same number everywhere, or another name",
            Self::BadName
            | Self::BadLease
            | Self::BadCount
            | Self::Config
            | Self::Server
            | Self::Closed => "",
        }
    }

    /// Whether it comes from a server, or from the way to one.
    pub(super) const fn is_of_server(self) -> bool {
        !matches!(
            self,
            Self::BadName
                | Self::BadLease
                | Self::BadCount
                | Self::Nested
                | Self::Config
                | Self::Thread
                | Self::Closed
                | Self::Forked
        )
    }

    /// The kind of the client's error about a request that changes something.
    pub(super) fn of(error: &resp::Error) -> Self {
        match error.kind() {
            resp::ErrorKind::NotSent => Self::Unavailable,
            resp::ErrorKind::Unknown | resp::ErrorKind::Timeout => Self::Unknown,
            resp::ErrorKind::Protocol => Self::Protocol,
            resp::ErrorKind::Closed => Self::Closed,
            resp::ErrorKind::Config => Self::Config,
            resp::ErrorKind::Server => Self::of_server(error),
            _ => Self::Server,
        }
    }

    fn of_server(error: &resp::Error) -> Self {
        match error.as_server().map(resp::ServerError::kind) {
            Some(WrongType) => Self::WrongType,
            // By class, not by code: inside a script a denial is an `ERR`.
            Some(NoAuth | WrongPass | NoPerm | Denied) => Self::Denied,
            // A replica, or a master that may not write: another node, or this one later, may.
            Some(ReadOnly | MasterDown | NoReplicas) => Self::Unavailable,
            _ if error.is_transient() => Self::Unavailable,
            _ => Self::Server,
        }
    }
}

/// Advice on `error`, where its kind does not tell it well enough.
pub(super) fn advice_on(error: &resp::Error) -> Option<&'static str> {
    let server = error.as_server()?;
    let message = error.detail();
    Some(match server.kind() {
        NoAuth => "give user and password in the URL: redis://user:password@host",
        WrongPass => "check user and password in the URL",
        Denied if message.contains("protected mode") => {
            "it accepts clients of its own machine only while it has no password: set one (`requirepass`, or a user with one)"
        }
        Moved { .. } | CrossSlot => "it belongs to a cluster: use redis-cluster://host,host",
        _ => return None,
    })
}
