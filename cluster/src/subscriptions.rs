//! Pub/sub subscriptions, as users see them.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::hub::Hub;
use crate::inbox::{Inbox, SubscriptionEvent};

/// A subscription to one channel, until dropped. Several may share a channel.
///
/// A channel is subscribed to at the master of its slot. With sharded channels that is the only node where messages
/// arrive; without them any node would do. The subscription keeps the connections of its client open.
pub struct Subscription {
    hub: Arc<Hub>,
    channel: Bytes,
    inbox: Arc<Inbox>,
    /// Keeps the router of the channel alive for as long as this exists.
    _client: Arc<dyn Any + Send + Sync>,
}

impl Subscription {
    /// Subscribes; sends a command unless the channel has another subscriber. Keeps `client` alive.
    pub(crate) fn new(hub: &Arc<Hub>, client: Arc<dyn Any + Send + Sync>, channel: &[u8]) -> Self {
        let channel = Bytes::copy_from_slice(channel);
        let inbox = Arc::new(Inbox::default());
        hub.add(&channel, &inbox);
        Self {
            hub: Arc::clone(hub),
            channel,
            inbox,
            _client: client,
        }
    }

    /// Whether the server has confirmed it, on the present connection: messages arrive.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        self.hub.is_confirmed(&self.channel)
    }

    /// How many messages have arrived so far, fetched or not.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.inbox.received()
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
        self.hub.remove(&self.channel, &self.inbox);
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("channel", &self.channel)
            .finish_non_exhaustive()
    }
}
