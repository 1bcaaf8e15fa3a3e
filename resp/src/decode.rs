//! Bytes to values: a resumable decoder for every RESP2 and RESP3 type.
//!
//! Three steps, a file each: [`element`] reads what begins at one position, [`scan`] keeps track of what is open and
//! takes down what it saw, [`build`] turns a complete record into values that share the frame's bytes. A frame that
//! arrives in pieces is scanned once, from where the last piece ended, and nothing is allocated for what a header
//! merely claims.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod build;
mod element;
mod limits;
mod scan;

use bytes::{Buf, Bytes, BytesMut};

use build::{Builder, leaf_value};
use element::{Aggregate, Leaf, Span, Text};
pub use limits::{Limits, ProtocolError, ProtocolErrorKind};
use scan::{Node, Scanned, Scanner};

use crate::value::Value;

/// Frames and strings up to this size are copied out of the read buffer.
///
/// A slice of the buffer would keep its whole block: a 10-byte value 64 KiB. Above it the copy costs more than the
/// neighbours that a slice keeps.
const COPIED: usize = 2 << 10;

/// What [`Decoder::wanted`] asks for at most as long as less than that has come.
const WANTED: usize = 64 << 10;

/// One top-level thing a server sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// The answer to the oldest command without one.
    Reply(Value),
    /// Out of band: belongs to no command. Never empty; the first element is a string and names its kind.
    Push(Vec<Value>),
}

/// Turns bytes into frames, from wherever it stopped.
///
/// A push at the place of an element of something else is out of band too: it comes out as a frame of its own, before
/// the one around it, and counts as no element. Redis 7.0 and older send them so inside the reply of `EXEC`. (The
/// confirmation of a `SUBSCRIBE` in a transaction looks the same and *is* an element there. No decoder can tell the two
/// apart, so do not subscribe in a transaction.)
#[derive(Debug, Default)]
pub struct Decoder {
    limits: Limits,
    scanner: Scanner,
    builder: Builder,
    /// How many bytes the frame needs at least, as of the last call.
    wanted: usize,
    /// Why the stream cannot be read any further.
    failed: Option<ProtocolError>,
}

impl Decoder {
    /// A decoder at the start of a stream.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// The next frame of `buf`, taken out of it; `None` until more bytes come.
    ///
    /// As long as it returns `None`, `buf` must be kept as it is but for bytes added to its end.
    ///
    /// # Errors
    ///
    /// Bytes that are not the protocol, or exceed a limit. The stream cannot be read any further: every later call
    /// returns the same error.
    pub fn decode(&mut self, buf: &mut BytesMut) -> Result<Option<Frame>, ProtocolError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        loop {
            match self.scanner.scan(buf, &self.limits) {
                Ok(Scanned::Leaf(leaf)) => return Ok(Some(Frame::Reply(self.take_leaf(leaf, buf)))),
                Ok(Scanned::Frame) => return Ok(Some(self.take_frame(buf))),
                Ok(Scanned::Inserted { node, start }) => return Ok(Some(self.take_inserted(node, start, buf))),
                Ok(Scanned::Skipped) => {
                    buf.advance(self.scanner.at);
                    self.scanner.reset();
                }
                Ok(Scanned::Partial) => {
                    let is_idle = buf.is_empty() && self.scanner.is_idle();
                    let missing = self.scanner.missing(buf.len());
                    self.wanted = if is_idle { 0 } else { missing.min(buf.len().max(WANTED)) };
                    return Ok(None);
                }
                Err(error) => {
                    self.failed = Some(error);
                    return Err(error);
                }
            }
        }
    }

    /// How many bytes more the frame needs at least that [`decode`](Self::decode) found incomplete; zero between two
    /// frames.
    ///
    /// A good size to reserve before reading on. A peer that only claims to send much gets little: the answer is at
    /// most 64 KiB, or as much as has come already.
    #[must_use]
    pub const fn wanted(&self) -> usize {
        self.wanted
    }

    /// Gives back the room that large frames took.
    pub fn shrink(&mut self) {
        self.scanner.shrink();
        self.builder.shrink();
    }

    /// Takes a frame that is a single leaf.
    #[inline]
    fn take_leaf(&mut self, leaf: Leaf, buf: &mut BytesMut) -> Value {
        let end = self.scanner.at;
        self.scanner.at = 0;
        let value = match leaf {
            Leaf::Text(_, Span { start, end: text_end }) if text_end.wrapping_sub(start) > COPIED => {
                buf.advance(start);
                let text = buf.split_to(text_end.wrapping_sub(start)).freeze();
                buf.advance(end.wrapping_sub(text_end));
                return leaf_value(leaf, |_| text);
            }
            Leaf::Text(text, span) => {
                let bytes = buf.get(span.start..span.end).unwrap_or_default();
                leaf_value(leaf, |_| match text {
                    Text::Simple => common(bytes),
                    _ => Bytes::copy_from_slice(bytes),
                })
            }
            _ => leaf_value(leaf, |_| Bytes::new()),
        };
        buf.advance(end);
        value
    }

    /// Takes a frame that is an aggregate or a streamed string.
    fn take_frame(&mut self, buf: &mut BytesMut) -> Frame {
        let end = self.scanner.at;
        let bytes = if end > COPIED {
            buf.split_to(end).freeze()
        } else {
            let bytes = Bytes::copy_from_slice(buf.get(..end).unwrap_or_default());
            buf.advance(end);
            bytes
        };
        let is_push = matches!(self.scanner.nodes.first(), Some(Node::Open(Aggregate::Push, _)));
        let value = self.builder.build(&self.scanner.nodes, &bytes, 0);
        self.scanner.reset();
        match value {
            Value::Array(elements) if is_push => Frame::Push(elements),
            value => Frame::Reply(value),
        }
    }

    /// Takes a push out of the frame that is around it. Its bytes stay, and are copied: the rest is not complete.
    #[cold]
    fn take_inserted(&mut self, node: usize, start: usize, buf: &BytesMut) -> Frame {
        let bytes = Bytes::copy_from_slice(buf.get(start..self.scanner.at).unwrap_or_default());
        let nodes = self.scanner.nodes.get(node..).unwrap_or_default();
        let value = self.builder.build(nodes, &bytes, start);
        self.scanner.nodes.truncate(node);
        match value {
            Value::Array(elements) => Frame::Push(elements),
            other => Frame::Push(vec![other]),
        }
    }
}

/// A status without an allocation, if it is one that servers send all the time.
fn common(text: &[u8]) -> Bytes {
    match text {
        b"OK" => Bytes::from_static(b"OK"),
        b"QUEUED" => Bytes::from_static(b"QUEUED"),
        b"PONG" => Bytes::from_static(b"PONG"),
        _ => Bytes::copy_from_slice(text),
    }
}
