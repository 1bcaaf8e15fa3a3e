//! The entry of this process on the server, by which others find out who holds a lock: see
//! [`Locks::process_of`](crate::Locks::process_of).
//!
//! The task that takes the first lock sends it behind the answer, without waiting. From then on the renewal worker refreshes it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold_cluster::{Client, Submitted};
use leasehold_resp as resp;
use tokio::sync::Notify;

use super::clock::Clock;
use super::release::is_retryable;
use super::sync::lock;
use crate::process::Process;
use crate::protocol::process::{key, register, unregister};
use crate::state::deadline::millis;
use crate::state::presence::{self, Leave, Outcome};

/// Upper bound on the wait for its removal.
const REMOVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Presence {
    key: String,
    process: Process,
    /// Under it the waiters of all names may be locked.
    state: Mutex<presence::Presence>,
    /// Uses need not be told until this time, in milliseconds since `begun`, if their leases are not above the longest known,
    /// in milliseconds: to be read without the mutex.
    known_until: AtomicU64,
    longest: AtomicU64,
    begun: Instant,
    clock: Clock,
    /// Tasks that wait for what is no hold.
    watchers: AtomicUsize,
    /// Notified when a request has its outcome.
    answered: Notify,
}

impl Presence {
    /// Of the client with this id.
    pub(crate) fn new(client: &str, process: Process, clock: Clock) -> Self {
        Self {
            key: key(client),
            process,
            state: Mutex::new(presence::Presence::new()),
            known_until: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            begun: clock.now(),
            clock,
            watchers: AtomicUsize::new(0),
            answered: Notify::new(),
        }
    }

    /// Something was taken for this long, or is waited for. Returns the request that this calls for, whose outcome is told by
    /// [`settle`](Self::settle).
    pub(crate) fn used(&self, client: &Client, lease: Duration) -> Option<Submitted> {
        let now = self.clock.now();
        if millis(now - self.begun) < self.known_until.load(Ordering::Acquire)
            && millis(lease) <= self.longest.load(Ordering::Acquire)
        {
            return None;
        }
        let lasts = self.change(|state| state.used(now, lease))?;
        let call = register(&self.key, &self.process, lasts);
        Some(client.submit(&call.slices().call()))
    }

    /// The outcome of a request. Returns whether the worker is to make another one.
    pub(crate) fn settle(&self, outcome: &Result<resp::Value, resp::Error>) -> bool {
        self.answer(outcome.as_ref().err(), false) == Outcome::Failed
    }

    /// A task begins to wait for what is no hold.
    pub(crate) fn watch(&self) {
        self.watchers.fetch_add(1, Ordering::AcqRel);
    }

    /// It ends.
    pub(crate) fn unwatch(&self) {
        self.watchers.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether there is a task that waits for what is no hold.
    pub(crate) fn is_watching(&self) -> bool {
        self.watchers.load(Ordering::Acquire) > 0
    }

    /// When to look whether it has to be refreshed.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        lock(&self.state).next_at()
    }

    /// Whether it has to be looked at.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.next_at().is_some_and(|at| at <= now)
    }

    /// For how long it is to be refreshed, which begins with this.
    pub(crate) fn begin(&self, now: Instant, is_busy: impl FnOnce() -> bool) -> Option<Duration> {
        self.change(|state| {
            // A lock that is taken after this comes here, and one that was taken before is found.
            self.known_until.store(0, Ordering::Release);
            state.refresh(now, is_busy())
        })
    }

    /// Refreshes it.
    pub(crate) async fn refresh(&self, client: &Client, lasts: Duration) {
        let call = register(&self.key, &self.process, lasts);
        let deadline = Instant::now() + client.command_timeout();
        let refreshed = client.eval(&call.slices().call(), deadline).await;
        self.answer(refreshed.err().as_ref(), true);
    }

    /// The server may be another one, which does not have it.
    pub(crate) fn doubt(&self) {
        self.change(|state| state.doubt(self.clock.now()));
    }

    /// It is not written any more.
    pub(crate) fn close(&self) {
        self.change(presence::Presence::close);
    }

    /// Removes it, after it was closed. Without an answer it ends by itself.
    pub(crate) async fn remove(&self, client: &Client) {
        let time = REMOVAL.min(client.command_timeout());
        let deadline = Instant::now() + time;
        let removed = async {
            loop {
                let mut answered = std::pin::pin!(self.answered.notified());
                answered.as_mut().enable();
                match self.change(presence::Presence::leave) {
                    Leave::Nothing => return,
                    Leave::Wait => answered.await,
                    Leave::Remove => break,
                }
            }
            let call = unregister(&self.key);
            let _ = client.eval(&call.slices().call(), deadline).await;
        };
        let _ = self.clock.timeout(time, removed).await;
    }

    fn answer(&self, error: Option<&resp::Error>, retries: bool) -> Outcome {
        let outcome = match error {
            None => Outcome::Done,
            // The server will not have it later either.
            Some(error) if error.as_server().is_some() && !is_retryable(error) => Outcome::Refused,
            Some(_) => Outcome::Failed,
        };
        self.change(|state| state.answered(outcome, self.clock.now(), retries));
        self.answered.notify_waiters();
        outcome
    }

    fn change<R>(&self, change: impl FnOnce(&mut presence::Presence) -> R) -> R {
        let mut state = lock(&self.state);
        let result = change(&mut state);
        let (longest, until) = match state.knows() {
            None => (0, 0),
            Some((longest, until)) => (
                millis(longest),
                until.map_or(u64::MAX, |until| millis(until - self.begun)),
            ),
        };
        self.longest.store(longest, Ordering::Release);
        self.known_until.store(until, Ordering::Release);
        result
    }
}
