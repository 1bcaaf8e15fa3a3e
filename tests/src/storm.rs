//! What the storms and their worker processes agree on.

use std::time::Duration;

/// The locks they fight over.
pub const LOCKS: [&str; 3] = ["storm:a", "storm:b", "storm:c"];

/// Tasks of a worker process.
pub const TASKS: u64 = 8;

/// The lease of every lock.
pub const LEASE: Duration = Duration::from_secs(2);

/// How long a worker waits for an answer.
pub const COMMAND_TIMEOUT: Duration = Duration::from_millis(800);
