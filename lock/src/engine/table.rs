//! The table of waiters of one `Locks`: locks it, and wakes and drops outside of the lock.

use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant};

use leasehold_cluster::Source;

use super::clock::Clock;
use super::hold::Hold;
use super::line::{Line, Standing};
use super::parked::Parked;
use super::sync::lock;
use crate::error::Error;
use crate::options::Replicas;
use crate::state::id::is_of_owner;
use crate::state::names::Name;
use crate::state::readers::{Gate, Open};
use crate::state::ticket::{Grant, Lookout, Ticket};
use crate::state::waiters::{After, Claim, Closed, Held, Position, Remains, Waiters};

#[derive(Debug)]
pub(crate) struct Table {
    waiters: Mutex<Waiters<Arc<Hold>, Line, Error>>,
    parked: Arc<Parked>,
    clock: Clock,
}

impl Table {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            waiters: Mutex::new(Waiters::new()),
            parked: Arc::default(),
            clock,
        }
    }

    /// See [`Waiters::enter`].
    pub(crate) fn enter(&self, name: &Arc<Name>, claim: Claim) -> Result<u64, Closed> {
        lock(&self.waiters).enter(name, claim)
    }

    /// See [`Waiters::enter_if_free`].
    pub(crate) fn enter_if_free(
        &self,
        name: &Arc<Name>,
        claim: Claim,
    ) -> Result<Option<u64>, Closed> {
        lock(&self.waiters).enter_if_free(name, claim, |hold| hold.is_live())
    }

    /// See [`Waiters::enter_unless_held`].
    pub(crate) fn enter_unless_held(
        &self,
        name: &Arc<Name>,
        claim: Claim,
    ) -> Result<Option<u64>, Closed> {
        lock(&self.waiters).enter_unless_held(name, claim, |hold| hold.is_live())
    }

    /// See [`Waiters::position`].
    pub(crate) fn position(
        &self,
        name: &Arc<Name>,
        place: u64,
        waker: &Waker,
    ) -> Position<Arc<Hold>, Error> {
        lock(&self.waiters).position(name, place, waker)
    }

    /// The waiter with this place has `hold` now; with `from_line` it was the ticket of this name, which is taken away from those
    /// who wait here. Both at once: a message that comes in between would be of a grant for nobody.
    pub(crate) fn grant(
        &self,
        place: u64,
        hold: &Arc<Hold>,
        from_line: bool,
    ) -> Result<(), Closed> {
        let mut waiters = lock(&self.waiters);
        // First, so that the next head does not inherit it.
        let standing = from_line.then(|| unstand(&mut waiters, &hold.name));
        let after = waiters.grant(&hold.name, place, held(hold));
        drop(waiters);
        drop(standing);
        after?.run();
        Ok(())
    }

    /// See [`Waiters::fail`]. Nothing happens if `error` concerns only the attempt that failed with it.
    pub(crate) fn fail(&self, name: &Arc<Name>, replicas: Replicas, error: &Error) {
        let Some(shared) = error.of_waiters_behind() else {
            return;
        };
        let after = lock(&self.waiters).fail(name, replicas, || shared.copied());
        after.run();
    }

    /// See [`Waiters::leave`]. Returns what nobody here waits with any more, to be taken back.
    pub(crate) fn leave(&self, name: &Arc<Name>, place: u64) -> Option<Line> {
        let mut after = lock(&self.waiters).leave(name, place);
        let line = after.take_line();
        self.finish(after);
        line
    }

    /// `hold` is over: the next waiter may go on.
    pub(crate) fn end(&self, hold: &Hold) {
        let mut after = lock(&self.waiters).end(&hold.name, hold.id.number());
        let line = after.take_line();
        self.finish(after);
        if let Some(line) = line {
            self.park(&hold.name, line);
        }
    }

    /// Carries out the effects of a change after which a name may have no lanes any more.
    fn finish(&self, mut after: After<Line>) {
        let shared = after.take_shared();
        after.run();
        if let Some((name, line)) = shared {
            self.park(&name, line);
        }
    }

    /// Whether anything is held or wanted.
    pub(crate) fn is_busy(&self) -> bool {
        !lock(&self.waiters).is_empty()
    }

    /// See [`Waiters::all_holds`].
    pub(crate) fn all_holds(&self) -> Vec<Arc<Hold>> {
        lock(&self.waiters).all_holds()
    }

    /// See [`Waiters::holds`].
    pub(crate) fn holds(&self, name: &Arc<Name>) -> Vec<Arc<Hold>> {
        lock(&self.waiters).holds(name)
    }

    /// Runs `then` on the line of this name, if it is held or wanted here. Nothing may be dropped in it.
    pub(crate) fn with_line<R>(
        &self,
        name: &Arc<Name>,
        then: impl FnOnce(&mut Line) -> R,
    ) -> Option<R> {
        lock(&self.waiters).line(name).map(then)
    }

    /// Runs `then` on the ticket of this name, if there is one.
    pub(crate) fn with_standing<R>(
        &self,
        name: &Arc<Name>,
        then: impl FnOnce(&mut Standing) -> R,
    ) -> Option<R> {
        let mut waiters = lock(&self.waiters);
        waiters.line(name)?.standing.as_deref_mut().map(then)
    }

    /// A new ticket of this name, which is in line from now on.
    pub(crate) fn stand(&self, name: &Arc<Name>, standing: Standing) {
        let number = standing.ticket.id().number();
        let mut waiters = lock(&self.waiters);
        waiters.stand(number, name);
        let former = waiters
            .line(name)
            .map(|line| line.standing.replace(Box::new(standing)));
        drop(waiters);
        drop(former);
    }

    /// Takes the ticket of this name away from those who wait here.
    pub(crate) fn take_standing(&self, name: &Arc<Name>) -> Option<Box<Standing>> {
        unstand(&mut lock(&self.waiters), name)
    }

    /// Keeps the subscription to the grants of a line that nobody waits in for a while. That to Redisson's releases ends: the
    /// server would take it for one of its waiters.
    pub(crate) fn park(&self, name: &Arc<Name>, line: Line) {
        if let Some(grants) = line.grants {
            self.parked.park(name, grants);
        }
    }

    /// The waiters of this name go on with a subscription that was kept, if there is one.
    pub(crate) fn resume(&self, name: &Arc<Name>) {
        if let Some(parked) = self.parked.take(name) {
            self.with_line(name, |line| {
                let known = line.grants.take();
                line.grants = known.or(Some(parked));
            });
        }
    }

    /// The hold of this process that a read of this name may share now; with `passes_nobody`, only if nobody waits here.
    pub(crate) fn shared(
        &self,
        name: &Arc<Name>,
        now: Instant,
        passes_nobody: bool,
    ) -> Option<Arc<Hold>> {
        let mut waiters = lock(&self.waiters);
        if passes_nobody && waiters.is_waited_for(name) {
            return None;
        }
        waiters.line(name)?.gate.shared(now).cloned()
    }

    /// Runs `then` on the gate to the reads of this name, if it is held or wanted here. A hold that it leaves is dropped.
    pub(crate) fn with_gate(
        &self,
        name: &Arc<Name>,
        then: impl FnOnce(&mut Gate<Arc<Hold>>) -> Option<Arc<Hold>>,
    ) {
        let left = self.with_line(name, |line| then(&mut line.gate));
        drop(left);
    }

    /// A writer waits for the hold with this number.
    pub(crate) fn writer_waits(&self, name: &Arc<Name>, number: u64) {
        self.with_gate(name, |gate| {
            if is_of_owner(number) {
                // It is not shared, and its number says nothing of those that are.
                gate.close_all()
            } else {
                gate.close(number)
            }
        });
    }

    /// The server said that nobody waits while the hold with this number lasts.
    pub(crate) fn nobody_waits(&self, name: &Arc<Name>, number: u64) {
        self.with_gate(name, |gate| {
            gate.confirm(number);
            None
        });
    }

    /// Takes the hold with this number out of the gate, if it is there.
    pub(crate) fn take_from_gate(&self, name: &Arc<Name>, number: u64) -> Option<Open<Arc<Hold>>> {
        self.with_line(name, |line| line.gate.take(number))?
    }

    /// `hold`, of which the server has the fields in another way now, goes on as `converted`.
    pub(crate) fn convert(&self, hold: &Hold, converted: &Arc<Hold>) -> Result<(), Closed> {
        let held = held(converted);
        let after = lock(&self.waiters).convert(&hold.name, hold.id.number(), held)?;
        after.run();
        Ok(())
    }

    /// Changes the ticket of this name, if there is one, and wakes the waiter that it belongs to.
    pub(crate) fn with_ticket<R>(&self, name: &Arc<Name>, then: impl FnOnce(&mut Ticket) -> R) {
        let mut waiters = lock(&self.waiters);
        let standing = waiters.line(name).and_then(|line| line.standing.as_mut());
        let Some(standing) = standing else {
            return;
        };
        then(&mut standing.ticket);
        let waker = waiters.wake_head(name);
        drop(waiters);
        waker.into_iter().for_each(Waker::wake);
    }

    /// The same for the tickets of all lanes of this name.
    pub(crate) fn with_tickets(&self, name: &Arc<Name>, mut then: impl FnMut(&mut Ticket)) {
        let lanes: Vec<_> = lock(&self.waiters).lanes(name).cloned().collect();
        for name in lanes.iter().chain([name]) {
            self.with_ticket(name, &mut then);
        }
    }

    /// The same for the first of them in this run.
    pub(crate) fn with_first_ticket(
        &self,
        name: &Arc<Name>,
        run: u8,
        then: impl FnOnce(&mut Ticket),
    ) {
        let first = lock(&self.waiters).first_in_run(name, run).cloned();
        if let Some(first) = first {
            self.with_ticket(&first, then);
        }
    }

    /// The server has said where the ticket of this lane stands, or that it does not.
    pub(crate) fn note_rank(&self, lane: &Arc<Name>) {
        let mut waiters = lock(&self.waiters);
        let standing = waiters.line(lane).and_then(|line| line.standing.as_ref());
        if let Some(rank) = standing.map(|standing| standing.ticket.rank()) {
            waiters.rank(lane, rank);
        }
    }

    /// Whether the ticket of this lane need not look now, since the first of its run looks for it too. Then it rests. But each
    /// looks after `changes` of the servers or connections: what one has lost another one may have.
    pub(crate) fn rests(&self, lane: &Arc<Name>, changes: u64) -> bool {
        let now = self.clock.now();
        let mut waiters = lock(&self.waiters);
        let Some(first) = waiters.first_before(lane) else {
            return false;
        };
        let may_rest = |line: &mut Line| {
            let standing = line.standing.as_ref();
            standing.is_some_and(|own| own.changes == changes && own.ticket.may_rest())
        };
        if !waiters.line(lane).is_some_and(may_rest) {
            return false;
        }
        let ahead = waiters.line(&first).and_then(|line| {
            let standing = line.standing.as_ref()?;
            standing.ticket.lookout(now)
        });
        let ahead = match ahead {
            Some(lookout) => lookout,
            None if waiters.stands_in(lane, now) => return false,
            None => Lookout::STAND_IN,
        };
        let standing = waiters.line(lane).and_then(|line| line.standing.as_mut());
        standing.is_some_and(|own| own.ticket.rest(ahead, now))
    }

    /// Something was amiss with the ticket of this lane, which may concern the next one too: that looks now.
    pub(crate) fn next_looks(&self, lane: &Arc<Name>) {
        let next = lock(&self.waiters).next_behind(lane);
        if let Some(next) = next {
            self.with_ticket(&next, |ticket| ticket.look_now(self.clock.now()));
        }
    }

    /// Passes `hold` on to the next waiter here. Returns whether there is one.
    pub(crate) fn pass(&self, hold: &Hold, standing: Standing) -> bool {
        let mut standing = Some(Box::new(standing));
        let after = lock(&self.waiters).pass(&hold.name, hold.id.number(), |line| {
            let is_free = line.standing.is_none();
            if is_free {
                line.standing = standing.take();
            }
            is_free
        });
        let is_passed = after.is_some();
        after.into_iter().for_each(After::run);
        is_passed
    }

    /// See [`Waiters::has_followers`].
    pub(crate) fn has_followers(&self, name: &Arc<Name>) -> bool {
        lock(&self.waiters).has_followers(name)
    }

    /// See [`Waiters::unstand`].
    pub(crate) fn unstand(&self, number: u64) {
        lock(&self.waiters).unstand(number);
    }

    /// The ticket of the hold with this number was granted. Returns false if it is no ticket of this process any more.
    pub(crate) fn granted(&self, number: u64, grant: Grant) -> bool {
        let name = lock(&self.waiters).name_of(number).cloned();
        let Some(name) = name else {
            return false;
        };
        let mut is_known = false;
        self.with_ticket(&name, |ticket| {
            is_known = ticket.id().number() == number;
            if is_known {
                ticket.granted(grant);
            }
        });
        is_known
    }

    /// The ticket of the hold with this number was told to look, `at` this time of the server.
    pub(crate) fn told_to_look(&self, number: u64, at: u64) {
        let name = lock(&self.waiters).name_of(number).cloned();
        if let Some(name) = name {
            let now = self.clock.now();
            self.with_ticket(&name, |ticket| {
                if ticket.id().number() == number {
                    ticket.told_to_look(at, now);
                }
            });
        }
    }

    /// The ticket of the hold with this number is the first behind one that was granted for `lease`.
    pub(crate) fn is_next(&self, number: u64, lease: Duration) {
        let now = self.clock.now();
        let name = lock(&self.waiters).name_of(number).cloned();
        if let Some(name) = name {
            self.with_ticket(&name, |ticket| {
                if ticket.id().number() == number {
                    ticket.is_next(lease, now);
                }
            });
        }
    }

    /// The numbers of the holds of this name, and of one that is being passed on.
    pub(crate) fn numbers(&self, name: &Arc<Name>) -> Vec<u64> {
        let mut waiters = lock(&self.waiters);
        let holds = waiters.holds(name);
        let standing = waiters.line(name).and_then(|line| line.standing.as_ref());
        let passed = standing.filter(|standing| standing.passed.is_some());
        let passed = passed.map(|standing| standing.ticket.id().number());
        drop(waiters);
        let held = holds.iter().map(|hold| hold.id.number());
        held.chain(passed).collect()
    }

    /// A hold that is being passed on and has one of these `numbers` is gone from the server.
    pub(crate) fn spoil_passed(&self, name: &Arc<Name>, numbers: &[u64]) {
        self.with_ticket(name, |ticket| {
            if numbers.contains(&ticket.id().number()) {
                ticket.spoil();
            }
        });
    }

    /// Whether a hold of this process, or one that is being passed on here, has this number.
    pub(crate) fn is_of(&self, name: &Arc<Name>, number: u64) -> bool {
        let mut waiters = lock(&self.waiters);
        let holds = waiters.holds(name);
        let standing = waiters.line(name).and_then(|line| line.standing.as_ref());
        let is_passed = standing.is_some_and(|standing| standing.ticket.id().number() == number);
        drop(waiters);
        is_passed || holds.iter().any(|hold| hold.id.number() == number)
    }

    /// The subscription to grants was confirmed over `source`: grants before it were not heard, nor writers that wait.
    pub(crate) fn subscribed(&self, source: Source) {
        let now = self.clock.now();
        let (mut wakers, mut left) = (Vec::new(), Vec::new());
        let mut waiters = lock(&self.waiters);
        for (line, waker) in waiters.lines() {
            left.extend(line.gate.subscribed(source));
            let standing = line.standing.as_mut();
            if standing.is_some_and(|standing| standing.ticket.subscribed(source, now)) {
                wakers.extend(waker.and_then(Option::take));
            }
        }
        drop(waiters);
        drop(left);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Ends all locking and wakes all waiters. Returns what is held, and what stands in line.
    pub(crate) fn close(&self) -> Remains<Arc<Hold>, Line> {
        self.parked.clear();
        let mut remains = lock(&self.waiters).close();
        remains.wakers.drain(..).for_each(Waker::wake);
        remains
    }
}

/// Takes the ticket of this name away from those who wait here.
fn unstand(
    waiters: &mut Waiters<Arc<Hold>, Line, Error>,
    name: &Arc<Name>,
) -> Option<Box<Standing>> {
    let standing = waiters.line(name)?.standing.take()?;
    waiters.unstand(standing.ticket.id().number());
    Some(standing)
}

fn held(hold: &Arc<Hold>) -> Held<Arc<Hold>> {
    let claim = Claim {
        access: hold.protocol.access,
        owner: hold.owner.as_ref().map(|owner| owner.number()),
        replicas: hold.terms.replicas,
    };
    Held {
        number: hold.id.number(),
        claim,
        hold: Arc::clone(hold),
    }
}
