//! Bytes to values: a resumable decoder for every RESP2 and RESP3 type.

use std::fmt;

use bytes::BytesMut;

use crate::value::Value;

/// What a hostile or broken peer may make this side do at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Nested aggregates.
    pub depth: usize,
    /// Bytes of one bulk string.
    pub bulk: u64,
    /// Elements of one aggregate (pairs, of a map).
    pub elements: u64,
    /// Bytes of a header line or of a scalar.
    pub line: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { depth: 128, bulk: 512 << 20, elements: u32::MAX as u64, line: 64 << 10 }
    }
}

/// One top-level thing a server sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// The answer to the oldest command without one.
    Reply(Value),
    /// Out of band: belongs to no command. Never empty; the first element names its kind.
    Push(Vec<Value>),
}

/// Turns bytes into frames, from wherever it stopped.
#[derive(Debug, Default)]
pub struct Decoder {
    limits: Limits,
}

impl Decoder {
    /// A decoder at the start of a stream.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits }
    }

    /// The next frame of `buf`, taken out of it; `None` until more bytes come.
    ///
    /// # Errors
    ///
    /// Bytes that are not the protocol, or exceed a limit. The stream cannot be read any further.
    pub fn decode(&mut self, buf: &mut BytesMut) -> Result<Option<Frame>, ProtocolError> {
        let _ = (&self.limits, buf);
        todo!()
    }
}

/// Bytes that are not the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolError;

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("todo")
    }
}

impl std::error::Error for ProtocolError {}
