//! Elections on the server: the mutex whose holder leads, and beside it an entry by which the leader is known.

mod sources;

use std::sync::LazyLock;
use std::time::Duration;

use leasehold_cluster::{Channels, Effect, Script};
use leasehold_resp::Value;

use super::call::Call;
use super::inspect::text;
use super::parts::mode;
use super::{Attempt, End, Protocol, Renewal, mutex};
use crate::state::deadline::millis;
use crate::state::election::{Leader, View};
use crate::state::id::HoldId;
use crate::state::names::{Derived, Layout, Name};
use crate::state::primitive::Primitive;
use crate::state::token::FencingToken;

/// The lock of an election. It is not passed on within the process, so each leader has a hold of its own.
pub(crate) static ELECTION: Protocol = Protocol {
    word: "GE",
    layout: &LAYOUT,
    passes: false,
    keeps: false,
    take_over: None,
    look,
    renew: &RENEW,
    renew_one: &RENEW,
    renew_replicated: &RENEW,
    add_renewal,
    renew_apart: Some([renew_lock, keep_entry]),
    release,
    ..mutex::protocol(Primitive::Election, false)
};

static LAYOUT: Layout = Layout {
    channel: Derived::Prefixed("redisson_lock__channel"),
    keys: &[
        Derived::Prefixed("redisson_lock_token"),
        Derived::Prefixed("leasehold_line"),
        Derived::Prefixed("leasehold_leader"),
    ],
};

/// Index of the leader's entry in the layout, behind the keys of the mutex. It is the name of the channel of observers, too.
const ENTRY: usize = 2;
/// The entry is kept for so much longer than the lock.
const ENTRY_OUTLASTS: Duration = Duration::from_secs(10);

static LOOK: LazyLock<Script> = LazyLock::new(|| Script::new(sources::LOOK));
static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::RELEASE));
static ANNOUNCE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::ANNOUNCE));
static LEADER: LazyLock<Script> = LazyLock::new(|| Script::new(sources::LEADER));
static RENEW: LazyLock<Script> = LazyLock::new(|| Script::new(sources::RENEW));
static KEEP_ENTRY: LazyLock<Script> = LazyLock::new(|| Script::new(sources::KEEP_ENTRY));

/// The parameters of an announcement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Announcement<'a> {
    pub(crate) name: &'a Name,
    pub(crate) id: &'a HoldId,
    /// Of those under this hold.
    pub(crate) number: u64,
    pub(crate) token: FencingToken,
    pub(crate) channels: Channels,
    pub(crate) value: Option<&'a str>,
}

/// The channel on which observers hear of changes.
pub(crate) fn channel(name: &Name) -> &str {
    name.derived(ENTRY)
}

fn look<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    mutex::look_by(&LOOK, attempt)
}

fn release<'a>(end: &End<'a>) -> Call<'a> {
    let mut call = mutex::release_by(&RELEASE, end);
    call.key(end.name.derived(ENTRY));
    call
}

fn add_renewal<'a>(renewal: &Renewal<'a>, call: &mut Call<'a>) {
    call.key(renewal.name.key())
        .key(renewal.name.derived(ENTRY))
        .arg(renewal.id.as_bytes())
        .arg(millis(renewal.lease));
}

fn renew_lock<'a>(renewal: &Renewal<'a>) -> Call<'a> {
    let mut call = Call::new(&mutex::RENEW_ONE);
    mutex::add_renewal(renewal, &mut call);
    call
}

fn keep_entry<'a>(renewal: &Renewal<'a>) -> Call<'a> {
    let mut call = Call::new(&KEEP_ENTRY);
    call.key(renewal.name.derived(ENTRY))
        .arg(renewal.id.as_bytes())
        .arg(millis(renewal.lease + ENTRY_OUTLASTS));
    call
}

/// Announces a leader.
pub(crate) fn announce<'a>(announcement: &Announcement<'a>) -> Call<'a> {
    let name = announcement.name;
    let mut call = Call::new(&ANNOUNCE);
    call.key(name.key())
        .key(name.derived(ENTRY))
        .arg(announcement.id.as_bytes())
        .arg(announcement.number)
        .arg(announcement.token.as_u64())
        .arg(mode(announcement.channels));
    if let Some(value) = announcement.value {
        call.arg(value);
    }
    call
}

/// Reads the reply of [`announce`]: whether it still leads; `None` if the script gives no such reply.
pub(crate) fn read_announce(reply: &Value) -> Option<bool> {
    match reply.as_int()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// The effect of an announcement with this reply.
pub(crate) fn effect(reply: &Value) -> Effect {
    Effect::of_write(reply.as_int() == Some(1))
}

/// Asks who leads.
pub(crate) fn leader(name: &Name) -> Call<'_> {
    let mut call = Call::new(&LEADER);
    call.key(name.key()).key(name.derived(ENTRY));
    call
}

/// Reads the reply of [`leader`]; `None` if the script gives no such reply.
pub(crate) fn read_leader(reply: &Value) -> Option<View> {
    let (ms, entry) = match reply.as_array()? {
        [] => return Some(View::Nobody),
        [ms, entry @ ..] => (ms, entry),
    };
    let left = match ms.as_int()? {
        -1 => Duration::MAX,
        ms => Duration::from_millis(ms.try_into().ok()?),
    };
    let (id, token, value) = match entry {
        [] => return Some(View::Unannounced(left)),
        [id, token] => (id, token, None),
        [id, token, value] => (id, token, Some(text(value)?.into())),
        _ => return None,
    };
    let leader = Leader {
        id: text(id)?.into(),
        token: FencingToken::new(text(token)?.parse().ok()?),
        value,
    };
    Some(View::Leads(left, leader))
}
