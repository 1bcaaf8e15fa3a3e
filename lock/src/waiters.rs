//! Who in this process holds which lock, and who waits for it: a state machine without time or I/O.
//!
//! One entry for each name that is held or wanted here. Of those who want it only the head contends at the server, so a
//! process with a thousand waiters costs the server as much as one with a single waiter.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use crate::names::Name;

/// All entries. `H` is a hold, `E` the ears: what listens for releases elsewhere.
#[derive(Debug)]
pub(crate) struct Waiters<H, E> {
    entries: HashMap<Arc<Name>, Entry<H, E>>,
    next_ticket: u64,
    closed: bool,
}

#[derive(Debug)]
struct Entry<H, E> {
    /// What is held here, until it ends. It may have run out unnoticed: only its owner knows the time.
    held: Option<Held<H>>,
    /// The one who contends at the server. Apart from the rest, so that a lock nobody waits for needs no queue on the heap.
    head: Option<Waiter>,
    /// Everybody else, first come first, by ascending tickets.
    rest: VecDeque<Waiter>,
    /// Kept for the next head while this one does not need them: subscribing anew would cost a round trip.
    ears: Option<E>,
}

/// A hold of this process.
#[derive(Clone, Debug)]
pub(crate) struct Held<H> {
    /// The number of its id.
    pub(crate) number: u64,
    /// Whose locks nest with it.
    pub(crate) owner: Option<u64>,
    pub(crate) hold: H,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    owner: Option<u64>,
    waker: Option<Waker>,
}

/// What a waiter sees when it looks. It is woken when that changes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Look<H> {
    /// Others are ahead.
    Queued,
    /// It is first, but somebody here holds the lock, unless that hold has run out.
    Behind(H),
    /// It is first and nobody here holds the lock.
    Free,
    /// Its own owner holds the lock.
    Nested(H),
    /// No more locks.
    Closed,
}

/// No more locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

/// What is to be woken and dropped once the table is unlocked again.
#[derive(Debug)]
#[must_use = "the waiters are to be woken outside of the lock"]
pub(crate) struct After<E> {
    wakers: Vec<Waker>,
    /// Dropping them sends a command.
    ears: Option<E>,
}

impl<H: Clone, E> Waiters<H, E> {
    pub(crate) fn new() -> Self {
        Self {
            entries: HashMap::new(),
            next_ticket: 0,
            closed: false,
        }
    }

    /// Gets in line; the ticket is good until [`leave`](Self::leave) or [`grant`](Self::grant).
    pub(crate) fn enter(&mut self, name: &Arc<Name>, owner: Option<u64>) -> Result<u64, Closed> {
        if self.closed {
            return Err(Closed);
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let waiter = Waiter {
            ticket,
            owner,
            waker: None,
        };
        match self.entries.get_mut(name) {
            Some(entry) if entry.head.is_none() => entry.head = Some(waiter),
            Some(entry) => entry.rest.push_back(waiter),
            None => {
                let entry = Entry {
                    held: None,
                    head: Some(waiter),
                    rest: VecDeque::new(),
                    ears: None,
                };
                self.entries.insert(Arc::clone(name), entry);
            }
        }
        Ok(ticket)
    }

    /// The same, but only if nobody is ahead: no waiter, and no hold that is `live`.
    pub(crate) fn enter_if_free(
        &mut self,
        name: &Arc<Name>,
        owner: Option<u64>,
        live: impl FnOnce(&H) -> bool,
    ) -> Result<Option<u64>, Closed> {
        let busy = self.entries.get(name).is_some_and(|entry| {
            entry.head.is_some() || entry.held.as_ref().is_some_and(|held| live(&held.hold))
        });
        if busy && !self.closed {
            Ok(None)
        } else {
            self.enter(name, owner).map(Some)
        }
    }

    /// What the waiter with this ticket may do now. `waker` is woken when it should look again.
    pub(crate) fn look(&mut self, name: &Arc<Name>, ticket: u64, waker: &Waker) -> Look<H> {
        // A ticket keeps its entry, so there always is one.
        let Some(entry) = self.entries.get_mut(name).filter(|_| !self.closed) else {
            return Look::Closed;
        };
        let (waiter, first) = match &mut entry.head {
            Some(head) if head.ticket == ticket => (head, true),
            _ => match entry
                .rest
                .binary_search_by_key(&ticket, |waiter| waiter.ticket)
            {
                Ok(at) => (&mut entry.rest[at], false),
                Err(_) => return Look::Closed,
            },
        };
        let nested = |held: &&Held<H>| waiter.owner.is_some() && held.owner == waiter.owner;
        if let Some(held) = entry.held.as_ref().filter(nested) {
            return Look::Nested(held.hold.clone());
        }
        // The head is woken for the end of the entry too, even where nothing stands in its way now.
        match &mut waiter.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        match &entry.held {
            _ if !first => Look::Queued,
            Some(held) => Look::Behind(held.hold.clone()),
            None => Look::Free,
        }
    }

    /// The head got the lock; the next one becomes the head, and those of the same owner nest.
    pub(crate) fn grant(
        &mut self,
        name: &Arc<Name>,
        ticket: u64,
        held: Held<H>,
        ears: Option<E>,
    ) -> Result<After<E>, Closed> {
        if self.closed {
            return Err(Closed);
        }
        let owner = held.owner;
        let mut after = After {
            wakers: Vec::new(),
            ears: None,
        };
        // The ticket keeps the entry.
        let Some(entry) = self.entries.get_mut(name) else {
            return Err(Closed);
        };
        after.wakers.extend(entry.depart(ticket));
        entry.held = Some(held);
        if ears.is_some() {
            entry.ears = ears;
        }
        if owner.is_some() {
            let nested = entry.rest.iter_mut().filter(|waiter| waiter.owner == owner);
            after
                .wakers
                .extend(nested.filter_map(|waiter| waiter.waker.take()));
        }
        Ok(after)
    }

    /// Gives up the place, wherever in the line; the next one moves up.
    pub(crate) fn leave(&mut self, name: &Arc<Name>, ticket: u64, ears: Option<E>) -> After<E> {
        let mut after = After {
            wakers: Vec::new(),
            ears: None,
        };
        let Some(entry) = self.entries.get_mut(name) else {
            after.ears = ears;
            return after;
        };
        after.wakers.extend(entry.depart(ticket));
        if ears.is_some() {
            entry.ears = ears;
        }
        after.ears = self.sweep(name);
        after
    }

    /// The hold with this number is over: released or lost. Another one, which came after it, stays.
    pub(crate) fn end(&mut self, name: &Arc<Name>, number: u64) -> After<E> {
        let mut after = After {
            wakers: Vec::new(),
            ears: None,
        };
        if let Some(entry) = self.entries.get_mut(name)
            && entry
                .held
                .as_ref()
                .is_some_and(|held| held.number == number)
        {
            entry.held = None;
            after
                .wakers
                .extend(entry.head.as_mut().and_then(|head| head.waker.take()));
            after.ears = self.sweep(name);
        }
        after
    }

    /// What an earlier head left to listen with.
    pub(crate) fn take_ears(&mut self, name: &Arc<Name>) -> Option<E> {
        self.entries
            .get_mut(name)
            .and_then(|entry| entry.ears.take())
    }

    /// Whether this process listens for releases of the name while it holds it.
    pub(crate) fn listens(&self, name: &Arc<Name>) -> bool {
        self.entries
            .get(name)
            .is_some_and(|entry| entry.ears.is_some())
    }

    /// No more locks: everybody is to be woken, and the holds are the caller's to end.
    pub(crate) fn close(&mut self) -> (Vec<Waker>, Vec<H>) {
        self.closed = true;
        let (mut wakers, mut holds) = (Vec::new(), Vec::new());
        for entry in self.entries.values_mut() {
            wakers.extend(
                entry
                    .head
                    .iter_mut()
                    .chain(&mut entry.rest)
                    .filter_map(|waiter| waiter.waker.take()),
            );
            holds.extend(entry.held.as_ref().map(|held| held.hold.clone()));
        }
        (wakers, holds)
    }

    /// Removes the entry if nobody holds or wants the name. Returns its ears, which are dropped elsewhere.
    fn sweep(&mut self, name: &Arc<Name>) -> Option<E> {
        let entry = self.entries.get(name)?;
        if entry.held.is_none() && entry.head.is_none() {
            return self.entries.remove(name)?.ears;
        }
        None
    }
}

impl<H, E> Entry<H, E> {
    /// Takes the waiter out of the line. Returns whom to wake, if somebody became the head.
    fn depart(&mut self, ticket: u64) -> Option<Waker> {
        if self.head.as_ref().is_some_and(|head| head.ticket == ticket) {
            self.head = self.rest.pop_front();
            return self.head.as_mut().and_then(|head| head.waker.take());
        }
        if let Ok(at) = self
            .rest
            .binary_search_by_key(&ticket, |waiter| waiter.ticket)
        {
            self.rest.remove(at);
        }
        None
    }
}

impl<E> After<E> {
    /// Wakes and drops. The table must not be locked.
    pub(crate) fn run(self) {
        for waker in self.wakers {
            waker.wake();
        }
        drop(self.ears);
    }
}

#[cfg(test)]
#[path = "waiters/tests.rs"]
mod tests;
