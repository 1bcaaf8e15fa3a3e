//! All subscriptions of one client: desired and confirmed channels.
//!
//! The hub keeps what is desired apart from what servers have confirmed, and brings the two together whenever a
//! connection comes up, the map changes, or a server ends a subscription by itself (`sunsubscribe` when a slot moves
//! away). Messages sent in between are lost, and there is no way to tell how many: so every confirmation is an event of
//! its own, after which the subscriber must look at the state it waits for.
//!
//! A failover moves all channels of a shard at once, which may be ten thousand. Events of a connection therefore cost
//! the same for any number of channels; a walk over all of them happens in slices, in a task of its own; and only
//! so many subscriptions are under way at a node that other commands are answered in between.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use leasehold_resp::connection::Event;
use leasehold_resp::push::{Confirmation, Push, Subscribe};
use leasehold_resp::{Error, ErrorKind, Value};
use tokio::runtime::Handle;

use crate::background::{OnlyOne, spawn};
use crate::inbox::SubscriptionEvent;
use crate::locking::lock;
use crate::node::Node;
use crate::source::Source;

/// Pause before the next attempt after a server ended or redirected a subscription: by then the map may be newer.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Subscriptions that are under way at one node when channels are subscribed to anew: as few as keep a near server busy. While
/// ten thousand were repeated at a cluster on this machine, the p99 of other commands was 2.5 to 5 times the calm one with 64 of
/// them, 1.3 to 2.7 times with 16, 0.7 to 1.6 with 4; all took 0.15, 0.18 and 0.29 s.
const FEWEST: usize = 4;

/// The most of them, for a server that is far: there each waits for the round trip, and others do not wait for it.
const MOST: usize = 64;

/// One more may be under way for so much of the shortest round trip.
const SPACING: Duration = Duration::from_micros(25);

/// Channels that a walk looks at before other tasks get their turn.
const SLICE: usize = 128;

/// The subscriptions of one client.
pub(crate) struct Hub {
    /// Whether channels belong to slots.
    sharded: AtomicBool,
    routing: Routing,
    state: Mutex<State>,
    /// The task that makes the next attempt after [`RETRY_PAUSE`].
    retry: OnlyOne,
    itself: Weak<Self>,
}

/// A subscriber to one channel. It is called while nothing is locked here.
pub(crate) struct Subscriber(pub(crate) Box<Listener>);

type Listener = dyn Fn(SubscriptionEvent, Source) + Send + Sync;

/// An event on its way to the subscribers of a channel, to be delivered once the hub is unlocked.
#[must_use = "the subscribers are to be told"]
struct Delivery {
    to: Vec<Arc<Subscriber>>,
    event: SubscriptionEvent,
    from: Source,
}

/// How the hub finds the node of a channel.
pub(crate) struct Routing {
    /// The node that serves the slot of a channel, if any does.
    pub(crate) node_of: NodeOf,
    /// Has the map learned anew, in the background.
    pub(crate) refresh: Box<dyn Fn() + Send + Sync>,
    /// Has the successor of a node looked for until it is up or replaced.
    pub(crate) search: Search,
}

type NodeOf = Box<dyn Fn(&[u8]) -> Option<Arc<Node>> + Send + Sync>;
type Search = Box<dyn Fn(&Arc<Node>) + Send + Sync>;

#[derive(Default)]
struct State {
    /// The desired channels, in an order in which a walk can be interrupted.
    channels: BTreeMap<Bytes, Channel>,
    /// The nodes where subscriptions are under way or waiting, by [`Node::id`].
    windows: HashMap<u64, Window>,
    walk: Walk,
}

#[derive(Default)]
struct Channel {
    /// The node it was assigned to, and the number of that node's connection then.
    at: Option<(Arc<Node>, u64)>,
    progress: Progress,
    subscribers: Vec<Arc<Subscriber>>,
}

/// How far the subscription at the assigned node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Progress {
    /// Waiting for room in the node's window.
    #[default]
    Queued,
    /// Submitted.
    Asked,
    Confirmed,
    /// Not repeated on this connection, unless there is another subscriber.
    Refused,
}

/// The subscriptions under way at one node.
#[derive(Default)]
struct Window {
    in_flight: usize,
    /// The shortest time that one of them took.
    round_trip: Option<Duration>,
    /// Channels to subscribe to next. Some may have been assigned to another node since.
    waiting: VecDeque<Bytes>,
}

/// Whether a walk over all channels is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Walk {
    #[default]
    None,
    UnderWay,
    /// Another one was asked for meanwhile.
    Again,
}

impl Hub {
    pub(crate) fn new(routing: Routing) -> Arc<Self> {
        Arc::new_cyclic(|itself| Self {
            sharded: AtomicBool::new(false),
            routing,
            state: Mutex::default(),
            retry: OnlyOne::default(),
            itself: itself.clone(),
        })
    }

    /// Whether channels belong to slots, so that messages must be published with `SPUBLISH`.
    pub(crate) fn is_sharded(&self) -> bool {
        self.sharded.load(Ordering::Acquire)
    }

    /// Whether channels belong to slots, known before the first of them is subscribed to.
    pub(crate) fn set_sharded(&self, sharded: bool) {
        self.sharded.store(sharded, Ordering::Release);
    }

    /// The connection over which channel `name` was subscribed to, confirmed or not: what is sent over it from now on, the
    /// server runs when the subscription is there.
    pub(crate) fn asked_over(&self, name: &Bytes) -> Option<Source> {
        let state = self.lock();
        let channel = state.channels.get(name)?;
        let is_asked = matches!(channel.progress, Progress::Asked | Progress::Confirmed);
        channel.source().filter(|_| is_asked)
    }

    /// Adds a subscriber to channel `name`. Sends a command at once unless the channel has another subscriber.
    pub(crate) fn add(&self, name: &Bytes, subscriber: &Arc<Subscriber>) {
        let mut state = self.lock();
        let State {
            channels, windows, ..
        } = &mut *state;
        let channel = channels.entry(name.clone()).or_default();
        channel.subscribers.push(Arc::clone(subscriber));
        let confirmed = channel
            .source()
            .filter(|_| channel.progress == Progress::Confirmed);
        if let Some(source) = confirmed {
            drop(state);
            (subscriber.0)(SubscriptionEvent::Subscribed, source);
        } else if (!channel.is_assigned() || channel.progress == Progress::Refused)
            && let Some(node) = (self.routing.node_of)(name)
        {
            channel.assign(&node);
            let window = windows.entry(node.id).or_default();
            if !self.ask(&node, name, channel, window) {
                window.waiting.push_back(name.clone());
            }
        }
    }

    /// Removes a subscriber from channel `name`; ends the subscription if it was the last one.
    pub(crate) fn remove(&self, name: &Bytes, subscriber: &Arc<Subscriber>) {
        let mut state = self.lock();
        let Some(channel) = state.channels.get_mut(name) else {
            return;
        };
        let subscribers = &mut channel.subscribers;
        subscribers.retain(|other| !Arc::ptr_eq(other, subscriber));
        if subscribers.is_empty() {
            // Under the lock, so that the order of subscriptions on the wire is the order of changes here.
            self.leave(channel, name);
            state.channels.remove(name);
        }
    }

    /// To be called with every event of the shared connection of `node`.
    pub(crate) fn observe(&self, node: &Arc<Node>, event: Event) {
        match event {
            Event::Up => {
                self.pump(&mut self.lock(), node);
                self.reconcile();
            }
            Event::Down => {
                // The channels are assigned to a connection that has ended; the walk assigns them to the next one.
                let waiting = self
                    .lock()
                    .windows
                    .get_mut(&node.id)
                    .map(|window| std::mem::take(&mut window.waiting));
                drop(waiting);
                self.reconcile();
            }
            Event::Push(Push::Message { channel, payload }) => {
                let event = SubscriptionEvent::Message(payload);
                let delivery = self
                    .lock()
                    .channels
                    .get(&channel)
                    .map(|channel| channel.tell(event, node.source()));
                deliver(delivery);
            }
            Event::Push(Push::Unasked(
                Confirmation::Unsubscribe | Confirmation::Sunsubscribe,
                name,
            )) => {
                let mut state = self.lock();
                if let Some(channel) = state.channels.get_mut(&name).filter(|c| c.is_at(node)) {
                    channel.at = None;
                }
                drop(state);
                // The slot has a new master, which the map may not name yet.
                self.retry();
            }
            _ => {}
        }
    }

    /// Assigns every channel to the node that it belongs to now, and subscribes to it there unless that was done. The
    /// first slice is done here, the others in the background.
    pub(crate) fn reconcile(&self) {
        let mut state = self.lock();
        if state.walk != Walk::None {
            state.walk = Walk::Again;
            return;
        }
        state.walk = Walk::UnderWay;
        drop(state);
        let Some(hub) = self.itself.upgrade() else {
            return;
        };
        let mut walking = Walking { hub, after: None };
        if !walking.step() {
            return;
        }
        match Handle::try_current() {
            Ok(runtime) => spawn(&runtime, async move {
                while walking.step() {
                    tokio::task::yield_now().await;
                }
            }),
            Err(_) => while walking.step() {},
        }
    }

    /// Assigns the channels of one slice; returns the last one's name if there are more.
    fn assign_slice(&self, after: Option<Bytes>) -> Option<Bytes> {
        let mut state = self.lock();
        let State {
            channels, windows, ..
        } = &mut *state;
        let rest = (after.map_or(Unbounded, Excluded), Unbounded);
        let mut changed: Vec<Arc<Node>> = Vec::new();
        let mut last = None;
        for (index, (name, channel)) in channels.range_mut::<Bytes, _>(rest).enumerate() {
            if index == SLICE {
                break;
            }
            last = (index == SLICE - 1).then(|| name.clone());
            let Some(node) = (self.routing.node_of)(name) else {
                continue;
            };
            if channel.is_at(&node) {
                continue;
            }
            self.leave(channel, name);
            channel.assign(&node);
            let window = windows.entry(node.id).or_default();
            window.waiting.push_back(name.clone());
            if !changed.iter().any(|known| Arc::ptr_eq(known, &node)) {
                changed.push(node);
            }
        }
        for node in changed {
            self.pump(&mut state, &node);
        }
        last
    }

    /// Submits waiting subscriptions as long as there is room in the window of `node`.
    fn pump(&self, state: &mut State, node: &Arc<Node>) {
        let State {
            channels, windows, ..
        } = state;
        let Some(window) = windows.get_mut(&node.id) else {
            return;
        };
        while window.in_flight < window.size()
            && let Some(name) = window.waiting.pop_front()
        {
            let Some(channel) = channels
                .get_mut(&name)
                .filter(|channel| channel.is_at(node) && channel.progress == Progress::Queued)
            else {
                continue;
            };
            if !self.ask(node, &name, channel, window) {
                window.waiting.push_front(name);
                return;
            }
        }
        if window.in_flight == 0 && window.waiting.is_empty() {
            windows.remove(&node.id);
        }
    }

    /// Submits the subscription to a channel that is assigned to `node`. `false` if it was not even queued: the
    /// connection's coming up leads to [`pump`](Self::pump), and so does the next attempt when its queue was full.
    fn ask(
        &self,
        node: &Arc<Node>,
        name: &Bytes,
        channel: &mut Channel,
        window: &mut Window,
    ) -> bool {
        let kind = if self.is_sharded() {
            Confirmation::Ssubscribe
        } else {
            Confirmation::Subscribe
        };
        // One command for each channel: sharded ones of several slots cannot be subscribed to together.
        let subscribe = Subscribe {
            kind,
            channels: vec![name.clone()],
        };
        let session = channel.at.as_ref().map_or(0, |(_, session)| *session);
        let (hub, id, at, asked_for) = (
            self.itself.clone(),
            node.id,
            Arc::downgrade(node),
            name.clone(),
        );
        let submitted = Instant::now();
        let asked = node
            .connection()
            .subscribe_then(&subscribe, move |outcome| {
                if let Some(hub) = hub.upgrade() {
                    let (node, after) = (at.upgrade(), submitted.elapsed());
                    hub.answered((id, node.as_ref()), session, &asked_for, after, outcome);
                }
            });
        if asked {
            channel.progress = Progress::Asked;
            window.in_flight += 1;
        } else if node.connection().is_up() {
            self.retry();
        } else {
            node.connection().start();
            (self.routing.search)(node);
        }
        asked
    }

    /// Takes the outcome that a subscription has `after` so long, which was submitted to the node with this `id`, which may be
    /// gone.
    fn answered(
        &self,
        (id, node): (u64, Option<&Arc<Node>>),
        session: u64,
        name: &Bytes,
        after: Duration,
        outcome: Result<Value, Error>,
    ) {
        let mut state = self.lock();
        if let Some(window) = state.windows.get_mut(&id) {
            window.in_flight = window.in_flight.saturating_sub(1);
            if outcome.is_ok() {
                let shortest = window.round_trip.map_or(after, |known| known.min(after));
                window.round_trip = Some(shortest);
            }
        }
        let Some(node) = node else { return };
        let source = Source { node: id, session };
        let (mut delivery, mut retries) = (None, false);
        let assigned = state.channels.get_mut(name).filter(|channel| {
            let (at, since) = match &channel.at {
                Some((at, since)) => (at, *since),
                None => return false,
            };
            Arc::ptr_eq(at, node) && since == session
        });
        if let Some(channel) = assigned {
            match outcome {
                Ok(_) => {
                    channel.progress = Progress::Confirmed;
                    delivery = Some(channel.tell(SubscriptionEvent::Subscribed, source));
                }
                // The connection went down; the walk after that repeats the subscription.
                Err(error) if error.kind() != ErrorKind::Server => channel.at = None,
                Err(error) if is_misdirected(&error) => {
                    channel.at = None;
                    retries = true;
                }
                Err(error) => {
                    channel.progress = Progress::Refused;
                    delivery = Some(channel.tell(SubscriptionEvent::Refused(error), source));
                }
            }
        }
        self.pump(&mut state, node);
        drop(state);
        deliver(delivery);
        if retries {
            self.retry();
        }
    }

    /// Ends a subscription at the node that it was assigned to.
    fn leave(&self, channel: &mut Channel, name: &Bytes) {
        let Some((node, session)) = channel.at.take() else {
            return;
        };
        if session != node.session() || channel.progress == Progress::Queued {
            return;
        }
        let kind = if self.is_sharded() {
            Confirmation::Sunsubscribe
        } else {
            Confirmation::Unsubscribe
        };
        let unsubscribe = Subscribe {
            kind,
            channels: vec![name.clone()],
        };
        node.connection().subscribe(&unsubscribe).detach(|_| {});
    }

    /// Has the map learned anew, and makes another attempt a little later even if it is the same.
    fn retry(&self) {
        (self.routing.refresh)();
        let (Some(begun), Ok(runtime)) = (self.retry.begin(), Handle::try_current()) else {
            return;
        };
        let hub = self.itself.clone();
        spawn(&runtime, async move {
            tokio::time::sleep(RETRY_PAUSE).await;
            drop(begun);
            if let Some(hub) = hub.upgrade() {
                hub.pump_all();
                hub.reconcile();
            }
        });
    }

    /// Submits what waits for room at any node.
    fn pump_all(&self) {
        let mut state = self.lock();
        let mut waiting: Vec<_> = state
            .windows
            .values()
            .filter_map(|window| window.waiting.front().cloned())
            .filter_map(|name| state.channels.get(&name)?.at.clone())
            .collect();
        for (node, _) in waiting.drain(..) {
            self.pump(&mut state, &node);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub")
            .field("sharded", &self.is_sharded())
            .field("channels", &self.lock().channels.len())
            .finish_non_exhaustive()
    }
}

impl Window {
    /// How many may be under way.
    fn size(&self) -> usize {
        let more = self
            .round_trip
            .map_or(0, |time| time.as_nanos() / SPACING.as_nanos());
        usize::try_from(more).unwrap_or(MOST).clamp(FEWEST, MOST)
    }
}

impl Channel {
    /// Whether it is assigned to a connection that has not ended since.
    fn is_assigned(&self) -> bool {
        self.at
            .as_ref()
            .is_some_and(|(node, session)| node.session() == *session)
    }

    fn is_at(&self, node: &Arc<Node>) -> bool {
        self.is_assigned()
            && self
                .at
                .as_ref()
                .is_some_and(|(at, _)| Arc::ptr_eq(at, node))
    }

    fn assign(&mut self, node: &Arc<Node>) {
        self.at = Some((Arc::clone(node), node.session()));
        self.progress = Progress::Queued;
    }

    /// The connection it is assigned to, if that has not ended since.
    fn source(&self) -> Option<Source> {
        let (node, session) = self.at.as_ref()?;
        let source = Source {
            node: node.id,
            session: *session,
        };
        (node.source() == source).then_some(source)
    }

    /// An event for all subscribers.
    fn tell(&self, event: SubscriptionEvent, from: Source) -> Delivery {
        Delivery {
            to: self.subscribers.clone(),
            event,
            from,
        }
    }
}

/// A walk under way. Dropping it lets another one begin: a runtime that is ending drops it half way together with
/// its connections, and when those are up again they begin another walk.
struct Walking {
    hub: Arc<Hub>,
    /// The last channel that was looked at.
    after: Option<Bytes>,
}

impl Walking {
    /// Looks at the next slice; `false` after the last one.
    fn step(&mut self) -> bool {
        self.after = self.hub.assign_slice(self.after.take());
        if self.after.is_some() {
            return true;
        }
        let mut state = self.hub.lock();
        if state.walk == Walk::Again {
            state.walk = Walk::UnderWay;
            return true;
        }
        state.walk = Walk::None;
        false
    }
}

impl Drop for Walking {
    fn drop(&mut self) {
        if self.after.is_some() {
            self.hub.lock().walk = Walk::None;
        }
    }
}

/// Whether the subscription may succeed at another node, or here a little later.
fn is_misdirected(error: &Error) -> bool {
    error
        .as_server()
        .is_some_and(|server| server.is_transient() || server.is_redirect())
}

/// Tells the subscribers. The hub must not be locked.
fn deliver(delivery: Option<Delivery>) {
    if let Some(Delivery { to, event, from }) = delivery {
        for subscriber in to {
            (subscriber.0)(event.clone(), from);
        }
    }
}

#[cfg(test)]
mod tests;
