//! The semaphore without owners on the server: Redisson's number of free permits, reservations of grants, what became of single
//! requests, and the line of those who wait.

mod sources;

use std::sync::LazyLock;
use std::time::Duration;

use leasehold_cluster::{Channels, Script};
use leasehold_resp::Value;

use super::call::Call;
use super::parts::{add_if_known, add_ticket, channel, mode};
use super::semaphore::{is_release, permits, read_answer, read_confirm, read_release};
use super::{Attempt, End, Protocol, Renewal, Renewed};
use crate::state::deadline::millis;
use crate::state::id::HoldId;
use crate::state::names::{Derived, Layout, Name};
use crate::state::primitive::Primitive;
use crate::state::waiters::Access;

/// The semaphore without owners.
pub(crate) static COUNTING: Protocol = Protocol {
    primitive: Primitive::CountingSemaphore,
    word: "GC",
    layout: &LAYOUT,
    line: LINE,
    access: Access::Ownerless,
    passes: false,
    keeps: false,
    is_fair: false,
    mark: "p",
    acquire,
    take_over: None,
    look: acquire,
    acquire_single_key,
    confirm,
    confirm_single_key: acquire_single_key,
    read_answer,
    read_confirm,
    // Permits without a holder are not renewed; if they were, it would be by saying once more that they were taken.
    renew: &CONFIRM,
    renew_one: &CONFIRM,
    renew_replicated: &CONFIRM,
    add_renewal,
    renew_apart: None,
    read_renewals: Renewed::each,
    release: undo,
    release_single_key: undo_alone,
    read_release,
    is_release,
};

/// For how long a request may be repeated.
pub(crate) const REMEMBERED: Duration = Duration::from_secs(60);

static LAYOUT: Layout = Layout {
    channel: Derived::Prefixed("redisson_sc"),
    keys: &[
        Derived::Prefixed("leasehold_res"),
        Derived::Prefixed("leasehold_op"),
        Derived::Prefixed("leasehold_line"),
    ],
};

/// Index of the reservations in the layout.
const RESERVED: usize = 0;
/// Index of what the keys of single requests begin with.
const REQUEST: usize = 1;
/// Index of the line.
const LINE: usize = 2;

static ACQUIRE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::ACQUIRE));
static LOOK_ALONE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::LOOK_ALONE));
static CONFIRM: LazyLock<Script> = LazyLock::new(|| Script::new(sources::CONFIRM));
static UNDO: LazyLock<Script> = LazyLock::new(|| Script::new(sources::UNDO));
static UNDO_ALONE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::UNDO_ALONE));
static GIVE_BACK: LazyLock<Script> = LazyLock::new(|| Script::new(sources::GIVE_BACK));
static SET_PERMITS: LazyLock<Script> = LazyLock::new(|| Script::new(sources::SET_PERMITS));
static AVAILABLE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::AVAILABLE));

/// The parameters of a request that changes the number of free permits, whoever took them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change<'a> {
    pub(crate) name: &'a Name,
    /// An id that no other request has.
    pub(crate) id: &'a HoldId,
    pub(crate) permits: u32,
    pub(crate) channels: Channels,
    /// Whether Redisson's waiters are told.
    pub(crate) redisson: bool,
}

/// A ticket asks with the same script again and again.
fn acquire<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    let change = Change {
        name: attempt.name,
        id: attempt.id,
        permits: attempt.permits.count,
        channels: attempt.channels,
        redisson: attempt.redisson,
    };
    let mut call = counting(&ACQUIRE, Some(attempt.permits.capacity), &change);
    call.arg(millis(attempt.lease));
    if let Some(ticket) = attempt.ticket {
        add_ticket(&mut call, &ticket);
    }
    call
}

fn acquire_single_key<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    let mut call = Call::new(&LOOK_ALONE);
    call.made_key(request_key(attempt.name, attempt.id))
        .arg(u64::from(attempt.permits.count))
        .arg(millis(attempt.lease));
    call
}

fn confirm<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    let mut call = Call::new(&CONFIRM);
    call.key(attempt.name.derived(RESERVED))
        .made_key(request_key(attempt.name, attempt.id))
        .arg(attempt.id.as_bytes())
        .arg(u64::from(attempt.permits.count))
        .arg(millis(attempt.lease));
    call
}

fn add_renewal<'a>(renewal: &Renewal<'a>, call: &mut Call<'a>) {
    call.key(renewal.name.derived(RESERVED))
        .made_key(request_key(renewal.name, renewal.id))
        .arg(renewal.id.as_bytes())
        .arg(u64::from(renewal.permits.count))
        .arg(millis(renewal.lease));
}

fn undo<'a>(end: &End<'a>) -> Call<'a> {
    let capacity = Some(end.permits.capacity).filter(|capacity| *capacity > 0);
    let change = Change {
        name: end.name,
        id: end.id,
        permits: end.permits.count,
        channels: end.channels,
        redisson: end.redisson.is_some(),
    };
    let mut call = counting(&UNDO, capacity, &change);
    if let Some(ticket) = end.ticket {
        call.arg(ticket);
    }
    call
}

fn undo_alone<'a>(end: &End<'a>) -> Call<'a> {
    let mut call = Call::new(&UNDO_ALONE);
    call.key(end.name.key())
        .made_key(request_key(end.name, end.id));
    call
}

/// A call of a script that counts. A semaphore that nobody used yet has `unused` free permits.
fn counting<'a>(script: &'static Script, unused: Option<u32>, change: &Change<'a>) -> Call<'a> {
    let name = change.name;
    let mut call = Call::new(script);
    call.key(name.key())
        .key(name.derived(RESERVED))
        .made_key(request_key(name, change.id))
        .key(name.derived(LINE));
    add_if_known(&mut call, unused.map(u64::from));
    call.arg(change.id.as_bytes())
        .arg(u64::from(change.permits))
        .arg(mode(change.channels))
        .arg(channel(name, change.redisson));
    call
}

/// The key of what became of one request.
fn request_key(name: &Name, id: &HoldId) -> Vec<u8> {
    [name.derived(REQUEST).as_bytes(), b":", id.as_bytes()].concat()
}

/// Gives permits back; replies how many are free.
pub(crate) fn give_back<'a>(change: &Change<'a>) -> Call<'a> {
    counting(&GIVE_BACK, None, change)
}

/// Sets how many permits are free; `only_unused` if nobody used the semaphore yet. Replies 1 if that was done.
pub(crate) fn set_permits<'a>(change: &Change<'a>, only_unused: bool) -> Call<'a> {
    let mut call = counting(&SET_PERMITS, None, change);
    call.arg(u64::from(only_unused));
    call
}

/// Asks how many permits are free, of a semaphore that nobody used yet `unused`.
pub(crate) fn available(name: &Name, unused: u32) -> Call<'_> {
    let mut call = Call::new(&AVAILABLE);
    call.key(name.key())
        .key(name.derived(RESERVED))
        .arg(u64::from(unused));
    call
}

/// Reads the reply of [`available`]; `None` if the script gives no such reply.
pub(crate) fn read_available(reply: &Value) -> Option<u32> {
    Some(permits(reply.as_int()?))
}
