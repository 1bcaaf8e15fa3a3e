//! The mutex on the server: Redisson's hash of one holder, with a counter of fencing tokens.

use std::sync::LazyLock;
use std::time::Duration;

use leasehold_cluster::Script;
use leasehold_resp::Value;

use super::call::Call;
use super::{Answer, Attempt, End, Ended, Heard, Look, Protocol, Renewal, Renewed};
use crate::state::deadline::millis;
use crate::state::names::{Layout, Name};
use crate::state::token::FencingToken;
use crate::state::waiters::Access;

/// The mutex.
pub(crate) static MUTEX: Protocol = Protocol {
    layout: Layout {
        channel: "redisson_lock__channel",
        keys: &["redisson_lock_token"],
    },
    access: Access::Exclusive,
    acquire,
    acquire_single_key,
    read_acquire,
    renew: &RENEW,
    add_renewal,
    read_renewals,
    release,
    read_release,
    withdraw: release,
    look,
    read_look,
    on_message,
};

/// A lock that is held, as the server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inspected {
    /// `None` if it has no expiry.
    pub(crate) remaining: Option<Duration>,
    pub(crate) holder: String,
    pub(crate) count: u64,
}

/// Index of the counter of fencing tokens in the layout.
const COUNTER: usize = 0;

static ACQUIRE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("mutex/acquire.lua")));
static ACQUIRE_ALONE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("mutex/acquire_alone.lua")));
static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("mutex/release.lua")));
static RENEW: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("mutex/renew.lua")));
static INSPECT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("mutex/inspect.lua")));
static LOOK: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("mutex/look.lua")));
static FORCE_UNLOCK: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("mutex/force_unlock.lua")));

fn acquire<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    let mut call = Call::new(&ACQUIRE);
    call.key(attempt.name.key())
        .key(attempt.name.derived(COUNTER))
        .arg(attempt.id.as_bytes())
        .arg(millis(attempt.lease))
        .arg(attempt.counter_ttl.map_or(0, millis));
    call
}

fn acquire_single_key<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    let mut call = Call::new(&ACQUIRE_ALONE);
    call.key(attempt.name.key())
        .arg(attempt.id.as_bytes())
        .arg(millis(attempt.lease))
        .arg(attempt.highest_token);
    call
}

fn read_acquire(reply: &Value) -> Option<Answer> {
    Some(match reply.as_int()? {
        token @ 1.. => Answer::Granted {
            token: Some(FencingToken::new(token.cast_unsigned())),
        },
        0 => Answer::NoExpiry,
        held => Answer::Held(Duration::from_millis((-1 - held).cast_unsigned())),
    })
}

fn add_renewal<'a>(renewal: &Renewal<'a>, call: &mut Call<'a>) {
    call.key(renewal.name.key())
        .arg(renewal.id.as_bytes())
        .arg(millis(renewal.lease));
}

fn read_renewals(reply: &Value) -> Option<Vec<Renewed>> {
    let one = |held: &Value| match held.as_int() {
        Some(1) => Renewed::Held,
        Some(0) => Renewed::Gone,
        _ => Renewed::Unclear,
    };
    Some(reply.as_array()?.iter().map(one).collect())
}

fn release<'a>(end: &End<'a>) -> Call<'a> {
    let mut call = Call::new(&RELEASE);
    call.key(end.name.key())
        .arg(end.id.as_bytes())
        .arg(end.name.channel())
        .arg(end.publish);
    call
}

fn read_release(reply: &Value) -> Option<Ended> {
    Some(match reply.as_int()? {
        released @ 1.. => Ended::Released {
            receivers: (released - 1).cast_unsigned(),
        },
        _ => Ended::AlreadyGone,
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
            remaining: match remaining.as_int()? {
                -1 => None,
                ms => Some(Duration::from_millis(ms.max(0).cast_unsigned())),
            },
            holder: String::from_utf8_lossy(holder.as_bytes()?).into_owned(),
            count: count.as_str()?.parse().ok()?,
        })),
        _ => None,
    }
}

fn look<'a>(look: &Look<'a>) -> Call<'a> {
    let mut call = Call::new(&LOOK);
    call.key(look.name.key())
        .key(look.name.derived(COUNTER))
        .arg(look.token);
    call
}

fn read_look(reply: &Value) -> bool {
    reply.as_int() == Some(1)
}

/// Removes the lock from its holder; 1 if it was held.
pub(crate) fn force_unlock<'a>(name: &'a Name, publish: &'static str) -> Call<'a> {
    let mut call = Call::new(&FORCE_UNLOCK);
    call.key(name.key()).arg(name.channel()).arg(publish);
    call
}

/// Redisson's words for a release: `0`, and `1` on the read side of its read-write locks.
fn on_message(message: &[u8]) -> Heard {
    match message {
        b"0" | b"1" => Heard::Look,
        _ => Heard::Ignore,
    }
}
