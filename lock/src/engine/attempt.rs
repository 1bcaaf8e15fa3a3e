//! One attempt at the server, and the hold that a grant becomes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::asking::{Asked, Reply, read, send};
use super::context::Context;
use super::grants;
use super::hold::{Granted, Hold};
use super::line::PassedOn;
use super::open_attempt::OpenAttempt;
use super::queue::Place;
use super::readers;
use super::request::Request;
use crate::error::{Error, ErrorKind};
use crate::observer::Way;
use crate::options::Terms;
use crate::protocol::Answer;
use crate::state::chain::Chain;
use crate::state::deadline::Now;
use crate::state::names::Name;
use crate::state::ticket::{Ask, Ticket, grant_lease};
use crate::state::token::FencingToken;

/// Looks of many processes are spread by up to as many per mille.
const JITTER: u64 = 100;

/// The result of an attempt.
pub(super) enum Attempted {
    Granted(Arc<Hold>),
    /// Others have it. A ticket in line knows when to look.
    Held,
    /// The ticket was granted it a while ago, and little is left of that.
    AlmostOver,
    /// It was taken back since the server's data may have lost locks; for so long.
    TakenBack(Duration),
}

/// A grant in the server's answer.
struct Answered {
    token: Option<FencingToken>,
    /// The rest of the lease, if an earlier request has taken it; `None` for all of it.
    left: Option<Duration>,
    /// Whether others are known to wait for it.
    contended: bool,
}

/// One attempt at the server.
pub(super) async fn attempt(
    request: &Request,
    place: &mut Place,
    ask: Ask,
) -> Result<Attempted, Error> {
    let Request { context, .. } = request;
    if matches!(ask, Ask::Try | Ask::Join) {
        context.await_server().await?;
    }
    let deadline = Instant::now() + context.config.command_timeout;
    if let Some(left) = grace(request, deadline).await? {
        with_ticket(request, ask, |ticket| {
            ticket.put_off(left, context.clock().now())
        });
        return Ok(Attempted::Held);
    }
    // Dropped before the place: what ends it leaves before the next waiter here is woken.
    let mut open = OpenAttempt::begin(request, ask);
    let with_block = match ask {
        Ask::Try => request.may_pass() && context.registry.table.has_followers(&request.name),
        Ask::Join => of_standing(request).0,
        Ask::TakeOver | Ask::Look | Ask::Confirm => false,
    };
    let changes = context.client.changes();
    let heard = readers::hears_of(context, request.protocol, &request.name);
    let reply = match send(request, ask, with_block, deadline, &mut open).await {
        Ok(Asked::Replied(reply)) => reply,
        Ok(Asked::Untrusted { left, ran: true }) => return Ok(Attempted::TakenBack(left)),
        Ok(Asked::Untrusted { left, ran: false }) => {
            open.settle();
            with_ticket(request, ask, |ticket| {
                ticket.put_off(left, context.clock().now())
            });
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
    let now = context.clock().now();
    context.note_round_trip(reply.evaluated.sent.elapsed());
    let answered = match answered(request, ask, &reply, now, &mut open)? {
        Ok(answered) => answered,
        Err(attempted) => return Ok(attempted),
    };
    // The server may have been restarted between the question and the grant. The attempt is still open.
    if let Some(left) = grace(request, deadline).await? {
        return Ok(Attempted::TakenBack(left));
    }
    let chain = answered
        .token
        .filter(|_| with_block && answered.left.is_none() && !reply.evaluated.repeated)
        .map(|token| Chain::begin(token.as_u64(), now, changes));
    let (contended, source) = (answered.contended, reply.evaluated.source);
    let hold = hold(request, ask, answered, reply, chain, &mut open)?;
    begin(request, place, &hold, &mut open)?;
    if !contended {
        readers::begin(context, &hold, Some((source, heard)));
    }
    Ok(Attempted::Granted(hold))
}

/// Acts on the server's answer. Unless that is a grant, the attempt has its outcome.
fn answered(
    request: &Request,
    ask: Ask,
    reply: &Reply,
    now: Instant,
    open: &mut OpenAttempt<'_>,
) -> Result<Result<Answered, Attempted>, Error> {
    let (context, evaluated) = (&request.context, &reply.evaluated);
    let (token, left, contended) = match read(request, ask, &evaluated.value) {
        Some(Answer::Granted {
            token,
            left,
            contended,
        }) => (token, left, contended),
        Some(Answer::NoExpiry) => {
            open.settle_unless_in_line();
            return Err(Error::no_expiry());
        }
        Some(Answer::CapacityDisagrees { server }) => {
            open.settle_unless_in_line();
            return Err(Error::capacity_disagrees(server, request.permits.capacity));
        }
        Some(Answer::Placed(placed)) => {
            open.settle();
            let (source, jitter) = (evaluated.source, context.jitter.below(JITTER));
            let mut was_lost = false;
            with_ticket(request, ask, |ticket| {
                was_lost = ticket.placed(placed, reply.sent, source, now, jitter);
            });
            note_rank(request, was_lost);
            context.registry.note_use(&context.client, Duration::ZERO);
            if let Some(run) = placed.run
                && request.polling.is_none()
            {
                grants::listen_to_run(context, request.protocol, &request.name, run);
            }
            return Ok(Err(Attempted::Held));
        }
        Some(Answer::Held(held)) => {
            open.settle();
            with_ticket(request, ask, |ticket| match ask {
                Ask::Confirm => ticket.look_now(now),
                _ => ticket.not_placed(held, now),
            });
            note_rank(request, false);
            return Ok(Err(Attempted::Held));
        }
        None => return Err(Error::unexpected(&evaluated.value)),
    };
    if ask == Ask::Look {
        // Without a message where there should be one: others may be lost too, or the line.
        note_rank(request, request.polling.is_none());
    }
    let token = token.map(|token| told(request, token));
    let needed = grant_lease(request.terms.first_lease(), context.round_trip()) / 4;
    let needed = needed.max(request.terms.at_least.unwrap_or_default());
    if ask != Ask::Confirm
        && open.ticket().is_some()
        && left.is_some_and(|left| left.saturating_sub(now - reply.sent.monotonic) < needed)
    {
        // Its message was lost, or is late. A hold that begins with that little may end before its first renewal.
        open.settle();
        return Ok(Err(Attempted::AlmostOver));
    }
    Ok(Ok(Answered {
        token,
        left,
        contended,
    }))
}

/// Where waiters have tickets of their own, the server has answered to one: `was_lost` if that, or what was to be heard of it,
/// was lost.
fn note_rank(request: &Request, was_lost: bool) {
    let Request { context, name, .. } = request;
    if name.lane_number().is_some() {
        context.registry.table.note_rank(name);
        if was_lost {
            context.registry.table.next_looks(name);
        }
    }
}

/// The token to go by after an answer with this one. It is remembered.
fn told(request: &Request, token: FencingToken) -> FencingToken {
    let table = &request.context.registry.table;
    let told = table.with_standing(&request.name, |standing| {
        standing.ticket.told(token.as_u64())
    });
    let token = told.map_or(token, FencingToken::new);
    request.context.saw(token);
    token
}

/// The hold of a grant that was answered, if there is anything left of it.
fn hold(
    request: &Request,
    ask: Ask,
    answered: Answered,
    reply: Reply,
    chain: Option<Chain>,
    open: &mut OpenAttempt<'_>,
) -> Result<Arc<Hold>, Error> {
    let (sent, lease) = (reply.sent, request.terms.first_lease());
    let hold = Hold::new(Granted {
        protocol: request.protocol,
        name: Arc::clone(&request.name),
        id: open.id(),
        permits: request.permits,
        token: answered.token,
        terms: request.terms,
        owner: request.owner.clone(),
        acknowledged: reply.confirmed?,
        way: way(request, ask),
        since: sent,
        lease: answered.left.unwrap_or(lease),
        lease_since: sent,
        chain,
        // Late requests of earlier attempts that could not be killed: they are outlived by the release.
        unanswered: open.unanswered().clone(),
        clock: request.context.clock().clone(),
        ticket: open.ticket().filter(|_| reply.evaluated.repeated),
    });
    if hold.is_live() {
        return Ok(hold);
    }
    Err(Error::new(
        ErrorKind::Lost,
        format!("the answer took longer than the lease of {lease:?}"),
    ))
}

/// The hold of a grant that needs no confirmation now.
pub(super) async fn begin_granted(
    request: &Request,
    place: &mut Place,
    since: Now,
    lease: Duration,
    token: u64,
) -> Result<Attempted, Error> {
    let Request { context, name, .. } = request;
    let deadline = Instant::now() + context.config.command_timeout;
    let mut open = OpenAttempt::begin(request, Ask::Confirm);
    if let Some(left) = grace(request, deadline).await? {
        // Granted by somebody who does not keep to it. It is released, and asked for again later.
        return Ok(Attempted::TakenBack(left));
    }
    // A primitive without tokens says 0.
    let told = (token > 0).then(|| FencingToken::new(token));
    if let Some(token) = told {
        context.saw(token);
    }
    let now = context.clock().read();
    let (has_block, passed) = of_standing(request);
    let chain = match passed {
        Some(passed) => Some(passed.chain),
        None => has_block.then(|| {
            let changes = context.client.changes();
            Chain::begin(token, now.monotonic, changes)
        }),
    };
    let hold = Hold::new(Granted {
        protocol: request.protocol,
        name: Arc::clone(name),
        id: open.id(),
        permits: request.permits,
        token: told,
        terms: request.terms,
        owner: request.owner.clone(),
        acknowledged: passed.map_or(0, |passed| passed.acknowledged),
        way: way(request, Ask::Confirm),
        since: if passed.is_some() { now } else { since },
        lease,
        lease_since: since,
        chain,
        unanswered: open.unanswered().clone(),
        clock: request.context.clock().clone(),
        ticket: None,
    });
    if !hold.is_live() {
        open.settle();
        return Ok(Attempted::Held);
    }
    begin(request, place, &hold, &mut open)?;
    readers::begin(context, &hold, None);
    Ok(Attempted::Granted(hold))
}

/// How what `ask` asked for was granted.
fn way(request: &Request, ask: Ask) -> Way {
    match ask {
        Ask::Try | Ask::Join => Way::AtOnce,
        Ask::Look => Way::Look,
        Ask::TakeOver => Way::TakenOver,
        Ask::Confirm if of_standing(request).1.is_some() => Way::PassedOn,
        Ask::Confirm => Way::HandedOver,
    }
}

/// Whether the ticket was granted with a block of tokens, and what it became of a hold that was passed on.
fn of_standing(request: &Request) -> (bool, Option<PassedOn>) {
    let table = &request.context.registry.table;
    let known = table.with_standing(&request.name, |standing| {
        (standing.ticket.has_block(), standing.passed)
    });
    known.unwrap_or((false, None))
}

/// Changes the ticket, if the request has one. That of another request is not its own to change.
fn with_ticket(request: &Request, ask: Ask, then: impl FnOnce(&mut Ticket)) {
    if ask == Ask::Try {
        return;
    }
    let table = &request.context.registry.table;
    table.with_standing(&request.name, |standing| then(&mut standing.ticket));
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
    let lease = hold.state().lease();
    context.registry.note_use(&context.client, lease);
    Ok(())
}

async fn grace(request: &Request, deadline: Instant) -> Result<Option<Duration>, Error> {
    restart_grace(&request.context, &request.terms, &request.name, deadline).await
}

/// How long the server of `name` grants nothing because it was restarted, if that is asked for.
pub(super) async fn restart_grace(
    context: &Context,
    terms: &Terms,
    name: &Name,
    deadline: Instant,
) -> Result<Option<Duration>, Error> {
    let Some(longest) = context.config.restart_grace else {
        return Ok(None);
    };
    if terms.quorum().is_some() {
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
