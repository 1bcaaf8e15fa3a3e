//! Any value, encoded and decoded again: the same value, whatever the pieces.
#![no_main]

use arbitrary::{Arbitrary, Result, Unstructured};
use leasehold_fuzz::decode;
use leasehold_resp::{Frame, Limits, Value, encode};
use libfuzzer_sys::fuzz_target;

/// A value, and the size of the pieces it arrives in.
#[derive(Debug)]
struct Input {
    value: Value,
    piece: usize,
}

impl<'a> Arbitrary<'a> for Input {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(Self {
            piece: u.int_in_range(1..=200)?,
            value: value(u, 20)?,
        })
    }
}

/// A value of at most so many levels.
fn value(u: &mut Unstructured<'_>, depth: usize) -> Result<Value> {
    let kinds = if depth == 0 { 8 } else { 11 };
    Ok(match u.int_in_range(0..=kinds)? {
        0 => Value::Null,
        1 => Value::Boolean(u.arbitrary()?),
        2 => Value::Integer(u.arbitrary()?),
        3 => Value::Double(u.arbitrary()?),
        4 => Value::BigNumber(u.arbitrary::<i128>()?.to_string().into()),
        5 => Value::Simple(u.arbitrary::<String>()?.replace(['\r', '\n'], " ").into()),
        6 => Value::Bulk(u.arbitrary::<Vec<u8>>()?.into()),
        7 => Value::Verbatim {
            format: u.arbitrary()?,
            text: u.arbitrary::<Vec<u8>>()?.into(),
        },
        8 => Value::Error(u.arbitrary::<Vec<u8>>()?.into()),
        9 => Value::Array(values(u, depth)?),
        10 => Value::Set(values(u, depth)?),
        _ => {
            let mut rest = values(u, depth)?.into_iter();
            let mut pairs = Vec::new();
            while let (Some(key), Some(value)) = (rest.next(), rest.next()) {
                pairs.push((key, value));
            }
            Value::Map(pairs)
        }
    })
}

fn values(u: &mut Unstructured<'_>, depth: usize) -> Result<Vec<Value>> {
    let len = u.int_in_range(0..=6)?;
    (0..len).map(|_| value(u, depth - 1)).collect()
}

fuzz_target!(|input: Input| {
    let mut bytes = Vec::new();
    encode::value(&mut bytes, &input.value);
    encode::push(
        &mut bytes,
        &[Value::Simple("kind".into()), input.value.clone()],
    );
    let decoded = decode(Limits::default(), bytes.chunks(input.piece));
    let expected = [
        Frame::Reply(input.value.clone()),
        Frame::Push(vec![Value::Simple("kind".into()), input.value]),
    ];
    assert_eq!(
        format!("{decoded:?}"),
        format!("{:?}", (expected, Ok::<usize, ()>(0)))
    );
});
