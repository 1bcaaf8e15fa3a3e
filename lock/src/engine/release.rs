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
use super::line::{PassedOn, Standing};
use super::registry::Registry;
use super::work_queue::{PendingEnd, Unfinished};
use crate::error::{Error, ErrorKind, LostReason};
use crate::options::Interop;
use crate::protocol::permits::Permits;
use crate::protocol::{Announced, End, Ended, Protocol};
use crate::state::deadline::Deadline;
use crate::state::hold::{Ending, Leave, Status};
use crate::state::id::HoldId;
use crate::state::names::Name;
use crate::state::ticket::{Passed, Ticket, TicketText};

/// The result of [`Guard::release`](crate::Guard::release).
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// use leasehold::Release;
///
/// let guard = locks.mutex("order:42").lock().await?;
/// match guard.release().await? {
///     Release::Released => {}
///     Release::AlreadyGone => eprintln!("it was lost before the end"),
///     _ => {}
/// }
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Release {
    /// The lock was held until now, and is free or the next waiter's. One that this process passed on to a waiter of its own,
    /// within 10 ms of its grant, was held as far as could be known without asking the server.
    Released,
    /// The lock was held until now. It was to be held for longer, see [`Acquire::at_least`](crate::Acquire::at_least): so it
    /// stays taken, by nobody, and is free when this time is over.
    Kept {
        /// How long it stays taken, as the server said.
        left: Duration,
    },
    /// It was gone before: expired, forced or flushed. Others may have held it meanwhile.
    AlreadyGone,
    /// Other guards of the same [`Owner`](crate::Owner), or other reads of this process, still hold it. Nothing was sent.
    StillHeld,
}

/// The end of one guard.
enum Left {
    /// Other guards of the hold are alive.
    Nested,
    /// The server has nothing to release.
    Gone,
    /// The next waiter here has it.
    PassedOn,
    /// A release is under way.
    Releasing(Releasing),
}

/// A release under way.
struct Releasing {
    /// The released part of a hold whose permits are counted.
    permits: Permits,
    submitted: SubmittedEnd,
    unfinished: Unfinished,
}

/// Why `hold` is over, if it is. One that has just run out ends here.
pub(crate) fn check(registry: &Registry, hold: &Hold) -> Option<LostReason> {
    if registry.home.is_elsewhere() {
        return Some(LostReason::Forked);
    }
    let status = hold.state().check(registry.clock.read());
    match status {
        Status::Held => None,
        Status::Over(reason) => Some(reason),
        Status::Ended(ending) => {
            let reason = ending.reason;
            stop(registry, hold, &ending);
            registry.table.end(hold);
            tell_end(registry, hold, reason);
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
        tell_end(registry, hold, reason);
    }
}

/// Releases `hold`, which was lost although the server may still have it: the worker sees to it.
pub(crate) fn end_lost(registry: &Registry, client: &Client, hold: &Hold) {
    let (unanswered, unfinished) = (hold.unanswered.clone(), registry.work.unfinished());
    let end = end_of(registry, client, hold, hold.permits());
    let lease = hold.terms.whole_lease();
    let end = PendingEnd::new(hold.protocol, &end, lease, unanswered, unfinished);
    registry.work.finish(end);
}

/// Ends `hold` because one that belongs with it was lost. The worker releases it.
pub(crate) fn give_up(context: &Context, hold: &Hold, reason: LostReason) {
    let ended = hold.state().lose(reason);
    if let Ok(ending) = ended {
        let registry = &context.registry;
        stop(registry, hold, &ending);
        let unfinished = registry.work.unfinished();
        let unanswered = hold.unanswered.clone();
        finish_hold_later(context, hold, Permits::NONE, unanswered, unfinished);
        registry.table.end(hold);
        tell_end(registry, hold, reason);
    }
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
        let _ = registry.clock.timeout(hold.until_next_check(), ended).await;
    }
}

/// Ends a hold because its locks are shut down, and releases it.
pub(crate) fn shut_down(context: &Arc<Context>, hold: &Arc<Hold>) {
    let ended = hold.state().lose(LostReason::Closed);
    if let Ok(ending) = ended
        && let Left::Releasing(releasing) = carry_out(context, hold, &ending)
    {
        detach(context, hold, releasing);
    }
}

/// One guard of `hold` is dropped, which has so many of its permits: releases without waiting for it. The worker finishes what
/// fails.
pub(crate) fn drop_guard(context: &Arc<Context>, hold: &Arc<Hold>, permits: u32) {
    if context.registry.home.is_elsewhere() {
        return;
    }
    if let Left::Releasing(releasing) = leave(context, hold, permits) {
        detach(context, hold, releasing);
    }
}

/// One guard of `hold` is given up, and its permits stay taken until the lease ends.
pub(crate) fn forget_guard(registry: &Registry, hold: &Hold, permits: u32) {
    if registry.home.is_elsewhere() {
        return;
    }
    let ended = hold.state().forget(permits);
    if let Some(ending) = ended {
        if let Some(owner) = &hold.owner {
            owner.forget(hold);
        }
        stop(registry, hold, &ending);
        registry.table.end(hold);
        let telemetry = &registry.telemetry;
        telemetry.ended(hold.subject(), ending.reason, true);
    }
}

/// One guard of `hold` is released, which has so many of its permits: waits for the server's answer.
pub(crate) async fn release(
    context: &Arc<Context>,
    hold: &Arc<Hold>,
    permits: u32,
) -> Result<Release, Error> {
    if context.registry.home.is_elsewhere() {
        return Err(context.about(&hold.name, Error::new(ErrorKind::Forked, "")));
    }
    #[cfg(feature = "testing")]
    if let Err(error) = crate::testing::hooks::fail(context, &hold.name) {
        drop_guard(context, hold, permits);
        return Err(context.about(&hold.name, error));
    }
    let Releasing {
        permits,
        submitted,
        unfinished,
    } = match leave(context, hold, permits) {
        Left::Nested => return Ok(Release::StillHeld),
        Left::Gone => return Ok(Release::AlreadyGone),
        Left::PassedOn => return Ok(Release::Released),
        Left::Releasing(releasing) => releasing,
    };
    let mut pending = Pending {
        context,
        hold,
        permits,
        unanswered: hold.unanswered.clone(),
        unfinished: Some(unfinished),
    };
    let mut repeated = false;
    let ended = submitted.await;
    pending.unanswered = ended.unanswered;
    let outcome = match ended.outcome {
        Err(error) if leaves_work(&error) => {
            repeated = error.may_have_executed();
            // On the heap, since its size would be part of every release.
            Box::pin(pending.repeat()).await.map(|(value, again)| {
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
    read_release(hold, &value, repeated).map_err(about)
}

/// The meaning of the reply to a release, which may have been `repeated`.
fn read_release(hold: &Hold, reply: &Value, repeated: bool) -> Result<Release, Error> {
    match (hold.protocol.read_release)(reply) {
        Some(Ended::Released) => Ok(Release::Released),
        Some(Ended::Kept(left)) => Ok(Release::Kept { left }),
        // An earlier attempt of ours may have been the one that ended it.
        Some(Ended::AlreadyGone) if repeated => Err(Error::new(
            ErrorKind::Unknown,
            "the lock is free of this hold, but an attempt without an answer may have been what released it",
        )),
        Some(Ended::AlreadyGone) => Ok(Release::AlreadyGone),
        None => Err(Error::unexpected(reply)),
    }
}

/// An attempt that is given up.
pub(crate) struct Withdrawn {
    pub(crate) protocol: &'static Protocol,
    pub(crate) name: Arc<Name>,
    pub(crate) id: HoldId,
    pub(crate) permits: Permits,
    /// The ticket, if it may be in line.
    pub(crate) ticket: Option<TicketText>,
    pub(crate) lease: Duration,
}

/// An attempt is given up that may have been sent, or may still run later: what it leaves is removed, and what may still
/// run is killed first.
///
/// It was sent over the connections in `unanswered` without an answer.
pub(crate) fn withdraw(
    context: &Arc<Context>,
    withdrawn: Withdrawn,
    unanswered: Unanswered,
    unfinished: Unfinished,
) {
    if context.registry.home.is_elsewhere() {
        return;
    }
    let call = (withdrawn.protocol.release)(&withdrawn.end(context));
    let submitted = context.client.submit_end(&call.slices().call(), unanswered);
    let context = Arc::clone(context);
    submitted.detach(move |ended| {
        if let Some(unanswered) = left_to_do(ended.outcome.as_ref().err(), ended.unanswered) {
            let Withdrawn {
                protocol, lease, ..
            } = withdrawn;
            let end = withdrawn.end(&context);
            let end = PendingEnd::new(protocol, &end, lease, unanswered, unfinished);
            finish_later(&context, end);
        }
    });
}

impl Withdrawn {
    fn end<'a>(&'a self, context: &Context) -> End<'a> {
        let ticket = self.ticket.as_ref().map(TicketText::as_bytes);
        End {
            ticket,
            permits: self.permits,
            ..end(
                &context.registry,
                &context.client,
                (&self.name, &self.id, self.lease),
            )
        }
    }
}

/// The work that an end with this error leaves to the worker, if any: `None` if nothing is left, or nothing can be done.
fn left_to_do(error: Option<&resp::Error>, unanswered: Unanswered) -> Option<Unanswered> {
    let is_needed = match error {
        Some(error) => leaves_work(error),
        None => !unanswered.is_empty(),
    };
    is_needed.then_some(unanswered)
}

/// Whether an end that was submitted and failed like this may succeed later, or with fewer keys.
pub(crate) fn leaves_work(error: &resp::Error) -> bool {
    let is_refused = error
        .as_server()
        .is_some_and(|error| matches!(error.kind(), ServerErrorKind::NoPerm));
    is_refused || is_retryable(error)
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
    permits: Permits,
    unanswered: Unanswered,
    unfinished: Option<Unfinished>,
}

impl Pending<'_> {
    /// The release once more, with repetitions. Returns whether it may have run more than once.
    async fn repeat(&mut self) -> Result<(Value, bool), resp::Error> {
        let Self {
            context,
            hold,
            permits,
            ..
        } = self;
        let end = end_of(&context.registry, &context.client, hold, *permits);
        let single_key = || (hold.protocol.release_single_key)(&end).to_owned();
        let call = (hold.protocol.release)(&end);
        let slices = call.slices();
        let call = slices.call().with_fallback(&single_key);
        let deadline = Instant::now() + context.config.command_timeout;
        let evaluated = context
            .client
            .end(&call, &mut self.unanswered, deadline)
            .await?;
        Ok((evaluated.value, evaluated.repeated))
    }

    /// The worker goes on with it, unless `error` says that this is pointless.
    fn finish_later(&mut self, error: &resp::Error) {
        if leaves_work(error) {
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
            finish_hold_later(
                self.context,
                self.hold,
                self.permits,
                unanswered,
                unfinished,
            );
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

/// Counts one guard less, and begins the release if it was the last one or has permits of its own.
fn leave(context: &Arc<Context>, hold: &Arc<Hold>, permits: u32) -> Left {
    let left = hold.state().leave(permits);
    let ending = match left {
        Leave::Nested => return Left::Nested,
        Leave::PartOver => return Left::Gone,
        Leave::Part { left } => {
            let part = Permits {
                first: left,
                count: permits,
                ..hold.permits()
            };
            return Left::Releasing(submit(context, hold, part));
        }
        Leave::Last(ending) => ending,
    };
    if let Some(owner) = &hold.owner {
        owner.forget(hold);
    }
    carry_out(context, hold, &ending)
}

/// Carries out all effects of an end.
fn carry_out(context: &Arc<Context>, hold: &Arc<Hold>, ending: &Ending) -> Left {
    let registry = &context.registry;
    stop(registry, hold, ending);
    let left = if ending.reason == LostReason::Released && pass_on(context, hold) {
        Left::PassedOn
    } else {
        let releasing = ending
            .release
            .then(|| submit(context, hold, hold.permits()));
        registry.table.end(hold);
        releasing.map_or(Left::Gone, Left::Releasing)
    };
    tell_end(registry, hold, ending.reason);
    left
}

/// Submits the release of `hold`, or of these permits of it.
fn submit(context: &Context, hold: &Hold, permits: Permits) -> Releasing {
    let registry = &context.registry;
    let mut end = end_of(registry, &context.client, hold, permits);
    if end.redisson.is_some() && !hold.protocol.is_fair {
        let is_open = context.is_open_release(&hold.name);
        let announced = registry
            .table
            .with_line(&hold.name, |line| line.announced(is_open));
        end.redisson = announced.or(end.redisson);
    }
    let call = (hold.protocol.release)(&end);
    Releasing {
        permits,
        unfinished: registry.work.unfinished(),
        submitted: context
            .client
            .submit_end(&call.slices().call(), hold.unanswered.clone()),
    }
}

/// Passes a hold that is released on to the next waiter here, without asking the server. Returns whether there is one, and it
/// may be.
fn pass_on(context: &Context, hold: &Hold) -> bool {
    let Some(chain) = hold.chain else {
        return false;
    };
    let now = context.clock().read();
    let (since, lease, kept) = {
        let mut state = hold.state();
        (state.lease_since(), state.lease(), state.kept(now))
    };
    if kept.is_some() {
        return false;
    }
    let left = Deadline::new(since, lease).left(now);
    let passed = chain.pass(now.monotonic, left, lease, context.client.changes());
    let Some((token, chain)) = passed else {
        return false;
    };
    let passed = Passed {
        since,
        lease,
        token,
    };
    let standing = Standing {
        protocol: hold.protocol,
        ticket: Ticket::of_hold(hold.id, passed, now.monotonic),
        permits: hold.permits(),
        owner: None,
        lease: lease.max(hold.terms.lease),
        changes: 0,
        unanswered: hold.unanswered.clone(),
        passed: Some(PassedOn {
            chain,
            replicas: hold.terms.replicas,
            acknowledged: hold.acknowledged,
        }),
        unfinished: context.registry.work.unfinished(),
    };
    context.registry.table.pass(hold, standing)
}

/// After this no renewal is sent, and everything that watches the hold knows of its end.
fn stop(registry: &Registry, hold: &Hold, ending: &Ending) {
    registry.work.forget(ending.scheduled);
    #[cfg(feature = "testing")]
    crate::testing::hooks::ended(hold, ending.reason);
    hold.announce_end();
    if let Some(group) = hold.group() {
        group.part_ended(ending.reason);
    }
}

/// Tells observers of the end, last: they may be slow.
fn tell_end(registry: &Registry, hold: &Hold, reason: LostReason) {
    registry.telemetry.ended(hold.subject(), reason, false);
}

fn detach(context: &Arc<Context>, hold: &Arc<Hold>, releasing: Releasing) {
    let Releasing {
        permits,
        submitted,
        unfinished,
    } = releasing;
    let (context, hold) = (Arc::clone(context), Arc::clone(hold));
    submitted.detach(move |ended| {
        if let Some(unanswered) = left_to_do(ended.outcome.as_ref().err(), ended.unanswered) {
            finish_hold_later(&context, &hold, permits, unanswered, unfinished);
        }
    });
}

fn finish_hold_later(
    context: &Context,
    hold: &Hold,
    permits: Permits,
    unanswered: Unanswered,
    unfinished: Unfinished,
) {
    let end = end_of(&context.registry, &context.client, hold, permits);
    let lease = hold.terms.whole_lease();
    let end = PendingEnd::new(hold.protocol, &end, lease, unanswered, unfinished);
    finish_later(context, end);
}

/// The worker repeats `end`. Without a worker that hold ends with its lease.
fn finish_later(context: &Context, end: PendingEnd) {
    let registry = &context.registry;
    registry.work.finish(end);
    if registry.start_worker().is_err() {
        drop(registry.work.take_ends());
    }
}

/// The parameters of the release of `hold`, or of these permits of it.
fn end_of<'a>(registry: &Registry, client: &Client, hold: &'a Hold, permits: Permits) -> End<'a> {
    let kept = hold.state().kept(hold.clock().read());
    End {
        ticket: hold.ticket.as_ref().map(TicketText::as_bytes),
        permits,
        kept,
        ..end(
            registry,
            client,
            (&hold.name, &hold.id, hold.terms.whole_lease()),
        )
    }
}

/// The parameters of a release of `name` by the hold with this id, taken with `lease`.
pub(crate) fn end<'a>(
    registry: &Registry,
    client: &Client,
    (name, id, lease): (&'a Name, &'a HoldId, Duration),
) -> End<'a> {
    End {
        name,
        id,
        permits: Permits::NONE,
        kept: None,
        ticket: None,
        counter_ttl: registry.interop.counter_ttl(lease),
        channels: client.channels(),
        redisson: match registry.interop {
            Interop::Off => None,
            Interop::Redisson => Some(Announced::IfFree),
        },
    }
}
