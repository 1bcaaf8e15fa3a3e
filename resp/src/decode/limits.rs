//! What a peer may make this side do, and what is said when it tries more.

use std::fmt;

/// What a hostile or broken peer may make this side do at most.
///
/// Nothing is allocated for what a header merely claims, so these bound what a peer can do by really sending it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Aggregates inside each other, attributes and pushes among them. Redis itself nests six deep at most
    /// (`COMMAND DOCS`), a user's script may answer thousands.
    pub depth: usize,
    /// Bytes of one bulk string, or of all chunks of a streamed one.
    pub bulk: u64,
    /// Elements of one aggregate (pairs, of a map).
    pub elements: u64,
    /// Bytes of a header line or of a scalar, without its type byte and line end.
    pub line: usize,
    /// Bytes of one whole frame.
    pub frame: usize,
}

impl Default for Limits {
    /// The server's own: 512 MiB for a bulk string and 64 KiB for a line; and a frame twice as large as its largest
    /// string.
    fn default() -> Self {
        Self {
            depth: 128,
            bulk: 512 << 20,
            elements: u32::MAX as u64,
            line: 64 << 10,
            frame: 1 << 30,
        }
    }
}

/// Bytes that are not the protocol, or exceed a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolError {
    kind: ProtocolErrorKind,
    /// The offending byte, where one byte is to blame.
    byte: Option<u8>,
}

/// What was wrong with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProtocolErrorKind {
    /// No type begins with this byte.
    UnknownType,
    /// Something else than CR LF where only that may stand, or half of one inside a line.
    LineEnd,
    /// A line above [`Limits::line`].
    LineTooLong,
    /// A length or count that is not a plain decimal number, or negative where that has no meaning.
    Length,
    /// A string above [`Limits::bulk`].
    BulkTooLong,
    /// An aggregate above [`Limits::elements`].
    TooManyElements,
    /// Aggregates nested deeper than [`Limits::depth`].
    TooDeep,
    /// A frame above [`Limits::frame`].
    FrameTooLong,
    /// `:` and something that is not a 64-bit integer.
    Integer,
    /// `,` and something that is not a number.
    Double,
    /// `(` and something that is not digits.
    BigNumber,
    /// `#` and something else than `t` or `f`.
    Boolean,
    /// `=` without three bytes of format and a colon.
    Verbatim,
    /// `;` or `.` outside of a stream, or something else where a stream goes on.
    Stream,
    /// A streamed map that ended behind a key.
    OddMap,
    /// An attribute with nothing behind it to describe.
    Attribute,
    /// A push that is empty or whose first element is not a string.
    Push,
}

impl ProtocolError {
    pub(super) const fn new(kind: ProtocolErrorKind) -> Self {
        Self { kind, byte: None }
    }

    pub(super) const fn at(kind: ProtocolErrorKind, byte: u8) -> Self {
        Self {
            kind,
            byte: Some(byte),
        }
    }

    /// What was wrong.
    #[must_use]
    pub const fn kind(&self) -> ProtocolErrorKind {
        self.kind
    }

    /// The offending byte, where one byte is to blame.
    #[must_use]
    pub const fn byte(&self) -> Option<u8> {
        self.byte
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            ProtocolErrorKind::UnknownType => "no RESP type begins with this byte",
            ProtocolErrorKind::LineEnd => "CR LF expected",
            ProtocolErrorKind::LineTooLong => "a line exceeds the limit",
            ProtocolErrorKind::Length => "invalid length",
            ProtocolErrorKind::BulkTooLong => "a string exceeds the limit",
            ProtocolErrorKind::TooManyElements => "an aggregate exceeds the limit of elements",
            ProtocolErrorKind::TooDeep => "aggregates are nested too deep",
            ProtocolErrorKind::FrameTooLong => "a reply exceeds the limit",
            ProtocolErrorKind::Integer => "invalid integer",
            ProtocolErrorKind::Double => "invalid double",
            ProtocolErrorKind::BigNumber => "invalid big number",
            ProtocolErrorKind::Boolean => "invalid boolean",
            ProtocolErrorKind::Verbatim => "invalid verbatim string",
            ProtocolErrorKind::Stream => "misplaced part of a streamed value",
            ProtocolErrorKind::OddMap => "a streamed map ended behind a key",
            ProtocolErrorKind::Attribute => "an attribute without a value behind it",
            ProtocolErrorKind::Push => "a push without a kind",
        })?;
        match self.byte {
            Some(byte) => write!(f, " (found '{}')", byte.escape_ascii()),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ProtocolError {}
