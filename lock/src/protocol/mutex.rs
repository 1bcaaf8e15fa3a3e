//! The mutex on the server: Redisson's hash of one holder, a counter of fencing tokens, and the line of those who wait.

mod sources;

use std::sync::LazyLock;
use std::time::Duration;

use leasehold_cluster::{Channels, Script};
use leasehold_resp::Value;

use super::call::Call;
use super::inspect::{read_counter, read_remaining, read_waiters, text};
use super::parts::{add_announced, add_ticket, channel, mode, ms, read_placed};
use super::{Answer, Attempt, End, Ended, InLine, Protocol, Renewal, Renewed};
use crate::options::Interop;
use crate::state::deadline::millis;
use crate::state::hold::Kept;
use crate::state::inspection::{Holder, Inspection};
use crate::state::names::{Derived, Layout, Name};
use crate::state::primitive::Primitive;
use crate::state::token::FencingToken;
use crate::state::waiters::Access;

/// The mutex.
pub(crate) static MUTEX: Protocol = protocol(Primitive::Mutex, true);

/// A protocol of the mutex, whose holds may be passed on within the process or not.
pub(super) const fn protocol(primitive: Primitive, passes: bool) -> Protocol {
    Protocol {
        primitive,
        word: "G",
        layout: &LAYOUT,
        line: LINE,
        access: Access::Exclusive,
        passes,
        keeps: true,
        is_fair: false,
        mark: "",
        acquire,
        take_over: Some(take_over),
        look,
        acquire_single_key,
        confirm,
        confirm_single_key,
        read_answer,
        read_confirm,
        renew: &RENEW,
        renew_one: &RENEW_ONE,
        renew_replicated: &RENEW_REPLICATED,
        add_renewal,
        renew_apart: None,
        read_renewals,
        release,
        release_single_key,
        read_release,
        is_release,
    }
}

static LAYOUT: Layout = Layout {
    channel: Derived::Prefixed("redisson_lock__channel"),
    keys: &[
        Derived::Prefixed("redisson_lock_token"),
        Derived::Prefixed("leasehold_line"),
    ],
};

/// A lock that is held, as the server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inspected {
    /// `None` if it has no expiry.
    pub(crate) remaining: Option<Duration>,
    pub(crate) holder: String,
    pub(crate) count: u64,
}

impl From<Inspected> for Holder {
    fn from(found: Inspected) -> Self {
        Self {
            id: found.holder,
            count: found.count,
            remaining: found.remaining,
            token: None,
        }
    }
}

/// Index of the counter of fencing tokens in the layout.
pub(super) const COUNTER: usize = 0;
/// The time to keep the counter that the scripts take if none is given.
pub(super) const USUAL_TTL: Duration = Duration::from_secs(600);

/// Index of the line.
const LINE: usize = 1;

static ACQUIRE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::ACQUIRE));
static ACQUIRE_ALONE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::ACQUIRE_ALONE));
static TAKE_OVER: LazyLock<Script> = LazyLock::new(|| Script::new(sources::TAKE_OVER));
static LOOK: LazyLock<Script> = LazyLock::new(|| Script::new(sources::LOOK));
static CONFIRM: LazyLock<Script> = LazyLock::new(|| Script::new(sources::CONFIRM));
static CONFIRM_ALONE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::CONFIRM_ALONE));
static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::RELEASE));
static RELEASE_ALONE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::RELEASE_ALONE));
static KEEP: LazyLock<Script> = LazyLock::new(|| Script::new(sources::KEEP));
pub(super) static RENEW: LazyLock<Script> = LazyLock::new(|| Script::new(sources::RENEW));
pub(super) static RENEW_ONE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::RENEW_ONE));
pub(super) static RENEW_REPLICATED: LazyLock<Script> =
    LazyLock::new(|| Script::new(sources::RENEW_REPLICATED));
static INSPECT: LazyLock<Script> = LazyLock::new(|| Script::new(sources::INSPECT));
static INSPECT_ALL: LazyLock<Script> = LazyLock::new(|| Script::new(sources::INSPECT_ALL));
static FORCE_UNLOCK: LazyLock<Script> = LazyLock::new(|| Script::new(sources::FORCE_UNLOCK));

fn acquire<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    let is_hold = |ticket: InLine<'_>| ticket.text == attempt.id.as_bytes();
    let is_usual = attempt.block.is_none() && attempt.counter_ttl == Some(USUAL_TTL);
    if is_usual && attempt.ticket.is_none_or(is_hold) {
        let mut call = briefly(&ACQUIRE, attempt);
        if attempt.ticket.is_some() {
            call.key(attempt.name.derived(LINE));
        }
        return call;
    }
    let mut call = asking(&ACQUIRE, attempt);
    if let Some(ticket) = attempt.ticket {
        call.key(attempt.name.derived(LINE)).arg(ticket.text);
    } else if attempt.beside_redisson {
        call.key(attempt.name.derived(LINE)).arg("");
    } else if attempt.block.is_some() {
        call.arg("");
    }
    if let Some(block) = attempt.block {
        call.arg(block);
    }
    call
}

pub(super) fn take_over<'a>(attempt: &Attempt<'a>, former: &'a str) -> Call<'a> {
    let mut call = asking(&TAKE_OVER, attempt);
    call.arg(former);
    call
}

fn look<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    look_by(&LOOK, attempt)
}

/// The same by this script, which takes the keys and arguments of that of the mutex.
pub(super) fn look_by<'a>(script: &'static Script, attempt: &Attempt<'a>) -> Call<'a> {
    let mut call = asking(script, attempt);
    if let Some(ticket) = attempt.ticket {
        call.key(attempt.name.derived(LINE));
        add_ticket(&mut call, &ticket);
        call.arg(mode(attempt.channels));
    }
    call
}

pub(super) fn acquire_single_key<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    asking_with_single_key(&ACQUIRE_ALONE, attempt)
}

pub(super) fn confirm<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    asking(&CONFIRM, attempt)
}

pub(super) fn confirm_single_key<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    asking_with_single_key(&CONFIRM_ALONE, attempt)
}

/// The keys and arguments that all scripts that give a token begin with.
fn asking<'a>(script: &'static Script, attempt: &Attempt<'a>) -> Call<'a> {
    let mut call = briefly(script, attempt);
    call.arg(attempt.counter_ttl.map_or(0, millis));
    call
}

/// The same without the time to keep the counter: for the usual one. Each argument costs the server about a hundredth of the
/// call.
fn briefly<'a>(script: &'static Script, attempt: &Attempt<'a>) -> Call<'a> {
    let mut call = Call::new(script);
    call.key(attempt.name.key())
        .key(attempt.name.derived(COUNTER))
        .arg(attempt.id.as_bytes())
        .arg(millis(attempt.lease));
    call
}

/// The call with a single key of a script that takes a hold or confirms it.
pub(super) fn asking_with_single_key<'a>(
    script: &'static Script,
    attempt: &Attempt<'a>,
) -> Call<'a> {
    let mut call = Call::new(script);
    call.key(attempt.name.key())
        .arg(attempt.id.as_bytes())
        .arg(millis(attempt.lease))
        .arg(attempt.highest_token);
    call
}

pub(super) fn read_answer(reply: &Value) -> Option<Answer> {
    if let Some(number) = reply.as_int() {
        return Some(match number {
            token @ 1.. => granted(token, None),
            0 => Answer::NoExpiry,
            held => Answer::Held(ms(-1 - held)),
        });
    }
    match reply.as_array() {
        Some([token, left]) => Some(granted(token.as_int()?, Some(ms(left.as_int()?)))),
        _ => read_placed(reply),
    }
}

pub(super) fn read_confirm(reply: &Value) -> Option<Answer> {
    match reply.as_int() {
        Some(0) => Some(Answer::Held(Duration::ZERO)),
        _ => read_answer(reply),
    }
}

fn granted(token: i64, left: Option<Duration>) -> Answer {
    Answer::Granted {
        token: Some(FencingToken::new(token.unsigned_abs())),
        left,
        contended: false,
    }
}

pub(super) fn add_renewal<'a>(renewal: &Renewal<'a>, call: &mut Call<'a>) {
    call.key(renewal.name.key())
        .arg(renewal.id.as_bytes())
        .arg(millis(renewal.lease));
}

pub(super) fn read_renewals(reply: &Value, holds: usize) -> Option<Vec<Renewed>> {
    match (reply.as_int(), holds) {
        (Some(0), 1) => Some(vec![Renewed::Gone]),
        (Some(held), _) if usize::try_from(held) == Ok(holds) => Some(vec![Renewed::Held; holds]),
        _ => Renewed::each(reply, holds),
    }
}

fn release<'a>(end: &End<'a>) -> Call<'a> {
    if let Some(kept) = end.kept {
        let channel = channel(end.name, end.redisson.is_some());
        return keep(end, kept, end.ticket, channel);
    }
    let is_usual = end.channels == Channels::Server
        && end.counter_ttl == Some(USUAL_TTL)
        && end.redisson.is_none();
    if is_usual && end.ticket.is_none() {
        return release_briefly(&RELEASE, end);
    }
    release_by(&RELEASE, end)
}

fn release_briefly<'a>(script: &'static Script, end: &End<'a>) -> Call<'a> {
    let mut call = Call::new(script);
    call.key(end.name.key())
        .key(end.name.derived(COUNTER))
        .key(end.name.derived(LINE))
        .arg(end.id.as_bytes());
    call
}

/// A release by this script, which takes the keys and arguments of that of the mutex.
pub(super) fn release_by<'a>(script: &'static Script, end: &End<'a>) -> Call<'a> {
    let mut call = release_briefly(script, end);
    call.arg(mode(end.channels))
        .arg(end.counter_ttl.map_or(0, millis));
    match end.ticket {
        Some(ticket) => call.arg(ticket),
        // Nothing is left out but at the end.
        None if end.redisson.is_some() => call.arg(""),
        None => &mut call,
    };
    add_announced(&mut call, end);
    call
}

/// Ends a hold whose lock stays taken; those who wait are told by Redisson's `channel`, if it is not empty.
pub(super) fn keep<'a>(
    end: &End<'a>,
    kept: Kept,
    ticket: Option<&'a [u8]>,
    channel: &'a str,
) -> Call<'a> {
    let mut call = Call::new(&KEEP);
    call.key(end.name.key());
    if ticket.is_some() {
        call.key(end.name.derived(LINE));
    }
    call.arg(end.id.as_bytes())
        .arg(millis(kept.left))
        .arg(u64::from(kept.may_grow))
        .arg(mode(end.channels))
        .arg(ticket.unwrap_or_default())
        .arg(channel);
    call
}

pub(super) fn release_single_key<'a>(end: &End<'a>) -> Call<'a> {
    if let Some(kept) = end.kept {
        let channel = channel(end.name, end.redisson.is_some());
        return keep(end, kept, None, channel);
    }
    release_alone(&RELEASE_ALONE, end)
}

/// The call with a single key of a script that ends a hold.
pub(super) fn release_alone<'a>(script: &'static Script, end: &End<'a>) -> Call<'a> {
    let mut call = Call::new(script);
    call.key(end.name.key())
        .arg(end.id.as_bytes())
        .arg(mode(end.channels));
    if end.redisson.is_some() {
        call.arg(end.name.channel());
    }
    call
}

pub(super) fn read_release(reply: &Value) -> Option<Ended> {
    Some(match reply.as_int()? {
        0 => Ended::AlreadyGone,
        left @ ..0 => Ended::Kept(Duration::from_millis(left.unsigned_abs())),
        _ => Ended::Released,
    })
}

/// Asks who holds the lock.
pub(crate) fn inspect(name: &Name) -> Call<'_> {
    let mut call = Call::new(&INSPECT);
    call.key(name.key());
    call
}

/// Reads the reply of [`inspect`]: `Some(None)` if the lock is free, `None` if the script gives no such reply.
pub(crate) fn read_inspect(reply: &Value) -> Option<Option<Inspected>> {
    match reply.as_array()? {
        [] => Some(None),
        [remaining, holder, count] => Some(Some(Inspected {
            remaining: read_remaining(remaining)?,
            holder: String::from_utf8_lossy(holder.as_bytes()?).into_owned(),
            count: count.as_str()?.parse().ok()?,
        })),
        _ => None,
    }
}

/// Asks who holds the lock, and who waits for it.
pub(crate) fn inspect_all(name: &Name, _: Interop) -> Call<'_> {
    let mut call = Call::new(&INSPECT_ALL);
    call.key(name.key())
        .key(name.derived(COUNTER))
        .key(name.derived(LINE));
    call
}

/// Reads the reply of [`inspect_all`]; `None` if the script gives no such reply.
pub(crate) fn read_inspect_all(reply: &Value) -> Option<Inspection> {
    read_inspection(reply.as_array()?)
}

pub(super) fn read_inspection(parts: &[Value]) -> Option<Inspection> {
    let [remaining, holders, counter, tickets, waiting] = parts else {
        return None;
    };
    let (remaining, token) = (read_remaining(remaining)?, read_counter(counter));
    let holders = holders.as_array()?.chunks_exact(2).map(|pair| {
        Some(Holder {
            id: text(&pair[0])?,
            count: text(&pair[1])?.parse().ok()?,
            remaining,
            token,
        })
    });
    Some(Inspection {
        holders: holders.collect::<Option<_>>()?,
        waiters: read_waiters(tickets)?,
        waiting: waiting.as_int()?.try_into().ok()?,
    })
}

/// Removes the lock from its holder; 1 if it was held. The parameters are those of a release, whose hold is not looked at.
pub(crate) fn force_unlock<'a>(end: &End<'a>) -> Call<'a> {
    force_by(&FORCE_UNLOCK, end)
}

/// The same with a single key, and hands the lock on to nobody.
pub(crate) fn force_unlock_single_key<'a>(end: &End<'a>) -> Call<'a> {
    force_alone(&FORCE_UNLOCK, end)
}

/// The call of a script that removes a lock from its holders, which takes the keys and arguments of that of the mutex.
pub(super) fn force_by<'a>(script: &'static Script, end: &End<'a>) -> Call<'a> {
    let mut call = force_alone(script, end);
    call.key(end.name.derived(COUNTER))
        .key(end.name.derived(LINE));
    call
}

/// The same with a single key.
pub(super) fn force_alone<'a>(script: &'static Script, end: &End<'a>) -> Call<'a> {
    let mut call = Call::new(script);
    call.key(end.name.key())
        .arg(channel(end.name, end.redisson.is_some()))
        .arg(mode(end.channels))
        .arg(end.counter_ttl.map_or(0, millis));
    call
}

/// Redisson's words for a release: `0`, and `1` on the read side of its read-write locks.
pub(super) fn is_release(message: &[u8]) -> bool {
    matches!(message, b"0" | b"1")
}
