//! Replies as the looks need them, of RESP3's nested and RESP2's flat form. Pure.

use leasehold_resp::Value;

/// Elements in turn: field and value, or member and score.
pub(crate) fn pairs(value: &Value) -> Vec<(&Value, &Value)> {
    match value {
        Value::Map(pairs) => pairs.iter().map(|(a, b)| (a, b)).collect(),
        value => match value.as_array() {
            Some(items) if items.iter().all(|item| item.as_array().is_some()) => items
                .iter()
                .filter_map(|item| match item.as_array()? {
                    [a, b] => Some((a, b)),
                    _ => None,
                })
                .collect(),
            Some(items) => items
                .chunks_exact(2)
                .map(|pair| (&pair[0], &pair[1]))
                .collect(),
            None => Vec::new(),
        },
    }
}

/// A score, or a number in a text.
pub(crate) fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(n) => Some(*n as f64),
        Value::Double(n) => Some(*n),
        value => value.as_str()?.parse().ok(),
    }
}

/// An integer, or one in a text.
pub(crate) fn integer(value: &Value) -> Option<i64> {
    value.as_int().or_else(|| value.as_str()?.parse().ok())
}

pub(crate) fn text(value: &Value) -> Option<String> {
    value
        .as_bytes()
        .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

/// The cursor of a scan, and what it found.
pub(crate) fn page(value: &Value) -> Option<(&[u8], &Value)> {
    match value.as_array()? {
        [cursor, found] => Some((cursor.as_bytes()?, found)),
        _ => None,
    }
}

/// A reply to `TIME`, in microseconds.
pub(crate) fn time(value: &Value) -> Option<u64> {
    match value.as_array()? {
        [seconds, micros] => {
            let (seconds, micros) = (integer(seconds)?, integer(micros)?);
            u64::try_from(seconds)
                .ok()?
                .checked_mul(1_000_000)?
                .checked_add(u64::try_from(micros).ok()?)
        }
        _ => None,
    }
}

/// The value of a field of `INFO`.
pub(crate) fn info<'a>(info: &'a str, field: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .map(str::trim_end)
}

/// The value of the one setting that `CONFIG GET` was asked for.
pub(crate) fn setting(value: &Value) -> Option<String> {
    pairs(value).first().and_then(|(_, value)| text(value))
}
