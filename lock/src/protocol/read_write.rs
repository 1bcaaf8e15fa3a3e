//! The read-write lock on the server: Redisson's hash of many readers or one writer, with a timeout key for each reader, a counter
//! of fencing tokens, and one line of those who wait to read or to write.
//!
//! Reading and writing are two protocols on the same keys. A hold is given back by either: one that was asked for while its slot
//! migrated writes, whatever it was asked for.

mod sources;

use std::sync::LazyLock;
use std::time::Duration;

use leasehold_cluster::Script;
use leasehold_resp::Value;

use super::call::Call;
use super::inspect::{read_counter, read_remaining, read_waiters, text};
use super::mutex::{
    self, asking_with_single_key, force_alone, force_by, read_release, release_alone,
};
use super::parts::{add_announced, add_ticket, channel, mode, ms};
use super::{Answer, Attempt, End, Protocol, Renewal, Renewed};
use crate::state::deadline::millis;
use crate::state::id::HoldId;
use crate::state::inspection::{Holder, Inspection};
use crate::state::names::{Derived, Layout, Name};
use crate::state::primitive::Primitive;
use crate::state::token::FencingToken;
use crate::state::waiters::Access;

/// Holding it together with other readers.
pub(crate) static READ: Protocol = Protocol {
    primitive: Primitive::Read,
    word: WORD,
    layout: &LAYOUT,
    line: LINE,
    access: Access::Shared,
    passes: false,
    keeps: false,
    is_fair: false,
    mark: "r",
    acquire: ask_read,
    take_over: Some(take_over_read),
    look: ask_read,
    acquire_single_key: ask_alone,
    confirm: confirm_read,
    confirm_single_key: confirm_alone,
    read_answer,
    read_confirm: read_conversion,
    renew: &RENEW_READ,
    renew_one: &RENEW_READ,
    renew_replicated: &RENEW_READ_REPLICATED,
    add_renewal: add_read_renewal,
    renew_apart: Some([renew_field, renew_timeout]),
    read_renewals: Renewed::each,
    release: release_read,
    release_single_key,
    read_release,
    is_release,
};

/// Holding it alone.
pub(crate) static WRITE: Protocol = Protocol {
    primitive: Primitive::Write,
    access: Access::Exclusive,
    mark: "w",
    acquire: ask_write,
    take_over: Some(take_over_write),
    look: ask_write,
    confirm: confirm_write,
    renew: &RENEW_WRITE,
    renew_one: &RENEW_WRITE,
    renew_replicated: &RENEW_WRITE_REPLICATED,
    add_renewal: mutex::add_renewal,
    renew_apart: None,
    release: release_write,
    ..READ
};

const WORD: &str = "GR";

static LAYOUT: Layout = Layout {
    channel: Derived::Prefixed("redisson_rwlock"),
    keys: &[
        Derived::Prefixed("redisson_lock_token"),
        Derived::Prefixed("leasehold_line"),
        Derived::Suffixed(""),
    ],
};

/// Index of the counter of fencing tokens in the layout.
const COUNTER: usize = 0;
const LINE: usize = 1;
/// Index of what all timeout keys begin with.
const TIMEOUTS: usize = 2;

static ASK_READ: LazyLock<Script> = LazyLock::new(|| Script::new(sources::ASK_READ));
static ASK_WRITE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::ASK_WRITE));
static ASK_ALONE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::ASK_ALONE));
static CONFIRM: LazyLock<Script> = LazyLock::new(|| Script::new(sources::CONFIRM));
static CONFIRM_ALONE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::CONFIRM_ALONE));
static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::RELEASE));
static RELEASE_ALONE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::RELEASE_ALONE));
static RENEW_READ: LazyLock<Script> = LazyLock::new(|| Script::new(sources::RENEW_READ));
static RENEW_READ_REPLICATED: LazyLock<Script> =
    LazyLock::new(|| Script::new(sources::RENEW_READ_REPLICATED));
static RENEW_WRITE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::RENEW_WRITE));
static RENEW_WRITE_REPLICATED: LazyLock<Script> =
    LazyLock::new(|| Script::new(sources::RENEW_WRITE_REPLICATED));
static RENEW_FIELD: LazyLock<Script> = LazyLock::new(|| Script::new(sources::RENEW_FIELD));
static RENEW_TIMEOUT: LazyLock<Script> = LazyLock::new(|| Script::new(sources::RENEW_TIMEOUT));
static DOWNGRADE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::DOWNGRADE));
static UPGRADE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::UPGRADE));
static TAKE_OVER: LazyLock<Script> = LazyLock::new(|| Script::new(sources::TAKE_OVER));
static INSPECT: LazyLock<Script> = LazyLock::new(|| Script::new(sources::INSPECT));
static REMAINING: LazyLock<Script> = LazyLock::new(|| Script::new(sources::REMAINING));
static FORCE_UNLOCK: LazyLock<Script> = LazyLock::new(|| Script::new(sources::FORCE_UNLOCK));

fn ask_read<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    ask(&ASK_READ, attempt, Some(attempt.id))
}

fn ask_write<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    ask(&ASK_WRITE, attempt, None)
}

fn ask<'a>(script: &'static Script, attempt: &Attempt<'a>, reader: Option<&HoldId>) -> Call<'a> {
    let mut call = asking(script, attempt, reader);
    call.arg(mode(attempt.channels))
        .arg(channel(attempt.name, attempt.redisson));
    if let Some(ticket) = attempt.ticket {
        add_ticket(&mut call, &ticket);
    }
    call
}

/// Turns a hold that writes into one that reads.
pub(crate) fn downgrade<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    ask(&DOWNGRADE, attempt, Some(attempt.id))
}

/// Turns a hold that reads into one that writes, if nobody else reads.
pub(crate) fn upgrade<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    ask(&UPGRADE, attempt, Some(attempt.id))
}

fn take_over_read<'a>(attempt: &Attempt<'a>, former: &'a str) -> Call<'a> {
    let mut call = asking(&TAKE_OVER, attempt, Some(attempt.id));
    call.arg(former);
    call
}

fn take_over_write<'a>(attempt: &Attempt<'a>, former: &'a str) -> Call<'a> {
    let mut call = asking(&TAKE_OVER, attempt, None);
    call.arg(former);
    call
}

fn confirm_read<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    asking(&CONFIRM, attempt, Some(attempt.id))
}

fn confirm_write<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    asking(&CONFIRM, attempt, None)
}

/// The keys and arguments that all scripts that give a token begin with.
fn asking<'a>(script: &'static Script, attempt: &Attempt<'a>, reader: Option<&HoldId>) -> Call<'a> {
    let mut call = Call::new(script);
    call.key(attempt.name.key())
        .key(attempt.name.derived(COUNTER))
        .key(attempt.name.derived(LINE));
    if let Some(id) = reader {
        call.made_key(timeout_key(attempt.name, id));
    }
    call.arg(attempt.id.as_bytes())
        .arg(millis(attempt.lease))
        .arg(attempt.counter_ttl.map_or(0, millis));
    call
}

/// The key whose expiry is the end of this reader's lease. Ours read once each.
fn timeout_key(name: &Name, id: &HoldId) -> Vec<u8> {
    let parts = [
        name.derived(TIMEOUTS).as_bytes(),
        id.as_bytes(),
        &b":rwlock_timeout:1"[..],
    ];
    parts.concat()
}

fn ask_alone<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    asking_with_single_key(&ASK_ALONE, attempt)
}

fn confirm_alone<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    asking_with_single_key(&CONFIRM_ALONE, attempt)
}

pub(crate) fn read_answer(reply: &Value) -> Option<Answer> {
    match reply.as_array() {
        Some([token, left, waited_for]) => Some(Answer::Granted {
            token: Some(FencingToken::new(token.as_int()?.unsigned_abs())),
            left: Some(ms(left.as_int()?)),
            contended: waited_for.as_int()? == 1,
        }),
        _ => mutex::read_answer(reply),
    }
}

/// Reads the reply of a confirmation, a downgrade or an upgrade. A hold that is gone is `Held` for no time.
pub(crate) fn read_conversion(reply: &Value) -> Option<Answer> {
    match reply.as_int() {
        Some(0) => Some(Answer::Held(Duration::ZERO)),
        _ => read_answer(reply),
    }
}

fn add_read_renewal<'a>(renewal: &Renewal<'a>, call: &mut Call<'a>) {
    call.key(renewal.name.key())
        .made_key(timeout_key(renewal.name, renewal.id))
        .arg(renewal.id.as_bytes())
        .arg(millis(renewal.lease));
}

/// Renews the field of a reader, and with it the expiry of the lock.
fn renew_field<'a>(renewal: &Renewal<'a>) -> Call<'a> {
    let mut call = Call::new(&RENEW_FIELD);
    mutex::add_renewal(renewal, &mut call);
    call
}

/// Renews the timeout key of a reader whose field is there.
fn renew_timeout<'a>(renewal: &Renewal<'a>) -> Call<'a> {
    let mut call = Call::new(&RENEW_TIMEOUT);
    call.made_key(timeout_key(renewal.name, renewal.id))
        .arg(millis(renewal.lease));
    call
}

fn release_read<'a>(end: &End<'a>) -> Call<'a> {
    release(end, Some(end.id))
}

fn release_write<'a>(end: &End<'a>) -> Call<'a> {
    release(end, None)
}

fn release<'a>(end: &End<'a>, reader: Option<&HoldId>) -> Call<'a> {
    let mut call = Call::new(&RELEASE);
    call.key(end.name.key())
        .key(end.name.derived(COUNTER))
        .key(end.name.derived(LINE));
    if let Some(id) = reader {
        call.made_key(timeout_key(end.name, id));
    }
    call.arg(end.id.as_bytes())
        .arg(mode(end.channels))
        .arg(end.counter_ttl.map_or(0, millis))
        .arg(end.ticket.unwrap_or_default());
    add_announced(&mut call, end);
    call
}

fn release_single_key<'a>(end: &End<'a>) -> Call<'a> {
    release_alone(&RELEASE_ALONE, end)
}

/// Asks for how long the lock stays taken.
pub(crate) fn remaining(name: &Name) -> Call<'_> {
    let mut call = Call::new(&REMAINING);
    call.key(name.key());
    call
}

/// Asks who holds the lock, and who waits for it.
pub(crate) fn inspect(name: &Name) -> Call<'_> {
    let mut call = inspect_single_key(name);
    call.key(name.derived(COUNTER)).key(name.derived(LINE));
    call
}

/// Asks who holds the lock, with a single key.
pub(crate) fn inspect_single_key(name: &Name) -> Call<'_> {
    let mut call = Call::new(&INSPECT);
    call.key(name.key());
    call
}

/// Reads the reply of either; `None` if the script gives no such reply.
pub(crate) fn read_inspect(reply: &Value) -> Option<Inspection> {
    let [_, holders, counter, tickets, waiting] = reply.as_array()? else {
        return None;
    };
    let token = read_counter(counter);
    let mut inspection = Inspection {
        holders: Vec::new(),
        waiters: read_waiters(tickets)?,
        waiting: waiting.as_int()?.try_into().ok()?,
    };
    for holder in holders.as_array()?.chunks_exact(3) {
        let (field, left) = (text(&holder[0])?, holder[2].as_int()?);
        // A reader that is gone, and was not noticed yet.
        if left == -2 {
            continue;
        }
        let writer = field.strip_suffix(":write");
        inspection.holders.push(Holder {
            id: writer.unwrap_or(&field).to_owned(),
            count: text(&holder[1])?.parse().ok()?,
            remaining: read_remaining(&holder[2])?,
            // That of a reader is not told by the server: the counter may have grown since.
            token: token.filter(|_| writer.is_some()),
        });
    }
    Some(inspection)
}

/// Removes the lock from all of its holders; 1 if it was held. The parameters are those of a release, whose hold is not looked
/// at.
pub(crate) fn force_unlock<'a>(end: &End<'a>) -> Call<'a> {
    force_by(&FORCE_UNLOCK, end)
}

/// The same with a single key, and leaves the lock to nobody.
pub(crate) fn force_unlock_single_key<'a>(end: &End<'a>) -> Call<'a> {
    force_alone(&FORCE_UNLOCK, end)
}

/// Redisson's words for a release: `0` of a reader or a mutex, and `1` of a writer.
fn is_release(message: &[u8]) -> bool {
    matches!(message, b"0" | b"1")
}
