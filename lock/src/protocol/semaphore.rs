//! The semaphore on the server: Redisson's number of free permits and its set of taken ones, the capacity, and the line of
//! those who wait.

pub(crate) mod inspect;
mod sources;

use std::sync::LazyLock;
use std::time::Duration;

use leasehold_cluster::{Channels, Script};
use leasehold_resp::Value;

use super::call::Call;
use super::parts::{add_ticket, channel, mode, ms, read_placed};
use super::permits::Permits;
use super::{Answer, Attempt, End, Ended, Protocol, Renewal, Renewed};
use crate::state::deadline::millis;
use crate::state::names::{Derived, Layout, Name};
use crate::state::primitive::Primitive;
use crate::state::waiters::Access;

/// The semaphore whose permits are leases.
pub(crate) static SEMAPHORE: Protocol = Protocol {
    primitive: Primitive::Semaphore,
    word: "GS",
    layout: &LAYOUT,
    line: LINE,
    access: Access::Counted,
    passes: false,
    keeps: false,
    is_fair: false,
    mark: "p",
    acquire,
    take_over: None,
    look: acquire,
    acquire_single_key,
    confirm,
    confirm_single_key: confirm,
    read_answer,
    read_confirm,
    renew: &RENEW,
    renew_one: &RENEW,
    renew_replicated: &RENEW_REPLICATED,
    add_renewal,
    renew_apart: None,
    read_renewals: Renewed::each,
    release,
    release_single_key,
    read_release,
    is_release,
};

static LAYOUT: Layout = Layout {
    channel: Derived::Prefixed("redisson_sc"),
    keys: &[
        Derived::Suffixed("timeout"),
        Derived::Prefixed("leasehold_cap"),
        Derived::Prefixed("leasehold_line"),
    ],
};

/// Index of the set of taken permits in the layout.
const TAKEN: usize = 0;
/// Index of the capacity.
const CAPACITY: usize = 1;
/// Index of the line.
const LINE: usize = 2;

/// The shortest time to keep the capacity.
const CAPACITY_TTL: Duration = Duration::from_secs(3600);

static ACQUIRE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::ACQUIRE));
static ACQUIRE_ALONE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::ACQUIRE_ALONE));
static CONFIRM: LazyLock<Script> = LazyLock::new(|| Script::new(sources::CONFIRM));
static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::RELEASE));
static RELEASE_ALONE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::RELEASE_ALONE));
static RENEW: LazyLock<Script> = LazyLock::new(|| Script::new(sources::RENEW));
static RENEW_REPLICATED: LazyLock<Script> =
    LazyLock::new(|| Script::new(sources::RENEW_REPLICATED));
static AVAILABLE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::AVAILABLE));
static SET_PERMITS: LazyLock<Script> = LazyLock::new(|| Script::new(sources::SET_PERMITS));

/// The permits of a semaphore, as the server has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    /// None are free if fewer than none are: then the capacity was lowered.
    pub(crate) free: u32,
    pub(crate) capacity: u32,
}

/// The parameters of a change of the capacity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resize<'a> {
    pub(crate) name: &'a Name,
    /// See [`Attempt::with_line`].
    pub(crate) with_line: bool,
    pub(crate) capacity: u32,
    pub(crate) lease: Duration,
    pub(crate) channels: Channels,
    /// Whether Redisson's waiters are told.
    pub(crate) redisson: bool,
}

/// A ticket asks with the same script again and again.
fn acquire<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    let mut call = counting(&ACQUIRE, attempt.name, attempt.with_line);
    call.arg(u64::from(attempt.permits.capacity))
        .arg(attempt.id.as_bytes())
        .arg(u64::from(attempt.permits.count))
        .arg(mode(attempt.channels))
        .arg(channel(attempt.name, attempt.redisson))
        .arg(millis(attempt.lease));
    if let Some(ticket) = attempt.ticket {
        add_ticket(&mut call, &ticket);
    }
    call
}

fn acquire_single_key<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    let mut call = Call::new(&ACQUIRE_ALONE);
    call.key(attempt.name.derived(TAKEN))
        .arg(attempt.id.as_bytes())
        .arg(u64::from(attempt.permits.count));
    call
}

fn confirm<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    let mut call = Call::new(&CONFIRM);
    call.key(attempt.name.derived(TAKEN))
        .arg(attempt.id.as_bytes())
        .arg(u64::from(attempt.permits.count))
        .arg(millis(attempt.lease));
    call
}

/// A call of a script that counts. Without the line it can be made while a slot migrates, if the other keys exist.
fn counting<'a>(script: &'static Script, name: &'a Name, with_line: bool) -> Call<'a> {
    let mut call = Call::new(script);
    call.key(name.key())
        .key(name.derived(TAKEN))
        .key(name.derived(CAPACITY));
    if with_line {
        call.key(name.derived(LINE));
    }
    call
}

pub(super) fn read_answer(reply: &Value) -> Option<Answer> {
    if let Some(number) = reply.as_int() {
        return match number {
            1 => Some(granted(None)),
            held if held < 0 => Some(Answer::Held(ms(-1 - held))),
            _ => None,
        };
    }
    match reply.as_array() {
        Some([left]) => Some(granted(Some(ms(left.as_int()?)))),
        Some([_, capacity]) => Some(Answer::CapacityDisagrees {
            server: permits(capacity.as_int()?),
        }),
        _ => read_placed(reply),
    }
}

pub(super) fn read_confirm(reply: &Value) -> Option<Answer> {
    match reply.as_int() {
        Some(0) => Some(Answer::Held(Duration::ZERO)),
        _ => read_answer(reply),
    }
}

fn granted(left: Option<Duration>) -> Answer {
    Answer::Granted {
        token: None,
        left,
        contended: false,
    }
}

/// A number of permits that others wrote may be any.
pub(super) fn permits(count: i64) -> u32 {
    u32::try_from(count.max(0)).unwrap_or(u32::MAX)
}

fn add_renewal<'a>(renewal: &Renewal<'a>, call: &mut Call<'a>) {
    call.key(renewal.name.derived(TAKEN))
        .arg(renewal.id.as_bytes())
        .arg(u64::from(renewal.permits.count))
        .arg(millis(renewal.lease));
}

fn release<'a>(end: &End<'a>) -> Call<'a> {
    let Permits {
        first,
        count,
        capacity,
    } = end.permits;
    let mut call = counting(&RELEASE, end.name, true);
    call.arg(u64::from(capacity))
        .arg(end.id.as_bytes())
        .arg(u64::from(count))
        .arg(mode(end.channels))
        .arg(channel(end.name, end.redisson.is_some()))
        .arg(u64::from(first));
    if let Some(ticket) = end.ticket {
        call.arg(ticket);
    }
    call
}

fn release_single_key<'a>(end: &End<'a>) -> Call<'a> {
    let mut call = Call::new(&RELEASE_ALONE);
    call.key(end.name.derived(TAKEN))
        .arg(end.id.as_bytes())
        .arg(u64::from(end.permits.count))
        .arg(u64::from(end.permits.first));
    call
}

pub(super) fn read_release(reply: &Value) -> Option<Ended> {
    Some(match reply.as_int()? {
        0 => Ended::AlreadyGone,
        _ => Ended::Released,
    })
}

/// Asks how many permits are free, and how many there are. A semaphore that the server does not know has `capacity`.
pub(crate) fn available(name: &Name, capacity: u32) -> Call<'_> {
    let mut call = counting(&AVAILABLE, name, false);
    call.arg(u64::from(capacity));
    call
}

/// Reads the reply of [`available`]; `None` if the script gives no such reply.
pub(crate) fn read_available(reply: &Value) -> Option<Counted> {
    let [free, capacity] = reply.as_array()? else {
        return None;
    };
    Some(Counted {
        free: permits(free.as_int()?),
        capacity: permits(capacity.as_int()?),
    })
}

/// Sets the capacity; replies 1.
pub(crate) fn set_permits<'a>(resize: &Resize<'a>) -> Call<'a> {
    let mut call = counting(&SET_PERMITS, resize.name, resize.with_line);
    call.arg(u64::from(resize.capacity))
        .arg("")
        .arg(0)
        .arg(mode(resize.channels))
        .arg(channel(resize.name, resize.redisson))
        .arg(millis((resize.lease * 10).max(CAPACITY_TTL)));
    call
}

/// Redisson's words for a release: how many permits are free, or were released.
pub(super) fn is_release(message: &[u8]) -> bool {
    !message.is_empty() && message.iter().all(u8::is_ascii_digit)
}
