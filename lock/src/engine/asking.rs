//! One request for a hold: what is sent, and what comes back.

use std::time::{Duration, Instant};

use leasehold_cluster::{
    Channels, Demand, Effect, Evaluated, Replicated, ScriptCall, Unanswered, Unconfirmed,
};
use leasehold_resp as resp;
use leasehold_resp::Value;

use super::context::Context;
use super::grants;
use super::open_attempt::OpenAttempt;
use super::request::Request;
use crate::error::Error;
use crate::options::{Interop, Terms};
use crate::protocol::{Answer, Attempt, InLine};
use crate::state::chain::BLOCK;
use crate::state::deadline::Now;
use crate::state::ticket::{Ask, TicketText};

/// The server's reply to an attempt.
pub(super) struct Reply {
    pub(super) evaluated: Evaluated,
    /// When the attempt that was answered was submitted.
    pub(super) sent: Now,
    /// How many replicas confirmed it; an error if that is too few.
    pub(super) confirmed: Result<usize, Error>,
}

/// The outcome of a request.
pub(super) enum Asked {
    Replied(Reply),
    /// The data of the master are too young to grant anything; `ran` if the acquire ran before that was known.
    Untrusted {
        left: Duration,
        ran: bool,
    },
}

/// Reads the reply to `ask`.
pub(super) fn read(request: &Request, ask: Ask, reply: &Value) -> Option<Answer> {
    let protocol = request.protocol;
    match ask {
        Ask::Confirm => (protocol.read_confirm)(reply),
        Ask::TakeOver | Ask::Try | Ask::Join | Ask::Look => (protocol.read_answer)(reply),
    }
}

/// Sends the request for `ask`, with those on fewer keys that are made where it cannot be.
pub(super) async fn send(
    request: &Request,
    ask: Ask,
    with_block: bool,
    deadline: Instant,
    open: &mut OpenAttempt<'_>,
) -> Result<Asked, resp::Error> {
    let Request {
        context,
        protocol,
        terms,
        ..
    } = request;
    let (id, text) = (open.id(), open.ticket());
    let lease = terms.first_lease();
    let lean = Attempt {
        name: &request.name,
        id: &id,
        permits: request.permits,
        lease,
        counter_ttl: context.config.interop.counter_ttl(lease),
        highest_token: context.highest_token(),
        block: with_block.then_some(BLOCK),
        beside_redisson: false,
        redisson: context.config.interop == Interop::Redisson,
        with_line: false,
        channels: context.client.channels(),
        ticket: None,
    };
    let in_line = Attempt {
        ticket: asks(request, ask, text.as_ref()),
        beside_redisson: lean.redisson,
        with_line: true,
        ..lean
    };
    // Seldom needed, so they are put together when they are.
    let single_key = || match ask {
        Ask::Confirm => (protocol.confirm_single_key)(&lean).to_owned(),
        _ => (protocol.acquire_single_key)(&lean).to_owned(),
    };
    let without_line = || {
        let call = (protocol.acquire)(&lean).to_owned();
        call.while_migrating(single_key())
    };
    let first = match (ask, request.former()) {
        (Ask::TakeOver, Some((take_over, former))) => take_over(&lean, former),
        (Ask::TakeOver | Ask::Try | Ask::Join, _) => (protocol.acquire)(&in_line),
        (Ask::Look, _) => (protocol.look)(&in_line),
        (Ask::Confirm, _) => (protocol.confirm)(&lean),
    };
    let first = first.slices();
    let is_complete = match ask {
        Ask::Confirm | Ask::TakeOver => true,
        Ask::Try => !lean.redisson && !protocol.access.is_counted(),
        Ask::Join | Ask::Look => false,
    };
    let call = if is_complete {
        first.call().while_migrating(&single_key)
    } else {
        first.call().with_fallback(&without_line)
    };
    evaluate(request, ask, &call, deadline, open).await
}

/// The ticket as the request for `ask` names it.
fn asks<'a>(request: &Request, ask: Ask, text: Option<&'a TicketText>) -> Option<InLine<'a>> {
    if !matches!(ask, Ask::Join | Ask::Look) {
        return None;
    }
    let Request { context, name, .. } = request;
    // Only what goes to the same server over the same connection runs behind the subscription.
    let shares = request.terms.quorum().is_none() && context.client.channels() != Channels::Cluster;
    let behind = shares.then(|| grants::asked_over(context, name)).flatten();
    let known = context.registry.table.with_standing(name, |standing| {
        standing.ticket.asks(behind);
        standing.changes = context.client.changes();
        (standing.ticket.score(), standing.ticket.run())
    });
    let (score, run) = known.unwrap_or_default();
    Some(InLine {
        text: text?.as_bytes(),
        score,
        run,
        channels: context.client.channels(),
    })
}

/// Makes the call of an attempt.
async fn evaluate(
    request: &Request,
    ask: Ask,
    call: &ScriptCall<'_>,
    deadline: Instant,
    open: &mut OpenAttempt<'_>,
) -> Result<Asked, resp::Error> {
    let is_granted = |value: &Value| {
        let answer = read(request, ask, value);
        matches!(answer, Some(Answer::Granted { .. }))
    };
    let Request { context, terms, .. } = request;
    let unanswered = open.unanswered();
    confirmed(context, terms, call, deadline, is_granted, unanswered).await
}

/// Makes a call, and has it confirmed by replicas if `terms` ask for that and `is_granted` says so of the reply. Connections over
/// which it was sent without an answer are noted in `unanswered`.
pub(super) async fn confirmed(
    context: &Context,
    terms: &Terms,
    call: &ScriptCall<'_>,
    deadline: Instant,
    is_granted: impl Fn(&Value) -> bool,
    unanswered: &mut Unanswered,
) -> Result<Asked, resp::Error> {
    let client = &context.client;
    let Some(quorum) = terms.quorum() else {
        let evaluated = client.eval_tracked(call, deadline, unanswered).await?;
        return Ok(Asked::Replied(Reply {
            sent: context.clock().at(evaluated.sent, evaluated.sent_wall),
            evaluated,
            confirmed: Ok(0),
        }));
    };
    let lease = terms.first_lease();
    let demand = Demand {
        quorum,
        lease,
        guard: context.guard_time(lease),
    };
    // On the heap, since its size would be part of every acquisition.
    let effect = |reply: &Value| Effect::of_write(is_granted(reply));
    let replicated = client.eval_replicated(call, &demand, deadline, effect, unanswered);
    let replicated = Box::pin(replicated).await?;
    let confirmed = match replicated {
        Replicated::Untrusted { left, ran, .. } => return Ok(Asked::Untrusted { left, ran }),
        Replicated::Ran(confirmed) => confirmed,
    };
    let evaluated = confirmed.evaluated;
    Ok(Asked::Replied(Reply {
        sent: context.clock().at(evaluated.sent, evaluated.sent_wall),
        evaluated,
        confirmed: confirmed.confirmation.map_err(|why| match why {
            Unconfirmed::Refused(refusal) => Error::not_replicated(&refusal),
            Unconfirmed::Failed(error) => Error::unconfirmed(error),
        }),
    }))
}
