//! Taking a lock: from joining the queue to the hold.
//!
//! The head of the queue tries once, and then waits in the line at the server, where a release finds it: it holds the lock
//! when the message of its grant arrives, and asks only rarely whether one was missed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_cluster::Unanswered;

use super::attempt::{Attempted, attempt, begin_granted};
use super::grants;
use super::hold::Hold;
use super::line::Standing;
use super::queue::{Place, Turn, Wake};
use super::readers::{self, Among};
use super::release;
use super::request::{Request, Wait};
use crate::error::{Error, ErrorKind};
use crate::observer::Way;
use crate::protocol::permits::MOST_PERMITS;
use crate::state::hold::Nest;
use crate::state::id::is_id_of_owner;
use crate::state::ticket::{Ask, Mark, Ticket, Verdict, grant_lease};
use crate::state::waiters::{Access, Claim, Closed};

/// The lock, as it was taken.
enum Taken {
    New(Arc<Hold>),
    /// With one guard more.
    Shared(Arc<Hold>),
}

/// Takes the lock, or returns `None` when the time to wait is over.
pub(crate) async fn acquire(request: &Request) -> Result<Option<Arc<Hold>>, Error> {
    let Request { context, name, .. } = request;
    let caller = context.caller(name, request.protocol.primitive);
    let taken = take(request, &|| true).await;
    let taken = taken.map_err(|error| context.about(name, error));
    match &taken {
        Ok(Some(Taken::New(hold))) => hold.granted_to(caller),
        Ok(Some(Taken::Shared(_))) => caller.opened(Way::Nested),
        Ok(None) => caller.gave_up(request.wait.gave_up()),
        Err(error) => caller.failed(error),
    }
    Ok(taken?.map(Taken::hold))
}

/// Takes the lock for one who tells observers of it, or returns `None` when the time to wait is over, or if it `is_wanted` no
/// more when its turn comes among those of this process.
pub(crate) async fn acquire_if(
    request: &Request,
    is_wanted: &(dyn Fn() -> bool + Send + Sync),
) -> Result<Option<Arc<Hold>>, Error> {
    let taken = take(request, is_wanted).await;
    let taken = taken.map_err(|error| request.context.about(&request.name, error))?;
    Ok(taken.map(Taken::hold))
}

async fn take(
    request: &Request,
    is_wanted: &(dyn Fn() -> bool + Send + Sync),
) -> Result<Option<Taken>, Error> {
    let Request { context, terms, .. } = request;
    check(request)?;
    if !context.client.is_contacted() {
        context.contact().await?;
    }
    let held = request
        .owner
        .as_ref()
        .and_then(|owner| owner.get(&request.name));
    if let Some(hold) = held
        && nest(request, &hold)?
    {
        return Ok(Some(Taken::Shared(hold)));
    }
    if let Some(hold) = readers::share(request, Among::Newcomers) {
        return Ok(Some(Taken::Shared(hold)));
    }
    if terms.needs_renewal() {
        // Now, while there is nothing to lose.
        context.registry.start_worker()?;
    }
    let Some((mut place, until)) = enter(request)? else {
        return Ok(None);
    };
    if asks_beside_others(request) {
        let taken = contend(request, &mut place, until).await?;
        return Ok(taken.map(Taken::New));
    }
    loop {
        match place.turn(until).await? {
            Turn::Mine if !is_wanted() => return Ok(None),
            Turn::Mine => {
                if let Some(hold) = readers::share(request, Among::Head) {
                    return Ok(Some(Taken::Shared(hold)));
                }
            }
            Turn::TimeUp => return Ok(None),
            Turn::Nested(hold) if nest(request, &hold)? => {
                return Ok(Some(Taken::Shared(hold)));
            }
            Turn::Nested(_) => continue,
        }
        let taken = contend(request, &mut place, until).await;
        if let Err(error) = &taken {
            place.fail_others(terms.replicas, error);
        }
        return Ok(taken?.map(Taken::New));
    }
}

/// Refuses what could never be granted.
fn check(request: &Request) -> Result<(), Error> {
    let Request { context, terms, .. } = request;
    context.check_name(&request.name)?;
    if let Some(what) = terms.bad_duration() {
        return Err(Error::bad_lease(what));
    }
    if let Some(contradiction) = terms.contradiction() {
        return Err(Error::new(ErrorKind::BadLease, contradiction));
    }
    if terms.at_least.is_some() && !request.protocol.keeps {
        return Err(Error::new(
            ErrorKind::Config,
            "`at_least` is for locks with one holder: a mutex, a fair mutex or a plain mutex",
        ));
    }
    if let Some(former) = request.owner.as_ref().and_then(|owner| owner.former())
        && !is_id_of_owner(former)
    {
        return Err(Error::new(
            ErrorKind::Config,
            "`owner_from` was given a text that is no owner's id",
        ));
    }
    // Without owners permits are a mere number to the server.
    let most = match request.protocol.access {
        Access::Ownerless => u32::MAX,
        _ => MOST_PERMITS,
    };
    if request.protocol.access.is_counted()
        && let Some(bad) = request.permits.bad(most)
    {
        return Err(Error::bad_permits(bad));
    }
    Ok(())
}

/// Joins the queue. Returns the place, and until when to wait there; `None` if it is not to wait and would have to.
fn enter(request: &Request) -> Result<Option<(Place, Option<Instant>)>, Closed> {
    let Request { context, name, .. } = request;
    let claim = Claim {
        access: request.protocol.access,
        owner: request.owner.as_ref().map(|owner| owner.number()),
        replicas: request.terms.replicas,
    };
    Ok(match request.wait {
        Wait::None if asks_beside_others(request) => {
            Place::enter_beside(context, name, claim)?.map(|place| (place, None))
        }
        Wait::None => Place::enter_if_free(context, name, claim)?.map(|place| (place, None)),
        // A time beyond the end of the clock is no limit.
        Wait::For(time) => Some((
            Place::enter(context, name, claim)?,
            context.clock().now().checked_add(time),
        )),
        Wait::Endless => Some((Place::enter(context, name, claim)?, None)),
    })
}

/// Whether the request is a single attempt that need not wait for those of others here: there may be enough for all.
fn asks_beside_others(request: &Request) -> bool {
    request.protocol.access.is_counted() && matches!(request.wait, Wait::None)
}

/// Contends for the lock at the server, as the head of the queue here.
async fn contend(
    request: &Request,
    place: &mut Place,
    until: Option<Instant>,
) -> Result<Option<Arc<Hold>>, Error> {
    let Request { context, name, .. } = request;
    let is_time_up = || until.is_some_and(|until| until <= context.clock().now());
    let waits = !matches!(request.wait, Wait::None);
    if !(waits && inherit(request)) {
        if request.former().is_some()
            && let Attempted::Granted(hold) = attempt(request, place, Ask::TakeOver).await?
        {
            return Ok(Some(hold));
        }
        let polls = request.polling.is_some();
        if !polls {
            grants::resume(context, name);
            readers::listen(request);
        }
        // A grant must be heard. Until it is known that there is somebody to wait for, no subscription is made.
        let hears = || grants::is_listening(context, request.protocol, name);
        if !waits || is_time_up() || polls || !hears() {
            if let Attempted::Granted(hold) = attempt(request, place, Ask::Try).await? {
                return Ok(Some(hold));
            }
            if !waits || is_time_up() {
                return Ok(None);
            }
        }
        stand(request, context.clock().now())?;
    }
    loop {
        let attempted = match place.wait(until).await? {
            Wake::TimeUp => return Ok(None),
            Wake::Look if rests(request) => continue,
            Wake::Look => attempt(request, place, next_ask(request)).await?,
            Wake::Granted => granted(request, place).await?,
        };
        let attempted = match attempted {
            Attempted::AlmostOver => attempt(request, place, Ask::Confirm).await?,
            attempted => attempted,
        };
        match attempted {
            Attempted::Granted(hold) => return Ok(Some(hold)),
            Attempted::Held | Attempted::AlmostOver => {}
            Attempted::TakenBack(time) => stand(request, context.clock().now() + time)?,
        }
    }
}

/// Acts on the message of a grant.
async fn granted(request: &Request, place: &mut Place) -> Result<Attempted, Error> {
    match judge(request) {
        Verdict::Ignore => Ok(Attempted::Held),
        Verdict::Look => attempt(request, place, Ask::Look).await,
        Verdict::Confirm => attempt(request, place, Ask::Confirm).await,
        Verdict::Over => {
            // Passed on, and nobody came for it in time.
            take_back(request);
            Ok(Attempted::TakenBack(Duration::ZERO))
        }
        Verdict::Start {
            since,
            lease,
            token,
        } => begin_granted(request, place, since, lease, token).await,
    }
}

/// Goes on with the ticket of the waiter that was the head before, if there is one that is granted for no longer than this
/// request asks for. Another one is taken back.
fn inherit(request: &Request) -> bool {
    let Request { context, name, .. } = request;
    let lease = request.terms.first_lease();
    let table = &context.registry.table;
    let is_fit = table.with_standing(name, |standing| {
        let confirms_less = standing
            .passed
            .is_some_and(|passed| passed.replicas != request.terms.replicas);
        let is_other = !std::ptr::eq(standing.protocol, request.protocol)
            || standing.permits != request.permits
            // The holds of an owner are known by their ids.
            || standing.owner != request.owner.as_ref().map(|owner| owner.number())
            // A grant without a message is looked for by a waiter that polls.
            || standing.passed.is_none()
                && standing.ticket.is_polled() != request.polling.is_some();
        // What is left of the lease is too little for it, if this process dies before the next renewal.
        let may_end_early = standing.passed.is_some() && request.terms.at_least.is_some();
        if standing.ticket.grant_lease() > lease || confirms_less || is_other || may_end_early {
            return false;
        }
        standing.lease = standing.lease.max(lease);
        true
    });
    if is_fit == Some(false) {
        take_back(request);
    }
    is_fit == Some(true)
}

/// Takes back what the waiters have at the server.
fn take_back(request: &Request) {
    let Request { context, name, .. } = request;
    if let Some(standing) = context.registry.table.take_standing(name) {
        grants::take_back(context, name, *standing);
    }
}

/// Has a new ticket, which joins the line at `look_at`.
fn stand(request: &Request, look_at: Instant) -> Result<(), Error> {
    let Request {
        context,
        name,
        protocol,
        permits,
        owner,
        ..
    } = request;
    if request.polling.is_none() {
        // Redisson's channel is of the name, and the grants of all names may be heard already.
        grants::listen(context, protocol, name);
    }
    let lease = request.terms.first_lease();
    let polling = request.polling.map(|backoff| backoff.within(lease));
    let granted_for = grant_lease(lease, context.round_trip());
    let granted_for = polling.map_or(granted_for, |backoff| {
        backoff.grant_lease(granted_for, lease)
    });
    if granted_for < lease && protocol.access != Access::Ownerless {
        // A grant has to be confirmed.
        context.registry.start_worker()?;
    }
    let id = context.next_hold(owner.as_deref());
    let table = &context.registry.table;
    let with_block = request.may_pass() && table.has_followers(name);
    let mark = Mark {
        letter: protocol.mark,
        permits: permits.count,
    };
    let ticket = Ticket::new(id, granted_for, with_block, mark, look_at).polled(polling);
    let standing = Standing {
        protocol,
        ticket: if protocol.is_fair {
            ticket.fair()
        } else {
            ticket
        },
        permits: *permits,
        owner: owner.as_ref().map(|owner| owner.number()),
        lease,
        changes: 0,
        passed: None,
        unanswered: Unanswered::default(),
        unfinished: context.registry.work.unfinished(),
    };
    table.stand(name, standing);
    Ok(())
}

/// Whether another waiter of this process looks for this one too. It rests then.
fn rests(request: &Request) -> bool {
    let Request { context, name, .. } = request;
    let changes = context.client.changes();
    name.lane_number().is_some() && context.registry.table.rests(name, changes)
}

fn next_ask(request: &Request) -> Ask {
    let table = &request.context.registry.table;
    let ask = table.with_standing(&request.name, |standing| standing.ticket.next_ask());
    ask.unwrap_or(Ask::Join)
}

fn judge(request: &Request) -> Verdict {
    let strict = request.terms.quorum().is_some()
        // A grant's own lease is short, and this one is to last also if this process dies.
        || request.terms.at_least.is_some()
        || request.protocol.access == Access::Ownerless;
    let now = request.context.clock().read();
    let table = &request.context.registry.table;
    let verdict = table.with_standing(&request.name, |standing| standing.ticket.judge(now, strict));
    verdict.unwrap_or(Verdict::Ignore)
}

/// Adds a guard to `hold`. Returns false if it was released meanwhile.
fn nest(request: &Request, hold: &Hold) -> Result<bool, Error> {
    if request.protocol.access == Access::Exclusive && hold.protocol.access == Access::Shared {
        return Err(Error::new(
            ErrorKind::Nested,
            "`write`: it reads, which would keep it waiting for itself; `try_upgrade` asks for both",
        ));
    }
    // If it has just run out, it ends here.
    release::check(&request.context.registry, hold);
    let nested = hold.state().nest(
        &request.terms,
        hold.acknowledged,
        request.context.clock().read(),
    );
    match nested {
        Nest::Nested => Ok(true),
        Nest::Over => Ok(false),
        Nest::Lost(reason) => Err(Error::new(ErrorKind::Lost, reason.to_string())),
        Nest::Refused(missing) => Err(Error::new(ErrorKind::Nested, missing)),
    }
}

impl Taken {
    fn hold(self) -> Arc<Hold> {
        match self {
            Self::New(hold) | Self::Shared(hold) => hold,
        }
    }
}

impl From<Closed> for Error {
    fn from(_: Closed) -> Self {
        Self::closed()
    }
}
