//! One handle over wherever the keys live.

use std::time::{Instant, SystemTime};

use leasehold_resp::{Encode, Endpoint, Error, Value};

use crate::script::ScriptCall;
use crate::subscriptions::Subscription;

/// A client; clones share its connections.
#[derive(Clone, Debug)]
pub struct Client;

/// What a script replied, and the instant before the request that got this reply was written.
#[derive(Debug)]
pub struct Evaluated {
    /// The reply; never an error.
    pub value: Value,
    /// When the attempt that was answered was submitted, by the monotonic clock.
    pub sent: Instant,
    /// The same instant by the wall clock.
    pub sent_wall: SystemTime,
}

impl Client {
    /// Connects to one server.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, refuses us, or is none.
    pub async fn connect(endpoint: Endpoint) -> Result<Self, Error> {
        let _ = endpoint;
        todo!()
    }

    /// Runs an idempotent script: EVALSHA, EVAL on NOSCRIPT; tried again on transient failures until `deadline`.
    ///
    /// # Errors
    ///
    /// The last failure. [`Error::may_have_executed`] is true if any of the attempts may have run.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take back what was sent.
    pub async fn eval(&self, call: &ScriptCall<'_>, deadline: Instant) -> Result<Evaluated, Error> {
        let _ = (call, deadline);
        todo!()
    }

    /// One attempt at a script, queued at once, behind everything this client queued for that key before; `done` is
    /// called with the outcome, on the connection's task or right here. For `Drop`, which cannot wait.
    ///
    /// A `NOSCRIPT` is answered with EVAL before `done` is called.
    pub fn submit(&self, call: &ScriptCall<'_>, done: impl FnOnce(Result<Value, Error>) + Send + 'static) {
        let _ = (call, done);
        todo!()
    }

    /// Runs one command at the node of `key`; never repeated once it may have been sent.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub async fn call<E: Encode + ?Sized>(&self, key: &[u8], command: &E) -> Result<Value, Error> {
        let _ = (key, command);
        todo!()
    }

    /// Subscribes to `channel`; see [`Subscription`]. The confirmation arrives as [`Event::Subscribed`](crate::Event).
    #[must_use]
    pub fn subscribe(&self, channel: &[u8]) -> Subscription {
        let _ = channel;
        todo!()
    }

    /// Ends all connections; every command under way gets an answer or an error.
    pub fn close(&self) {
        todo!()
    }
}
