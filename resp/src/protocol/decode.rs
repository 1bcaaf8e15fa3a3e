//! Bytes to values: a resumable decoder for every RESP2 and RESP3 type.
//!
//! Three steps, a file each: `element` reads what begins at one position, `scan` keeps track of what is open and
//! takes down what it saw, `build` turns a complete record into values that share the frame's bytes. A frame that
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
mod quick;
mod scan;

use bytes::{Buf, Bytes, BytesMut};

use build::{Builder, aggregate_value, joined, leaf_value};
use element::{Aggregate, Leaf, Span};
pub use limits::{Limits, ProtocolError, ProtocolErrorKind};
use scan::{Node, Scanned, Scanner};

use crate::protocol::value::Value;

/// Frames and strings up to this size are copied out of the read buffer.
///
/// A slice of the buffer would keep its whole block: a 10-byte value 64 KiB. Measured, copying is as fast as slicing up
/// to here; at 4 KB slicing is 1.7 times as fast, and keeps 16 neighbours at most.
const COPIED: usize = 2 << 10;

/// Upper bound of [`Decoder::wanted`] until more than that has arrived.
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
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    scanner: Scanner,
    builder: Builder,
    /// Minimum length of the buffer for the incomplete string that the last call met; otherwise zero.
    awaited: usize,
    /// The result of [`wanted`](Self::wanted).
    wanted: usize,
    /// Whether the buffer begins with a frame of which nothing was looked at yet.
    is_between: bool,
    /// Why the stream cannot be read any further.
    failed: Option<ProtocolError>,
}

impl Decoder {
    /// A decoder at the start of a stream.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            scanner: Scanner::default(),
            builder: Builder::default(),
            awaited: 0,
            wanted: 0,
            is_between: true,
            failed: None,
        }
    }

    /// The next frame of `buf`, taken out of it; `None` until more bytes come.
    ///
    /// As long as it returns `None`, `buf` must be kept as it is but for bytes added to its end. (Attributes inside of a
    /// frame are taken out of it meanwhile.)
    ///
    /// # Errors
    ///
    /// Bytes that are not the protocol, or exceed a limit. The stream cannot be read any further: every later call
    /// returns the same error.
    pub fn decode(&mut self, buf: &mut BytesMut) -> Result<Option<Frame>, ProtocolError> {
        // In the middle of a large string. One byte less than it takes, for a wrong line end is an error at once.
        if buf.len().saturating_add(1) < self.awaited {
            return Ok(self.wait(buf.len()));
        }
        if self.is_between {
            self.wanted = 0;
            // Each arm makes its frame where the caller wants it. A value that is handed around is copied each time,
            // which costs more than everything else here.
            match buf.first() {
                Some(b':') => {
                    if let Some((n, end)) = quick::integer(buf, 0) {
                        buf.advance(end);
                        return Ok(Some(Frame::Reply(Value::Integer(n))));
                    }
                }
                Some(b'$') => {
                    if let Some((span, end)) = quick::bulk(buf, 0, &self.limits) {
                        let bytes = Bytes::copy_from_slice(
                            buf.get(span.start..span.end).unwrap_or_default(),
                        );
                        buf.advance(end);
                        return Ok(Some(Frame::Reply(Value::Bulk(bytes))));
                    }
                }
                Some(b'+') if buf.starts_with(b"+OK\r\n") => {
                    buf.advance(5);
                    return Ok(Some(Frame::Reply(Value::Simple(Bytes::from_static(b"OK")))));
                }
                Some(b'_') if buf.starts_with(b"_\r\n") => {
                    buf.advance(3);
                    return Ok(Some(Frame::Reply(Value::Null)));
                }
                _ => {}
            }
        }
        self.decode_any(buf)
    }

    /// The next frame, whatever it is.
    fn decode_any(&mut self, buf: &mut BytesMut) -> Result<Option<Frame>, ProtocolError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.is_between = false;
        self.awaited = 0;
        self.wanted = 0;
        loop {
            match self.scanner.scan(buf, &self.limits) {
                Ok(Scanned::Leaf(leaf)) => {
                    self.is_between = true;
                    return Ok(Some(Frame::Reply(self.take_leaf(leaf, buf))));
                }
                Ok(Scanned::Frame) => {
                    self.is_between = true;
                    return Ok(Some(self.take_frame(buf)));
                }
                Ok(Scanned::Inserted { node, start }) => {
                    return Ok(Some(self.take_inserted(node, start, buf)));
                }
                Ok(Scanned::Skipped) => {
                    buf.advance(self.scanner.at);
                    self.scanner.reset();
                }
                Ok(Scanned::Partial) => {
                    self.scanner.compact(buf);
                    self.is_between = self.scanner.is_idle();
                    self.awaited = self.scanner.awaited();
                    return Ok(self.wait(buf.len()));
                }
                Err(error) => {
                    self.failed = Some(error);
                    return Err(error);
                }
            }
        }
    }

    /// How many bytes more are needed at least, if [`decode`](Self::decode) returned `None`; zero after a frame.
    ///
    /// A good size to reserve before reading on. A peer that only claims to send much gets little: the answer is at
    /// most 64 KiB, or as much as has come already.
    #[must_use]
    pub const fn wanted(&self) -> usize {
        self.wanted
    }

    /// Bounds what comes from now on; what has come of a frame stays accepted.
    pub const fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Gives back the room that large frames took.
    pub fn shrink(&mut self) {
        self.scanner.shrink();
        self.builder.shrink();
    }

    /// No frame: what is in the buffer is too little.
    fn wait(&mut self, len: usize) -> Option<Frame> {
        let missing = self.awaited.saturating_sub(len).min(len.max(WANTED));
        self.wanted = if self.is_between && len == 0 {
            0
        } else {
            missing.max(1)
        };
        None
    }

    /// Takes a frame that is a single leaf.
    fn take_leaf(&mut self, leaf: Leaf, buf: &mut BytesMut) -> Value {
        let end = self.scanner.at;
        self.scanner.at = 0;
        match leaf {
            Leaf::Text(_, span) if span.len() > COPIED => {
                buf.advance(span.start);
                let bytes = buf.split_to(span.len()).freeze();
                buf.advance(end.wrapping_sub(span.end));
                leaf_value(leaf, |_| bytes)
            }
            _ => {
                let value = leaf_value(leaf, |span| copy(buf, span));
                buf.advance(end);
                value
            }
        }
    }

    /// Takes a frame that is an aggregate or a streamed string.
    fn take_frame(&mut self, buf: &mut BytesMut) -> Frame {
        let end = self.scanner.at;
        let bytes = if !self.scanner.has_text {
            buf.advance(end);
            Bytes::new()
        } else if end > COPIED {
            buf.split_to(end).freeze()
        } else {
            let bytes = Bytes::copy_from_slice(buf.get(..end).unwrap_or_default());
            buf.advance(end);
            bytes
        };
        let frame = match self.scanner.nodes.split_first() {
            Some((Node::Open(aggregate, len), nodes)) => {
                let elements = self.builder.elements(*len, nodes, &bytes, 0);
                match aggregate {
                    Aggregate::Array => Frame::Reply(Value::Array(elements)),
                    Aggregate::Push => Frame::Push(elements),
                    other => Frame::Reply(aggregate_value(*other, elements)),
                }
            }
            Some((Node::Chunks(_), chunks)) => {
                Frame::Reply(Value::Bulk(joined(chunks.iter(), &bytes, 0)))
            }
            // Not reached: a frame that is a leaf is not recorded.
            _ => Frame::Reply(Value::Null),
        };
        self.scanner.reset();
        frame
    }

    /// Takes a push out of the frame that is around it. Its bytes stay, and are copied: the rest is not complete.
    #[cold]
    fn take_inserted(&mut self, node: usize, start: usize, buf: &BytesMut) -> Frame {
        let bytes = Bytes::copy_from_slice(buf.get(start..self.scanner.at).unwrap_or_default());
        let elements = match self
            .scanner
            .nodes
            .get(node..)
            .and_then(<[Node]>::split_first)
        {
            Some((Node::Open(_, len), nodes)) => self.builder.elements(*len, nodes, &bytes, start),
            _ => Vec::new(),
        };
        self.scanner.nodes.truncate(node);
        self.scanner.cut_from(start);
        Frame::Push(elements)
    }
}

/// The limits are the default ones.
impl Default for Decoder {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

/// A text of its own, without an allocation if it is a status that servers send all the time.
fn copy(buf: &[u8], span: Span) -> Bytes {
    match buf.get(span.start..span.end).unwrap_or_default() {
        b"OK" => Bytes::from_static(b"OK"),
        b"QUEUED" => Bytes::from_static(b"QUEUED"),
        b"PONG" => Bytes::from_static(b"PONG"),
        text => Bytes::copy_from_slice(text),
    }
}
