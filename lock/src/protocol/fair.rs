//! The fair mutex on the server: the mutex's keys, and with Redisson the queue and the times of its fair locks.
//!
//! Every waiter has a ticket, and a lock that somebody waits for is taken by nobody else.

mod sources;

use std::sync::LazyLock;
use std::time::SystemTime;

use leasehold_cluster::{Channels, Script};
use leasehold_resp::Value;

use super::call::Call;
use super::inspect::{read_waiter, text};
use super::mutex::{self, USUAL_TTL};
use super::parts::{add_if_known, add_ticket, mode};
use super::{Attempt, End, Protocol};
use crate::options::Interop;
use crate::state::deadline::millis;
use crate::state::inspection::{Inspection, Waiter};
use crate::state::names::{Derived, Layout, Name};
use crate::state::primitive::Primitive;
use crate::state::waiters::Access;

/// The fair mutex.
pub(crate) static FAIR: Protocol = Protocol {
    primitive: Primitive::FairMutex,
    word: "GF",
    layout: &LAYOUT,
    line: LINE,
    access: Access::Exclusive,
    passes: false,
    keeps: true,
    is_fair: true,
    mark: "",
    acquire: ask,
    look: ask,
    take_over: Some(mutex::take_over),
    acquire_single_key: mutex::acquire_single_key,
    confirm: mutex::confirm,
    confirm_single_key: mutex::confirm_single_key,
    read_answer: mutex::read_answer,
    read_confirm: mutex::read_confirm,
    renew: &mutex::RENEW,
    renew_one: &mutex::RENEW_ONE,
    renew_replicated: &mutex::RENEW_REPLICATED,
    add_renewal: mutex::add_renewal,
    renew_apart: None,
    read_renewals: mutex::read_renewals,
    release,
    release_single_key: mutex::release_single_key,
    read_release: mutex::read_release,
    is_release: mutex::is_release,
};

static LAYOUT: Layout = Layout {
    channel: Derived::Prefixed("redisson_lock__channel"),
    keys: &[
        Derived::Prefixed("redisson_lock_token"),
        Derived::Prefixed("leasehold_line"),
        Derived::Prefixed("redisson_lock_queue"),
        Derived::Prefixed("redisson_lock_timeout"),
    ],
};

/// Index of the counter of fencing tokens in the layout.
const COUNTER: usize = 0;
/// Index of the line.
const LINE: usize = 1;
/// Index of Redisson's queue.
const QUEUE: usize = 2;
/// Index of the times when it removes its holders from there.
const TIMES: usize = 3;

/// The prefix of the markers of runs in Redisson's queue.
const MARKER: &str = "leasehold:";
/// How many of those who wait are told.
const SHOWN: usize = 100;

static ASK: LazyLock<Script> = LazyLock::new(|| Script::new(sources::ASK));
static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::RELEASE));
static INSPECT: LazyLock<Script> = LazyLock::new(|| Script::new(sources::INSPECT));
static FORCE_UNLOCK: LazyLock<Script> = LazyLock::new(|| Script::new(sources::FORCE_UNLOCK));

fn ask<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    let mut call = Call::new(&ASK);
    // A user without rights to Redisson's queue is refused, and does not pass those in it.
    add_keys(&mut call, attempt.name, attempt.counter_ttl.is_none());
    call.arg(attempt.id.as_bytes()).arg(millis(attempt.lease));
    if attempt.ticket.is_none() && attempt.counter_ttl == Some(USUAL_TTL) {
        return call;
    }
    call.arg(attempt.counter_ttl.map_or(0, millis));
    if let Some(ticket) = attempt.ticket {
        add_ticket(&mut call, &ticket);
        call.arg(mode(ticket.channels));
        add_if_known(&mut call, ticket.run.map(u64::from));
    }
    call
}

fn release<'a>(end: &End<'a>) -> Call<'a> {
    if let Some(kept) = end.kept {
        // Redisson's fair waiters listen on channels of their own, and look again when the lease that they know ends.
        return mutex::keep(end, kept, end.ticket, "");
    }
    let mut call = Call::new(&RELEASE);
    add_keys(&mut call, end.name, end.redisson.is_some());
    call.arg(end.id.as_bytes());
    let is_usual = end.channels == Channels::Server && end.counter_ttl == Some(USUAL_TTL);
    if is_usual && end.ticket.is_none() {
        return call;
    }
    call.arg(mode(end.channels))
        .arg(end.counter_ttl.map_or(0, millis));
    if let Some(ticket) = end.ticket {
        call.arg(ticket);
    }
    call
}

/// Removes the lock from its holder.
pub(crate) fn force_unlock<'a>(end: &End<'a>) -> Call<'a> {
    let mut call = Call::new(&FORCE_UNLOCK);
    add_keys(&mut call, end.name, end.redisson.is_some());
    // The grant step tells Redisson, and nobody else listens.
    call.arg("")
        .arg(mode(end.channels))
        .arg(end.counter_ttl.map_or(0, millis));
    call
}

/// Asks who holds the lock, and who waits for it, Redisson's clients too.
pub(crate) fn inspect(name: &Name, interop: Interop) -> Call<'_> {
    if interop == Interop::Off {
        return mutex::inspect_all(name, interop);
    }
    let mut call = Call::new(&INSPECT);
    call.key(name.key())
        .key(name.derived(COUNTER))
        .key(name.derived(LINE))
        .key(name.derived(QUEUE));
    call
}

/// Reads the reply of [`inspect`]; `None` if the script gives no such reply.
pub(crate) fn read_inspect(reply: &Value) -> Option<Inspection> {
    let [holder @ .., queue] = reply.as_array()? else {
        return None;
    };
    let [_, _, _, tickets, _] = holder else {
        return mutex::read_inspect_all(reply);
    };
    let queue: Option<Vec<_>> = queue.as_array()?.iter().map(text).collect();
    let tickets = tickets.as_array()?;
    Some(Inspection {
        waiters: in_order(queue?, tickets)?,
        ..mutex::read_inspection(holder)?
    })
}

/// Redisson's waiters in their order, and each run of tickets where its marker stands. A run without one comes first.
fn in_order(queue: Vec<String>, tickets: &[Value]) -> Option<Vec<Waiter>> {
    let mut runs: Vec<(String, Vec<Waiter>)> = vec![(String::new(), Vec::new())];
    for pair in tickets.chunks_exact(2) {
        match text(&pair[0])?.strip_prefix('#') {
            Some(run) => runs.push((format!("{MARKER}{run}"), Vec::new())),
            None => runs.last_mut()?.1.extend(read_waiter(pair)?),
        }
    }
    let mut waiters = Vec::new();
    for (marker, run) in &mut runs {
        if !queue.contains(marker) {
            waiters.append(run);
        }
    }
    for id in queue {
        match runs.iter_mut().find(|(marker, _)| *marker == id) {
            Some((_, run)) => waiters.append(run),
            None if id.starts_with(MARKER) => {}
            None => waiters.push(Waiter {
                since: waiters.last().map_or(SystemTime::UNIX_EPOCH, Waiter::since),
                permits: 0,
                id,
            }),
        }
    }
    waiters.truncate(SHOWN);
    Some(waiters)
}

fn add_keys<'a>(call: &mut Call<'a>, name: &'a Name, beside_redisson: bool) {
    call.key(name.key())
        .key(name.derived(COUNTER))
        .key(name.derived(LINE));
    if beside_redisson {
        call.key(name.derived(QUEUE)).key(name.derived(TIMES));
    }
}

/// The channel on which Redisson's clients are told that the first ticket of this run is next.
pub(crate) fn run_channel(name: &Name, run: u8) -> String {
    format!("{}:{MARKER}{run}", name.channel())
}
