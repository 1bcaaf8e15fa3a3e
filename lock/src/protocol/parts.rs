//! Arguments of calls and parts of replies that are the same for several primitives.

use std::time::Duration;

use leasehold_cluster::Channels;
use leasehold_resp::Value;

use super::call::Call;
use super::{Announced, Answer, End, InLine};
use crate::state::names::Name;
use crate::state::ticket::Placed;

/// How grants are published, for the scripts.
pub(super) const fn mode(channels: Channels) -> &'static str {
    match channels {
        Channels::Server => "P",
        Channels::Sharded => "S",
        Channels::Cluster => "C",
    }
}

/// The channel of Redisson's waiters, if they are to be told; empty otherwise.
pub(super) fn channel(name: &Name, redisson: bool) -> &str {
    if redisson { name.channel() } else { "" }
}

/// Adds the ticket of one that waits in line, and its place if it had one.
pub(super) fn add_ticket<'a>(call: &mut Call<'a>, ticket: &InLine<'a>) {
    call.arg(ticket.text);
    add_if_known(call, ticket.score);
}

/// Adds a number; an empty argument stands for one that is not known.
pub(super) fn add_if_known(call: &mut Call<'_>, number: Option<u64>) {
    match number {
        Some(number) => call.arg(number),
        None => call.arg(""),
    };
}

/// Adds how a release is announced to Redisson: nothing without Redisson.
pub(super) fn add_announced<'a>(call: &mut Call<'a>, end: &End<'a>) {
    let Some(announced) = end.redisson else {
        return;
    };
    call.arg(end.name.channel());
    add_if_known(
        call,
        match announced {
            Announced::IfFree => None,
            Announced::Open { own } => Some(own),
        },
    );
}

/// Milliseconds that a script told.
pub(super) fn ms(ms: i64) -> Duration {
    Duration::from_millis(ms.max(0).cast_unsigned())
}

/// Reads the answer to one in line, `ms ahead score time new`: for how long others have it, tickets ahead, score, time of the
/// server, and whether the ticket was missing; behind them the run of a fair lock beside Redisson, if it has one.
pub(super) fn read_placed(reply: &Value) -> Option<Answer> {
    let mut rest = reply.as_bytes()?;
    let mut next = || next_number(&mut rest);
    let (held, place, score, server_time) = (next()?, next()?, next()?, next()?);
    let (missing, run) = take_number(rest)?;
    Some(Answer::Placed(Placed {
        held: Duration::from_millis(held),
        place,
        score,
        server_time,
        missing: missing == 1,
        run: match run {
            [] => None,
            run => take_number(run.strip_prefix(b" ")?)?.0.try_into().ok(),
        },
    }))
}

/// Takes a number and the space behind it from `rest`. Each hand-over reads eight of them: byte by byte is four times as fast as
/// by words and `parse`.
pub(super) fn next_number(rest: &mut &[u8]) -> Option<u64> {
    let (number, behind) = take_number(rest)?;
    *rest = behind.strip_prefix(b" ")?;
    Some(number)
}

/// The number at the beginning of `text`, and what is behind it.
fn take_number(text: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0_u64;
    let mut digits = 0;
    while let Some(byte @ b'0'..=b'9') = text.get(digits) {
        number = number
            .checked_mul(10)?
            .checked_add(u64::from(byte - b'0'))?;
        digits += 1;
    }
    (digits > 0).then(|| (number, &text[digits..]))
}
