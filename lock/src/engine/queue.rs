//! A place in the queue for a lock, and what its waiter waits for there.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Instant;

use leasehold_cluster::{Subscription, SubscriptionEvent};
use tokio::time::Sleep;

use super::context::Context;
use super::hold::Hold;
use super::release;
use crate::error::Error;
use crate::options::Replicas;
use crate::state::names::Name;
use crate::state::waiters::{Claim, Closed, Position};

/// A place in the queue. Dropping it gives it up.
#[derive(Debug)]
pub(crate) struct Place {
    context: Arc<Context>,
    name: Arc<Name>,
    ticket: Option<u64>,
    /// Hears of releases elsewhere, while this is the head and needed it.
    subscription: Option<Subscription>,
    /// Messages that were counted.
    messages: u64,
}

/// The end of a wait in the queue.
#[derive(Debug)]
pub(crate) enum Turn {
    /// This place's: it is the head, and no hold of this process excludes it.
    Mine,
    /// Its owner has this hold, to nest with.
    Nested(Arc<Hold>),
    /// The time to wait is over.
    TimeUp,
}

/// Why a wait for the release of a lock elsewhere ended.
#[derive(Debug)]
pub(crate) enum Wake {
    /// The channel has something for the waiter: a message, or a subscription before which messages may have been missed.
    Channel(SubscriptionEvent),
    /// The lease of the holder is over, if it was not renewed.
    Due,
    /// The time to wait is over.
    TimeUp,
}

impl Place {
    /// Joins the queue.
    pub(crate) fn enter(
        context: &Arc<Context>,
        name: &Arc<Name>,
        claim: Claim,
    ) -> Result<Self, Closed> {
        let ticket = context.registry.table.enter(name, claim)?;
        Ok(Self::new(context, name, ticket))
    }

    /// Joins the queue if that means to be its head.
    pub(crate) fn enter_if_free(
        context: &Arc<Context>,
        name: &Arc<Name>,
        claim: Claim,
    ) -> Result<Option<Self>, Closed> {
        let registry = &context.registry;
        for hold in registry.table.holds(name) {
            // One that has run out ends here.
            release::check(registry, &hold);
        }
        let ticket = registry.table.enter_if_free(name, claim)?;
        Ok(ticket.map(|ticket| Self::new(context, name, ticket)))
    }

    fn new(context: &Arc<Context>, name: &Arc<Name>, ticket: u64) -> Self {
        Self {
            context: Arc::clone(context),
            name: Arc::clone(name),
            ticket: Some(ticket),
            subscription: None,
            messages: 0,
        }
    }

    /// Waits until this is the head and no hold of this process excludes it.
    pub(crate) async fn turn(&self, until: Option<Instant>) -> Result<Turn, Error> {
        let mut alarm = pin!(None);
        poll_fn(|cx| {
            loop {
                let check_at = match position(&self.context, &self.name, self.ticket, cx) {
                    Position::Free => return Poll::Ready(Ok(Turn::Mine)),
                    Position::Failed(error) => return Poll::Ready(Err(error)),
                    Position::Closed => return Poll::Ready(Err(Error::closed())),
                    Position::Queued => None,
                    // Released, but still in the table: its removal wakes this waiter.
                    Position::Nested(hold) if hold.state().is_released() => None,
                    Position::Nested(hold) => return Poll::Ready(Ok(Turn::Nested(hold))),
                    Position::Behind(hold) => {
                        // A guard that outlives its lease keeps no waiter back.
                        if release::check(&self.context.registry, &hold).is_some() {
                            self.context.registry.table.end(&hold);
                            continue;
                        }
                        Some(Instant::now() + hold.until_next_check())
                    }
                };
                if until.is_some_and(|until| until <= Instant::now()) {
                    return Poll::Ready(Ok(Turn::TimeUp));
                }
                let Some(at) = check_at.into_iter().chain(until).min() else {
                    return Poll::Pending;
                };
                if poll_alarm(alarm.as_mut(), at, cx).is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    /// Waits until the lock, which others hold until `free_at` unless they renew it, may be free, or until `until`.
    ///
    /// A release elsewhere ends the wait, and so does a fresh subscription: what was published before it was missed. When
    /// the holder dies nothing is published, so the wait ends with its lease, too.
    pub(crate) async fn wait(
        &mut self,
        free_at: Instant,
        until: Option<Instant>,
    ) -> Result<Wake, Error> {
        let Self {
            context,
            name,
            ticket,
            subscription,
            messages,
        } = self;
        let subscription = match subscription {
            Some(known) => known,
            none => {
                let known = context.registry.table.take_subscription(name);
                let subscription =
                    known.unwrap_or_else(|| context.client.subscribe(name.channel().as_bytes()));
                *messages = subscription.received();
                none.insert(subscription)
            }
        };
        let mut event = pin!(subscription.next());
        let at = until.map_or(free_at, |until| until.min(free_at));
        let mut alarm = pin!(None);
        poll_fn(|cx| {
            if matches!(position(context, name, *ticket, cx), Position::Closed) {
                return Poll::Ready(Err(Error::closed()));
            }
            if let Poll::Ready(event) = event.as_mut().poll(cx) {
                return Poll::Ready(Ok(Wake::Channel(event)));
            }
            let on_time = || {
                if at == free_at {
                    Wake::Due
                } else {
                    Wake::TimeUp
                }
            };
            poll_alarm(alarm.as_mut(), at, cx).map(|()| Ok(on_time()))
        })
        .await
    }

    /// Whether releases elsewhere are heard here.
    pub(crate) fn is_subscribed(&self) -> bool {
        let subscription = self.subscription.as_ref();
        subscription.is_some_and(Subscription::is_confirmed)
    }

    /// Messages since this was asked for last.
    pub(crate) fn new_messages(&mut self) -> u64 {
        let known = self.messages;
        if let Some(subscription) = &self.subscription {
            self.messages = subscription.received();
        }
        self.messages - known
    }

    /// Pauses until `at`.
    pub(crate) async fn pause(&self, at: Instant) -> Result<(), Error> {
        let mut alarm = pin!(None);
        poll_fn(|cx| {
            if matches!(
                position(&self.context, &self.name, self.ticket, cx),
                Position::Closed
            ) {
                return Poll::Ready(Err(Error::closed()));
            }
            poll_alarm(alarm.as_mut(), at, cx).map(Ok)
        })
        .await
    }

    /// The attempt of this place failed: tells the waiters behind it whose attempts would fail like it.
    pub(crate) fn fail_others(&self, replicas: Replicas, error: &Error) {
        let table = &self.context.registry.table;
        table.fail(&self.name, replicas, error);
    }

    /// The lock was granted: the place becomes `hold`, and the next waiter here the head.
    pub(crate) fn grant(&mut self, hold: &Arc<Hold>) -> Result<(), Closed> {
        let Some(ticket) = self.ticket else {
            return Err(Closed);
        };
        let subscription = self.subscription.take();
        self.context
            .registry
            .table
            .grant(ticket, hold, subscription)?;
        self.ticket = None;
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let registry = &self.context.registry;
        if let Some(ticket) = self.ticket.take()
            && !registry.home.is_elsewhere()
        {
            let table = &registry.table;
            table.leave(&self.name, ticket, self.subscription.take());
        }
    }
}

fn position(
    context: &Context,
    name: &Arc<Name>,
    ticket: Option<u64>,
    cx: &TaskContext<'_>,
) -> Position<Arc<Hold>, Error> {
    ticket.map_or(Position::Closed, |ticket| {
        context.registry.table.position(name, ticket, cx.waker())
    })
}

/// Polls a timer that is made when it is first needed, and moves when `at` does.
fn poll_alarm(
    mut alarm: Pin<&mut Option<Sleep>>,
    at: Instant,
    cx: &mut TaskContext<'_>,
) -> Poll<()> {
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
