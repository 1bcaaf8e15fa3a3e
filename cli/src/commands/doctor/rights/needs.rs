//! The rights that each primitive needs: the commands that its scripts run, and the keys that they run them at.

use clap::ValueEnum;

use super::CLIENT;
use crate::look::Looker;
use crate::look::shape::{prefixed, suffixed};

/// A kind of lock, for which a user needs rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Primitive {
    Mutex,
    Fair,
    Plain,
    RwLock,
    Multi,
    Semaphore,
    Counting,
    Latch,
    Barrier,
}

/// A key or a channel, by the rule that derives it from the name of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Derived {
    Name,
    Prefixed(&'static str),
    /// `{name}:…`
    Suffixed,
}

/// The rights that a primitive needs.
pub(super) struct Needs {
    pub(super) keys: &'static [Derived],
    /// Where grants are announced; the channel of the client if it is `None`.
    pub(super) channel: Option<&'static str>,
    /// Commands that are run in scripts, each at all keys: which of them it needs where is not told apart.
    pub(super) commands: &'static [&'static str],
}

const TOKEN: Derived = Derived::Prefixed("redisson_lock_token");
const LINE: Derived = Derived::Prefixed("leasehold_line");

const MUTEX: Needs = Needs {
    keys: &[Derived::Name, TOKEN, LINE],
    channel: None,
    commands: &[
        "pttl",
        "pexpire",
        "hexists",
        "hset",
        "hdel",
        "hscan",
        "get",
        "set",
        "del",
        "exists",
        "zcard",
        "zpopmin",
        "zrevrange",
        "zadd",
        "zrank",
        "zscore",
        "zrem",
    ],
};
const FAIR: Needs = Needs {
    keys: &[Derived::Name, TOKEN, LINE],
    channel: None,
    commands: &[
        "pttl",
        "pexpire",
        "hexists",
        "hset",
        "hdel",
        "hscan",
        "get",
        "set",
        "del",
        "exists",
        "zcard",
        "zpopmin",
        "zrange",
        "zrevrange",
        "zadd",
        "zrank",
        "zscore",
        "zrem",
    ],
};
const PLAIN: Needs = Needs {
    keys: &[Derived::Name, Derived::Prefixed("leasehold_token"), LINE],
    channel: None,
    commands: &[
        "pttl",
        "pexpire",
        "get",
        "set",
        "del",
        "exists",
        "zcard",
        "zpopmin",
        "zrange",
        "zrevrange",
        "zadd",
        "zrank",
        "zscore",
        "zrem",
    ],
};
const RW_LOCK: Needs = Needs {
    keys: &[Derived::Name, Derived::Suffixed, TOKEN, LINE],
    channel: None,
    commands: &[
        "pttl",
        "pexpire",
        "hset",
        "hdel",
        "hmget",
        "hlen",
        "hscan",
        "get",
        "set",
        "del",
        "zcard",
        "zrange",
        "zrevrange",
        "zadd",
        "zrank",
        "zrem",
    ],
};
const SEMAPHORE: Needs = Needs {
    keys: &[
        Derived::Name,
        Derived::Suffixed,
        Derived::Prefixed("leasehold_cap"),
        LINE,
    ],
    channel: None,
    commands: &[
        "pttl",
        "pexpire",
        "get",
        "set",
        "zcard",
        "zcount",
        "zrange",
        "zrangebyscore",
        "zremrangebyscore",
        "zrevrange",
        "zadd",
        "zrank",
        "zscore",
        "zrem",
    ],
};
const COUNTING: Needs = Needs {
    keys: &[
        Derived::Name,
        Derived::Prefixed("leasehold_res"),
        Derived::Prefixed("leasehold_op"),
        LINE,
    ],
    channel: None,
    commands: &[
        "pttl",
        "pexpire",
        "get",
        "set",
        "zcard",
        "zrange",
        "zrangebyscore",
        "zrevrange",
        "zadd",
        "zrank",
        "zscore",
        "zrem",
    ],
};
const LATCH: Needs = Needs {
    keys: &[Derived::Name, Derived::Prefixed("leasehold_latch")],
    channel: Some("leasehold_latch"),
    commands: &[
        "pttl",
        "pexpire",
        "get",
        "set",
        "decr",
        "del",
        "zscore",
        "zadd",
        "zrem",
        "zremrangebyscore",
        "zrangebyscore",
    ],
};
const BARRIER: Needs = Needs {
    keys: &[
        Derived::Prefixed("leasehold_barrier"),
        Derived::Prefixed("leasehold_arrived"),
    ],
    channel: Some("leasehold_barrier"),
    commands: &[
        "pttl",
        "pexpire",
        "hget",
        "hset",
        "hdel",
        "hgetall",
        "zscore",
        "zadd",
        "zrem",
        "zcount",
        "zremrangebyscore",
        "zrangebyscore",
    ],
};

/// Arguments behind the key in a command that is asked for, and never run.
pub(super) fn rest(command: &str) -> &'static [&'static str] {
    match command {
        "pexpire" => &["1000"],
        "set" => &["v"],
        "hset" => &["f", "v"],
        "hget" | "hexists" | "hdel" | "hmget" => &["f"],
        "hscan" => &["0"],
        "zadd" => &["1", "m"],
        "zscore" | "zrank" | "zrem" => &["m"],
        "zrange" | "zrevrange" | "zcount" | "zrangebyscore" | "zremrangebyscore" => &["0", "1"],
        _ => &[],
    }
}

impl Derived {
    pub(super) fn of(self, name: &[u8]) -> Vec<u8> {
        match self {
            Self::Name => name.to_vec(),
            Self::Prefixed(prefix) => prefixed(prefix, name),
            Self::Suffixed => suffixed(name, "x"),
        }
    }

    /// As an ACL has it, for all names of the namespace.
    pub(super) fn pattern(self, looker: &Looker) -> String {
        let names = looker.names();
        match self {
            Self::Name => format!("{names}*"),
            Self::Prefixed(prefix) => format!("{prefix}:{{{names}*"),
            Self::Suffixed => format!("{{{names}*"),
        }
    }
}

impl Needs {
    /// The channel of grants, or of what the primitive announces.
    pub(super) fn channel(&self, name: &[u8], sharded: bool) -> Vec<u8> {
        match (self.channel, sharded) {
            (Some(prefix), _) => prefixed(prefix, name),
            (None, false) => format!("leasehold:{CLIENT}").into_bytes(),
            (None, true) => [&LINE.of(name), &b":"[..], CLIENT.as_bytes()].concat(),
        }
    }

    pub(super) fn channel_pattern(&self, looker: &Looker, sharded: bool) -> String {
        match (self.channel, sharded) {
            (Some(prefix), _) => Derived::Prefixed(prefix).pattern(looker),
            (None, true) => LINE.pattern(looker),
            (None, false) => "leasehold:*".into(),
        }
    }
}

impl Primitive {
    pub(super) const fn needs(self) -> Needs {
        match self {
            Self::Mutex => MUTEX,
            Self::Fair | Self::Multi => FAIR,
            Self::Plain => PLAIN,
            Self::RwLock => RW_LOCK,
            Self::Semaphore => SEMAPHORE,
            Self::Counting => COUNTING,
            Self::Latch => LATCH,
            Self::Barrier => BARRIER,
        }
    }
}
