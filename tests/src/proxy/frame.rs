//! Where a RESP frame ends, for the faults that count replies or pick out pushes.

/// The length of the first whole frame in `bytes`, or `None` while it is incomplete. Bytes that are no RESP count as
/// frames of one line each: the proxy must not be the one that stumbles.
pub(super) fn frame_len(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(2).position(|w| w == b"\r\n")? + 2;
    let count = || {
        std::str::from_utf8(&bytes[1..end - 2])
            .ok()?
            .parse::<usize>()
            .ok()
    };
    let (elements, blob) = match bytes[0] {
        b'$' | b'=' | b'!' => (0, count().map(|n| n + 2)),
        b'*' | b'~' | b'>' => (count().unwrap_or(0), None),
        b'%' => (count().unwrap_or(0) * 2, None),
        _ => (0, None),
    };
    let mut length = end + blob.unwrap_or(0);
    for _ in 0..elements {
        length += frame_len(bytes.get(length..)?)?;
    }
    (length <= bytes.len()).then_some(length)
}

/// Whether the frame is a push of any kind.
pub(super) fn is_push(frame: &[u8]) -> bool {
    frame.first() == Some(&b'>')
}

/// Whether the frame is a published message, plain, by pattern or sharded (and not the confirmation of a
/// subscription, which is a push as well).
pub(super) fn is_message(frame: &[u8]) -> bool {
    let kind = frame.split(|b| *b == b'\n').nth(2).unwrap_or_default();
    is_push(frame) && [&b"message\r"[..], b"pmessage\r", b"smessage\r"].contains(&kind)
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
            assert_eq!(frame_len(&stream), Some(frame.len()), "{frame:?}");
            for cut in 0..frame.len() {
                assert_eq!(frame_len(&stream[..cut]), None, "{frame:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn a_message_is_told_from_the_confirmation_of_a_subscription() {
        assert!(is_message(b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n"));
        assert!(is_message(
            b">3\r\n$8\r\nsmessage\r\n$1\r\nc\r\n$1\r\nm\r\n"
        ));
        assert!(!is_message(
            b">3\r\n$9\r\nsubscribe\r\n$7\r\nmessage\r\n:1\r\n"
        ));
        assert!(!is_message(
            b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n"
        ));
    }
}
