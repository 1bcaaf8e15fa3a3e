//! A script that was submitted once: its outcome as it comes, a redirect as an error.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use leasehold_resp::{Error, Reply, ServerErrorKind, Value};

use crate::node::Node;
use crate::redirect::target_of;
use crate::router::Router;
use crate::script::Bit;

/// A script under way.
///
/// # Cancel safety
///
/// Dropping it abandons the reply and takes nothing back.
#[must_use = "the outcome of a script is in its reply"]
pub struct Submitted(State);

enum State {
    Sent {
        reply: Reply,
        router: Arc<Router>,
        node: Arc<Node>,
        script: Bit,
    },
    /// No node serves the key.
    Failed(Option<Error>),
}

impl Submitted {
    /// The outcome of a `script` that was submitted to `node`.
    pub(crate) fn sent(reply: Reply, router: &Arc<Router>, node: Arc<Node>, script: Bit) -> Self {
        Self(State::Sent {
            reply,
            router: Arc::clone(router),
            node,
            script,
        })
    }

    /// The outcome of a script that could not be submitted.
    pub(crate) const fn failed(error: Error) -> Self {
        Self(State::Failed(Some(error)))
    }

    /// Gives the outcome to a function instead; see [`Reply::detach`].
    pub fn detach(self, callback: impl FnOnce(Result<Value, Error>) + Send + 'static) {
        match self.0 {
            State::Sent {
                reply,
                router,
                node,
                script,
            } => reply.detach(move |outcome| {
                note(&router, &node, script, &outcome);
                callback(outcome);
            }),
            State::Failed(Some(error)) => callback(Err(error)),
            State::Failed(None) => {}
        }
    }
}

impl Future for Submitted {
    type Output = Result<Value, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            State::Sent {
                reply,
                router,
                node,
                script,
            } => {
                let outcome = ready!(Pin::new(reply).poll(cx));
                note(router, node, *script, &outcome);
                Poll::Ready(outcome)
            }
            State::Failed(error) => error.take().map_or(Poll::Pending, |e| Poll::Ready(Err(e))),
        }
    }
}

impl fmt::Debug for Submitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            State::Sent { .. } => "Submitted(sent)",
            State::Failed(_) => "Submitted(failed)",
        })
    }
}

/// Remembers what an outcome says of the node's script cache and of the map.
pub(crate) fn note(router: &Arc<Router>, node: &Node, script: Bit, outcome: &Result<Value, Error>) {
    let Err(error) = outcome else {
        node.known.learn(script);
        return node.note_success();
    };
    node.note(error, script);
    match error.as_server().map(|server| server.kind()) {
        Some(ServerErrorKind::Moved { slot, host, port }) => {
            if let Some(address) = target_of(host.as_deref(), *port, &node.address.host) {
                router.moved(*slot, &address);
            }
        }
        _ if error.is_transient() => router.refresh(),
        _ => {}
    }
}
