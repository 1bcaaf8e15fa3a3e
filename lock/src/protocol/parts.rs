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

/// Reads the answer to one in line: for how long others have it, tickets ahead, score, time of the server, and whether the
/// ticket was missing.
pub(super) fn read_placed(parts: &[Value], run: Option<u8>) -> Option<Answer> {
    let [held, place, score, time, missing] = parts else {
        return None;
    };
    Some(Answer::Placed(Placed {
        held: ms(held.as_int()?),
        place: place.as_int()?.try_into().ok()?,
        score: score.as_int()?.try_into().ok()?,
        server_time: time.as_int()?.try_into().ok()?,
        missing: missing.as_int()? == 1,
        run,
    }))
}
