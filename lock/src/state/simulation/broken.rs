//! Rules that the driver leaves out on purpose.

use std::time::Duration;

use super::process::{Process, Standing};
use super::profile::Broken;
use crate::state::deadline::Now;
use crate::state::ticket::{Ask, Ticket, Verdict};

/// The verdict on a grant.
pub(super) fn verdict(
    broken: Option<Broken>,
    verdict: Verdict,
    standing: &Standing,
    now: Now,
) -> Verdict {
    let Some(message) = standing.message else {
        return verdict;
    };
    let start = |since: Now| Verdict::Start {
        since,
        lease: message.lease,
        token: message.token,
    };
    match (broken, verdict) {
        (Some(Broken::DeadlineFromReceipt), Verdict::Start { .. } | Verdict::Look) => {
            start(message.receipt)
        }
        (Some(Broken::RateWrongWay), verdict @ (Verdict::Start { .. } | Verdict::Look)) => {
            let Some((sent, time)) = standing.sample else {
                return verdict;
            };
            let elapsed = Duration::from_micros(message.at.saturating_sub(time));
            let since = sent.later_by(elapsed + elapsed / 100);
            let is_before = since.monotonic < message.receipt.monotonic;
            let since = if is_before { since } else { message.receipt };
            if since.monotonic + message.lease <= now.monotonic {
                return verdict;
            }
            start(since)
        }
        (_, verdict) => verdict,
    }
}

/// When the lease of an answer begins.
pub(super) fn since(broken: Option<Broken>, ask: Ask, sent: Now, now: Now) -> Now {
    if broken == Some(Broken::DeadlineFromConfirmReceipt) && ask == Ask::Confirm {
        now
    } else {
        sent
    }
}

/// The token of a hold that was confirmed with this one.
pub(super) fn token(process: &Process, ask: Ask, token: u64) -> u64 {
    if process.world.broken != Some(Broken::TokenOfMessage) || ask != Ask::Confirm {
        return token;
    }
    let message = process.with_line(|line| line.standing.as_ref()?.message);
    message.flatten().map_or(token, |message| message.token)
}

/// Whether the ticket waits for messages alone.
pub(super) fn never_looks(broken: Option<Broken>, ticket: &Ticket) -> bool {
    broken == Some(Broken::NoBackstop) && ticket.has_joined()
}
