//! All ways in which a hold ends: its guards go, it runs out, the server says that it is gone, the locks are shut down, or
//! the attempt that may have taken it is given up.
//!
//! An end has the same steps everywhere. No renewal is sent any more; what watches the hold is told; if the server may
//! still have it, a release is submitted; then the next waiter here is woken, so that its acquire leaves behind the release.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_cluster::{Client, Ending as SubmittedEnd, Unanswered};
use leasehold_resp as resp;
use leasehold_resp::{ServerErrorKind, Value};

use super::context::Context;
use super::hold::Hold;
use super::registry::Registry;
use super::work_queue::{PendingEnd, Unfinished};
use crate::error::{Error, ErrorKind, LostReason};
use crate::protocol::call::Call;
use crate::protocol::{End, Ended, Protocol};
use crate::state::deadline::Now;
use crate::state::hold::{Ending, Leave, Status};
use crate::state::id::HoldId;
use crate::state::names::Name;

/// The result of [`Guard::release`](crate::Guard::release).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Release {
    /// The lock was held until now, and is free.
    Released,
    /// It was gone before: expired, forced or flushed. Others may have held it meanwhile.
    AlreadyGone,
    /// Other guards of the same [`Owner`](crate::Owner) still hold it. Nothing was sent.
    StillHeld,
}

/// The end of one guard.
enum Left {
    /// Other guards of the hold are alive.
    Nested,
    /// The server has nothing to release.
    Gone,
    /// A release is under way.
    Releasing(Releasing),
}

/// A release under way.
struct Releasing {
    submitted: SubmittedEnd,
    /// Whether this process is among those that receive its message.
    subscribed: bool,
    unfinished: Unfinished,
}

/// Why `hold` is over, if it is. One that has just run out ends here.
pub(crate) fn check(registry: &Registry, hold: &Hold) -> Option<LostReason> {
    if registry.home.is_elsewhere() {
        return Some(LostReason::Forked);
    }
    let status = hold.state().check(Now::read());
    match status {
        Status::Held => None,
        Status::Over(reason) => Some(reason),
        Status::Ended(ending) => {
            let reason = ending.reason;
            stop(registry, hold, &ending);
            registry.table.end(hold);
            Some(reason)
        }
    }
}

/// Ends `hold`, which the server does not have any more, unless it was over before.
pub(crate) fn lose(registry: &Registry, hold: &Hold, reason: LostReason) {
    let ended = hold.state().lose(reason);
    if let Ok(ending) = ended {
        stop(registry, hold, &ending);
        registry.table.end(hold);
    }
}

/// Releases `hold`, which was lost although the server may still have it: the worker sees to it.
pub(crate) fn end_lost(registry: &Registry, client: &Client, hold: &Hold) {
    let call = release_of(client, hold).to_owned();
    let (unanswered, unfinished) = (hold.unanswered.clone(), registry.work.unfinished());
    let lease = hold.terms.lease;
    let end = PendingEnd::new(call, lease, unanswered, unfinished);
    registry.work.finish(end);
}

/// Resolves when `hold` is over. Needs no worker, but a runtime with time.
pub(crate) async fn over(registry: &Registry, hold: &Hold) -> LostReason {
    loop {
        let mut ended = pin!(hold.ended());
        // From here on no notification is missed.
        ended.as_mut().enable();
        if let Some(reason) = check(registry, hold) {
            return reason;
        }
        // Either is a reason to check again.
        let _ = tokio::time::timeout(hold.until_next_check(), ended).await;
    }
}

/// Ends a hold because its locks are shut down, and releases it.
pub(crate) fn shut_down(context: &Arc<Context>, hold: &Arc<Hold>) {
    let ended = hold.state().lose(LostReason::Closed);
    if let Ok(ending) = ended
        && let Some(releasing) = carry_out(context, hold, &ending)
    {
        detach(context, hold, releasing);
    }
}

/// One guard of `hold` is dropped: releases without waiting for it. The worker finishes what fails.
pub(crate) fn drop_guard(context: &Arc<Context>, hold: &Arc<Hold>) {
    if context.registry.home.is_elsewhere() {
        return;
    }
    if let Left::Releasing(releasing) = leave(context, hold) {
        detach(context, hold, releasing);
    }
}

/// One guard of `hold` is released: waits for the server's answer.
pub(crate) async fn release(context: &Arc<Context>, hold: &Arc<Hold>) -> Result<Release, Error> {
    if context.registry.home.is_elsewhere() {
        return Err(context.about(&hold.name, Error::new(ErrorKind::Forked, "")));
    }
    let Releasing {
        submitted,
        subscribed,
        unfinished,
    } = match leave(context, hold) {
        Left::Nested => return Ok(Release::StillHeld),
        Left::Gone => return Ok(Release::AlreadyGone),
        Left::Releasing(releasing) => releasing,
    };
    let mut pending = Pending {
        context,
        hold,
        unanswered: hold.unanswered.clone(),
        unfinished: Some(unfinished),
    };
    let mut repeated = false;
    let ended = submitted.await;
    pending.unanswered = ended.unanswered;
    let outcome = match ended.outcome {
        Err(error) if is_retryable(&error) => {
            repeated = error.may_have_executed();
            pending.repeat().await.map(|(value, again)| {
                repeated |= again;
                value
            })
        }
        outcome => outcome,
    };
    let about = |error| context.about(&hold.name, error);
    let value = match outcome {
        Ok(value) => value,
        Err(error) => {
            pending.finish_later(&error);
            // That the second attempt was not sent says nothing of the first.
            let may_have_run = repeated && !error.may_have_executed();
            let error = Error::from_client(error);
            return Err(about(if may_have_run { error.doubted() } else { error }));
        }
    };
    pending.settle();
    match read(context, hold, &value, subscribed) {
        Some(Ended::Released { .. }) => Ok(Release::Released),
        // An earlier attempt of ours may have been the one that ended it.
        Some(Ended::AlreadyGone) if repeated => Err(about(Error::new(
            ErrorKind::Unknown,
            "the lock is free of this hold, but an attempt without an answer may have been what released it",
        ))),
        Some(Ended::AlreadyGone) => Ok(Release::AlreadyGone),
        None => Err(about(Error::unexpected(&value))),
    }
}

/// An attempt that is given up.
pub(crate) struct Withdrawn {
    pub(crate) protocol: &'static Protocol,
    pub(crate) name: Arc<Name>,
    pub(crate) id: HoldId,
    pub(crate) lease: Duration,
    /// Where it was sent without an answer.
    pub(crate) unanswered: Unanswered,
    pub(crate) unfinished: Unfinished,
}

/// An attempt is given up that may have been sent, or may still run later: what it leaves is removed, and what may still
/// run is killed first.
pub(crate) fn withdraw(context: &Arc<Context>, withdrawn: Withdrawn) {
    let Withdrawn {
        protocol,
        name,
        id,
        lease,
        unanswered,
        unfinished,
    } = withdrawn;
    if context.registry.home.is_elsewhere() {
        return;
    }
    let call = (protocol.withdraw)(&end_of(&context.client, &name, &id));
    let submitted = context.client.submit_end(&call.slices().call(), unanswered);
    let context = Arc::clone(context);
    submitted.detach(move |ended| {
        if let Some(unanswered) = left_to_do(ended.outcome.as_ref().err(), ended.unanswered) {
            let call = (protocol.withdraw)(&end_of(&context.client, &name, &id));
            finish_later(&context, &call, lease, unanswered, unfinished);
        }
    });
}

/// The work that an end with this error leaves to the worker, if any: `None` if nothing is left, or nothing can be done.
fn left_to_do(error: Option<&resp::Error>, unanswered: Unanswered) -> Option<Unanswered> {
    let is_needed = match error {
        Some(error) => is_retryable(error),
        None => !unanswered.is_empty(),
    };
    is_needed.then_some(unanswered)
}

/// Whether an end that failed like this may succeed later, or elsewhere: what is submitted follows no redirect.
pub(crate) fn is_retryable(error: &resp::Error) -> bool {
    error.is_closed()
        || error.kind() == resp::ErrorKind::Protocol
        || error.is_transient()
        || error.as_server().is_some_and(|error| {
            error.is_redirect() || matches!(error.kind(), ServerErrorKind::NoScript)
        })
}

/// A release whose future may be dropped: then the worker repeats it, which does no harm.
struct Pending<'a> {
    context: &'a Arc<Context>,
    hold: &'a Arc<Hold>,
    unanswered: Unanswered,
    unfinished: Option<Unfinished>,
}

impl Pending<'_> {
    /// The release once more, with repetitions. Returns whether it may have run more than once.
    async fn repeat(&mut self) -> Result<(Value, bool), resp::Error> {
        let Self { context, hold, .. } = self;
        let call = release_of(&context.client, hold);
        let slices = call.slices();
        let deadline = Instant::now() + context.config.command_timeout;
        let evaluated = context
            .client
            .end(&slices.call(), &mut self.unanswered, deadline)
            .await?;
        Ok((evaluated.value, evaluated.repeated))
    }

    /// The worker goes on with it, unless `error` says that this is pointless.
    fn finish_later(&mut self, error: &resp::Error) {
        if is_retryable(error) {
            self.hand_over();
        }
        self.unfinished = None;
    }

    /// It was answered. The worker goes on if something may still run after it.
    fn settle(&mut self) {
        if !self.unanswered.is_empty() {
            self.hand_over();
        }
        self.unfinished = None;
    }

    fn hand_over(&mut self) {
        if let Some(unfinished) = self.unfinished.take() {
            let unanswered = std::mem::take(&mut self.unanswered);
            finish_hold_later(self.context, self.hold, unanswered, unfinished);
        }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if !self.context.registry.home.is_elsewhere() {
            self.hand_over();
        }
    }
}

/// Counts one guard less, and begins the release if it was the last one.
fn leave(context: &Arc<Context>, hold: &Arc<Hold>) -> Left {
    let left = hold.state().leave();
    let Leave::Last(ending) = left else {
        return Left::Nested;
    };
    if let Some(owner) = &hold.owner {
        owner.forget(hold);
    }
    carry_out(context, hold, &ending).map_or(Left::Gone, Left::Releasing)
}

/// Carries out all effects of an end.
fn carry_out(context: &Arc<Context>, hold: &Arc<Hold>, ending: &Ending) -> Option<Releasing> {
    let registry = &context.registry;
    stop(registry, hold, ending);
    let releasing = ending.release.then(|| Releasing {
        unfinished: registry.work.unfinished(),
        subscribed: registry.table.is_subscribed(&hold.name),
        submitted: context.client.submit_end(
            &release_of(&context.client, hold).slices().call(),
            hold.unanswered.clone(),
        ),
    });
    registry.table.end(hold);
    releasing
}

/// After this no renewal is sent, and everything that watches the hold knows of its end.
fn stop(registry: &Registry, hold: &Hold, ending: &Ending) {
    registry.work.forget(ending.scheduled);
    hold.announce_end();
}

fn detach(context: &Arc<Context>, hold: &Arc<Hold>, releasing: Releasing) {
    let Releasing {
        submitted,
        subscribed,
        unfinished,
    } = releasing;
    let (context, hold) = (Arc::clone(context), Arc::clone(hold));
    submitted.detach(move |ended| {
        if let Ok(value) = &ended.outcome {
            read(&context, &hold, value, subscribed);
        }
        if let Some(unanswered) = left_to_do(ended.outcome.as_ref().err(), ended.unanswered) {
            finish_hold_later(&context, &hold, unanswered, unfinished);
        }
    });
}

/// Reads the reply to a release of `hold`.
fn read(context: &Context, hold: &Hold, value: &Value, subscribed: bool) -> Option<Ended> {
    let ended = (hold.protocol.read_release)(value)?;
    if let Ended::Released { receivers } = ended {
        let others = receivers.saturating_sub(u64::from(subscribed));
        let now = Instant::now();
        context.fairness().released(hold.name.hash(), others, now);
    }
    Some(ended)
}

fn finish_hold_later(
    context: &Context,
    hold: &Hold,
    unanswered: Unanswered,
    unfinished: Unfinished,
) {
    let call = release_of(&context.client, hold);
    finish_later(context, &call, hold.terms.lease, unanswered, unfinished);
}

/// The worker repeats `call` for as long as a hold with `lease` can be on the server. Without a worker that hold ends with
/// its lease.
fn finish_later(
    context: &Context,
    call: &Call<'_>,
    lease: Duration,
    unanswered: Unanswered,
    unfinished: Unfinished,
) {
    let registry = &context.registry;
    let end = PendingEnd::new(call.to_owned(), lease, unanswered, unfinished);
    registry.work.finish(end);
    if registry.start_worker().is_err() {
        drop(registry.work.take_ends());
    }
}

/// The call that releases `hold`.
fn release_of<'a>(client: &Client, hold: &'a Hold) -> Call<'a> {
    (hold.protocol.release)(&end_of(client, &hold.name, &hold.id))
}

fn end_of<'a>(client: &Client, name: &'a Name, id: &'a HoldId) -> End<'a> {
    End {
        name,
        id,
        publish: client.publish_command(),
    }
}
