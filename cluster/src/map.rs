//! The present map: which node serves a key, now.
//!
//! A map is immutable and swapped whole. Nodes that stay keep their connections.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use leasehold_resp::Endpoint;
use leasehold_resp::connection::Event;

use crate::locking::lock;
use crate::node::Node;
use crate::slot::slot;
use crate::topology::{NodeAddress, View};

/// How many off-map nodes are kept.
const MAX_OFF_MAP: usize = 8;

/// The nodes and their slots, at one moment.
#[derive(Debug)]
pub(crate) struct Map {
    pub(crate) view: View,
    /// Parallel to the shards of the view: their masters.
    nodes: Vec<Arc<Node>>,
}

/// The present map, and nodes that are not in it.
pub(crate) struct Nodes {
    /// How to get at a server, but for its address.
    pub(crate) template: Endpoint,
    map: RwLock<Arc<Map>>,
    /// Nodes that an `ASK` named and the map does not have, the newest last. A new shard is in no map before its first
    /// slot has arrived; without these every command for it would open a connection (redis-rs issue 1025).
    off_map: Mutex<Vec<Arc<Node>>>,
    /// Called with the events of the nodes' connections.
    observer: NodeObserver,
    closed: AtomicBool,
}

/// Called with a node and an event of its shared connection.
pub(crate) type NodeObserver = Arc<dyn Fn(&Arc<Node>, Event) + Send + Sync>;

impl Nodes {
    /// A map without nodes.
    pub(crate) fn new(template: Endpoint, view: View, observer: NodeObserver) -> Self {
        let nodes = Vec::new();
        Self {
            template,
            map: RwLock::new(Arc::new(Map { view, nodes })),
            off_map: Mutex::default(),
            observer,
            closed: AtomicBool::new(false),
        }
    }

    /// The present map.
    pub(crate) fn map(&self) -> Arc<Map> {
        Arc::clone(&self.read())
    }

    /// Whether the map has `node`.
    pub(crate) fn serves(&self, node: &Arc<Node>) -> bool {
        self.map()
            .nodes
            .iter()
            .any(|known| Arc::ptr_eq(known, node))
    }

    /// The node of `key`, if any serves it.
    pub(crate) fn node_of(&self, key: &[u8]) -> Option<Arc<Node>> {
        // Under the lock rather than from a map of its own: its count is the one thing that all threads would write to.
        self.read().node_of(key)
    }

    /// The node at `address`, known or new. A redirect may name one that the map does not have yet.
    pub(crate) fn node_at(&self, address: &NodeAddress) -> Arc<Node> {
        let map = self.map();
        let address = map.view.known_as(address);
        if let Some(node) = find(&map.nodes, address) {
            return node;
        }
        let mut off_map = self.off_map();
        if let Some(node) = find(&off_map, address) {
            return node;
        }
        let node = self.new_node(address, None);
        if off_map.len() == MAX_OFF_MAP {
            off_map.remove(0);
        }
        off_map.push(Arc::clone(&node));
        node
    }

    /// Replaces the map by one with another view, if `change` makes one; returns the map that was replaced. The
    /// connections of nodes that are in neither the new map nor off the map end when their present users are done. New
    /// nodes are reached through `endpoint`, if there is one.
    pub(crate) fn swap(
        &self,
        endpoint: Option<&Endpoint>,
        change: impl FnOnce(&Map) -> Option<View>,
    ) -> Option<Arc<Map>> {
        let mut current = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let view = change(&current)?;
        let mut off_map = self.off_map();
        let nodes: Vec<_> = view
            .shards()
            .iter()
            .map(|shard| {
                let address = &shard.master;
                find(&current.nodes, address)
                    .or_else(|| find(&off_map, address))
                    .unwrap_or_else(|| self.new_node(address, endpoint))
            })
            .collect();
        off_map.retain(|node| find(&nodes, &node.address).is_none());
        drop(off_map);
        let map = Arc::new(Map { view, nodes });
        Some(std::mem::replace(&mut *current, map))
    }

    /// Closes the connections of all nodes, those to come included.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // Nodes that are being added now see the mark, or are in the map by the time it can be read.
        for node in &self.map().nodes {
            node.pool.close();
        }
        for node in self.off_map().drain(..) {
            node.pool.close();
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Made under the lock of the list that it becomes part of, so that [`close`](Self::close) does not miss it.
    fn new_node(&self, address: &NodeAddress, endpoint: Option<&Endpoint>) -> Arc<Node> {
        let observer = Arc::clone(&self.observer);
        let observe = move |node: &Arc<Node>, event| observer(node, event);
        let node = match endpoint {
            Some(endpoint) => Node::new(address.clone(), endpoint, observe),
            None => Node::new(address.clone(), &address.endpoint(&self.template), observe),
        };
        if self.is_closed() {
            node.pool.close();
        }
        node
    }

    fn read(&self) -> RwLockReadGuard<'_, Arc<Map>> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn off_map(&self) -> MutexGuard<'_, Vec<Arc<Node>>> {
        lock(&self.off_map)
    }
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nodes")
            .field("map", &self.map())
            .finish_non_exhaustive()
    }
}

impl Map {
    pub(crate) fn node_of(&self, key: &[u8]) -> Option<Arc<Node>> {
        // A lone server serves everything: no need to compute the slot.
        let owner = if self.view.is_single() {
            0
        } else {
            self.view.owner(slot(key))?
        };
        self.nodes.get(owner).cloned()
    }

    pub(crate) fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }
}

fn find(nodes: &[Arc<Node>], address: &NodeAddress) -> Option<Arc<Node>> {
    nodes.iter().find(|node| node.address == *address).cloned()
}
