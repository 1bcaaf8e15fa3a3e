//! Values to bytes: the parts a request is made of.
//!
//! Requests are arrays of bulk strings and nothing else, whatever protocol version the replies come in. Writing one
//! allocates nothing but the room in `out`, and none at all once `out` has grown to its working size.
//!
//! ```
//! use leasehold_resp::encode;
//! let mut out = Vec::new();
//! encode::array(&mut out, 3);
//! encode::bulk(&mut out, b"PEXPIRE");
//! encode::bulk(&mut out, b"key");
//! encode::int(&mut out, 30_000);
//! assert_eq!(out, b"*3\r\n$7\r\nPEXPIRE\r\n$3\r\nkey\r\n$5\r\n30000\r\n");
//! ```
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod decimal;
mod value;

use decimal::Decimal;
pub use value::{push, value};

/// Appends the header of a request of `n` arguments, the command's name among them.
///
/// A server ignores a request without arguments and sends no reply to it, so `n` must not be zero: every later reply
/// would be taken for the one before.
pub fn array(out: &mut Vec<u8>, n: usize) {
    header(out, b'*', n);
}

/// Appends one argument.
#[inline(always)]
pub fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    header(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Appends a whole request of these arguments: the bytes that [`array`] and [`bulk`] make, but each line end is written with
/// the header of the next argument, and saves a check for room.
pub(crate) fn request(out: &mut Vec<u8>, args: &[&[u8]]) {
    match u8::try_from(args.len()) {
        Ok(n @ 0..=9) => out.extend_from_slice(&[b'*', digit(n)]),
        _ => {
            out.push(b'*');
            out.extend_from_slice(Decimal::unsigned(args.len() as u64).as_bytes());
        }
    }
    for arg in args {
        match u8::try_from(arg.len()) {
            Ok(n @ 0..=9) => out.extend_from_slice(&[b'\r', b'\n', b'$', digit(n), b'\r', b'\n']),
            Ok(n @ 10..=99) => {
                let (tens, ones) = (digit(n / 10), digit(n % 10));
                out.extend_from_slice(&[b'\r', b'\n', b'$', tens, ones, b'\r', b'\n']);
            }
            _ => {
                out.extend_from_slice(b"\r\n");
                long_header(out, b'$', arg.len());
            }
        }
        out.extend_from_slice(arg);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends one argument, a decimal number.
pub fn int(out: &mut Vec<u8>, n: i64) {
    match u8::try_from(n) {
        // The number of keys of each script, for one.
        Ok(n @ 0..=9) => out.extend_from_slice(&[b'$', b'1', b'\r', b'\n', digit(n), b'\r', b'\n']),
        _ => bulk(out, Decimal::signed(n).as_bytes()),
    }
}

/// Appends a type byte, a count and a line end.
///
/// Counts below 100 are all that lock scripts ever need; they are written as one array of known size each, which the
/// compiler turns into a single store where it is inlined.
#[inline(always)]
fn header(out: &mut Vec<u8>, marker: u8, n: usize) {
    match u8::try_from(n) {
        Ok(n @ 0..=9) => out.extend_from_slice(&[marker, digit(n), b'\r', b'\n']),
        Ok(n @ 10..=99) => {
            out.extend_from_slice(&[marker, digit(n / 10), digit(n % 10), b'\r', b'\n'])
        }
        _ => long_header(out, marker, n),
    }
}

#[cold]
fn long_header(out: &mut Vec<u8>, marker: u8, n: usize) {
    out.push(marker);
    out.extend_from_slice(Decimal::unsigned(n as u64).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// The character of a number below ten.
const fn digit(n: u8) -> u8 {
    b'0' | n
}
