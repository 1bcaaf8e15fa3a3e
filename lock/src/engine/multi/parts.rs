//! Locks that are held together: while they are gathered, and then by one guard.

use std::pin::pin;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::super::context::Context;
use super::super::handle::Handle;
use super::super::hold::Hold;
use super::super::registry::Registry;
use super::super::release::{self, Release};
use super::super::telemetry::Caller;
use super::super::together::together;
use super::MultiRequest;
use crate::error::{Error, ErrorKind, LostReason};
use crate::state::id::HoldId;

/// The locks of a request that are held so far. Dropping them gives them back.
pub(super) struct Parts {
    context: Arc<Handle>,
    /// By their indices in the request.
    holds: Vec<Option<Arc<Hold>>>,
}

/// The locks of one guard. When one of them is lost, all are.
#[derive(Debug)]
pub(crate) struct Group {
    /// Kept by the holds until they end, and not by the guard: one that is leaked keeps no connection.
    context: Weak<Context>,
    registry: Arc<Registry>,
    parts: Box<[Arc<Hold>]>,
    over: OnceLock<LostReason>,
    /// Notified when it is over.
    ended: Notify,
    /// Cancelled when it is over, once it was asked for.
    cancellation: OnceLock<CancellationToken>,
}

impl Parts {
    pub(super) fn none(request: &MultiRequest) -> Self {
        Self {
            context: Arc::clone(&request.context),
            holds: vec![None; request.names.len()],
        }
    }

    pub(super) fn add(&mut self, at: usize, hold: Arc<Hold>) {
        self.holds[at] = Some(hold);
    }

    pub(super) fn has(&self, at: usize) -> bool {
        self.holds[at].is_some()
    }

    /// The id of one of them, which the others of the same round are to have.
    pub(super) fn id(&self) -> Option<HoldId> {
        self.holds.iter().flatten().next().map(|hold| hold.id)
    }

    /// Gives back those from this index on.
    pub(super) fn give_back_from(&mut self, index: usize) {
        for hold in self.holds[index..].iter_mut().filter_map(Option::take) {
            release::drop_guard(&self.context, &hold, 0);
        }
    }

    /// All of them, for one guard.
    ///
    /// # Errors
    ///
    /// One was lost meanwhile. The others are given back.
    pub(super) fn group(mut self) -> Result<Arc<Group>, Error> {
        let parts = std::mem::take(&mut self.holds).into_iter().flatten();
        let group = Arc::new(Group {
            context: Arc::downgrade(&self.context),
            registry: Arc::clone(&self.context.registry),
            parts: parts.collect(),
            over: OnceLock::new(),
            ended: Notify::new(),
            cancellation: OnceLock::new(),
        });
        for part in &group.parts {
            part.belong_to(&group);
        }
        for part in &group.parts {
            if let Some(reason) = release::check(&group.registry, part) {
                group.leave();
                let error = Error::new(ErrorKind::Lost, reason.to_string());
                return Err(self.context.about(&part.name, error));
            }
        }
        Ok(group)
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        if !self.holds.is_empty() {
            self.give_back_from(0);
        }
    }
}

impl Group {
    pub(crate) fn context(&self) -> Option<Arc<Context>> {
        self.context.upgrade()
    }

    /// In their order.
    pub(crate) fn parts(&self) -> &[Arc<Hold>] {
        &self.parts
    }

    /// They are what these callers waited for, one for each in their order.
    pub(super) fn granted_to(&self, callers: Vec<Caller<'_>>) {
        for (part, caller) in self.parts.iter().zip(callers) {
            part.granted_to(caller);
        }
    }

    /// How long all of them may be trusted; zero when one is over.
    pub(crate) fn left(&self) -> Duration {
        if self.over.get().is_some() || self.registry.home.is_elsewhere() {
            return Duration::ZERO;
        }
        let left = self.parts.iter().map(|part| part.left());
        left.min().unwrap_or_default()
    }

    /// A token that is cancelled when it is over.
    pub(crate) fn cancellation(&self) -> CancellationToken {
        // A child, so that cancelling it reaches no other.
        let token = self.cancellation.get_or_init(CancellationToken::new);
        let token = token.child_token();
        // An end before the token was there did not see it. Without a thread nothing would cancel it in time.
        if self.left().is_zero() || self.registry.start_worker().is_err() {
            token.cancel();
        } else {
            for part in &self.parts {
                self.registry.work.watch(part);
            }
        }
        token
    }

    /// A part ended for `reason`. Unless that was a release, so do the others.
    pub(crate) fn part_ended(&self, reason: LostReason) {
        if !self.end(reason) || reason == LostReason::Closed {
            return;
        }
        if let Some(context) = self.context() {
            for part in &self.parts {
                release::give_up(&context, part, reason);
            }
        }
    }

    /// The guard is dropped: releases without waiting for it.
    pub(crate) fn leave(&self) {
        if self.registry.home.is_elsewhere() {
            return;
        }
        self.end(LostReason::Released);
        if let Some(context) = self.context() {
            for part in &self.parts {
                release::drop_guard(&context, part, 0);
            }
        }
    }

    /// Why it is over, if it is. A part that has just run out ends here.
    fn check(&self) -> Option<LostReason> {
        if self.registry.home.is_elsewhere() {
            return Some(LostReason::Forked);
        }
        if self.over.get().is_none() {
            let lost = |part: &Arc<Hold>| release::check(&self.registry, part);
            let reason = self.parts.iter().find_map(lost)?;
            self.part_ended(reason);
        }
        self.over.get().copied()
    }

    /// Tells everything that watches it of its end. Returns false if it was over before.
    fn end(&self, reason: LostReason) -> bool {
        let is_first = self.over.set(reason).is_ok();
        if is_first {
            if let Some(token) = self.cancellation.get() {
                token.cancel();
            }
            self.ended.notify_waiters();
        }
        is_first
    }

    /// How long to sleep at most before the clocks are read again.
    fn until_next_check(&self) -> Duration {
        let checks = self.parts.iter().map(|part| part.until_next_check());
        checks.min().unwrap_or_default()
    }
}

/// Resolves when `group` is over. Needs no worker, but a runtime with time.
pub(crate) async fn over(group: &Group) -> LostReason {
    loop {
        let mut ended = pin!(group.ended.notified());
        // From here on no notification is missed.
        ended.as_mut().enable();
        if let Some(reason) = group.check() {
            return reason;
        }
        // Either is a reason to check again.
        let clock = &group.registry.clock;
        let _ = clock.timeout(group.until_next_check(), ended).await;
    }
}

/// The guard is released: waits for the answers for all of its locks.
pub(crate) async fn release(context: &Arc<Context>, group: &Group) -> Result<Release, Error> {
    let was_held = !group.registry.home.is_elsewhere() && group.end(LostReason::Released);
    let mut releases = Vec::new();
    for part in &group.parts {
        releases.push(release::release(context, part, 0));
    }
    // All are sent before the first one is waited for.
    let outcomes: Result<Vec<_>, _> = together(releases, usize::MAX).await.into_iter().collect();
    let all_released = outcomes?
        .iter()
        .all(|outcome| *outcome == Release::Released);
    Ok(if was_held && all_released {
        Release::Released
    } else {
        Release::AlreadyGone
    })
}
