//! Pub/sub subscriptions: desired and confirmed channels.
//!
//! The hub keeps what is desired apart from what servers have confirmed, and brings the two together whenever a
//! connection comes up, the map changes, or a server ends a subscription by itself (`sunsubscribe` when a slot moves
//! away). Messages sent in between are lost, and there is no way to tell how many: so every confirmation is an event of
//! its own, after which the subscriber must look at the state it waits for.
//!
//! A channel is subscribed to at the master of its slot. With sharded channels that is the only node where messages
//! arrive; without them any node would do.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use leasehold_resp::connection::Event as ConnectionEvent;
use leasehold_resp::push::{Confirmation, Push, Subscribe};
use leasehold_resp::{Error, ErrorKind, Value};
use tokio::runtime::Handle;

use crate::background::spawn;
use crate::node::Node;

/// Pause after a refusal because the slot is elsewhere; the next attempt goes by a newer map.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// What a subscription receives.
#[derive(Clone, Debug)]
pub enum Event {
    /// The server confirmed the subscription, for the first time or after a gap. Messages sent before may have been
    /// missed, so the subscriber must look at the state it waits for.
    Subscribed,
    /// A message.
    Message(Bytes),
    /// The server refuses the subscription, mostly because of an ACL. No messages arrive until it is confirmed on a
    /// later connection.
    Refused(Error),
}

/// A subscription to one channel, until dropped. Several may share a channel.
///
/// It keeps the connections of its client open.
pub struct Subscription {
    hub: Arc<Hub>,
    channel: Bytes,
    inbox: Arc<Inbox>,
    /// What routes the channel, for as long as this exists.
    _client: Arc<dyn Any + Send + Sync>,
}

/// All subscriptions of one client.
pub(crate) struct Hub {
    /// Whether channels belong to slots.
    sharded: bool,
    routing: Routing,
    /// The desired channels.
    channels: Mutex<HashMap<Bytes, Channel>>,
    itself: Weak<Self>,
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

#[derive(Debug, Default)]
struct Channel {
    /// The node that was sent the subscription, on its present connection.
    at: Option<Arc<Node>>,
    /// Whether that node confirmed it.
    confirmed: bool,
    /// Whether that node refused it. The next subscriber makes another attempt.
    refused: bool,
    inboxes: Vec<Arc<Inbox>>,
}

/// What one subscription has not fetched yet.
#[derive(Debug, Default)]
struct Inbox(Mutex<Pending>);

#[derive(Debug, Default)]
struct Pending {
    subscribed: bool,
    refused: Option<Error>,
    message: Option<Bytes>,
    waker: Option<Waker>,
}

impl Subscription {
    /// Subscribes; sends a command unless the channel has another subscriber. Keeps `client` alive.
    pub(crate) fn new(hub: &Arc<Hub>, client: Arc<dyn Any + Send + Sync>, channel: &[u8]) -> Self {
        let channel = Bytes::copy_from_slice(channel);
        let inbox = Arc::new(Inbox::default());
        let mut channels = hub.lock();
        let desired = channels.entry(channel.clone()).or_default();
        desired.inboxes.push(Arc::clone(&inbox));
        if desired.confirmed {
            inbox.lock().subscribed = true;
        } else if (desired.at.is_none() || desired.refused)
            && let Some(node) = (hub.routing.node_of)(&channel)
        {
            hub.ask(&node, &channel, desired);
        }
        drop(channels);
        Self {
            hub: Arc::clone(hub),
            channel,
            inbox,
            _client: client,
        }
    }

    /// The next event. A subscription that does not listen keeps the newest message only.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: an event is either returned or kept.
    pub async fn next(&mut self) -> Event {
        poll_fn(|cx| {
            let mut pending = self.inbox.lock();
            match pending.take() {
                Some(event) => Poll::Ready(event),
                None => {
                    pending.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut channels = self.hub.lock();
        let Some(channel) = channels.get_mut(&self.channel) else {
            return;
        };
        channel
            .inboxes
            .retain(|inbox| !Arc::ptr_eq(inbox, &self.inbox));
        if channel.inboxes.is_empty() {
            // Under the lock, so that the order of subscriptions on the wire is the order of changes here.
            self.hub.leave(channel, &self.channel);
            channels.remove(&self.channel);
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("channel", &self.channel)
            .finish_non_exhaustive()
    }
}

impl Hub {
    pub(crate) fn new(sharded: bool, routing: Routing) -> Arc<Self> {
        Arc::new_cyclic(|itself| Self {
            sharded,
            routing,
            channels: Mutex::default(),
            itself: itself.clone(),
        })
    }

    /// Whether channels belong to slots, so that messages must be published with `SPUBLISH`.
    pub(crate) const fn is_sharded(&self) -> bool {
        self.sharded
    }

    /// To be called with every event of the connection of `node`.
    pub(crate) fn observe(&self, node: &Arc<Node>, event: ConnectionEvent) {
        match event {
            ConnectionEvent::Up => self.reconcile(),
            ConnectionEvent::Down => {
                for channel in self
                    .lock()
                    .values_mut()
                    .filter(|channel| channel.is_at(node))
                {
                    channel.forget();
                }
            }
            ConnectionEvent::Push(Push::Message { channel, payload }) => {
                if let Some(channel) = self.lock().get(&channel) {
                    channel.tell(|pending| pending.message = Some(payload.clone()));
                }
            }
            ConnectionEvent::Push(Push::Unasked(
                Confirmation::Unsubscribe | Confirmation::Sunsubscribe,
                name,
            )) => {
                if let Some(channel) = self
                    .lock()
                    .get_mut(&name)
                    .filter(|channel| channel.is_at(node))
                {
                    channel.forget();
                }
                // The slot has a new master, which this client may not know yet.
                (self.routing.refresh)();
                self.reconcile();
            }
            _ => {}
        }
    }

    /// Subscribes to every channel at the node that it belongs to now, unless that was done.
    pub(crate) fn reconcile(&self) {
        let mut channels = self.lock();
        for (name, channel) in channels.iter_mut() {
            let Some(node) = (self.routing.node_of)(name) else {
                continue;
            };
            if channel.is_at(&node) {
                continue;
            }
            self.leave(channel, name);
            self.ask(&node, name, channel);
        }
    }

    /// Submits a subscription. If it is not even sent, the connection's coming up leads here again.
    fn ask(&self, node: &Arc<Node>, name: &Bytes, channel: &mut Channel) {
        channel.refused = false;
        let kind = if self.sharded {
            Confirmation::Ssubscribe
        } else {
            Confirmation::Subscribe
        };
        // One command for each channel: sharded ones of several slots cannot be asked for together.
        let subscribe = Subscribe {
            kind,
            channels: vec![name.clone()],
        };
        let (hub, weak_node, channel_name) =
            (self.itself.clone(), Arc::downgrade(node), name.clone());
        let asked = node
            .connection()
            .subscribe_then(&subscribe, move |outcome| {
                if let (Some(hub), Some(node)) = (hub.upgrade(), weak_node.upgrade()) {
                    hub.answered(&node, &channel_name, outcome);
                }
            });
        if asked {
            channel.at = Some(Arc::clone(node));
        } else {
            node.connection().start();
            (self.routing.search)(node);
        }
    }

    /// Ends a subscription where it was asked for.
    fn leave(&self, channel: &mut Channel, name: &Bytes) {
        if let Some(node) = channel.at.take() {
            let kind = if self.sharded {
                Confirmation::Sunsubscribe
            } else {
                Confirmation::Unsubscribe
            };
            node.connection()
                .subscribe(&Subscribe {
                    kind,
                    channels: vec![name.clone()],
                })
                .detach(|_| {});
        }
        channel.confirmed = false;
    }

    fn answered(&self, node: &Arc<Node>, name: &Bytes, outcome: Result<Value, Error>) {
        let mut channels = self.lock();
        let Some(channel) = channels.get_mut(name).filter(|channel| channel.is_at(node)) else {
            return;
        };
        match outcome {
            Ok(_) => {
                channel.confirmed = true;
                channel.tell(|pending| pending.subscribed = true);
            }
            // The connection went down; its coming up repeats the question.
            Err(error) if error.kind() != ErrorKind::Server => channel.forget(),
            Err(error)
                if error
                    .as_server()
                    .is_some_and(|server| server.is_transient() || server.is_redirect()) =>
            {
                channel.forget();
                drop(channels);
                (self.routing.refresh)();
                let hub = self.itself.clone();
                spawn(&Handle::current(), async move {
                    tokio::time::sleep(RETRY_PAUSE).await;
                    if let Some(hub) = hub.upgrade() {
                        hub.reconcile();
                    }
                });
            }
            Err(error) => {
                channel.refused = true;
                channel.tell(|pending| pending.refused = Some(error.clone()));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Bytes, Channel>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Channel {
    fn is_at(&self, node: &Arc<Node>) -> bool {
        self.at.as_ref().is_some_and(|at| Arc::ptr_eq(at, node))
    }

    fn forget(&mut self) {
        self.at = None;
        self.confirmed = false;
    }

    fn tell(&self, change: impl Fn(&mut Pending)) {
        for inbox in &self.inboxes {
            let mut pending = inbox.lock();
            change(&mut pending);
            let waker = pending.waker.take();
            drop(pending);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    fn take(&mut self) -> Option<Event> {
        if std::mem::take(&mut self.subscribed) {
            self.refused = None;
            return Some(Event::Subscribed);
        }
        if let Some(error) = self.refused.take() {
            return Some(Event::Refused(error));
        }
        self.message.take().map(Event::Message)
    }
}
