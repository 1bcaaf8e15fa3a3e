//! Parses one element at a time, regardless of the aggregate it belongs to.
//!
//! Stateless: an element that is cut off is read again when more bytes came; only the search for
//! the end of a long line is taken up where it stopped.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use super::limits::{Limits, ProtocolError, ProtocolErrorKind as Kind};

/// A stretch of the frame's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Span {
    pub(super) const fn len(self) -> usize {
        self.end.wrapping_sub(self.start)
    }
}

/// The type of an element that consists of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Text {
    Simple,
    Error,
    BigNumber,
    Bulk,
    Verbatim,
}

/// The type of an element that consists of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aggregate {
    Array,
    Set,
    Map,
    Attribute,
    Push,
}

impl Aggregate {
    pub(super) const fn is_pairs(self) -> bool {
        matches!(self, Self::Map | Self::Attribute)
    }
}

/// A value without parts.
#[derive(Clone, Copy, Debug)]
pub(super) enum Leaf {
    Null,
    Boolean(bool),
    Integer(i64),
    Double(f64),
    Text(Text, Span),
}

/// The element, or the part of one, at a position.
#[derive(Clone, Copy, Debug)]
pub(super) enum Element {
    /// Not all of it has come yet.
    Partial,
    /// A whole leaf.
    Leaf(Leaf),
    /// The header of a string of this many bytes, which follow.
    Block(Text, usize),
    /// The header of an aggregate of this many elements (pairs, of a map).
    Open(Aggregate, u64),
    /// The header of an aggregate that ends where it says so.
    OpenStream(Aggregate),
    /// The header of a string that comes in chunks.
    Chunks,
    /// The header of a chunk of this many bytes; none is the last.
    Chunk(usize),
    /// The end of a streamed aggregate.
    End,
}

/// Reads elements under limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) limits: &'a Limits,
}

/// A length as it stands in a header.
enum Length {
    Partial,
    Null,
    Stream,
    Of(u64),
}

impl Reader<'_> {
    /// Reads the element at `*at`, which then moves behind it; behind its header only, if it has one.
    ///
    /// `searched` is how many bytes of the line at `*at` are known to hold no line end. The caller sets it to zero at
    /// every new element.
    #[inline]
    pub(super) fn element(
        self,
        at: &mut usize,
        searched: &mut usize,
    ) -> Result<Element, ProtocolError> {
        let Some(&marker) = self.bytes.get(*at) else {
            return Ok(Element::Partial);
        };
        match marker {
            b'$' => self.block(Text::Bulk, at),
            b':' => self.integer(at, searched),
            b'*' => self.open(Aggregate::Array, at),
            b'+' => self.line(at, searched, |span, _| Ok(Leaf::Text(Text::Simple, span))),
            b'-' => self.line(at, searched, |span, _| Ok(Leaf::Text(Text::Error, span))),
            b'_' => self.ended(at, at.wrapping_add(1), Element::Leaf(Leaf::Null)),
            b'#' => match self.bytes.get(at.wrapping_add(1)) {
                Some(&byte @ (b't' | b'f')) => self.ended(
                    at,
                    at.wrapping_add(2),
                    Element::Leaf(Leaf::Boolean(byte == b't')),
                ),
                Some(&byte) => Err(ProtocolError::at(Kind::Boolean, byte)),
                None => Ok(Element::Partial),
            },
            b',' => self.line(at, searched, |_, text| double(text).map(Leaf::Double)),
            b'(' => self.line(at, searched, |span, text| {
                is_number(text)
                    .then_some(Leaf::Text(Text::BigNumber, span))
                    .ok_or(ProtocolError::new(Kind::BigNumber))
            }),
            b'%' => self.open(Aggregate::Map, at),
            b'~' => self.open(Aggregate::Set, at),
            b'>' => self.open(Aggregate::Push, at),
            b'|' => self.open(Aggregate::Attribute, at),
            b'=' => self.block(Text::Verbatim, at),
            b'!' => self.block(Text::Error, at),
            b';' => self.chunk(at),
            b'.' => self.ended(at, at.wrapping_add(1), Element::End),
            _ => Err(ProtocolError::at(Kind::UnknownType, marker)),
        }
    }

    /// `$`, `=` and `!`.
    fn block(self, text: Text, at: &mut usize) -> Result<Element, ProtocolError> {
        match self.length(at)? {
            Length::Partial => Ok(Element::Partial),
            Length::Of(len) => {
                let len = self.block_length(len)?;
                if text == Text::Verbatim && len < 4 {
                    return Err(ProtocolError::new(Kind::Verbatim));
                }
                Ok(Element::Block(text, len))
            }
            // RESP2 has no null of its own; hiredis takes a negative length for one everywhere, a server sends it as
            // `$-1` only.
            Length::Null if text == Text::Bulk => Ok(Element::Leaf(Leaf::Null)),
            Length::Stream if text == Text::Bulk => Ok(Element::Chunks),
            Length::Null => Err(ProtocolError::at(Kind::Length, b'-')),
            Length::Stream => Err(ProtocolError::at(Kind::Length, b'?')),
        }
    }

    /// `*`, `~`, `%`, `|` and `>`.
    fn open(self, aggregate: Aggregate, at: &mut usize) -> Result<Element, ProtocolError> {
        let is_value = !matches!(aggregate, Aggregate::Attribute | Aggregate::Push);
        match self.length(at)? {
            Length::Partial => Ok(Element::Partial),
            Length::Of(0) if aggregate == Aggregate::Push => Err(ProtocolError::new(Kind::Push)),
            Length::Of(n) if n > self.limits.elements => {
                Err(ProtocolError::new(Kind::TooManyElements))
            }
            Length::Of(n) => Ok(Element::Open(aggregate, n)),
            Length::Null if is_value => Ok(Element::Leaf(Leaf::Null)),
            Length::Stream if is_value => Ok(Element::OpenStream(aggregate)),
            Length::Null => Err(ProtocolError::at(Kind::Length, b'-')),
            Length::Stream => Err(ProtocolError::at(Kind::Length, b'?')),
        }
    }

    fn chunk(self, at: &mut usize) -> Result<Element, ProtocolError> {
        match self.length(at)? {
            Length::Partial => Ok(Element::Partial),
            Length::Of(len) => Ok(Element::Chunk(self.block_length(len)?)),
            Length::Null => Err(ProtocolError::at(Kind::Length, b'-')),
            Length::Stream => Err(ProtocolError::at(Kind::Length, b'?')),
        }
    }

    /// A length that may be waited for, and counted with.
    fn block_length(self, len: u64) -> Result<usize, ProtocolError> {
        let allowed = if len > self.limits.bulk {
            None
        } else {
            usize::try_from(len).ok()
        };
        allowed.ok_or(ProtocolError::new(Kind::BulkTooLong))
    }

    /// The number behind the type byte, and the line end behind it.
    ///
    /// As strict as servers and hiredis are: no sign but that of `-1`, no leading zeros.
    #[inline]
    fn length(self, at: &mut usize) -> Result<Length, ProtocolError> {
        let mut next = at.wrapping_add(1);
        let Some(&first) = self.bytes.get(next) else {
            return Ok(Length::Partial);
        };
        next = next.wrapping_add(1);
        let length = match first {
            b'1'..=b'9' => {
                let mut n = u64::from(first & 0x0f);
                loop {
                    let Some(&byte) = self.bytes.get(next) else {
                        return Ok(Length::Partial);
                    };
                    let digit = byte.wrapping_sub(b'0');
                    if digit > 9 {
                        break;
                    }
                    next = next.wrapping_add(1);
                    n = n
                        .checked_mul(10)
                        .and_then(|n| n.checked_add(u64::from(digit)))
                        .ok_or_else(|| ProtocolError::at(Kind::Length, byte))?;
                }
                Length::Of(n)
            }
            b'0' => Length::Of(0),
            b'?' => Length::Stream,
            b'-' => match self.bytes.get(next) {
                None => return Ok(Length::Partial),
                Some(b'1') => {
                    next = next.wrapping_add(1);
                    Length::Null
                }
                Some(&byte) => return Err(ProtocolError::at(Kind::Length, byte)),
            },
            _ => return Err(ProtocolError::at(Kind::Length, first)),
        };
        match self.bytes.get(next) {
            Some(b'\r') => {}
            Some(&byte) => return Err(ProtocolError::at(Kind::Length, byte)),
            None => return Ok(Length::Partial),
        }
        match self.line_end(next)? {
            Some(end) => {
                *at = end;
                Ok(length)
            }
            None => Ok(Length::Partial),
        }
    }

    /// `:` and 64 bits. Up to 18 digits without a doubt about overflow; anything longer the slow way.
    #[inline]
    fn integer(self, at: &mut usize, searched: &mut usize) -> Result<Element, ProtocolError> {
        let mut next = at.wrapping_add(1);
        let sign = match self.bytes.get(next) {
            Some(&sign @ (b'-' | b'+')) => {
                next = next.wrapping_add(1);
                sign
            }
            _ => b'+',
        };
        let digits = next;
        let mut n = 0_i64;
        loop {
            let Some(&byte) = self.bytes.get(next) else {
                return Ok(Element::Partial);
            };
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                if byte == b'\r' && next != digits {
                    break;
                }
                return Err(ProtocolError::at(Kind::Integer, byte));
            }
            next = next.wrapping_add(1);
            if next.wrapping_sub(digits) > 18 {
                return self.line(at, searched, |_, text| {
                    long_integer(text).map(Leaf::Integer)
                });
            }
            n = n.wrapping_mul(10).wrapping_add(i64::from(digit));
        }
        let n = if sign == b'-' { n.wrapping_neg() } else { n };
        self.ended(at, next, Element::Leaf(Leaf::Integer(n)))
    }

    /// A scalar whose only delimiter is the end of its line.
    #[inline]
    fn line(
        self,
        at: &mut usize,
        searched: &mut usize,
        read: impl FnOnce(Span, &[u8]) -> Result<Leaf, ProtocolError>,
    ) -> Result<Element, ProtocolError> {
        let start = at.wrapping_add(1);
        let rest = self.bytes.get(start..).unwrap_or_default();
        let unseen = rest.get(*searched..).unwrap_or_default();
        let found = unseen.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
        let len = searched.saturating_add(found.unwrap_or(unseen.len()));
        if len > self.limits.line {
            return Err(ProtocolError::new(Kind::LineTooLong));
        }
        *searched = len;
        if found.is_none() {
            return Ok(Element::Partial);
        }
        let span = Span {
            start,
            end: start.wrapping_add(len),
        };
        match self.line_end(span.end)? {
            Some(end) => {
                let leaf = read(span, rest.get(..len).unwrap_or_default())?;
                *at = end;
                Ok(Element::Leaf(leaf))
            }
            None => Ok(Element::Partial),
        }
    }

    /// `element`, if a line end stands at `end`, and `*at` behind it.
    #[inline]
    fn ended(self, at: &mut usize, end: usize, element: Element) -> Result<Element, ProtocolError> {
        match self.line_end(end)? {
            Some(next) => {
                *at = next;
                Ok(element)
            }
            None => Ok(Element::Partial),
        }
    }

    /// The position behind the CR LF that must stand at `at`; `None` while it is cut off.
    #[inline]
    pub(super) fn line_end(self, at: usize) -> Result<Option<usize>, ProtocolError> {
        match (self.bytes.get(at), self.bytes.get(at.wrapping_add(1))) {
            (Some(b'\r'), Some(b'\n')) => Ok(Some(at.wrapping_add(2))),
            (Some(b'\r'), None) | (None, _) => Ok(None),
            (Some(b'\r'), Some(&byte)) | (Some(&byte), _) => {
                Err(ProtocolError::at(Kind::LineEnd, byte))
            }
        }
    }
}

/// An integer of 19 digits or more: leading zeros are allowed, what does not fit is not.
#[cold]
fn long_integer(text: &[u8]) -> Result<i64, ProtocolError> {
    let error = ProtocolError::new(Kind::Integer);
    if !is_number(text) {
        return Err(error);
    }
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or(error)
}

/// A sign or none, and digits.
fn is_number(text: &[u8]) -> bool {
    let digits = text
        .strip_prefix(b"-")
        .or_else(|| text.strip_prefix(b"+"))
        .unwrap_or(text);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

/// The longest double that hiredis takes; a server's own are below 30 characters.
const DOUBLE: usize = 325;

/// Decimals with or without an exponent, infinities and not-a-number in any case.
///
/// Redis 7.0 and older send `-nan` as well, whatever libc printed.
fn double(text: &[u8]) -> Result<f64, ProtocolError> {
    let error = ProtocolError::new(Kind::Double);
    let unsigned = text
        .strip_prefix(b"-")
        .or_else(|| text.strip_prefix(b"+"))
        .unwrap_or(text);
    let is_decimal = unsigned
        .first()
        .is_some_and(|byte| byte.is_ascii_digit() || *byte == b'.');
    let is_word = unsigned.eq_ignore_ascii_case(b"inf") || unsigned.eq_ignore_ascii_case(b"nan");
    if text.len() > DOUBLE || !(is_decimal || is_word) {
        return Err(error);
    }
    // All other mistakes are refused by Rust's own grammar.
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or(error)
}
