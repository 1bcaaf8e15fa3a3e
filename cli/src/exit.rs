//! Exit codes, after sysexits.h, and the failures that lead to them.

use std::io;

use leasehold::{Error, ErrorKind};

/// It was done.
pub(crate) const OK: u8 = 0;
/// The lock is not held any more: of `unlock`, `extend` and `verify`.
pub(crate) const GONE: u8 = 1;
/// The arguments cannot be used (`EX_USAGE`).
pub(crate) const USAGE: u8 = 64;
/// The key or the answer is not what it should be (`EX_DATAERR`).
pub(crate) const DATA: u8 = 65;
/// The server could not be reached or does not serve (`EX_UNAVAILABLE`).
pub(crate) const UNAVAILABLE: u8 = 69;
/// The system refused something, such as a process (`EX_OSERR`).
pub(crate) const SYSTEM: u8 = 71;
/// Others have the lock (`EX_TEMPFAIL`).
pub(crate) const BUSY: u8 = 75;
/// The lock was lost while it was needed (`EX_PROTOCOL`, the next free one).
pub(crate) const LOST: u8 = 76;
/// The server does not let this user in, or not do this (`EX_NOPERM`).
pub(crate) const DENIED: u8 = 77;

/// The command was found, and cannot be executed, as shells have it.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command was not found, as shells have it.
pub(crate) const NOT_FOUND: u8 = 127;

/// The code for an end by this signal, as shells have it.
pub(crate) fn of_signal(number: i32) -> u8 {
    u8::try_from(number).map_or(u8::MAX, |number| number.saturating_add(128))
}

/// A failure: its exit code, and the message for people.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// One word for programs.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self {
            code: USAGE,
            reason: "usage",
            message: message.into(),
        }
    }

    pub(crate) fn busy(message: impl Into<String>) -> Self {
        Self {
            code: BUSY,
            reason: "busy",
            message: message.into(),
        }
    }

    pub(crate) fn cannot_run(code: u8, message: impl Into<String>) -> Self {
        Self {
            code,
            reason: "cannot-run",
            message: message.into(),
        }
    }

    pub(crate) fn lost(message: impl Into<String>) -> Self {
        Self {
            code: LOST,
            reason: "lost",
            message: message.into(),
        }
    }

    /// A result that could not be written.
    pub(crate) fn of_output(error: io::Error) -> Self {
        Self::system(format!("cannot write: {error}"))
    }

    pub(crate) fn system(message: impl Into<String>) -> Self {
        Self {
            code: SYSTEM,
            reason: "system",
            message: message.into(),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (code, reason) = of(error.kind());
        Self {
            code,
            reason,
            message: error.to_string(),
        }
    }
}

/// The exit code for an error of the library, and the word for it. The only place where they are brought together.
const fn of(kind: ErrorKind) -> (u8, &'static str) {
    match kind {
        ErrorKind::Lost => (LOST, "lost"),
        ErrorKind::Denied => (DENIED, "denied"),
        ErrorKind::BadName
        | ErrorKind::BadLease
        | ErrorKind::BadCount
        | ErrorKind::Config
        | ErrorKind::CapacityDisagrees { .. }
        | ErrorKind::PartiesDisagree
        | ErrorKind::Nested => (USAGE, "usage"),
        ErrorKind::WrongType | ErrorKind::NoExpiry | ErrorKind::Protocol | ErrorKind::Broken => {
            (DATA, "data")
        }
        ErrorKind::Thread | ErrorKind::Forked => (SYSTEM, "system"),
        // Unavailable, Unknown, NotReplicated, Server, Closed, and what may come.
        _ => (UNAVAILABLE, "unavailable"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_errors_have_the_documented_codes() {
        for (kind, code) in [
            (ErrorKind::Lost, 76),
            (ErrorKind::Denied, 77),
            (ErrorKind::Unavailable, 69),
            (ErrorKind::Unknown, 69),
            (ErrorKind::Config, 64),
            (ErrorKind::BadName, 64),
            (ErrorKind::WrongType, 65),
        ] {
            assert_eq!(of(kind).0, code, "{kind:?}");
        }
    }
}
