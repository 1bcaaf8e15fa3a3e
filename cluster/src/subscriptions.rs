//! Pub/sub subscriptions, as users see them.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::hub::{Hub, Subscriber};
use crate::inbox::{Inbox, SubscriptionEvent};
use crate::source::Source;

/// A subscription to one channel, until dropped. Several may share a channel.
///
/// A channel is subscribed to at the master of its slot. With sharded channels that is the only node where messages
/// arrive; without them any node would do. The subscription keeps the connections of its client open.
pub struct Subscription {
    hub: Arc<Hub>,
    channel: Bytes,
    subscriber: Arc<Subscriber>,
    /// Where events wait for [`next`](Self::next); empty for ever if a listener gets them.
    inbox: Arc<Inbox>,
    /// Keeps the router of the channel alive for as long as this exists.
    _client: Arc<dyn Any + Send + Sync>,
}

impl Subscription {
    /// Subscribes; sends a command unless the channel has another subscriber. Keeps `client` alive.
    pub(crate) fn new(hub: &Arc<Hub>, client: Arc<dyn Any + Send + Sync>, channel: &[u8]) -> Self {
        let inbox = Arc::new(Inbox::default());
        let filled = Arc::clone(&inbox);
        let mut subscription = Self::listening(hub, client, channel, move |event, _| {
            if let Some(waker) = filled.put(event) {
                waker.wake();
            }
        });
        subscription.inbox = inbox;
        subscription
    }

    /// Subscribes as [`new`](Self::new) does, with a listener that gets all events.
    pub(crate) fn listening(
        hub: &Arc<Hub>,
        client: Arc<dyn Any + Send + Sync>,
        channel: &[u8],
        listener: impl Fn(SubscriptionEvent, Source) + Send + Sync + 'static,
    ) -> Self {
        let channel = Bytes::copy_from_slice(channel);
        let subscriber = Arc::new(Subscriber(Box::new(listener)));
        hub.add(&channel, &subscriber);
        Self {
            hub: Arc::clone(hub),
            channel,
            subscriber,
            inbox: Arc::default(),
            _client: client,
        }
    }

    /// The connection over which it was asked for, confirmed or not: what is sent over that from now on, the server runs when
    /// the subscription is there.
    #[must_use]
    pub fn asked_over(&self) -> Option<Source> {
        self.hub.asked_over(&self.channel)
    }

    /// The next event. Of the messages that were not fetched the newest one is kept.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: an event is either returned or kept.
    pub async fn next(&mut self) -> SubscriptionEvent {
        self.inbox.next().await
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.hub.remove(&self.channel, &self.subscriber);
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("channel", &self.channel)
            .finish_non_exhaustive()
    }
}
