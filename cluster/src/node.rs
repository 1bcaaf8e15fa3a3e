//! One server that keys live on.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use leasehold_resp::connection::{Event, Observer};
use leasehold_resp::pool::Pool;
use leasehold_resp::{Connection, Endpoint, Error, Reply, ServerErrorKind};

use crate::script::{Bit, Known, ScriptCall};
use crate::topology::NodeAddress;

/// A server: its connections, and what is known of it since they were opened.
#[derive(Debug)]
pub(crate) struct Node {
    /// Where the topology says it is.
    pub(crate) address: NodeAddress,
    pub(crate) pool: Pool,
    /// The scripts it remembers.
    pub(crate) known: Known,
    /// Whether somebody looks for its successor.
    pub(crate) sought: AtomicBool,
}

impl Node {
    /// A node whose connections open when somebody waits for them; `observe` hears what they say.
    pub(crate) fn new(
        address: NodeAddress,
        endpoint: &Endpoint,
        observe: impl Fn(&Arc<Self>, Event) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new_cyclic(|weak: &std::sync::Weak<Self>| {
            let weak = weak.clone();
            let observer: Observer = Arc::new(move |_: &Connection, event| {
                let Some(node) = weak.upgrade() else { return };
                if matches!(event, Event::Down) {
                    // It may have been restarted, and then it has forgotten them.
                    node.known.forget_all();
                }
                observe(&node, event);
            });
            let pool = Pool::lazy(endpoint, 1, Some(observer));
            Self {
                address,
                pool,
                known: Known::default(),
                sought: AtomicBool::new(false),
            }
        })
    }

    /// The connection that everyone shares.
    pub(crate) fn connection(&self) -> &Connection {
        self.pool.first()
    }

    /// It is silent and another serves its keys by now: what waits for it need not wait any longer.
    pub(crate) fn replace(&self) {
        self.connection()
            .reset("the node says nothing, and its keys are served by another one now");
    }

    /// Takes note of what an error says of the scripts it remembers.
    pub(crate) fn note(&self, error: &Error, script: Bit) {
        if error
            .as_server()
            .is_some_and(|server| *server.kind() == ServerErrorKind::NoScript)
        {
            self.known.forget(script);
        }
    }

    /// Queues one attempt at a script: by its SHA if the node is known to remember it, with its source otherwise, or if
    /// the call `needs_source`.
    pub(crate) fn submit(&self, call: &ScriptCall<'_>, asking: bool, needs_source: bool) -> Reply {
        let connection = self.connection();
        let reply = match (self.known.has(call.script().bit()) && !needs_source, asking) {
            (true, false) => connection.submit(call),
            (false, false) => connection.submit(&call.with_source()),
            (true, true) => connection.submit_asking(call),
            (false, true) => connection.submit_asking(&call.with_source()),
        };
        if reply.is_refused() {
            // Whoever cannot wait for it comes back later.
            connection.start();
        }
        reply
    }
}
