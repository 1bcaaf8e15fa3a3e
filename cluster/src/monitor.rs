//! A client's news besides replies: how many requests it sent, and what changed in its connections and its map.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts the requests of the clients that are [connected](crate::Client::connect_monitored) with it, and passes on what
/// changes in their connections and maps.
#[derive(Default)]
pub struct Monitor {
    requests: AtomicU64,
    listener: Option<Listener>,
}

/// Called with each change.
type Listener = Box<dyn Fn(Change) + Send + Sync>;

/// A change of a client's connections or its map.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// The shared connection to `node` had ended, and is up again after so long.
    Reconnected {
        /// The node, as messages name it.
        node: Arc<str>,
        /// The time without it.
        after: Duration,
    },
    /// The map from slots to nodes is another one; where sentinels name the master, that is.
    Map {
        /// The number of masters in it.
        masters: usize,
    },
}

impl Monitor {
    /// A monitor whose changes go to `listener`. It is called on the tasks of the connections, under no mutex, and must not
    /// block.
    pub fn new(listener: impl Fn(Change) + Send + Sync + 'static) -> Self {
        Self {
            requests: AtomicU64::new(0),
            listener: Some(Box::new(listener)),
        }
    }

    /// How many scripts and commands were sent, repetitions included. Subscriptions, and what is asked to learn the map, are
    /// not among them.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    pub(crate) fn sent(&self, requests: usize) {
        self.requests.fetch_add(requests as u64, Ordering::Relaxed);
    }

    pub(crate) fn tell(&self, change: impl FnOnce() -> Change) {
        if let Some(listener) = &self.listener {
            listener(change());
        }
    }
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitor")
            .field("requests", &self.requests())
            .finish_non_exhaustive()
    }
}
