//! Channels we want to hear, and those we do.
//!
//! The hub keeps what is wanted apart from what servers have confirmed, and brings the two together whenever a connection
//! comes up, the map changes, or a server ends a subscription by itself (`sunsubscribe` when a slot moves away). Messages
//! sent in between are lost and nobody can tell how many: so every confirmation is an event of its own, after which
//! whoever waits has to look for itself.
//!
//! A channel is heard at the master of its slot. With sharded channels that is the only place where it is published;
//! without them any node would do.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use leasehold_resp::connection::Event as ConnectionEvent;
use leasehold_resp::push::{Confirmation, Push, Subscribe};
use leasehold_resp::{Error, ErrorKind, Value};
use tokio::runtime::Handle;

use crate::node::Node;
use crate::router::{Router, spawn};

/// After a refusal because the slot is elsewhere: how long until the next try, by a map that is newer then.
const RETRY: Duration = Duration::from_millis(50);

/// What a subscription hears.
#[derive(Clone, Debug)]
pub enum Event {
    /// The server confirmed the subscription, for the first time or after a gap: messages sent before may have been
    /// missed, so whoever waits must look again.
    Subscribed,
    /// A message.
    Message(Bytes),
    /// The server refuses the subscription, mostly because of an ACL. There will be no messages until it is confirmed
    /// after all, on a later connection.
    Refused(Error),
}

/// Interest in one channel, until dropped. Several may share a channel.
#[derive(Debug)]
pub struct Subscription {
    router: Arc<Router>,
    channel: Bytes,
    ear: Arc<Ear>,
}

/// All subscriptions of one client.
#[derive(Debug)]
pub(crate) struct Hub {
    /// Whether channels belong to slots.
    sharded: bool,
    /// What is wanted.
    channels: Mutex<HashMap<Bytes, Channel>>,
}

#[derive(Debug, Default)]
struct Channel {
    /// Where it was asked for, on the present connection there.
    at: Option<Arc<Node>>,
    /// Whether that node confirmed it.
    confirmed: bool,
    /// Whether that node refused it: worth another question when somebody else wants it.
    refused: bool,
    ears: Vec<Arc<Ear>>,
}

/// What one subscription has not fetched yet.
#[derive(Debug, Default)]
struct Ear(Mutex<Unheard>);

#[derive(Debug, Default)]
struct Unheard {
    subscribed: bool,
    refused: Option<Error>,
    message: Option<Bytes>,
    waker: Option<Waker>,
}

impl Subscription {
    /// Subscribes, and asks the server if nobody else has.
    pub(crate) fn new(router: &Arc<Router>, channel: &[u8]) -> Self {
        let channel = Bytes::copy_from_slice(channel);
        let ear = Arc::new(Ear::default());
        let mut channels = router.hub.lock();
        let wanted = channels.entry(channel.clone()).or_default();
        wanted.ears.push(Arc::clone(&ear));
        if wanted.confirmed {
            ear.lock().subscribed = true;
        } else if (wanted.at.is_none() || wanted.refused)
            && let Some(node) = router.map().node_of(&channel)
        {
            router.hub.ask(router, &node, &channel, wanted);
        }
        drop(channels);
        Self {
            router: Arc::clone(router),
            channel,
            ear,
        }
    }

    /// The next event. A subscription that does not listen keeps the newest message only.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: an event is either returned or kept.
    pub async fn next(&mut self) -> Event {
        poll_fn(|cx| {
            let mut unheard = self.ear.lock();
            match unheard.take() {
                Some(event) => Poll::Ready(event),
                None => {
                    unheard.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let hub = &self.router.hub;
        let mut channels = hub.lock();
        let Some(channel) = channels.get_mut(&self.channel) else {
            return;
        };
        channel.ears.retain(|ear| !Arc::ptr_eq(ear, &self.ear));
        if channel.ears.is_empty() {
            // Under the lock, so that the order of subscriptions on the wire is the order of changes here.
            hub.leave(channel, &self.channel);
            channels.remove(&self.channel);
        }
    }
}

impl Hub {
    pub(crate) fn new(sharded: bool) -> Self {
        Self {
            sharded,
            channels: Mutex::default(),
        }
    }

    /// Whether channels belong to slots, so that messages must be published with `SPUBLISH`.
    pub(crate) const fn is_sharded(&self) -> bool {
        self.sharded
    }

    /// To be called with everything the connection of `node` observes.
    pub(crate) fn observe(&self, router: &Arc<Router>, node: &Arc<Node>, event: ConnectionEvent) {
        match event {
            ConnectionEvent::Up => self.reconcile(router),
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
                    channel.tell(|unheard| unheard.message = Some(payload.clone()));
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
                router.refresh();
                self.reconcile(router);
            }
            ConnectionEvent::Push(_) | ConnectionEvent::Silent => {}
        }
    }

    /// Asks for every channel at the node that it belongs to now, unless that was done.
    pub(crate) fn reconcile(&self, router: &Arc<Router>) {
        let map = router.map();
        let mut channels = self.lock();
        for (name, channel) in channels.iter_mut() {
            let Some(node) = map.node_of(name) else {
                continue;
            };
            if channel.is_at(&node) {
                continue;
            }
            self.leave(channel, name);
            self.ask(router, &node, name, channel);
        }
    }

    /// Submits a subscription. If it is not even sent, the connection's coming up leads here again.
    fn ask(&self, router: &Arc<Router>, node: &Arc<Node>, name: &Bytes, channel: &mut Channel) {
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
        let (weak_router, weak_node, channel_name) =
            (Arc::downgrade(router), Arc::downgrade(node), name.clone());
        let asked = node
            .connection()
            .subscribe_then(&subscribe, move |outcome| {
                if let (Some(router), Some(node)) = (weak_router.upgrade(), weak_node.upgrade()) {
                    router.hub.answered(&router, &node, &channel_name, outcome);
                }
            });
        if asked {
            channel.at = Some(Arc::clone(node));
        } else {
            node.connection().start();
            router.search(node);
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

    fn answered(
        &self,
        router: &Arc<Router>,
        node: &Arc<Node>,
        name: &Bytes,
        outcome: Result<Value, Error>,
    ) {
        let mut channels = self.lock();
        let Some(channel) = channels.get_mut(name).filter(|channel| channel.is_at(node)) else {
            return;
        };
        match outcome {
            Ok(_) => {
                channel.confirmed = true;
                channel.tell(|unheard| unheard.subscribed = true);
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
                router.refresh();
                let router = Arc::downgrade(router);
                spawn(&Handle::current(), async move {
                    tokio::time::sleep(RETRY).await;
                    if let Some(router) = router.upgrade() {
                        router.hub.reconcile(&router);
                    }
                });
            }
            Err(error) => {
                channel.refused = true;
                channel.tell(|unheard| unheard.refused = Some(error.clone()));
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

    fn tell(&self, change: impl Fn(&mut Unheard)) {
        for ear in &self.ears {
            let mut unheard = ear.lock();
            change(&mut unheard);
            let waker = unheard.waker.take();
            drop(unheard);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl Ear {
    fn lock(&self) -> MutexGuard<'_, Unheard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Unheard {
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
