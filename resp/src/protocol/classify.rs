//! The classification of error replies.
//!
//! The first word alone does not tell. Redis 6.2 wraps whatever fails inside a script in
//! `ERR Error running script (call to f_<sha>): @user_script:1: `, later servers append ` script: <sha>, on
//! @user_script:1.`, and some refusals have no code but `ERR`. So a line is taken apart first, and only then looked up:
//! by its code, and for `ERR` by phrases that all versions of Redis and Valkey share. Never by the server's name, which
//! Valkey replaces.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod kind;
mod line;
mod redact;

use std::fmt::{self, Write};

pub use kind::ServerErrorKind;
use line::Line;
use redact::{without_arguments, without_secret};

/// Bytes of an error line that are read; a hostile peer may send many more.
const LONGEST: usize = 4 << 10;

/// An error line, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError {
    kind: ServerErrorKind,
    code: Box<str>,
    message: Box<str>,
    in_script: bool,
}

impl ServerError {
    /// Reads the text of a `-` or `!` reply, without its marker and line end.
    ///
    /// Servers do not promise UTF-8 (an unknown command is echoed as it came); what is not becomes U+FFFD. What is behind
    /// the first 4 KiB is ignored, and so are the arguments that a server echoes of a command that it does not know.
    #[must_use]
    pub fn parse(line: &[u8]) -> Self {
        let text = String::from_utf8_lossy(line.get(..LONGEST).unwrap_or(line));
        let Line {
            code,
            message,
            in_script,
        } = Line::read(&text);
        Self {
            kind: ServerErrorKind::of(code, message, in_script),
            code: code.into(),
            message: without_arguments(message).into(),
            in_script,
        }
    }

    /// The same without `secret`, in case the server echoes it. The class stays.
    #[must_use]
    pub(crate) fn without(mut self, secret: &str) -> Self {
        self.code = without_secret(&self.code, secret).into();
        self.message = without_secret(&self.message, secret).into();
        self
    }

    /// The class.
    #[must_use]
    pub const fn kind(&self) -> &ServerErrorKind {
        &self.kind
    }

    /// The first word, if it is a code: `WRONGTYPE`, `ERR`, or a script's own in capitals. Otherwise nothing.
    ///
    /// Errors that Redis 6.2 wraps are unwrapped: the code is that of the error inside.
    #[must_use]
    pub fn code(&self) -> &str {
        &self.code
    }

    /// The text behind the code, without the suffix that servers add to errors raised in a script.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether it was raised while a script ran, as far as the line tells.
    ///
    /// An error that a script *returns*, as `return redis.error_reply(..)` and `return redis.pcall(..)` do, looks like
    /// any other.
    #[must_use]
    pub const fn in_script(&self) -> bool {
        self.in_script
    }

    /// Whether a part of the command may have run before it failed.
    ///
    /// `false` is a promise for the servers' own refusals. (A script that returns `MOVED` in its own name can break it.)
    #[must_use]
    pub const fn may_have_executed(&self) -> bool {
        self.kind.may_have_executed(self.in_script)
    }

    /// Whether another node is meant: the slot, or the role of master, is elsewhere.
    #[must_use]
    pub const fn is_redirect(&self) -> bool {
        matches!(
            self.kind,
            ServerErrorKind::Moved { .. }
                | ServerErrorKind::Ask { .. }
                | ServerErrorKind::ReadOnly
                | ServerErrorKind::NonLocalKey
        )
    }

    /// Whether the same command, if it may be repeated at all, may succeed a little later at the same node, with
    /// nobody doing anything about it.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        self.kind.is_transient()
    }
}

/// The code and the message, on one line: servers echo what they were sent, control characters too.
impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.code)?;
        if !self.code.is_empty() && !self.message.is_empty() {
            f.write_str(" ")?;
        }
        for c in self.message.chars() {
            f.write_char(if c.is_control() { ' ' } else { c })?;
        }
        if self.in_script {
            f.write_str(" (in a script)")
        } else {
            Ok(())
        }
    }
}
