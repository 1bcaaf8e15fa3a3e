//! The first frame of a stream, for the faults that count replies or pick out pushes.

use bytes::BytesMut;
use leasehold_resp::push::Push;
use leasehold_resp::{Codec, Frame};
use tokio_util::codec::Decoder;

/// A whole frame at the beginning of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct First {
    pub(super) length: usize,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Reply,
    /// A push that is no message, such as the confirmation of a subscription.
    Push,
    /// A push with a published message: plain, by pattern or sharded.
    Message,
}

/// The first frame in `bytes`, or `None` while it is incomplete. Bytes that are no RESP count as
/// one reply: the proxy passes them on.
pub(super) fn first(bytes: &[u8]) -> Option<First> {
    let mut rest = BytesMut::from(bytes);
    let (length, kind) = match Codec::default().decode(&mut rest) {
        Ok(frame) => (bytes.len() - rest.len(), kind(frame?)),
        Err(_) => (bytes.len(), Kind::Reply),
    };
    Some(First { length, kind })
}

fn kind(frame: Frame) -> Kind {
    match frame {
        Frame::Reply(_) => Kind::Reply,
        Frame::Push(elements) => {
            let by_pattern = elements
                .first()
                .is_some_and(|kind| kind.as_str() == Some("pmessage"));
            match Push::parse(elements) {
                Push::Message { .. } => Kind::Message,
                _ if by_pattern => Kind::Message,
                _ => Kind::Push,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_whole_at_its_last_byte_and_not_before() {
        for frame in [
            "+OK\r\n",
            "$3\r\nabc\r\n",
            "$-1\r\n",
            "*0\r\n",
            "*2\r\n:1\r\n*1\r\n$0\r\n\r\n",
            "%1\r\n+a\r\n,1.5\r\n",
        ] {
            let stream = format!("{frame}+next\r\n").into_bytes();
            let reply = First {
                length: frame.len(),
                kind: Kind::Reply,
            };
            assert_eq!(first(&stream), Some(reply), "{frame:?}");
            for cut in 0..frame.len() {
                assert_eq!(first(&stream[..cut]), None, "{frame:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn a_message_is_told_from_the_confirmation_of_a_subscription() {
        for (bytes, kind) in [
            (
                ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
                Kind::Message,
            ),
            (
                ">3\r\n$8\r\nsmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
                Kind::Message,
            ),
            (
                ">4\r\n$8\r\npmessage\r\n$1\r\n*\r\n$1\r\nc\r\n$1\r\nm\r\n",
                Kind::Message,
            ),
            (
                ">3\r\n$9\r\nsubscribe\r\n$7\r\nmessage\r\n:1\r\n",
                Kind::Push,
            ),
            ("*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n", Kind::Reply),
        ] {
            let length = bytes.len();
            assert_eq!(first(bytes.as_bytes()), Some(First { length, kind }));
        }
    }
}
