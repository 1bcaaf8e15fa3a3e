//! One connection that everyone shares.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use crate::command::Encode;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::value::Value;

/// A pipelined connection; clones share it.
#[derive(Clone, Debug)]
pub struct Connection;

impl Connection {
    /// Connects and shakes hands, within the endpoint's connect timeout.
    ///
    /// # Errors
    ///
    /// Whatever kept the handshake from ending.
    pub async fn connect(endpoint: Endpoint) -> Result<Self, Error> {
        let _ = endpoint;
        todo!()
    }

    /// Queues a command at once; its reply comes from the future.
    ///
    /// Submitting does not wait, so `Drop` may call it.
    pub fn submit<E: Encode + ?Sized>(&self, command: &E, deadline: Instant) -> Reply {
        let _ = (command, deadline);
        todo!()
    }

    /// Submits with the endpoint's command timeout and waits; an error reply is an [`Error`].
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub async fn send<E: Encode + ?Sized>(&self, command: &E) -> Result<Value, Error> {
        let _ = command;
        todo!()
    }
}

/// The reply to come of a submitted command.
///
/// # Cancel safety
///
/// Dropping it abandons the reply; the command was or will be sent all the same.
#[derive(Debug)]
#[must_use = "the outcome of a command is in its reply"]
pub struct Reply;

impl Future for Reply {
    type Output = Result<Value, Error>;

    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        todo!()
    }
}
