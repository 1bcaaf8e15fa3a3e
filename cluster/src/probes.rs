//! Connections for questions only: to servers that serve no key here, but may know which node does.
//!
//! They are kept between questions: while a shard is down its successor is asked for again and again, which must not
//! open connections as often. When there are no more questions, they end.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use leasehold_resp::{Address, Connection, Endpoint};

use crate::locking::lock;

/// One connection for each address that was asked lately.
#[derive(Debug, Default)]
pub(crate) struct Probes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    connections: HashMap<Address, Connection>,
    /// Whether no more are to be opened.
    closed: bool,
}

impl Probes {
    /// The connection to `endpoint`, open or not; `None` when the client is closed.
    pub(crate) fn get(&self, endpoint: &Endpoint) -> Option<Connection> {
        let mut state = self.lock();
        if state.closed {
            return None;
        }
        let connection = state
            .connections
            .entry(endpoint.address.clone())
            .or_insert_with(|| Connection::lazy(endpoint.clone(), None));
        Some(connection.clone())
    }

    /// Ends all of them.
    pub(crate) fn clear(&self) {
        let connections = std::mem::take(&mut self.lock().connections);
        for connection in connections.values() {
            connection.abort();
        }
    }

    /// Ends all of them, for good.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.clear();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

/// Whether to ask there: not where the last attempt to connect failed. The connection goes on trying by itself, and a
/// search that waited for it each time would learn of a successor later than need be.
pub(crate) fn may_answer(connection: &Connection) -> bool {
    // A runtime that has ended has taken its driver along.
    connection.start();
    !connection.is_failing()
}
