//! The events that one subscription has received and not fetched yet.

use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard};
use std::task::{Poll, Waker};

use bytes::Bytes;
use leasehold_resp::Error;

use crate::locking::lock;

/// An event of a subscription.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SubscriptionEvent {
    /// The server confirmed the subscription, for the first time or after a gap. Messages sent before may have been
    /// missed, so the subscriber must look at the state it waits for.
    Subscribed,
    /// A message.
    Message(Bytes),
    /// The server refuses the subscription, mostly because of an ACL. No messages arrive until it is confirmed on a
    /// later connection.
    Refused(Error),
}

/// Keeps the newest message, and what has happened to the subscription since the last fetch.
#[derive(Debug, Default)]
pub(crate) struct Inbox(Mutex<Pending>);

#[derive(Debug, Default)]
struct Pending {
    subscribed: bool,
    refused: Option<Error>,
    message: Option<Bytes>,
    waker: Option<Waker>,
}

impl Inbox {
    /// Adds an event. Returns the task to wake, once no lock is held.
    pub(crate) fn put(&self, event: SubscriptionEvent) -> Option<Waker> {
        let mut pending = self.lock();
        match event {
            SubscriptionEvent::Subscribed => pending.subscribed = true,
            SubscriptionEvent::Message(message) => pending.message = Some(message),
            SubscriptionEvent::Refused(error) => pending.refused = Some(error),
        }
        pending.waker.take()
    }

    /// The next event: confirmations come before messages.
    pub(crate) async fn next(&self) -> SubscriptionEvent {
        poll_fn(|cx| {
            let mut pending = self.lock();
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

    fn lock(&self) -> MutexGuard<'_, Pending> {
        lock(&self.0)
    }
}

impl Pending {
    fn take(&mut self) -> Option<SubscriptionEvent> {
        if std::mem::take(&mut self.subscribed) {
            self.refused = None;
            return Some(SubscriptionEvent::Subscribed);
        }
        if let Some(error) = self.refused.take() {
            return Some(SubscriptionEvent::Refused(error));
        }
        self.message.take().map(SubscriptionEvent::Message)
    }
}
