//! One acquisition that was granted: what guards share, and how it ends.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_cluster::Submitted;
use leasehold_resp as resp;
use tokio::sync::Notify;

use crate::error::{Error, ErrorKind, LostReason};
use crate::id::HoldId;
use crate::keeper::{Job, Unfinished};
use crate::lease::{Deadline, Now, millis};
use crate::locks::Inner;
use crate::names::Name;
use crate::owner::OwnerInner;
use crate::scripts::{RELEASE, release_of};
use crate::sync::lock;

/// Fencing tokens of one name strictly increase from one acquisition to the next.
///
/// Hand it to the storage the lock protects, and let the storage refuse a token that is lower than the highest it has
/// seen: that keeps out a holder that was stopped and does not know yet that it lost the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    pub(crate) const fn new(token: u64) -> Self {
        Self(token)
    }

    /// The number. It fits into 53 bits.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl std::fmt::Display for FencingToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// How long nobody who waits for the end of a hold sleeps longer: the wall clock may run ahead while timers, which
/// follow the monotonic clock, stand still (a machine that sleeps).
const WALL_CLOCK_CHECK: Duration = Duration::from_secs(1);

/// A hold. Guards share it, the table of waiters knows it while it lasts, and the keeper while it renews it.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) inner: Arc<Inner>,
    pub(crate) name: Arc<Name>,
    pub(crate) id: HoldId,
    pub(crate) token: FencingToken,
    pub(crate) terms: Terms,
    pub(crate) owner: Option<Arc<OwnerInner>>,
    /// How many replicas confirmed the acquire.
    pub(crate) acknowledged: usize,
    state: Mutex<State>,
    /// Rings when it ends.
    ended: Notify,
}

/// For how long a lock was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Of the acquire and of every renewal.
    pub(crate) lease: Duration,
    /// Whether the keeper renews it.
    pub(crate) renew: bool,
    /// The end of it all, by the clock of the keeper, however much is renewed.
    pub(crate) max_hold: Option<Duration>,
    /// Which replicas must confirm the acquire.
    pub(crate) replicas: Replicas,
}

/// Which replicas must have a lock before it counts. Renewals and releases never wait for them.
///
/// A lock that only the master knows is granted a second time when the master fails before its replicas have it, or is
/// frozen, replaced and wakes up. `All` closes that for any single fault. Two at once, and clocks that jump, it does not:
/// [`Guard::token`](crate::Guard::token) is for those.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Replicas {
    /// None: the fast mode.
    #[default]
    None,
    /// So many. One of two is not safe: it may be the one that is not promoted.
    AtLeast(usize),
    /// All that the master is expected to have: the most it was known to have since these locks connected. While one of
    /// them is down no lock is granted, and with none known neither. After taking a replica away for good, connect anew.
    All,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    deadline: Deadline,
    /// When the request that won was sent: where the longest hold begins.
    since: Now,
    /// Guards that are alive; an `Owner` may have several.
    guards: usize,
    /// Its place in the keeper's schedule.
    slot: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Held,
    Over(LostReason),
}

/// The server's word on a hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
    pub(crate) token: FencingToken,
    /// When the request that won was sent.
    pub(crate) since: Now,
    /// How many replicas confirmed it.
    pub(crate) acknowledged: usize,
}

/// What the end of a guard means.
pub(crate) enum Leave {
    /// Other guards of the same owner live on.
    Nested,
    /// It was the last one, and the server is to be told.
    Release,
    /// It was the last one, and there is nothing left to release.
    Gone,
}

/// What became of an attempt to nest.
pub(crate) enum Nest {
    /// One guard more.
    Nested,
    /// It was released meanwhile.
    Over,
    /// It was lost, and guards of it are still around.
    Lost(LostReason),
}

impl Hold {
    /// A hold with one guard.
    pub(crate) fn new(
        inner: &Arc<Inner>,
        name: &Arc<Name>,
        id: HoldId,
        terms: Terms,
        owner: Option<Arc<OwnerInner>>,
        granted: Granted,
    ) -> Arc<Self> {
        let Granted {
            token,
            since,
            acknowledged,
        } = granted;
        let deadline = Deadline::new(since, terms.first_lease());
        Arc::new(Self {
            inner: Arc::clone(inner),
            name: Arc::clone(name),
            id,
            token,
            terms,
            owner,
            acknowledged,
            state: Mutex::new(State {
                phase: Phase::Held,
                deadline,
                since,
                guards: 1,
                slot: None,
            }),
            ended: Notify::new(),
        })
    }

    /// Whether it may be trusted. Changes nothing, so it may be asked wherever.
    pub(crate) fn is_live(&self) -> bool {
        !self.left().is_zero()
    }

    /// For how long it may be trusted.
    pub(crate) fn left(&self) -> Duration {
        let state = lock(&self.state);
        match state.phase {
            Phase::Held => state.deadline.left(Now::read()),
            Phase::Over(_) => Duration::ZERO,
        }
    }

    /// When to look at the clocks again, at the latest.
    pub(crate) fn look_again(&self) -> Duration {
        self.left().min(WALL_CLOCK_CHECK)
    }

    /// Resolves when it is over. Needs no keeper, but a runtime with time.
    pub(crate) async fn over(&self) -> LostReason {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            // From here on no ring is missed.
            ended.as_mut().enable();
            if let Some(reason) = self.check() {
                return reason;
            }
            // Either is a reason to look again.
            let _ = tokio::time::timeout(self.look_again(), ended).await;
        }
    }

    /// Why it is over, if it is. A hold that just ran out ends here.
    pub(crate) fn check(&self) -> Option<LostReason> {
        let ran_out = {
            let state = lock(&self.state);
            match state.phase {
                Phase::Over(reason) => return Some(reason),
                Phase::Held if !state.deadline.is_over(Now::read()) => return None,
                Phase::Held => self.terms.ran_out(state.since, state.deadline),
            }
        };
        Some(self.lose(ran_out))
    }

    /// It is over for `reason`, unless it was over before; returns the reason that counts.
    pub(crate) fn lose(&self, reason: LostReason) -> LostReason {
        let slot = {
            let mut state = lock(&self.state);
            if let Phase::Over(earlier) = state.phase {
                return earlier;
            }
            state.phase = Phase::Over(reason);
            state.slot.take()
        };
        self.part(slot);
        reason
    }

    /// One guard more, if it may still be trusted.
    pub(crate) fn nest(&self) -> Nest {
        if let Some(reason) = self.check() {
            return if lock(&self.state).guards == 0 {
                Nest::Over
            } else {
                Nest::Lost(reason)
            };
        }
        let mut state = lock(&self.state);
        match state.phase {
            Phase::Held => {
                state.guards += 1;
                Nest::Nested
            }
            Phase::Over(_) if state.guards == 0 => Nest::Over,
            Phase::Over(reason) => Nest::Lost(reason),
        }
    }

    /// One guard less. After [`Leave::Release`] no renewal of it can be sent: it has left the keeper's schedule.
    pub(crate) fn leave(&self) -> Leave {
        let (slot, leave) = {
            let mut state = lock(&self.state);
            state.guards -= 1;
            if state.guards > 0 {
                return Leave::Nested;
            }
            let leave = match state.phase {
                // Stolen and NodeGone: the server said so. Closed and Released: it was released.
                Phase::Over(
                    LostReason::Stolen
                    | LostReason::NodeGone
                    | LostReason::Closed
                    | LostReason::Released,
                ) => Leave::Gone,
                // By our careful clock it ran out; the server may still have it and would keep others waiting.
                Phase::Over(LostReason::Expired | LostReason::MaxHold) => Leave::Release,
                Phase::Held => {
                    state.phase = Phase::Over(LostReason::Released);
                    Leave::Release
                }
            };
            (state.slot.take(), leave)
        };
        if let Some(owner) = &self.owner {
            owner.forget(&self.name, self);
        }
        // Not yet out of the table: the next one here starts when the release is on its way.
        self.inner.keeper.forget(slot);
        self.ended.notify_waiters();
        leave
    }

    /// Submits the release and wakes the next one here, whose acquire then leaves right behind it.
    pub(crate) fn submit_release(&self) -> Releasing {
        let unfinished = self.inner.keeper.unfinished();
        let listens = self.inner.waiters.listens(&self.name);
        let submitted = submit_release(&self.inner, &self.name, &self.id);
        self.inner.waiters.end(&self.name, self.id.number());
        Releasing {
            submitted,
            listens,
            unfinished,
        }
    }

    /// Releases without waiting for it; the keeper finishes what fails.
    pub(crate) fn release_detached(self: &Arc<Self>) {
        let Releasing {
            submitted,
            listens,
            unfinished,
        } = self.submit_release();
        let hold = Arc::clone(self);
        submitted.detach(move |outcome| match outcome {
            Ok(value) => {
                hold.released(&value, listens);
            }
            Err(error) => hold.finish_later(&error, unfinished),
        });
    }

    /// The keeper goes on with a release that failed for `error`, unless that is pointless.
    pub(crate) fn finish_later(&self, error: &resp::Error, unfinished: Unfinished) {
        finish_later(
            &self.inner,
            &self.name,
            self.id,
            self.terms.lease,
            error,
            unfinished,
        );
    }

    /// Reads the reply of a release: whether this release ended the hold.
    pub(crate) fn released(&self, value: &resp::Value, listens: bool) -> Option<bool> {
        let reply = value.as_int()?;
        if reply > 0 {
            let heard = reply - 1;
            self.inner
                .courtesy()
                .released(self.name.hash(), heard > i64::from(listens));
        }
        Some(reply > 0)
    }

    /// A renewal that was sent at `sent` was confirmed. Returns false if that came too late.
    pub(crate) fn renewed(&self, sent: Now, lease: Duration) -> bool {
        if self.check().is_some() {
            return false;
        }
        let mut state = lock(&self.state);
        state.deadline = state.deadline.extended(Deadline::new(sent, lease));
        state.phase == Phase::Held
    }

    /// The lease of a renewal that is sent now; `None` if the longest hold leaves nothing to renew.
    pub(crate) fn next_lease(&self, now: Now) -> Option<Duration> {
        let Some(max_hold) = self.terms.max_hold else {
            return Some(self.terms.lease);
        };
        let end = lock(&self.state).since.monotonic + max_hold;
        let left = end
            .saturating_duration_since(now.monotonic)
            .min(self.terms.lease);
        // The server counts in whole milliseconds; less than one is nothing.
        Some(Duration::from_millis(millis(left))).filter(|left| !left.is_zero())
    }

    pub(crate) fn deadline(&self) -> Deadline {
        lock(&self.state).deadline
    }

    /// Notes its place in the keeper's schedule. If it is over already it gets no place.
    pub(crate) fn scheduled(&self, slot: usize) -> bool {
        let mut state = lock(&self.state);
        let held = state.phase == Phase::Held;
        if held {
            state.slot = Some(slot);
        }
        held
    }

    /// Its place in the keeper's schedule, until it is over.
    pub(crate) fn slot(&self) -> Option<usize> {
        lock(&self.state).slot
    }

    /// Leaves the schedule and the table, and tells whoever watches.
    fn part(&self, slot: Option<usize>) {
        self.inner.keeper.forget(slot);
        self.inner.waiters.end(&self.name, self.id.number());
        self.ended.notify_waiters();
    }

    pub(crate) fn error(&self, error: Error) -> Error {
        error.about(
            self.name.key(),
            &self.inner.client.node(self.name.key().as_bytes()),
        )
    }

    /// The error for work under a hold that was lost.
    pub(crate) fn lost_error(&self, reason: LostReason) -> Error {
        self.error(Error::new(ErrorKind::Lost, reason.to_string()))
    }
}

impl Terms {
    /// The lease to acquire with.
    pub(crate) fn first_lease(&self) -> Duration {
        self.max_hold
            .map_or(self.lease, |max_hold| max_hold.min(self.lease))
    }

    /// Whether the keeper has anything to do.
    pub(crate) fn needs_keeper(&self) -> bool {
        self.renew && self.max_hold.is_none_or(|max_hold| max_hold > self.lease)
    }

    /// Why a hold that began at `since` and ran out at `deadline` did: because nothing renewed it, or because nothing may.
    fn ran_out(&self, since: Now, deadline: Deadline) -> LostReason {
        // The last lease ends with the longest hold, but is not trusted to its end and counted in whole milliseconds.
        let ends = |max_hold: Duration| {
            since.monotonic + max_hold - (max_hold / 50 + Duration::from_millis(5)).min(max_hold)
        };
        if self
            .max_hold
            .is_some_and(|max_hold| ends(max_hold) <= deadline.monotonic())
        {
            LostReason::MaxHold
        } else {
            LostReason::Expired
        }
    }
}

/// A release on its way.
pub(crate) struct Releasing {
    pub(crate) submitted: Submitted,
    /// Whether this process is one of those that hear of it.
    pub(crate) listens: bool,
    pub(crate) unfinished: Unfinished,
}

/// Submits the release of `id`, behind everything this client sent before.
pub(crate) fn submit_release(inner: &Inner, name: &Name, id: &HoldId) -> Submitted {
    let (keys, args) = release_of(&inner.client, name, id);
    inner.client.submit(&RELEASE.call(&keys, &args))
}

/// The keeper goes on with a release that failed for `error`, for as long as the hold can be on the server.
pub(crate) fn finish_later(
    inner: &Inner,
    name: &Arc<Name>,
    id: HoldId,
    lease: Duration,
    error: &resp::Error,
    unfinished: Unfinished,
) {
    let job = Job::new(Arc::clone(name), id, lease, unfinished);
    if Job::is_worth_it(error) {
        inner.keeper.finish(job);
    }
}
