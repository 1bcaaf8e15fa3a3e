//! floor-scan: finds the ends of replies and makes no values.

/// Walks replies, resuming where the bytes ended last time.
#[derive(Debug, Default)]
pub struct Scan {
    /// The first byte not walked yet.
    pub pos: usize,
    /// Elements still missing from the reply under way; 0 between replies.
    open: u64,
}

impl Scan {
    /// Walks to the end of the next reply; `None` when the bytes end first.
    #[inline]
    pub fn frame(&mut self, buf: &[u8]) -> Option<usize> {
        if self.open == 0 {
            self.open = 1;
        }
        while self.open > 0 {
            let element = element(buf, self.pos)?;
            self.pos = element.end;
            self.open = self.open - 1 + element.children;
        }
        Some(self.pos)
    }

    /// Starts over at the front of a new buffer; only between replies.
    pub fn rewind(&mut self) {
        self.pos = 0;
    }
}

/// One element: a scalar with its text, or the header of an aggregate.
#[derive(Clone, Copy, Debug)]
pub struct Element {
    /// Its type byte.
    pub kind: u8,
    /// The start of its text.
    pub start: usize,
    /// The end of its text.
    pub text_end: usize,
    /// The end of its last line end.
    pub end: usize,
    /// The elements that follow and belong to it.
    pub children: u64,
}

/// The element at `pos`; `None` when the bytes end before it does.
///
/// # Panics
///
/// On bytes that are not the protocol.
#[inline(always)]
pub fn element(buf: &[u8], pos: usize) -> Option<Element> {
    let kind = *buf.get(pos)?;
    let start = pos + 1;
    let mut line = start;
    while *buf.get(line)? != b'\r' {
        line += 1;
    }
    assert!(*buf.get(line + 1)? == b'\n');
    let end = line + 2;
    let scalar = Element {
        kind,
        start,
        text_end: line,
        end,
        children: 0,
    };
    match kind {
        b':' | b'+' | b'-' | b'_' | b'#' | b',' | b'(' => Some(scalar),
        b'*' | b'~' | b'>' => Some(Element {
            children: number(&buf[start..line]),
            ..scalar
        }),
        b'%' => Some(Element {
            children: 2 * number(&buf[start..line]),
            ..scalar
        }),
        b'$' | b'=' | b'!' if buf[start] == b'-' => Some(scalar),
        b'$' | b'=' | b'!' => {
            let text_end = end + number(&buf[start..line]) as usize;
            if buf.len() < text_end + 2 {
                return None;
            }
            assert!(buf[text_end] == b'\r' && buf[text_end + 1] == b'\n');
            Some(Element {
                kind,
                start: end,
                text_end,
                end: text_end + 2,
                children: 0,
            })
        }
        other => panic!("type byte {other}"),
    }
}

/// The number in a header.
#[inline(always)]
pub fn number(digits: &[u8]) -> u64 {
    digits
        .iter()
        .fold(0, |n, digit| n * 10 + u64::from(digit - b'0'))
}
