//! A whole [`Value`] in the form a RESP3 server would send it.
//!
//! A client never needs it to talk to a server. Fakes, proxies and tests do.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use std::io::Write;

use super::{Decimal, header};
use crate::protocol::value::Value;

/// Appends `value` as a RESP3 reply; decoding it gives the same value again.
///
/// Values that the protocol cannot carry are changed as servers do it: line ends in a simple string become spaces. An error
/// with line ends is sent in its length-prefixed form instead.
///
/// It calls itself for each level of nesting, as dropping a value does.
pub fn value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.extend_from_slice(b"_\r\n"),
        Value::Boolean(true) => out.extend_from_slice(b"#t\r\n"),
        Value::Boolean(false) => out.extend_from_slice(b"#f\r\n"),
        Value::Integer(n) => line(out, b':', Decimal::signed(*n).as_bytes()),
        Value::Double(n) => double(out, *n),
        Value::BigNumber(digits) => line(out, b'(', digits),
        Value::Simple(text) => line(out, b'+', text),
        Value::Bulk(bytes) => block(out, b'$', &[bytes]),
        Value::Verbatim { format, text } => block(out, b'=', &[format, b":", text]),
        Value::Error(text) if text.iter().any(|byte| is_line_end(*byte)) => {
            block(out, b'!', &[text])
        }
        Value::Error(text) => line(out, b'-', text),
        Value::Array(elements) => aggregate(out, b'*', elements),
        Value::Set(elements) => aggregate(out, b'~', elements),
        Value::Map(pairs) => {
            header(out, b'%', pairs.len());
            for (key, element) in pairs {
                self::value(out, key);
                self::value(out, element);
            }
        }
    }
}

/// Appends an out-of-band push; the first element must be a string, which names its kind.
pub fn push(out: &mut Vec<u8>, elements: &[Value]) {
    aggregate(out, b'>', elements);
}

fn aggregate(out: &mut Vec<u8>, marker: u8, elements: &[Value]) {
    header(out, marker, elements.len());
    for element in elements {
        value(out, element);
    }
}

fn line(out: &mut Vec<u8>, marker: u8, text: &[u8]) {
    out.push(marker);
    out.extend(
        text.iter()
            .map(|byte| if is_line_end(*byte) { b' ' } else { *byte }),
    );
    out.extend_from_slice(b"\r\n");
}

fn block(out: &mut Vec<u8>, marker: u8, parts: &[&[u8]]) {
    header(out, marker, parts.iter().map(|part| part.len()).sum());
    for part in parts {
        out.extend_from_slice(part);
    }
    out.extend_from_slice(b"\r\n");
}

/// With an exponent, so that no finite number takes more than 25 characters; parsers stop reading at about 325.
fn double(out: &mut Vec<u8>, n: f64) {
    out.push(b',');
    if n.is_nan() {
        out.extend_from_slice(b"nan");
    } else if n.is_infinite() {
        out.extend_from_slice(if n > 0.0 { b"inf".as_slice() } else { b"-inf" });
    } else {
        // Writing to a vector cannot fail.
        let _ = write!(out, "{n:e}");
    }
    out.extend_from_slice(b"\r\n");
}

const fn is_line_end(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}
