//! Replies that end in time, whichever runtime drives the connection.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use leasehold_resp::{ConnectionId, Error, ErrorKind, Reply, Value};
use tokio::time::Sleep;

use crate::node::Node;

/// Extra time for the connection's own timeout to come first: its error has more detail.
const SLACK: Duration = Duration::from_millis(250);

/// A reply with a timer of its own where the connection's may not run: its driver lives on another runtime, which may be
/// blocked or not driven at all. On the same runtime there is no timer, which would cost more than encoding a command.
pub(crate) struct Bounded {
    reply: Reply,
    node: Arc<Node>,
    /// Set when the reply was waited for on another runtime than that of the connection.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Bounded {
    /// The reply to a command that was just submitted to `node`.
    pub(crate) fn new(reply: Reply, node: &Arc<Node>) -> Self {
        Self {
            reply,
            node: Arc::clone(node),
            timer: None,
        }
    }

    /// The connection that the command was sent over, until the reply was taken; see [`Reply::connection`].
    pub(crate) fn connection(&self) -> Option<ConnectionId> {
        self.reply.connection()
    }

    /// Gives the outcome to a function instead; see [`Reply::detach`].
    pub(crate) fn detach(self, callback: impl FnOnce(Result<Value, Error>) + Send + 'static) {
        self.reply.detach(callback);
    }
}

impl Future for Bounded {
    type Output = Result<Value, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(outcome) = Pin::new(&mut self.reply).poll(cx) {
            return Poll::Ready(outcome);
        }
        if self.timer.is_none() && !self.node.is_driven_here() {
            let timeout = self.node.connection().endpoint().command_timeout;
            self.timer = Some(Box::pin(tokio::time::sleep(timeout + SLACK)));
        }
        if let Some(timer) = &mut self.timer {
            ready!(timer.as_mut().poll(cx));
            let detail =
                "no reply in time; the runtime that the connection lives on may be blocked";
            let node = self.node.connection().node();
            return Poll::Ready(Err(Error::new(ErrorKind::Timeout, node, detail)));
        }
        Poll::Pending
    }
}
