//! From the record of a frame to values: one pass, every vector at its final size, no bytes copied.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use bytes::Bytes;

use super::element::{Aggregate, Leaf, Span, Text};
use super::scan::Node;
use crate::protocol::value::Value;

/// An aggregate with elements still to come.
#[derive(Debug)]
struct Partial {
    aggregate: Aggregate,
    /// Elements to come, two for a pair.
    left: usize,
    elements: Vec<Value>,
}

/// Makes the values of one frame after the other.
#[derive(Debug, Default)]
pub(super) struct Builder {
    /// The way down to the current aggregate, which is not on it. Empty between two frames; kept for its room.
    path: Vec<Partial>,
}

impl Builder {
    /// The elements of the aggregate of `len` elements that `nodes` record, two for a pair of a map; `bytes` are those
    /// of the frame from position `start` on.
    pub(super) fn elements(
        &mut self,
        len: usize,
        nodes: &[Node],
        bytes: &Bytes,
        start: usize,
    ) -> Vec<Value> {
        let mut nodes = nodes.iter();
        // Of the current aggregate; apart from each other, so that they stay in registers.
        let (mut aggregate, mut left, mut elements) =
            (Aggregate::Array, len, Vec::with_capacity(len));
        loop {
            while left == 0 {
                let Some(outer) = self.path.pop() else {
                    return elements;
                };
                let value = aggregate_value(aggregate, elements);
                (aggregate, left, elements) = (outer.aggregate, outer.left, outer.elements);
                elements.push(value);
            }
            left = left.wrapping_sub(1);
            match nodes.next() {
                Some(Node::Leaf(leaf)) => match *leaf {
                    Leaf::Text(Text::Bulk, span) => {
                        elements.push(Value::Bulk(slice(bytes, span, start)))
                    }
                    Leaf::Integer(n) => elements.push(Value::Integer(n)),
                    leaf => elements.push(leaf_value(leaf, |span| slice(bytes, span, start))),
                },
                Some(Node::Open(inner, len)) => {
                    self.path.push(Partial {
                        aggregate,
                        left,
                        elements,
                    });
                    (aggregate, left, elements) = (*inner, *len, Vec::with_capacity(*len));
                }
                Some(Node::Chunks(n)) => {
                    elements.push(Value::Bulk(joined(nodes.by_ref().take(*n), bytes, start)));
                }
                // Not reached: a record is complete when it is handed over.
                None => return elements,
            }
        }
    }

    /// Gives back what a deep frame took.
    pub(super) fn shrink(&mut self) {
        self.path.shrink_to(16);
    }
}

/// The value that an aggregate is.
pub(super) fn aggregate_value(aggregate: Aggregate, elements: Vec<Value>) -> Value {
    match aggregate {
        Aggregate::Set => Value::Set(elements),
        Aggregate::Map => {
            let mut pairs = Vec::with_capacity(elements.len() / 2);
            let mut elements = elements.into_iter();
            while let (Some(key), Some(value)) = (elements.next(), elements.next()) {
                pairs.push((key, value));
            }
            Value::Map(pairs)
        }
        // Attributes never reach a record, and a push has a frame of its own.
        Aggregate::Array | Aggregate::Push | Aggregate::Attribute => Value::Array(elements),
    }
}

/// The value that a leaf is, its bytes through `take`.
#[inline]
pub(super) fn leaf_value(leaf: Leaf, take: impl FnOnce(Span) -> Bytes) -> Value {
    match leaf {
        Leaf::Null => Value::Null,
        Leaf::Boolean(is) => Value::Boolean(is),
        Leaf::Integer(n) => Value::Integer(n),
        Leaf::Double(n) => Value::Double(n),
        Leaf::Text(text, span) => text_value(text, take(span)),
    }
}

fn text_value(text: Text, mut bytes: Bytes) -> Value {
    match text {
        Text::Simple => Value::Simple(bytes),
        Text::Error => Value::Error(bytes),
        Text::BigNumber => Value::BigNumber(bytes),
        Text::Bulk => Value::Bulk(bytes),
        Text::Verbatim => {
            let format = bytes.first_chunk().copied().unwrap_or(*b"txt");
            let text = bytes.split_off(bytes.len().min(4));
            Value::Verbatim { format, text }
        }
    }
}

/// The chunks of a streamed string in one piece.
pub(super) fn joined<'a>(
    chunks: impl Iterator<Item = &'a Node>,
    bytes: &Bytes,
    start: usize,
) -> Bytes {
    let mut whole = Vec::new();
    for chunk in chunks {
        if let Node::Leaf(Leaf::Text(_, span)) = chunk {
            whole.extend_from_slice(&slice(bytes, *span, start));
        }
    }
    whole.into()
}

#[inline]
fn slice(bytes: &Bytes, span: Span, start: usize) -> Bytes {
    let (from, to) = (span.start.wrapping_sub(start), span.end.wrapping_sub(start));
    // The scan has seen these bytes. The question is asked because `slice` panics at a wrong answer.
    if from <= to && to <= bytes.len() {
        bytes.slice(from..to)
    } else {
        Bytes::new()
    }
}
