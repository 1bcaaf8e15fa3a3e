//! Channels we want to hear, and those we do.
//!
//! The hub keeps what is wanted apart from what the server has confirmed, and brings the two together whenever the
//! connection comes up. Messages sent in between are lost and nobody can tell how many: so every confirmation is an
//! event of its own, after which whoever waits has to look for itself.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use bytes::Bytes;
use leasehold_resp::connection::Event as ConnectionEvent;
use leasehold_resp::push::{Confirmation, Push, Subscribe};
use leasehold_resp::{Connection, Error, Reply, Value};

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
    hub: Arc<Hub>,
    connection: Connection,
    channel: Bytes,
    ear: Arc<Ear>,
}

/// All subscriptions of one client.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    /// What is wanted.
    channels: Mutex<HashMap<Bytes, Channel>>,
}

#[derive(Debug, Default)]
struct Channel {
    /// Whether the server has confirmed it on the present connection.
    confirmed: bool,
    /// Whether it was asked for and has not answered yet.
    asked: bool,
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
        let mut channels = self.hub.lock();
        let Some(channel) = channels.get_mut(&self.channel) else { return };
        channel.ears.retain(|ear| !Arc::ptr_eq(ear, &self.ear));
        if channel.ears.is_empty() {
            channels.remove(&self.channel);
            // Under the lock, so that the order of subscriptions on the wire is the order of changes here.
            let end = Subscribe { kind: Confirmation::Unsubscribe, channels: vec![self.channel.clone()] };
            self.connection.subscribe(&end).detach(|_| {});
        }
    }
}

impl Hub {
    /// Adds an interest; asks the server if it is the first in that channel.
    pub(crate) fn subscribe(self: &Arc<Self>, connection: &Connection, channel: &[u8]) -> Subscription {
        let name = Bytes::copy_from_slice(channel);
        let ear = Arc::new(Ear::default());
        let mut channels = self.lock();
        let wanted = channels.entry(name.clone()).or_default();
        wanted.ears.push(Arc::clone(&ear));
        let mut asked = None;
        if wanted.confirmed {
            ear.lock().subscribed = true;
        } else if !wanted.asked {
            asked = Some(wanted.ask(connection, &name));
        }
        drop(channels);
        if let Some(reply) = asked {
            self.await_answer(reply, name.clone());
        }
        Subscription { hub: Arc::clone(self), connection: connection.clone(), channel: name, ear }
    }

    /// To be called with everything the connection observes.
    pub(crate) fn observe(self: &Arc<Self>, connection: &Connection, event: ConnectionEvent) {
        match event {
            ConnectionEvent::Up => {
                // One command for each channel: a server that refuses one of several refuses all.
                let mut channels = self.lock();
                let asked: Vec<_> =
                    channels.iter_mut().map(|(name, channel)| (channel.ask(connection, name), name.clone())).collect();
                drop(channels);
                asked.into_iter().for_each(|(reply, name)| self.await_answer(reply, name));
            }
            ConnectionEvent::Down => self.lock().values_mut().for_each(|channel| channel.confirmed = false),
            ConnectionEvent::Push(Push::Message { channel, payload }) => {
                if let Some(channel) = self.lock().get(&channel) {
                    channel.tell(|unheard| unheard.message = Some(payload.clone()));
                }
            }
            ConnectionEvent::Push(Push::Unasked(Confirmation::Unsubscribe | Confirmation::Sunsubscribe, name)) => {
                let asked = self.lock().get_mut(&name).map(|channel| {
                    channel.confirmed = false;
                    channel.ask(connection, &name)
                });
                if let Some(reply) = asked {
                    self.await_answer(reply, name);
                }
            }
            ConnectionEvent::Push(_) => {}
        }
    }

    /// Not to be called under the lock: if the answer is known already, it is dealt with right here.
    fn await_answer(self: &Arc<Self>, reply: Reply, name: Bytes) {
        let hub = Arc::downgrade(self);
        reply.detach(move |outcome| {
            if let Some(hub) = hub.upgrade() {
                hub.answered(&name, &outcome);
            }
        });
    }

    fn answered(&self, name: &Bytes, outcome: &Result<Value, Error>) {
        let mut channels = self.lock();
        let Some(channel) = channels.get_mut(name) else { return };
        channel.asked = false;
        match outcome {
            Ok(_) => {
                channel.confirmed = true;
                channel.tell(|unheard| unheard.subscribed = true);
            }
            Err(error) if error.as_server().is_some() => {
                channel.tell(|unheard| unheard.refused = Some(error.clone()));
            }
            // The connection went down.
            Err(_) => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Bytes, Channel>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Channel {
    /// Submits the subscription: under the hub's lock, so that the order on the wire is the order of changes here. If it
    /// is not even sent, the next [`ConnectionEvent::Up`] repeats it.
    fn ask(&mut self, connection: &Connection, name: &Bytes) -> Reply {
        self.asked = true;
        connection.subscribe(&Subscribe { kind: Confirmation::Subscribe, channels: vec![name.clone()] })
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
