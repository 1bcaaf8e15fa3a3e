//! Settings that the storms and their worker processes share.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The contended locks.
pub const LOCKS: [&str; 3] = ["storm:a", "storm:b", "storm:c"];

/// Of the storms of the whole family: a fair mutex, a read-write lock, a semaphore with so many permits, locks that are taken
/// together, a plain mutex, a lock at the majority of a few servers beside, and a barrier for so many parties.
pub const FAIR: &str = "family:fair";
/// See [`FAIR`].
pub const RW: &str = "family:rw";
/// See [`FAIR`].
pub const POOL: &str = "family:pool";
/// See [`FAIR`].
pub const PERMITS: u32 = 4;
/// See [`FAIR`]. Two are in one hash slot.
pub const PARTS: [&str; 3] = ["family:{m}:a", "family:{m}:b", "family:c"];
/// See [`FAIR`].
pub const PLAIN: &str = "family:plain";
/// See [`FAIR`]. At the servers beside.
pub const RED: &str = "family:red";
/// See [`FAIR`].
pub const BARRIER: &str = "family:barrier";
/// See [`FAIR`].
pub const PARTIES: u32 = 3;

/// Tasks of a worker process.
pub const TASKS: u64 = 8;

/// The lease of every lock.
pub const LEASE: Duration = Duration::from_secs(2);

/// Command timeout of a worker.
pub const COMMAND_TIMEOUT: Duration = Duration::from_millis(800);

/// Tokens that the library reserves for a hold that is passed on within its process.
pub const BLOCK: u64 = 64;

/// Replication mode of the locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A lock counts as soon as the master has it: a failover may lose it.
    Fast,
    /// A lock counts when all replicas have confirmed it.
    Safe,
}

impl Mode {
    /// The mode of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Fast, Self::Safe]
            .into_iter()
            .find(|mode| mode.to_string() == name)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fast => "fast",
            Self::Safe => "safe",
        })
    }
}

/// An instruction to a worker process to keep its next lock for a while, in a file that the worker
/// removes when it follows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Linger {
    /// Time to keep the lock, unless it is lost.
    pub time: Duration,
    /// The lock; any if empty.
    pub key: String,
}

impl Linger {
    /// The file with the instruction to the process `pid`.
    #[must_use]
    pub fn file(dir: &Path, pid: u32) -> PathBuf {
        dir.join(format!("linger-{pid}"))
    }

    /// Writes it atomically: a reader sees all of it or nothing.
    ///
    /// # Panics
    ///
    /// When the directory cannot be written.
    pub fn write(&self, file: &Path) {
        let whole = file.with_extension("new");
        std::fs::write(&whole, format!("{} {}", self.time.as_millis(), self.key))
            .expect("the directory is writable");
        std::fs::rename(whole, file).expect("the directory is writable");
    }

    /// Removes the instruction and returns the time, if there is one that applies to `key`.
    #[must_use]
    pub fn take(file: &Path, key: &str) -> Option<Duration> {
        let text = std::fs::read_to_string(file).ok()?;
        let (millis, wanted) = text.split_once(' ')?;
        let granted = wanted.is_empty() || wanted == key;
        (granted && std::fs::remove_file(file).is_ok()).then_some(())?;
        millis.parse().ok().map(Duration::from_millis)
    }
}

/// An instruction to a worker process to give up all that it waits for now, in a file that the
/// worker removes when it begins.
#[derive(Debug, Clone, Copy)]
pub struct GiveUp;

impl GiveUp {
    /// The file with the instruction to the process `pid`.
    #[must_use]
    pub fn file(dir: &Path, pid: u32) -> PathBuf {
        dir.join(format!("give-up-{pid}"))
    }
}
