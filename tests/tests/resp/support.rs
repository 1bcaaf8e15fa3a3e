//! Helpers of the codec's tests: decoding in pieces, and comparable outcomes.

use std::time::Duration;

use bytes::BytesMut;
use leasehold_resp::{Command, Decoder, Frame, Limits, ProtocolErrorKind, Value};
use leasehold_testkit::until_for;
use leasehold_testkit::wait::Answer;

/// Upper bound on each wait for the client.
pub(crate) const BOUND: Duration = Duration::from_secs(20);

/// Asks again and again until it is so.
pub(crate) async fn until<A: Answer>(what: &str, ask: impl AsyncFnMut() -> A) -> A::Value {
    until_for(BOUND, what, ask).await
}

/// The outcome of a stream: its frames, then the error that ended it, if any, and otherwise the
/// number of bytes left over.
///
/// Frames are compared by their `Debug` form, in which not-a-number equals itself.
#[derive(Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) frames: Vec<String>,
    pub(crate) end: Result<usize, ProtocolErrorKind>,
}

impl Outcome {
    pub(crate) fn of(frames: &[Frame], end: Result<usize, ProtocolErrorKind>) -> Self {
        Self {
            frames: frames.iter().map(|frame| format!("{frame:?}")).collect(),
            end,
        }
    }
}

/// Decodes a stream that arrives in `pieces`.
pub(crate) fn decode<'a>(limits: Limits, pieces: impl IntoIterator<Item = &'a [u8]>) -> Outcome {
    let mut decoder = Decoder::new(limits);
    let mut buf = BytesMut::new();
    let mut frames = Vec::new();
    for piece in pieces {
        buf.extend_from_slice(piece);
        loop {
            match decoder.decode(&mut buf) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(
                        decoder.decode(&mut buf),
                        Err(error),
                        "an error must be final"
                    );
                    return Outcome::of(&frames, Err(error.kind()));
                }
            }
        }
    }
    Outcome::of(&frames, Ok(buf.len()))
}

/// Decodes `bytes` whole, byte by byte and cut in two at every place; all outcomes must be equal.
/// Long input is cut at some places only.
pub(crate) fn decode_every_way(limits: Limits, bytes: &[u8]) -> Outcome {
    let (piece, step) = if bytes.len() < 2000 {
        (1, 1)
    } else {
        (61, bytes.len() / 10)
    };
    let whole = decode(limits, [bytes]);
    assert_eq!(
        decode(limits, bytes.chunks(piece)),
        whole,
        "in pieces of {piece}: {}",
        bytes.escape_ascii()
    );
    for cut in (0..bytes.len()).step_by(step) {
        let (first, second) = bytes.split_at(cut);
        assert_eq!(
            decode(limits, [first, second]),
            whole,
            "cut at {cut}: {}",
            bytes.escape_ascii()
        );
    }
    whole
}

/// Short forms for the tables.
pub(crate) fn simple(text: &str) -> Value {
    Value::Simple(text.to_owned().into())
}

pub(crate) fn bulk(bytes: &[u8]) -> Value {
    Value::Bulk(bytes.to_vec().into())
}

pub(crate) fn int(n: i64) -> Value {
    Value::Integer(n)
}

pub(crate) fn echo(text: &str) -> Command {
    Command::new("ECHO").arg(text)
}
