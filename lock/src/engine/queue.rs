//! A place in the queue for a lock, and what its waiter waits for there.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Instant;

use super::clock::{self, Clock, Sleep};
use super::context::Context;
use super::hold::Hold;
use super::{grants, release};
use crate::error::Error;
use crate::options::Replicas;
use crate::state::names::Name;
use crate::state::waiters::{Claim, Closed, Position};

/// A place in the queue. Dropping it gives it up.
#[derive(Debug)]
pub(crate) struct Place {
    context: Arc<Context>,
    name: Arc<Name>,
    /// `None` once the lock was granted.
    number: Option<u64>,
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

/// Why a wait in the line at the server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// The message of a grant arrived.
    Granted,
    /// It is time to look.
    Look,
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
        let number = context.registry.table.enter(name, claim)?;
        Ok(Self::new(context, name, number))
    }

    /// Joins the queue if that means to be its head.
    pub(crate) fn enter_if_free(
        context: &Arc<Context>,
        name: &Arc<Name>,
        claim: Claim,
    ) -> Result<Option<Self>, Closed> {
        end_what_ran_out(context, name);
        let number = context.registry.table.enter_if_free(name, claim)?;
        Ok(number.map(|number| Self::new(context, name, number)))
    }

    /// Joins the queue if no hold of this process is in the way, to contend beside those who wait there.
    pub(crate) fn enter_unless_held(
        context: &Arc<Context>,
        name: &Arc<Name>,
        claim: Claim,
    ) -> Result<Option<Self>, Closed> {
        end_what_ran_out(context, name);
        let number = context.registry.table.enter_unless_held(name, claim)?;
        Ok(number.map(|number| Self::new(context, name, number)))
    }

    /// Joins the queue beside others that ask at the moment: where holds are counted, one does not exclude the next. But if a
    /// ticket of this process waits in line, nothing is to be had.
    pub(crate) fn enter_beside(
        context: &Arc<Context>,
        name: &Arc<Name>,
        claim: Claim,
    ) -> Result<Option<Self>, Closed> {
        let table = &context.registry.table;
        if table.with_standing(name, |_| ()).is_some() {
            return Ok(None);
        }
        Self::enter(context, name, claim).map(Some)
    }

    fn new(context: &Arc<Context>, name: &Arc<Name>, number: u64) -> Self {
        Self {
            context: Arc::clone(context),
            name: Arc::clone(name),
            number: Some(number),
        }
    }

    /// Waits until this is the head and no hold of this process excludes it.
    pub(crate) async fn turn(&self, until: Option<Instant>) -> Result<Turn, Error> {
        let mut alarm = pin!(None);
        poll_fn(|cx| {
            loop {
                let check_at = match position(&self.context, &self.name, self.number, cx) {
                    Position::Free => return Poll::Ready(Ok(Turn::Mine)),
                    Position::Failed(error) => return Poll::Ready(Err(error)),
                    Position::Closed => return Poll::Ready(Err(Error::closed())),
                    Position::Queued => None,
                    // Released, but still in the table: its removal wakes this waiter, behind the release or with the hold.
                    Position::Nested(hold) | Position::Behind(hold)
                        if hold.state().is_released() =>
                    {
                        None
                    }
                    Position::Nested(hold) => return Poll::Ready(Ok(Turn::Nested(hold))),
                    Position::Behind(hold) => {
                        // A guard that outlives its lease keeps no waiter back.
                        if release::check(&self.context.registry, &hold).is_some() {
                            self.context.registry.table.end(&hold);
                            continue;
                        }
                        Some(self.context.clock().now() + hold.until_next_check())
                    }
                };
                if until.is_some_and(|until| until <= self.context.clock().now()) {
                    return Poll::Ready(Ok(Turn::TimeUp));
                }
                let Some(at) = check_at.into_iter().chain(until).min() else {
                    return Poll::Pending;
                };
                if poll_alarm(self.context.clock(), alarm.as_mut(), at, cx).is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    /// Waits for the grant of the ticket in line, for the time of its next look, or until `until`.
    pub(crate) async fn wait(&self, until: Option<Instant>) -> Result<Wake, Error> {
        let Self {
            context,
            name,
            number,
        } = self;
        let mut alarm = pin!(None);
        poll_fn(|cx| {
            // From here on the waker is known to whatever changes the ticket.
            if matches!(position(context, name, *number, cx), Position::Closed) {
                return Poll::Ready(Err(Error::closed()));
            }
            let state = context.registry.table.with_standing(name, |standing| {
                (standing.ticket.has_grant(), standing.ticket.look_at())
            });
            let Some((has_grant, look_at)) = state else {
                return Poll::Ready(Err(Error::closed()));
            };
            if has_grant {
                return Poll::Ready(Ok(Wake::Granted));
            }
            let now = context.clock().now();
            if until.is_some_and(|until| until <= now) {
                return Poll::Ready(Ok(Wake::TimeUp));
            }
            if look_at <= now {
                return Poll::Ready(Ok(Wake::Look));
            }
            let at = until.map_or(look_at, |until| until.min(look_at));
            if poll_alarm(context.clock(), alarm.as_mut(), at, cx).is_pending() {
                return Poll::Pending;
            }
            Poll::Ready(Ok(if at == look_at {
                Wake::Look
            } else {
                Wake::TimeUp
            }))
        })
        .await
    }

    /// The attempt of this place failed: tells the waiters behind it whose attempts would fail like it.
    pub(crate) fn fail_others(&self, replicas: Replicas, error: &Error) {
        let table = &self.context.registry.table;
        table.fail(&self.name, replicas, error);
    }

    /// The lock was granted, with `from_line` to the ticket in line: the place becomes `hold`, and the next waiter here the head.
    pub(crate) fn grant(&mut self, hold: &Arc<Hold>, from_line: bool) -> Result<(), Closed> {
        let Some(number) = self.number else {
            return Err(Closed);
        };
        self.context.registry.table.grant(number, hold, from_line)?;
        self.number = None;
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let registry = &self.context.registry;
        if let Some(number) = self.number.take()
            && !registry.home.is_elsewhere()
            && let Some(line) = registry.table.leave(&self.name, number)
        {
            grants::abandon(&self.context, &self.name, line);
        }
    }
}

/// Ends the holds of this name that have run out.
fn end_what_ran_out(context: &Context, name: &Arc<Name>) {
    for hold in context.registry.table.holds(name) {
        release::check(&context.registry, &hold);
    }
}

fn position(
    context: &Context,
    name: &Arc<Name>,
    number: Option<u64>,
    cx: &TaskContext<'_>,
) -> Position<Arc<Hold>, Error> {
    number.map_or(Position::Closed, |number| {
        context.registry.table.position(name, number, cx.waker())
    })
}

/// Polls a timer that is made when it is first needed, and moves when `at` does.
pub(super) fn poll_alarm(
    clock: &Clock,
    mut alarm: Pin<&mut Option<Sleep>>,
    at: Instant,
    cx: &mut TaskContext<'_>,
) -> Poll<()> {
    if alarm.is_none() {
        alarm.set(Some(clock.sleep_until(at)));
    }
    let Some(mut sleep) = alarm.as_pin_mut() else {
        return Poll::Pending;
    };
    clock::move_to(sleep.as_mut(), at);
    sleep.poll(cx)
}
