//! Replies as values.

use bytes::Bytes;

/// One reply, or one element of one.
///
/// RESP2 and RESP3 nulls (`_`, `$-1`, `*-1` and the other negative lengths) are all [`Value::Null`]. Streamed forms
/// arrive as the value they add up to. Attributes are checked and dropped: a wrapper around some values, but not
/// around others, would break every conversion. Pushes are not replies, so they are not values: see
/// [`Frame`](crate::Frame).
///
/// The byte strings of one reply may share one allocation; keeping one of them keeps the reply's bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// No value.
    Null,
    /// `#t` or `#f`.
    Boolean(bool),
    /// `:` and 64 bits.
    Integer(i64),
    /// `,` with infinities and not-a-number.
    Double(f64),
    /// `(`: the digits with their sign, as sent.
    BigNumber(Bytes),
    /// `+`: a short text without line ends. Servers do not promise UTF-8.
    Simple(Bytes),
    /// `$`: any bytes.
    Bulk(Bytes),
    /// `=`: text and the three bytes that name its format, `txt` or `mkd` mostly.
    Verbatim {
        /// The three bytes before the colon.
        format: [u8; 3],
        /// The text behind it.
        text: Bytes,
    },
    /// `-` or `!`: the whole line, code first. [`ServerError::parse`](crate::ServerError::parse) reads it.
    Error(Bytes),
    /// `*`.
    Array(Vec<Self>),
    /// `~`, in the order sent; a server may repeat elements and nest aggregates.
    Set(Vec<Self>),
    /// `%`, in the order sent; keys may be of any type and may repeat.
    Map(Vec<(Self, Self)>),
}

impl Value {
    /// The integer, of an integer only.
    #[must_use]
    pub const fn as_int(&self) -> Option<i64> {
        match self {
            Self::Integer(n) => Some(*n),
            _ => None,
        }
    }

    /// The bytes of a simple, bulk or verbatim string or of a big number.
    #[must_use]
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Simple(bytes)
            | Self::Bulk(bytes)
            | Self::BigNumber(bytes)
            | Self::Verbatim { text: bytes, .. } => Some(bytes),
            _ => None,
        }
    }

    /// [`as_bytes`](Self::as_bytes), if they are UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        self.as_bytes()
            .and_then(|bytes| std::str::from_utf8(bytes).ok())
    }

    /// The elements of an array or a set.
    #[must_use]
    pub fn as_array(&self) -> Option<&[Self]> {
        match self {
            Self::Array(elements) | Self::Set(elements) => Some(elements),
            _ => None,
        }
    }

    /// The name of the type, for messages about unexpected replies.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean(_) => "boolean",
            Self::Integer(_) => "integer",
            Self::Double(_) => "double",
            Self::BigNumber(_) => "big number",
            Self::Simple(_) => "simple string",
            Self::Bulk(_) => "bulk string",
            Self::Verbatim { .. } => "verbatim string",
            Self::Error(_) => "error",
            Self::Array(_) => "array",
            Self::Set(_) => "set",
            Self::Map(_) => "map",
        }
    }
}
