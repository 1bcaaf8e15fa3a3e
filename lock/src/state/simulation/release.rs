//! The ends of holds, and grants: as the engine's `release` and `grants` do them.

use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use super::call::{Call, HoldKey, TicketKey};
use super::connection::{self, LinkKind, Unanswered};
use super::keeper::PendingEnd;
use super::process::{Hold, Line, Process, Standing};
use super::profile::Broken;
use crate::error::LostReason;
use crate::protocol::Announced;
use crate::state::deadline::Deadline;
use crate::state::hold::{Ending, Leave, Status};
use crate::state::ticket::{Grant, Passed, Ticket};
use crate::state::waiters::After;

/// An attempt that is given up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Withdrawn {
    pub(super) hold: HoldKey,
    pub(super) ticket: Option<TicketKey>,
    pub(super) lease: Duration,
}

/// Why `hold` is over, if it is.
pub(super) fn check(process: &Rc<Process>, hold: &Rc<Hold>) -> Option<LostReason> {
    let status = hold.state.borrow_mut().check(process.now());
    match status {
        Status::Held => None,
        Status::Over(reason) => Some(reason),
        Status::Ended(ending) => {
            let reason = ending.reason;
            stop(process, &ending);
            process.end(hold);
            Some(reason)
        }
    }
}

pub(super) fn lose(process: &Rc<Process>, hold: &Rc<Hold>, reason: LostReason) {
    let ended = hold.state.borrow_mut().lose(reason);
    if let Ok(ending) = ended {
        stop(process, &ending);
        process.end(hold);
    }
}

/// Releases a hold that was lost although the server may still have it.
pub(super) fn end_lost(process: &Rc<Process>, hold: &Hold) {
    let withdrawn = of_hold(hold);
    finish_later(process, withdrawn, hold.unanswered.clone());
}

/// The guard of `hold` is dropped.
pub(super) fn drop_guard(process: &Rc<Process>, hold: &Rc<Hold>) {
    process.world.checks.borrow_mut().dropped(hold);
    let left = hold.state.borrow_mut().leave(0);
    if let Leave::Last(ending) = left {
        carry_out(process, hold, &ending);
    }
}

fn carry_out(process: &Rc<Process>, hold: &Rc<Hold>, ending: &Ending) {
    stop(process, ending);
    if ending.reason == LostReason::Released && pass_on(process, hold) {
        return;
    }
    if ending.release {
        let mut redisson = redisson(process);
        if redisson.is_some() {
            let name = process.world.name.hash();
            let now = process.now().monotonic;
            let is_open = process.turns.borrow_mut().is_open(name, now);
            let announced = process.with_line(|line| announced(line, is_open));
            redisson = announced.or(redisson);
        }
        submit_end(process, of_hold(hold), redisson, hold.unanswered.clone());
    }
    process.end(hold);
}

/// Ends all locking of a process.
pub(super) fn shut_down(process: &Rc<Process>) {
    let remains = process.waiters.borrow_mut().close();
    remains.wakers.into_iter().for_each(Waker::wake);
    for (_, line) in remains.lines {
        abandon(process, line);
    }
    for hold in remains.holds {
        let ended = hold.state.borrow_mut().lose(LostReason::Closed);
        if let Ok(ending) = ended {
            carry_out(process, &hold, &ending);
        }
    }
}

/// Passes a hold that is released on to the next waiter here. Returns whether there is one, and it may be.
fn pass_on(process: &Process, hold: &Hold) -> bool {
    let Some(chain) = hold.chain else {
        return false;
    };
    let now = process.now();
    let (since, lease) = {
        let state = hold.state.borrow();
        (state.lease_since(), state.lease())
    };
    let left = Deadline::new(since, lease).left(now);
    let changes = process.changes.get();
    let Some((token, chain)) = chain.pass(now.monotonic, left, lease, changes) else {
        return false;
    };
    let id = process.hold_id(hold.key.number);
    let passed = Passed {
        since,
        lease,
        token,
    };
    let mut standing = Some(Standing {
        ticket: Ticket::of_hold(id, passed, now.monotonic),
        lease: lease.max(hold.terms.lease),
        unanswered: hold.unanswered.clone(),
        passed: Some((chain, hold.terms.replicas)),
        message: None,
        sample: None,
    });
    let name = &process.world.name;
    let after = process
        .waiters
        .borrow_mut()
        .pass(name, hold.key.number, |line| {
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

/// Removes what an attempt may have left.
pub(super) fn withdraw(process: &Rc<Process>, withdrawn: Withdrawn, unanswered: Unanswered) {
    if process.alive.get() {
        submit_end(process, withdrawn, redisson(process), unanswered);
    }
}

/// A message came that a ticket of this process became the holder.
pub(super) fn granted(
    process: &Rc<Process>,
    hold: HoldKey,
    (token, at, lease): (u64, u64, u64),
    session: u64,
) {
    let lease = Duration::from_millis(lease);
    let grant = Grant {
        token,
        at,
        lease,
        receipt: process.now(),
        source: process.ear(session),
    };
    process
        .world
        .say(|| format!("P{} hears of {hold:?} {token}", process.index));
    let is_known = process.waiters.borrow().name_of(hold.number).is_some();
    let is_standing = |line: &mut Line| {
        let standing = line.standing.as_mut()?;
        if standing.ticket.id().number() != hold.number {
            return None;
        }
        standing.message = Some(grant);
        Some(())
    };
    if is_known && process.with_line(is_standing).flatten().is_some() {
        process.with_ticket(|ticket| ticket.granted(grant));
        return;
    }
    let holds = process.waiters.borrow().holds(&process.world.name);
    let standing = process.standing();
    if holds.iter().any(|known| known.key == hold)
        || standing.is_some_and(|(ticket, _)| ticket.hold == hold)
    {
        return;
    }
    if process.world.broken == Some(Broken::UnknownNotHandedOn) {
        return;
    }
    let withdrawn = Withdrawn {
        hold,
        ticket: None,
        lease,
    };
    withdraw(process, withdrawn, Vec::new());
}

/// Takes back what the waiters have at the server, since none of them is left.
pub(super) fn abandon(process: &Rc<Process>, line: Line) {
    let Some(Standing {
        ticket,
        lease,
        unanswered,
        ..
    }) = line.standing
    else {
        return;
    };
    process.waiters.borrow_mut().unstand(ticket.id().number());
    if ticket.has_joined() {
        let key = process.ticket_key(&ticket);
        let withdrawn = Withdrawn {
            hold: key.hold,
            ticket: Some(key),
            lease,
        };
        withdraw(process, withdrawn, unanswered);
    }
}

/// As `Line::announced`.
fn announced(line: &Line, is_open: bool) -> Announced {
    if !is_open {
        return Announced::IfFree;
    }
    Announced::Open {
        own: u64::from(line.releases.is_some() && line.standing.is_none()),
    }
}

fn redisson(process: &Process) -> Option<Announced> {
    process.world.profile.redisson.then_some(Announced::IfFree)
}

const fn of_hold(hold: &Hold) -> Withdrawn {
    Withdrawn {
        hold: hold.key,
        ticket: hold.ticket,
        lease: hold.terms.lease,
    }
}

/// Sends a release once; the keeper finishes what fails.
fn submit_end(
    process: &Rc<Process>,
    withdrawn: Withdrawn,
    redisson: Option<Announced>,
    mut unanswered: Unanswered,
) {
    let call = Call::Release {
        hold: withdrawn.hold,
        ticket: withdrawn.ticket,
        redisson,
    };
    let over = connection::kill(process, LinkKind::Shared, &unanswered);
    let Some(sent) = connection::submit(process, LinkKind::Shared, call) else {
        finish_later(process, withdrawn, unanswered);
        return;
    };
    process.busy.set(process.busy.get() + 1);
    let timeout = Duration::from_millis(process.world.profile.timeout_ms);
    let deadline = process.now().monotonic + timeout;
    let later = Rc::clone(process);
    process.world.executor.spawn(process.index, async move {
        let replied = connection::reply(&later, &sent, deadline).await;
        later.busy.set(later.busy.get() - 1);
        let replied = replied.and_then(Result::ok);
        if replied.is_some() && over {
            unanswered.clear();
        }
        let is_done = replied.is_some_and(|replied| !replied.is_refused());
        if !is_done || !unanswered.is_empty() {
            finish_later(&later, withdrawn, unanswered);
        }
    });
}

fn finish_later(process: &Rc<Process>, withdrawn: Withdrawn, unanswered: Unanswered) {
    let release = Call::Release {
        hold: withdrawn.hold,
        ticket: withdrawn.ticket,
        redisson: redisson(process),
    };
    let alone = Call::ReleaseAlone {
        hold: withdrawn.hold,
    };
    process.keeper.finish(PendingEnd {
        calls: [release, alone],
        unanswered,
        until: process.now().monotonic + withdrawn.lease + Duration::from_secs(1),
    });
}

/// Nothing is renewed after this.
fn stop(process: &Process, ending: &Ending) {
    process.keeper.forget(ending.scheduled);
}
