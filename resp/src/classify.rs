//! What an error line of a server means.

use std::fmt;

/// An error line, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError {
    kind: ServerErrorKind,
}

/// The classes of server errors.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerErrorKind {
    /// Unknown script.
    NoScript,
    /// Anything else.
    Other,
}

impl ServerError {
    /// Reads the text of a `-` or `!` reply, without its marker and line end.
    #[must_use]
    pub fn parse(line: &[u8]) -> Self {
        let _ = line;
        todo!()
    }

    /// The class.
    #[must_use]
    pub const fn kind(&self) -> &ServerErrorKind {
        &self.kind
    }

    /// The first word: `WRONGTYPE`, `ERR`, or a script's own.
    #[must_use]
    pub fn code(&self) -> &str {
        todo!()
    }

    /// Whether a part of the command may have run before it failed.
    #[must_use]
    pub fn may_have_executed(&self) -> bool {
        todo!()
    }

    /// Whether the same command may succeed a little later at the same node.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        todo!()
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, _f: &mut fmt::Formatter<'_>) -> fmt::Result {
        todo!()
    }
}
