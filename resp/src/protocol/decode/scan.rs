//! From elements to whole frames: what is open, how much of it is still to come, and where everything stands.
//!
//! The scan makes no values. It writes down one [`Node`] for each element, so that a frame that arrives in a thousand
//! pieces is looked at once, and the builder knows every size before it allocates. Attributes and
//! pushes leave the record as soon as they are complete.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use bytes::BytesMut;

use super::element::{Aggregate, Element, Leaf, Reader, Span, Text};
use super::limits::{Limits, ProtocolError, ProtocolErrorKind as Kind};
use super::quick;
use crate::protocol::value::Value;

/// One entry of the record of a frame, in the order of the wire.
#[derive(Clone, Copy, Debug)]
pub(super) enum Node {
    Leaf(Leaf),
    /// An aggregate of this many nodes or subtrees, which follow; two for each pair of a map.
    Open(Aggregate, usize),
    /// A streamed string of this many chunks, which follow, each a leaf.
    Chunks(usize),
}

/// The result of a scan.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scanned {
    /// More bytes are needed.
    Partial,
    /// A frame that is a single leaf; nothing was recorded.
    Leaf(Leaf),
    /// A whole frame is on record.
    Frame,
    /// An attribute before the frame has ended. Nothing of it is needed any more.
    Skipped,
    /// A push inside of something else: the record from this node on, made of the bytes from this position on.
    Inserted { node: usize, start: usize },
}

/// An aggregate whose end has not come yet.
#[derive(Clone, Copy, Debug)]
struct Open {
    aggregate: Aggregate,
    /// Elements to come, two for a pair. In a stream: until it exceeds its limit.
    left: u64,
    /// `left` of a stream at its beginning, of which `left` tells how many came; `None` if the header had the count.
    stream: Option<u64>,
    /// `left` when the last attribute ended: if it still is, that attribute describes nothing yet.
    described: u64,
    /// Its node.
    node: usize,
    /// Where its bytes begin.
    start: usize,
}

/// A string whose header was read.
#[derive(Clone, Copy, Debug)]
struct Block {
    text: Text,
    span: Span,
}

/// A streamed string whose end has not come yet.
#[derive(Clone, Copy, Debug)]
struct Chunks {
    node: usize,
    /// Bytes so far.
    len: u64,
}

/// The state of a scan between two reads.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    /// The record.
    pub(super) nodes: Vec<Node>,
    /// Everything before it is scanned; it is where the next element or line begins.
    pub(super) at: usize,
    /// Whether anything on record has bytes.
    pub(super) has_text: bool,
    /// How many bytes of the line at `at` hold no line end.
    searched: usize,
    block: Option<Block>,
    chunks: Option<Chunks>,
    open: Vec<Open>,
    /// Ranges of the frame that are not needed any more, in order: attributes, and pushes that were taken out.
    cuts: Vec<Span>,
    /// Bytes in `cuts`.
    cut: usize,
}

/// Memory for each element while its frame is built: twice a node, since the record doubles when it grows, and a value.
const ELEMENT: usize = 2 * size_of::<Node>() + size_of::<Value>();

/// Cuts below this size stay in the buffer: taking them out moves the rest.
const SMALL_CUT: usize = 4 << 10;

impl Scanner {
    /// Takes the scan as far as `bytes` goes, or to the end of a frame or push.
    pub(super) fn scan(&mut self, bytes: &[u8], limits: &Limits) -> Result<Scanned, ProtocolError> {
        let reader = Reader { bytes, limits };
        let most = limits.memory / ELEMENT;
        loop {
            if self.at > limits.frame {
                return Err(ProtocolError::new(Kind::FrameTooLong));
            }
            if self.nodes.len() > most {
                return Err(ProtocolError::new(Kind::TooMuchMemory));
            }
            let is_plain = self.block.is_none() && self.chunks.is_none() && !self.open.is_empty();
            let scanned = if is_plain && let Some((leaf, end)) = quick::leaf(bytes, self.at, limits)
            {
                self.at = end;
                self.searched = 0;
                self.leaf(leaf)?
            } else if let Some(block) = self.block {
                self.block(block, reader)?
            } else {
                self.element(reader)?
            };
            if let Some(scanned) = scanned {
                return Ok(scanned);
            }
        }
    }

    /// How many bytes there must be for the string whose header was read to be whole; zero if it is not a string.
    pub(super) const fn awaited(&self) -> usize {
        match self.block {
            Some(block) => block.span.end.saturating_add(2),
            None => 0,
        }
    }

    /// Whether it knows nothing of the frame yet.
    pub(super) const fn is_idle(&self) -> bool {
        self.at == 0 && self.searched == 0
    }

    /// Forgets the frame, whose bytes are about to leave the buffer.
    pub(super) fn reset(&mut self) {
        self.nodes.clear();
        self.at = 0;
        self.has_text = false;
        self.cuts.clear();
        self.cut = 0;
    }

    /// The bytes from `start` to here are not needed any more.
    pub(super) fn cut_from(&mut self, start: usize) {
        let mut cut = Span {
            start,
            end: self.at,
        };
        // Those inside of it, and one that ends where it begins.
        while let Some(last) = self.cuts.pop_if(|last| last.end >= cut.start) {
            cut.start = cut.start.min(last.start);
            self.cut = self.cut.saturating_sub(last.len());
        }
        self.cut = self.cut.saturating_add(cut.len());
        self.cuts.push(cut);
    }

    /// Takes what is not needed any more out of the buffer, once that is most of what it holds.
    pub(super) fn compact(&mut self, buf: &mut BytesMut) {
        if self.cut < SMALL_CUT || self.cut < buf.len() / 2 {
            return;
        }
        let (mut kept, mut from) = (0, 0);
        let end = Span {
            start: buf.len(),
            end: buf.len(),
        };
        for cut in self.cuts.iter().copied().chain([end]) {
            buf.copy_within(from..cut.start, kept);
            kept = kept.wrapping_add(cut.start).wrapping_sub(from);
            from = cut.end;
        }
        buf.truncate(kept);
        let mut shift = Shift::new(&self.cuts);
        for node in &mut self.nodes {
            if let Node::Leaf(Leaf::Text(_, span)) = node {
                span.start = shift.of(span.start);
                span.end = shift.of(span.end);
            }
        }
        let mut shift = Shift::new(&self.cuts);
        for open in &mut self.open {
            open.start = shift.of(open.start);
        }
        self.at = shift.of(self.at);
        if let Some(block) = &mut self.block {
            block.span.start = shift.of(block.span.start);
            block.span.end = shift.of(block.span.end);
        }
        self.cuts.clear();
        self.cut = 0;
    }

    /// Gives back what a large frame took.
    pub(super) fn shrink(&mut self) {
        self.nodes.shrink_to(64);
        self.open.shrink_to(16);
        self.cuts.shrink_to(16);
    }

    /// The place of a string of `len` bytes whose header ends here.
    fn block_of(&self, text: Text, len: usize, limits: &Limits) -> Result<Block, ProtocolError> {
        let end = self.at.checked_add(len).filter(|end| *end <= limits.frame);
        let end = end.ok_or(ProtocolError::new(Kind::FrameTooLong))?;
        Ok(Block {
            text,
            span: Span {
                start: self.at,
                end,
            },
        })
    }

    /// Takes whatever begins here.
    fn element(&mut self, reader: Reader<'_>) -> Result<Option<Scanned>, ProtocolError> {
        let start = self.at;
        let element = reader.element(&mut self.at, &mut self.searched)?;
        if self.chunks.is_some() && !matches!(element, Element::Chunk(_) | Element::Partial) {
            return Err(stray(reader.bytes, start));
        }
        match element {
            Element::Partial => Ok(Some(Scanned::Partial)),
            Element::Leaf(leaf) => {
                self.searched = 0;
                self.leaf(leaf)
            }
            Element::Block(text, len) => {
                self.block = Some(self.block_of(text, len, reader.limits)?);
                Ok(None)
            }
            Element::Open(aggregate, n) => {
                self.open(aggregate, n, start, reader.limits)?;
                if n == 0 { self.close() } else { Ok(None) }
            }
            Element::OpenStream(aggregate) => {
                self.open_stream(aggregate, start, reader.limits)?;
                Ok(None)
            }
            Element::Chunks => {
                self.check_push(true)?;
                self.chunks = Some(Chunks {
                    node: self.nodes.len(),
                    len: 0,
                });
                self.has_text = true;
                self.nodes.push(Node::Chunks(0));
                Ok(None)
            }
            Element::Chunk(len) => self.chunk(len, start, reader),
            Element::End => self.end_stream(start, reader),
        }
    }

    /// Takes the string whose header was read, once all of it has come.
    fn block(
        &mut self,
        block: Block,
        reader: Reader<'_>,
    ) -> Result<Option<Scanned>, ProtocolError> {
        let Some(end) = reader.line_end(block.span.end)? else {
            return Ok(Some(Scanned::Partial));
        };
        // Any three bytes name a format: servers pad shorter names with spaces.
        if block.text == Text::Verbatim
            && reader.bytes.get(block.span.start.wrapping_add(3)) != Some(&b':')
        {
            return Err(ProtocolError::new(Kind::Verbatim));
        }
        self.block = None;
        self.at = end;
        self.leaf(Leaf::Text(block.text, block.span))
    }

    /// Takes down a leaf, or hands it out if it is the whole frame.
    #[inline]
    fn leaf(&mut self, leaf: Leaf) -> Result<Option<Scanned>, ProtocolError> {
        if self.chunks.is_some() {
            self.nodes.push(Node::Leaf(leaf));
            return Ok(None);
        }
        if self.open.is_empty() {
            return Ok(Some(Scanned::Leaf(leaf)));
        }
        self.check_push(matches!(
            leaf,
            Leaf::Text(Text::Simple | Text::Bulk | Text::Verbatim, _)
        ))?;
        self.has_text |= matches!(leaf, Leaf::Text(..));
        self.nodes.push(Node::Leaf(leaf));
        self.count()
    }

    fn open(
        &mut self,
        aggregate: Aggregate,
        n: u64,
        start: usize,
        limits: &Limits,
    ) -> Result<(), ProtocolError> {
        let left = if aggregate.is_pairs() {
            n.checked_mul(2)
        } else {
            Some(n)
        };
        let left = left.ok_or(ProtocolError::new(Kind::TooManyElements))?;
        let len = usize::try_from(left).map_err(|_| ProtocolError::new(Kind::TooManyElements))?;
        self.begin(aggregate, left, None, len, start, limits)
    }

    fn open_stream(
        &mut self,
        aggregate: Aggregate,
        start: usize,
        limits: &Limits,
    ) -> Result<(), ProtocolError> {
        let most = if aggregate.is_pairs() {
            limits.elements.saturating_mul(2)
        } else {
            limits.elements
        };
        let left = most.saturating_add(1);
        self.begin(aggregate, left, Some(left), 0, start, limits)
    }

    fn begin(
        &mut self,
        aggregate: Aggregate,
        left: u64,
        stream: Option<u64>,
        len: usize,
        start: usize,
        limits: &Limits,
    ) -> Result<(), ProtocolError> {
        if self.open.len() >= limits.depth {
            return Err(ProtocolError::new(Kind::TooDeep));
        }
        if !matches!(aggregate, Aggregate::Attribute | Aggregate::Push) {
            self.check_push(false)?;
        }
        self.open.push(Open {
            aggregate,
            left,
            stream,
            described: 0,
            node: self.nodes.len(),
            start,
        });
        self.nodes.push(Node::Open(aggregate, len));
        Ok(())
    }

    /// One chunk of a streamed string, or its end.
    fn chunk(
        &mut self,
        len: usize,
        start: usize,
        reader: Reader<'_>,
    ) -> Result<Option<Scanned>, ProtocolError> {
        let Some(chunks) = &mut self.chunks else {
            return Err(stray(reader.bytes, start));
        };
        if len > 0 {
            chunks.len = chunks.len.saturating_add(len as u64);
            if chunks.len > reader.limits.bulk {
                return Err(ProtocolError::new(Kind::BulkTooLong));
            }
            self.block = Some(self.block_of(Text::Bulk, len, reader.limits)?);
            return Ok(None);
        }
        let node = chunks.node;
        self.chunks = None;
        let count = self.nodes.len().saturating_sub(node).saturating_sub(1);
        if let Some(node) = self.nodes.get_mut(node) {
            *node = Node::Chunks(count);
        }
        self.count()
    }

    /// The `.` of a streamed aggregate.
    fn end_stream(
        &mut self,
        start: usize,
        reader: Reader<'_>,
    ) -> Result<Option<Scanned>, ProtocolError> {
        let Some((open, begun)) = self
            .open
            .last_mut()
            .and_then(|open| open.stream.map(|begun| (open, begun)))
        else {
            return Err(stray(reader.bytes, start));
        };
        if open.described == open.left {
            return Err(ProtocolError::new(Kind::Attribute));
        }
        let len = begun.saturating_sub(open.left);
        if open.aggregate.is_pairs() && len % 2 == 1 {
            return Err(ProtocolError::new(Kind::OddMap));
        }
        if let (Some(node), Ok(len)) = (self.nodes.get_mut(open.node), usize::try_from(len)) {
            *node = Node::Open(open.aggregate, len);
        }
        self.close()
    }

    /// Counts an element that is complete, and with it what it completes.
    #[inline]
    fn count(&mut self) -> Result<Option<Scanned>, ProtocolError> {
        match self.open.last_mut() {
            Some(open) if open.left > 1 => {
                open.left = open.left.wrapping_sub(1);
                Ok(None)
            }
            Some(open) if open.stream.is_some() => Err(ProtocolError::new(Kind::TooManyElements)),
            Some(_) => self.close(),
            None => Ok(Some(Scanned::Frame)),
        }
    }

    /// Closes the innermost aggregate, and whatever it was the last element of.
    fn close(&mut self) -> Result<Option<Scanned>, ProtocolError> {
        while let Some(closed) = self.open.pop() {
            match closed.aggregate {
                Aggregate::Attribute => {
                    self.nodes.truncate(closed.node);
                    let Some(open) = self.open.last_mut() else {
                        return Ok(Some(Scanned::Skipped));
                    };
                    open.described = open.left;
                    self.cut_from(closed.start);
                    return Ok(None);
                }
                // Redis 7.0 and older put a push that is due while EXEC runs inside EXEC's array. It counts as no
                // element of it.
                Aggregate::Push if !self.open.is_empty() => {
                    return Ok(Some(Scanned::Inserted {
                        node: closed.node,
                        start: closed.start,
                    }));
                }
                _ => {}
            }
            match self.open.last_mut() {
                Some(open) if open.left > 1 => {
                    open.left = open.left.wrapping_sub(1);
                    return Ok(None);
                }
                Some(open) if open.stream.is_some() => {
                    return Err(ProtocolError::new(Kind::TooManyElements));
                }
                _ => {}
            }
        }
        Ok(Some(Scanned::Frame))
    }

    /// That what comes next is a string, if it is the first element of a push.
    #[inline]
    fn check_push(&self, is_string: bool) -> Result<(), ProtocolError> {
        match self.nodes.last() {
            Some(Node::Open(Aggregate::Push, _)) if !is_string => {
                Err(ProtocolError::new(Kind::Push))
            }
            _ => Ok(()),
        }
    }
}

/// Where positions are after the cuts, asked for in increasing order.
struct Shift<'a> {
    cuts: &'a [Span],
    /// Bytes cut before the last position.
    by: usize,
}

impl<'a> Shift<'a> {
    const fn new(cuts: &'a [Span]) -> Self {
        Self { cuts, by: 0 }
    }

    fn of(&mut self, position: usize) -> usize {
        while let Some((cut, rest)) = self.cuts.split_first()
            && cut.end <= position
        {
            self.by = self.by.saturating_add(cut.len());
            self.cuts = rest;
        }
        position.saturating_sub(self.by)
    }
}

/// The error of something that may not stand where it stands.
fn stray(bytes: &[u8], at: usize) -> ProtocolError {
    match bytes.get(at) {
        Some(&byte) => ProtocolError::at(Kind::Stream, byte),
        None => ProtocolError::new(Kind::Stream),
    }
}
