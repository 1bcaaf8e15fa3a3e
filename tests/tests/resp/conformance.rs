//! Every type of RESP2 and RESP3, valid and not, whole and in pieces, alone, followed and nested.

use leasehold_resp::ProtocolErrorKind as Kind;
use leasehold_resp::{Frame, Limits, Value};

use crate::support::{Outcome, bulk, decode_every_way, int, simple};

fn error(text: &[u8]) -> Value {
    Value::Error(text.to_vec().into())
}

fn big(digits: &str) -> Value {
    Value::BigNumber(digits.to_owned().into())
}

fn verbatim(format: &[u8; 3], text: &[u8]) -> Value {
    Value::Verbatim {
        format: *format,
        text: text.to_vec().into(),
    }
}

/// Valid frames and their values.
fn valid() -> Vec<(Vec<u8>, Value)> {
    let mut table: Vec<(Vec<u8>, Value)> = [
        // Simple strings and errors: any bytes but line ends.
        (&b"+\r\n"[..], simple("")),
        (b"+OK\r\n", simple("OK")),
        (b"+PONG\r\n", simple("PONG")),
        (
            b"+\xff\xfe\x00\r\n",
            Value::Simple(vec![0xff, 0xfe, 0].into()),
        ),
        (b"-\r\n", error(b"")),
        (b"-ERR no \xff\r\n", error(b"ERR no \xff")),
        // Integers: 64 bits, either sign written out, zeros in front.
        (b":0\r\n", int(0)),
        (b":-0\r\n", int(0)),
        (b":+7\r\n", int(7)),
        (b":007\r\n", int(7)),
        (b":-00000000000000000000000000000007\r\n", int(-7)),
        (b":999999999999999999\r\n", int(999_999_999_999_999_999)),
        (b":9223372036854775807\r\n", int(i64::MAX)),
        (b":-9223372036854775808\r\n", int(i64::MIN)),
        // Bulk strings: any bytes, the line end among them.
        (b"$0\r\n\r\n", bulk(b"")),
        (b"$5\r\nhello\r\n", bulk(b"hello")),
        (b"$4\r\n\r\n\x00\xff\r\n", bulk(b"\r\n\x00\xff")),
        (b"$-1\r\n", Value::Null),
        // Arrays.
        (b"*0\r\n", Value::Array(vec![])),
        (b"*-1\r\n", Value::Null),
        (
            b"*2\r\n:1\r\n$1\r\na\r\n",
            Value::Array(vec![int(1), bulk(b"a")]),
        ),
        (
            b"*1\r\n*1\r\n*0\r\n",
            Value::Array(vec![Value::Array(vec![Value::Array(vec![])])]),
        ),
        (
            b"*3\r\n$-1\r\n*-1\r\n_\r\n",
            Value::Array(vec![Value::Null, Value::Null, Value::Null]),
        ),
        // Null and booleans.
        (b"_\r\n", Value::Null),
        (b"#t\r\n", Value::Boolean(true)),
        (b"#f\r\n", Value::Boolean(false)),
        // Doubles: every form that printf of any libc writes.
        (b",0\r\n", Value::Double(0.0)),
        (b",-1.5\r\n", Value::Double(-1.5)),
        (b",+1.5\r\n", Value::Double(1.5)),
        (b",.5\r\n", Value::Double(0.5)),
        (b",1.0000000000000001e+300\r\n", Value::Double(1e300)),
        (b",1E-7\r\n", Value::Double(1e-7)),
        (b",inf\r\n", Value::Double(f64::INFINITY)),
        (b",+INF\r\n", Value::Double(f64::INFINITY)),
        (b",-inf\r\n", Value::Double(f64::NEG_INFINITY)),
        (b",nan\r\n", Value::Double(f64::NAN)),
        (b",NaN\r\n", Value::Double(f64::NAN)),
        // Big numbers keep what was sent.
        (b"(0\r\n", big("0")),
        (
            b"(-3492890328409238509324850943850943825024385\r\n",
            big("-3492890328409238509324850943850943825024385"),
        ),
        (b"(+1\r\n", big("+1")),
        // Errors and text with a length.
        (b"!0\r\n\r\n", error(b"")),
        (
            b"!10\r\nERR a\r\nb\xff\x00\r\n",
            error(b"ERR a\r\nb\xff\x00"),
        ),
        (b"=4\r\ntxt:\r\n", verbatim(b"txt", b"")),
        (b"=8\r\nmkd:*a*\n\r\n", verbatim(b"mkd", b"*a*\n")),
        (b"=6\r\n\xff  :::\r\n", verbatim(b"\xff  ", b"::")),
        // Maps and sets: in the order sent, with repetitions, with keys and elements of any type.
        (b"%0\r\n", Value::Map(vec![])),
        (b"%-1\r\n", Value::Null),
        (
            b"%2\r\n+a\r\n:1\r\n+a\r\n:2\r\n",
            Value::Map(vec![(simple("a"), int(1)), (simple("a"), int(2))]),
        ),
        (
            b"%1\r\n*1\r\n_\r\n%0\r\n",
            Value::Map(vec![(Value::Array(vec![Value::Null]), Value::Map(vec![]))]),
        ),
        (b"~0\r\n", Value::Set(vec![])),
        (b"~-1\r\n", Value::Null),
        (b"~2\r\n:1\r\n:1\r\n", Value::Set(vec![int(1), int(1)])),
        (
            b"~1\r\n%1\r\n:1\r\n~0\r\n",
            Value::Set(vec![Value::Map(vec![(int(1), Value::Set(vec![]))])]),
        ),
        // Attributes describe a value and are none: before any type, repeated, nested in each
        // other, empty.
        (b"|1\r\n+ttl\r\n:3600\r\n:1\r\n", int(1)),
        (
            b"|0\r\n|1\r\n+a\r\n|1\r\n+b\r\n_\r\n*0\r\n*1\r\n:1\r\n",
            Value::Array(vec![int(1)]),
        ),
        (
            b"*2\r\n|1\r\n+a\r\n:1\r\n:7\r\n:8\r\n",
            Value::Array(vec![int(7), int(8)]),
        ),
        (
            b"%1\r\n|1\r\n+a\r\n:1\r\n+k\r\n|0\r\n:8\r\n",
            Value::Map(vec![(simple("k"), int(8))]),
        ),
        (b"|1\r\n+a\r\n:1\r\n$?\r\n;1\r\nx\r\n;0\r\n", bulk(b"x")),
        (
            b"|1\r\n$?\r\n;1\r\nx\r\n;0\r\n*?\r\n.\r\n_\r\n",
            Value::Null,
        ),
        // Streams.
        (b"$?\r\n;0\r\n", bulk(b"")),
        (b"$?\r\n;4\r\nHell\r\n;1\r\no\r\n;0\r\n", bulk(b"Hello")),
        (b"*?\r\n.\r\n", Value::Array(vec![])),
        (
            b"*?\r\n:1\r\n*?\r\n:2\r\n.\r\n.\r\n",
            Value::Array(vec![int(1), Value::Array(vec![int(2)])]),
        ),
        (
            b"~?\r\n:1\r\n|0\r\n:2\r\n.\r\n",
            Value::Set(vec![int(1), int(2)]),
        ),
        (
            b"%?\r\n+a\r\n%?\r\n.\r\n.\r\n",
            Value::Map(vec![(simple("a"), Value::Map(vec![]))]),
        ),
    ]
    .map(|(bytes, value)| (bytes.to_vec(), value))
    .into();

    // The longest that the default limits let through, and sizes on both sides of what is copied or
    // shared.
    let line = "9".repeat(Limits::default().line);
    table.push((format!("+{line}\r\n").into(), simple(&line)));
    table.push((format!("({line}\r\n").into(), big(&line)));
    let double = format!("0.{}", "0".repeat(323));
    table.push((format!(",{double}\r\n").into(), Value::Double(0.0)));
    for len in [99, 100, 2048, 2049, 5000] {
        let text = vec![b'x'; len];
        let wire = [format!("${len}\r\n").as_bytes(), &text, b"\r\n"].concat();
        table.push((wire, bulk(&text)));
    }
    table
}

/// Invalid bytes, which end a connection, and the reason.
fn invalid() -> Vec<(Vec<u8>, Kind)> {
    let mut table: Vec<(Vec<u8>, Kind)> = [
        (&b"\r\n"[..], Kind::UnknownType),
        (b"OK\r\n", Kind::UnknownType),
        (b"\x00", Kind::UnknownType),
        (b"@1\r\n", Kind::UnknownType),
        // A half line end is not "incomplete": nothing that follows could make it valid.
        (b"+a\rb\r\n", Kind::LineEnd),
        (b"+a\nb\r\n", Kind::LineEnd),
        (b"-a\n", Kind::LineEnd),
        (b":1\rx", Kind::LineEnd),
        (b"_x\r\n", Kind::LineEnd),
        (b"_\n", Kind::LineEnd),
        (b"#tt\r\n", Kind::LineEnd),
        (b"$1\r\nab\r\n", Kind::LineEnd),
        (b"$1\r\na\n", Kind::LineEnd),
        (b"$0\r\n:1\r\n", Kind::LineEnd),
        (b"!1\r\nab\r\n", Kind::LineEnd),
        (b"*1\rx", Kind::LineEnd),
        (b"*?\r\n.x\r\n", Kind::LineEnd),
        (b":\r\n", Kind::Integer),
        (b":+\r\n", Kind::Integer),
        (b":--1\r\n", Kind::Integer),
        (b": 1\r\n", Kind::Integer),
        (b":1 \r\n", Kind::Integer),
        (b":1.0\r\n", Kind::Integer),
        (b":abc\r\n", Kind::Integer),
        (b":9223372036854775808\r\n", Kind::Integer),
        (b":-9223372036854775809\r\n", Kind::Integer),
        (b":99999999999999999999999\r\n", Kind::Integer),
        (b":1234567890123456789012x\r\n", Kind::Integer),
        // Lengths, as strict as servers are with ours.
        (b"$\r\n", Kind::Length),
        (b"$-2\r\n", Kind::Length),
        (b"$-0\r\n", Kind::Length),
        (b"$-\r\n", Kind::Length),
        (b"$-11\r\n", Kind::Length),
        (b"$+1\r\n", Kind::Length),
        (b"$03\r\nabc\r\n", Kind::Length),
        (b"$00\r\n", Kind::Length),
        (b"$3 \r\n", Kind::Length),
        (b"$3\n", Kind::Length),
        (b"$a\r\n", Kind::Length),
        (b"$??\r\n", Kind::Length),
        (b"$99999999999999999999\r\n", Kind::Length),
        (b"*-2\r\n", Kind::Length),
        (b"*01\r\n", Kind::Length),
        (b"%-2\r\n", Kind::Length),
        (b"~+1\r\n", Kind::Length),
        (b"!-1\r\n", Kind::Length),
        (b"!?\r\n", Kind::Length),
        (b"=-1\r\n", Kind::Length),
        (b"=?\r\n", Kind::Length),
        (b"|-1\r\n", Kind::Length),
        (b"|?\r\n", Kind::Length),
        (b">-1\r\n", Kind::Length),
        (b">?\r\n", Kind::Length),
        (b"$536870913\r\n", Kind::BulkTooLong),
        (b"!18446744073709551615\r\n", Kind::BulkTooLong),
        (b"*4294967296\r\n", Kind::TooManyElements),
        (b"%18446744073709551615\r\n", Kind::TooManyElements),
        (b"#\r\n", Kind::Boolean),
        (b"#T\r\n", Kind::Boolean),
        (b"#1\r\n", Kind::Boolean),
        (b",\r\n", Kind::Double),
        (b",-\r\n", Kind::Double),
        (b",.\r\n", Kind::Double),
        (b",e5\r\n", Kind::Double),
        (b",1e\r\n", Kind::Double),
        (b",1.5.5\r\n", Kind::Double),
        (b",1,5\r\n", Kind::Double),
        (b",infinity\r\n", Kind::Double),
        (b",--inf\r\n", Kind::Double),
        (b", 1\r\n", Kind::Double),
        (b",0x1p3\r\n", Kind::Double),
        (b",\xff\r\n", Kind::Double),
        (b"(\r\n", Kind::BigNumber),
        (b"(-\r\n", Kind::BigNumber),
        (b"(1.5\r\n", Kind::BigNumber),
        (b"(12a\r\n", Kind::BigNumber),
        (b"=3\r\ntxt\r\n", Kind::Verbatim),
        (b"=0\r\n\r\n", Kind::Verbatim),
        (b"=8\r\ntxt-abcd\r\n", Kind::Verbatim),
        // Parts of streams where no stream is, and something else where one goes on.
        (b";1\r\na\r\n", Kind::Stream),
        (b".\r\n", Kind::Stream),
        (b"*1\r\n.\r\n", Kind::Stream),
        (b"*?\r\n;1\r\na\r\n", Kind::Stream),
        (b"$?\r\n:1\r\n", Kind::Stream),
        (b"$?\r\n$1\r\na\r\n", Kind::Stream),
        (b"$?\r\n.\r\n", Kind::Stream),
        (b"*?\r\n*1\r\n.\r\n", Kind::Stream),
        (b"$?\r\n;-1\r\n", Kind::Length),
        (b"$?\r\n;?\r\n", Kind::Length),
        (b"$?\r\n;1\r\nab\r\n", Kind::LineEnd),
        (b"%?\r\n+a\r\n.\r\n", Kind::OddMap),
        (b"*?\r\n|0\r\n.\r\n", Kind::Attribute),
        (b"*?\r\n:1\r\n|1\r\n+a\r\n:1\r\n.\r\n", Kind::Attribute),
        // A push has a kind, and a kind is a string.
        (b">0\r\n", Kind::Push),
        (b">1\r\n:1\r\n", Kind::Push),
        (b">1\r\n_\r\n", Kind::Push),
        (b">2\r\n*1\r\n+message\r\n:1\r\n", Kind::Push),
        (b">1\r\n*0\r\n", Kind::Push),
        (b">1\r\n-ERR\r\n", Kind::Push),
    ]
    .map(|(bytes, kind)| (bytes.to_vec(), kind))
    .into();

    let line = "9".repeat(Limits::default().line + 1);
    for marker in ["+", "-", ":", "("] {
        table.push((format!("{marker}{line}\r\n").into(), Kind::LineTooLong));
        table.push((format!("{marker}{line}").into(), Kind::LineTooLong));
    }
    table.push((format!(",{}\r\n", "1".repeat(326)).into(), Kind::Double));
    table
}

/// Ways to be nested: the bytes before, the bytes behind, and the resulting value.
type Nesting = (&'static [u8], &'static [u8], fn(Value) -> Frame);

const NESTINGS: &[Nesting] = &[
    (b"*1\r\n", b"", |value| {
        Frame::Reply(Value::Array(vec![value]))
    }),
    (b"*3\r\n:1\r\n", b"$1\r\nz\r\n", |value| {
        Frame::Reply(Value::Array(vec![int(1), value, bulk(b"z")]))
    }),
    (b"~2\r\n", b"_\r\n", |value| {
        Frame::Reply(Value::Set(vec![value, Value::Null]))
    }),
    (b"%1\r\n+k\r\n", b"", |value| {
        Frame::Reply(Value::Map(vec![(simple("k"), value)]))
    }),
    (b"%1\r\n", b":1\r\n", |key| {
        Frame::Reply(Value::Map(vec![(key, int(1))]))
    }),
    (b"*?\r\n", b".\r\n", |value| {
        Frame::Reply(Value::Array(vec![value]))
    }),
    (b"~?\r\n", b".\r\n", |value| {
        Frame::Reply(Value::Set(vec![value]))
    }),
    (b"%?\r\n+k\r\n", b".\r\n", |value| {
        Frame::Reply(Value::Map(vec![(simple("k"), value)]))
    }),
    (b">2\r\n+kind\r\n", b"", |value| {
        Frame::Push(vec![simple("kind"), value])
    }),
    (b"|1\r\n+k\r\n", b":5\r\n", |_| Frame::Reply(int(5))),
    (b"|1\r\n", b":5\r\n:6\r\n", |_| Frame::Reply(int(6))),
    (b"*1\r\n%1\r\n:1\r\n~1\r\n", b"", |value| {
        Frame::Reply(Value::Array(vec![Value::Map(vec![(
            int(1),
            Value::Set(vec![value]),
        )])]))
    }),
];

#[test]
fn every_valid_form_has_its_value_however_it_is_cut() {
    for (bytes, value) in valid() {
        let outcome = decode_every_way(Limits::default(), &bytes);
        assert_eq!(
            outcome,
            Outcome::of(&[Frame::Reply(value)], Ok(0)),
            "{}",
            bytes.escape_ascii()
        );
    }
}

#[test]
fn a_frame_ends_exactly_where_the_next_begins() {
    for (bytes, value) in valid() {
        let both = [&bytes[..], b"$4\r\nnext\r\n:"].concat();
        let frames = [Frame::Reply(value), Frame::Reply(bulk(b"next"))];
        assert_eq!(
            decode_every_way(Limits::default(), &both),
            Outcome::of(&frames, Ok(1)),
            "{}",
            bytes.escape_ascii()
        );
    }
}

#[test]
fn every_valid_form_may_stand_inside_of_every_aggregate() {
    for (bytes, value) in valid() {
        for (before, behind, make) in NESTINGS {
            let nested = [before, &bytes[..], behind].concat();
            let outcome = decode_every_way(Limits::default(), &nested);
            assert_eq!(
                outcome,
                Outcome::of(&[make(value.clone())], Ok(0)),
                "{}",
                nested.escape_ascii()
            );
        }
    }
}

#[test]
fn every_invalid_form_is_refused_however_it_is_cut() {
    for (bytes, kind) in invalid() {
        let outcome = decode_every_way(Limits::default(), &bytes);
        assert_eq!(
            outcome,
            Outcome::of(&[], Err(kind)),
            "{}",
            bytes.escape_ascii()
        );
    }
}

#[test]
fn every_invalid_form_is_refused_behind_a_frame_and_inside_of_every_aggregate() {
    for (bytes, kind) in invalid() {
        let behind = [b"+OK\r\n", &bytes[..]].concat();
        let outcome = decode_every_way(Limits::default(), &behind);
        assert_eq!(
            outcome,
            Outcome::of(&[Frame::Reply(simple("OK"))], Err(kind)),
            "{}",
            behind.escape_ascii()
        );
        // An end of a stream is in its place inside of a stream.
        if bytes == b".\r\n" {
            continue;
        }
        for (before, _, _) in NESTINGS {
            let nested = [before, &bytes[..]].concat();
            let outcome = decode_every_way(Limits::default(), &nested);
            assert_eq!(
                outcome,
                Outcome::of(&[], Err(kind)),
                "{}",
                nested.escape_ascii()
            );
        }
    }
}

#[test]
fn pushes_come_out_between_replies_in_their_order() {
    let bytes =
        b">3\r\n+message\r\n+ch\r\n$1\r\na\r\n+OK\r\n>2\r\n$10\r\ninvalidate\r\n*1\r\n+k\r\n:1\r\n";
    let frames = [
        Frame::Push(vec![simple("message"), simple("ch"), bulk(b"a")]),
        Frame::Reply(simple("OK")),
        Frame::Push(vec![bulk(b"invalidate"), Value::Array(vec![simple("k")])]),
        Frame::Reply(int(1)),
    ];
    assert_eq!(
        decode_every_way(Limits::default(), bytes),
        Outcome::of(&frames, Ok(0))
    );
}

#[test]
fn a_push_between_an_attribute_and_its_reply_is_a_push() {
    let bytes = b"|1\r\n+a\r\n:1\r\n>1\r\n=8\r\ntxt:kind\r\n:1\r\n";
    let frames = [
        Frame::Push(vec![verbatim(b"txt", b"kind")]),
        Frame::Reply(int(1)),
    ];
    assert_eq!(
        decode_every_way(Limits::default(), bytes),
        Outcome::of(&frames, Ok(0))
    );
}

#[test]
fn a_push_inside_a_reply_comes_out_first_and_counts_as_no_element() {
    let push = || Frame::Push(vec![simple("message"), bulk(b"m")]);
    // Redis 7.0 answers EXEC so, when the transaction publishes to its own client.
    let exec = [
        push(),
        Frame::Reply(Value::Array(vec![int(1), simple("PONG")])),
    ];
    // As the last element, in a map at a value, in a stream, in an attribute, and inside of another
    // push.
    let cases: [(&[u8], &[Frame]); 7] = [
        (b"*2\r\n>2\r\n+message\r\n$1\r\nm\r\n:1\r\n+PONG\r\n", &exec),
        (b"*2\r\n:1\r\n>2\r\n+message\r\n$1\r\nm\r\n+PONG\r\n", &exec),
        (
            b"%1\r\n+k\r\n>2\r\n+message\r\n$1\r\nm\r\n:1\r\n",
            &[
                push(),
                Frame::Reply(Value::Map(vec![(simple("k"), int(1))])),
            ],
        ),
        (
            b"*?\r\n$1\r\nx\r\n>2\r\n+message\r\n$1\r\nm\r\n.\r\n",
            &[push(), Frame::Reply(Value::Array(vec![bulk(b"x")]))],
        ),
        (
            b"|1\r\n+k\r\n>2\r\n+message\r\n$1\r\nm\r\n:1\r\n:2\r\n",
            &[push(), Frame::Reply(int(2))],
        ),
        (
            b">2\r\n>2\r\n+message\r\n$1\r\nm\r\n+a\r\n+b\r\n",
            &[push(), Frame::Push(vec![simple("a"), simple("b")])],
        ),
        (
            b"*1\r\n*1\r\n>2\r\n+message\r\n$1\r\nm\r\n>2\r\n+message\r\n$1\r\nm\r\n*0\r\n",
            &[
                push(),
                push(),
                Frame::Reply(Value::Array(vec![Value::Array(vec![Value::Array(vec![])])])),
            ],
        ),
    ];
    for (bytes, frames) in cases {
        let outcome = decode_every_way(Limits::default(), bytes);
        assert_eq!(
            outcome,
            Outcome::of(frames, Ok(0)),
            "{}",
            bytes.escape_ascii()
        );
    }
}

#[test]
fn a_handshake_with_modules_decodes() {
    // Valkey 9 and Redis 8 list their modules as maps inside of the reply to HELLO.
    let bytes =
        b"%2\r\n$5\r\nproto\r\n:3\r\n$7\r\nmodules\r\n*1\r\n%2\r\n$4\r\nname\r\n$3\r\nlua\r\n$4\r\nargs\r\n*0\r\n";
    let module = Value::Map(vec![
        (bulk(b"name"), bulk(b"lua")),
        (bulk(b"args"), Value::Array(vec![])),
    ]);
    let hello = Value::Map(vec![
        (bulk(b"proto"), int(3)),
        (bulk(b"modules"), Value::Array(vec![module])),
    ]);
    assert_eq!(
        decode_every_way(Limits::default(), bytes),
        Outcome::of(&[Frame::Reply(hello)], Ok(0))
    );
}
