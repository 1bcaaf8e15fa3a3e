//! Taking a lock: from joining the queue to the hold.
//!
//! The head of the queue tries once, and then waits in the line at the server, where a release finds it: it holds the lock
//! when the message of its grant arrives, and asks only rarely whether one was missed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::asking::{Asked, read, send};
use super::context::Context;
use super::grants;
use super::hold::{Granted, Hold};
use super::line::{Line, PassedOn, Standing};
use super::open_attempt::{Ask, OpenAttempt};
use super::queue::{Place, Turn, Wake};
use super::release;
use super::request::{Request, Wait};
use crate::error::{Error, ErrorKind};
use crate::protocol::Answer;
use crate::state::chain::Chain;
use crate::state::deadline::Now;
use crate::state::hold::Nest;
use crate::state::ticket::{Ticket, Verdict, grant_lease};
use crate::state::token::FencingToken;
use crate::state::waiters::{Claim, Closed};

/// Looks of many processes are spread by up to as many per mille.
const JITTER: u64 = 100;

/// The result of an attempt.
enum Attempted {
    Granted(Arc<Hold>),
    /// Others have it. A ticket in line knows when to look.
    Held,
    /// The ticket was granted it a while ago, and little is left of that.
    AlmostOver,
    /// It was taken back since the server's data may have lost locks; for so long.
    TakenBack(Duration),
}

/// Takes the lock, or returns `None` when the time to wait is over.
pub(crate) async fn acquire(request: &Request) -> Result<Option<Arc<Hold>>, Error> {
    take(request)
        .await
        .map_err(|error| request.context.about(&request.name, error))
}

async fn take(request: &Request) -> Result<Option<Arc<Hold>>, Error> {
    let Request { context, terms, .. } = request;
    context.check_name(&request.name)?;
    if let Some(what) = terms.bad_duration() {
        return Err(Error::bad_lease(what));
    }
    let held = request
        .owner
        .as_ref()
        .and_then(|owner| owner.get(&request.name));
    if let Some(hold) = held
        && nest(request, &hold)?
    {
        return Ok(Some(hold));
    }
    if terms.needs_renewal() {
        // Now, while there is nothing to lose.
        context.registry.start_worker()?;
    }
    let Some((mut place, until)) = enter(request)? else {
        return Ok(None);
    };
    loop {
        match place.turn(until).await? {
            Turn::Mine => {}
            Turn::TimeUp => return Ok(None),
            Turn::Nested(hold) if nest(request, &hold)? => return Ok(Some(hold)),
            Turn::Nested(_) => continue,
        }
        let taken = contend(request, &mut place, until).await;
        if let Err(error) = &taken {
            place.fail_others(terms.replicas, error);
        }
        return taken;
    }
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
        Wait::None => Place::enter_if_free(context, name, claim)?.map(|place| (place, None)),
        // A time beyond the end of the clock is no limit.
        Wait::For(time) => Some((
            Place::enter(context, name, claim)?,
            Instant::now().checked_add(time),
        )),
        Wait::Endless => Some((Place::enter(context, name, claim)?, None)),
    })
}

/// Contends for the lock at the server, as the head of the queue here.
async fn contend(
    request: &Request,
    place: &mut Place,
    until: Option<Instant>,
) -> Result<Option<Arc<Hold>>, Error> {
    let Request { context, name, .. } = request;
    let is_time_up = || until.is_some_and(|until| until <= Instant::now());
    let waits = !matches!(request.wait, Wait::None);
    if !(waits && inherit(request)) {
        grants::resume(context, name);
        // A grant must be heard. Until it is known that there is somebody to wait for, no subscription is made.
        if !waits || is_time_up() || !grants::is_listening(context, name) {
            if let Attempted::Granted(hold) = attempt(request, place, Ask::Try).await? {
                return Ok(Some(hold));
            }
            if !waits || is_time_up() {
                return Ok(None);
            }
        }
        // Redisson's channel is of the name, and the grants of all names may be heard already.
        grants::listen(context, request.protocol, name);
        stand(request, Instant::now())?;
    }
    loop {
        let ask = match place.wait(until).await? {
            Wake::TimeUp => return Ok(None),
            Wake::Look => look_or_join(request),
            Wake::Granted => match judge(request) {
                Verdict::Ignore => continue,
                Verdict::Look => Ask::Look,
                Verdict::Over => {
                    // Passed on, and nobody came for it in time.
                    take_back(request);
                    stand(request, Instant::now())?;
                    continue;
                }
                Verdict::Confirm => Ask::Confirm,
                Verdict::Start {
                    since,
                    lease,
                    token,
                } => {
                    let begun = begin_granted(request, place, since, lease, token).await?;
                    match begun {
                        Some(hold) => return Ok(Some(hold)),
                        None => continue,
                    }
                }
            },
        };
        let mut attempted = attempt(request, place, ask).await?;
        if matches!(attempted, Attempted::AlmostOver) {
            attempted = attempt(request, place, Ask::Confirm).await?;
        }
        match attempted {
            Attempted::Granted(hold) => return Ok(Some(hold)),
            Attempted::Held | Attempted::AlmostOver => {}
            Attempted::TakenBack(time) => stand(request, Instant::now() + time)?,
        }
    }
}

/// Goes on with the ticket of the waiter that was the head before, if there is one that is granted for no longer than this
/// request asks for. Another one is taken back.
fn inherit(request: &Request) -> bool {
    let Request { context, name, .. } = request;
    let lease = request.terms.first_lease();
    let table = &context.registry.table;
    let unfit = table.with_line(name, |line| {
        let standing = line.standing.as_mut()?;
        let confirms_less = standing
            .passed
            .is_some_and(|passed| passed.replicas != request.terms.replicas);
        if standing.ticket.grant_lease() > lease || confirms_less {
            return line.standing.take();
        }
        standing.lease = standing.lease.max(lease);
        None
    });
    if let Some(standing) = unfit.flatten() {
        grants::abandon(context, name, Line::with(standing));
        return false;
    }
    let inherits = table.with_line(name, |line| line.standing.is_some());
    inherits == Some(true)
}

/// Takes back what the waiters have at the server.
fn take_back(request: &Request) {
    let Request { context, name, .. } = request;
    let table = &context.registry.table;
    let standing = table.with_line(name, |line| line.standing.take());
    if let Some(standing) = standing.flatten() {
        grants::abandon(context, name, Line::with(standing));
    }
}

/// Has a new ticket, which joins the line at `look_at`.
fn stand(request: &Request, look_at: Instant) -> Result<(), Error> {
    let Request {
        context,
        name,
        protocol,
        ..
    } = request;
    let lease = request.terms.first_lease();
    let granted_for = grant_lease(lease, context.round_trip());
    if granted_for < lease {
        // A grant has to be confirmed.
        context.registry.start_worker()?;
    }
    let id = context.next_hold();
    let table = &context.registry.table;
    let with_block = table.has_followers(name);
    let standing = Standing {
        protocol,
        ticket: Ticket::new(id, granted_for, with_block, look_at),
        lease,
        passed: None,
        unanswered: leasehold_cluster::Unanswered::default(),
        unfinished: context.registry.work.unfinished(),
    };
    let former = table.with_line(name, |line| line.standing.replace(standing));
    drop(former);
    table.stand(id.number(), name);
    Ok(())
}

fn look_or_join(request: &Request) -> Ask {
    let joined = request
        .context
        .registry
        .table
        .with_line(&request.name, |line| {
            let standing = line.standing.as_ref();
            standing.is_some_and(|standing| standing.ticket.has_joined())
        });
    if joined == Some(true) {
        Ask::Look
    } else {
        Ask::Join
    }
}

fn judge(request: &Request) -> Verdict {
    let strict = request.terms.quorum().is_some();
    let now = Now::read();
    let verdict = request
        .context
        .registry
        .table
        .with_line(&request.name, |line| {
            let standing = line.standing.as_mut()?;
            Some(standing.ticket.judge(now, strict))
        });
    verdict.flatten().unwrap_or(Verdict::Ignore)
}

/// The hold of a grant that needs no confirmation now; `None` if nothing may be granted, or nothing is left of it.
async fn begin_granted(
    request: &Request,
    place: &mut Place,
    since: Now,
    lease: Duration,
    token: u64,
) -> Result<Option<Arc<Hold>>, Error> {
    let Request { context, name, .. } = request;
    let deadline = Instant::now() + context.config.command_timeout;
    let mut open = OpenAttempt::begin(request, Ask::Confirm);
    if let Some(left) = restart_grace(request, deadline).await? {
        // Granted by somebody who does not keep to it. It is released, and asked for again later.
        drop(open);
        stand(request, Instant::now() + left)?;
        return Ok(None);
    }
    let token = FencingToken::new(token);
    context.saw(token);
    let now = Now::read();
    let (has_block, passed) = of_standing(request);
    let chain = match passed {
        Some(passed) => Some(passed.chain),
        None => has_block.then(|| {
            let changes = context.client.changes();
            Chain::begin(token.as_u64(), now.monotonic, changes)
        }),
    };
    let hold = Hold::new(Granted {
        protocol: request.protocol,
        name: Arc::clone(name),
        id: open.id(),
        token: Some(token),
        terms: request.terms,
        owner: request.owner.clone(),
        acknowledged: passed.map_or(0, |passed| passed.acknowledged),
        since: if passed.is_some() { now } else { since },
        lease,
        lease_since: since,
        chain,
        unanswered: open.unanswered().clone(),
        ticket: None,
    });
    if !hold.is_live() {
        open.settle();
        return Ok(None);
    }
    begin(request, place, &hold, &mut open)?;
    Ok(Some(hold))
}

/// Whether the ticket was granted with a block of tokens, and what it became of a hold that was passed on.
fn of_standing(request: &Request) -> (bool, Option<PassedOn>) {
    let table = &request.context.registry.table;
    let known = table.with_line(&request.name, |line| {
        let standing = line.standing.as_ref()?;
        Some((standing.ticket.has_block(), standing.passed))
    });
    known.flatten().unwrap_or((false, None))
}

/// One attempt at the server.
async fn attempt(request: &Request, place: &mut Place, ask: Ask) -> Result<Attempted, Error> {
    let Request { context, .. } = request;
    let deadline = Instant::now() + context.config.command_timeout;
    if let Some(left) = restart_grace(request, deadline).await? {
        with_ticket(request, |ticket| ticket.put_off(left, Instant::now()));
        return Ok(Attempted::Held);
    }
    // Dropped before the place: what ends it leaves before the next waiter here is woken.
    let mut open = OpenAttempt::begin(request, ask);
    let with_block = match ask {
        Ask::Try => context.registry.table.has_followers(&request.name),
        Ask::Join => of_standing(request).0,
        Ask::Look | Ask::Confirm => false,
    };
    let changes = context.client.changes();
    let reply = match send(request, ask, with_block, deadline, &mut open).await {
        Ok(Asked::Replied(reply)) => reply,
        Ok(Asked::Untrusted { left, ran: true }) => return Ok(Attempted::TakenBack(left)),
        Ok(Asked::Untrusted { left, ran: false }) => {
            open.settle();
            with_ticket(request, |ticket| ticket.put_off(left, Instant::now()));
            return Ok(Attempted::Held);
        }
        Err(error) => {
            let may_have_executed = error.may_have_executed();
            let error = Error::from_client(error);
            // The scripts check types before they write.
            if !may_have_executed || error.kind() == ErrorKind::WrongType {
                open.settle_unless_in_line();
            }
            return Err(error);
        }
    };
    let now = Instant::now();
    let evaluated = &reply.evaluated;
    context.note_round_trip(now - evaluated.sent);
    let sent = Now {
        monotonic: evaluated.sent,
        wall: evaluated.sent_wall,
    };
    let (token, left) = match read(request, ask, &evaluated.value) {
        Some(Answer::Granted { token, left }) => (token, left),
        Some(Answer::NoExpiry) => {
            open.settle_unless_in_line();
            return Err(Error::no_expiry());
        }
        Some(Answer::Placed(placed)) => {
            open.settle();
            let (source, jitter) = (evaluated.source, context.jitter.below(JITTER));
            with_ticket(request, |ticket| {
                ticket.placed(placed, sent, source, now, jitter);
            });
            return Ok(Attempted::Held);
        }
        Some(Answer::Held(held)) => {
            open.settle();
            with_ticket(request, |ticket| match ask {
                Ask::Confirm => ticket.look_now(now),
                _ => ticket.not_placed(held, now),
            });
            return Ok(Attempted::Held);
        }
        None => return Err(Error::unexpected(&evaluated.value)),
    };
    if let Some(token) = token {
        context.saw(token);
    }
    let needed = grant_lease(request.terms.first_lease(), context.round_trip()) / 4;
    if ask != Ask::Confirm
        && open.ticket().is_some()
        && left.is_some_and(|left| left.saturating_sub(now - evaluated.sent) < needed)
    {
        // Its message was lost, or is late. A hold that begins with that little may end before its first renewal.
        open.settle();
        return Ok(Attempted::AlmostOver);
    }
    // The server may have been restarted between the question and the grant. The attempt is still open.
    if let Some(left) = restart_grace(request, deadline).await? {
        return Ok(Attempted::TakenBack(left));
    }
    let hold = Hold::new(Granted {
        protocol: request.protocol,
        name: Arc::clone(&request.name),
        id: open.id(),
        token,
        terms: request.terms,
        owner: request.owner.clone(),
        acknowledged: reply.confirmed?,
        since: sent,
        lease: left.unwrap_or_else(|| request.terms.first_lease()),
        lease_since: sent,
        // A hold that was there before the request that was answered has the token of that, and its block is not known.
        chain: token
            .filter(|_| with_block && left.is_none() && !evaluated.repeated)
            .map(|token| Chain::begin(token.as_u64(), now, changes)),
        // Late requests of earlier attempts that could not be killed: they are outlived by the release.
        unanswered: open.unanswered().clone(),
        ticket: evaluated.repeated.then(|| open.ticket()).flatten(),
    });
    if !hold.is_live() {
        let lease = request.terms.first_lease();
        return Err(Error::new(
            ErrorKind::Lost,
            format!("the answer took longer than the lease of {lease:?}"),
        ));
    }
    begin(request, place, &hold, &mut open)?;
    Ok(Attempted::Granted(hold))
}

/// Changes the ticket, if the request has one.
fn with_ticket(request: &Request, then: impl FnOnce(&mut Ticket)) {
    let table = &request.context.registry.table;
    table.with_line(&request.name, |line| {
        line.standing
            .as_mut()
            .map(|standing| then(&mut standing.ticket))
    });
}

/// `hold` begins: it takes the place and the ticket, nests for its owner, and is renewed. If the locks were shut down
/// meanwhile, the attempt stays open.
fn begin(
    request: &Request,
    place: &mut Place,
    hold: &Arc<Hold>,
    open: &mut OpenAttempt<'_>,
) -> Result<(), Error> {
    let context = &request.context;
    hold.keep(Arc::<Context>::clone(context));
    open.grant(place, hold)?;
    if let Some(owner) = &request.owner {
        owner.remember(hold);
    }
    if hold.needs_renewal() {
        context.registry.work.renew(hold);
    }
    Ok(())
}

/// How long the server grants nothing because it was restarted, if that is asked for.
async fn restart_grace(request: &Request, deadline: Instant) -> Result<Option<Duration>, Error> {
    let Request { context, name, .. } = request;
    let Some(longest) = context.config.restart_grace else {
        return Ok(None);
    };
    if request.terms.quorum().is_some() {
        // Where replicas confirm, the grace follows the data, and is part of the attempt.
        return Ok(None);
    }
    let started = context
        .client
        .server_started(name.key().as_bytes(), deadline)
        .await
        .map_err(Error::from_read)?;
    Ok(started.and_then(|started| (started + longest).checked_duration_since(Instant::now())))
}

/// Adds a guard to `hold`. Returns false if it was released meanwhile.
fn nest(request: &Request, hold: &Hold) -> Result<bool, Error> {
    // If it has just run out, it ends here.
    release::check(&request.context.registry, hold);
    let nested = hold
        .state()
        .nest(&request.terms, hold.acknowledged, Now::read());
    match nested {
        Nest::Nested => Ok(true),
        Nest::Over => Ok(false),
        Nest::Lost(reason) => Err(Error::new(ErrorKind::Lost, reason.to_string())),
        Nest::Refused(missing) => Err(Error::new(ErrorKind::Nested, missing)),
    }
}

impl From<Closed> for Error {
    fn from(_: Closed) -> Self {
        Self::closed()
    }
}
