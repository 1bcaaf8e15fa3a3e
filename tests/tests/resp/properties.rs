//! Properties of all values and all bytes.

use leasehold_resp::{Command, Decoder, Encode, Frame, Limits, ServerError, Value, encode};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::{Outcome, decode};

/// Any value, up to five levels deep.
fn value() -> impl Strategy<Value = Value> {
    let text = vec(any::<u8>(), 0..40).prop_map(|bytes| without_line_ends(&bytes));
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Boolean),
        any::<i64>().prop_map(Value::Integer),
        any::<f64>().prop_map(Value::Double),
        Just(Value::Double(f64::NEG_INFINITY)),
        "[+-]?[0-9]{1,60}".prop_map(|digits| Value::BigNumber(digits.into())),
        text.prop_map(|text| Value::Simple(text.into())),
        // Small ones, and some above the size that is shared with the buffer instead of copied.
        vec(any::<u8>(), 0..100).prop_map(|bytes| Value::Bulk(bytes.into())),
        vec(any::<u8>(), 2000..6000).prop_map(|bytes| Value::Bulk(bytes.into())),
        vec(any::<u8>(), 0..100).prop_map(|bytes| Value::Error(bytes.into())),
        (any::<[u8; 3]>(), vec(any::<u8>(), 0..100)).prop_map(|(format, text)| Value::Verbatim {
            format,
            text: text.into()
        }),
    ];
    leaf.prop_recursive(5, 64, 8, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..8).prop_map(Value::Array),
            vec(inner.clone(), 0..8).prop_map(Value::Set),
            vec((inner.clone(), inner), 0..5).prop_map(Value::Map),
        ]
    })
}

/// Bytes that look like the protocol more often than chance would have it.
fn almost_protocol() -> impl Strategy<Value = Vec<u8>> {
    let token = prop_oneof![
        8 => prop::sample::select(vec![
            "*", "$", "+", "-", ":", "%", "~", "|", ">", "=", "!", "(", ",", "#", "_", ";", ".", "?", "\r\n", "\r", "\n",
            "0", "1", "2", "3", "-1", "18446744073709551615", "txt:", "inf", "t", "+OK\r\n", ":1\r\n", "*2\r\n", "$1\r\na\r\n",
            "*?\r\n", "$?\r\n", ";1\r\nx\r\n", ";0\r\n", ".\r\n", "|1\r\n", ">2\r\n+k\r\n", "%1\r\n", "_\r\n",
        ]).prop_map(|token| token.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..6),
    ];
    vec(token, 0..40).prop_map(|tokens| tokens.concat())
}

fn without_line_ends(bytes: &[u8]) -> Vec<u8> {
    bytes
        .iter()
        .map(|byte| {
            if matches!(byte, b'\r' | b'\n') {
                b' '
            } else {
                *byte
            }
        })
        .collect()
}

/// `bytes` cut into pieces of these sizes, over and over.
fn cut<'a>(mut bytes: &'a [u8], sizes: &'a [usize]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    for size in sizes.iter().cycle() {
        if bytes.is_empty() {
            break;
        }
        let (piece, rest) = bytes.split_at((*size).min(bytes.len()));
        pieces.push(piece);
        bytes = rest;
    }
    pieces
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_encoded_is_decoded_in_whatever_pieces_it_arrives(
        values in vec(value(), 1..4),
        sizes in vec(1_usize..200, 1..10),
    ) {
        let mut bytes = Vec::new();
        for value in &values {
            encode::value(&mut bytes, value);
        }
        let frames: Vec<_> = values.into_iter().map(Frame::Reply).collect();
        prop_assert_eq!(decode(Limits::default(), cut(&bytes, &sizes)), Outcome::of(&frames, Ok(0)));
    }

    #[test]
    fn a_push_arrives_as_a_push(kind in "[a-z]{1,12}", payload in vec(value(), 0..4), sizes in vec(1_usize..200, 1..10)) {
        let elements: Vec<_> = [Value::Bulk(kind.into())].into_iter().chain(payload).collect();
        let mut bytes = Vec::new();
        encode::push(&mut bytes, &elements);
        prop_assert_eq!(decode(Limits::default(), cut(&bytes, &sizes)), Outcome::of(&[Frame::Push(elements)], Ok(0)));
    }

    #[test]
    fn a_command_arrives_as_an_array_of_bulk_strings(name in "[A-Z]{1,12}", args in vec(vec(any::<u8>(), 0..300), 0..12), n: i64) {
        let mut command = Command::new(&name);
        for arg in &args {
            command = command.arg(arg);
        }
        let mut bytes = Vec::new();
        command.arg_int(n).encode(&mut bytes);
        let sent = [name.into_bytes()].into_iter().chain(args).chain([n.to_string().into_bytes()]);
        let array = Value::Array(sent.map(|arg| Value::Bulk(arg.into())).collect());
        prop_assert_eq!(decode(Limits::default(), [&bytes[..]]), Outcome::of(&[Frame::Reply(array)], Ok(0)));
    }

    #[test]
    fn any_bytes_come_to_the_same_in_whatever_pieces(bytes in almost_protocol(), sizes in vec(1_usize..30, 1..10)) {
        let limits = Limits { depth: 6, bulk: 50, elements: 5, line: 20, frame: 300, memory: 8 << 10 };
        let whole = decode(limits, [&bytes[..]]);
        prop_assert_eq!(&decode(limits, cut(&bytes, &sizes)), &whole);
        prop_assert_eq!(&decode(limits, bytes.chunks(1)), &whole);
    }

    #[test]
    fn any_bytes_are_an_error_line(line in vec(any::<u8>(), 0..200)) {
        let error = ServerError::parse(&line);
        prop_assert!(error.to_string().chars().all(|c| !c.is_control()));
    }
}

#[test]
fn integers_of_every_length_are_written_as_they_are_read() {
    let mut n = 1_i64;
    while let Some(next) = n.checked_mul(10) {
        for n in [n - 1, n, n + 1, -n, 1 - n] {
            let mut bytes = Vec::new();
            encode::int(&mut bytes, n);
            assert_eq!(
                String::from_utf8_lossy(&bytes),
                format!("${}\r\n{n}\r\n", n.to_string().len())
            );
        }
        n = next;
    }
    for n in [i64::MIN, i64::MAX] {
        let mut bytes = Vec::new();
        encode::int(&mut bytes, n);
        assert_eq!(
            String::from_utf8_lossy(&bytes),
            format!("${}\r\n{n}\r\n", n.to_string().len())
        );
    }
}

#[test]
fn headers_of_every_length_are_written_as_they_are_read() {
    for len in [0, 1, 9, 10, 99, 100, 101, 999, 1000, 65_535, 100_000] {
        let mut bytes = Vec::new();
        encode::bulk(&mut bytes, &vec![b'x'; len]);
        assert_eq!(
            decode(Limits::default(), [&bytes[..]]),
            Outcome::of(
                &[Frame::Reply(crate::support::bulk(&vec![b'x'; len]))],
                Ok(0)
            )
        );
        let mut bytes = Vec::new();
        encode::array(&mut bytes, len);
        assert_eq!(bytes, format!("*{len}\r\n").as_bytes());
    }
    let _: Decoder = Decoder::default();
}

#[test]
fn a_request_is_the_header_of_an_array_and_its_arguments() {
    for lens in [
        vec![0],
        vec![1, 9, 10, 11, 99, 100, 101],
        vec![1000, 0, 70_000],
        vec![3; 9],
        vec![3; 10],
        vec![10; 100],
    ] {
        let args: Vec<Vec<u8>> = lens.iter().map(|&len| vec![b'x'; len]).collect();
        let slices: Vec<&[u8]> = args.iter().map(|arg| &**arg).collect();
        let mut written = b"before".to_vec();
        slices[..].encode(&mut written);
        let mut expected = b"before".to_vec();
        encode::array(&mut expected, args.len());
        for arg in &args {
            encode::bulk(&mut expected, arg);
        }
        assert_eq!(written, expected, "{lens:?}");
    }
}
