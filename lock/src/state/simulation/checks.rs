//! Conditions that hold in every run, and its figures.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::rc::Rc;
use std::task::Waker;

use super::call::{HoldKey, JAVA, Note};
use super::connection::LinkKind;
use super::executor::{Micros, SECOND};
use super::process::{Hold, Process};
use super::profile::Profile;
use super::world::{Outcome, World};

/// The lock is free beside a healthy waiter no longer than that waits before it looks.
const LONGEST_FREE: Micros = 9 * SECOND;
/// Where all wait in line, a ticket is passed by no more often than this, beside the leases that run out, the tickets that are
/// skipped and the writes that are lost.
const MOST_BYPASSES: u64 = 4;

#[derive(Debug, Default)]
pub(super) struct Checks {
    pub(super) violations: Vec<String>,
    /// The highest token that was issued.
    issued: u64,
    tokens: BTreeSet<u64>,
    /// Holds whose guards are alive.
    claims: Vec<(Rc<Process>, Rc<Hold>)>,
    /// Holds that were forced away.
    forced: HashSet<HoldKey>,
    /// Something happened after which two may hold the lock: a failover without replicas, or a server's clock that was
    /// set forward.
    pub(super) excused: bool,
    pub(super) java: Java,
    pub(super) served: u64,
    pub(super) requests: u64,
    /// Leases that ran out, tickets that were skipped, writes that were lost: each may let somebody by.
    pub(super) skips: u64,
    /// Living tickets: how often each was passed by, and the skips before that.
    passed: BTreeMap<HoldKey, (u64, u64)>,
    bypass: u64,
    free_since: Option<Micros>,
    longest_free: Micros,
}

/// Actions of Redisson's client.
#[derive(Debug, Default)]
pub(super) struct Java {
    pub(super) waits: bool,
    pub(super) served: u64,
    pub(super) longest_wait: Micros,
    pub(super) heard: bool,
    pub(super) waker: Option<Waker>,
}

impl Java {
    pub(super) fn took(&mut self, after: Micros) {
        self.waits = false;
        self.served += 1;
        self.longest_wait = self.longest_wait.max(after);
    }

    /// A release was announced.
    pub(super) fn heard(&mut self) {
        self.heard = true;
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Checks {
    /// A guard exists from now on.
    pub(super) fn claimed(&mut self, process: &Rc<Process>, hold: &Rc<Hold>) {
        self.served += 1;
        if !self.tokens.insert(hold.token) {
            self.violate(format!("token {} was used twice", hold.token));
        }
        let is_last = self.tokens.last() == Some(&hold.token);
        if !is_last && !self.excused && !self.forced.contains(&hold.key) {
            self.violate(format!("token {} after a higher one", hold.token));
        }
        self.claims.push((Rc::clone(process), Rc::clone(hold)));
    }

    pub(super) fn dropped(&mut self, hold: &Rc<Hold>) {
        self.claims.retain(|(_, other)| !Rc::ptr_eq(other, hold));
    }

    /// Each hold whose guard may trust it is the holder at the server, and for at least as long.
    fn look_at_claims(&mut self, world: &World) {
        if self.excused || self.claims.is_empty() {
            return;
        }
        let server = world.server.borrow();
        let lease_end = server.lease_end();
        let wrong = self.claims.iter().find_map(|(process, hold)| {
            if !hold.is_live(process.now()) || self.forced.contains(&hold.key) {
                return None;
            }
            if hold.is_held_too_long(process.now()) {
                return Some(format!("{:?} is held for too long", hold.key));
            }
            let holder = server.data.lock.map(|(holder, _)| holder);
            if holder != Some(hold.key) {
                return Some(format!("{:?} is held beside {holder:?}", hold.key));
            }
            let trusted_end = process.true_time(hold.state.borrow().deadline().monotonic());
            let beyond = trusted_end.checked_sub(lease_end?)?;
            (beyond > 0).then(|| format!("{:?} is trusted {beyond} us beyond its lease", hold.key))
        });
        drop(server);
        if let Some(wrong) = wrong {
            self.violate(wrong);
        }
    }

    /// Takes note of what the server did.
    pub(super) fn note(world: &Rc<World>, notes: &[Note]) {
        let living: Vec<(HoldKey, u64)> = {
            let processes = world.processes.borrow();
            let alive = processes.iter().filter(|process| process.alive.get());
            let standing = alive.filter_map(|process| process.standing());
            let server = world.server.borrow();
            let line = &server.data.line;
            let scored = standing.filter_map(|(ticket, _)| {
                let place = line.keys().find(|(_, one)| *one == ticket);
                place.map(|(score, _)| (ticket.hold, *score))
            });
            scored.collect()
        };
        let mut checks = world.checks.borrow_mut();
        for note in notes {
            match *note {
                Note::Issued(first, last) => checks.issued(first, last),
                Note::Took(hold, score) => checks.took(hold, score, &living),
                Note::Skipped => checks.skips += 1,
                Note::Jumped => checks.violate("a ticket was passed over".to_owned()),
                Note::Forced(hold) => {
                    checks.forced.insert(hold);
                }
            }
        }
    }

    /// Looks at what is held, and takes the time while the lock is free beside a healthy waiter.
    pub(super) fn look(world: &Rc<World>) {
        let is_free = {
            let server = world.server.borrow();
            server.data.lock.is_none()
                && !server.data.line.is_empty()
                && !server.migrating
                && server.down_until <= world.now()
        };
        let is_wanted = is_free && Self::is_somebody_healthy(world);
        let mut checks = world.checks.borrow_mut();
        checks.look_at_claims(world);
        if is_wanted {
            let now = world.now();
            checks.free_since.get_or_insert(now);
        } else if let Some(since) = checks.free_since.take() {
            checks.longest_free = checks.longest_free.max(world.now() - since);
        }
    }

    /// Checks that everybody was served, and that nothing is left.
    pub(super) fn look_at_end(world: &Rc<World>) {
        let mut left = Vec::new();
        for process in world.processes.borrow().iter() {
            if !process.alive.get() {
                continue;
            }
            let index = process.index;
            if process.busy.get() > 0 || !process.keeper.is_idle() {
                left.push(format!("P{index} is not done"));
            }
            let mut waiters = process.waiters.borrow_mut();
            if waiters.line(&world.name).is_some() {
                left.push(format!("P{index} has an entry"));
            }
            let number = (0..process.next.get()).find(|&number| waiters.name_of(number).is_some());
            if let Some(number) = number {
                left.push(format!("P{index} knows ticket {number}"));
            }
        }
        let server = world.server.borrow();
        if let Some((hold, _)) = server.data.lock {
            left.push(format!("held by {hold:?}"));
        }
        if let Some((_, ticket)) = server.data.line.keys().next() {
            left.push(format!("in line: {ticket:?}"));
        }
        let mut checks = world.checks.borrow_mut();
        if checks.java.waits {
            left.push("Redisson waits".to_owned());
        }
        if !left.is_empty() {
            checks.violate(left.join(", "));
        }
    }

    pub(super) fn violate(&mut self, what: String) {
        self.violations.push(what);
    }

    pub(super) fn outcome(&mut self, profile: &Profile) -> Outcome {
        if self.longest_free > LONGEST_FREE {
            self.violate(format!("free for {} us beside a waiter", self.longest_free));
        }
        if profile.is_ordered() && self.bypass > MOST_BYPASSES {
            self.violate(format!("a ticket was passed by {} times", self.bypass));
        }
        Outcome {
            violations: std::mem::take(&mut self.violations),
            served: self.served,
            requests: self.requests,
            longest_free: self.longest_free,
            bypass: self.bypass,
            java_served: self.java.served,
            java_longest_wait: self.java.longest_wait,
        }
    }

    pub(super) fn clear(&mut self) {
        self.claims.clear();
    }

    fn issued(&mut self, first: u64, last: u64) {
        if first <= self.issued {
            let higher = self.issued;
            self.violate(format!("token {first} was issued after {higher}"));
        }
        self.issued = self.issued.max(last);
    }

    fn took(&mut self, hold: HoldKey, score: Option<u64>, living: &[(HoldKey, u64)]) {
        if hold.process == JAVA {
            return;
        }
        self.passed
            .retain(|hold, _| living.iter().any(|(living, _)| living == hold));
        for &(waiting, place) in living {
            let skips = self.skips;
            let (times, since) = self.passed.entry(waiting).or_insert((0, skips));
            if waiting != hold && score.is_none_or(|score| score > place) {
                *times += 1;
                self.bypass = self.bypass.max(times.saturating_sub(skips - *since));
            }
        }
    }

    fn is_somebody_healthy(world: &World) -> bool {
        let processes = world.processes.borrow();
        let server = world.server.borrow();
        processes.iter().any(|process| {
            process.alive.get()
                && process.stopped_until.get() <= world.now()
                && process.blocked_until.get() <= world.now()
                && process.link(LinkKind::Shared).up.get()
                && process
                    .standing()
                    .is_some_and(|(ticket, _)| server.stands(ticket))
        })
    }
}
