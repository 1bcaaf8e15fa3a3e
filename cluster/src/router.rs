//! Keeps the map up to date: follows redirects, looks for a newer map when the present one is in doubt, and notifies
//! waiting calls when it changes.
//!
//! Commands read the map and go straight to the node's connection: there is no task between them, so a shard that is slow
//! or dead delays no other. Learning a new map happens in the background, one attempt at a time, and blocks no command
//! (redis-rs issue 2092: a refresh that stops all commands).

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use leasehold_resp::connection::Event;
use leasehold_resp::{Endpoint, Error, ErrorKind};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::background::{Begun, OnlyOne, spawn};
use crate::contact::FirstContact;
use crate::discovery::{Discovery, Found};
use crate::hub::{Hub, Routing};
use crate::listing::Memory;
use crate::locking::lock;
use crate::map::{Map, NodeObserver, Nodes};
use crate::monitor::{Change, Monitor};
use crate::node::Node;
use crate::pacing::Pacing;
use crate::random::jittered;
use crate::sentinel::{OnSwitch, Sentinels};
use crate::slot::slot;
use crate::topology::{NodeAddress, View};
use crate::views::Present;

/// The longest time until the map of a cluster is learned anew without any sign that it has changed.
const REFRESH_PERIOD: Duration = Duration::from_secs(75);

/// Upper bound on waiting for a look to end before another one is asked for.
const LOOK_WAIT: Duration = Duration::from_secs(3);

/// A look that has not ended after this long is on a runtime that is blocked or not driven; another one may begin.
const LOST_AFTER: Duration = Duration::from_secs(10);

/// How long connections that were opened for questions are kept after the last one.
const PROBES_LINGER: Duration = Duration::from_secs(4);

/// A connection that was up for so long and ends is a new trouble, whatever was wrong before.
const STEADY_AFTER: Duration = Duration::from_secs(5);

/// Routes commands; shared by all clones of a client.
pub(crate) struct Router {
    nodes: Nodes,
    discovery: Discovery,
    contact: FirstContact,
    pub(crate) hub: Arc<Hub>,
    pub(crate) monitor: Arc<Monitor>,
    /// Facts about masters and replicas, kept for locks that replicas confirm.
    memory: Memory,
    /// Notified when the map changes, a node comes up, or the client is closed.
    pub(crate) changed: Notify,
    /// Counts the first two.
    changes: AtomicU64,
    looks: Mutex<Looks>,
    /// Notified at the end of each look.
    looked: Arc<Notify>,
    /// Whether the one server there is has refused connections for a command timeout.
    is_gone: AtomicBool,
    /// The task that ends the connections opened for questions.
    sweep: OnlyOne,
    itself: Weak<Self>,
}

/// Looks for a newer map: the one under way, and when the next may begin.
struct Looks {
    /// The number of the look under way, and when it began.
    under_way: Option<(u64, Instant)>,
    /// How many have begun.
    begun: u64,
    /// Whether another one was asked for meanwhile: nodes that have answered already may not have known yet.
    again: bool,
    pacing: Pacing,
    /// The latest view that the nodes agreed on.
    learned: Option<View>,
}

impl Router {
    /// Does no I/O: see [`contact`](Self::contact).
    pub(crate) fn new(
        template: Endpoint,
        discovery: Discovery,
        monitor: Arc<Monitor>,
    ) -> Arc<Self> {
        let router = Arc::new_cyclic(|itself| Self {
            nodes: Nodes::new(template, View::none(), observer(itself)),
            discovery,
            contact: FirstContact::default(),
            hub: Hub::new(routing(itself)),
            monitor,
            memory: Memory::default(),
            changed: Notify::new(),
            changes: AtomicU64::new(0),
            looks: Mutex::new(Looks {
                under_way: None,
                begun: 0,
                again: false,
                pacing: Pacing::new(),
                learned: None,
            }),
            looked: Arc::default(),
            is_gone: AtomicBool::new(false),
            sweep: OnlyOne::default(),
            itself: itself.clone(),
        });
        if let Some((endpoint, view)) = router.discovery.known() {
            router.swap(Some(endpoint), |_| Some(view));
        }
        router
    }

    pub(crate) fn is_contacted(&self) -> bool {
        self.contact.is_made()
    }

    /// Sees to it that there was a first contact: the server was reached, or the first map learned.
    pub(crate) async fn contact(&self) -> Result<(), Error> {
        if self.contact.is_made() {
            return Ok(());
        }
        if self.is_closed() {
            return Err(self.unserved(b""));
        }
        let timeout = self.nodes.template.connect_timeout;
        let late = || {
            let detail = format!("no connection within {timeout:?}");
            Error::not_sent(&Arc::from(""), detail)
        };
        // Several servers may be tried one after the other.
        let patience = timeout * 2;
        self.contact
            .make(patience, late, || self.make_contact())
            .await
    }

    async fn make_contact(&self) -> Result<(), Error> {
        let Some(Found { view, sharded }) = self.discovery.first(&self.nodes.template).await?
        else {
            // A wrong password is an error here then, and not the reason for a wait later.
            for node in self.map().nodes() {
                node.connection().open().await?;
            }
            return Ok(());
        };
        self.hub.set_sharded(sharded);
        self.swap(None, |_| Some(view));
        self.discovery.watch(&on_switch(&self.itself));
        spawn(
            &Handle::current(),
            refresh_periodically(self.itself.clone()),
        );
        Ok(())
    }

    /// The present map.
    pub(crate) fn map(&self) -> Arc<Map> {
        self.nodes.map()
    }

    /// The node of `key`, if any serves it.
    pub(crate) fn node_of(&self, key: &[u8]) -> Option<Arc<Node>> {
        self.nodes.node_of(key)
    }

    /// The same, unless the client is closed.
    pub(crate) fn serving(&self, key: &[u8]) -> Option<Arc<Node>> {
        if self.is_closed() {
            return None;
        }
        self.node_of(key)
    }

    /// The node at `address`, known or new. A redirect may name one that the map does not have yet.
    pub(crate) fn node_at(&self, address: &NodeAddress) -> Arc<Node> {
        self.nodes.node_at(address)
    }

    /// How long one command may take.
    pub(crate) const fn command_timeout(&self) -> Duration {
        self.nodes.template.command_timeout
    }

    /// Whether keys belong to slots.
    pub(crate) const fn is_cluster(&self) -> bool {
        matches!(self.discovery, Discovery::Cluster(_))
    }

    /// Whether the map can change at all.
    pub(crate) const fn is_dynamic(&self) -> bool {
        self.discovery.is_dynamic()
    }

    /// Follows a `MOVED` of `slot` to `address`: updates the map at once, and has the rest of it learned anew.
    pub(crate) fn moved(&self, slot: u16, address: &NodeAddress) {
        let is_new = self.swap(None, |map| {
            let address = map.view.known_as(address);
            let known = map
                .view
                .owner(slot)
                .and_then(|owner| map.view.shards().get(owner));
            (known.map(|shard| &shard.master) != Some(address))
                .then(|| map.view.with_moved(slot, address))
        });
        if is_new {
            self.tell_map();
        }
        self.refresh();
    }

    /// Has the map learned anew, in the background and not more often than [`Pacing`] allows. Returns at once.
    pub(crate) fn refresh(&self) {
        if !self.discovery.is_dynamic() || self.is_closed() {
            return;
        }
        let mut looks = self.looks();
        if let Some((_, since)) = looks.under_way
            && since.elapsed() < LOST_AFTER
        {
            looks.again = true;
            return;
        }
        // Outside of a runtime there is no task that could wait for the result either.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        looks.begun += 1;
        let number = looks.begun;
        looks.under_way = Some((number, Instant::now()));
        looks.again = false;
        drop(looks);
        // Not made in the task: a runtime that is ending drops that before it ran, and the mark must not stay behind.
        let look = Look {
            router: self.itself.clone(),
            number,
        };
        spawn(&runtime, async move { look.run().await });
    }

    /// Has the map learned anew until `node` is up or serves nothing any more. The users of what is held there, or
    /// subscribed to there, may send nothing for a long time that could fail, and a successor is elected a while after the
    /// connection has ended.
    pub(crate) fn search(&self, node: &Arc<Node>) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        if !self.is_dynamic() {
            return;
        }
        let Some(begun) = node.search.begin() else {
            return;
        };
        let searching = search_for(
            self.itself.clone(),
            Arc::downgrade(node),
            begun,
            Arc::clone(&self.looked),
        );
        spawn(&runtime, searching);
    }

    /// No more commands; connections end when those under way have been answered.
    pub(crate) fn close(&self) {
        self.nodes.close();
        self.discovery.close();
        self.changed.notify_waiters();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.nodes.is_closed()
    }

    /// Whether the one server there is has refused connections for a command timeout.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    /// The error for a key whose slot no node serves.
    pub(crate) fn unserved(&self, key: &[u8]) -> Error {
        let no_node = Arc::from("");
        if self.is_closed() {
            return Error::new(ErrorKind::Closed, &no_node, "the client was closed here");
        }
        let detail = format!(
            "no node serves slot {} of the cluster at the moment",
            slot(key)
        );
        Error::not_sent(&no_node, detail)
    }

    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.changed.notify_waiters();
    }

    /// One look for a newer map.
    async fn look(&self) {
        let effort = {
            let mut looks = self.looks();
            // This look is the one that was asked for meanwhile.
            looks.again = false;
            looks.pacing.effort()
        };
        let map = self.map();
        let present = Present {
            template: &self.nodes.template,
            view: &map.view,
            nodes: map.nodes(),
        };
        if let Some(view) = self.discovery.again(present, effort).await {
            self.adopt(view);
        }
        self.looks().pacing.looked(Instant::now());
        self.looked.notify_waiters();
        self.sweep_probes();
    }

    /// Makes `view` the map, unless it is already.
    fn adopt(&self, view: View) {
        if self.is_closed() {
            return;
        }
        let mut looks = self.looks();
        if !looks
            .learned
            .as_ref()
            .is_some_and(|learned| learned.agrees_with(&view))
        {
            // The first view after the connect is no news.
            if looks.learned.replace(view.clone()).is_some() {
                looks.pacing.restart(Instant::now());
            }
        }
        drop(looks);
        if self.swap(None, |map| (map.view != view).then_some(view)) {
            self.tell_map();
        }
    }

    /// Ends the connections opened for questions a while after the last one.
    fn sweep_probes(&self) {
        let (Some(begun), Ok(runtime)) = (self.sweep.begin(), Handle::try_current()) else {
            return;
        };
        let (router, looked) = (self.itself.clone(), Arc::clone(&self.looked));
        spawn(&runtime, async move {
            while tokio::time::timeout(PROBES_LINGER, looked.notified())
                .await
                .is_ok()
            {}
            drop(begun);
            if let Some(router) = router.upgrade() {
                router.discovery.end_probes();
            }
        });
    }

    pub(crate) const fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The sentinels, where there are any.
    pub(crate) const fn sentinels(&self) -> Option<&Sentinels> {
        match &self.discovery {
            Discovery::Sentinel(sentinels) => Some(sentinels),
            Discovery::Single(_) | Discovery::Cluster { .. } => None,
        }
    }

    /// Replaces the map by one with another view, if `change` makes one. Returns whether it did.
    fn swap(&self, endpoint: Option<&Endpoint>, change: impl FnOnce(&Map) -> Option<View>) -> bool {
        let Some(replaced) = self.nodes.swap(endpoint, change) else {
            return false;
        };
        for node in replaced.nodes() {
            if node.connection().is_stalled() && !self.nodes.serves(node) {
                node.replace();
            }
        }
        self.hub.reconcile();
        self.note_change();
        true
    }

    /// The map is another one.
    fn tell_map(&self) {
        self.monitor.tell(|| Change::Map {
            masters: self.map().nodes().len(),
        });
    }

    fn observed(&self, node: &Arc<Node>, event: Event) {
        match &event {
            Event::Up => {
                self.is_gone.store(false, Ordering::Release);
                let down = node.came_up();
                self.note_change();
                if let Some(after) = down {
                    let node = Arc::clone(node.connection().node());
                    self.monitor.tell(|| Change::Reconnected { node, after });
                }
            }
            Event::Down => {
                if node.went_down() >= STEADY_AFTER {
                    self.looks().pacing.restart(Instant::now());
                }
                self.search(node);
            }
            // Elsewhere another node may be about to serve its keys.
            Event::Gone if !self.is_dynamic() => self.is_gone.store(true, Ordering::Release),
            Event::Stalled if self.nodes.serves(node) => self.refresh(),
            Event::Stalled => node.replace(),
            _ => {}
        }
        self.hub.observe(node, event);
    }

    fn looks(&self) -> MutexGuard<'_, Looks> {
        lock(&self.looks)
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("map", &self.map())
            .finish_non_exhaustive()
    }
}

/// A look under way. Dropping it lets the next one begin.
///
/// It does not keep the router alive before it begins: looks and searches that ask for each other would do so for ever.
struct Look {
    router: Weak<Router>,
    number: u64,
}

impl Look {
    /// Looks as soon as it may.
    async fn run(&self) {
        let Some(router) = self.router.upgrade() else {
            return;
        };
        let due = router.looks().pacing.next(Instant::now());
        drop(router);
        tokio::time::sleep_until(due.into()).await;
        if let Some(router) = self.router.upgrade() {
            router.look().await;
        }
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        let Some(router) = self.router.upgrade() else {
            return;
        };
        let mut looks = router.looks();
        // Another one has taken over if this one's runtime was not driven.
        if looks
            .under_way
            .is_none_or(|(number, _)| number != self.number)
        {
            return;
        }
        looks.under_way = None;
        let again = looks.again;
        drop(looks);
        if again {
            router.refresh();
        }
    }
}

/// Nodes that take over without a failure (`CLUSTER FAILOVER`, new shards) are noticed by their first redirect; this is
/// for clients that are idle.
async fn refresh_periodically(router: Weak<Router>) {
    loop {
        tokio::time::sleep(jittered(REFRESH_PERIOD)).await;
        match router.upgrade() {
            Some(router) if !router.is_closed() => router.refresh(),
            _ => return,
        }
    }
}

/// Asks for looks until `node` is up or serves nothing any more.
async fn search_for(router: Weak<Router>, node: Weak<Node>, mut begun: Begun, looked: Arc<Notify>) {
    let new = node
        .upgrade()
        .map_or(Duration::ZERO, |node| node.time_to_connect());
    tokio::time::sleep(new).await;
    loop {
        let next = looked.notified();
        {
            let (Some(router), Some(node)) = (router.upgrade(), node.upgrade()) else {
                return;
            };
            // In this order: if it goes down in between there is another search.
            drop(begun);
            if router.is_closed() || node.connection().is_up() || !router.nodes.serves(&node) {
                return;
            }
            let Some(again) = node.search.begin() else {
                return;
            };
            begun = again;
            router.refresh();
        }
        let _ = tokio::time::timeout(LOOK_WAIT, next).await;
    }
}

/// Passes the events of connections to a router, while it exists.
fn observer(router: &Weak<Router>) -> NodeObserver {
    let router = router.clone();
    Arc::new(move |node, event| {
        if let Some(router) = router.upgrade() {
            router.observed(node, event);
        }
    })
}

/// Has a router look for the master that a sentinel announced.
fn on_switch(router: &Weak<Router>) -> OnSwitch {
    let router = router.clone();
    Arc::new(move || {
        if let Some(router) = router.upgrade() {
            router.looks().pacing.restart(Instant::now());
            router.refresh();
        }
    })
}

/// The functions through which subscriptions find their nodes; without effect once the router is gone.
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
