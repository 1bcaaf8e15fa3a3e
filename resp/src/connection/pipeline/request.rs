//! A submitted command: the form of its reply, and where its outcome goes.

use std::task::Waker;
use std::time::Instant;

use bytes::Bytes;

use crate::error::Error;
use crate::protocol::classify::ServerError;
use crate::protocol::push::Confirmation;
use crate::protocol::value::Value;

/// The outcome of a command.
pub type Outcome = Result<Value, Error>;

/// Called with an outcome, outside of any lock.
pub type Callback = Box<dyn FnOnce(Outcome) + Send>;

/// Identifies a request until its outcome was fetched, abandoned or passed to a callback.
pub type RequestId = u32;

/// A submitted command.
pub(super) struct Request {
    pub(super) phase: Phase,
    pub(super) shape: Shape,
    /// Stream position of the command's first byte: decides between *not sent* and *unknown*.
    pub(super) start: u64,
    pub(super) deadline: Instant,
}

pub(crate) enum Phase {
    /// Free for the next request.
    Vacant,
    /// A future polls for the reply.
    Waiting(Option<Waker>),
    /// The future was dropped; the reply is dropped when it comes.
    Abandoned,
    /// The reply goes to a function.
    Detached(Callback),
    /// The outcome is known and not fetched yet; the request has left the queue.
    Ready(Outcome),
}

/// The form of the reply to a command.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// One reply.
    Reply,
    /// The reply to an `ASKING`, which is kept here when it has come, then one.
    AfterAsking(Option<Value>),
    /// No reply but a push for each channel, or one error reply.
    Confirmations {
        /// The kind of all those pushes.
        kind: Confirmation,
        /// The channels that are not confirmed yet.
        channels: Vec<Bytes>,
    },
}

impl Request {
    /// Whether it fails when its deadline passes. Nobody waits for one that was abandoned, and a (un)subscription may
    /// be confirmed late.
    pub(super) fn expires(&self) -> bool {
        self.shape.is_reply() && !matches!(self.phase, Phase::Abandoned)
    }
}

impl Shape {
    pub(super) const fn is_reply(&self) -> bool {
        matches!(self, Self::Reply | Self::AfterAsking(_))
    }
}

/// The reply to a command behind `ASKING`. Where `ASKING` is refused its command is redirected like any other: the
/// refusal is the reason, so it is the reply.
pub(super) fn reply_after_asking(asking: &Value, reply: Value) -> Value {
    match (asking, &reply) {
        (Value::Error(_), Value::Error(line)) if ServerError::parse(line).is_redirect() => {
            asking.clone()
        }
        _ => reply,
    }
}
