//! The plain mutex on the server: a string, as `SET key id NX PX lease` writes it in most libraries. Beside it stand a counter
//! of fencing tokens and the line of those who wait, as those of the mutex.

mod sources;

use std::sync::LazyLock;
use std::time::Duration;

use leasehold_cluster::Script;

use super::call::Call;
use super::mutex::{
    add_renewal, asking_with_single_key, read_answer, read_confirm, read_release, read_renewals,
};
use super::parts::{add_ticket, mode};
use super::{Attempt, End, Protocol};
use crate::state::deadline::{millis, token_ttl};
use crate::state::hold::Kept;
use crate::state::names::{Derived, Layout, Name};
use crate::state::primitive::Primitive;
use crate::state::waiters::Access;

/// The plain mutex.
pub(crate) static PLAIN: Protocol = Protocol {
    primitive: Primitive::PlainMutex,
    word: "GP",
    layout: &LAYOUT,
    line: LINE,
    access: Access::Exclusive,
    passes: true,
    keeps: true,
    is_fair: false,
    mark: "",
    acquire,
    take_over: None,
    look,
    acquire_single_key,
    confirm,
    confirm_single_key,
    read_answer,
    read_confirm,
    renew: &RENEW,
    renew_one: &RENEW,
    renew_replicated: &RENEW_REPLICATED,
    add_renewal,
    renew_apart: None,
    read_renewals,
    release,
    release_single_key,
    read_release,
    // Other libraries announce nothing.
    is_release: |_| false,
};

static LAYOUT: Layout = Layout {
    channel: Derived::Prefixed("leasehold_plain"),
    keys: &[
        Derived::Prefixed("leasehold_token"),
        Derived::Prefixed("leasehold_line"),
    ],
};

/// Index of the counter of fencing tokens in the layout.
const COUNTER: usize = 0;
/// Index of the line.
const LINE: usize = 1;

static ACQUIRE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::ACQUIRE));
static ACQUIRE_ALONE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::ACQUIRE_ALONE));
static LOOK: LazyLock<Script> = LazyLock::new(|| Script::new(sources::LOOK));
static CONFIRM: LazyLock<Script> = LazyLock::new(|| Script::new(sources::CONFIRM));
static CONFIRM_ALONE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::CONFIRM_ALONE));
static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::RELEASE));
static RELEASE_ALONE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::RELEASE_ALONE));
static KEEP: LazyLock<Script> = LazyLock::new(|| Script::new(sources::KEEP));
static RENEW: LazyLock<Script> = LazyLock::new(|| Script::new(sources::RENEW));
static RENEW_REPLICATED: LazyLock<Script> =
    LazyLock::new(|| Script::new(sources::RENEW_REPLICATED));
static INSPECT: LazyLock<Script> = LazyLock::new(|| Script::new(sources::INSPECT));

fn acquire<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    let mut call = asking(&ACQUIRE, attempt);
    if let Some(ticket) = attempt.ticket {
        call.key(attempt.name.derived(LINE)).arg(ticket.text);
    } else if attempt.block.is_some() {
        call.arg("");
    }
    if let Some(block) = attempt.block {
        call.arg(block);
    }
    call
}

fn look<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    let mut call = asking(&LOOK, attempt);
    if let Some(ticket) = attempt.ticket {
        call.key(attempt.name.derived(LINE));
        add_ticket(&mut call, &ticket);
        call.arg(mode(ticket.channels));
    }
    call
}

fn acquire_single_key<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    asking_with_single_key(&ACQUIRE_ALONE, attempt)
}

fn confirm<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    asking(&CONFIRM, attempt)
}

fn confirm_single_key<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    asking_with_single_key(&CONFIRM_ALONE, attempt)
}

fn asking<'a>(script: &'static Script, attempt: &Attempt<'a>) -> Call<'a> {
    let mut call = Call::new(script);
    call.key(attempt.name.key())
        .key(attempt.name.derived(COUNTER))
        .arg(attempt.id.as_bytes())
        .arg(millis(attempt.lease))
        .arg(counter_ttl(attempt.counter_ttl, attempt.lease));
    call
}

fn release<'a>(end: &End<'a>) -> Call<'a> {
    if let Some(kept) = end.kept {
        return keep(end, kept, end.ticket);
    }
    let mut call = Call::new(&RELEASE);
    call.key(end.name.key())
        .key(end.name.derived(COUNTER))
        .key(end.name.derived(LINE))
        .arg(end.id.as_bytes())
        .arg(mode(end.channels))
        .arg(counter_ttl(end.counter_ttl, Duration::ZERO));
    if let Some(ticket) = end.ticket {
        call.arg(ticket);
    }
    call
}

/// Ends a hold whose lock stays taken.
fn keep<'a>(end: &End<'a>, kept: Kept, ticket: Option<&'a [u8]>) -> Call<'a> {
    let mut call = Call::new(&KEEP);
    call.key(end.name.key())
        .arg(end.id.as_bytes())
        .arg(millis(kept.left))
        .arg(u64::from(kept.may_grow));
    if let Some(ticket) = ticket {
        call.key(end.name.derived(LINE)).arg(ticket);
    }
    call
}

fn release_single_key<'a>(end: &End<'a>) -> Call<'a> {
    if let Some(kept) = end.kept {
        return keep(end, kept, None);
    }
    let mut call = Call::new(&RELEASE_ALONE);
    call.key(end.name.key()).arg(end.id.as_bytes());
    call
}

/// Asks who holds the lock, and who waits for it. The reply is that of the mutex.
pub(crate) fn inspect(name: &Name) -> Call<'_> {
    let mut call = inspect_single_key(name);
    call.key(name.derived(COUNTER)).key(name.derived(LINE));
    call
}

/// Asks for the holder alone.
pub(crate) fn inspect_single_key(name: &Name) -> Call<'_> {
    let mut call = Call::new(&INSPECT);
    call.key(name.key());
    call
}

/// The time to keep the counter in milliseconds. Only Redisson's have none, and this one is ours.
fn counter_ttl(ttl: Option<Duration>, lease: Duration) -> u64 {
    millis(ttl.unwrap_or_else(|| token_ttl(lease)))
}
