//! The clock of a fake: that of the machine, and further on by as much as it was moved.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::Waker;
use std::thread::ThreadId;
use std::time::{Duration, Instant, SystemTime};

use super::task::Busy;
use crate::engine::sync::lock;
use crate::state::deadline::Now;

/// Upper bound on the wait for what is due to be done, in [`pause`]s: a future may be kept and not polled. About a second, and longer
/// where the machine is so busy that other threads take longer, too.
pub(super) const PATIENCE: u32 = 10_000;

/// Lets other threads go on.
pub(super) fn pause() {
    std::thread::sleep(Duration::from_micros(50));
}

/// See the module.
#[derive(Debug)]
pub(crate) struct FakeClock {
    state: Mutex<State>,
    /// The wall clock when the fake was made, and the monotonic one.
    since: (SystemTime, Instant),
    /// The tasks of Redlocks that have anything to do.
    busy: Busy,
}

#[derive(Debug, Default)]
struct State {
    /// From when on it is ahead by how much, by the machine's clock.
    jumps: Vec<(Instant, Duration)>,
    sleepers: BTreeMap<SleeperId, Sleeper>,
    next: u64,
    /// The threads that renew.
    workers: Vec<Weak<Activity>>,
}

/// Timers by when they fire.
pub(super) type SleeperId = (Instant, u64);

#[derive(Debug)]
struct Sleeper {
    waker: Waker,
    thread: ThreadId,
}

/// Whether a thread that renews has anything to do at the moment.
#[derive(Debug)]
pub(crate) struct Activity {
    /// How often it was given something to do.
    calls: AtomicU64,
    /// How many of these calls it had heard when it last came to rest; `BUSY` while it works.
    rested: AtomicU64,
}

const BUSY: u64 = u64::MAX;

impl FakeClock {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            since: (SystemTime::now(), Instant::now()),
            busy: Busy::default(),
        })
    }

    pub(crate) fn now(&self) -> Instant {
        let ahead = lock(&self.state).ahead();
        Instant::now() + ahead
    }

    /// How far it is ahead of the machine's clock.
    pub(super) fn ahead(&self) -> Duration {
        lock(&self.state).ahead()
    }

    /// The time of this clock when those of the machine showed these.
    pub(crate) fn at(&self, monotonic: Instant, wall: SystemTime) -> Now {
        let ahead = lock(&self.state).ahead_at(monotonic);
        Now { monotonic, wall }.later_by(ahead)
    }

    /// The wall clock of the server, in microseconds since 1970. It never steps.
    pub(super) fn wall_micros(&self) -> u64 {
        let (wall, monotonic) = self.since;
        let now = wall + self.now().saturating_duration_since(monotonic);
        let since = now.duration_since(SystemTime::UNIX_EPOCH);
        since.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(0))
    }

    /// When a timer of this runtime fires that is to fire at `at`.
    pub(super) fn timer(&self, at: Instant) -> tokio::time::Instant {
        tokio::time::Instant::now() + at.saturating_duration_since(self.now())
    }

    /// A timer for `at` was polled: its waker is woken when the clock is moved there.
    pub(super) fn remember(
        &self,
        known: Option<SleeperId>,
        at: Instant,
        waker: &Waker,
    ) -> SleeperId {
        let mut state = lock(&self.state);
        let id = known.unwrap_or_else(|| {
            state.next += 1;
            (at, state.next)
        });
        let sleeper = Sleeper {
            waker: waker.clone(),
            thread: std::thread::current().id(),
        };
        let replaced = state.sleepers.insert(id, sleeper);
        drop(state);
        drop(replaced);
        id
    }

    pub(super) fn forget(&self, sleeper: SleeperId) {
        let forgotten = lock(&self.state).sleepers.remove(&sleeper);
        drop(forgotten);
    }

    /// A new thread may renew by this clock.
    pub(crate) fn worker(&self) -> Arc<Activity> {
        let activity = Arc::new(Activity {
            calls: AtomicU64::new(0),
            rested: AtomicU64::new(0),
        });
        let mut state = lock(&self.state);
        state.workers.retain(|worker| worker.strong_count() > 0);
        state.workers.push(Arc::downgrade(&activity));
        activity
    }

    /// A task that [`is_at_rest`](Self::is_at_rest) waits for.
    pub(crate) fn tracked<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        self.busy.track(work)
    }

    /// The next instant up to `end` for which there is a timer.
    pub(super) fn next_until(&self, end: Instant) -> Option<Instant> {
        let now = self.now();
        let state = lock(&self.state);
        let mut later = state.sleepers.range((now, u64::MAX)..);
        let (at, _) = later.next()?.0;
        (*at <= end).then_some(*at)
    }

    /// Moves the clock on to `at`, and wakes all timers: those that are due are over, the others are shorter.
    pub(super) fn move_to(&self, at: Instant) {
        let mut state = lock(&self.state);
        let machine = Instant::now();
        let ahead = state.ahead().max(at.saturating_duration_since(machine));
        state.jumps.push((machine, ahead));
        let wakers: Vec<_> = state.sleepers.values().map(|it| it.waker.clone()).collect();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Whether all timers that are due have been polled, and the threads and tasks that renew have nothing to do.
    pub(super) fn is_at_rest(&self) -> bool {
        let now = self.now();
        let state = lock(&self.state);
        let is_due = state
            .sleepers
            .keys()
            .next()
            .is_some_and(|(at, _)| *at <= now);
        !is_due && state.workers_rest() && self.busy.is_none()
    }

    /// The time of the runtime here is paused and has come to `at`: this clock follows, while other threads do what is due on
    /// the way. This thread does not: what it has to do comes next.
    pub(super) fn follow(&self, at: Instant) {
        while self.now() < at {
            let step = self.next_until(at).unwrap_or(at);
            self.move_to(step);
            for _ in 0..PATIENCE {
                if self.others_rest() {
                    break;
                }
                pause();
            }
        }
    }

    fn others_rest(&self) -> bool {
        let (now, here) = (self.now(), std::thread::current().id());
        let state = lock(&self.state);
        let mut due = state.sleepers.iter().take_while(|((at, _), _)| *at <= now);
        let is_due = due.any(|(_, sleeper)| sleeper.thread != here);
        !is_due && state.workers_rest()
    }
}

impl State {
    /// How far it is ahead of the machine's clock.
    fn ahead(&self) -> Duration {
        self.jumps
            .last()
            .map_or(Duration::ZERO, |(_, ahead)| *ahead)
    }

    /// How far it was ahead at this instant of the machine's clock.
    fn ahead_at(&self, machine: Instant) -> Duration {
        let after = self.jumps.partition_point(|(at, _)| *at <= machine);
        let before = after.checked_sub(1).and_then(|at| self.jumps.get(at));
        before.map_or(Duration::ZERO, |(_, ahead)| *ahead)
    }

    fn workers_rest(&self) -> bool {
        let mut workers = self.workers.iter().filter_map(Weak::upgrade);
        workers.all(|worker| worker.rests())
    }
}

impl Activity {
    /// It is given something to do.
    pub(crate) fn call(&self) {
        self.calls.fetch_add(1, Ordering::SeqCst);
    }

    /// How often it was given something to do.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// It has done all that the first of these calls were for.
    pub(crate) fn rest(&self, calls: u64) {
        self.rested.store(calls, Ordering::SeqCst);
    }

    pub(crate) fn work(&self) {
        self.rested.store(BUSY, Ordering::SeqCst);
    }

    fn rests(&self) -> bool {
        self.rested.load(Ordering::SeqCst) == self.calls()
    }
}
