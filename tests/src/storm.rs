//! What the storms and their worker processes agree on.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The locks they fight over.
pub const LOCKS: [&str; 3] = ["storm:a", "storm:b", "storm:c"];

/// Tasks of a worker process.
pub const TASKS: u64 = 8;

/// The lease of every lock.
pub const LEASE: Duration = Duration::from_secs(2);

/// How long a worker waits for an answer.
pub const COMMAND_TIMEOUT: Duration = Duration::from_millis(800);

/// When a lock counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// As soon as the master has it: a failover may forget it.
    Fast,
    /// When all replicas have confirmed it.
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

/// A wish to a worker process, in a file that it takes away when it grants it: to keep its next lock for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Linger {
    /// How long, if nothing happens to it.
    pub time: Duration,
    /// Which lock; any if empty.
    pub key: String,
}

impl Linger {
    /// The file with the wish to the process `pid`.
    #[must_use]
    pub fn file(dir: &Path, pid: u32) -> PathBuf {
        dir.join(format!("linger-{pid}"))
    }

    /// Writes it. Whoever reads it meanwhile sees all of it or nothing.
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

    /// Takes the wish away and says how long, if there is one that `key` grants.
    #[must_use]
    pub fn take(file: &Path, key: &str) -> Option<Duration> {
        let text = std::fs::read_to_string(file).ok()?;
        let (millis, wanted) = text.split_once(' ')?;
        let granted = wanted.is_empty() || wanted == key;
        (granted && std::fs::remove_file(file).is_ok()).then_some(())?;
        millis.parse().ok().map(Duration::from_millis)
    }
}
