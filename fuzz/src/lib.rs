//! Shared by the targets: limits small enough to be reached, and decoding in pieces.

use bytes::BytesMut;
use leasehold_resp::{Decoder, Frame, Limits, ProtocolError};

/// Limits that a fuzzer's inputs of a few kilobytes can reach.
pub const LIMITS: Limits = Limits {
    depth: 8,
    bulk: 4000,
    elements: 64,
    line: 400,
    frame: 8000,
    memory: 32 << 10,
};

/// The frames of a stream that arrives in `pieces`, and the error that ended it or how many bytes
/// were left over.
pub fn decode<'a>(
    limits: Limits,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<Frame>, Result<usize, ProtocolError>) {
    let mut decoder = Decoder::new(limits);
    let mut buf = BytesMut::new();
    let mut frames = Vec::new();
    for piece in pieces {
        buf.extend_from_slice(piece);
        loop {
            match decoder.decode(&mut buf) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => {
                    assert!(decoder.wanted() <= buf.len().max(64 << 10));
                    break;
                }
                Err(error) => return (frames, Err(error)),
            }
        }
    }
    (frames, Ok(buf.len()))
}

/// The first byte of the input says how many bytes behind it are sizes of pieces; the rest is cut
/// into those, over and over.
pub fn cut(input: &[u8]) -> (&[u8], Vec<&[u8]>) {
    let Some((&count, rest)) = input.split_first() else {
        return (&[], Vec::new());
    };
    let (sizes, bytes) = rest.split_at(usize::from(count % 8).min(rest.len()));
    let mut pieces = Vec::new();
    let mut left = bytes;
    let mut sizes = sizes.iter().map(|&size| usize::from(size).max(1)).cycle();
    while !left.is_empty() {
        let (piece, behind) = left.split_at(sizes.next().unwrap_or(left.len()).min(left.len()));
        pieces.push(piece);
        left = behind;
    }
    (bytes, pieces)
}
