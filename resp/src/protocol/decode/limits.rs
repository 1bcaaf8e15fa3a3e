//! The limits of the decoder, and the errors of input that is invalid or exceeds them.

/// Limits on what a hostile or broken peer can make the decoder do.
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
    /// Bytes of memory for the elements of one frame, besides the frame itself: about 90 for each element.
    pub memory: usize,
}

impl Limits {
    /// Those of a connection until its handshake is over: the peer may be anything.
    pub const HANDSHAKE: Self = Self {
        depth: 16,
        bulk: 32 << 10,
        elements: 4 << 10,
        line: 16 << 10,
        frame: 64 << 10,
        memory: 256 << 10,
    };

    /// Those of a connection. The largest legitimate replies are maps of clusters whose slots are all fragmented, 16,384
    /// ranges with some replicas each: 5 MiB and 300,000 elements.
    pub const CONNECTION: Self = Self {
        depth: 128,
        bulk: 8 << 20,
        elements: 1 << 20,
        line: 64 << 10,
        frame: 9 << 20,
        memory: 32 << 20,
    };
}

impl Default for Limits {
    /// The server's own: 512 MiB for a bulk string and 64 KiB for a line; a frame twice as large as its largest string;
    /// and 160 MiB for elements, nearly two million of them.
    fn default() -> Self {
        Self {
            depth: 128,
            bulk: 512 << 20,
            elements: u32::MAX as u64,
            line: 64 << 10,
            frame: 1 << 30,
            memory: 160 << 20,
        }
    }
}

/// Bytes that are not the protocol, or exceed a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}{}", found(*.byte))]
pub struct ProtocolError {
    kind: ProtocolErrorKind,
    /// The offending byte, where one byte is to blame.
    byte: Option<u8>,
}

/// The kinds of [`ProtocolError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolErrorKind {
    /// No type begins with this byte.
    #[error("no RESP type begins with this byte")]
    UnknownType,
    /// Something else than CR LF where only that may stand, or half of one inside a line.
    #[error("CR LF expected")]
    LineEnd,
    /// A line above [`Limits::line`].
    #[error("a line exceeds the limit")]
    LineTooLong,
    /// A length or count that is not a plain decimal number, or negative where that has no meaning.
    #[error("invalid length")]
    Length,
    /// A string above [`Limits::bulk`].
    #[error("a string exceeds the limit")]
    BulkTooLong,
    /// An aggregate above [`Limits::elements`].
    #[error("an aggregate exceeds the limit of elements")]
    TooManyElements,
    /// Aggregates nested deeper than [`Limits::depth`].
    #[error("aggregates are nested too deep")]
    TooDeep,
    /// A frame whose elements take more than [`Limits::memory`].
    #[error("the elements of a reply exceed the limit of memory")]
    TooMuchMemory,
    /// A frame above [`Limits::frame`].
    #[error("a reply exceeds the limit")]
    FrameTooLong,
    /// `:` and something that is not a 64-bit integer.
    #[error("invalid integer")]
    Integer,
    /// `,` and something that is not a number.
    #[error("invalid double")]
    Double,
    /// `(` and something that is not digits.
    #[error("invalid big number")]
    BigNumber,
    /// `#` and something else than `t` or `f`.
    #[error("invalid boolean")]
    Boolean,
    /// `=` without three bytes of format and a colon.
    #[error("invalid verbatim string")]
    Verbatim,
    /// `;` or `.` outside of a stream, or something else where a stream goes on.
    #[error("misplaced part of a streamed value")]
    Stream,
    /// A streamed map that ended behind a key.
    #[error("a streamed map ended behind a key")]
    OddMap,
    /// An attribute with nothing behind it to describe.
    #[error("an attribute without a value behind it")]
    Attribute,
    /// A push that is empty or whose first element is not a string.
    #[error("a push without a kind")]
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

    /// The kind of the error.
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

fn found(byte: Option<u8>) -> String {
    byte.map_or_else(String::new, |byte| {
        format!(" (found '{}')", byte.escape_ascii())
    })
}
