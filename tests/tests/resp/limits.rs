//! Limits of the decoder: a hostile or broken peer causes an error, and little more memory than it
//! sent.

use allocation_counter::measure;
use bytes::BytesMut;
use leasehold_resp::{Decoder, Frame, Limits, ProtocolErrorKind as Kind, Value};

use crate::support::{Outcome, bulk, decode, decode_every_way, int};

/// Every header that opens an aggregate with one element to come, its first element of a map or
/// push included.
const OPENERS: [&str; 8] = [
    "*1\r\n",
    "~1\r\n",
    "%1\r\n+k\r\n",
    "%1\r\n",
    "|1\r\n",
    "*?\r\n",
    "%?\r\n+k\r\n",
    ">2\r\n+k\r\n",
];

#[test]
fn nesting_ends_at_the_limit_whatever_nests() {
    let limits = Limits {
        depth: 12,
        ..Limits::default()
    };
    for opener in OPENERS {
        let allowed = opener.repeat(12);
        let outcome = decode_every_way(limits, allowed.as_bytes());
        assert_eq!(
            outcome.end,
            Ok(allowed.len()),
            "{opener:?} twelve times is only incomplete"
        );
        let outcome = decode_every_way(limits, (allowed + opener).as_bytes());
        assert_eq!(outcome, Outcome::of(&[], Err(Kind::TooDeep)), "{opener:?}");
    }
    // An empty aggregate is one level as well, a scalar is none.
    let deep = format!("{}:1\r\n", "*1\r\n".repeat(12));
    assert_eq!(decode_every_way(limits, deep.as_bytes()).frames.len(), 1);
    let deeper = format!("{}*0\r\n", "*1\r\n".repeat(12));
    assert_eq!(
        decode_every_way(limits, deeper.as_bytes()).end,
        Err(Kind::TooDeep)
    );
}

#[test]
fn the_default_depth_is_128_and_a_million_levels_overflow_no_stack() {
    let nested = |levels: usize| format!("{}:1\r\n", "*1\r\n".repeat(levels)).into_bytes();
    let outcome = decode(Limits::default(), [&nested(128)[..]]);
    assert_eq!((outcome.frames.len(), outcome.end), (1, Ok(0)));
    assert_eq!(
        decode(Limits::default(), [&nested(129)[..]]).end,
        Err(Kind::TooDeep)
    );
    for opener in OPENERS {
        let million = opener.repeat(1_000_000);
        assert_eq!(
            decode(Limits::default(), [million.as_bytes()]).end,
            Err(Kind::TooDeep),
            "{opener:?}"
        );
    }
}

#[test]
fn a_server_that_gives_up_halfway_down_is_survived() {
    // A script that returns a cyclic table: Redis sends thousands of levels and then an error as
    // the last element.
    let reply = format!("{}-ERR reached lua stack limit\r\n", "*1\r\n".repeat(7_995));
    assert_eq!(
        decode(Limits::default(), [reply.as_bytes()]).end,
        Err(Kind::TooDeep)
    );
}

#[test]
fn what_a_header_claims_is_not_allocated() {
    for header in [
        "$536870912\r\n",
        "!536870912\r\n",
        "=536870912\r\n",
        "*4294967295\r\n",
        "%4294967295\r\n",
        "~4294967295\r\n",
        "|4294967295\r\n",
        ">4294967295\r\n",
        "$?\r\n;536870912\r\n",
        "*1\r\n$536870912\r\n",
    ] {
        let mut decoder = Decoder::default();
        let mut buf = BytesMut::from(header);
        let used = measure(|| assert_eq!(decoder.decode(&mut buf), Ok(None), "{header:?}"));
        assert!(
            used.bytes_max < 4096,
            "{header:?} took {} bytes",
            used.bytes_max
        );
        assert!(
            (1..=64 << 10).contains(&decoder.wanted()),
            "{header:?} makes the reader reserve {}",
            decoder.wanted()
        );
        // Silence costs nothing either.
        let used = measure(|| assert_eq!(decoder.decode(&mut buf), Ok(None)));
        assert_eq!(used.count_total, 0, "{header:?}");
    }
}

#[test]
fn what_is_wanted_grows_with_what_has_come() {
    let mut decoder = Decoder::default();
    assert_eq!(decoder.wanted(), 0);
    let mut buf = BytesMut::from("$10\r\nabc");
    assert_eq!(decoder.decode(&mut buf), Ok(None));
    assert_eq!(decoder.wanted(), 9, "seven bytes and the line end");
    buf.extend_from_slice(b"defghij\r");
    assert_eq!(decoder.decode(&mut buf), Ok(None));
    assert_eq!(decoder.wanted(), 1);
    buf.extend_from_slice(b"\n");
    assert_eq!(
        decoder.decode(&mut buf),
        Ok(Some(Frame::Reply(bulk(b"abcdefghij"))))
    );
    assert_eq!(decoder.decode(&mut buf), Ok(None));
    assert_eq!(decoder.wanted(), 0, "between two frames");

    buf.extend_from_slice(b"$100000000\r\n");
    assert_eq!(decoder.decode(&mut buf), Ok(None));
    assert_eq!(decoder.wanted(), 64 << 10);
    buf.resize(1 << 20, b'x');
    assert_eq!(decoder.decode(&mut buf), Ok(None));
    assert_eq!(decoder.wanted(), 1 << 20, "as much again as has come");
}

#[test]
fn a_line_without_an_end_is_given_up_at_the_limit() {
    let endless = vec![b'1'; (64 << 10) + 1];
    for marker in ["+", "-", ":", ",", "("] {
        let (allowed, all) = (&endless[..64 << 10], &endless[..]);
        // Piece by piece, which must not make it quadratic: this takes minutes if every piece
        // starts over.
        let outcome = decode(
            Limits::default(),
            [marker.as_bytes()].into_iter().chain(allowed.chunks(1)),
        );
        assert_eq!(outcome.end, Ok(allowed.len() + 1), "{marker} at the limit");
        let outcome = decode(
            Limits::default(),
            [marker.as_bytes()].into_iter().chain(all.chunks(1)),
        );
        assert_eq!(outcome.end, Err(Kind::LineTooLong), "{marker} above it");
    }
    for marker in ["$", "*", "%", "~", "|", ">", "!", "="] {
        let line = format!("{marker}{}", "1".repeat(30));
        assert_eq!(
            decode_every_way(Limits::default(), line.as_bytes()).end,
            Err(Kind::Length),
            "{marker}"
        );
    }
}

#[test]
fn every_limit_can_be_set_and_means_the_last_allowed_size() {
    let limits = Limits {
        bulk: 4,
        elements: 2,
        line: 6,
        ..Limits::default()
    };
    let cases: [(&str, Result<usize, Kind>); 18] = [
        ("$4\r\nabcd\r\n", Ok(0)),
        ("$5\r\nabcde\r\n", Err(Kind::BulkTooLong)),
        ("!5\r\nabcde\r\n", Err(Kind::BulkTooLong)),
        ("=5\r\ntxt:e\r\n", Err(Kind::BulkTooLong)),
        ("$?\r\n;2\r\nab\r\n;2\r\ncd\r\n;0\r\n", Ok(0)),
        (
            "$?\r\n;2\r\nab\r\n;3\r\ncde\r\n;0\r\n",
            Err(Kind::BulkTooLong),
        ),
        ("*2\r\n:1\r\n:2\r\n", Ok(0)),
        ("*3\r\n", Err(Kind::TooManyElements)),
        ("~3\r\n", Err(Kind::TooManyElements)),
        (">3\r\n", Err(Kind::TooManyElements)),
        ("%2\r\n:1\r\n:1\r\n:1\r\n:1\r\n", Ok(0)),
        ("%3\r\n", Err(Kind::TooManyElements)),
        ("*?\r\n:1\r\n:2\r\n.\r\n", Ok(0)),
        ("*?\r\n:1\r\n:2\r\n:3\r\n", Err(Kind::TooManyElements)),
        ("*?\r\n:1\r\n:2\r\n*0\r\n", Err(Kind::TooManyElements)),
        (
            "%?\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
            Err(Kind::TooManyElements),
        ),
        ("+abcdef\r\n", Ok(0)),
        ("+abcdefg\r\n", Err(Kind::LineTooLong)),
    ];
    for (bytes, end) in cases {
        assert_eq!(
            decode_every_way(limits, bytes.as_bytes()).end,
            end,
            "{bytes:?}"
        );
    }
}

#[test]
fn a_frame_without_an_end_is_given_up_at_the_limit() {
    let limits = Limits {
        frame: 1000,
        ..Limits::default()
    };
    let cases = [
        "*?\r\n".to_owned() + &":1\r\n".repeat(500),
        "*1000\r\n".to_owned() + &"_\r\n".repeat(500),
        "*2\r\n$500\r\n".to_owned() + &"x".repeat(500) + "\r\n$500\r\n",
        "*1\r\n".to_owned() + &"|0\r\n".repeat(500),
    ];
    for bytes in cases {
        assert_eq!(
            decode_every_way(limits, bytes.as_bytes()).end,
            Err(Kind::FrameTooLong),
            "{bytes:?}"
        );
    }
    // Attributes before a frame are none of it, and none of them is kept.
    let attributes = "|1\r\n+k\r\n:1\r\n".repeat(500);
    assert_eq!(
        decode_every_way(limits, attributes.as_bytes()),
        Outcome::of(&[], Ok(0))
    );
}

#[test]
fn extreme_limits_overflow_nothing() {
    let limits = Limits {
        depth: usize::MAX,
        bulk: u64::MAX,
        elements: u64::MAX,
        line: usize::MAX,
        frame: usize::MAX,
        memory: usize::MAX,
    };
    for (bytes, end) in [
        ("$18446744073709551615\r\nabc", Err(Kind::FrameTooLong)),
        ("$9223372036854775807\r\nabc", Ok(25)),
        ("*18446744073709551615\r\n:1\r\n", Ok(27)),
        (
            "%18446744073709551615\r\n:1\r\n",
            Err(Kind::TooManyElements),
        ),
        ("*?\r\n:1\r\n.\r\n", Ok(0)),
        ("%?\r\n:1\r\n:1\r\n.\r\n", Ok(0)),
    ] {
        assert_eq!(
            decode_every_way(limits, bytes.as_bytes()).end,
            end,
            "{bytes:?}"
        );
    }
    let nothing = Limits {
        depth: 0,
        bulk: 0,
        elements: 0,
        line: 0,
        frame: 0,
        memory: 0,
    };
    for (bytes, end) in [
        (":1\r\n", Ok(0)),
        ("+\r\n", Ok(0)),
        ("+a\r\n", Err(Kind::LineTooLong)),
        ("$1\r\n", Err(Kind::BulkTooLong)),
        ("*0\r\n", Err(Kind::TooDeep)),
    ] {
        assert_eq!(
            decode_every_way(nothing, bytes.as_bytes()).end,
            end,
            "{bytes:?}"
        );
    }
}

#[test]
fn usual_replies_take_no_memory() {
    let mut decoder = Decoder::default();
    let mut buf = BytesMut::from(
        "+OK\r\n+QUEUED\r\n+PONG\r\n:1\r\n_\r\n$-1\r\n#t\r\n,1.5\r\n$0\r\n\r\n+\r\n*0\r\n%0\r\n",
    );
    let warm = b"*1\r\n:1\r\n";
    assert!(
        decoder
            .decode(&mut BytesMut::from(&warm[..]))
            .is_ok_and(|frame| frame.is_some())
    );
    let used = measure(|| while let Ok(Some(_)) = decoder.decode(&mut buf) {});
    assert_eq!((buf.len(), used.count_total), (0, 0));
}

#[test]
fn a_small_value_does_not_keep_the_read_buffer_alive() {
    // In the middle of a block of 64 KiB, as a connection reads it.
    for reply in [
        &b"$10\r\n0123456789\r\n"[..],
        b"*2\r\n$10\r\n0123456789\r\n$3\r\nabc\r\n",
        b"-ERR failed\r\n",
        b"+STATUS\r\n",
    ] {
        let mut decoder = Decoder::default();
        let used = measure(|| {
            let mut buf = BytesMut::with_capacity(64 << 10);
            buf.extend_from_slice(reply);
            let kept = decoder.decode(&mut buf);
            drop(buf);
            std::mem::forget(kept);
        });
        assert!(
            used.bytes_current < 1024,
            "{} keeps {} bytes",
            reply.escape_ascii(),
            used.bytes_current
        );
    }
}

#[test]
fn a_large_frame_leaves_nothing_behind_once_shrunk() {
    let mut decoder = Decoder::default();
    let used = measure(|| {
        let mut buf = BytesMut::from(("*20000\r\n".to_owned() + &":1\r\n".repeat(20_000)).as_str());
        let frame = decoder
            .decode(&mut buf)
            .expect("it is valid")
            .expect("it is whole");
        assert_eq!(frame, Frame::Reply(Value::Array(vec![int(1); 20_000])));
        decoder.shrink();
    });
    assert!(
        used.bytes_current < 8192,
        "{} bytes are left",
        used.bytes_current
    );
}
