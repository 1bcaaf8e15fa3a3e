//! Channels we want to hear, and those we do.

use bytes::Bytes;

/// What a subscription hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The server confirmed the subscription, for the first time or after a gap: messages sent before may have been
    /// missed, so whoever waits must look again.
    Subscribed,
    /// A message.
    Message(Bytes),
}

/// Interest in one channel, until dropped. Several may share a channel.
#[derive(Debug)]
pub struct Subscription;

impl Subscription {
    /// The next event. Messages that pile up unread are merged: the newest is kept.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: an event is either returned or kept.
    pub async fn next(&mut self) -> Event {
        todo!()
    }
}
