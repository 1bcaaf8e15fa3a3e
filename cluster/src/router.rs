//! Which node serves a key, now: the map, how it is learned, and who is told when it changes.
//!
//! The map is immutable and swapped whole. Commands read it and go straight to the node's connection: there is no task
//! between them, so a shard that is slow or dead delays nobody else. Learning a new map happens in the background, one
//! attempt at a time, and blocks no command (redis-rs issue 2092: a refresh that stops the world).

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use leasehold_resp::connection::Event;
use leasehold_resp::{Endpoint, Error, ErrorKind};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::background::spawn;
use crate::discovery::{Discovery, Found};
use crate::node::Node;
use crate::sentinel::OnSwitch;
use crate::slot::{SLOTS, slot};
use crate::subscriptions::{Hub, Routing};
use crate::topology::{NodeAddress, View};

/// Shortest pause between two attempts to learn the map. Callers ask for one whenever a node fails them.
const REFRESH_PAUSE: Duration = Duration::from_millis(25);

/// The first pause between two looks for the successor of a node that is down; each further one is twice as long.
const FIRST_SEARCH_PAUSE: Duration = Duration::from_millis(100);

/// The longest of these pauses.
const LONGEST_SEARCH_PAUSE: Duration = Duration::from_millis(500);

/// How often the map of a cluster is learned anew without any sign that it has changed.
const REFRESH_PERIOD: Duration = Duration::from_secs(60);

/// How many off-map nodes are kept.
const MAX_OFF_MAP: usize = 8;

/// What routes commands; shared by all clones of a client.
pub(crate) struct Router {
    /// How to get at a server, but for its address.
    template: Endpoint,
    discovery: Discovery,
    map: RwLock<Arc<Map>>,
    /// Nodes that an `ASK` named and the map does not have, the newest last. A new shard is in no map before its first
    /// slot has arrived; without these every command for it would open a connection (redis-rs issue 1025).
    off_map: Mutex<Vec<Arc<Node>>>,
    pub(crate) hub: Arc<Hub>,
    /// For each slot the most replicas that its master was ever known to have; a single entry where there are no slots.
    replicas: Mutex<Vec<u16>>,
    /// Told when the map changes, a node comes up, or the client is closed.
    pub(crate) changed: Notify,
    /// Counts the first two.
    changes: AtomicU64,
    /// Whether the map is being learned anew.
    refresh: Mutex<Refresh>,
    last_refresh: Mutex<Option<Instant>>,
    closed: AtomicBool,
    itself: Weak<Self>,
}

/// The nodes and their slots, at one moment.
#[derive(Debug)]
pub(crate) struct Map {
    pub(crate) view: View,
    /// Parallel to the shards of the view: their masters.
    nodes: Vec<Arc<Node>>,
}

impl Router {
    /// Learns the first map.
    pub(crate) async fn connect(
        template: Endpoint,
        discovery: Discovery,
    ) -> Result<Arc<Self>, Error> {
        let found = discovery.first(&template).await?;
        let router = Arc::new_cyclic(|itself| Self {
            template,
            discovery,
            map: RwLock::new(Arc::new(Map {
                view: found.view.clone(),
                nodes: Vec::new(),
            })),
            off_map: Mutex::default(),
            hub: Hub::new(found.sharded, routing(itself)),
            replicas: Mutex::new(vec![
                0;
                if found.view.is_single() {
                    1
                } else {
                    usize::from(SLOTS)
                }
            ]),
            changed: Notify::new(),
            changes: AtomicU64::new(0),
            refresh: Mutex::new(Refresh::None),
            last_refresh: Mutex::new(None),
            closed: AtomicBool::new(false),
            itself: itself.clone(),
        });
        router.adopt(found);
        let itself = router.itself.clone();
        router.discovery.watch(
            &(Arc::new(move || {
                if let Some(router) = itself.upgrade() {
                    router.refresh();
                }
            }) as OnSwitch),
        );
        if router.discovery.is_dynamic() {
            spawn(
                &Handle::current(),
                refresh_periodically(router.itself.clone()),
            );
        }
        Ok(router)
    }

    /// The present map.
    pub(crate) fn map(&self) -> Arc<Map> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn serves(&self, node: &Arc<Node>) -> bool {
        self.map()
            .nodes
            .iter()
            .any(|known| Arc::ptr_eq(known, node))
    }

    /// The node of `key`, if anybody serves it.
    pub(crate) fn node_of(&self, key: &[u8]) -> Option<Arc<Node>> {
        // Under the lock rather than from a map of its own: its count is the one thing that all threads would write to.
        self.map
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .node_of(key)
    }

    /// How long one command may take.
    pub(crate) const fn command_timeout(&self) -> Duration {
        self.template.command_timeout
    }

    /// Whether keys belong to slots.
    pub(crate) const fn is_cluster(&self) -> bool {
        matches!(self.discovery, Discovery::Cluster { .. })
    }

    /// Whether the map can change at all.
    pub(crate) const fn is_dynamic(&self) -> bool {
        self.discovery.is_dynamic()
    }

    /// The node at `address`, known or new. A redirect may name one that the map does not have yet.
    pub(crate) fn node_at(&self, address: &NodeAddress) -> Arc<Node> {
        let map = self.map();
        let address = map.view.known_as(address);
        if let Some(node) = find(&map.nodes, address) {
            return node;
        }
        let mut off_map = self.off_map.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = find(&off_map, address) {
            return node;
        }
        let node = self.new_node(address);
        if off_map.len() == MAX_OFF_MAP {
            off_map.remove(0);
        }
        off_map.push(Arc::clone(&node));
        node
    }

    /// A node said that `slot` is at `address` now: puts that into the map at once, and has the rest looked at.
    pub(crate) fn moved(&self, slot: u16, address: &NodeAddress) {
        self.swap(|map| {
            let address = map.view.known_as(address);
            let known = map
                .view
                .owner(slot)
                .and_then(|owner| map.view.shards().get(owner));
            (known.map(|shard| &shard.master) != Some(address))
                .then(|| map.view.with_moved(slot, address))
        });
        self.refresh();
    }

    /// Has the map learned anew, in the background. Returns at once.
    pub(crate) fn refresh(&self) {
        if !self.discovery.is_dynamic() || self.is_closed() {
            return;
        }
        let mut refresh = self.refresh.lock().unwrap_or_else(PoisonError::into_inner);
        if *refresh != Refresh::None {
            *refresh = Refresh::Again;
            return;
        }
        *refresh = Refresh::UnderWay;
        drop(refresh);
        // Outside of a runtime there is nobody to wait for the result either.
        let (Some(router), Ok(runtime)) = (self.itself.upgrade(), Handle::try_current()) else {
            return *self.refresh.lock().unwrap_or_else(PoisonError::into_inner) = Refresh::None;
        };
        // Not made in the task: a runtime that is ending drops that before it ran, and the mark must not stay behind.
        let refreshing = Refreshing(router);
        spawn(&runtime, async move { refreshing.0.learn().await });
    }

    /// No more commands; connections end when those under way have been answered.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for node in &self.map().nodes {
            node.pool.close();
        }
        for node in self
            .off_map
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
        {
            node.pool.close();
        }
        self.changed.notify_waiters();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// For a key that nobody serves.
    pub(crate) fn unserved(&self) -> Error {
        if self.is_closed() {
            return Error::new(
                ErrorKind::Closed,
                &Arc::from(""),
                "the client was closed here",
            );
        }
        Error::not_sent(
            &Arc::from(""),
            "no node serves the key's slot at the moment",
        )
    }

    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.changed.notify_waiters();
    }

    async fn learn(&self) {
        let since = *self
            .last_refresh
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(since) = since {
            tokio::time::sleep_until((since + REFRESH_PAUSE).into()).await;
        }
        let map = self.map();
        if let Some(found) = self
            .discovery
            .again(&self.template, &map.view, &map.nodes)
            .await
        {
            self.adopt(found);
        }
        *self
            .last_refresh
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Makes what was found the map, unless it is already.
    fn adopt(&self, found: Found) {
        let Found { view, endpoint, .. } = found;
        self.swap_with(endpoint.as_ref(), |map| {
            (map.nodes.is_empty() || map.view != view).then_some(view)
        });
    }

    /// How many replicas the master of `slot` should have: the most it was ever known to have. Those that are connected
    /// at the moment do not count: after a failover the promoted replica has fewer, and those are not enough.
    pub(crate) fn expected_replicas(&self, key: &[u8]) -> usize {
        let replicas = self.replicas.lock().unwrap_or_else(PoisonError::into_inner);
        let index = if replicas.len() == 1 {
            0
        } else {
            usize::from(slot(key))
        };
        replicas.get(index).copied().unwrap_or(0).into()
    }

    /// The master of `key` says that it has so many replicas: remembered for everything it serves.
    pub(crate) fn expect_replicas(&self, key: &[u8], count: usize) {
        if count <= self.expected_replicas(key) {
            return;
        }
        let count = u16::try_from(count).unwrap_or(u16::MAX);
        let map = self.map();
        let master = map.view.owner(slot(key));
        let mut replicas = self.replicas.lock().unwrap_or_else(PoisonError::into_inner);
        for (slot, most) in (0..SLOTS).zip(replicas.iter_mut()) {
            if map.view.owner(slot) == master {
                *most = (*most).max(count);
            }
        }
    }

    /// Remembers how many replicas `view` knows of.
    fn expect_replicas_of(&self, view: &View) {
        let mut replicas = self.replicas.lock().unwrap_or_else(PoisonError::into_inner);
        for (slot, most) in (0..SLOTS).zip(replicas.iter_mut()) {
            if let Some(shard) = view.owner(slot).and_then(|owner| view.shards().get(owner)) {
                *most = (*most).max(u16::try_from(shard.replicas.len()).unwrap_or(u16::MAX));
            }
        }
    }

    fn swap(&self, change: impl FnOnce(&Map) -> Option<View>) {
        self.swap_with(None, change);
    }

    /// Replaces the map by one with another view. Nodes that stay keep their connections; the connections of the others
    /// end when those who are still using them are done.
    fn swap_with(&self, endpoint: Option<&Endpoint>, change: impl FnOnce(&Map) -> Option<View>) {
        let mut current = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let Some(view) = change(&current) else { return };
        let mut off_map = self.off_map.lock().unwrap_or_else(PoisonError::into_inner);
        let node = |address: &NodeAddress| match find(&current.nodes, address)
            .or_else(|| find(&off_map, address))
        {
            Some(node) => node,
            None => match endpoint {
                Some(endpoint) => self.node_through(address, endpoint),
                None => self.new_node(address),
            },
        };
        let nodes: Vec<_> = view
            .shards()
            .iter()
            .map(|shard| node(&shard.master))
            .collect();
        off_map.retain(|node| find(&nodes, &node.address).is_none());
        drop(off_map);
        self.expect_replicas_of(&view);
        let map = Arc::new(Map { view, nodes });
        let replaced = std::mem::replace(&mut *current, Arc::clone(&map));
        drop(current);
        for node in replaced
            .nodes
            .iter()
            .filter(|node| node.connection().is_stalled() && !self.serves(node))
        {
            node.replace();
        }
        self.hub.reconcile();
        self.note_change();
    }

    fn new_node(&self, address: &NodeAddress) -> Arc<Node> {
        self.node_through(address, &address.endpoint(&self.template))
    }

    fn node_through(&self, address: &NodeAddress, endpoint: &Endpoint) -> Arc<Node> {
        let router = self.itself.clone();
        Node::new(address.clone(), endpoint, move |node, event| {
            if let Some(router) = router.upgrade() {
                router.observed(node, event);
            }
        })
    }

    /// Has the map learned anew until `node` is up or serves nothing any more. Whoever holds something there, or listens
    /// there, may send nothing for a long time that could fail, and a successor is elected a while after the connection has
    /// ended.
    pub(crate) fn search(&self, node: &Arc<Node>) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        if !self.is_dynamic() || node.sought.swap(true, Ordering::AcqRel) {
            return;
        }
        let (router, seeking) = (self.itself.clone(), Seeking(Arc::downgrade(node)));
        spawn(&runtime, async move {
            let mut pause = FIRST_SEARCH_PAUSE;
            loop {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_SEARCH_PAUSE);
                let (Some(router), Some(node)) = (router.upgrade(), seeking.0.upgrade()) else {
                    return;
                };
                // In this order: if it goes down in between there is another search.
                node.sought.store(false, Ordering::Release);
                let missed =
                    !router.is_closed() && !node.connection().is_up() && router.serves(&node);
                if !missed || node.sought.swap(true, Ordering::AcqRel) {
                    return;
                }
                router.refresh();
            }
        });
    }

    fn observed(self: &Arc<Self>, node: &Arc<Node>, event: Event) {
        match &event {
            Event::Up => self.note_change(),
            Event::Down => {
                self.refresh();
                self.search(node);
            }
            Event::Stalled if self.serves(node) => self.refresh(),
            Event::Stalled => node.replace(),
            _ => {}
        }
        self.hub.observe(node, event);
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("map", &self.map())
            .finish_non_exhaustive()
    }
}

impl Map {
    pub(crate) fn node_of(&self, key: &[u8]) -> Option<Arc<Node>> {
        // One node that serves everything: no need to compute the slot.
        let owner = if let [_] = self.nodes.as_slice() {
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

/// What the subscriptions need of a router; nothing once it is gone.
fn routing(router: &Weak<Router>) -> Routing {
    let (node_of, refresh, search) = (router.clone(), router.clone(), router.clone());
    Routing {
        node_of: Box::new(move |key| node_of.upgrade()?.node_of(key)),
        refresh: Box::new(move || {
            if let Some(router) = refresh.upgrade() {
                router.refresh();
            }
        }),
        search: Box::new(move |node| {
            if let Some(router) = search.upgrade() {
                router.search(node);
            }
        }),
    }
}

/// Whether the map is being learned anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refresh {
    None,
    /// An attempt is under way or about to begin.
    UnderWay,
    /// Another one was asked for meanwhile: whoever has answered already may not have known yet.
    Again,
}

/// One attempt to learn the map.
struct Refreshing(Arc<Router>);

impl Drop for Refreshing {
    fn drop(&mut self) {
        let mut refresh = self
            .0
            .refresh
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *refresh, Refresh::None);
        drop(refresh);
        if before == Refresh::Again {
            self.0.refresh();
        }
    }
}

/// One search for the successor of a node. A runtime that is ending drops it, and the mark must not stay behind.
struct Seeking(Weak<Node>);

impl Drop for Seeking {
    fn drop(&mut self) {
        if let Some(node) = self.0.upgrade() {
            node.sought.store(false, Ordering::Release);
        }
    }
}

/// Nodes that take over without a failure (`CLUSTER FAILOVER`, new shards) are noticed by their first redirect; this is
/// for clients that are idle.
async fn refresh_periodically(router: Weak<Router>) {
    loop {
        tokio::time::sleep(REFRESH_PERIOD).await;
        match router.upgrade() {
            Some(router) if !router.is_closed() => router.refresh(),
            _ => return,
        }
    }
}
