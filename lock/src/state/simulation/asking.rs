//! One request for a hold: as the engine's `asking`.

use std::time::Duration;

use leasehold_cluster::Source;

use super::acquire::Request;
use super::call::{Call, Line, Reply};
use super::connection::{Evaluated, Failure, LinkKind, evaluate};
use super::open_attempt::OpenAttempt;
use super::profile::Broken;
use crate::protocol::Answer;
use crate::state::chain::BLOCK;
use crate::state::deadline::millis;
use crate::state::ticket::Ask;

pub(super) enum Asked {
    Replied(Evaluated),
    Untrusted { left: Duration, ran: bool },
}

/// Sends the request for `ask`, with those on fewer keys that are made where it cannot be.
pub(super) async fn send(
    request: &Request,
    ask: Ask,
    with_block: bool,
    open: &mut OpenAttempt<'_>,
) -> Result<Asked, Failure> {
    let Request { process, terms, .. } = request;
    let calls = calls(request, ask, with_block, open);
    let timeout = Duration::from_millis(process.world.profile.timeout_ms);
    if terms.quorum().is_none() {
        let unanswered = open.unanswered();
        let evaluated = evaluate(process, LinkKind::Shared, &calls, timeout, unanswered);
        return Ok(Asked::Replied(evaluated.await?));
    }
    let random = &process.world.random;
    let untrusted = process.world.fails(process.world.profile.untrusted);
    let left = Duration::from_millis(random.between(1, 1_000));
    if untrusted && random.chance(500) {
        return Ok(Asked::Untrusted { left, ran: false });
    }
    let unanswered = open.unanswered();
    let evaluated = evaluate(process, LinkKind::Exclusive, &calls, timeout, unanswered).await?;
    if untrusted && matches!(evaluated.reply, Reply::Answer(Answer::Granted { .. })) {
        return Ok(Asked::Untrusted { left, ran: true });
    }
    Ok(Asked::Replied(evaluated))
}

/// The request for `ask`, and those on fewer keys.
fn calls(request: &Request, ask: Ask, with_block: bool, open: &OpenAttempt<'_>) -> Vec<Call> {
    let Request { process, terms, .. } = request;
    let (hold, lease) = (open.key(), millis(terms.first_lease()));
    let block = if with_block { BLOCK } else { 1 };
    let highest = process.highest.get();
    let ticket = open.ticket().filter(|_| ask != Ask::Confirm);
    let score = ticket.and_then(|_| asks(request));
    let lean = Call::Acquire {
        hold,
        lease,
        line: Line::Passed,
        block,
    };
    let alone = Call::AcquireAlone {
        hold,
        lease,
        highest,
    };
    match (ask, ticket) {
        (Ask::Confirm, _) => vec![
            Call::Confirm { hold, lease },
            Call::ConfirmAlone {
                hold,
                lease,
                highest,
            },
        ],
        (Ask::Look, Some(ticket)) => {
            let look = Call::Look {
                hold,
                lease,
                ticket,
                score,
            };
            vec![look, lean, alone]
        }
        (Ask::Join, Some(ticket)) => {
            let join = Call::Acquire {
                hold,
                lease,
                line: Line::Joined(ticket),
                block,
            };
            vec![join, lean, alone]
        }
        (Ask::Try, _) if process.world.profile.redisson => {
            let tries = Call::Acquire {
                hold,
                lease,
                line: Line::Kept,
                block,
            };
            vec![tries, lean, alone]
        }
        _ => vec![lean, alone],
    }
}

/// A request for the ticket is sent. Returns the score to ask with.
fn asks(request: &Request) -> Option<u64> {
    let process = &request.process;
    let shares = request.terms.quorum().is_none() && !process.world.profile.uncounted;
    let behind = shares.then(|| process.asked_over()).flatten();
    let score = process.with_line(|line| {
        let ticket = &mut line.standing.as_mut()?.ticket;
        ticket.asks(behind);
        ticket.score()
    });
    let back_at_the_end = process.world.broken == Some(Broken::BackAtTheEnd);
    score.flatten().filter(|_| !back_at_the_end)
}

/// The connection of an answer, where it is that of the messages.
pub(super) fn source(request: &Request, evaluated: &Evaluated) -> Option<Source> {
    let process = &request.process;
    if request.terms.quorum().is_some() {
        let unconfirmed = process.world.broken == Some(Broken::ReplicatedUnconfirmed);
        return process.asked_over().filter(|_| unconfirmed);
    }
    evaluated.session.map(Source::for_tests)
}
