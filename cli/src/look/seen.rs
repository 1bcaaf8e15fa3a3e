//! A lock as it was seen on a server. Pure.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The kinds of locks that can be told apart on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    /// A hash with one holder: fair or not, ours or Redisson's.
    Mutex,
    ReadWrite,
    /// A string, as other libraries have it.
    Plain,
    Semaphore,
    /// A semaphore without owners. It is told from other numbers only while others wait for it.
    Counting,
    Latch,
    Barrier,
}

/// A lock, as its server had it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) key: Vec<u8>,
    /// The server that has it.
    pub(crate) node: Arc<str>,
    pub(crate) kind: Kind,
    /// `read` or `write` of a read-write lock that is held.
    pub(crate) mode: Option<String>,
    pub(crate) lease: Lease,
    pub(crate) holders: Vec<Held>,
    /// How many hold it, if not all of them were read.
    pub(crate) holding: u64,
    /// The latest fencing token, if it has one.
    pub(crate) token: Option<u64>,
    /// By the token, which is a time of the server; `None` where there is none, as with Redisson.
    pub(crate) held_for: Option<Duration>,
    /// Processes in line.
    pub(crate) waiting: u64,
    /// How long the first in line has waited.
    pub(crate) oldest_wait: Option<Duration>,
    /// Permits that are free, parties that are missing, or the count of a latch.
    pub(crate) left: Option<i64>,
    /// Permits or parties in all.
    pub(crate) all: Option<i64>,
    /// The first in line, where they were asked for.
    pub(crate) tickets: Vec<String>,
}

/// The rest of the lease of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lease {
    Left(Duration),
    /// The key has no expiry.
    Endless,
    /// There is no such key.
    None,
}

/// A holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) id: String,
    pub(crate) count: u64,
    /// Of its own lease, where it has one.
    pub(crate) remaining: Option<Duration>,
}

impl Seen {
    pub(crate) fn is_held(&self) -> bool {
        self.holding > 0
    }

    /// The kind with the mode, for people.
    pub(crate) fn kind_text(&self) -> String {
        match &self.mode {
            Some(mode) => mode.clone(),
            None => self.kind.to_string(),
        }
    }

    /// Whether a lock is held without a time limit: nobody frees it if its holder dies.
    pub(crate) fn never_expires(&self) -> bool {
        let is_lease = matches!(self.kind, Kind::Mutex | Kind::ReadWrite | Kind::Plain);
        is_lease && self.is_held() && self.lease == Lease::Endless
    }
}

impl Held {
    /// The client that its id begins with: a UUID, or of a permit `<start>…<end>` of one.
    pub(crate) fn client(&self) -> &str {
        self.id
            .split_once(':')
            .map_or(&self.id, |(client, _)| client)
    }
}

impl Lease {
    /// Of an answer to `PTTL`.
    pub(crate) fn of_pttl(ms: i64) -> Self {
        match ms {
            -1 => Self::Endless,
            ms => u64::try_from(ms).map_or(Self::None, |ms| Self::Left(Duration::from_millis(ms))),
        }
    }

    pub(crate) const fn left(self) -> Option<Duration> {
        match self {
            Self::Left(left) => Some(left),
            Self::Endless | Self::None => None,
        }
    }
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::ReadWrite => "rw-lock",
            Self::Plain => "plain",
            Self::Semaphore => "semaphore",
            Self::Counting => "counting",
            Self::Latch => "latch",
            Self::Barrier => "barrier",
        }
    }

    /// The keys and channels are Redisson's, for all but these.
    pub(crate) const fn layout(self) -> &'static str {
        match self {
            Self::Plain => "string, as redis-py and redsync",
            Self::Barrier => "leasehold",
            _ => "redisson",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
