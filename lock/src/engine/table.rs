//! The table of waiters of one `Locks`: locks it, and wakes and drops outside of the lock.

use std::sync::{Arc, Mutex};
use std::task::Waker;

use leasehold_cluster::Subscription;

use super::hold::Hold;
use super::sync::lock;
use crate::error::Error;
use crate::options::Replicas;
use crate::state::names::Name;
use crate::state::waiters::{Claim, Closed, Held, Position, Waiters};

#[derive(Debug)]
pub(crate) struct Table(Mutex<Waiters<Arc<Hold>, Subscription, Error>>);

impl Table {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Waiters::new()))
    }

    /// See [`Waiters::enter`].
    pub(crate) fn enter(&self, name: &Arc<Name>, claim: Claim) -> Result<u64, Closed> {
        lock(&self.0).enter(name, claim)
    }

    /// See [`Waiters::enter_if_free`].
    pub(crate) fn enter_if_free(
        &self,
        name: &Arc<Name>,
        claim: Claim,
    ) -> Result<Option<u64>, Closed> {
        lock(&self.0).enter_if_free(name, claim, |hold| hold.is_live())
    }

    /// See [`Waiters::position`].
    pub(crate) fn position(
        &self,
        name: &Arc<Name>,
        ticket: u64,
        waker: &Waker,
    ) -> Position<Arc<Hold>, Error> {
        lock(&self.0).position(name, ticket, waker)
    }

    /// The waiter with this ticket has `hold` now.
    pub(crate) fn grant(
        &self,
        ticket: u64,
        hold: &Arc<Hold>,
        subscription: Option<Subscription>,
    ) -> Result<(), Closed> {
        let claim = Claim {
            access: hold.protocol.access,
            owner: hold.owner.as_ref().map(|owner| owner.number()),
            replicas: hold.terms.replicas,
        };
        let held = Held {
            number: hold.id.number(),
            claim,
            hold: Arc::clone(hold),
        };
        let after = lock(&self.0).grant(&hold.name, ticket, held, subscription)?;
        after.run();
        Ok(())
    }

    /// See [`Waiters::fail`]. Nothing happens if `error` concerns only the attempt that failed with it.
    pub(crate) fn fail(&self, name: &Arc<Name>, replicas: Replicas, error: &Error) {
        let Some(shared) = error.of_waiters_behind() else {
            return;
        };
        let after = lock(&self.0).fail(name, replicas, || shared.copied());
        after.run();
    }

    /// See [`Waiters::leave`].
    pub(crate) fn leave(&self, name: &Arc<Name>, ticket: u64, subscription: Option<Subscription>) {
        let after = lock(&self.0).leave(name, ticket, subscription);
        after.run();
    }

    /// `hold` is over: the next waiter may go on.
    pub(crate) fn end(&self, hold: &Hold) {
        let after = lock(&self.0).end(&hold.name, hold.id.number());
        after.run();
    }

    /// See [`Waiters::all_holds`].
    pub(crate) fn all_holds(&self) -> Vec<Arc<Hold>> {
        lock(&self.0).all_holds()
    }

    /// See [`Waiters::holds`].
    pub(crate) fn holds(&self, name: &Arc<Name>) -> Vec<Arc<Hold>> {
        lock(&self.0).holds(name)
    }

    /// See [`Waiters::take_subscription`].
    pub(crate) fn take_subscription(&self, name: &Arc<Name>) -> Option<Subscription> {
        lock(&self.0).take_subscription(name)
    }

    /// See [`Waiters::is_subscribed`].
    pub(crate) fn is_subscribed(&self, name: &Arc<Name>) -> bool {
        lock(&self.0).is_subscribed(name)
    }

    /// Ends all locking and wakes all waiters. Returns what is held.
    pub(crate) fn close(&self) -> Vec<Arc<Hold>> {
        let (wakers, holds) = lock(&self.0).close();
        wakers.into_iter().for_each(Waker::wake);
        holds
    }
}
