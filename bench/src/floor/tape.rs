//! floor-tape: floor-scan that records every element in a reused list.

use crate::floor::scan::{Element, element};

/// Replies as a list of elements in the order sent.
#[derive(Debug, Default)]
pub struct Tape {
    /// The elements of the replies since [`clear`](Self::clear).
    pub elements: Vec<Entry>,
    pos: usize,
    open: u64,
}

/// The position of an element; sixteen bytes.
#[derive(Clone, Copy, Debug)]
#[expect(dead_code, reason = "writing it is the work")]
pub struct Entry {
    /// Its type byte.
    pub kind: u8,
    /// The start of its text.
    pub start: u32,
    /// The text's bytes, or the children of an aggregate.
    pub size: u64,
}

impl Tape {
    /// Records the elements of the next reply; `false` when the bytes end first.
    #[inline]
    pub fn frame(&mut self, buf: &[u8]) -> bool {
        if self.open == 0 {
            self.open = 1;
        }
        while self.open > 0 {
            let Some(Element {
                kind,
                start,
                text_end,
                end,
                children,
            }) = element(buf, self.pos)
            else {
                return false;
            };
            let size = if matches!(kind, b'*' | b'~' | b'>' | b'%') {
                children
            } else {
                (text_end - start) as u64
            };
            self.elements.push(Entry {
                kind,
                start: start as u32,
                size,
            });
            self.pos = end;
            self.open = self.open - 1 + children;
        }
        true
    }

    /// Starts over at the front of a new buffer; only between replies.
    pub fn clear(&mut self) {
        self.pos = 0;
        self.elements.clear();
    }
}
