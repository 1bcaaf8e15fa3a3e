//! Events from a worker to the orchestrator: one line of text each, on the worker's standard
//! output.

use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

/// An event of a worker. Times are microseconds of the wall clock, which the processes of one
/// machine share; locks are indices into [`LOCKS`](crate::LOCKS).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A task got a lock, after waiting `waited` microseconds for it.
    Holding {
        lock: usize,
        task: usize,
        token: u64,
        at: u64,
        waited: u64,
    },
    /// The holder follows the order to linger: it has read the ledger, not written it, and waits.
    Lingering {
        lock: usize,
        task: usize,
        token: u64,
    },
    /// The ledger accepted the update; the lock is released right after `at`.
    Releasing {
        lock: usize,
        task: usize,
        token: u64,
        at: u64,
    },
    /// The ledger refused the write: it has seen a newer token. `held` is the guard's `is_held`.
    Refused {
        lock: usize,
        task: usize,
        token: u64,
        held: bool,
    },
    /// A lock could not be taken, or the ledger not be used.
    Trouble(String),
}

/// Microseconds since 1970.
pub(crate) fn micros() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Holding {
                lock,
                task,
                token,
                at,
                waited,
            } => write!(f, "holding {lock} {task} {token} {at} {waited}"),
            Self::Lingering { lock, task, token } => write!(f, "lingering {lock} {task} {token}"),
            Self::Releasing {
                lock,
                task,
                token,
                at,
            } => write!(f, "releasing {lock} {task} {token} {at}"),
            Self::Refused {
                lock,
                task,
                token,
                held,
            } => write!(f, "refused {lock} {task} {token} {}", u8::from(*held)),
            Self::Trouble(text) => write!(f, "trouble {}", text.replace('\n', " ")),
        }
    }
}

impl FromStr for Event {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let bad = || format!("a worker said {line:?}");
        let (kind, rest) = line.split_once(' ').ok_or_else(bad)?;
        if kind == "trouble" {
            return Ok(Self::Trouble(rest.to_owned()));
        }
        let numbers: Vec<u64> = rest
            .split(' ')
            .map(str::parse)
            .collect::<Result<_, _>>()
            .map_err(|_| bad())?;
        let small = |n: u64| usize::try_from(n).map_err(|_| bad());
        match (kind, &numbers[..]) {
            ("holding", &[lock, task, token, at, waited]) => Ok(Self::Holding {
                lock: small(lock)?,
                task: small(task)?,
                token,
                at,
                waited,
            }),
            ("lingering", &[lock, task, token]) => Ok(Self::Lingering {
                lock: small(lock)?,
                task: small(task)?,
                token,
            }),
            ("releasing", &[lock, task, token, at]) => Ok(Self::Releasing {
                lock: small(lock)?,
                task: small(task)?,
                token,
                at,
            }),
            ("refused", &[lock, task, token, held]) => Ok(Self::Refused {
                lock: small(lock)?,
                task: small(task)?,
                token,
                held: held != 0,
            }),
            _ => Err(bad()),
        }
    }
}
