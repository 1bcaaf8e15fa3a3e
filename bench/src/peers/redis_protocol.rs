//! `redis-protocol`: the codec that `fred` is built on.

use bytes::BytesMut;
use redis_protocol::resp3::decode::complete::decode_bytes_mut;
use redis_protocol::resp3::encode::complete::extend_encode_borrowed;
use redis_protocol::resp3::types::{BorrowedFrame, BytesFrame};

/// The next reply of `buf`. A reply that is cut is read again from its start when more has come.
pub fn decode(buf: &mut BytesMut) -> Option<BytesFrame> {
    decode_bytes_mut(buf)
        .expect("the protocol")
        .map(|(frame, _, _)| frame)
}

/// Encodes `EVALSHA` into a reused buffer, its cheapest way.
pub fn encode(out: &mut BytesMut, sha: &[u8], keys: &[&[u8]], args: &[&[u8]]) {
    let count = [b'0' + keys.len() as u8];
    let blob = |data| BorrowedFrame::BlobString {
        data,
        attributes: None,
    };
    let mut parts = Vec::with_capacity(3 + keys.len() + args.len());
    parts.extend([blob(b"EVALSHA"), blob(sha), blob(&count)]);
    parts.extend(keys.iter().chain(args).map(|part| blob(part)));
    extend_encode_borrowed(
        out,
        &BorrowedFrame::Array {
            data: &parts,
            attributes: None,
        },
        false,
    )
    .expect("memory");
}
