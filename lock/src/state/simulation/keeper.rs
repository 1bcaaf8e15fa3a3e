//! Renewals, and ends that failed: as the renewal worker does them.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use super::call::{Call, Reply};
use super::connection::{self, LinkKind, Unanswered, evaluate};
use super::process::{Hold, KEEPER, Process};
use super::release;
use crate::error::LostReason;
use crate::state::deadline::{Now, millis};
use crate::state::schedule::{self, Due, Schedule};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// Between releases of a hold that a late request may take again.
const OUTLIVE_PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Keeper {
    schedule: RefCell<Schedule<Entry>>,
    ends: RefCell<Vec<PendingEnd>>,
    waker: RefCell<Option<Waker>>,
}

#[derive(Debug)]
struct Entry {
    hold: Rc<Hold>,
    failures: u32,
}

/// The end of a hold that failed and is to be repeated.
#[derive(Debug)]
pub(super) struct PendingEnd {
    pub(super) calls: [Call; 2],
    pub(super) unanswered: Unanswered,
    pub(super) until: Instant,
}

impl Default for Keeper {
    fn default() -> Self {
        Self {
            schedule: RefCell::new(Schedule::new()),
            ends: RefCell::default(),
            waker: RefCell::default(),
        }
    }
}

impl Keeper {
    /// Renews `hold` from now on.
    pub(super) fn renew(&self, process: &Process, hold: &Rc<Hold>) {
        let mut state = hold.state.borrow_mut();
        if state.scheduled().is_some() {
            return;
        }
        let due = next_renewal(process, state.lease_since().monotonic, state.lease());
        let entry = Entry {
            hold: Rc::clone(hold),
            failures: 0,
        };
        let mut schedule = self.schedule.borrow_mut();
        let index = schedule.insert(due, entry);
        if !state.schedule(index) {
            schedule.remove(index);
        }
        drop((schedule, state));
        self.wake();
    }

    /// Nothing is renewed after this.
    pub(super) fn forget(&self, index: Option<usize>) {
        if let Some(index) = index {
            self.schedule.borrow_mut().remove(index);
        }
    }

    pub(super) fn finish(&self, end: PendingEnd) {
        self.ends.borrow_mut().push(end);
        self.wake();
    }

    pub(super) fn look_at_all(&self, now: Instant) {
        let mut schedule = self.schedule.borrow_mut();
        schedule.for_each(|_, due, _| *due = Due::sharp(now));
        drop(schedule);
        self.wake();
    }

    pub(super) fn clear(&self) {
        *self.schedule.borrow_mut() = Schedule::new();
        self.ends.borrow_mut().clear();
    }

    pub(super) fn is_idle(&self) -> bool {
        self.schedule.borrow().is_empty() && self.ends.borrow().is_empty()
    }

    fn reschedule(&self, hold: &Hold, due: impl FnOnce(u32) -> Due, failed: bool) {
        let (index, deadline) = {
            let state = hold.state.borrow();
            (state.scheduled(), state.deadline().monotonic())
        };
        let Some(index) = index else { return };
        self.schedule.borrow_mut().update(index, |at, entry| {
            let next = due(entry.failures);
            *at = Due {
                at: next.at.min(deadline),
                from: next.from.min(deadline),
            };
            entry.failures = if failed { entry.failures + 1 } else { 0 };
        });
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Takes what is due: to be renewed, and over.
    fn take_due(&self, now: Now) -> (Vec<Rc<Hold>>, Vec<Rc<Hold>>) {
        let (mut renewals, mut over) = (Vec::new(), Vec::new());
        let mut schedule = self.schedule.borrow_mut();
        schedule.for_each_due(now.monotonic, |_, due, entry| {
            let state = entry.hold.state.borrow();
            let deadline = state.deadline();
            *due = Due::sharp(deadline.monotonic());
            if deadline.is_over(now) {
                over.push(Rc::clone(&entry.hold));
            } else if state.needs_renewal() {
                renewals.push(Rc::clone(&entry.hold));
            } else {
                let check = now.monotonic + Duration::from_secs(1);
                *due = Due::sharp(deadline.monotonic().min(check));
            }
        });
        (renewals, over)
    }
}

/// Works as long as the process lives.
pub(super) async fn run(process: Rc<Process>) {
    loop {
        work(&process);
        poll_fn(|cx| {
            let keeper = &process.keeper;
            let now = process.now().monotonic;
            let next = keeper.schedule.borrow().next_at();
            if next.is_some_and(|at| at <= now) || !keeper.ends.borrow().is_empty() {
                return Poll::Ready(());
            }
            *keeper.waker.borrow_mut() = Some(cx.waker().clone());
            if let Some(at) = next {
                process.wake_at(at, cx.waker());
            }
            Poll::Pending
        })
        .await;
    }
}

fn work(process: &Rc<Process>) {
    let (keeper, now) = (&process.keeper, process.now());
    let next = keeper.schedule.borrow().next_at();
    if next.is_some_and(|at| at <= now.monotonic) {
        let (renewals, over) = keeper.take_due(now);
        for hold in over {
            let reason = release::check(process, &hold);
            if reason == Some(LostReason::Expired) && hold.terms.quorum().is_some() {
                release::end_lost(process, &hold);
            }
        }
        for hold in renewals {
            let lease = hold.state.borrow().next_lease(now);
            if let Some(lease) = lease {
                let renewal = renew(Rc::clone(process), hold, lease);
                process
                    .world
                    .executor
                    .spawn(process.index | KEEPER, renewal);
            }
        }
    }
    for end in std::mem::take(&mut *keeper.ends.borrow_mut()) {
        let end = finish(Rc::clone(process), end);
        process.world.executor.spawn(process.index | KEEPER, end);
    }
}

/// Sends one renewal, and acts on the answer.
async fn renew(process: Rc<Process>, hold: Rc<Hold>, lease: Duration) {
    if hold.state.borrow().scheduled().is_none() {
        return;
    }
    let sent = process.now();
    let call = Call::Renew {
        hold: hold.key,
        lease: millis(lease),
    };
    let timeout = (hold.terms.lease / 6).max(Duration::from_millis(100));
    let request = connection::submit(&process, LinkKind::Keeper, call);
    let replied = match &request {
        Some(request) => connection::reply(&process, request, sent.monotonic + timeout).await,
        None => None,
    };
    let now = process.now();
    let keeper = &process.keeper;
    let Some(Ok(replied)) = replied else {
        let known = hold.state.borrow().lease();
        let due = |failures| schedule::retry(now.monotonic, known.min(lease), failures);
        keeper.reschedule(&hold, due, true);
        return;
    };
    let is_confirmed = hold.terms.quorum().is_none() || replied.is_confirmed();
    match replied.reply {
        Reply::Renewed(false) => release::lose(&process, &hold, LostReason::Stolen),
        Reply::Renewed(true) if !is_confirmed => {
            let next = Due::sharp(now.monotonic + lease / 20);
            keeper.reschedule(&hold, |_| next, false);
        }
        Reply::Renewed(true) => {
            let renewed = hold.state.borrow_mut().renewed(sent, lease, now);
            if renewed {
                let next = next_renewal(&process, sent.monotonic, hold.terms.lease);
                keeper.reschedule(&hold, |_| next, false);
            }
        }
        _ => {}
    }
}

/// Repeats the end of a hold until nothing that was sent before can undo it, or it is over in any case.
async fn finish(process: Rc<Process>, mut end: PendingEnd) {
    process.busy.set(process.busy.get() + 1);
    let mut pause = FIRST_PAUSE;
    let timeout = Duration::from_millis(process.world.profile.timeout_ms);
    while process.now().monotonic < end.until {
        let deadline = process.now().monotonic + timeout;
        let kind = LinkKind::Keeper;
        let kills = !end.unanswered.is_empty() && connection::is_up(&process, kind, deadline).await;
        let is_over = kills && connection::kill(&process, kind, &end.unanswered);
        let ended = evaluate(&process, kind, &end.calls, timeout, &mut Vec::new()).await;
        match ended {
            Ok(_) => {
                if is_over {
                    end.unanswered.clear();
                }
                if end.unanswered.is_empty() {
                    break;
                }
                process.sleep(OUTLIVE_PAUSE).await;
            }
            Err(connection::Failure::Refused) => break,
            Err(_) => {
                process.sleep(pause).await;
                pause = (pause * 2).min(MAX_PAUSE);
            }
        }
    }
    process.busy.set(process.busy.get() - 1);
}

fn next_renewal(process: &Process, sent: Instant, lease: Duration) -> Due {
    schedule::renewal(sent, lease, process.jitter.below(201))
}
