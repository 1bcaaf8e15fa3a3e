//! The simple pair that every client runs: `SET NX PX`, then compare and delete, both by EVALSHA.

use std::sync::LazyLock;

/// Takes the lock at KEYS[1] for ARGV[1], for ARGV[2] milliseconds: 1, or 0 when it is held.
pub static ACQUIRE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 else return 0 end",
    )
});

/// Deletes the lock at KEYS[1] if ARGV[1] has it: 1, or 0.
pub static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end",
    )
});

/// Both in turn, for redis-benchmark, which repeats one command: two calls are a pair.
pub static TOGGLE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end \
         if redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 else return 0 end",
    )
});

/// The lease of every candidate, in milliseconds.
pub const LEASE_MS: &str = "30000";

/// A script and its digest.
pub struct Script {
    /// The text, for SCRIPT LOAD.
    pub source: &'static str,
    /// 40 hexadecimal digits, for EVALSHA.
    pub sha: String,
}

impl Script {
    /// Prepares `source`.
    pub fn new(source: &'static str) -> Self {
        Self {
            source,
            sha: sha1_smol::Sha1::from(source).digest().to_string(),
        }
    }
}

/// The lock of one task, prepared before the measurement.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its own key: tasks never contend here.
    pub key: String,
    /// The holder's name.
    pub token: String,
}

impl Job {
    /// The job of task `n`.
    pub fn new(n: usize) -> Self {
        Self {
            key: format!("lock:order:{n:04}"),
            token: format!("7c9e6679-7425-40de-944b-e07fc1f9{n:04}"),
        }
    }
}
