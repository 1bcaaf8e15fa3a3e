//! Replies of an in-memory server, and how they are written.

use std::io::Write;

use super::keyspace::WrongType;

/// A reply to a command.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reply {
    /// `+OK` and the like.
    Status(&'static str),
    Int(i64),
    Bulk(Vec<u8>),
    Nil,
    Array(Vec<Self>),
    /// Keys and values, one after another.
    Map(Vec<Self>),
    Push(Vec<Self>),
    /// Without the leading `-`.
    Error(String),
}

/// The result of a command; the error is its text.
pub(super) type Outcome = Result<Reply, String>;

impl Reply {
    pub(super) const OK: Self = Self::Status("OK");

    pub(super) fn text(text: impl Into<Vec<u8>>) -> Self {
        Self::Bulk(text.into())
    }

    pub(super) fn bulk_or_nil(bytes: Option<Vec<u8>>) -> Self {
        bytes.map_or(Self::Nil, Self::Bulk)
    }

    /// A score, as the servers write it.
    pub(super) fn score(score: f64) -> Self {
        Self::text(format_number(score))
    }

    /// Appends it as RESP3, or as RESP2.
    pub(super) fn write(&self, out: &mut Vec<u8>, is_resp3: bool) {
        match self {
            Self::Status(text) => line(out, '+', text),
            Self::Int(n) => line(out, ':', &n.to_string()),
            Self::Bulk(bytes) => {
                line(out, '$', &bytes.len().to_string());
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            Self::Nil if is_resp3 => out.extend_from_slice(b"_\r\n"),
            Self::Nil => out.extend_from_slice(b"$-1\r\n"),
            Self::Map(items) if is_resp3 => all(out, ('%', items.len() / 2), items, true),
            Self::Push(items) if is_resp3 => all(out, ('>', items.len()), items, true),
            Self::Array(items) | Self::Map(items) | Self::Push(items) => {
                all(out, ('*', items.len()), items, is_resp3);
            }
            Self::Error(text) => line(out, '-', text),
        }
    }
}

impl From<WrongType> for String {
    fn from(_: WrongType) -> Self {
        "WRONGTYPE Operation against a key holding the wrong kind of value".to_owned()
    }
}

/// A number as Redis and its Lua hand it on: whole numbers without a fraction.
pub(super) fn format_number(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if number.fract() == 0.0 && number.abs() < 1e17 {
        return (number as i64).to_string();
    }
    number.to_string()
}

fn all(out: &mut Vec<u8>, (kind, count): (char, usize), items: &[Reply], is_resp3: bool) {
    line(out, kind, &count.to_string());
    for item in items {
        item.write(out, is_resp3);
    }
}

fn line(out: &mut Vec<u8>, kind: char, text: &str) {
    // Writing into memory does not fail.
    let _ = write!(out, "{kind}{text}\r\n");
}
