//! Holders and waiters of this process by name: a state machine without time or I/O.
//!
//! There is one entry for each name that is held or wanted here. Of its waiters only the head stands in the line at the
//! server, so a process with a thousand waiters costs the server as much as one with a single waiter. What it has there
//! belongs to the entry: the next head goes on with it.

mod holds;
mod lanes;

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::task::Waker;

use self::holds::Holds;
use self::lanes::Lanes;
use super::names::{KnownHash, Name};
use crate::options::Replicas;

type Known = BuildHasherDefault<KnownHash>;

/// All entries. `H` is a hold, `L` what the waiters of a name have at the server, `F` a failure that concerns waiters.
#[derive(Debug)]
pub(crate) struct Waiters<H, L, F> {
    entries: HashMap<Arc<Name>, Entry<H, L, F>, Known>,
    /// The names of the tickets in line, by the numbers of their holds.
    tickets: HashMap<u64, Arc<Name>, Known>,
    next_place: u64,
    closed: bool,
}

#[derive(Debug)]
struct Entry<H, L, F> {
    /// The holds of this process, until they end. Some may have run out unnoticed: only the caller knows the time.
    held: Holds<H>,
    /// The waiter that contends at the server. Apart from the rest, so that a lock without other waiters needs no queue on
    /// the heap.
    head: Option<Waiter<F>>,
    /// The other waiters, first come first served, by ascending places.
    rest: VecDeque<Waiter<F>>,
    /// The head's state at the server, kept for the next one; of a name with lanes, what they share.
    line: L,
    /// The lanes of this name that are held or wanted, if there are any.
    lanes: Option<Box<Lanes>>,
}

/// Rule for holding a name at the same time as others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// One holder alone.
    Exclusive,
    /// Any number of shared holders, and no exclusive one.
    Shared,
    /// As many holders as the server admits: it has the count.
    Counted,
    /// The same, and what was granted has no holder: it is neither renewed nor released by its id, so a grant counts only once it
    /// was confirmed.
    Ownerless,
}

/// The access of a holder or a waiter, and its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) access: Access,
    /// The owner whose holds nest with it.
    pub(crate) owner: Option<u64>,
    /// The replicas that must confirm it: attempts that differ in this fail for different reasons.
    pub(crate) replicas: Replicas,
}

/// A hold of this process.
#[derive(Clone, Debug)]
pub(crate) struct Held<H> {
    /// The number of its id.
    pub(crate) number: u64,
    pub(crate) claim: Claim,
    pub(crate) hold: H,
}

#[derive(Debug)]
struct Waiter<F> {
    place: u64,
    claim: Claim,
    waker: Option<Waker>,
    /// The failure of an attempt ahead that concerns this waiter as well.
    failure: Option<F>,
}

/// The position of a waiter. It is woken when that changes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Position<H, F> {
    /// Other waiters are ahead.
    Queued,
    /// It is the head, but this hold of the process excludes it, unless that hold has run out.
    Behind(H),
    /// It is the head, and no hold of the process excludes it.
    Free,
    /// Its own owner has this hold.
    Nested(H),
    /// The attempt of a waiter ahead failed for a reason that concerns this one too.
    Failed(F),
    /// There are no more locks.
    Closed,
}

/// There are no more locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

/// Effects of a change, for once the table is unlocked again.
#[derive(Debug)]
#[must_use = "the waiters are to be woken outside of the lock"]
pub(crate) struct After<L> {
    wakers: Vec<Waker>,
    /// A line that no waiter here needs any more.
    line: Option<L>,
    /// The line that the lanes of a name shared, of which this was the last.
    shared: Option<(Arc<Name>, L)>,
}

/// Leftovers when all locking ends.
#[derive(Debug)]
pub(crate) struct Remains<H, L> {
    pub(crate) wakers: Vec<Waker>,
    pub(crate) holds: Vec<H>,
    pub(crate) lines: Vec<(Arc<Name>, L)>,
}

impl Access {
    /// Whether the server counts what is held.
    pub(crate) const fn is_counted(self) -> bool {
        matches!(self, Self::Counted | Self::Ownerless)
    }

    /// Whether both may be held at the same time, as far as this process can tell.
    fn admits(self, other: Self) -> bool {
        self == other && self != Self::Exclusive
    }
}

impl<H: Clone, L: Default, F> Waiters<H, L, F> {
    pub(crate) fn new() -> Self {
        Self {
            entries: HashMap::default(),
            tickets: HashMap::default(),
            next_place: 0,
            closed: false,
        }
    }

    /// Joins the queue; the place is good until [`leave`](Self::leave) or [`grant`](Self::grant).
    pub(crate) fn enter(&mut self, name: &Arc<Name>, claim: Claim) -> Result<u64, Closed> {
        if self.closed {
            return Err(Closed);
        }
        let place = self.next_place;
        self.next_place += 1;
        let waiter = Waiter {
            place,
            claim,
            waker: None,
            failure: None,
        };
        match self.entries.get_mut(name) {
            Some(entry) if entry.head.is_none() => entry.head = Some(waiter),
            Some(entry) => entry.rest.push_back(waiter),
            None => {
                let mut entry = Entry::empty();
                entry.head = Some(waiter);
                self.entries.insert(Arc::clone(name), entry);
                self.open_lane(name);
            }
        }
        Ok(place)
    }

    /// The same, but only as the head, and if no hold that is `live` excludes it.
    pub(crate) fn enter_if_free(
        &mut self,
        name: &Arc<Name>,
        claim: Claim,
        live: impl Fn(&H) -> bool,
    ) -> Result<Option<u64>, Closed> {
        let busy = self.entries.get(name).is_some_and(|entry| {
            entry.head.is_some() || entry.held.excluding(claim).any(|held| live(&held.hold))
        });
        if busy && !self.closed {
            Ok(None)
        } else {
            self.enter(name, claim).map(Some)
        }
    }

    /// The same behind whoever waits here, to contend beside them: they may wait for more than this.
    pub(crate) fn enter_unless_held(
        &mut self,
        name: &Arc<Name>,
        claim: Claim,
        live: impl Fn(&H) -> bool,
    ) -> Result<Option<u64>, Closed> {
        let is_held = self.entries.get(name).is_some_and(|entry| {
            let mut excluding = entry.held.excluding(claim);
            excluding.any(|held| live(&held.hold))
        });
        if is_held && !self.closed {
            Ok(None)
        } else {
            self.enter(name, claim).map(Some)
        }
    }

    /// The position of the waiter with this place. `waker` is woken when it should be asked for again.
    pub(crate) fn position(
        &mut self,
        name: &Arc<Name>,
        place: u64,
        waker: &Waker,
    ) -> Position<H, F> {
        // A place keeps its entry, so there always is one.
        let Some(entry) = self.entries.get_mut(name).filter(|_| !self.closed) else {
            return Position::Closed;
        };
        let (waiter, is_head) = match &mut entry.head {
            Some(head) if head.place == place => (head, true),
            _ => match entry
                .rest
                .binary_search_by_key(&place, |waiter| waiter.place)
            {
                Ok(at) => (&mut entry.rest[at], false),
                Err(_) => return Position::Closed,
            },
        };
        if let Some(failure) = waiter.failure.take() {
            return Position::Failed(failure);
        }
        // The head is woken for the end of the entry too, even where nothing is in its way now; and a hold to nest with may
        // be ending.
        match &mut waiter.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        let owner = waiter.claim.owner;
        let nests = |held: &&Held<H>| held.claim.owner == owner;
        if owner.is_some()
            && let Some(held) = entry.held.iter().find(nests)
        {
            return Position::Nested(held.hold.clone());
        }
        let mut excluding = entry.held.excluding(waiter.claim);
        // For readers here a waiter that excludes them waits at the server, where it keeps those of other processes out too.
        let excluding = excluding.find(|held| held.claim.access != Access::Shared);
        match excluding {
            _ if !is_head => Position::Queued,
            Some(held) => Position::Behind(held.hold.clone()),
            None => Position::Free,
        }
    }

    /// The head got the lock; the next one becomes the head, and waiters of the same owner nest.
    pub(crate) fn grant(
        &mut self,
        name: &Arc<Name>,
        place: u64,
        held: Held<H>,
    ) -> Result<After<L>, Closed> {
        if self.closed {
            return Err(Closed);
        }
        let owner = held.claim.owner;
        // The place keeps the entry.
        let Some(entry) = self.entries.get_mut(name) else {
            return Err(Closed);
        };
        let mut wakers: Vec<Waker> = entry.depart(place).into_iter().collect();
        entry.held.add(held);
        if owner.is_some() {
            let nested = entry
                .rest
                .iter_mut()
                .filter(|waiter| waiter.claim.owner == owner);
            wakers.extend(nested.filter_map(|waiter| waiter.waker.take()));
        }
        Ok(After::wake(wakers))
    }

    /// The attempt of the head failed for a reason that concerns all who would make the same one: they need not find out one
    /// after another.
    pub(crate) fn fail(
        &mut self,
        name: &Arc<Name>,
        replicas: Replicas,
        failure: impl Fn() -> F,
    ) -> After<L> {
        let mut wakers = Vec::new();
        let rest = self.entries.get_mut(name).map(|entry| &mut entry.rest);
        for waiter in rest.into_iter().flatten() {
            if waiter.claim.replicas == replicas {
                waiter.failure = Some(failure());
                wakers.extend(waiter.waker.take());
            }
        }
        After::wake(wakers)
    }

    /// Leaves the queue from any position; the next one moves up. With the last one goes what they had at the server.
    pub(crate) fn leave(&mut self, name: &Arc<Name>, place: u64) -> After<L> {
        let mut after = After::wake(Vec::new());
        if let Some(entry) = self.entries.get_mut(name) {
            after.wakers.extend(entry.depart(place));
            if entry.head.is_none() {
                let line = std::mem::take(&mut entry.line);
                self.sweep(name, &mut after);
                after.line = Some(line);
            }
        }
        after
    }

    /// The hold with this number is over: released or lost. Others, also later ones, stay.
    pub(crate) fn end(&mut self, name: &Arc<Name>, number: u64) -> After<L> {
        let mut after = After::wake(Vec::new());
        if let Some(entry) = self.entries.get_mut(name)
            && entry.held.remove(number)
        {
            after.wakers.extend(entry.wake_head());
            self.sweep(name, &mut after);
        }
        after
    }

    /// The hold with this number ends, and is passed on to the head as what it has at the server: `line` changes that. Returns
    /// `None`, and changes nothing, if the head has taken it out of the way already and asks the server, or nobody waits here,
    /// or for an owner, whose holds are known by their ids, or they have something there already.
    pub(crate) fn pass(
        &mut self,
        name: &Arc<Name>,
        number: u64,
        line: impl FnOnce(&mut L) -> bool,
    ) -> Option<After<L>> {
        let entry = self.entries.get_mut(name)?;
        let head = entry.head.as_ref()?;
        let is_fit = entry.held.contains(number) && head.claim.owner.is_none();
        if !is_fit || !line(&mut entry.line) {
            return None;
        }
        entry.held.remove(number);
        let wakers = entry.wake_head().into_iter().collect();
        Some(After::wake(wakers))
    }

    /// The hold with this number goes on as `held`, which may admit others than before: the head is woken. Waiters of the same
    /// owner nest.
    pub(crate) fn convert(
        &mut self,
        name: &Arc<Name>,
        number: u64,
        held: Held<H>,
    ) -> Result<After<L>, Closed> {
        if self.closed {
            return Err(Closed);
        }
        let entry = self
            .entries
            .entry(Arc::clone(name))
            .or_insert_with(Entry::empty);
        entry.held.remove(number);
        entry.held.add(held);
        let wakers = entry.wake_head().into_iter().collect();
        Ok(After::wake(wakers))
    }

    /// Whether anybody waits here.
    pub(crate) fn is_waited_for(&self, name: &Arc<Name>) -> bool {
        let entry = self.entries.get(name);
        entry.is_some_and(|entry| entry.head.is_some())
    }

    /// Whether others wait here behind the head.
    pub(crate) fn has_followers(&self, name: &Arc<Name>) -> bool {
        let entry = self.entries.get(name);
        entry.is_some_and(|entry| !entry.rest.is_empty())
    }

    /// The server's state of the waiters of this name.
    pub(crate) fn line(&mut self, name: &Arc<Name>) -> Option<&mut L> {
        self.entries.get_mut(name).map(|entry| &mut entry.line)
    }

    /// The same for all names, each with the waiter that is to be woken when it has changed, if there is one.
    pub(crate) fn lines(&mut self) -> impl Iterator<Item = (&mut L, Option<&mut Option<Waker>>)> {
        let entries = self.entries.values_mut();
        entries.map(|entry| {
            let waker = entry.head.as_mut().map(|head| &mut head.waker);
            (&mut entry.line, waker)
        })
    }

    /// A ticket for a hold with this `number` is in line.
    pub(crate) fn stand(&mut self, number: u64, name: &Arc<Name>) {
        self.tickets.insert(number, Arc::clone(name));
    }

    /// The ticket is not in line any more, or not for this process to look after.
    pub(crate) fn unstand(&mut self, number: u64) {
        let name = self.tickets.remove(&number);
        if let Some((order, lane)) = name.and_then(|name| self.order_of(&name)) {
            order.remove(lane);
        }
    }

    /// The name whose ticket becomes the hold with this number.
    pub(crate) fn name_of(&self, number: u64) -> Option<&Arc<Name>> {
        self.tickets.get(&number)
    }

    /// The waker of the head.
    pub(crate) fn wake_head(&mut self, name: &Arc<Name>) -> Option<Waker> {
        self.entries.get_mut(name).and_then(Entry::wake_head)
    }

    /// Whether nothing is held or wanted.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The holds of all names.
    pub(crate) fn all_holds(&self) -> Vec<H> {
        let held = self.entries.values().flat_map(|entry| entry.held.iter());
        held.map(|held| held.hold.clone()).collect()
    }

    /// The holds of this name, in all of its lanes.
    pub(crate) fn holds(&self, name: &Arc<Name>) -> Vec<H> {
        let lanes = self.lanes(name).filter_map(|lane| self.entries.get(lane));
        let entries = self.entries.get(name).into_iter().chain(lanes);
        let held = entries.flat_map(|entry| entry.held.iter());
        held.map(|held| held.hold.clone()).collect()
    }

    /// Ends all locking: all waiters are to be woken, and the holds and what the waiters have at the server are the caller's
    /// to end.
    pub(crate) fn close(&mut self) -> Remains<H, L> {
        self.closed = true;
        let (mut wakers, mut holds, mut lines) = (Vec::new(), Vec::new(), Vec::new());
        for (name, entry) in &mut self.entries {
            lines.push((Arc::clone(name), std::mem::take(&mut entry.line)));
            wakers.extend(
                entry
                    .head
                    .iter_mut()
                    .chain(&mut entry.rest)
                    .filter_map(|waiter| waiter.waker.take()),
            );
            holds.extend(entry.held.iter().map(|held| held.hold.clone()));
        }
        Remains {
            wakers,
            holds,
            lines,
        }
    }

    /// Removes the entry if the name is neither held nor wanted. What it had at the server, and what was shared with it, is to
    /// be dropped elsewhere.
    fn sweep(&mut self, name: &Arc<Name>, after: &mut After<L>) {
        if !self.is_idle(name) {
            return;
        }
        after.line = self.entries.remove(name).map(|entry| entry.line);
        let Some(number) = name.lane_number() else {
            return;
        };
        let whole = name.whole();
        if let Some(entry) = self.entries.get_mut(whole) {
            lanes::close(&mut entry.lanes, number);
        }
        if self.is_idle(whole) {
            let entry = self.entries.remove(whole);
            after.shared = entry.map(|entry| (Arc::clone(whole), entry.line));
        }
    }

    fn is_idle(&self, name: &Arc<Name>) -> bool {
        self.entries.get(name).is_some_and(|entry| {
            entry.held.is_empty() && entry.head.is_none() && entry.lanes.is_none()
        })
    }
}

impl<H, L: Default, F> Entry<H, L, F> {
    fn empty() -> Self {
        Self {
            held: Holds::none(),
            head: None,
            rest: VecDeque::new(),
            line: L::default(),
            lanes: None,
        }
    }
}

impl<H, L, F> Entry<H, L, F> {
    fn wake_head(&mut self) -> Option<Waker> {
        self.head.as_mut().and_then(|head| head.waker.take())
    }

    /// Takes the waiter out of the queue. Returns the waker of a waiter that became the head.
    fn depart(&mut self, place: u64) -> Option<Waker> {
        if self.head.as_ref().is_some_and(|head| head.place == place) {
            self.head = self.rest.pop_front();
            return self.wake_head();
        }
        if let Ok(at) = self
            .rest
            .binary_search_by_key(&place, |waiter| waiter.place)
        {
            self.rest.remove(at);
        }
        None
    }
}

impl<L> After<L> {
    const fn wake(wakers: Vec<Waker>) -> Self {
        Self {
            wakers,
            line: None,
            shared: None,
        }
    }

    /// Takes what nobody waits with any more.
    pub(crate) fn take_line(&mut self) -> Option<L> {
        self.line.take()
    }

    /// Takes what the lanes of a name shared, none of which is left.
    pub(crate) fn take_shared(&mut self) -> Option<(Arc<Name>, L)> {
        self.shared.take()
    }

    /// Wakes and drops. The table must not be locked.
    pub(crate) fn run(self) {
        for waker in self.wakers {
            waker.wake();
        }
        drop((self.line, self.shared));
    }
}

#[cfg(test)]
#[path = "waiters/tests.rs"]
mod tests;
