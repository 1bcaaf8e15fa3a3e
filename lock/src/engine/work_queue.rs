//! Work of the renewal worker: renewals that are scheduled, and ends that failed.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold_cluster::{OwnedCall, Unanswered};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::clock::{Activity, Clock};
use super::hold::Hold;
use super::sync::lock;
use crate::protocol::{End, Protocol};
use crate::state::deadline::Now;
use crate::state::jitter::Jitter;
use crate::state::schedule::{self, Due, Schedule};

/// Shared by the worker and everything that gives it work.
#[derive(Debug)]
pub(crate) struct WorkQueue {
    state: Mutex<State>,
    /// Whether the worker runs, to be read without the mutex.
    running: AtomicBool,
    /// Notified when there is something to do earlier than planned.
    changed: Notify,
    jitter: Jitter,
    clock: Clock,
    /// Whether the worker has anything to do.
    pub(crate) activity: Activity,
    unfinished: Arc<Count>,
}

/// Ends of holds take its mutex to leave the schedule, and renewals are submitted under it: so no renewal is sent after a
/// release.
#[derive(Debug)]
struct State {
    schedule: Schedule<Entry>,
    /// Entries of the schedule that will need a connection.
    renewing: usize,
    ends: Vec<PendingEnd>,
    /// When the worker looks again by itself.
    wakes_at: Option<Instant>,
    /// Whether the worker ends when it has nothing left to do.
    closing: bool,
}

/// A hold that is renewed, or only watched if its lease is a fixed one.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) hold: Arc<Hold>,
    /// Failed renewals in a row.
    pub(crate) failures: u32,
    /// Whether the node may have forgotten it: it came back, or is another one.
    pub(crate) doubtful: bool,
    /// Whether it takes a connection.
    renews: bool,
}

/// The end of a hold that failed and is to be repeated. It owns its call, whichever primitive it is of.
#[derive(Debug)]
pub(crate) struct PendingEnd {
    pub(crate) call: OwnedCall,
    /// Connections over which what it ends may still arrive.
    pub(crate) unanswered: Unanswered,
    /// When the hold is over in any case.
    pub(crate) until: Instant,
    /// Dropped when it is done or given up.
    _unfinished: Unfinished,
}

/// A request without an outcome yet, which a shutdown waits for.
#[derive(Debug)]
pub(crate) struct Unfinished(Arc<Count>);

/// How many requests are without an outcome.
#[derive(Debug, Default)]
struct Count {
    open: AtomicUsize,
    /// Notified when there are none.
    none: Notify,
}

/// A hold that is due.
#[derive(Debug)]
pub(crate) struct DueHold {
    pub(crate) hold: Arc<Hold>,
    pub(crate) doubtful: bool,
    /// Its index in the schedule.
    index: usize,
}

/// Everything that is due at one instant.
#[derive(Debug, Default)]
pub(crate) struct AllDue {
    /// To be renewed.
    pub(crate) renewals: Vec<DueHold>,
    /// These have run out.
    pub(crate) over: Vec<Arc<Hold>>,
}

impl WorkQueue {
    pub(crate) fn new(seed: u64, clock: Clock) -> Self {
        let state = State {
            schedule: Schedule::new(),
            renewing: 0,
            ends: Vec::new(),
            wakes_at: None,
            closing: false,
        };
        Self {
            state: Mutex::new(state),
            running: AtomicBool::new(false),
            changed: Notify::new(),
            jitter: Jitter::new(seed),
            activity: Activity::new(&clock),
            clock,
            unfinished: Arc::default(),
        }
    }

    /// Starts the worker with `spawn`, unless it runs.
    pub(crate) fn start<E>(&self, spawn: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        if self.running.load(Ordering::Acquire) {
            return Ok(());
        }
        let _state = lock(&self.state);
        if self.running.load(Ordering::Acquire) {
            return Ok(());
        }
        self.activity.call();
        spawn()?;
        self.running.store(true, Ordering::Release);
        Ok(())
    }

    /// Renews `hold` from now on.
    pub(crate) fn renew(&self, hold: &Arc<Hold>) {
        let (since, lease) = {
            let state = hold.state();
            (state.lease_since().monotonic, state.lease())
        };
        self.schedule(hold, self.next_renewal(since, lease));
    }

    /// Ends `hold` when it runs out, also if nothing else asks for it.
    pub(crate) fn watch(&self, hold: &Arc<Hold>) {
        self.schedule(hold, Due::sharp(hold.next_watch(self.clock.read())));
    }

    /// When a lease that began at `sent` is renewed.
    pub(crate) fn next_renewal(&self, sent: Instant, lease: Duration) -> Due {
        schedule::renewal(sent, lease, self.jitter.below(201))
    }

    /// No renewal of the entry with this index is sent after this returns.
    pub(crate) fn forget(&self, index: Option<usize>) {
        if let Some(index) = index {
            let entry = lock(&self.state).remove(index);
            drop(entry);
        }
    }

    /// Repeats an end that failed.
    pub(crate) fn finish(&self, end: PendingEnd) {
        lock(&self.state).ends.push(end);
        self.wake();
    }

    /// A request begins that a shutdown waits for.
    pub(crate) fn unfinished(&self) -> Unfinished {
        self.unfinished.open.fetch_add(1, Ordering::AcqRel);
        Unfinished(Arc::clone(&self.unfinished))
    }

    /// Resolves when every request has its outcome.
    pub(crate) async fn all_finished(&self) {
        loop {
            let mut none = std::pin::pin!(self.unfinished.none.notified());
            none.as_mut().enable();
            if self.unfinished.open.load(Ordering::Acquire) == 0 {
                return;
            }
            none.await;
        }
    }

    /// Ends the worker when it has nothing left to do.
    pub(crate) fn close(&self) {
        lock(&self.state).closing = true;
        self.wake();
    }

    /// There is something else to do earlier than planned.
    pub(crate) fn wake(&self) {
        self.activity.call();
        self.changed.notify_one();
    }

    /// Resolves when there is something to do earlier than planned.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Whether an entry must be renewed or ended now. Only then is what is nearly due taken along: else every answer,
    /// which wakes the worker, would be followed by a batch of the one or two that came due meanwhile.
    pub(crate) fn is_time(&self, now: Instant) -> bool {
        let next = lock(&self.state).schedule.next_at();
        next.is_some_and(|at| at <= now)
    }

    /// Takes everything that is due. Each entry stays due at the end of its hold, or, if it cannot be `asked` for, after
    /// `put_off`.
    pub(crate) fn take_due(&self, now: Now, put_off: Option<Duration>) -> AllDue {
        let mut all = AllDue::default();
        let mut state = lock(&self.state);
        state
            .schedule
            .for_each_due(now.monotonic, |index, due, entry| {
                let hold = &entry.hold;
                let (deadline, renews) = {
                    let state = hold.state();
                    (state.deadline(), state.needs_renewal())
                };
                *due = Due::sharp(deadline.monotonic());
                if deadline.is_over(now) {
                    all.over.push(Arc::clone(hold));
                } else if !renews {
                    *due = Due::sharp(hold.next_watch(now));
                } else if let Some(pause) = put_off {
                    *due = Due::sharp(deadline.monotonic().min(now.monotonic + pause));
                } else {
                    all.renewals.push(DueHold {
                        hold: Arc::clone(hold),
                        doubtful: entry.doubtful,
                        index,
                    });
                }
            });
        all
    }

    /// Submits renewals of those that have not ended meanwhile. They cannot end before `submit` returns.
    pub(crate) fn submit<R>(
        &self,
        mut due: Vec<DueHold>,
        submit: impl FnOnce(Vec<DueHold>) -> R,
    ) -> R {
        let state = lock(&self.state);
        due.retain(|one| one.hold.state().scheduled() == Some(one.index));
        let result = submit(due);
        drop(state);
        result
    }

    /// Makes every entry due now: the server may not have it any more, and its guards should know. It is `doubtful` if
    /// that would be because the server has forgotten it.
    pub(crate) fn look_at_all(&self, doubtful: bool) {
        let now = self.clock.now();
        lock(&self.state).schedule.for_each(|_, due, entry| {
            entry.doubtful |= doubtful;
            *due = Due::sharp(now);
        });
    }

    /// Sets when `hold` is due next, unless it ended meanwhile.
    pub(crate) fn reschedule(&self, hold: &Hold, due: impl FnOnce(u32) -> Due, failed: bool) {
        let mut state = lock(&self.state);
        let (index, deadline) = {
            let hold = hold.state();
            (hold.scheduled(), hold.deadline().monotonic())
        };
        let Some(index) = index else {
            return;
        };
        state.schedule.update(index, |at, entry| {
            // The end of the hold stays due in any case.
            let next = due(entry.failures);
            *at = Due {
                at: next.at.min(deadline),
                from: next.from.min(deadline),
            };
            entry.failures = if failed {
                entry.failures.saturating_add(1)
            } else {
                0
            };
            entry.doubtful &= failed;
        });
    }

    pub(crate) fn take_ends(&self) -> Vec<PendingEnd> {
        std::mem::take(&mut lock(&self.state).ends)
    }

    /// How many ends wait to be repeated.
    pub(crate) fn ends(&self) -> usize {
        lock(&self.state).ends.len()
    }

    /// When to look again; from now on an earlier appointment is notified.
    pub(crate) fn sleep_until(&self, now: Instant) -> Option<Instant> {
        let mut state = lock(&self.state);
        let next = state.schedule.next_at();
        // An appointment is kept even if its reason is gone: else every lock that is taken and released while the worker
        // has nothing to do would wake it.
        let kept = state.wakes_at.filter(|&at| at > now);
        state.wakes_at = [next, kept].into_iter().flatten().min();
        state.wakes_at
    }

    /// Whether the worker may end; then it counts as not running.
    pub(crate) fn may_end(&self) -> bool {
        let state = lock(&self.state);
        let ends = state.closing && state.schedule.is_empty() && state.ends.is_empty();
        if ends {
            self.activity.rest(self.activity.calls());
            self.running.store(false, Ordering::Release);
        }
        ends
    }

    /// Whether there is anything that takes a connection.
    pub(crate) fn needs_connection(&self) -> bool {
        let state = lock(&self.state);
        !state.ends.is_empty() || state.renewing > 0
    }

    fn schedule(&self, hold: &Arc<Hold>, due: Due) {
        let wake = lock(&self.state).add(hold, due);
        // Waking a thread costs more than the lock did: nearly all locks are released before they need renewing.
        if wake {
            self.wake();
        }
    }
}

impl State {
    /// Adds an entry for `hold`, unless it is over or has one. Returns whether the worker has to wake earlier for it.
    fn add(&mut self, hold: &Arc<Hold>, due: Due) -> bool {
        if hold.state().scheduled().is_some() {
            return false;
        }
        let renews = hold.needs_renewal();
        let index = self.schedule.insert(
            due,
            Entry {
                hold: Arc::clone(hold),
                failures: 0,
                doubtful: false,
                renews,
            },
        );
        self.renewing += usize::from(renews);
        if !hold.state().schedule(index) {
            self.remove(index);
            return false;
        }
        let earlier = self.wakes_at.is_none_or(|at| due.at < at);
        if earlier {
            self.wakes_at = Some(due.at);
        }
        earlier
    }

    fn remove(&mut self, index: usize) -> Option<Entry> {
        let entry = self.schedule.remove(index)?;
        self.renewing -= usize::from(entry.renews);
        Some(entry)
    }
}

impl DueHold {
    /// Its index in the schedule.
    pub(crate) const fn index(&self) -> usize {
        self.index
    }
}

impl PendingEnd {
    /// The end of a hold that, with this lease, may still be on the server.
    pub(crate) fn new(
        protocol: &'static Protocol,
        end: &End<'_>,
        lease: Duration,
        unanswered: Unanswered,
        unfinished: Unfinished,
    ) -> Self {
        let single_key = (protocol.release_single_key)(end).to_owned();
        // The last request that could set the lease was sent before now, but may run a little later.
        Self {
            call: (protocol.release)(end).to_owned().with_fallback(single_key),
            unanswered,
            until: Instant::now() + lease + Duration::from_secs(1),
            _unfinished: unfinished,
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if self.0.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.none.notify_waiters();
        }
    }
}
