//! Renews leases and finishes releases, on a thread of its own.
//!
//! A user's runtime that is blocked or busy must not lose locks, so the keeper has its own thread, runtime and
//! connection. It starts with the first lock that needs renewing, or the first release that failed.

mod link;
mod schedule;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold_cluster::{Client, ScriptCall, Submitted, Target};
use leasehold_resp as resp;
use leasehold_resp::ServerErrorKind;
use tokio::sync::Notify;

use crate::error::{Error, ErrorKind, LostReason};
use crate::hold::Hold;
use crate::id::{Decimal, HoldId};
use crate::lease::{Now, millis};
use crate::names::Name;
use crate::scripts::RENEW;
use crate::sync::{Jitter, lock};
use schedule::{Due, Schedule};

/// Locks renewed by one script call: it keeps the server from everything else for about a fifth of a millisecond.
const BATCH: usize = 128;

/// The handle of it, which starts and feeds it.
#[derive(Debug)]
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    target: Target,
}

/// What the keeper's thread and everybody else share.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Whether the thread runs, to be asked without the mutex.
    running: AtomicBool,
    /// Rings when there is something to do earlier than planned.
    bell: Notify,
    jitter: Jitter,
    /// Acquires and releases without an outcome.
    unfinished: AtomicUsize,
    /// Rings when there are none.
    quiet: Notify,
}

/// Releases take the mutex of this to leave the schedule, and renewals are submitted under it: so no renewal is sent after
/// a release.
#[derive(Debug)]
struct State {
    schedule: Schedule<Renewal>,
    jobs: Vec<Job>,
    /// When the thread looks again by itself.
    wakes_at: Option<Instant>,
    /// Whether the thread ends when it has nothing left to do.
    closing: bool,
}

#[derive(Debug)]
struct Renewal {
    hold: Arc<Hold>,
    /// Failed attempts in a row.
    failures: u32,
    /// Whether the node may have forgotten it: it came back, or is another one.
    doubtful: bool,
}

/// A release that failed and is to be finished.
#[derive(Debug)]
pub(crate) struct Job {
    name: Arc<Name>,
    id: HoldId,
    /// When the hold is over anyway.
    until: Instant,
    /// Dropped when it is done or given up.
    _unfinished: Unfinished,
}

/// Something without an outcome yet, which a shutdown waits for.
#[derive(Debug)]
pub(crate) struct Unfinished(Arc<Shared>);

/// Renewals that were submitted together: of one node, in a cluster of one slot.
struct Batch {
    renewals: Vec<Asked>,
    sent: Now,
}

/// One of them.
struct Asked {
    hold: Arc<Hold>,
    lease: Duration,
    doubtful: bool,
}

impl Batch {
    /// Each of them in a batch of its own.
    fn apart(self) -> impl Iterator<Item = Self> {
        let sent = self.sent;
        self.renewals.into_iter().map(move |one| Self {
            renewals: vec![one],
            sent,
        })
    }
}

impl Keeper {
    /// A keeper that is not running yet, of the servers of `target`.
    pub(crate) fn new(mut target: Target, lease: Duration, seed: u64) -> Self {
        // Several attempts must fit between the first renewal and the end of a lease.
        let patience = (lease / 6).max(Duration::from_millis(100));
        for endpoint in target.endpoints_mut() {
            endpoint.command_timeout = endpoint.command_timeout.min(patience);
            endpoint.connect_timeout = endpoint.connect_timeout.min(patience);
        }
        let state = State {
            schedule: Schedule::new(),
            jobs: Vec::new(),
            wakes_at: None,
            closing: false,
        };
        let shared = Shared {
            state: Mutex::new(state),
            running: AtomicBool::new(false),
            bell: Notify::new(),
            jitter: Jitter::new(seed),
            unfinished: AtomicUsize::new(0),
            quiet: Notify::new(),
        };
        Self {
            shared: Arc::new(shared),
            target,
        }
    }

    /// Starts the thread if it does not run.
    pub(crate) fn start(&self) -> Result<(), Error> {
        if self.shared.running.load(Ordering::Acquire) {
            return Ok(());
        }
        let _state = lock(&self.shared.state);
        if self.shared.running.load(Ordering::Acquire) {
            return Ok(());
        }
        let failed = |error: std::io::Error| {
            Error::new(ErrorKind::Thread, error.to_string()).caused_by(error)
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let (shared, target) = (Arc::clone(&self.shared), self.target.clone());
        std::thread::Builder::new()
            .name("leasehold-keeper".into())
            .spawn(move || runtime.block_on(link::run(shared, target)))
            .map_err(failed)?;
        self.shared.running.store(true, Ordering::Release);
        Ok(())
    }

    /// Renews `hold`, granted by a request sent at `sent`, from now on.
    pub(crate) fn renew(&self, hold: &Arc<Hold>, sent: Instant) {
        let lease = hold.terms.lease;
        let due = schedule::renewal(sent, lease, self.shared.jitter.below(201));
        let wake = {
            let mut state = lock(&self.shared.state);
            let slot = state.schedule.insert(
                due,
                Renewal {
                    hold: Arc::clone(hold),
                    failures: 0,
                    doubtful: false,
                },
            );
            if hold.scheduled(slot) {
                let early = state.wakes_at.is_none_or(|at| due.at < at);
                if early {
                    state.wakes_at = Some(due.at);
                }
                early
            } else {
                state.schedule.remove(slot);
                false
            }
        };
        // Waking a thread costs more than the lock did: nearly all locks are released before they need renewing.
        if wake {
            self.shared.bell.notify_one();
        }
    }

    /// No renewal of what is in `slot` is sent after this returns.
    pub(crate) fn forget(&self, slot: Option<usize>) {
        if let Some(slot) = slot {
            let renewal = lock(&self.shared.state).schedule.remove(slot);
            drop(renewal);
        }
    }

    /// Goes on with a release that failed. Without a thread to do it the lock ends with its lease.
    pub(crate) fn finish(&self, job: Job) {
        lock(&self.shared.state).jobs.push(job);
        if self.start().is_err() {
            drop(self.shared.take_jobs());
        }
        self.shared.bell.notify_one();
    }

    /// Something begins that a shutdown waits for.
    pub(crate) fn unfinished(&self) -> Unfinished {
        self.shared.unfinished.fetch_add(1, Ordering::AcqRel);
        Unfinished(Arc::clone(&self.shared))
    }

    /// Resolves when nothing is unfinished.
    pub(crate) async fn quiet(&self) {
        loop {
            let mut quiet = std::pin::pin!(self.shared.quiet.notified());
            quiet.as_mut().enable();
            if self.shared.unfinished.load(Ordering::Acquire) == 0 {
                return;
            }
            quiet.await;
        }
    }

    /// Ends the thread when it has nothing left to do.
    pub(crate) fn close(&self) {
        lock(&self.shared.state).closing = true;
        self.shared.bell.notify_one();
    }
}

impl Shared {
    /// Submits a batch of what is due from the slot `cursor` on, or several where the keys belong to several slots; without
    /// a client, puts it off.
    ///
    /// Returns the holds that ran out, to be ended without the mutex.
    fn submit_batch(
        &self,
        client: Option<&Client>,
        now: Now,
        cursor: &mut usize,
    ) -> (Vec<(Batch, Submitted)>, Vec<Arc<Hold>>) {
        let (mut asked, mut over) = (Vec::new(), Vec::new());
        let mut state = lock(&self.state);
        while asked.len() < BATCH {
            let Some(slot) = state.schedule.due(*cursor, now.monotonic) else {
                break;
            };
            *cursor = slot + 1;
            let Some((due, renewal)) = state.schedule.get_mut(slot) else {
                break;
            };
            let deadline = renewal.hold.deadline();
            // Whatever comes of it, look again when the hold runs out.
            *due = Due::sharp(deadline.monotonic());
            if deadline.is_over(now) {
                over.push(Arc::clone(&renewal.hold));
            } else if client.is_none() {
                *due = Due::sharp(
                    deadline
                        .monotonic()
                        .min(now.monotonic + link::CONNECT_CHECK),
                );
            } else if let Some(lease) = renewal.hold.next_lease(now) {
                asked.push(Asked {
                    hold: Arc::clone(&renewal.hold),
                    lease,
                    doubtful: renewal.doubtful,
                });
            }
        }
        let batches = client.map_or_else(Vec::new, |client| {
            // All of them in one go: they leave in one write for each node, and no node waits for another.
            let submit = |renewals: Vec<Asked>| {
                let submitted = with_call(&renewals, |call| client.submit(call));
                (
                    Batch {
                        renewals,
                        sent: now,
                    },
                    submitted,
                )
            };
            by_group(client, asked).into_iter().map(submit).collect()
        });
        (batches, over)
    }

    /// Makes everything due now: the server may not have it any more, and whoever holds it should know. It is `doubtful`
    /// if that would be because the server has forgotten it.
    fn look_at_all(&self, doubtful: bool) {
        let now = Instant::now();
        lock(&self.state).schedule.for_each(|due, renewal| {
            renewal.doubtful |= doubtful;
            *due = Due::sharp(now);
        });
    }

    /// When `hold` is due next, unless it ended meanwhile.
    fn reschedule(&self, hold: &Arc<Hold>, due: impl FnOnce(u32) -> Due, failed: bool) {
        let mut state = lock(&self.state);
        let Some(slot) = hold.slot() else { return };
        let Some((at, renewal)) = state.schedule.get_mut(slot) else {
            return;
        };
        // The end of the hold stays due in any case.
        let next = due(renewal.failures);
        let end = hold.deadline().monotonic();
        *at = Due {
            at: next.at.min(end),
            from: next.from.min(end),
        };
        renewal.failures = if failed {
            renewal.failures.saturating_add(1)
        } else {
            0
        };
        renewal.doubtful &= failed;
    }

    /// Acts on the answer to a batch.
    fn settle(&self, batch: Batch, answer: Result<resp::Value, resp::Error>) {
        let renewals = &batch.renewals;
        let held = answer
            .as_ref()
            .ok()
            .and_then(resp::Value::as_array)
            .filter(|held| held.len() == renewals.len());
        let Some(held) = held else {
            // The client knows better now: which script to send along, or where. But two nodes that point at each other
            // must not keep us busy.
            let at_once = answer.is_err_and(|error| is_noscript(&error) || is_redirect(&error));
            let now = Instant::now();
            for Asked { hold, lease, .. } in renewals {
                let due = |failures| match failures {
                    0..3 if at_once => Due::sharp(now),
                    failures => schedule::retry(now, *lease, failures),
                };
                self.reschedule(hold, due, true);
            }
            return;
        };
        for (
            Asked {
                hold,
                lease,
                doubtful,
            },
            held,
        ) in renewals.iter().zip(held)
        {
            match held.as_int() {
                Some(0) => {
                    hold.lose(if *doubtful {
                        LostReason::NodeGone
                    } else {
                        LostReason::Stolen
                    });
                }
                Some(1) if hold.renewed(batch.sent, *lease) => {
                    let jitter = self.jitter.below(201);
                    self.reschedule(
                        hold,
                        |_| schedule::renewal(batch.sent.monotonic, hold.terms.lease, jitter),
                        false,
                    );
                }
                // It ran out or was released before the answer came, or the answer makes no sense.
                _ => {}
            }
        }
    }

    fn take_jobs(&self) -> Vec<Job> {
        std::mem::take(&mut lock(&self.state).jobs)
    }

    /// When to look again; from now on an earlier appointment rings the bell.
    fn sleep_until(&self, now: Instant) -> Option<Instant> {
        let mut state = lock(&self.state);
        let next = state.schedule.next_at();
        // An appointment is kept even if its reason is gone: else every lock that is taken and released while the keeper
        // has nothing to do would wake it.
        let kept = state.wakes_at.filter(|&at| at > now);
        state.wakes_at = [next, kept].into_iter().flatten().min();
        state.wakes_at
    }

    /// Whether the thread may end; then it counts as not running.
    fn ends(&self) -> bool {
        let state = lock(&self.state);
        let ends = state.closing && state.schedule.is_empty() && state.jobs.is_empty();
        if ends {
            self.running.store(false, Ordering::Release);
        }
        ends
    }

    /// Whether something must be renewed or ended now. Only then is what is nearly due taken along: else every answer,
    /// which wakes the thread, would be followed by a batch of the one or two that came due meanwhile.
    fn is_time(&self, now: Instant) -> bool {
        lock(&self.state)
            .schedule
            .next_at()
            .is_some_and(|at| at <= now)
    }

    fn has_work(&self) -> bool {
        let state = lock(&self.state);
        !state.jobs.is_empty() || !state.schedule.is_empty()
    }
}

impl Job {
    /// A release of a hold that, with this lease, may still be on the server.
    pub(crate) fn new(
        name: Arc<Name>,
        id: HoldId,
        lease: Duration,
        unfinished: Unfinished,
    ) -> Self {
        // The last request that could set the lease was sent before now, but may run a little later.
        let until = Instant::now() + lease + Duration::from_secs(1);
        Self {
            name,
            id,
            until,
            _unfinished: unfinished,
        }
    }

    /// Whether a release that failed like this may succeed later, or elsewhere: what is submitted follows no redirect.
    pub(crate) fn is_worth_it(error: &resp::Error) -> bool {
        let gone = error.is_closed() || error.kind() == resp::ErrorKind::Protocol;
        gone || error.is_transient() || is_noscript(error) || is_redirect(error)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if self.0.unfinished.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.quiet.notify_waiters();
        }
    }
}

/// The keys of one script call must belong to one slot.
fn by_group(client: &Client, mut asked: Vec<Asked>) -> Vec<Vec<Asked>> {
    let group = |asked: &Asked| client.group(asked.hold.name.key().as_bytes());
    asked.sort_by_cached_key(group);
    let mut groups: Vec<Vec<Asked>> = Vec::new();
    for one in asked {
        match groups.last_mut() {
            Some(last)
                if last
                    .first()
                    .is_some_and(|first| group(first) == group(&one)) =>
            {
                last.push(one)
            }
            _ => groups.push(vec![one]),
        }
    }
    groups
}

fn is_redirect(error: &resp::Error) -> bool {
    error
        .as_server()
        .is_some_and(resp::ServerError::is_redirect)
}

fn is_noscript(error: &resp::Error) -> bool {
    error
        .as_server()
        .is_some_and(|error| matches!(error.kind(), ServerErrorKind::NoScript))
}

/// The call that renews them, which borrows what is made for it here.
fn with_call<R>(renewals: &[Asked], submit: impl FnOnce(&ScriptCall<'_>) -> R) -> R {
    let leases: Vec<Decimal> = renewals
        .iter()
        .map(|asked| Decimal::new(millis(asked.lease)))
        .collect();
    let keys: Vec<&[u8]> = renewals
        .iter()
        .map(|asked| asked.hold.name.key().as_bytes())
        .collect();
    let ids = renewals.iter().map(|asked| asked.hold.id.as_bytes());
    let args: Vec<&[u8]> = ids
        .zip(&leases)
        .flat_map(|(id, lease)| [id, lease.as_bytes()])
        .collect();
    submit(&RENEW.call(&keys, &args))
}
