//! A place in the line for a lock, and what its holder waits for there.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use leasehold_cluster::Subscription;
use tokio::time::Sleep;

use crate::error::Error;
use crate::hold::Hold;
use crate::locks::Inner;
use crate::names::Name;
use crate::sync::lock;
use crate::waiters::{Closed, Held, Look, Waiters};

/// The table of a `Locks`: takes the mutex, and wakes and drops outside of it.
#[derive(Debug)]
pub(crate) struct Table(Mutex<Waiters<Arc<Hold>, Subscription>>);

impl Table {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Waiters::new()))
    }

    pub(crate) fn end(&self, name: &Arc<Name>, number: u64) {
        let after = lock(&self.0).end(name, number);
        after.run();
    }

    pub(crate) fn listens(&self, name: &Arc<Name>) -> bool {
        lock(&self.0).listens(name)
    }

    /// Lets nobody in any more and wakes everybody. Returns what is held.
    pub(crate) fn close(&self) -> Vec<Arc<Hold>> {
        let (wakers, holds) = lock(&self.0).close();
        wakers.into_iter().for_each(Waker::wake);
        holds
    }
}

/// A place in the line. Dropping it gives it up.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) inner: Arc<Inner>,
    pub(crate) name: Arc<Name>,
    ticket: Option<u64>,
    /// What listens for releases elsewhere, while this is the head and needed it.
    ears: Option<Subscription>,
}

/// Whose turn it is.
#[derive(Debug)]
pub(crate) enum Turn {
    /// Ours: nobody here is ahead, and nobody here holds the lock.
    Mine,
    /// A lock of the same owner, to nest with.
    Nested(Arc<Hold>),
    /// The time to wait is over.
    TimeUp,
}

impl Place {
    /// Gets in line, behind whoever is there.
    pub(crate) fn enter(
        inner: &Arc<Inner>,
        name: &Arc<Name>,
        owner: Option<u64>,
    ) -> Result<Self, Closed> {
        let ticket = lock(&inner.waiters.0).enter(name, owner)?;
        Ok(Self {
            inner: Arc::clone(inner),
            name: Arc::clone(name),
            ticket: Some(ticket),
            ears: None,
        })
    }

    /// Gets in line if that means to be first.
    pub(crate) fn enter_if_free(
        inner: &Arc<Inner>,
        name: &Arc<Name>,
        owner: Option<u64>,
    ) -> Result<Option<Self>, Closed> {
        let ticket = lock(&inner.waiters.0).enter_if_free(name, owner, |hold| hold.is_live())?;
        Ok(ticket.map(|ticket| Self {
            inner: Arc::clone(inner),
            name: Arc::clone(name),
            ticket: Some(ticket),
            ears: None,
        }))
    }

    /// Waits until this is first in the line and nobody here holds the lock any more.
    pub(crate) async fn turn(&self, until: Option<Instant>) -> Result<Turn, Error> {
        let mut alarm = pin!(None);
        poll_fn(|cx| {
            loop {
                let look_again = match self.look(cx.waker()) {
                    Look::Free => return Poll::Ready(Ok(Turn::Mine)),
                    Look::Nested(hold) => return Poll::Ready(Ok(Turn::Nested(hold))),
                    Look::Closed => return Poll::Ready(Err(Error::closed())),
                    Look::Queued => None,
                    // A guard that outlives its lease keeps nobody waiting.
                    Look::Behind(hold) if !hold.is_live() => {
                        self.inner.waiters.end(&self.name, hold.id.number());
                        continue;
                    }
                    Look::Behind(hold) => Some(Instant::now() + hold.look_again()),
                };
                if until.is_some_and(|until| until <= Instant::now()) {
                    return Poll::Ready(Ok(Turn::TimeUp));
                }
                let Some(at) = earlier(look_again, until) else {
                    return Poll::Pending;
                };
                if poll_alarm(alarm.as_mut(), at, cx).is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    /// Waits until the lock, which somebody elsewhere holds for `ttl` more, may be free. Returns false if `until` came first.
    ///
    /// A release elsewhere ends the wait, and so does a fresh subscription: what was published before it was not heard. When
    /// the holder dies nothing is published, so the wait ends with its lease, too.
    pub(crate) async fn hear(
        &mut self,
        ttl: Duration,
        until: Option<Instant>,
    ) -> Result<bool, Error> {
        let Self {
            inner,
            name,
            ticket,
            ears,
        } = self;
        let ears = match ears {
            Some(ears) => ears,
            none => {
                let known = lock(&inner.waiters.0).take_ears(name);
                none.insert(
                    known.unwrap_or_else(|| inner.client.subscribe(name.channel().as_bytes())),
                )
            }
        };
        let mut heard = pin!(ears.next());
        let again = Instant::now() + ttl;
        let at = earlier(Some(again), until).unwrap_or(again);
        let mut alarm = pin!(None);
        poll_fn(|cx| {
            if matches!(look(inner, name, *ticket, cx.waker()), Look::Closed) {
                return Poll::Ready(Err(Error::closed()));
            }
            if heard.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(true));
            }
            poll_alarm(alarm.as_mut(), at, cx).map(|()| Ok(at == again))
        })
        .await
    }

    /// Stands back for a moment if this process took the lock from itself for long enough.
    pub(crate) async fn give_way(&self) {
        let pause = self.inner.courtesy().pause(self.name.hash());
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
    }

    /// The lock is ours: the place becomes a hold, and the next one here the head.
    pub(crate) fn grant(&mut self, hold: &Arc<Hold>) -> Result<(), Closed> {
        let Some(ticket) = self.ticket else {
            return Err(Closed);
        };
        let held = Held {
            number: hold.id.number(),
            owner: hold.owner.as_ref().map(|owner| owner.number()),
            hold: Arc::clone(hold),
        };
        let ears = self.ears.take();
        let after = lock(&self.inner.waiters.0).grant(&self.name, ticket, held, ears)?;
        self.ticket = None;
        after.run();
        Ok(())
    }

    fn look(&self, waker: &Waker) -> Look<Arc<Hold>> {
        look(&self.inner, &self.name, self.ticket, waker)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let after = lock(&self.inner.waiters.0).leave(&self.name, ticket, self.ears.take());
            after.run();
        }
    }
}

fn look(inner: &Inner, name: &Arc<Name>, ticket: Option<u64>, waker: &Waker) -> Look<Arc<Hold>> {
    ticket.map_or(Look::Closed, |ticket| {
        lock(&inner.waiters.0).look(name, ticket, waker)
    })
}

fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    a.into_iter().chain(b).min()
}

/// Polls a timer that is made when it is first needed, and moves when `at` does.
fn poll_alarm(mut alarm: Pin<&mut Option<Sleep>>, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
    let at = at.into();
    if alarm.is_none() {
        alarm.set(Some(tokio::time::sleep_until(at)));
    }
    let Some(mut sleep) = alarm.as_pin_mut() else {
        return Poll::Pending;
    };
    if sleep.deadline() != at {
        sleep.as_mut().reset(at);
    }
    sleep.poll(cx)
}
